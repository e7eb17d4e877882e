"""Whether what leaves a policy node keeps its promises: a judge of every number of every output.

    cd test && python -m support.motion_judge --policy /policy --seconds 60 [--json]

watches a running graph and prints how many messages were judged, of which kind, and what was
broken. Exit status: 0 nothing was broken, 1 something was, 2 nothing could be judged.

`MotionJudge` knows no ROS: it is fed messages, or anything with their fields, and when each was
sent by its writer's clock. It judges in that order, some time after, since topics overtake each
other. `support.motion_listener` feeds it from a graph.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from support.motion_limits import EPSILON, Floats, Limits, Measured, Readings
from support.motion_poses import PosePlan, breaks_of, poses_of
from support.motion_rules import (
    JITTER_S,
    PAUSE_S,
    Break,
    Course,
    Instant,
    Plan,
    Step,
    Stream,
    away_from,
    beginning,
    velocities,
)

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("POLICY", "HELD", "STOP", "TAKEOVER")
MOVES = ("POLICY", "TAKEOVER")
ALONE = "-"  # no command goes with it
SILENT_S = 2.0  # actions are commanded and nothing comes on an output
IN_TURN_S = 5.0  # between two writers
OPENING = 0.05  # of a gripper's range, between a reading and a command that repeats it
CHANGE_S = 0.1  # beside two periods: around it old and new limits may be kept
PACE = 1 + 1e-3  # of a chunk's actions: what rounding and clocks that are slewed take
SHOWN = 5  # lines a rule and topic
#: The endings of the topics' names behind an arm's prefix.
ENDINGS = {
    "twist": "twist",
    "trajectory": "joint_trajectory",
    "cartesian_trajectory": "cartesian_reference",
    "positions": "positions",
    "joint_state": "joint_commands",
}


@dataclass
class Command:
    """An action, for what was made of it on other topics, ``taken``."""

    kind: str
    when: Instant
    valid_until: float | None
    taken: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Begun:
    """The first command of a chunk: ``at``, in actions, it begins."""

    chunk: tuple[int, int]  # epoch, observation
    sequence: int
    when: Instant
    at: float


class MotionJudge:
    """Hears a policy node and its robot. After :meth:`settle` and :meth:`finish`: ``broken`` has a
    line a broken promise, ``breaks`` how often each rule was broken on each topic, and ``judged``
    how many messages were judged of each topic and kind."""

    def __init__(self) -> None:
        self.judged: Counter[tuple[str, str]] = Counter()
        self.breaks: Counter[tuple[str, str]] = Counter()
        self.broken: list[str] = []
        self._limits: list[tuple[float, Limits]] = []
        self._heard: list[tuple[int, int, str, Any, int | None, object]] = []
        self._order = itertools.count()
        self._zero_ns: int | None = None
        self._readings = Readings()
        self._streams: dict[str, Stream] = defaultdict(Stream)
        self._stopped: set[str] = set()  # topics on which a STOP holds
        self._plans: dict[str, Plan] = {}
        self._pose_plans: dict[str, PosePlan] = {}
        self._openings: dict[tuple[str, str], float] = {}
        self._earlier: dict[tuple[str, str], float] = {}  # openings of an activation before
        self._commanded: set[tuple[str, str]] = set()  # openings by a policy or a person
        self._command: Command | None = None
        self._sequence = -1
        self._action_rate_hz = 0.0  # as the status has it
        self._begun: Begun | None = None
        self._complete = False  # every command of this process was heard
        self._numbers: dict[tuple[str, object], int] = {}
        self._writers: dict[str, tuple[object, object, float]] = {}
        self._acting: tuple[Instant, Instant] | None = None  # since, until
        self._spoke: dict[str, float] = {}  # when each topic did last
        self._silent: set[str] = set()

    # What is heard

    def limits(self, values: Mapping[str, Any], sent_ns: int) -> None:
        """The node's parameters from then on."""
        found = Limits.of(values)
        if found is not None:
            self._limits.append((self._time(sent_ns), found))

    def hear(
        self,
        topic: str,
        message: Any,
        sent_ns: int,
        number: int | None = None,
        writer: object = None,
    ) -> None:
        """A message on a topic of the node, by its name behind the node's, or of its robot:
        joint_states, measured_pose. ``number``: as its writer counts them."""
        self._time(sent_ns)
        entry = (sent_ns, next(self._order), topic, message, number, writer)
        heapq.heappush(self._heard, entry)

    def settle(self, until_ns: int) -> None:
        """Judge what was sent until then, once the limits are known."""
        while self._limits and self._heard and self._heard[0][0] <= until_ns:
            sent_ns, _, topic, message, number, writer = heapq.heappop(self._heard)
            self._take(topic, message, self._time(sent_ns), number, writer)

    def finish(self) -> list[str]:
        """Judge all that is left; a line a broken promise."""
        self.settle(1 << 62)
        more = sum(self.breaks.values()) - len(self.broken)
        return [*self.broken, *([f"and {more} more"] if more else [])]

    def _time(self, ns: int) -> float:
        if self._zero_ns is None:
            self._zero_ns = ns
        return (ns - self._zero_ns) * 1e-9

    def _take(
        self, topic: str, message: Any, sent: float, number: int | None, writer: object
    ) -> None:
        if topic == "joint_states":
            at = self._made(message, sent)
            for name, value in zip(message.name, message.position, strict=False):
                self._readings.add(at, name, value)
        elif topic == "measured_pose":
            at = self._made(message, sent)
            for axis in "xyz":
                self._readings.add(at, axis, getattr(message.pose.position, axis))
        elif topic == "status":
            self._action_rate_hz = float(message.action_rate_hz)
            if message.state in (message.STATE_UNCONFIGURED, message.STATE_INACTIVE):
                self._begin_anew()
        else:
            if self._lost(topic, number, writer):
                self._streams[topic].forget()
                self._plans.pop(topic, None)
                self._pose_plans.pop(topic, None)
            self._watch_writers(topic, writer, sent)
            if topic == "action":
                self._action(message, sent)
            else:
                self._output(topic, message, sent)

    def _begin_anew(self) -> None:
        """The node is not active: its robot may be anywhere when it is again."""
        for stream in self._streams.values():
            stream.anew = True
        self._stopped.clear()
        self._earlier |= self._openings
        self._openings.clear()
        self._commanded.clear()
        self._acting = None

    def _lost(self, topic: str, number: int | None, writer: object) -> bool:
        """Whether a message of this writer was missed before this one."""
        if number is None:
            return False
        before = self._numbers.get((topic, writer), 0)
        self._numbers[topic, writer] = number
        return number > before + 1

    def _watch_writers(self, topic: str, writer: object, sent: float) -> None:
        current, former, left = self._writers.get(topic, (writer, None, 0.0))
        if writer != current:
            if writer == former and sent - left < IN_TURN_S:
                self._break(topic, ALONE, sent, ("writers", "two write on it in turn"))
            current, former, left = writer, current, sent
        self._writers[topic] = current, former, left

    # Commands

    def _action(self, message: Any, sent: float) -> None:
        kind, at = KINDS[message.kind], self._time(_ns(message.header.stamp))
        when, until = Instant(at, sent), _ns(message.valid_until)
        stream = self._streams["action"]
        if message.sequence <= self._sequence:  # another process
            self._begin_anew()
            self._earlier.clear()
        elif message.sequence > self._sequence + 1:
            self._complete = False
            stream.forget()
        if message.sequence == 0:
            self._complete = True
        self._sequence = int(message.sequence)
        self._command = Command(kind, when, self._time(until) if until else None)
        limits = self._limits_at(sent)[0]
        if tuple(message.names) != limits.names:
            return  # of another configuration than is known by now
        if kind == "POLICY":
            self._expect_outputs(when, limits)
            self._watch_pace(message, when, limits)
        action = np.array(message.action, float)
        motion, idx = action[limits.motion], list(range(len(limits.low)))
        if not limits.absolute:
            motion = motion / limits.period
        again = stream.when is not None and stream.when.at == at
        if not again or stream.values is None or (motion != stream.values).any():
            judge = self._positions if limits.absolute else self._velocities
            judge("action", motion, idx, kind, when)
        for place in limits.grippers:
            if not np.isnan(action[place]):  # it stays as it is
                name, value = limits.names[place], float(action[place])
                self._opening("action", name, value, (0.0, 1.0), kind, when)

    def _command_of(self, topic: str, sent: float) -> Command | None:
        """The command that a message on another topic was made of: the newest before it, of which
        there was none yet on that topic. A node sends both before it makes another one."""
        command = self._command
        if command is None or topic in command.taken or sent - command.when.sent >= PAUSE_S:
            return None
        command.taken.add(topic)
        return command

    def _watch_pace(self, message: Any, when: Instant, limits: Limits) -> None:
        """The actions of a chunk are executed at the rate of their data, whatever the rate of
        commands. Ticks are counted, or the time that has passed where some of them were late; a
        command has the place of the newest action that it makes a part of."""
        chunk = message.epoch, _ns(message.observation_stamp)
        at = message.chunk_index + message.action_phase
        begun = self._begun
        if begun is None or begun.chunk != chunk:
            self._begun = Begun(chunk, self._sequence, when, at)
            return
        share = limits.period / limits.action_period
        ticks, lapse = self._sequence - begun.sequence, when.at - begun.when.at
        most = share * max(ticks, lapse / limits.period + 2) * PACE + min(share, 1.0)
        if at - begun.at > most + EPSILON:
            words = f"{at - begun.at:.3f} actions of a chunk in {1e3 * lapse:.0f} ms"
            self._break("action", "POLICY", when.sent, ("pace", f"{words}; allowed {most:.3f}"))

    def _expect_outputs(self, when: Instant, limits: Limits) -> None:
        """An action is commanded: every output is to make something of it."""
        began, last = self._acting or (when, when)
        if max(when.at - last.at, when.sent - last.sent) > max(3 * limits.period, PAUSE_S):
            began = when
        self._acting = began, when
        patience = max(SILENT_S, limits.max_age_s + 1.0)
        if min(when.at - began.at, when.sent - began.sent) < patience:
            return
        for output, ending in ENDINGS.items():
            if output not in limits.outputs or ending in self._silent:
                continue
            topics = [arm + ending for arm in ("", *limits.arms)]
            spoke = max((self._spoke.get(topic, began.sent) for topic in topics), default=0.0)
            if when.sent - spoke >= patience:
                self._silent.add(ending)
                words = f"nothing for {patience:g} s while actions were commanded"
                self._break(ending, "POLICY", when.sent, ("silent", words))

    # Outputs

    def _output(self, topic: str, message: Any, sent: float) -> None:
        limits, command = self._limits_at(sent)[0], self._command_of(topic, sent)
        kind = command.kind if command else ALONE
        when = Instant(command.when.at if command else self._made(message, sent), sent)
        self._spoke[topic] = sent
        grippers = [limits.names[place] for place in limits.grippers]
        ends = dict(zip(grippers, limits.ends, strict=False))
        openings: dict[str, float] = {}
        if topic.endswith("twist"):
            idx, twist = limits.of_arm(topic.removesuffix("twist")), message.twist
            six = [getattr(part, axis) for part in (twist.linear, twist.angular) for axis in "xyz"]
            self._velocities(topic, np.array(six), idx, kind, when)
        elif topic.endswith("joint_trajectory"):
            self._trajectory(topic, message, kind, when, command)
        elif topic.endswith("cartesian_reference"):
            self._poses(topic, message, kind, when, command)
        elif topic.endswith("joint_commands"):
            given = dict(zip(message.name, message.position, strict=False))
            idx = [i for i, name in enumerate(limits.moving) if name in given]
            values = np.array([given[limits.moving[i]] for i in idx])
            self._positions(topic, values, idx, kind, when)
            openings = {name: given[name] for name in grippers if name in given}
        elif topic.endswith("gripper_positions"):
            arm = topic.removesuffix("gripper_positions")
            names = [name for name in grippers if name.startswith(arm)]
            openings = dict(zip(names, message.data, strict=False))
            self.judged[topic, kind] += 1
        elif topic.endswith("positions"):
            idx = limits.of_arm(topic.removesuffix("positions"))
            self._positions(topic, np.array(message.data, float), idx, kind, when)
        else:  # a gripper's own, of an end effector
            openings, ends = {topic: message.data}, {topic: (0.0, 1.0)}
            self.judged[topic, kind] += 1
        for name, value in openings.items():
            self._opening(topic, name, value, ends[name], kind, when)

    def _velocities(
        self, topic: str, rate: Floats, idx: Sequence[int], kind: str, when: Instant
    ) -> None:
        stream = self._streams[topic]
        if self._finite(topic, kind, when, rate, len(idx)):
            limits, stops = self._limits_at(when.sent), self._stops(topic, kind)
            broken = [velocities(one, stream, rate, idx, stops, when) for one in limits]
            self._report(topic, kind, when, broken)
            stream.when, stream.values, stream.anew = when, rate, False

    def _positions(
        self, topic: str, position: Floats, idx: Sequence[int], kind: str, when: Instant
    ) -> None:
        stream, limits = self._streams[topic], self._limits_at(when.sent)
        if not self._finite(topic, kind, when, position, len(idx)):
            return
        before, stops = stream.values, self._stops(topic, kind)
        if before is not None and len(before) != len(position):
            stream.forget()
            before = None
        anew = stream.begins(when, limits[0])
        step, gaps = None, tuple[float, ...]((limits[0].period,))
        if before is not None:
            step = limits[0].way(before, position, idx)
            gaps = gaps if anew else stream.lapses(when, limits[0])
        alone, stream.alone = stream.alone or kind == ALONE, kind == ALONE
        jitter = limits[0].period / 2 if alone else JITTER_S
        broken = []
        for one in limits:
            names = [one.moving[i] for i in idx]
            measured = self._measured(one, idx, when)
            away = away_from(position, measured, names, one)
            if anew:
                broken.append(beginning(one, stream, position, idx, away))
            elif before is not None:
                broken.append(Step(one, stream, position, idx, when, jitter).judge(stops, away))
        self._report(topic, kind, when, broken)
        if anew and step is not None and limits[0].velocity is not None:
            reach = limits[0].velocity[idx] * limits[0].period
            if (limits[0].share(step, reach, idx) > 1).any():
                step = None  # it began elsewhere
        stream.when, stream.values, stream.step, stream.gaps = when, position, step, gaps
        stream.rests, stream.anew, stream.moves = anew, False, kind in MOVES

    def _trajectory(
        self, topic: str, message: Any, kind: str, when: Instant, command: Command | None
    ) -> None:
        stream, limits = self._streams[topic], self._limits_at(when.sent)
        period, moving = limits[0].period, limits[0].moving
        if not set(message.joint_names) <= set(moving):
            return
        idx = [moving.index(name) for name in message.joint_names]
        times = np.array([_seconds(point.time_from_start) for point in message.points])
        if len(times) == 0 or (np.diff(times, prepend=0.0) <= 0.0).any():
            self._break(topic, kind, when.sent, ("times", f"points at {times.tolist()} s"))
            return
        both = []
        for numbers in ("positions", "velocities"):
            values = np.array([x for p in message.points for x in getattr(p, numbers)], float)
            if not self._finite(topic, kind, when, values, len(idx) * len(times)):
                return
            both.append(values.reshape(len(times), len(idx)))
        rows, rates = both
        stops = self._stops(topic, kind)
        stamp, slack = _ns(message.header.stamp), 0.0
        if stamp:
            begins = [self._time(stamp)]
        else:  # when it arrives
            begins = [when.at, *(when.at + np.linspace(-JITTER_S, period, 17))]
            slack = begins[2] - begins[1]
        old = self._plans.get(topic)
        if old is not None:
            spline = old.spline
            if spline.positions.shape[1] != len(idx) or begins[0] < spline.at[0] - 1.0:
                old = None  # of other joints, or time went back
        stands = old is None or stream.anew or begins[0] - old.end > max(3 * period, PAUSE_S)
        until = command.valid_until if command and kind in MOVES and stamp else None
        courses = [
            Course(
                one, idx, begin, times, rows, rates, old, stands, when.at,
                self._measured(one, idx, when), until, slack,
            )
            for one in limits
            for begin in begins
        ]  # fmt: skip
        best = min(courses, key=lambda course: len(course.judge(stops)))
        self._report(topic, kind, when, [best.found])
        self._plans[topic] = best.plan()
        stream.anew = False

    def _poses(
        self, topic: str, message: Any, kind: str, when: Instant, command: Command | None
    ) -> None:
        stream, limits = self._streams[topic], self._limits_at(when.sent)
        times, positions, quaternions = poses_of(message)
        values = np.concatenate((positions, quaternions), 1)
        if not self._finite(topic, kind, when, values.ravel(), 7 * len(times)):
            return
        if len(times) == 0 or (np.diff(times, prepend=0.0) <= 0.0).any():
            self._break(topic, kind, when.sent, ("times", f"points at {times.tolist()} s"))
            return
        stamp, old, period = (
            _ns(message.header.stamp),
            self._pose_plans.get(topic),
            limits[0].period,
        )
        begin = self._time(stamp) if stamp else when.at
        begun = old is not None and not stream.anew
        begun = begun and begin - old.at[-1] < max(3 * period, PAUSE_S)
        place, turn = old.where(begin) if begun else (positions[0], quaternions[0])
        plan = PosePlan(
            np.array([begin, *(begin + times)]),
            np.array([place, *positions]),
            np.array([turn, *quaternions]),
        )
        stops, idx = (
            self._stops(topic, kind),
            limits[0].of_arm(topic[: -len("cartesian_reference")]),
        )
        found = [breaks_of(one, idx, plan, begun and bool(stamp), stops) for one in limits]
        found = [min(found, key=len)]
        if command and kind in MOVES and limits[0].acceleration is None:
            late = plan.at > command.valid_until + period
            if late.any() and np.ptp(plan.positions[late], axis=0).max() > EPSILON:
                found[0].append(("valid", "moves on after valid_until"))
        self._report(topic, kind, when, found)
        self._pose_plans[topic] = plan
        stream.anew = False

    # Grippers

    def _opening(
        self,
        topic: str,
        name: str,
        value: float,
        ends: tuple[float, float],
        kind: str,
        when: Instant,
    ) -> None:
        """A gripper repeats its last command, or the measured opening, until a policy or a person
        commands another."""
        key, (closed, opened) = (topic, name), ends
        low, high = min(ends), max(ends)
        if not low - EPSILON <= value <= high + EPSILON:
            words = f"{name} {value:.4f}; allowed {low:g} to {high:g}"
            self._break(topic, kind, when.sent, ("gripper", words))
            return
        limits = self._limits_at(when.sent)[0]
        before, earlier = self._openings.get(key), self._earlier.get(key)
        self._openings[key] = value
        stays = kind in ("HELD", "STOP") or (kind == "POLICY" and limits.policy == "zero")
        if kind in MOVES and not stays:
            self._commanded.add(key)
        if not stays:
            return
        if value == (earlier if before is None else before):
            return
        measured = self._readings.at(name, when.at, 10.0)
        here = None if measured is None else measured.value
        if here is not None and topic == "action":
            own = limits.ends[limits.grippers.index(limits.names.index(name))]
            here = (here - own[0]) / (own[1] - own[0]) if own[0] != own[1] else None
        if before is None and earlier is None and not self._complete:
            return  # what was commanded before is not known here
        if here is None and limits.simulated:
            return  # a world that waits may have shown it once, before this was connected
        near = OPENING * abs(opened - closed)
        at_rest = here is not None and abs(value - float(np.clip(here, low, high))) <= near
        if at_rest and key not in self._commanded:
            return
        was = "which nobody has commanded" if before is None else f"after {before:.4f}"
        found = "not measured" if here is None else f"measured at {here:.4f}"
        self._break(topic, kind, when.sent, ("gripper", f"{name} {value:.4f}, {was}, {found}"))

    # What applies

    def _limits_at(self, sent: float) -> list[Limits]:
        """The limits of that time first; around a change both are."""
        known = [since for since, _ in self._limits]
        index = max([i for i, since in enumerate(known) if since <= sent], default=0)
        found = [self._limits[index][1]]
        for (_, before), (since, after) in itertools.pairwise(self._limits):
            if abs(sent - since) <= 2 * max(after.period, before.period) + CHANGE_S:
                found += [one for one in (before, after) if one.names == found[0].names]
        return [one.at_rate(self._action_rate_hz) for one in found]

    def _made(self, message: Any, sent: float) -> float:
        """When a message was made that goes with no command: by simulated time that is its stamp,
        or that of the last command."""
        if not self._limits[-1][1].simulated:
            return sent
        stamp = _ns(message.header.stamp) if hasattr(message, "header") else 0
        if stamp:
            return self._time(stamp)
        return self._command.when.at if self._command else sent

    def _measured(self, limits: Limits, idx: Sequence[int], when: Instant) -> list[Measured | None]:
        """Where each number is measured; None: nobody knows, or a rotation."""
        out = []
        for place in idx:
            name = limits.moving[place]
            speed = 1.0 if limits.velocity is None else float(limits.velocity[place])
            turned = not limits.joints and place % 6 > 2
            turns = name in limits.continuous
            out.append(None if turned else self._readings.at(name, when.at, speed, turns))
        return out

    def _stops(self, topic: str, kind: str) -> bool:
        """Whether a message is to stop the robot, or to let it stand since a STOP."""
        if kind == "STOP":
            self._stopped.add(topic)
        elif kind in MOVES:
            self._stopped.discard(topic)
        return topic in self._stopped and kind != ALONE

    # The verdict

    def _finite(self, topic: str, kind: str, when: Instant, values: Floats, count: int) -> bool:
        if len(values) == count and np.isfinite(values).all():
            return True
        words = f"{values.tolist()} are not {count} finite numbers"
        self._break(topic, kind, when.sent, ("finite", words))
        return False

    def _report(self, topic: str, kind: str, when: Instant, judged: Sequence[list[Break]]) -> None:
        """Where limits have just changed, old or new ones may be kept."""
        self.judged[topic, kind] += 1
        for one in min(judged, key=len, default=[]):
            self._break(topic, kind, when.sent, one)

    def _break(self, topic: str, kind: str, sent: float, one: Break) -> None:
        rule, words = one
        self.breaks[topic, rule] += 1
        if self.breaks[topic, rule] <= SHOWN:
            self.broken.append(f"{sent:.3f} s {topic} {kind}, {rule}: {words}")


def _ns(stamp: Any) -> int:
    return int(stamp.sec) * 10**9 + int(stamp.nanosec)


def _seconds(duration: Any) -> float:
    return float(duration.sec) + 1e-9 * float(duration.nanosec)


def main() -> int:
    """Watch a graph."""
    if (ROOT / "vla_ros" / "msg").is_dir():
        sys.path.insert(0, str(ROOT))  # a checkout with messages; else the installed package
    from support.motion_listener import MotionListener
    from vla_ros.ros.bringup.environment import prepare

    parser = argparse.ArgumentParser(
        prog="motion_judge", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--policy", default="/policy", help="the node's full name (/policy)")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (60)")
    parser.add_argument(
        "--remap", action="append", default=[], metavar="FROM:=TO",
        help="as the node was given it: ~/joint_trajectory:=/arm_controller/joint_trajectory",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one line for a program")
    args = parser.parse_args()
    prepare()
    domain = int(os.environ.get("ROS_DOMAIN_ID", "0"))
    remappings = dict(word.split(":=", 1) for word in args.remap)
    with MotionListener(domain, args.policy, remappings) as listener:
        time.sleep(args.seconds)
    judge, lines = listener.judge, listener.judge.finish()
    counts = {f"{topic} {kind}": count for (topic, kind), count in sorted(judge.judged.items())}
    if args.json:
        breaks = {f"{topic} {rule}": count for (topic, rule), count in judge.breaks.items()}
        print(json.dumps({"judged": counts, "breaks": breaks, "broken": lines}))
    else:
        for name, count in counts.items():
            print(f"{count:6d}  {name}")
        for line in lines or ["nothing was broken" if counts else "nothing could be judged"]:
            print(line)
    return 1 if lines else 0 if counts else 2


if __name__ == "__main__":
    sys.exit(main())
