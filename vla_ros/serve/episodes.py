"""Many simulated episodes on one engine: each in a process, their frames answered together.

The policy is loaded once, by the server of :mod:`vla_ros.serve.server` on a free port of this
machine; every process plays its episodes with policy ``remote``. In float32 they are the episodes
that :func:`vla_ros.data.episodes.parallel.play_in_processes` plays: the same tokens, chunks within
1e-5.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence

from vla_ros.core.errors import UserError
from vla_ros.data.episodes.parallel import play_in_processes
from vla_ros.data.episodes.plan import config_of
from vla_ros.data.episodes.play import (
    DirectRunner,
    EpisodeOrder,
    PlayedEpisode,
    RunnerFailed,
    policy_spec,
)
from vla_ros.data.episodes.records import Setup, Variant
from vla_ros.engine.options import EngineOptions
from vla_ros.policies.base import PolicyRefused, PolicySpec
from vla_ros.serve.server import ServeOptions, Server

FREELY_HZ = 1e4  # the rate limit is for strangers
PATIENCE_S = "300"  # the world waits for its answer


def play_on_one_engine(
    setup: Setup,
    variants: tuple[Variant, ...],
    orders: Sequence[EpisodeOrder],
    workers: int,
    say: Callable[[str], None],
) -> Iterator[PlayedEpisode]:
    """Play the jobs, variant after variant, in ``workers`` processes; yields them as they end.

    ``say`` gets a line a variant: how many frames a pass of the policy answered. RunnerFailed.
    """
    for variant in variants:
        its = [order for order in orders if order.job.variant == variant.label]
        if not its:
            continue
        with _serving(setup, variant, workers) as server:
            make = functools.partial(_served, server.address)
            yield from play_in_processes(make, setup, (variant,), its, workers)
            say(f"{variant.label}: {server.metrics.frames_a_pass():.1f} frames a pass")


def _served(address: str, setup: Setup, variants: tuple[Variant, ...]) -> DirectRunner:
    options = {"timeout_s": PATIENCE_S}
    return DirectRunner(
        setup, variants, PolicySpec("remote", engine=EngineOptions(address), options=options)
    )


@contextlib.contextmanager
def _serving(setup: Setup, variant: Variant, clients: int) -> Iterator[Server]:
    """A server of the variant's policy while the block runs. RunnerFailed: it cannot be."""
    world = config_of(setup)()
    robot = world.spec
    world.close()
    options = ServeOptions(port=0, max_clients=2 * clients, max_rate_hz=FREELY_HZ)
    try:
        server = Server(policy_spec(setup, variant, robot), options)
        server.load()
    except (PolicyRefused, UserError, ValueError) as error:
        raise RunnerFailed(str(error)) from error
    up = threading.Event()

    def run() -> None:
        try:
            asyncio.run(server.run(up.set))
        finally:
            up.set()

    thread = threading.Thread(target=run, name="vla_ros_server", daemon=True)
    thread.start()
    up.wait()
    try:
        yield server
    finally:
        server.stop()
        thread.join()
