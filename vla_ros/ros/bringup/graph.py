"""A graph of nodes as processes: start, bring up, watch, end.

    with Graph(GraphSpec.load("sim", {"policy": {"policy": "zero"}})).start() as graph:
        while graph.ended() is None:
            time.sleep(0.1)

The same nodes with the same parameter files as launch/*.launch.py, for machines without
launch. All methods belong to one thread; the callbacks for log lines come from others.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_ros.core.console import log_line
from vla_ros.core.signals import kept_back
from vla_ros.ros.bringup.environment import OVERRIDE, SAFE_PATH, defaults, prepare, python_path
from vla_ros.ros.bringup.graph_file import GraphSpec, NodeSpec
from vla_ros.ros.common.ending import PARENT, STEP_S, step

if TYPE_CHECKING:
    from vla_ros.ros.bringup.lifecycle import LifecycleClient


# Each process leads a session, so Ctrl-C in a terminal reaches only the one that started the
# graph, which ends the nodes in order. Should that one be killed, the kernel sends its nodes
# SIGTERM. One reader thread a process; :attr:`NodeProcess.tail` is written by that thread only.


@dataclass(frozen=True, slots=True)
class NodeExit:
    """End of a node."""

    name: str
    code: int  # exit status, or minus the number of the signal
    clean: bool  # it ended by itself, or after a signal, within its time

    def __str__(self) -> str:
        if self.code >= 0:
            return f"{self.name} ended with status {self.code}"
        return f"{self.name} was ended by {signal.Signals(-self.code).name}"


def command_line(spec: NodeSpec) -> list[str]:
    """Command that starts a node, as `ros2 run` would."""
    module = f"vla_ros.ros.nodes.{spec.executable}.node"
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


def parameters_file(spec: NodeSpec) -> Path | None:
    """Last parameter file of a node, with the parameters given for it under its full name: `-p` is
    for every node, /**, and loses to a file's entry for one, such as /**/bridge. None: there are
    none."""
    if not spec.parameters:
        return None
    handle, name = tempfile.mkstemp(prefix=f"vla_ros-{spec.name}-", suffix=".yaml")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump({spec.full_name: {"ros__parameters": dict(spec.parameters)}}, file)
    return Path(name)


#: What stands before the text of a log line, and before the reason of a refusal.
REFUSED = "configure refused: "
_HEAD = re.compile(rf"\[(ERROR|FATAL|WARN)\] \[[\d.]+\] \[[^]]*\]: ({REFUSED})?")


class NodeProcess:
    """Process of a node, from its start: its output, its end. The main thread owns it."""

    def __init__(
        self, spec: NodeSpec, environment: Mapping[str, str], on_line: Callable[[str, str], None]
    ) -> None:
        self.spec = spec
        self.tail: deque[str] = deque(maxlen=40)  # its last lines
        self._on_line = on_line
        env = dict(environment)
        env["PYTHONPATH"] = python_path(env)
        # The node itself sets its death signal: code between fork and exec may deadlock.
        env[PARENT] = str(os.getpid())
        if spec.enclave:
            env.pop(OVERRIDE, None)  # of the process that starts it, whose keys are not the node's
        self._given = parameters_file(spec)
        given = ["--params-file", str(self._given)] if self._given else []
        with kept_back():
            self._process = subprocess.Popen(
                [*command_line(spec), *given],
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
        """Text of the last warning or error of the node, else its last line: why something went
        wrong.

        A node answers a service call before its log has come through the pipe, so a line that
        explains is given a moment to arrive.
        """
        deadline = time.monotonic() + 1.0
        while (found := self._last_warning()) is None and time.monotonic() < deadline:
            time.sleep(0.02)
        if found is None:
            found = self.tail[-1] if self.tail else "it printed nothing"
        return _HEAD.sub("", found.strip())

    def _last_warning(self) -> str | None:
        for line in reversed(list(self.tail)):
            if any(word in line for word in ("[ERROR]", "[FATAL]", "[WARN]", "Error:")):
                return line
        return None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the node itself, not to its children."""
        if self.running:
            self._process.send_signal(number)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; False: not within ``timeout_s``."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def finish(self, clean: bool) -> NodeExit:
        """Kill what is left of its process group; returns its end."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        code = self._process.wait()
        if self._given is not None:
            self._given.unlink(missing_ok=True)
        self._reader.join(timeout=1.0)
        return NodeExit(self.spec.name, code, clean and code in (0, -signal.SIGINT))

    def _read(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError, OSError):
            for line in self._process.stdout:
                self.tail.append(line.rstrip("\n"))
                self._on_line(self.spec.name, line.rstrip("\n"))


#: signals to a node that should end, and the seconds that it has after each
ENDING = ((signal.SIGINT, 5.0), (signal.SIGTERM, 2.0), (signal.SIGKILL, 2.0))
#: seconds after the first, of nodes that have something to write at their end
SLOW_TO_END_S = {"recorder": 16.0}
SERVICE_TIMEOUT_S = 20.0
ACTIVATE_TIMEOUT_S = 60.0
LATE_S = 3.0  # for one that has answered already
NAMESAKES_S = 1.2  # to discover the nodes of a domain: a fifth of it on a quiet machine
LACKING_S = 2.0  # for a policy to run after its activation; it names a missing camera after 1 s

LogLine = Callable[[str, str], None]  # (node, line)
Say = Callable[[str], None]


class GraphFailed(RuntimeError):
    """The graph did not come up, or a node ended by itself; the text names it, with the reason."""


class TimedOut(GraphFailed):
    """A step of the bring-up did not end within its time; the text names it."""


class BringUpStopped(Exception):
    """The caller's ``interrupted`` became true during the bring-up."""


def print_line(node: str, line: str) -> None:
    """Print a log line to stderr, with the node's name in front."""
    log_line(f"[{node}] {line}")


class Graph:
    """Graph of node processes that can be started once. `with` ends it, whatever happens inside."""

    def __init__(
        self,
        spec: GraphSpec,
        *,
        environment: Mapping[str, str] | None = None,
        on_line: LogLine = print_line,
        say: Say | None = None,
        configure_timeout_s: float = 600.0,
        interrupted: Callable[[], bool] = lambda: False,
        before_activate: Callable[[], None] = lambda: None,
        shared: bool = False,
    ) -> None:
        """
        Args:
            spec: what to start.
            environment: of the nodes; None: this process's own, to which the missing ROS
                variables are added (see vla_ros.ros.bringup.environment).
            on_line: gets (node, line) for every line a node prints; called from threads.
            say: gets one line for each step of the bring-up; None: as a log line of "up".
            configure_timeout_s: for configuring one lifecycle node (it may load a model).
            interrupted: called often during the bring-up; true ends it with BringUpStopped.
            before_activate: called once every lifecycle node is configured, before any acts.
            shared: others may be in this domain: refuse to start beside nodes of these names.
        """
        self.spec = spec
        self._given = environment
        self._environment: dict[str, str] = {}
        self._on_line = on_line
        self._say = say or (lambda line: on_line("up", line))
        self._configure_timeout_s = configure_timeout_s
        self._interrupted = interrupted
        self._before_activate = before_activate
        self._shared = shared
        self._processes: dict[str, NodeProcess] = {}
        self._exits: tuple[NodeExit, ...] = ()

    def __enter__(self) -> Graph:
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def start(self) -> Graph:
        """Start every node, then configure and activate the lifecycle nodes. Returns self.

        Raises:
            GraphFailed: with the reason; everything that had started has then been ended. A
                TimedOut names the step that did not end; where the middleware never returns from
                one, the process ends with the status STUCK of vla_ros.ros.common.ending.
            BringUpStopped: ``interrupted`` became true.
        """
        try:
            self._prepare()
            if self._shared:
                self._look_for_namesakes()
            self._start_processes()
            self._bring_up()
        except BaseException:
            self.stop()
            raise
        return self

    def pid(self, node: str) -> int:
        """Process id of a started node."""
        return self._processes[node].pid

    def runs(self, node: str) -> bool:
        """True for a node that was started and whose end was not reported."""
        return node in self._processes

    def ended(self) -> str | None:
        """Name of a node that has ended; None while every one runs. A spectator's end is reported
        once and does not count."""
        for name, process in list(self._processes.items()):
            if process.running:
                continue
            if not process.spec.spectator:
                return name
            del self._processes[name]
            how = process.finish(clean=False)
            self._say(f"{how}, and everything else goes on: {process.reason()}")
        return None

    def check(self) -> None:
        """Raise GraphFailed if a node has ended, with its last error."""
        name = self.ended()
        if name is not None:
            process = self._processes[name]
            how = process.finish(clean=False)
            raise GraphFailed(f"{how}: {process.reason()}")

    def stop(self) -> tuple[NodeExit, ...]:
        """End every node: lifecycle nodes first, so that the others get their last command.

        SIGINT, then SIGTERM, then SIGKILL, each after the time in ENDING. May be called again.
        """
        if self._processes:
            commanding = [p for p in self._processes.values() if p.spec.lifecycle]
            others = [p for p in self._processes.values() if not p.spec.lifecycle]
            self._exits = (*self._exits, *_end(commanding, self._say), *_end(others, self._say))
            self._processes = {}
        return self._exits

    def lacking(self) -> list[str]:
        """State and reason of each policy node that does not run within a moment, such as "WAITING:
        waits for an instruction"."""
        policies = [spec for spec in self.spec.nodes if spec.executable == "policy"]
        with self._client() as client:
            found = [client.status(spec.full_name, LACKING_S) for spec in policies]
        return [line for line in found if line]

    def _look_for_namesakes(self) -> None:
        """Raise GraphFailed where nodes of these names run: their services would be called, and
        theirs would get our messages."""
        names = {spec.full_name for spec in self.spec.nodes}
        with self._client() as client:
            found = sorted(client.running(names, NAMESAKES_S, self._interrupted))
        if self._interrupted():
            raise BringUpStopped
        if found:
            raise self._taken(found)

    def _taken(self, names: Sequence[str]) -> GraphFailed:
        domain = self._environment.get("ROS_DOMAIN_ID") or "0"
        run, it = ("runs", "it") if len(names) == 1 else ("run", "them")
        return GraphFailed(
            f"{' and '.join(names)} {run} in domain {domain} already: end {it}, or give"
            " --namespace, or another ROS_DOMAIN_ID"
        )

    def _prepare(self) -> None:
        if self._given is None:
            prepare()
            self._environment = dict(os.environ)
        else:
            self._environment = {**self._given, **defaults(self._given)}

    def _start_processes(self) -> None:
        for spec in self.spec.nodes:
            self._processes[spec.name] = NodeProcess(spec, self._environment, self._on_line)
        self._say(f"started {', '.join(self._processes)}")

    def _bring_up(self) -> None:
        nodes = [spec for spec in self.spec.nodes if spec.lifecycle]
        if not nodes:
            return
        with self._client() as client:
            for spec in nodes:
                self._transition(client, spec, "configure", self._configure_timeout_s)
            self._before_activate()
            for spec in nodes:
                self._transition(client, spec, "activate", ACTIVATE_TIMEOUT_S)
            self._check_alone(client)

    def _check_alone(self, client: LifecycleClient, seconds: float = 0.0) -> None:
        """Raise GraphFailed where a node of one of these names was there all the same: on a busy
        machine it is discovered late, perhaps within so many more seconds."""
        names, until = [spec.full_name for spec in self.spec.nodes], time.monotonic() + seconds
        while self._shared:
            if found := client.twice(names):
                raise self._taken(found)
            if time.monotonic() >= until or self._interrupted():
                return
            time.sleep(0.05)

    @contextlib.contextmanager
    def _client(self) -> Iterator[LifecycleClient]:
        """This process in the ROS graph, for as long as the body takes."""
        try:
            from vla_ros.ros.bringup.lifecycle import LifecycleClient
        except ImportError as error:
            raise GraphFailed(f"rclpy is missing ({error}): see vla-ros doctor") from None
        domain = self._environment.get("ROS_DOMAIN_ID")
        try:
            with self._step("joining the ROS graph"):
                client = LifecycleClient(int(domain) if domain else None)
        except RuntimeError as error:  # of rclpy: such as security that the middleware has not
            reason = str(error).strip().splitlines()[0]
            raise GraphFailed(f"cannot join the ROS graph: {reason}") from None
        try:
            yield client
        finally:
            with self._step("leaving the ROS graph"):
                client.close()

    def _step(self, what: str, more_s: float = 0.0) -> contextlib.AbstractContextManager[None]:
        """Step that only the process's end gets out of where the middleware hangs."""
        return step(what, STEP_S + more_s, [process.pid for process in self._processes.values()])

    def _transition(
        self, client: LifecycleClient, spec: NodeSpec, name: str, timeout_s: float
    ) -> None:
        process = self._processes[spec.name]
        start = time.monotonic()

        def alive() -> bool:
            if self._interrupted():
                raise BringUpStopped
            return self.ended() is None

        try:
            with self._step(f"{spec.name}: {name}", SERVICE_TIMEOUT_S + timeout_s):
                client.state(spec.full_name, SERVICE_TIMEOUT_S, alive)
                self._check_alone(client)
                self._say(f"{spec.name}: {name} ...")
                done = client.change(spec.full_name, name, timeout_s, alive)
        except TimeoutError as error:
            self.check()
            raise TimedOut(f"{spec.name}: {name}: {error}: {process.reason()}") from None
        if not done:
            self._check_alone(client, LATE_S)  # which may have refused
            raise GraphFailed(f"{spec.name} refused to {name}: {process.reason()}")
        self._say(f"{spec.name}: {name} done in {time.monotonic() - start:.1f} s")


def _end(processes: list[NodeProcess], say: Say) -> list[NodeExit]:
    running = {process.spec.name: process.running for process in processes}
    waiting = processes
    for number, patience_s in ENDING:
        waiting = [process for process in waiting if process.running]
        if waiting and number != signal.SIGINT:
            names = ", ".join(process.spec.name for process in waiting)
            say(f"{names} still running: sending {number.name}")
        for process in waiting:
            process.signal(number)
        begun = time.monotonic()
        for process in waiting:
            until = begun + patience_s
            if number == signal.SIGINT:
                until = begun + SLOW_TO_END_S.get(process.spec.executable, patience_s)
            process.wait(max(0.0, until - time.monotonic()))
    return [process.finish(clean=running[process.spec.name]) for process in processes]
