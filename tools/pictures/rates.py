"""The picture of docs/reference/rates.md, drawn by the code that moves the robot.

cd tools && PYTHONPATH=.. ../.venv/bin/python -m pictures.rates ../docs/images/rates.png
"""

from __future__ import annotations

import sys

import matplotlib
import numpy as np

matplotlib.use("agg")

from matplotlib import pyplot

from vla_ros.core.action_space import ActionKind, joints
from vla_ros.core.types import Inference, StaleAction, Timeline
from vla_ros.runtime.control.motion import Motion
from vla_ros.runtime.control.queue import ChunkAction, PolicyAnswer
from vla_ros.runtime.limiter import Commanded, action_reach_of
from vla_ros.runtime.safety import Limits

ACTION_HZ, CONTROL_HZ, BLEND_S = 20.0, 100.0, 0.25
SPACE = joints(ActionKind.JOINT_POSITION, ("j1",))
LIMITS = Limits(
    action_rate_hz=ACTION_HZ, control_rate_hz=CONTROL_HZ, space=SPACE, low=(-3.0,), high=(3.0,),
    stale_action=StaleAction.HOLD,
)  # fmt: skip
LATE, OFFSET = 2, -0.03  # actions that the second chunk comes late by; rad that it is away
TAKES_OVER, LENGTH = 7, 10  # at this action of the first; actions of a chunk


def wanted(time: np.ndarray) -> np.ndarray:
    """Motion that both chunks are of, in rad."""
    return 0.1 + 0.25 * np.sin(2.2 * time) + 0.05 * np.sin(9.0 * time)


def chunk(begin: int, offset: float) -> np.ndarray:
    """Chunk [LENGTH, 1] whose observation was taken at that action's time."""
    times = (begin + 1 + np.arange(LENGTH)) / ACTION_HZ
    return (wanted(times) + offset)[:, None]


def commanded(first: np.ndarray, second: np.ndarray, last: int) -> np.ndarray:
    """Commands [n] of each control period until the action ``last`` is over."""
    motion, reach = Motion(SPACE, LIMITS.action_period_s, BLEND_S), action_reach_of(LIMITS)
    answers = [PolicyAnswer(Inference(n, rows, Timeline(0)), 0, 0) for n, rows in
               enumerate((first, second))]  # fmt: skip
    ahead = first[1] - first[0]  # it is in motion already
    before = Commanded(first[0] - ahead, ahead * LIMITS.actions_a_period)
    out: list[float] = []
    action = 0
    while True:
        motion.open(LIMITS.actions_a_period)
        while motion.wants():
            if action > last:
                return np.array(out)
            late = action >= TAKES_OVER
            index = action - TAKES_OVER + LATE if late else action
            rows = (second if late else first)[index:]
            motion.begin(ChunkAction((answers[late],), index, rows), before, reach)
            action += 1
        step = motion.close(LIMITS.period_s)
        assert step is not None
        before = Commanded(step.wish, step.wish - before.at)
        out.append(float(step.wish[0]))


def main() -> None:
    first, second = chunk(0, 0.0), chunk(TAKES_OVER - LATE, OFFSET)
    last = TAKES_OVER - LATE + LENGTH - 1
    found = commanded(first, second, last)
    figure, axes = pyplot.subplots(figsize=(8.6, 3.6), dpi=110)
    of_first = np.arange(1, LENGTH + 1) / ACTION_HZ
    of_second = (TAKES_OVER - LATE + 1 + np.arange(LENGTH)) / ACTION_HZ
    axes.plot(of_first, first[:, 0], "o", ms=8, mfc="none", color="tab:blue",
              label=f"actions of a chunk, action_rate_hz {ACTION_HZ:g}")  # fmt: skip
    said = f"of the next chunk, {LATE} actions late, {abs(OFFSET):g} rad away"
    axes.plot(of_second, second[:, 0], "s", ms=8, mfc="none", color="tab:orange", label=said)
    times = (1 + np.arange(len(found))) / CONTROL_HZ
    axes.plot(times, found, ".", ms=5, color="black",
              label=f"commands, control_rate_hz {CONTROL_HZ:g}")  # fmt: skip
    begin = TAKES_OVER / ACTION_HZ
    axes.axvspan(begin, begin + BLEND_S, color="tab:orange", alpha=0.12, lw=0)
    axes.text(begin + BLEND_S / 2, 0.10, "chunk_blend_s, or longer", ha="center",
              color="tab:orange")  # fmt: skip
    axes.annotate("the next chunk takes over", (begin, found[int(begin * CONTROL_HZ) - 1]),
                  (begin - 0.02, 0.19), ha="right",
                  arrowprops={"arrowstyle": "-", "color": "gray"})  # fmt: skip
    axes.set(xlabel="time in s", ylabel="joint in rad", xlim=(0, times[-1] + 0.01))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left", fontsize=9)
    axes.set_ylim(0.08, 0.48)
    figure.tight_layout()
    figure.savefig(sys.argv[1])


if __name__ == "__main__":
    main()
