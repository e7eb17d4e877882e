"""How smooth is what is commanded, and what a servo and the simulator make of it?

    make smoothness                        # two minutes: three policies, tables on stdout
    make smoothness ARGS="--episodes 1 --json"

Chunks of three policies are recorded in lock-step, and commanded at 5 and 12.5 times the action
rate: as vla_ros moves (chunk_blend_s 0.25), on straight lines as LeRobot's ActionInterpolator x 5
does, and in stairs. A servo (critically damped, 5 Hz, 20 ms late) and the simulator at 100 Hz
execute the same chunks. Then each new chunk of targets begins 20, 45 and 70 mrad (mm) behind what
was commanded last.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if (ROOT / "vla_ros" / "msg").is_dir():
    sys.path.insert(0, str(ROOT))  # a checkout with messages; else the installed package

import numpy as np

from motion.recorded import ARM, SOURCES, Episode, Recorder, Source
from motion.ways import (
    Lines,
    Ours,
    Part,
    Servo,
    Smoothness,
    Stairs,
    Way,
    accelerations,
    commands,
    space_of,
    within,
)
from vla_ros.core import origin
from vla_ros.core.console import Progress, print_json, rounded
from vla_ros.core.types import Floats, StaleAction
from vla_ros.runtime.safety import Limits
from vla_ros.sim.env import ACTION_RATE_HZ, Environment
from vla_ros.sim.factory import EnvConfig

BLEND_S = 0.25
MULTIPLIER = 5
RATIOS = (MULTIPLIER, 12.5)
OFFSETS = (0.02, 0.045, 0.07)  # rad, of a hand m
HAND_BOUNDS = (0.05,) * 3 + (0.5,) * 3  # of a displacement, m and rad
OURS, LINES, STAIRS = "vla_ros", "ActionInterpolator x 5", "stairs"


def limits_of(numbers: int, absolute: bool, ratio: float) -> Limits:
    """Limits of so many numbers of ours, commanded ``ratio`` times in an action."""
    bounds = (10.0,) * numbers if absolute else HAND_BOUNDS[:numbers]
    return Limits(
        control_rate_hz=ACTION_RATE_HZ * ratio,
        action_rate_hz=ACTION_RATE_HZ,
        space=space_of([f"number_{i}" for i in range(numbers)], absolute),
        low=tuple(-bound for bound in bounds),
        high=bounds,
        stale_action=StaleAction.HOLD if absolute else StaleAction.ZERO,
    )


def ways_of(
    start: Floats, absolute: bool, ratio: float, step: Floats | None = None
) -> dict[str, Callable[[], Way]]:
    """What makes commands ``ratio`` times in an action, by name, from rest or with the ``step`` [M]
    of a control period before it."""
    limits = limits_of(len(start), absolute, ratio)
    blend_s = BLEND_S if absolute else 0.0
    found: dict[str, Callable[[], Way]] = {OURS: lambda: Ours(start, limits, blend_s, step)}
    if ratio == MULTIPLIER:
        found[LINES] = lambda: Lines(start, MULTIPLIER)
    return found | {STAIRS: lambda: Stairs(start, ratio)}


# The simulator


class Simulator:
    """A world that executes an episode's commands. ``found``: positions [M] of the hand or the
    joints after each control step."""

    def __init__(self, world: Environment, episode: Episode) -> None:
        self._world, self._episode = world, episode
        self._ratio = round(1 / world.spec.actions_a_step)
        self._seen = world.reset(episode.task, episode.initial_state, 0, render=False)
        self._begin, self._moved = self._seen.eef_pos, np.zeros(3)  # of the action period
        self.found: list[Floats] = []

    @property
    def _here(self) -> Floats:
        joints = self._episode.source.joints
        return self._seen.joint_positions[:ARM].copy() if joints else self._seen.eef_pos.copy()

    def execute(self, commands: Floats) -> bool:
        """Go on by so many targets [T, M]; False: the episode is over."""
        if self._episode.source.joints:
            return all(self._step(command) for command in commands)
        return all(self._step(self._towards(command)) for command in commands)

    def displace(self, steps: Floats) -> bool:
        """Go on by so many displacements [T, 6] of the hand; False: the episode is over."""
        return all(self._step(step) for step in steps)

    def _towards(self, goal: Floats) -> Floats:
        """Displacement [6] that leads the goal of the hand's controller there, which counts from
        where the hand was as the action period began; within its bounds."""
        tick, ratio = len(self.found), self._ratio
        if tick % ratio == 0:
            self._begin, self._moved = self._seen.eef_pos, np.zeros(3)
        left, bound = ratio - tick % ratio, HAND_BOUNDS[0] / ratio
        step = np.zeros(6)
        step[:3] = np.clip((goal - self._begin - self._moved) / left, -bound, bound)
        step[3:] = self._episode.executed[tick // ratio][2][3:6] / ratio
        self._moved = self._moved + step[:3]
        return step

    def _step(self, command: Floats) -> bool:
        spec, gripper = self._world.spec, self._episode.grippers[len(self.found) // self._ratio]
        if self._episode.source.joints:
            action = np.array([*command, gripper])
        else:
            scale = (spec.position_scale,) * 3 + (spec.rotation_scale,) * 3
            action = np.array([*(command / scale), 1.0 - 2.0 * gripper])
        step = self._world.step(action, render=False)
        self._seen = step.observation
        self.found.append(self._here)
        return not step.done


# What is commanded of an episode, and what becomes of it


@dataclass(frozen=True, slots=True)
class Run:
    """Positions of an episode, [T, M] each, from rest: ``commanded``, and ``executed`` of that.
    ``off`` [n]: from each action to the command of its time; ``offsets`` [n]: of each new chunk
    from what was commanded last."""

    commanded: Floats
    executed: Floats
    off: Floats
    offsets: Floats

    @property
    def way(self) -> Floats:
        """How far each number was moved in all, float64 [M]."""
        out: Floats = np.abs(np.diff(self.executed, axis=0)).sum(0)
        return out


def followed(
    episode: Episode, way: Way, arm: Servo | Simulator, start: Floats, ratio: float
) -> Run:
    """An episode's chunks of targets, each from where this arm is as it is observed."""
    made, off, offsets, count = [start], [], [], 0
    for part in episode.targets():
        seen = int((count - part.first) * ratio + 1e-9)
        chunk = part.moved(arm.found[seen - 1] if seen > 0 else start)
        if count:
            offsets.append(np.abs(chunk.begin - made[-1]).max())
        commanded = way.follow(chunk)
        made += list(commanded)
        for number, action in enumerate(chunk.executed, count + 1):
            end = int(np.ceil(number * ratio - 1e-9))
            if end < len(made):  # else it is made with the next chunk
                off.append(np.abs(made[end] - action).max())
        count += part.count
        if not arm.execute(commanded):
            break
    found = np.array([start, *arm.found])
    rest = np.array(made[: len(found)])
    return Run(_rested(rest), _rested(found), np.array(off), np.array(offsets))


def displaced(
    episode: Episode, way: Way, arm: Servo | Simulator, ratio: float, stairs: bool
) -> Run:
    """An episode's displacements of the hand. On lines and in stairs a command has its share of
    what the way makes, which LeRobot's interpolator leaves to its user. What a servo is given is
    their sum; of stairs each action's at once, as the simulator's controller has its goal."""
    parts = episode.displacements()
    steps = commands(way, parts) / (1.0 if isinstance(way, Ours) else ratio)
    actions = np.concatenate([part.executed for part in parts])[:, :3]
    sums, positions = np.cumsum(actions, 0), np.cumsum(steps[:, :3], 0)
    if stairs:
        positions = commands(Stairs(np.zeros(3), ratio), [Part(sums, 0, len(sums))])
    ends = np.ceil(np.arange(1, len(sums) + 1) * ratio - 1e-9).astype(int) - 1
    there = ends < len(positions)
    off = np.abs(positions[ends[there]] - sums[there]).max(1)
    if isinstance(arm, Simulator):
        arm.displace(steps)
    else:
        arm.execute(positions)
    start = np.zeros(3) if isinstance(arm, Servo) else episode.start
    found, made = np.array([start, *arm.found]), np.concatenate((np.zeros((1, 3)), positions))
    return Run(_rested(made[: len(found)]), _rested(found), off, np.zeros(0))


def _rested(positions: Floats) -> Floats:
    """With another period at rest, so that the begin of the motion counts."""
    return np.concatenate((positions[:1], positions))


def compare(
    world: Environment, episodes: Sequence[Episode], absolute: bool
) -> list[dict[str, Any]]:
    """A row for each ratio and way: how smooth it is commanded, and executed."""
    rows = []
    for ratio in RATIOS:
        rate = ACTION_RATE_HZ * ratio
        for name in ways_of(episodes[0].start, absolute, ratio):
            served, simulated = [], []
            for episode in episodes:
                start = episode.start
                if not absolute:
                    make = ways_of(np.zeros(6), False, ratio)[name]
                    servo = Servo(np.zeros(3), rate)
                    served.append(displaced(episode, make(), servo, ratio, name == STAIRS))
                else:
                    make = ways_of(start, True, ratio)[name]
                    served.append(followed(episode, make(), Servo(start, rate), start, ratio))
                if ratio != MULTIPLIER:
                    continue
                arm = Simulator(world, episode)
                if absolute:
                    simulated.append(followed(episode, make(), arm, start, ratio))
                else:
                    simulated.append(displaced(episode, make(), arm, ratio, name == STAIRS))
            row: dict[str, Any] = {"ratio": ratio, "way": name}
            row["commanded"] = _figures([run.commanded for run in served], rate)
            row["servo"] = _figures([run.executed for run in served], rate)
            row["simulator"] = _figures([run.executed for run in simulated], rate)
            seconds = sum(len(run.executed) for run in served) / rate
            row["speed"] = float(np.max([sum(run.way for run in served)]) / seconds)
            row["off"] = _spread([run.off for run in served])
            row["offsets"] = _spread([run.offsets for run in served])
            rows.append(row)
    return rows


def _figures(runs: Sequence[Floats], rate_hz: float) -> dict[str, float] | None:
    if not runs:
        return None
    found = Smoothness.of(runs, rate_hz)
    return {"acceleration": found.acceleration, "jerk_rms": found.jerk}


def _spread(values: Sequence[Floats]) -> dict[str, float] | None:
    every = np.concatenate(values)
    return {"mean": float(every.mean()), "max": float(every.max())} if len(every) else None


# Changes of chunks


def begun_behind(part: Part, at: Floats, number: int, offset: float) -> Part:
    """The part moved to begin at the position ``at`` [M], but in this number so far behind."""
    shift = at - part.begin
    shift[number] -= np.copysign(offset, part.rows[part.first][number] - part.begin[number])
    return part.moved(shift)


def changed(parts: Sequence[Part], number: int, offset: float) -> dict[str, Floats]:
    """Positions [T, M] of each way at 5 times the action rate, from the first change of chunks on,
    where every new one begins ``offset`` behind what was commanded last. They begin in motion."""
    first, found = parts[0], {}
    step = (first.executed[0] - first.begin) / MULTIPLIER
    for name, make in ways_of(first.begin, True, MULTIPLIER, step).items():
        way = make()
        made = [way.follow(first)[-2:]]
        made += [way.follow(begun_behind(part, way.at, number, offset)) for part in parts[1:]]
        found[name] = np.concatenate(made)
    return found


def changes(episodes: Sequence[Episode]) -> list[dict[str, Any]]:
    """A row for each offset: the largest acceleration within a chunk, and that of each way, of the
    number that accelerates most; ``times``: ours by that within, of that number and of the worst
    one."""
    plans = [episode.targets() for episode in episodes]
    limits = limits_of(len(episodes[0].start), True, MULTIPLIER)
    own = np.max([within(parts, limits) for parts in plans], axis=0)
    most, count, rows = int(own.argmax()), len(own), []
    for offset in OFFSETS:
        times, row = np.zeros(count), {}
        for number in range(count):
            found: dict[str, float] = {}
            for parts in plans:
                for way, positions in changed(parts, number, offset).items():
                    peak = float(accelerations(positions, limits)[:, number].max(initial=0.0))
                    found[way] = max(found.get(way, 0.0), peak)
            times[number] = found[OURS] / own[number]
            if number == most:
                row = found
        rows.append(
            {"offset": offset, "within": float(own[most]), **row,
             "times": float(times[most]), "times_worst": float(times.max())}
        )  # fmt: skip
    return rows


# The tables


def study(source: Source, episodes: int, max_steps: int, progress: Progress) -> dict[str, Any]:
    """All figures of a policy."""
    recorded: list[Episode] = []
    with Recorder(source, max_steps) as recorder:
        jobs = [(task, state) for state in range(episodes) for task in source.tasks]
        for number, (task, state) in enumerate(jobs):
            progress.update(f"record {source.label}", f"record {task}", number, len(jobs))
            recorded.append(recorder.record(task, state))
    out: dict[str, Any] = {
        "policy": source.label, "unit": source.unit, "episodes": len(recorded),
        "actions": sum(len(episode.executed) for episode in recorded),
        "chunks": sum(len(episode.targets()) for episode in recorded),
    }  # fmt: skip
    rate = ACTION_RATE_HZ * MULTIPLIER
    world = EnvConfig(source.environment, 64, wrist=False, later=True, control_rate_hz=rate)()
    try:
        for form in ("targets",) if source.joints else ("displacements", "targets"):
            progress.update(f"{form} of {source.label}", f"{source.label}: {form}")
            out[form] = compare(world, recorded, form == "targets")
    finally:
        world.close()
    progress.update(f"changes {source.label}", f"{source.label}: changes of chunks")
    out["chunk_changes"] = changes(recorded)
    return out


def tables(studies: Sequence[dict[str, Any]]) -> str:
    """The figures as Markdown."""
    out = [
        "Largest acceleration (per s²) and root mean square jerk (per s³) of any number, finite"
        " differences at the control rate. Of the servo `speed`, the mean of the number that moves"
        " most; with it, × 1000, `off`, from an action to the command of its time, and `offset`, of"
        " a new chunk from what was commanded last; mean (largest).\n"
    ]
    for one in studies:
        out.append(
            f"{one['policy']} ({one['unit']}): {one['episodes']} episodes, {one['actions']} actions"
            f" of {one['chunks']} chunks\n"
        )
        out += _table(
            ("actions as", "× rate", "way", "commanded a", "jerk", "servo a", "jerk",
             "simulator a", "jerk", "speed", "off", "offset"),
            [_row(form, row) for form in ("displacements", "targets") for row in one.get(form, [])],
        )  # fmt: skip
    out.append(
        "Every new chunk begins so far behind what was commanded last, in one number; largest"
        " acceleration of it at 5 × the action rate:\n"
    )
    rows = []
    for one in studies:
        for row in one["chunk_changes"]:
            peaks = [f"{row[key]:.3g}" for key in ("within", OURS, LINES, STAIRS)]
            times = [f"{row['times']:.2f}", f"{row['times_worst']:.2f}"]
            offset = f"{1e3 * row['offset']:.0f} {'mrad' if one['unit'] == 'rad' else 'mm'}"
            rows.append((one["policy"], offset, *peaks, *times))
    heads = ("policy", "offset", "within a chunk", OURS, LINES, STAIRS, "ours / within", "worst")
    return "\n".join([*out, *_table(heads, rows)])


def _row(form: str, row: dict[str, Any]) -> tuple[str, ...]:
    figures = []
    for name in ("commanded", "servo", "simulator"):
        found = row.get(name)
        figures += [f"{found[key]:.3g}" for key in found] if found else ["", ""]
    figures.append(f"{row['speed']:.2f}")
    for name in ("off", "offsets"):
        found = row[name]
        figures.append(f"{1e3 * found['mean']:.0f} ({1e3 * found['max']:.0f})" if found else "")
    return form, f"{row['ratio']:g}", row["way"], *figures


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    return [line(heads), line(["---"] * len(heads)), *map(line, rows), ""]


def main() -> int:
    """0: done; 1: a policy could not be recorded."""
    parser = argparse.ArgumentParser(prog="smoothness", description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=3, help="initial states of each task (3)")
    parser.add_argument("--max-steps", type=int, default=80, help="actions of an episode (80)")
    parser.add_argument("--only", choices=[source.label for source in SOURCES], help="one policy")
    parser.add_argument("--json", action="store_true", help="one line of JSON, the last")
    args = parser.parse_args()
    began, studies = time.monotonic(), []
    with Progress() as progress:
        for source in SOURCES:
            if args.only in (None, source.label):
                studies.append(study(source, args.episodes, args.max_steps, progress))
    print(tables(studies))
    print(f"{origin.code()}; {origin.machine()}; {time.monotonic() - began:.0f} s")
    if args.json:
        print_json(
            rounded({"code": origin.code(), "machine": origin.machine(),
                     "action_rate_hz": ACTION_RATE_HZ, "blend_s": BLEND_S, "policies": studies})
        )  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
