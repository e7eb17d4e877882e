"""The tabletop's tasks as Markdown: `python -m vla_ros.sim.describe` writes
docs/reference/tasks.md, and a test holds the two together."""

from __future__ import annotations

from vla_ros.sim import tasks
from vla_ros.sim.env import ACTION_RATE_HZ
from vla_ros.sim.tasks import GOALS, HELD_ACTIONS, TASKS, Family

_HEAD = """# Tasks of the tabletop

Written by `python -m vla_ros.sim.describe > docs/reference/tasks.md`.

A task is named by `--task` of `vla-ros demo`, `--tasks` of `vla-ros eval`, `-p bridge.task=NAME`
and `TASK=NAME` of `make demo`; without one it is `{first}`. The policy gets its instruction and
nothing else. Each of the {count} tasks has {states} fixed initial states a seed
(`--initial-state`). An action takes {step:g} ms, {rate:g} Hz, at any control rate.

Other instructions may be given too. The scripted expert looks for key words: one or two of the
colors {colors}; `above`, `left` or `right`, `plate`, or `on`; it refuses the rest by name. The task
is judged by its own goal whatever the instruction.

Success is judged by the state of the simulation and must hold for the time of as many actions as
below. A cube that the task needs and that has fallen off the table ends the episode.
"""

_TITLES = {
    Family.REACH: "Reach",
    Family.PUSH: "Push",
    Family.PICK: "Pick and place",
    Family.STACK: "Stack",
}


def _cm(metres: float) -> str:
    return f"{metres * 100:g} cm"


def solved_when(family: Family) -> str:
    """The success predicate of :func:`vla_ros.sim.tasks.satisfied` in words."""
    low, high = tasks.REACH_HEIGHT
    lying = f"to {_cm(tasks.LIES)} at its height"
    return {
        Family.REACH: f"the gripper is {_cm(low)} to {_cm(high)} above the cube and less than"
        f" {_cm(tasks.REACH_RADIUS)} beside it",
        Family.PUSH: f"the cube lies on the table, more than {_cm(tasks.PUSH_DISTANCE)} further to"
        " that side than it began",
        Family.PICK: f"the cube lies on the plate ({lying}), less than {_cm(tasks.PLATE_RADIUS)}"
        " from its middle, and no finger touches it",
        Family.STACK: f"the cube lies on the other one ({lying}), its middle less than"
        f" {_cm(tasks.STACK_RADIUS)} beside that one's, and no finger touches it",
    }[family]


def table(family: Family) -> str:
    """Markdown table of a family's tasks, which have one step limit."""
    own = [task for task in TASKS if GOALS[task.name].family is family]
    lines = [f"| task, at most {own[0].max_steps} actions | instruction |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{task.name}` | {task.instruction} |" for task in own)])


def document() -> str:
    """The whole page."""
    rate = ACTION_RATE_HZ
    parts = [
        _HEAD.format(
            first=TASKS[0].name,
            count=len(TASKS),
            states=tasks.INITIAL_STATES,
            step=1000 / rate,
            rate=rate,
            colors=", ".join(f"`{color}`" for color in tasks.COLORS),
        )
    ]
    for family in Family:
        held = HELD_ACTIONS[family]
        steps = "1 action" if held == 1 else f"{held} actions"
        parts.append(
            f"## {_TITLES[family]}\n"
            f"Solved when {solved_when(family)}, for {steps}.\n\n{table(family)}\n"
        )
    return "\n".join(parts)


if __name__ == "__main__":
    print(document(), end="")
