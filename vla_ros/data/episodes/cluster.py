"""Many jobs at once on a Ray cluster: episodes and shards, by the code that a process of this
machine runs (:mod:`vla_ros.data.episodes.parallel`), so the same seeds give the same rows.

A station is an actor of one CPU, with the policy and the world that it needs. What a job makes
comes back as bytes: no disk is shared. A node that dies costs its unfinished jobs alone, which
others take up again.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from vla_ros import __version__
from vla_ros.core.errors import UserError
from vla_ros.data.episodes.play import EpisodeOrder, MakeRunner, PlayedEpisode, Player, RunnerFailed
from vla_ros.data.episodes.records import Record, Setup, Variant
from vla_ros.policies.remote.codec import need

_TRIES = 3  # processes that a job may take with it
_LOOK_S = 1.0  # how often it is looked whether there is room for another station
_REACH_S = 5.0  # for an address to answer
_NOBODY_S = 60.0  # without any station before it is given up

Order = TypeVar("Order")
Given = TypeVar("Given", contravariant=True)
Result = TypeVar("Result", covariant=True)


class Station(Protocol[Given, Result]):
    """What plays jobs, one after the other, in a process of its own."""

    def play(self, order: Given) -> Result:
        """The result of a job. Raises RunnerFailed: it and all like it cannot be played."""
        ...


@dataclass(frozen=True, slots=True)
class LostJob:
    """A job whose process died time after time; ``text``: how."""

    text: str


@dataclass(slots=True)
class _Seat(Generic[Order]):
    actor: Any
    order: Order
    answer: Any


class _Host:
    """The actor: a station, made when the first job comes. Runs on a node."""

    def __init__(self) -> None:
        self._station: Station[Any, Any] | None = None

    def play(self, make: Callable[[], Station[Any, Any]], order: Any, version: str) -> Any:
        if version != __version__:
            raise RunnerFailed(f"a node has vla_ros {__version__}, and this is {version}: install"
                               " the same one")  # fmt: skip
        if self._station is None:
            self._station = make()
        return self._station.play(order)


def play_on_cluster(
    address: str,
    make: MakeRunner,
    setup: Setup,
    variants: tuple[Variant, ...],
    orders: Sequence[EpisodeOrder],
    workers: int,
) -> Iterator[PlayedEpisode]:
    """Play episodes, begun in order, by ``workers`` stations or, of 1, as many as the cluster has
    CPUs; yields them as they end. An episode that took process after process with it has failed.

    UserError: there is no cluster. RunnerFailed: a variant cannot be played, or nobody is left.
    """
    station = partial(Player, make, setup, variants)
    on_cuda = setup.device.startswith("cuda")
    for order, played in results(address, station, orders, workers, on_cuda):
        if isinstance(played, LostJob):
            played = PlayedEpisode(Record(order.job, False, played.text, error=played.text))
        yield played


def results(
    address: str,
    make: Callable[[], Station[Order, Result]],
    orders: Sequence[Order],
    workers: int = 1,
    on_cuda: bool = False,
) -> Iterator[tuple[Order, Result | LostJob]]:
    """Jobs and their results, begun in order, as they end. ``make`` makes a station there;
    ``on_cuda``: each needs a GPU. Errors as of :func:`play_on_cluster`."""
    ray = _joined(address)
    try:
        yield from _play(ray, make, orders, workers, on_cuda)
    finally:
        ray.shutdown()


def _joined(address: str) -> Any:
    """The module ray, connected. UserError: it is not installed, or there is no cluster."""
    ray = need("ray")
    if not address or address == "local":
        raise UserError("--ray starts no cluster: give auto, HOST:PORT or ray://HOST:PORT of one"
                        " (`ray start --head`)")  # fmt: skip
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        if address != "auto":  # Ray itself tries for minutes
            socket.create_connection((host, int(port or 0)), _REACH_S).close()
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"--ray {address}: {reason}; start a cluster with `ray start --head`"
                        " and give its address") from None  # fmt: skip
    return ray


def _play(
    ray: Any,
    make: Callable[[], Station[Order, Result]],
    orders: Sequence[Order],
    workers: int,
    on_cuda: bool,
) -> Iterator[tuple[Order, Result | LostJob]]:
    host = ray.remote(num_cpus=1, num_gpus=int(on_cuda), max_restarts=0)(_Host)
    waiting, crew, lost = deque(orders), [], Counter[int]()
    number = {id(order): count for count, order in enumerate(orders)}
    alone_s = 0.0

    def room() -> int:
        have = ray.cluster_resources()
        most = int(have.get("CPU", 0))
        if on_cuda:
            most = min(most, int(have.get("GPU", 0)))
        return most if workers < 2 else min(most, workers)

    def seat(actor: Any) -> None:
        order = waiting.popleft()
        crew.append(_Seat(actor, order, actor.play.remote(make, order, __version__)))

    while waiting or crew:
        while waiting and len(crew) < room():
            seat(host.remote())
        if not crew:
            alone_s += _LOOK_S
            if alone_s > _NOBODY_S:
                what = "CPU and GPU" if on_cuda else "CPU"
                raise RunnerFailed(f"no node of the cluster has had a {what} for {_NOBODY_S:g} s")
            time.sleep(_LOOK_S)
            continue
        alone_s = 0.0
        ready, _ = ray.wait([one.answer for one in crew], num_returns=1, timeout=_LOOK_S)
        for answer in ready:
            one = next(each for each in crew if each.answer is answer or each.answer == answer)
            crew.remove(one)
            try:
                found = ray.get(answer)
            except ray.exceptions.RayTaskError as error:
                raise RunnerFailed(_reason(error)) from None
            except ray.exceptions.RayError as error:  # its process or its node is gone
                lost[number[id(one.order)]] += 1
                if lost[number[id(one.order)]] < _TRIES:
                    waiting.appendleft(one.order)
                else:
                    text = f"{_TRIES} processes of a cluster died over it: {_reason(error)}"
                    yield one.order, LostJob(text)
                with contextlib.suppress(Exception):
                    ray.kill(one.actor)
                continue
            if waiting and len(crew) < room():
                seat(one.actor)
            else:
                ray.kill(one.actor)
            yield one.order, found


def _reason(error: BaseException) -> str:
    """The innermost reason, in one line."""
    cause = getattr(error, "cause", None) or error
    return str(cause).strip().splitlines()[0] if str(cause).strip() else type(cause).__name__
