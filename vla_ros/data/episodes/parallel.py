"""Many jobs at once: in processes of this machine. A process that dies is its job's failure.

Processes are fresh interpreters, since OpenGL and torch do not survive a fork. They leave Ctrl-C
to their parent and end with it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext

from vla_ros.data.episodes.play import EpisodeOrder, MakeRunner, PlayedEpisode, Player, RunnerFailed
from vla_ros.data.episodes.records import Record, Setup, Variant

_LOSSES = 3  # processes that end in a row before it is given up
_END_S = 15.0  # for a process to end by itself, and its graph with it


def play(
    make: MakeRunner,
    setup: Setup,
    variants: tuple[Variant, ...],
    orders: Sequence[EpisodeOrder],
    workers: int,
) -> Iterator[PlayedEpisode]:
    """Play the jobs, in as many processes as there are ``workers``: one is this. RunnerFailed."""
    if workers > 1:
        return play_in_processes(make, setup, variants, orders, workers)
    return play_here(make, setup, variants, orders)


def play_here(
    make: MakeRunner, setup: Setup, variants: tuple[Variant, ...], orders: Sequence[EpisodeOrder]
) -> Iterator[PlayedEpisode]:
    """Play the jobs in order in this process and thread. Raises RunnerFailed."""
    player = Player(make, setup, variants)
    try:
        for order in orders:
            yield player.play(order)
    finally:
        player.close()


def play_in_processes(
    make: MakeRunner,
    setup: Setup,
    variants: tuple[Variant, ...],
    orders: Sequence[EpisodeOrder],
    workers: int,
) -> Iterator[PlayedEpisode]:
    """Play the jobs, begun in order, in ``workers`` processes; yields them as they end.

    A job whose process dies is a failed episode, and the next one gets a new process. Raises
    RunnerFailed: a variant cannot be played, or process after process died.
    """
    waiting = deque(orders)
    context = multiprocessing.get_context("spawn")
    crew = [_Worker(context, make, setup, variants) for _ in range(min(workers, len(waiting)))]
    losses = 0
    try:
        for worker in crew:
            worker.send(waiting.popleft())
        while busy := {worker.connection: worker for worker in crew if worker.order}:
            for connection in wait(list(busy)):
                worker = busy[connection]  # type: ignore[index]
                played = worker.receive()
                losses = losses + 1 if worker.lost else 0
                yield played
                if losses >= _LOSSES:
                    raise RunnerFailed(f"{losses} processes in a row: {played.record.error}")
                if waiting:
                    if worker.lost:
                        crew.remove(worker)
                        worker = _Worker(context, make, setup, variants)
                        crew.append(worker)
                    worker.send(waiting.popleft())
    finally:
        _end(crew)


class _Worker:
    """A process and what it is doing. ``lost``: it died over its last job."""

    def __init__(
        self,
        context: SpawnContext,
        make: MakeRunner,
        setup: Setup,
        variants: tuple[Variant, ...],
    ) -> None:
        self.connection, theirs = context.Pipe()
        self.order: EpisodeOrder | None = None
        self.lost = False
        self.process = context.Process(
            target=_work, args=(theirs, make, setup, variants), name="evaluation"
        )
        self.process.start()
        theirs.close()

    def send(self, order: EpisodeOrder) -> None:
        """Let it play this; it must not be busy."""
        self.order = order
        with contextlib.suppress(OSError):  # it ended: receive() says so
            self.connection.send(order)

    def receive(self) -> PlayedEpisode:
        """The result of the job; RunnerFailed."""
        assert self.order is not None
        order, self.order = self.order, None
        try:
            result = self.connection.recv()
        except (EOFError, OSError):
            self.lost = True
            self.process.join(_END_S)
            text = f"the process of the episode ended with exit code {self.process.exitcode}"
            return PlayedEpisode(Record(order.job, False, text, error=text))
        if isinstance(result, PlayedEpisode):
            return result
        raise RunnerFailed(str(result))


def _work(
    connection: Connection, make: MakeRunner, setup: Setup, variants: tuple[Variant, ...]
) -> None:
    """A worker process: plays what comes until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end_now)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    player = Player(make, setup, variants)
    try:
        while True:
            order = connection.recv()
            try:
                connection.send(player.play(order))
            except RunnerFailed as error:
                connection.send(str(error))
    except (EOFError, OSError):
        pass  # the parent wants no more
    finally:
        player.close()


def _end_now(*_: object) -> None:
    """Out through the player's close, from wherever it is."""
    sys.unraisablehook = lambda _: None  # half-made objects (OpenGL's) complain as they go
    sys.exit(1)


def _end_with_parent() -> None:
    """A killed parent closes nothing in order: look whether it is still there."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _end(crew: Sequence[_Worker]) -> None:
    """End all: those that wait by themselves, those that play at once."""
    for worker in crew:
        worker.connection.close()
        if worker.order is not None:
            worker.process.terminate()
    until = time.monotonic() + _END_S
    for worker in crew:
        worker.process.join(max(0.1, until - time.monotonic()))
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
