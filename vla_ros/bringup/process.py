"""One node as a process of its own: start, stream its output, end it, count its children out.

Each process leads a session, so Ctrl-C in a terminal reaches only the one that started the
graph, which ends the nodes in order. Should that one be killed, the kernel sends its nodes
SIGTERM. One reader thread a process; :attr:`NodeProcess.tail` is written by that thread only.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vla_ros.bringup.environment import SAFE_PATH, python_path
from vla_ros.bringup.graph_file import NodeSpec
from vla_ros.bringup.security import OVERRIDE

#: Tells a node to end with the process of this number; see vla_ros.nodes.common.ending.
PARENT = "VLA_ROS_PARENT"


@dataclass(frozen=True, slots=True)
class NodeExit:
    """How a node ended."""

    name: str
    code: int  # exit status, or minus the number of the signal
    clean: bool  # it ended by itself, or when asked, within the time it has

    def __str__(self) -> str:
        if self.code >= 0:
            return f"{self.name} ended with status {self.code}"
        return f"{self.name} was ended by {signal.Signals(-self.code).name}"


def command_line(spec: NodeSpec) -> list[str]:
    """The command that starts a node, as `ros2 run` would."""
    module = f"vla_ros.nodes.{spec.executable}.node"
    run = ["-m", module]
    if SAFE_PATH:
        run = ["-c", f"{SAFE_PATH}from {module} import main; sys.exit(main())"]
    command = [sys.executable, *run, "--ros-args"]
    command += ["-r", f"__node:={spec.name}"]
    if spec.namespace:
        command += ["-r", f"__ns:=/{spec.namespace.strip('/')}"]
    for old, new in spec.remappings.items():
        command += ["-r", f"{old}:={new}"]
    for path in spec.parameter_files:
        command += ["--params-file", str(path)]
    for name, value in spec.parameters.items():
        command += ["-p", f"{name}:={_yaml_value(value)}"]
    if spec.enclave:
        command += ["--enclave", spec.enclave]
    return [*command, "--log-level", spec.log_level]


def _yaml_value(value: Any) -> str:
    return json.dumps(value)  # JSON is YAML, and keeps "1" a string and 1.0 a float


class NodeProcess:
    """A started node. The main thread owns it."""

    def __init__(
        self, spec: NodeSpec, environment: Mapping[str, str], on_line: Callable[[str, str], None]
    ) -> None:
        self.spec = spec
        self.tail: deque[str] = deque(maxlen=40)  # its last lines
        self._on_line = on_line
        env = dict(environment)
        env["PYTHONPATH"] = python_path(env)
        # The node asks for its own end: code between fork and exec may deadlock beside threads.
        env[PARENT] = str(os.getpid())
        if spec.enclave:
            env.pop(OVERRIDE, None)  # of the process that starts it, whose keys are not the node's
        self._process = subprocess.Popen(
            command_line(spec),
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name=f"log-{spec.name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def reason(self) -> str:
        """Its last warning or error, else its last line: why something went wrong.

        A node answers a service call before its log has come through the pipe, so a line that
        explains is given a moment to arrive.
        """
        deadline = time.monotonic() + 1.0
        while (found := self._complaint()) is None and time.monotonic() < deadline:
            time.sleep(0.02)
        if found is None:
            found = self.tail[-1] if self.tail else "it printed nothing"
        return found.strip()

    def _complaint(self) -> str | None:
        for line in reversed(list(self.tail)):
            if any(word in line for word in ("[ERROR]", "[FATAL]", "[WARN]", "Error:")):
                return line
        return None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the node itself; its children are its own business."""
        if self.running:
            self._process.send_signal(number)

    def wait(self, timeout_s: float) -> bool:
        """True once it has ended."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def finish(self, clean: bool) -> NodeExit:
        """Kill what is left of its process group and say how it ended."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        code = self._process.wait()
        self._reader.join(timeout=1.0)
        return NodeExit(self.spec.name, code, clean and code in (0, -signal.SIGINT))

    def _read(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError, OSError):
            for line in self._process.stdout:
                self.tail.append(line.rstrip("\n"))
                self._on_line(self.spec.name, line.rstrip("\n"))
