"""Whether a policy's answer depends on what it is given: instruction, cameras, state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from vla_ros.core.adaptation import Adaptation, ImageAdaptation, ValueAdaptation
from vla_ros.core.types import Floats
from vla_ros.data.check.asking import STEPS, Asker
from vla_ros.data.check.hypotheses import Inputs

IGNORED = 0.02  # a change of the answer below this, in parts of its own spread, is none
_OTHERWISE = "do nothing and stand still"


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Change of the answer where ``what`` is another: 0 none, about 1 as much as between frames."""

    what: str
    change: float

    @property
    def ignored(self) -> bool:
        """Whether the policy ignores it."""
        return self.change < IGNORED


def sensitivities(asker: Asker, used: Sequence[str], frames: int = 8) -> list[Sensitivity]:
    """Each input of the policy; ``used``: the roles of the cameras that it looks through."""
    rows = asker.recording.only(frames).chosen
    usual = asker.ask((), rows)
    tasks = asker.recording.tasks
    found = []

    def add(what: str, answer: Callable[[int], Floats]) -> None:
        other = np.stack([answer(row) for row in rows])
        found.append(Sensitivity(what, _change(asker, usual, other)))

    def another(row: int) -> str:
        mine = tasks[row]
        return next((t for t in dict.fromkeys(tasks) if t != mine), _OTHERWISE)

    add("another instruction", lambda row: asker.ask((), [row], another(row))[0])

    def changed(what: str, inputs: Inputs) -> None:
        add(what, lambda row: asker.ask((inputs,), [row])[0])

    for role in used:
        changed(f"camera {role} dark", Inputs(Adaptation({role: ImageAdaptation(gamma=10.0)})))
    if asker.recording.state is not None:
        width = asker.recording.state.shape[1]
        zero = ValueAdaptation((), (1e-9,) * width)
        changed("a state of zeros", Inputs(Adaptation(state=zero)))
    return found


def _change(asker: Asker, usual: Floats, other: Floats) -> float:
    """Root of the mean squared change, in parts of the answers' own spread; of grippers alike."""
    motion = list(asker.space.motion)
    one, two = usual[:, :STEPS], other[:, :STEPS]
    spread = float(one[..., motion].std((0, 1)).mean()) + 1e-9
    moved = float(np.sqrt(((one - two)[..., motion] ** 2).mean())) / spread
    grippers = list(asker.space.grippers)
    turned = float(np.abs(one - two)[..., grippers].mean()) if grippers else 0.0
    return max(moved, turned)
