"""Two rates under the judge of motion: whatever a policy's chunks, their execution and the ratio of
the rates are, no command that leaves breaks what the parameters promise, and a chunk's actions are
executed at the rate of their data.

The judge is that of the node tests, with an arithmetic of its own; the loop is the real one.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import given as hypothesis_given
from hypothesis import strategies as st

from support.motion_judge import MotionJudge
from unit.runtime.control.bench import Bench, Recorder
from vla_ros.core.action_space import ActionKind, ActionSpace, end_effectors, joints
from vla_ros.core.clock import SECOND
from vla_ros.core.types import Command, CommandKind, Executing, Inference, StaleAction, Timeline
from vla_ros.runtime.control.corrections import Corrections
from vla_ros.runtime.control.queue import Chunking, Execution
from vla_ros.runtime.control.state import JointOutputs
from vla_ros.runtime.safety import Limits

RUNS = int(os.environ.get("VLA_ROS_RUNS", "3"))
RATIOS = [(30.0, 125.0), (15.0, 100.0), (50.0, 20.0), (20.0, 500.0), (20.0, 20.0)]
CAMERA_HZ = 30.0
SERVO_S = 0.08
SECONDS = 0.8
JP, JD = ActionKind.JOINT_POSITION, ActionKind.JOINT_DELTA
EP, ED = ActionKind.END_EFFECTOR_POSE, ActionKind.END_EFFECTOR_DELTA
#: By kind: half of the bounds' range, and the largest speed, of lengths and angles.
SIZES = {
    JP: ((0.8, 0.8), (0.6, 1.0)),
    JD: ((0.04, 0.04), (0.6, 1.0)),
    EP: ((0.6,) * 3 + (2.0,) * 3, (0.5,) * 3 + (1.5,) * 3),
    ED: ((0.02,) * 3 + (0.08,) * 3, (0.3,) * 3 + (1.0,) * 3),
}


def space_of(kind: ActionKind) -> ActionSpace:
    return joints(kind, ("a", "b", "g"), ("g",)) if kind.joints else end_effectors(kind)


def stamp(ns: int) -> Any:
    return SimpleNamespace(sec=ns // SECOND, nanosec=ns % SECOND)


def parameters(limits: Limits, outputs: tuple[str, ...]) -> dict[str, Any]:
    """The node's parameters that these limits come from."""
    space = limits.space
    named = {"action_names": space.names, "gripper_names": ["g"]} if space.kind.joints else {}
    return named | {
        "action_space": space.kind.name.lower(),
        "action_rate_hz": limits.action_rate_hz,
        "control_rate_hz": limits.control_rate_hz,
        "bounds_low": limits.low,
        "bounds_high": limits.high,
        "jump_limit": limits.jump,
        "velocity_limits": limits.velocity or (0.0,),
        "acceleration_limits": limits.acceleration or (0.0,),
        "leash_s": limits.leash_s,
        "max_age_s": limits.max_age_s,
        "outputs": outputs,
        "policy": "replay",
    }


class Judged(Recorder):
    """Topics of a node, as far as the judge listens to them."""

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self.space, self.heard = limits.space, MotionJudge()
        self.outputs = ("positions",) if limits.space.kind.joints else ()
        self.heard.limits(parameters(limits, self.outputs), 0)

    def publish(self, command: Command) -> None:
        super().publish(command)
        message = SimpleNamespace(
            header=SimpleNamespace(stamp=stamp(command.published_ns)),
            observation_stamp=stamp(command.stamp_ns),
            valid_until=stamp(command.valid_until_ns),
            kind=int(command.kind),
            sequence=command.sequence,
            epoch=command.epoch,
            chunk_index=command.chunk_index,
            action_phase=command.action_phase,
            names=self.space.names,
            action=command.action,
        )
        self.heard.hear("action", message, command.published_ns, command.sequence + 1, "node")
        self.positions(command)

    def rest(self, command: Command) -> None:
        super().rest(command)
        self.positions(command)

    def positions(self, command: Command) -> None:
        if command.joint_positions is not None:
            message = SimpleNamespace(data=command.joint_positions)
            self.heard.hear("positions", message, command.published_ns + 1000)

    def read(self, place: np.ndarray, now_ns: int) -> None:
        if self.space.kind.joints:
            message: Any = SimpleNamespace(name=["a", "b"], position=place)
            self.heard.hear("joint_states", message, now_ns)
        elif self.space.absolute:
            at = dict(zip("xyz", place, strict=False))
            pose = SimpleNamespace(position=SimpleNamespace(**at))
            message = SimpleNamespace(pose=pose, header=SimpleNamespace(stamp=stamp(now_ns)))
            self.heard.hear("measured_pose", message, now_ns)


class Run:
    """A policy that answers each question with a chunk after a while, a robot that lags behind, and
    a tick as the node's: on a grid, late at times."""

    def __init__(
        self,
        kind: ActionKind,
        rates: tuple[float, float],
        execution: Execution,
        chunk: int,
        random: np.random.Generator,
        **limits: Any,
    ) -> None:
        half, fastest = SIZES[kind]
        self.random, self.chunk, self.kind = random, chunk, kind
        self.limits = Limits(
            space=space_of(kind),
            action_rate_hz=rates[0],
            control_rate_hz=rates[1],
            camera_rate_hz=CAMERA_HZ,
            low=tuple(-x for x in half),
            high=half,
            velocity=fastest,
            stale_action=StaleAction.HOLD if kind.absolute else StaleAction.ZERO,
            clamp_limit=1000,
            max_age_s=2.0,
            **limits,
        )
        self.out = Judged(self.limits)
        self.corrections = Corrections(lambda *question: self.asked.append(question[0]), chunk)
        self.asked: deque[Any] = deque()
        corrected = execution is Execution.CORRECTED
        self.bench = Bench(
            limits=self.limits,
            out=self.out,
            chunk=chunk,
            continues=("rtc", "rtc_trained"),
            corrects=chunk if corrected else 0,
            corrector=self.corrections if corrected else None,
            chunking=Chunking(
                execution, replan_interval=max(1, chunk // 2) if chunk > 1 else 0, blend_s=0.2
            ),
        )
        self.control = self.bench.control
        self.control.loop.outputs = JointOutputs(kind.joints, False, True)
        self.motion = list(self.limits.space.motion)
        self.place = np.zeros(len(self.motion))
        self.goal = self.place.copy()
        self.step = np.array(half if not kind.absolute else fastest) / rates[0]
        self.answers: list[tuple[float, Any, np.ndarray]] = []
        self.seen = 0
        self.bench.clock.advance(1.0)
        self.control.activate()
        self.control.set_instruction("go")

    def rows(self) -> np.ndarray:
        """A walk of the policy's, with a corner, at times far beyond what is allowed."""
        scale = float(self.random.choice([0.3, 0.9, 0.9, 3.0]))
        turn = self.random.uniform(-1.0, 1.0, len(self.motion))
        ways = (
            scale * self.step * (turn + 0.3 * self.random.uniform(-1, 1, (self.chunk, len(turn))))
        )
        if self.kind.absolute:
            off = self.random.uniform(-0.07, 0.07, len(turn))
            ways = self.place + off + np.cumsum(ways, axis=0)
        rows = np.zeros((self.chunk, self.limits.space.width))
        rows[:, self.motion] = ways
        rows[:, list(self.limits.space.grippers)] = float(self.random.integers(2))
        return rows

    def let_pass(self, seconds: float) -> None:
        """Time passes: the robot follows, and is read."""
        self.bench.clock.advance(seconds)
        if self.kind.joints and self.out.commands:
            commanded = self.out.commands[-1].joint_positions
            self.goal = self.goal if commanded is None else commanded
        elif self.kind.absolute and self.out.commands:
            self.goal = self.out.commands[-1].action[self.motion]
        self.place = self.place + min(1.0, seconds / SERVO_S) * (self.goal - self.place)
        now = self.bench.moment()
        if self.kind is not ED:
            self.control.measure(self.place, now.now_ns, now, self.motion)
            self.out.read(self.place, now.now_ns)

    def answer(self, now_s: float) -> None:
        """What is ready by then."""
        for _, observation, rows in [one for one in self.answers if one[0] <= now_s]:
            if observation.uncorrected is None:
                self.bench.answer(observation, rows)
                continue
            about = observation.uncorrected
            inference = Inference(
                observation.stamp_ns,
                about.actions + 0.2 * (rows[: len(about.actions)] - rows[0]),
                Timeline(0),
                continues=Executing(about.stamp_ns, about.index, 0),
            )
            self.corrections.answered(inference)
        self.answers = [one for one in self.answers if one[0] > now_s]

    def ask(self, now_s: float, takes_s: float) -> None:
        self.bench.frame()
        new = [observation for observation, _ in self.out.submitted[self.seen :]]
        self.seen = len(self.out.submitted)
        while self.asked:
            new.append(self.asked.popleft())
        self.answers += [(now_s + takes_s, observation, self.rows()) for observation in new]

    def play(self, late: list[float], takes_s: float, begin: float = 0.0) -> float:
        """Ticks of the node's steady clock for a while, each late by this part of a period."""
        period, frame = 1 / self.limits.control_rate_hz, begin
        due, now, number = begin + period, begin, 0
        while now < begin + SECONDS:
            behind = late[number % len(late)] * period
            number += 1
            for at in (*self._frames(frame, now, due + behind), due + behind):
                self.let_pass(max(0.0, at - now))
                now = max(now, at)
                self.answer(now)
                if at >= frame:
                    frame += 1 / CAMERA_HZ
                    self.ask(now, takes_s)
            self.control.tick()
            due += period * (1 + int(behind / period))
        return now

    @staticmethod
    def _frames(frame: float, now: float, until: float) -> list[float]:
        return [frame] if now <= frame < until else []

    def judge(self) -> list[str]:
        return self.out.heard.finish()

    @property
    def acted(self) -> list[Command]:
        return [one for one in self.out.commands if one.kind is CommandKind.POLICY]


def given(**more: Any) -> Any:
    def decorate(function: Any) -> Any:
        quiet = settings(
            max_examples=RUNS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.explicit, Phase.reuse, Phase.generate),  # a seed does not shrink
            print_blob=True,
        )
        return quiet(hypothesis_given(**more)(function))

    return decorate


@pytest.mark.parametrize("late", [0.0, 0.3, 0.6, 0.9, 1.7, 2.6])
@pytest.mark.parametrize("every", [2, 3, 5])
def test_a_tick_that_is_late_takes_no_time_that_the_next_one_has(late: float, every: int) -> None:
    """Ticks keep to their grid, so the one after a late one comes the earlier: a second of them
    executes a second of actions."""
    rows = np.zeros((60, 7))
    rows[:, 0] = 0.005
    bench = Bench(
        limits=Limits(action_rate_hz=20.0, control_rate_hz=100.0, max_age_s=9.0), chunk=60
    )
    bench.ready().answer(bench.frame(), rows)
    bench.tick(0.01)
    due, now, number = 0.01, 0.0, 0
    while due < 2.0:
        behind = 0.01 * late if number % every == 1 else 0.0
        bench.tick(due + behind - now)
        now, number = due + behind, number + 1
        due += 0.01 * (1 + int(behind / 0.01))
    seconds = sum(c.action[0] for c in bench.out.commands) / 0.005 / 20.0
    assert seconds <= now + 0.025
    assert seconds >= 0.7 * now, "and not much less"


LATE = st.lists(st.sampled_from([0.0, 0.0, 0.0, 0.02, 0.3, 0.6, 1.7]), min_size=1, max_size=9)


@pytest.mark.parametrize("kind", [JP, JD, EP, ED], ids=lambda kind: kind.name.lower())
@pytest.mark.parametrize("execution", list(Execution), ids=lambda one: one.value)
@given(
    rates=st.sampled_from(RATIOS),
    chunk=st.sampled_from([1, 8]),
    acceleration=st.sampled_from([0.0, 3.0]),
    jump=st.sampled_from([1.0, 0.2]),
    takes_s=st.sampled_from([0.0, 0.04, 0.11]),
    late=LATE,
    seed=st.integers(0, 2**20),
)
def test_no_command_of_any_chunk_breaks_a_promise(
    kind: ActionKind,
    execution: Execution,
    rates: tuple[float, float],
    chunk: int,
    acceleration: float,
    jump: float,
    takes_s: float,
    late: list[float],
    seed: int,
) -> None:
    count = len(space_of(kind).motion)
    run = Run(
        kind, rates, execution, chunk if execution is not Execution.CORRECTED else 8,
        np.random.default_rng(seed), jump=jump,
        acceleration=(acceleration,) * count if acceleration else (),
    )  # fmt: skip
    now = run.play(late, takes_s)
    run.control.stop()
    now = run.play([0.0], takes_s, now)
    run.control.resume()
    run.control.set_instruction("again")
    run.play(late, takes_s, now)
    assert not run.judge()
    assert len(run.acted) > 4, "a slow policy beside late ticks commands seldom"


@pytest.mark.parametrize("kind", [JP, JD], ids=lambda kind: kind.name.lower())
def test_the_judge_sees_actions_that_are_executed_five_times_too_fast(kind: ActionKind) -> None:
    """As where a control rate is taken for the rate of the data."""
    run = Run(kind, (100.0, 100.0), Execution.ASYNC, 40, np.random.default_rng(1))
    run.out.heard = MotionJudge()
    slower = replace(run.limits, action_rate_hz=20.0)
    run.out.heard.limits(parameters(slower, run.out.outputs), 0)
    run.play([0.0], 0.0)
    assert run.judge()
    assert ("action", "pace") in run.out.heard.breaks
