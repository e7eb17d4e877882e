"""Many jobs at once on the machines of a Ray cluster. Ray is imported when it is asked for."""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from vla_ros.evaluation.player import MakeRunner, Order, Played, Player
from vla_ros.evaluation.records import Record, Setup, Variant
from vla_ros.evaluation.runner import RunnerFailed

MISSING = "ray is not installed: pip install ray on every machine, or use --workers without --ray"


def load_ray() -> Any:
    """The module; RunnerFailed when it is not there."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise RunnerFailed(MISSING) from error


def play_on_ray(
    make: MakeRunner,
    setup: Setup,
    variants: tuple[Variant, ...],
    orders: Sequence[Order],
    workers: int,
) -> Iterator[Played]:
    """As :func:`vla_ros.evaluation.parallel.play_in_processes`, in ``workers`` Ray actors.

    It joins the cluster that RAY_ADDRESS names, or begins one on this machine. vla_ros and the
    checkpoint must be at the same place on all of them. An actor that dies fails its job.
    """
    ray = load_ray()
    ours = not ray.is_initialized()
    if ours:
        ray.init(log_to_driver=False, include_dashboard=False)
    actor = ray.remote(num_cpus=max(1, setup.threads), max_restarts=-1)(Player)
    waiting = deque(orders)
    playing: dict[Any, tuple[Any, Order]] = {}

    def give(player: Any) -> None:
        if waiting:
            order = waiting.popleft()
            playing[player.play.remote(order)] = (player, order)

    try:
        for _ in range(min(workers, len(waiting))):
            give(actor.remote(make, setup, variants))
        while playing:
            (ready, *_), _ = ray.wait(list(playing), num_returns=1)
            player, order = playing.pop(ready)
            try:
                played: Played = ray.get(ready)
            except ray.exceptions.RayTaskError as error:
                raise RunnerFailed(str(error.cause or error).splitlines()[0]) from error
            except ray.exceptions.RayError as error:
                text = f"the Ray actor of the episode was lost: {str(error).splitlines()[0]}"
                played = Played(Record(order.job, False, text, error=text))
            yield played
            give(player)
    finally:
        if ours:
            ray.shutdown()
