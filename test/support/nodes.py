"""Start the nodes of vla_ros as processes, the way a user does."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support import wait
from support.wait import wait_until
from vla_ros.core.resources import config_path
from vla_ros.ros.bringup.environment import defaults, python_path
from vla_ros.ros.bringup.graph import command_line
from vla_ros.ros.bringup.graph_file import NodeSpec
from vla_ros.ros.common.ending import PARENT


def ros_environment(domain: int) -> dict[str, str]:
    """What a process of a test needs to join the graph of that test and no other."""
    env = {**os.environ, **defaults(os.environ)}
    env["ROS_DOMAIN_ID"] = str(domain)
    env["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
    env["PYTHONPATH"] = python_path(env)
    env.setdefault("OMP_NUM_THREADS", "1")
    return env


class Program:
    """A process in a session of its own, with its output kept."""

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str]) -> None:
        self.name = name
        self.command = list(command)
        self._lines: list[str] = []
        self.process = subprocess.Popen(
            self.command,
            env={**env, PARENT: str(os.getpid())},  # a test that is cut leaves no node behind
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs."""
        return self.process.poll()

    @property
    def log(self) -> str:
        """Everything it printed so far."""
        return "\n".join(self._lines)

    def said(self) -> str:
        """The same, asked for later."""
        return self.log

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process itself, not to its children."""
        self.process.send_signal(number)

    def wait(self, timeout: float = 10.0) -> int:
        """Its exit status; fails the test if it does not end in time, as a wait does."""
        limit = timeout * wait.patience
        try:
            code = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end within {limit:g} s") from None
        self._reader.join(timeout=1.0)
        return code

    def wait_for_log(self, text: str, timeout: float = 10.0) -> None:
        """Wait for a piece of text in its output; fails the test at once where there is no more."""

        def said() -> bool:
            ended = self.returncode is not None and not self._reader.is_alive()
            found = text in self.log
            assert found or not ended, f"{self.name} ended ({self.returncode}):\n{self.log}"
            return found

        wait_until(said, timeout, lambda: f"{text!r} in:\n{self.log}")

    def end(self, timeout: float = 5.0) -> None:
        """Ask it to end, and kill it if it does not. For one that publishes all the time: killed
        over Fast DDS's shared memory it may leave a lock behind, and a participant of this process
        that goes while the memory is given up then crashes it."""
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            self.process.terminate()
            self.process.wait(timeout)
        self.kill()

    def kill(self) -> None:
        """End it and everything it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join(timeout=1.0)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.append(line.rstrip("\n"))


def start_node(
    executable: str,
    env: Mapping[str, str],
    parameters: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    files: Sequence[str | Path] | None = None,
    remappings: Mapping[str, str] | None = None,
    namespace: str = "",
    log_level: str = "info",
    extra_env: Mapping[str, str] | None = None,
) -> Program:
    """Start `python -m vla_ros.ros.nodes.<executable> --ros-args ...`.

    ``files`` defaults to the shipped config/<executable>.yaml, then ``parameters`` apply.
    """
    paths = [config_path(f"{executable}.yaml")] if files is None else [Path(f) for f in files]
    spec = NodeSpec(
        name=name or executable,
        executable=executable,
        parameter_files=tuple(paths),
        parameters=dict(parameters or {}),
        remappings=dict(remappings or {}),
        namespace=namespace,
        log_level=log_level,
    )
    return Program(spec.name, command_line(spec), {**env, **(extra_env or {})})


def run_cli(*words: str, env: Mapping[str, str], timeout: float = 60.0) -> tuple[int, str, str]:
    """Run `vla-ros ...`; returns its exit status, stdout and stderr."""
    # -c: nothing in the working directory may shadow the package under test.
    main = "import sys; from vla_ros.cli.main import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", main, *words],
        env=dict(env),
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    return done.returncode, done.stdout, done.stderr
