"""The worker's part in this process: warm-up, and receipts of observations."""

from __future__ import annotations

import numpy as np
import pytest

from unit.runtime.worker.faulty_policies import Obedient, Pipelined
from vla_ros.core.clock import MS, Clock, ManualClock
from vla_ros.core.types import Inference, Instruction, Observation, PolicyInfo, Timeline
from vla_ros.policies import InvalidAction, PolicyRefused, PolicySpec
from vla_ros.runtime.worker.wire import FrameRequest
from vla_ros.runtime.worker.worker import Server, last_line, warm_up


class Timed:
    """Takes 100 ms for the first two steps, then 10, 20, 30 … ms."""

    info = PolicyInfo(name="timed", dtype="float32", pipeline_depth=2)

    def __init__(self, clock: ManualClock) -> None:
        self.clock, self.steps = clock, 0

    def reset(self, instruction: Instruction) -> None:
        assert self.steps == 0

    def step(self, observation: Observation, timeline: Timeline, clock: Clock) -> Inference | None:
        assert observation.image.shape == (48, 64, 3)
        assert observation.wrist_image is not None
        self.steps += 1
        self.clock.advance(0.1 if self.steps <= 2 else (self.steps - 2) / 100)
        return None


def test_warm_up_times_the_settled_pipeline_only() -> None:
    clock = ManualClock()
    spec = PolicySpec(warmup_count=5, warmup_size=(48, 64))
    ready = warm_up(Timed(clock), spec, 3, clock)
    assert ready.inference_p50_ms == pytest.approx(30)
    assert 48 < ready.inference_p99_ms < 50
    assert ready.pid == 3


def test_policies_without_a_model_need_no_warm_up() -> None:
    policy = Obedient()
    assert warm_up(policy, PolicySpec(), 1, ManualClock()).inference_p99_ms == 0
    assert policy.steps == 0


def test_policy_that_cannot_warm_up_is_refused() -> None:
    class Broken(Timed):
        def step(self, observation: Observation, timeline: Timeline, clock: Clock) -> None:
            raise InvalidAction("a logit is not finite")

    with pytest.raises(PolicyRefused, match="a logit is not finite"):
        warm_up(Broken(ManualClock()), PolicySpec(), 1, ManualClock())


def test_receipts_of_an_old_epoch_are_forgotten() -> None:
    clock = ManualClock()
    server = Server(Pipelined(), clock)

    def ask(n: int, epoch: int) -> int:
        image = np.zeros((2, 2, 3), np.uint8)
        seen = Observation(n % 3, 100 + n, clock.steady_ns() - MS, image)
        result = server.answer(FrameRequest(n, seen, Instruction("go", epoch)))
        return result.received_ns

    for n in range(3):
        ask(n, 0)
    got = [ask(n, 1) for n in range(3, 6)]  # the same stamps again: a bag that loops
    assert got[2] == 103


def test_last_line_is_one_short_line() -> None:
    assert last_line(RuntimeError("a\nb")) == "RuntimeError: a"
    assert last_line(PolicyRefused("why")) == "why"
    assert last_line(KeyError()) == "KeyError"
    assert len(last_line(ValueError("x" * 5000))) == 1000
