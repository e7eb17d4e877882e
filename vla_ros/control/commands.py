"""From a gated action to the command that says what it rests on and where the time went."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from vla_ros import safety
from vla_ros.action_space import ActionSpace
from vla_ros.control.lasting import Lasting
from vla_ros.control.queue import Answer, ChunkAction
from vla_ros.core import STAGES, Command, CommandKind, Floats, Instruction
from vla_ros.safety import Gripper, Limits
from vla_ros.timing import MS, Moment


def stages_ms(answer: Answer, now: Moment) -> dict[str, float]:
    """Durations of all stages of a command published at ``now``, in milliseconds.

    ``transport`` is a difference of stamps (capture and receipt lie in two processes), all
    others are steady time. ``gate`` is what is left from the end of the inference to ``now``,
    so the stages sum to the time since capture.
    """
    timeline = answer.inference.timeline
    spent = timeline.durations_ms()
    spent["transport"] = (answer.received_ns - answer.inference.stamp_ns) / MS
    spent["gate"] = spent.get("gate", 0.0) + (now.steady_ns - timeline.end_ns) / MS
    return {stage: spent.get(stage, 0.0) for stage in STAGES}


def total_ms(answer: Answer, now: Moment, sim_time: bool) -> float:
    """Capture to publication in milliseconds: by the stamps, or in simulated time, which
    stands still while a policy thinks, by the steady clock from receipt on."""
    if not sim_time:
        return (now.now_ns - answer.inference.stamp_ns) / MS
    transport = (answer.received_ns - answer.inference.stamp_ns) / MS
    return transport + (now.steady_ns - answer.received_steady_ns) / MS


def order_of(candidate: ChunkAction) -> tuple[int, int]:
    """Commands must be published in this order and never twice: frame, then place in chunk."""
    return candidate.answer.inference.stamp_ns, candidate.index


class CommandMaker:
    """Numbers the commands of one loop and remembers what they said. Not thread-safe.

    ``before`` are the actions published last, newest first; ``grippers`` is what every command
    carries, whatever its kind, one a gripper of the space. ``lasting`` counts on where an earlier
    loop ended.
    """

    def __init__(self, space: ActionSpace, sim_time: bool, lasting: Lasting) -> None:
        self._space = space
        self._sim_time = sim_time
        self._lasting = lasting
        self.before: tuple[Floats, ...] = ()
        self.forget_grippers()

    def forget_grippers(self) -> None:
        """Nobody knows how they are."""
        self.grippers = tuple(Gripper() for _ in self._space.grippers)

    def move_grippers(self, action: Floats, now_ns: int, limits: Limits) -> None:
        """Take on what a gated action wants of them, as far as they may follow."""
        self.grippers = tuple(
            safety.steady_gripper(gripper, float(action[place]), now_ns, limits)
            for gripper, place in zip(self.grippers, self._space.grippers, strict=True)
        )

    def rest(self) -> None:
        """The robot is at rest: the next delta is a change from zero. A place has no such
        reference."""
        self.before = () if self._space.absolute else (np.zeros(self._space.width),)

    def still(self) -> Floats:
        """The action that moves nothing: a zero delta, or the place commanded last."""
        here = self._space.absolute and self.before
        return self.before[0] if here else np.zeros(self._space.width)

    def make(
        self,
        kind: CommandKind,
        action: Floats,
        now: Moment,
        instruction: Instruction,
        latest_ns: int,
    ) -> Command:
        """A command that rests on nothing yet, published at ``now``."""
        safety.refuse_unless_numbers(action, self._space)
        action = action.copy()
        for gripper, place in zip(self.grippers, self._space.grippers, strict=True):
            action[place] = gripper.value
        self.before = (action, *self.before[:1])
        return Command(
            kind=kind,
            action=action,
            sequence=self._number(),
            epoch=instruction.epoch,
            instruction_digest=instruction.digest,
            published_ns=now.now_ns,
            latest_ns=latest_ns,
        )

    def resting_on(self, command: Command, answer: Answer, limits: Limits) -> Command:
        """The same command with the evidence it rests on."""
        stamp = answer.inference.stamp_ns
        return replace(
            command,
            stamp_ns=stamp,
            received_ns=answer.received_ns,
            valid_until_ns=stamp + limits.max_age_ns,
        )

    def accounted(
        self, command: Command, candidate: ChunkAction, now: Moment, period_ns: int
    ) -> Command:
        """The same command with its place in the chunk, on the time line, and where its time
        went."""
        answer = candidate.answer
        due = candidate.index + answer.inference.told_delay  # periods after its observation
        return replace(
            command,
            chunk_index=candidate.index,
            chunk_length=len(answer.inference.actions),
            staleness_ns=now.now_ns - answer.inference.stamp_ns - due * period_ns,
            stages_ms=stages_ms(answer, now),
            total_ms=total_ms(answer, now, self._sim_time),
        )

    def again(self, command: Command) -> Command:
        """The same command under a new number: its answer was lost on the way."""
        return replace(command, sequence=self._number())

    def _number(self) -> int:
        self._lasting.sequence += 1
        return self._lasting.sequence - 1
