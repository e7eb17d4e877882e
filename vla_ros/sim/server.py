"""The simulation's own process: it answers its parent's requests, all in its main thread.

Started by :mod:`vla_ros.sim.process` with one inherited socket, over which pickled requests
come in and replies go out. Both ends are processes of this program and of one user. SIGINT
and SIGTERM are ignored: the parent decides, and the process ends with it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

from vla_ros.core import Floats
from vla_ros.sim.env import Environment, EnvSpec, SimError, SimObservation, SimStep


@dataclass(frozen=True, slots=True)
class Reset:
    task: str
    initial_state: int
    seed: int
    render: bool


@dataclass(frozen=True, slots=True)
class Step:
    action: Floats
    render: bool


Request = Reset | Step
Reply = EnvSpec | SimObservation | SimStep | SimError


def main(requests_fd: int, alive_fd: int) -> None:
    """Serve until the parent closes its end of the sockets."""
    for number in (signal.SIGINT, signal.SIGTERM):
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
        try:
            reply = _answer(environment, request)
        except Exception as error:
            reply = _as_sim_error(error)
        requests.send(reply)


def _answer(environment: Environment, request: Request) -> Reply:
    if isinstance(request, Reset):
        return environment.reset(
            request.task, request.initial_state, request.seed, render=request.render
        )
    return environment.step(request.action, request.render)


def _as_sim_error(error: Exception) -> SimError:
    if isinstance(error, SimError):
        return error
    return SimError(f"{type(error).__name__}: {error}")


def _end_with_parent(alive_fd: int) -> None:
    wait([Connection(alive_fd)])
    os._exit(1)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
