"""The recipe of a flow policy of the SO-101: what changes what comes out. Light: recipes read it,
while the training itself imports torch and the simulation.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from vla_ros.core.errors import UserError

#: of the world's tasks, whose module needs the simulation
TASKS = ("lift_cube", "cube_in_box")
#: of train.flow, which needs torch
ARCHITECTURES = ("small-flow", "tiny-flow")
DTYPES = ("bfloat16", "float32")


@dataclass(frozen=True, slots=True)
class So101Options:
    """``demos`` episodes of the teacher's, then ``dagger`` rounds of ``dagger_episodes`` of the
    policy's own; ``steps`` after the demonstrations and after each round, the last number holding
    for all that follow. ``init_from``: a flow policy, of which every weight of the same shape is
    taken; "": none. ``part``: episodes of a file of frames, which is what a stop may cost."""

    tasks: tuple[str, ...] = ("lift_cube",)
    arch: str = field(default="small-flow", metadata={"choices": ARCHITECTURES})
    init_from: str = "shipped:tabletop-flow"
    demos: int = 400
    dagger: int = 3
    dagger_episodes: int = 120
    steps: tuple[int, ...] = (700, 400, 400, 600)
    batch: int = 16
    learning_rate: float = 1.5e-3
    part: int = 20
    dtype: str = field(default="bfloat16", metadata={"choices": DTYPES})
    seed: int = 0

    def __post_init__(self) -> None:
        for task in self.tasks:
            if task not in TASKS:
                raise UserError(f"tasks has {task}: give of {', '.join(TASKS)}")
        if not all(isinstance(steps, int) and steps >= 1 for steps in self.steps):
            raise UserError(f"steps is {list(self.steps)}: give whole numbers of 1 or more")
        if min(self.demos, self.dagger_episodes, self.batch, self.part) < 1:
            raise UserError("demos, dagger_episodes, batch and part must be at least 1")
