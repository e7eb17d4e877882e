"""Served, the engine says exactly what it says in this process, also to two clients at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
for module in ("websockets", "msgpack", "prometheus_client"):
    pytest.importorskip(module, reason=f"{module} is not installed: pip install '.[serve]'")

from support.serving import serving
from vla_ros.core.clock import SystemClock
from vla_ros.core.types import Executing, Instruction, Observation, Timeline
from vla_ros.engine.options import EngineOptions
from vla_ros.policies import PolicySpec, load_policy

CLOCK = SystemClock()
TASK = Instruction("pick up the red block", 1)


def frames(count: int, state_dim: int) -> list[Observation]:
    draw = np.random.default_rng(3)
    seen = []
    for number in range(count):
        image = draw.integers(0, 256, (64, 64, 3), np.uint8)
        state = draw.normal(0, 0.1, state_dim) if state_dim else None
        seen.append(Observation(1000 + number, 1, 1, image, proprio=state))
    return seen


def ask(policy: Any, observation: Observation) -> Any:
    return policy.step(observation, Timeline(CLOCK.steady_ns()), CLOCK)


def test_tokens_and_actions_are_the_engine_s() -> None:
    engine = EngineOptions("shipped:tabletop", num_threads=1)
    spec = PolicySpec("vla", engine=engine, warmup_count=1)
    local = load_policy(spec)
    with serving(spec) as server:
        there = PolicySpec("remote", engine=EngineOptions(server.address))
        one, other = load_policy(there), load_policy(there)
        assert one.info == replace(
            local.info,
            name="remote",
            checkpoint=server.address,
            conventions=one.info.conventions,
            assumptions=(one.info.assumptions[0], *local.info.assumptions),  # the server's first
        )
        for policy in (local, one, other):
            policy.reset(TASK)
        for observation in frames(3, 0):
            wanted, *found = (ask(policy, observation) for policy in (local, one, other))
            for inference in found:
                assert inference.tokens == wanted.tokens
                np.testing.assert_array_equal(inference.actions, wanted.actions)
                assert inference.timeline.durations_ms()["decode"] > 0


def test_a_chunk_is_continued_over_the_wire_as_here() -> None:
    engine = EngineOptions("shipped:tabletop-flow", num_threads=1, rtc_mode="guided")
    spec = PolicySpec("vla", engine=engine, warmup_count=1)
    local = load_policy(spec)
    with serving(spec) as server:
        there = PolicySpec("remote", engine=EngineOptions(server.address))
        remote, other = load_policy(there), load_policy(there)
        assert remote.info.continues == local.info.continues
        first, second = frames(2, local.info.state_dim)
        second = replace(second, executing=Executing(first.stamp_ns, 4, 2), delay_steps=2)
        for policy in (local, remote, other):
            policy.reset(TASK)
        for observation in (first, second):
            wanted, *both = (ask(policy, observation) for policy in (local, remote, other))
            for found in both:
                np.testing.assert_allclose(found.actions, wanted.actions, atol=1e-5)
                assert found.continues == wanted.continues
        assert found.continues == second.executing
