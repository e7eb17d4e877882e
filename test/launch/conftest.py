"""Fixtures of the tests that launch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from support.nodes import Program


@pytest.fixture
def ros2_launch(ros_env: dict[str, str]) -> Iterator[Callable[..., Program]]:
    """`ros2_launch("policy.launch.py", policy="zero")`, in a process group of its own."""
    from support.ros2_launch import start

    programs: list[Program] = []

    def launch(file: str, **arguments: Any) -> Program:
        programs.append(start(file, ros_env, **arguments))
        return programs[-1]

    yield launch
    for program in programs:
        program.kill()
        print(f"----- {program.name}\n{program.log}")


@pytest.fixture
def up(ros_env: dict[str, str]) -> Iterator[Callable[..., Program]]:
    """`up("sim", "-p", "policy.policy=zero")`: `vla-ros up` with these words."""
    from support.nodes import Program

    programs: list[Program] = []

    def start(*words: str) -> Program:
        main = "import sys; from vla_ros.cli.main import main; sys.exit(main())"
        programs.append(Program("up", [sys.executable, "-c", main, "up", *words], ros_env))
        return programs[-1]

    yield start
    for program in programs:
        program.kill()
        print(program.log)
