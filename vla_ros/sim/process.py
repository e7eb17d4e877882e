"""An ``Environment`` that runs another in a process of its own, with time-outs.

A rendering context belongs to a thread, and a simulation may hang or crash: here neither
can stop the caller. A fresh interpreter is started rather than a ``multiprocessing`` child,
which would import the caller's main module (and with it ROS) again.

Thread: one at a time; :meth:`SimProcess.kill` may be called from any.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Literal, TypeVar

import numpy.typing as npt

from vla_ros.sim.env import (
    Environment,
    EnvSpec,
    SimError,
    SimObservation,
    SimStep,
    checked_action,
)

# The simulation's own process: it answers its parent's requests, all in its main thread.
#
# Started with one inherited socket, over which pickled requests come in and replies go out. Both
# ends are processes of this program and of one user. SIGINT and SIGTERM are ignored: the parent
# decides, and the process ends with it.


Request = tuple[Literal["reset", "step"], tuple[Any, ...]]  # method of Environment, arguments
Reply = EnvSpec | SimObservation | SimStep | SimError


def main(requests_fd: int, alive_fd: int) -> None:
    """Serve until the parent closes its end of the sockets."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # A simulation that hangs never reads its requests: another socket says the parent is gone.
    threading.Thread(target=_end_with_parent, args=(alive_fd,), daemon=True).start()
    requests = Connection(requests_fd)
    make: Callable[[], Environment] = requests.recv()
    try:
        environment = make()
    except Exception as error:
        requests.send(_as_sim_error(error))
        return
    try:
        requests.send(environment.spec)
        _serve(environment, requests)
    except (EOFError, OSError):
        pass  # the parent closed its end
    finally:
        environment.close()


def _serve(environment: Environment, requests: Connection) -> None:
    while True:
        request: Request = requests.recv()
        method, arguments = request
        try:
            reply: Reply = getattr(environment, method)(*arguments)
        except Exception as error:
            reply = _as_sim_error(error)
        requests.send(reply)


def _as_sim_error(error: Exception) -> SimError:
    if isinstance(error, SimError):
        return error
    return SimError(f"{type(error).__name__}: {error}")


def _end_with_parent(alive_fd: int) -> None:
    wait([Connection(alive_fd)])
    os._exit(1)


_BOOT = (
    "import os, sys; sys.path[:] = os.environ.pop('VLA_ROS_SIM_PATH').split(os.pathsep); "
    "from vla_ros.sim.process import main; main(*map(int, sys.argv[1:]))"
)
_Reply = TypeVar("_Reply", EnvSpec, SimObservation, SimStep)


class SimLost(SimError):
    """The simulation's process died, or was killed since it did not answer in time."""


@dataclass(frozen=True, slots=True)
class SimTimeouts:
    """Longest waits in seconds of wall time; past them the process is killed."""

    start_s: float = 90.0
    reset_s: float = 30.0
    step_s: float = 10.0


class SimProcess:
    """An environment in a process, which construction starts and waits for.

    ``make`` builds it there, so it must be picklable, as ``EnvConfig`` is. When the process
    is lost, the call in progress raises SimLost, and the next :meth:`reset` starts another.
    Time-outs that are not given are those of ``make``, where it has any.
    SimError: the environment could not be built.
    """

    def __init__(
        self, make: Callable[[], Environment], timeouts: SimTimeouts | None = None
    ) -> None:
        self._make = make
        if timeouts is None:
            timeouts = getattr(make, "timeouts", SimTimeouts())
        self._timeouts: SimTimeouts = timeouts
        self.starts = 0  # processes started so far
        self._process: subprocess.Popen[bytes] | None = None
        self._spec = self._start()

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """0 while there is no process."""
        return self._process.pid if self._process is not None and self.alive else 0

    def reset(
        self, task: str, initial_state: int, seed: int = 0, render: bool = True
    ) -> SimObservation:
        """``Environment.reset``, in a new process where the last one was lost."""
        if not self.alive:
            self._start()
        request: Request = ("reset", (task, initial_state, seed, render))
        return self._ask(request, SimObservation, self._timeouts.reset_s)

    def step(self, action: npt.ArrayLike, render: bool = True) -> SimStep:
        """``Environment.step``."""
        request: Request = ("step", (checked_action(action, self.spec.action_space), render))
        if not self.alive:
            raise SimLost("the simulation ended: reset before the next step")
        return self._ask(request, SimStep, self._timeouts.step_s)

    def close(self) -> None:
        """End the process: by closing its socket, and by SIGKILL after 2 s."""
        if self._process is None:
            return
        self._requests.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)
        self._bury()

    def kill(self) -> None:
        """End the process at once, also out of a call that waits for it."""
        if self._process is not None:
            self._process.kill()

    def _start(self) -> EnvSpec:
        self._bury()
        self._requests, requests = _pair()
        self._alive, alive = _pair()
        inherited = (requests.fileno(), alive.fileno())
        # An empty entry of the path means the working directory, which must not change.
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, *map(str, inherited)],
                pass_fds=inherited,
                env={**os.environ, "VLA_ROS_SIM_PATH": path},
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in a terminal reaches the parent only
            )
        finally:
            requests.close()
            alive.close()
        self.starts += 1
        with contextlib.suppress(OSError):  # it ended already: _receive says so
            self._requests.send(self._make)
        try:
            return self._receive(EnvSpec, "start", self._timeouts.start_s)
        except SimError:
            self._bury()
            raise

    def _ask(self, request: Request, kind: type[_Reply], timeout_s: float) -> _Reply:
        with contextlib.suppress(OSError):
            self._requests.send(request)
        return self._receive(kind, request[0], timeout_s)

    def _receive(self, kind: type[_Reply], what: str, timeout_s: float) -> _Reply:
        try:
            if not self._requests.poll(timeout_s):
                self._bury()
                raise SimLost(f"{what} of the simulation took more than {timeout_s:g} s: killed")
            reply = self._requests.recv()
        except (EOFError, OSError):
            raise SimLost(f"the simulation {self._exit_reason()} during {what}") from None
        if isinstance(reply, SimError):
            raise reply
        assert isinstance(reply, kind)
        return reply

    def _exit_reason(self) -> str:
        """End of the process, in words."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)  # its sockets close a moment before it ends
        code = self._process.returncode
        self._bury()
        if code is not None and code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def _bury(self) -> None:
        """Kill what may be left, and wait for its end."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._process = None
        self._requests.close()
        self._alive.close()


def _pair() -> tuple[Connection, Connection]:
    ours, theirs = socket.socketpair()
    return Connection(ours.detach()), Connection(theirs.detach())
