"""The real benchmark: these tests run where LIBERO and its assets are, else they are skipped."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.libero import ARCHIVE, why_not
from vla_ros.sim.factory import EnvConfig
from vla_ros.sim.libero.assets import VARIABLE
from vla_ros.sim.process import SimProcess

if ARCHIVE.is_file():
    os.environ.setdefault(VARIABLE, str(ARCHIVE))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_not()
    for item in items:
        if reason and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[..., SimProcess]]:
    """`start("libero_object", image_size=64)`: the environment in a process of its own."""
    started: list[SimProcess] = []

    def make(suite: str, image_size: int = 64, wrist: bool = True) -> SimProcess:
        started.append(SimProcess(EnvConfig("libero", image_size, wrist, suite)))
        return started[-1]

    yield make
    for process in started:
        process.close()
