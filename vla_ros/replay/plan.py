"""When a replay resets the policy and gives it its task: at the frames at which it was done."""

from __future__ import annotations

from dataclasses import dataclass

from vla_ros.replay.errors import BagError
from vla_ros.replay.frames import Frames
from vla_ros.replay.recorded import Recorded


@dataclass(frozen=True, slots=True)
class Begin:
    """Before frame ``stamp_ns`` (of the image): reset the policy or not, and give the task."""

    stamp_ns: int
    instruction: str
    reset: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """``begins`` in order, the first one at the first frame that is shown; ``skipped`` frames
    before it have no task yet."""

    begins: tuple[Begin, ...]
    skipped: int = 0

    @property
    def by_stamp(self) -> dict[int, Begin]:
        return {begin.stamp_ns: begin for begin in self.begins}


def make_plan(frames: Frames, recorded: Recorded, instruction: str | None) -> Plan:
    """``instruction``: given by the user, instead of those of the bag.

    The policy's epoch in the recorded commands tells a reset: it counts one for a reset and
    one for a new instruction. BagError: there is no instruction for any frame.
    """
    begins: list[Begin] = []
    skipped = 0
    text: str | None = None
    epoch: int | None = None
    tasks = list(recorded.tasks)
    for time in frames.times:
        wanted = instruction
        if instruction is None:
            given = [task.text for task in tasks if task.at_ns <= time.at_ns]
            wanted = given[-1] if given else None
        if wanted is None:
            skipped += 1
            continue
        now = recorded.epochs.get(time.stamp_ns, epoch)
        steps = now - epoch if now is not None and epoch is not None else 0
        changed = wanted != text
        if not begins or changed or steps > 0:
            reset = not begins or steps > int(changed)
            begins.append(Begin(time.stamp_ns, wanted, reset))
        text, epoch = wanted, now
    if not begins:
        raise BagError("the bag has no instruction for its frames: give one with --instruction")
    return Plan(tuple(begins), skipped)
