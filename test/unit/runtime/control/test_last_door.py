"""The last door under everything that may come: whatever readings, late ticks, stops, takeovers,
limits that change, instructions, clock steps and chunks do, no number that leaves breaks a limit.

The judge has an arithmetic of its own. ``make door RUNS=10000`` runs it longer.
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from support.motion_limits import Spline
from unit.runtime.control.bench import Bench, Recorder
from vla_ros.core.action_space import ActionKind, end_effectors, joints
from vla_ros.core.clock import SECOND
from vla_ros.core.types import PolicyState, StaleAction
from vla_ros.runtime.control.state import JointOutputs
from vla_ros.runtime.control.takeover import TakeoverNumbers, Teleoperation
from vla_ros.runtime.safety import Limits

RUNS = int(os.environ.get("VLA_ROS_RUNS", "60"))
EPS = 1e-6
T = 0.05
JP, JD, ED = ActionKind.JOINT_POSITION, ActionKind.JOINT_DELTA, ActionKind.END_EFFECTOR_DELTA


class Line:
    """One number of one output over time, and what was said of it last."""

    def __init__(self) -> None:
        self.at: float | None = None
        self.rates = [0.0]  # per second: after a pause it may have begun here or there
        self.when = 0.0


class Judge(Recorder):
    """Holds every command that leaves to the limits of that moment."""

    def __init__(self, world: Robot) -> None:
        super().__init__()
        self.world = world
        self.lines: dict[tuple[str, int], Line] = {}
        self.plans: list[Spline | None] = [None]
        self.gripper = float("nan")
        self.judged = 0

    def publish(self, command) -> None:
        super().publish(command)
        self.judge(command)

    def rest(self, command) -> None:
        super().rest(command)
        self.judge(command, on_topic=False)

    def judge(self, command, on_topic: bool = True) -> None:
        space = self.world.limits.space
        motion = command.action[list(space.motion)]
        assert np.isfinite(motion).all()
        opening = command.action[space.grippers[0]]
        if not command.kind.moves:
            both = np.isnan(opening) and np.isnan(self.gripper)
            assert both or opening == self.gripper or np.isnan(self.gripper)
        self.gripper = opening
        for number, value in enumerate(motion):
            if space.absolute:
                self.place("action", number, float(value), command)
            else:
                self.displacement(number, float(value), command)
        if command.joint_positions is not None:
            for number, value in enumerate(command.joint_positions):
                self.place("places", number, float(value), command)
        if command.plan is not None:
            self.course(command.plan)
        self.judged += 1

    # One rule a kind of number

    def limits(self, number: int) -> tuple[float, float]:
        """The largest speed and acceleration."""
        limits = self.world.limits
        fastest = limits.velocity[number] if limits.velocity else np.inf
        if not limits.space.absolute:
            most = max(abs(limits.low[number]), abs(limits.high[number])) / T
            fastest = min(fastest, most)
        return fastest, limits.acceleration[number] if limits.acceleration else np.inf

    def place(self, output: str, number: int, value: float, command) -> None:
        line = self.lines.setdefault((output, number), Line())
        now = self.world.time
        since, here = now - line.when, self.world.readings[number]
        pause = line.at is None or since > max(0.25, 3 * T) - EPS or since < 0
        begins = [(b, 0.0, T) for b in (line.at, here) if b is not None] if pause else []
        if line.at is not None and 0 <= since <= max(0.25, 3 * T) + EPS:
            begins += [(line.at, rate, min(since, T)) for rate in line.rates]
        what = f"{output}[{number}] {line.at} -> {value} in {since:.4f} s, {command.kind.name}"
        rates, broken = [], []
        for base, before, dt in begins:
            try:
                rates.append(self.step(output, number, value, base, before, dt, command, what))
            except AssertionError as error:
                broken.append(error)
        if not rates:
            raise broken[0]
        line.at, line.when, line.rates = value, now, sorted(set(rates))

    def step(self, output, number, value, base, before, dt, command, what) -> float:
        fastest, hardest = self.limits(number)
        step = value - base
        brakes = max(0.0, abs(before) - hardest * dt) * dt if np.isfinite(hardest) else 0.0
        assert abs(step) <= max(fastest * dt, brakes) + EPS, f"{what}: faster than {fastest}"
        rate = step / dt if dt > 1e-9 else before
        if dt > 1e-3:
            assert abs(rate - before) <= hardest * dt + EPS * 100, f"{what}: accelerates"
        if not command.kind.moves:
            assert abs(rate) <= abs(before) + EPS * 100, f"{what}: a stop speeds up"
            assert rate * before >= -EPS, f"{what}: a stop turns round"
        self.inside(output, number, value, step, rate, before, hardest, dt, what)
        return rate

    def inside(self, output, number, value, step, rate, before, hardest, dt, what) -> None:
        limits = self.world.limits
        if output == "action" or limits.space.absolute:
            low, high = limits.low[number], limits.high[number]
            out = max(value - high, low - value)
            outward = step * (1 if value > high else -1)
            braking = abs(rate) <= abs(before) - hardest * dt + 1e-4 if np.isfinite(hardest) else 0
            assert out <= EPS or outward <= EPS or braking, f"{what}: out of {low}..{high}"

    def displacement(self, number: int, value: float, command) -> None:
        line = self.lines.setdefault(("action", number), Line())
        fastest, hardest = self.limits(number)
        now = self.world.time
        since = now - line.when
        pause = line.at is None or since > max(0.25, 3 * T) + EPS or since < 0
        dt = T if pause else min(since, T)
        before = 0.0 if pause else float(line.at or 0.0)
        change = hardest * dt * T if np.isfinite(hardest) else np.inf
        what = f"action[{number}] {before} -> {value} in {since:.4f} s, {command.kind.name}"
        brakes = max(0.0, abs(before) - change) if np.isfinite(change) else 0.0
        assert abs(value) <= max(fastest * T, brakes) + EPS, f"{what}: faster than {fastest}"
        assert abs(value - before) <= change + EPS + 1e-3 * T * hardest * T, f"{what}: accelerates"
        if not command.kind.moves:
            assert abs(value) <= abs(before) + EPS and value * before >= -EPS, f"{what}: no stop"
        line.at, line.when = value, now

    # Trajectories

    def where(self, plan: Spline, at: float) -> tuple[np.ndarray, np.ndarray]:
        """Place and rate of a plan."""
        if not plan.at[0] <= at < plan.at[-1]:
            row = plan.positions[0 if at < plan.at[0] else -1]
            return row, np.zeros(len(row))
        row, rate, _ = plan(np.array([at]))
        return row[0], rate[0]

    def course(self, plan) -> None:
        """It may have begun here or there after a pause: one of the ways must be right."""
        now = self.world.time
        begin = now if plan.at_once else now + self.world.lead_s
        here = np.array(self.world.readings, dtype=float)
        rest, longest = np.zeros(len(here)), max(0.25, 3 * T)
        right, broken = [], []
        for old in self.plans:
            begins = [] if old is None else [self.where(old, begin)]
            if old is None or begin > old.at[-1] + longest - EPS or begin < old.at[0]:
                begins += [
                    (base, rest) for base in (here if old is None else old.positions[-1], here)
                ]
            for start, rate in begins:
                new = self.taken_up(old, plan, begin, start, rate)
                try:
                    self.moves(plan, begin, new)
                except AssertionError as error:
                    broken.append(error)
                else:
                    right.append(new)
        if not right:
            raise broken[0]
        self.plans = right[:4]

    def taken_up(self, old, plan, begin: float, start: np.ndarray, rate: np.ndarray) -> Spline:
        """What is executed from now on: the old plan until the new one begins."""
        kept = np.zeros(0, bool) if old is None else old.at < begin - 1e-9
        none = np.zeros((0, len(start)))
        at, rows, rates = (
            [np.zeros(0), none, none]
            if old is None
            else [old.at[kept], old.positions[kept], old.rates[kept]]
        )
        points = [(begin, start, rate), *((begin + s, p, v) for s, p, v in plan.points)]
        return Spline(
            np.append(at, [t for t, _, _ in points]),
            np.vstack([rows, [p for _, p, _ in points]]),
            np.vstack([rates, [v for _, _, v in points]]),
        )

    def moves(self, plan, begin: float, motion: Spline) -> None:
        """At every point, and every millisecond between them."""
        assert (np.diff(motion.at) > 0).all() and not motion.rates[-1].any(), "it ends in motion"
        ends = motion.at[motion.at >= begin - 1e-9]
        at = np.sort(np.concatenate([ends, ends[1:] - 1e-9, np.arange(begin, ends[-1], 1e-3)]))
        rows, rates, changes = motion(at)
        long = np.append(np.diff(motion.at), 1.0)[np.searchsorted(motion.at, at, side="right") - 1]
        for number in range(rows.shape[1]):
            fastest, hardest = self.limits(number)
            speed, began = np.abs(rates[:, number]), abs(rates[0, number])
            late = np.maximum(0.0, at - begin - T)  # a limit that was lowered holds a period later
            brakes = np.where(late > 0.0, 0.0, began)
            if np.isfinite(hardest):
                brakes = np.maximum(0.0, began - hardest * late)
            what = f"plan[{number}] from {rows[0, number]} at {rates[0, number]}"
            over = speed - np.maximum(fastest, brakes)
            assert over.max() <= 1e-4, f"{what}: faster by {over.max()} at {at[over.argmax()]}"
            change = np.abs(changes[long > 1e-4, number])
            assert (change <= hardest * (1 + 1e-3) + 1e-3).all(), f"{what}: {change.max()}"
            if plan.at_once:
                assert (np.diff(speed) <= 1e-6).all(), f"{what}: a stop speeds up"
                assert (rates[:, number] * rates[0, number] >= -1e-9).all(), f"{what}: turns round"
            if self.world.limits.space.absolute:
                self.stays(what, number, rows[:, number], rates[:, number], hardest)

    def stays(self, what: str, number: int, row, rate, hardest: float) -> None:
        """Within the bounds, or no farther out than it was, than it takes to stop."""
        limits = self.world.limits
        for sign, bound in ((1, limits.high[number]), (-1, -limits.low[number])):
            out, v = sign * row - bound, max(0.0, sign * rate[0])
            most = v * v / (2 * hardest) if np.isfinite(hardest) else v * T / 3
            assert out.max() <= max(EPS, out[0] + most + EPS), f"{what}: out by {out.max()}"


class Robot(RuleBasedStateMachine):
    """Two joints and a gripper, a servo that lags, and everything that may happen to them."""

    kind = JP
    commanded = True
    acceleration: tuple[float, ...] = (2.0, 5.0)
    lead_s = 0.02

    @initialize(start=st.floats(-1.0, 1.0), chunk=st.sampled_from([1, 6]))
    def begin(self, start, chunk) -> None:
        arm = ("a", "b", "g")
        space = joints(self.kind, arm, ("g",)) if self.kind.joints else end_effectors(ED)
        count = len(space.motion)
        reach = 0.8 if space.absolute else 0.04
        self.limits = Limits(
            space=space,
            stale_action=StaleAction.HOLD if space.absolute else StaleAction.ZERO,
            low=(-reach,) * count,
            high=(reach,) * count,
            velocity=(0.5, 1.0, 0.7, 0.5, 0.5, 0.5)[:count],
            acceleration=(self.acceleration * 3)[:count],
            clamp_limit=1000,
            max_age_s=0.5,
        )
        self.count, self.chunk, self.time = count, chunk, 0.0
        self.readings: list[float | None] = [None] * count
        self.judge = Judge(self)
        self.bench = Bench(limits=self.limits, out=self.judge, chunk=chunk)
        self.control = self.bench.control
        takes = self.kind.joints
        self.control.loop.outputs = JointOutputs(takes, takes, self.commanded, self.lead_s)
        self.place = np.full(count, start)
        self.goal = self.place.copy()
        self.stuck = False
        self.control.activate()
        self.control.set_instruction("go")
        self.read(self.place)

    # The world

    def read(self, values) -> None:
        now = self.bench.moment()
        self.control.measure(np.asarray(values), now.now_ns, now, self.limits.space.motion)
        known = self.control.loop.fresh_pose(now)
        if known is not None:
            self.readings = [float(known[i]) for i in self.limits.space.motion]

    def pass_time(self, seconds: float, states: bool = True) -> None:
        self.bench.clock.advance(seconds)
        self.time = self.bench.clock.steady / SECOND
        if not self.stuck:
            told = self.judge.commands[-1] if self.judge.commands else None
            if told is not None and told.joint_positions is not None:
                self.goal = told.joint_positions
            self.place = self.place + min(1.0, seconds / 0.08) * (self.goal - self.place)
        if states:
            self.read(self.place)

    def offer(self, action) -> None:
        known = len(self.judge.submitted)
        self.bench.frame()
        for observation, _ in self.judge.submitted[known:]:
            self.bench.answer(observation, action)

    def action(self, goal: float, other: float, gripper: float) -> np.ndarray:
        scale = 1.0 if self.limits.space.absolute else 0.05
        row = np.zeros(self.limits.space.width)
        row[list(self.limits.space.motion)] = np.resize([goal, other], self.count) * scale
        row[list(self.limits.space.grippers)] = gripper
        return row

    # What happens

    @rule(
        goal=st.floats(-2.0, 2.0),
        other=st.floats(-2.0, 2.0),
        gripper=st.sampled_from([0.0, 1.0]),
        count=st.integers(1, 8),
    )
    def acts(self, goal, other, gripper, count) -> None:
        rows = np.array([self.action(goal, other, gripper)] * self.chunk)
        rows[:, 0] *= np.linspace(0.5, 1.0, self.chunk)
        for _ in range(count):
            self.offer(rows)
            self.pass_time(T)
            self.control.tick()

    @rule(count=st.integers(1, 12))
    def waits(self, count) -> None:
        for _ in range(count):
            self.pass_time(T)
            self.control.tick()

    @rule(seconds=st.floats(0.001, 0.24))
    def is_late_or_early(self, seconds) -> None:
        self.pass_time(seconds)
        self.control.tick()

    @rule(value=st.floats(-3.0, 3.0), twice=st.booleans())
    def reads_wrong(self, value, twice) -> None:
        for _ in range(1 + twice):
            self.bench.clock.advance(0.001)
            self.time = self.bench.clock.steady / SECOND
            self.read(np.full(self.count, value))

    @rule(old_s=st.floats(0.0, 0.3))
    def reads_late(self, old_s) -> None:
        now = self.bench.moment()
        stamp = now.now_ns - round(old_s * SECOND)
        self.control.measure(np.zeros(self.count), stamp, now, self.limits.space.motion)
        known = self.control.loop.fresh_pose(now)
        if known is not None:
            self.readings = [float(known[i]) for i in self.limits.space.motion]

    @rule()
    def is_stopped(self) -> None:
        self.control.stop()

    @rule()
    def resumes(self) -> None:
        self.control.resume()

    @rule(number=st.integers(0, 3))
    def is_instructed(self, number) -> None:
        self.control.set_instruction(f"task {number}")

    @rule(stuck=st.booleans())
    def is_stuck(self, stuck) -> None:
        self.stuck = stuck

    @rule(
        meaning=st.sampled_from(
            [TakeoverNumbers.ACTION, TakeoverNumbers.VELOCITY, TakeoverNumbers.JOINTS]
        ),
        value=st.floats(-2.0, 2.0),
        gripper=st.sampled_from([0.0, 1.0, float("nan")]),
        count=st.integers(1, 5),
    )
    def is_taken_over(self, meaning, value, gripper, count) -> None:
        if meaning is TakeoverNumbers.VELOCITY and self.kind.joints:
            meaning = TakeoverNumbers.JOINTS
        if meaning is TakeoverNumbers.JOINTS and not self.kind.joints:
            meaning = TakeoverNumbers.VELOCITY
        for _ in range(count):
            row = self.action(value, -value, gripper)
            self.control.take_over(Teleoperation(row, meaning, self.bench.clock.now))
            self.pass_time(T)
            self.control.tick()

    @rule()
    def is_released(self) -> None:
        self.control.release()

    @rule(velocity=st.sampled_from([0.1, 0.5, 2.0]), bound=st.sampled_from([0.2, 0.8, 1.5]))
    def limits_change(self, velocity, bound) -> None:
        scale = 1.0 if self.limits.space.absolute else 0.05
        self.limits = replace(
            self.limits,
            velocity=(velocity,) * self.count,
            low=(-bound * scale,) * self.count,
            high=(bound * scale,) * self.count,
        )
        self.control.loop.limits = self.limits

    @rule(seconds=st.sampled_from([-5.0, -0.2, 0.2, 5.0]))
    def clock_steps(self, seconds) -> None:
        self.bench.clock.now += round(seconds * SECOND)
        self.pass_time(T)
        self.control.tick()

    @rule()
    def loses_the_worker(self) -> None:
        self.control.worker_lost("gone")
        self.pass_time(T)
        self.control.tick()
        self.control.worker_ready()

    @precondition(lambda self: self.control.loop.safety.state is PolicyState.HOLD)
    @rule()
    def recovers(self) -> None:
        self.control.recover()

    @rule()
    def is_activated_anew(self) -> None:
        """Whoever deactivates waits until it rests; the outputs' lines begin anew."""
        self.control.stop()
        for _ in range(30):
            self.pass_time(T)
            self.control.tick()
        self.control.deactivate()
        self.judge.lines.clear()
        self.judge.plans = [None]
        self.judge.gripper = float("nan")
        self.place = self.place + 0.3
        self.goal = self.place.copy()
        self.pass_time(1.0)
        self.control.activate()
        self.control.set_instruction("again")


def machine(name: str, **given):
    case = type(name, (Robot,), given).TestCase
    case.settings = settings(
        max_examples=RUNS,
        stateful_step_count=25,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    return case


TestPlaces = machine("Places")
TestPlacesWithoutAcceleration = machine("PlacesWithoutAcceleration", acceleration=())
TestCommandedDisplacements = machine("CommandedDisplacements", kind=JD)
TestMeasuredDisplacements = machine("MeasuredDisplacements", kind=JD, commanded=False)
TestMeasuredWithoutAcceleration = machine(
    "MeasuredWithoutAcceleration", kind=JD, commanded=False, acceleration=()
)
TestTwists = machine("Twists", kind=ED)


def test_the_judge_sees_a_leap() -> None:
    robot = Robot()
    robot.begin(0.0, 1)
    robot.acts(0.5, 0.5, 1.0, 3)
    leap = replace(robot.judge.commands[-1], action=np.array([0.9, 0.0, 1.0]))
    robot.time += T
    with pytest.raises(AssertionError, match="faster than"):
        robot.judge.publish(leap)
