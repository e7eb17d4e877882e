"""Sessions: several robots on the weights of one policy.

A session is one robot's episode: its instruction, KV cache, drafts, chunks and random state. It is
itself a :class:`~vla_ros.policies.base.Policy`. All sessions of a policy belong to the thread that
loaded it; dropping the object ends one.

    first = load_policy(spec)
    robots = [open_session(first) for _ in range(8)]
    robots[0].reset(Instruction("put the red cube into the bowl", epoch=1))
    answers = step_together([SessionRequest(robots[0], observation, timeline), ...], clock)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from vla_ros.core.clock import SECOND, Clock
from vla_ros.core.types import Inference, Instruction, Observation, Timeline
from vla_ros.policies.base import Policy, PolicyRefused, is_out_of_memory

if TYPE_CHECKING:
    from vla_ros.engine.layers.pieces import Batched

#: an answer, None while a pipeline fills, or why there is none
Answer = Inference | Exception | None


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """Request to answer a frame. ``session``: of a policy; to a server's
    :class:`~vla_ros.serve.stepper.Sessions` one that they opened, with the ``instruction`` of the
    frame's episode (each has its own epoch)."""

    session: Any
    observation: Observation
    timeline: Timeline
    instruction: Instruction | None = None


def open_session(policy: Policy, seed: int | None = None) -> Policy:
    """Another robot's session on the weights of ``policy``, which is a session itself.

    ``seed``: of its noise and draws; None: the policy's. PolicyRefused: it has no sessions.
    """
    make = getattr(policy, "session", None)
    if make is None:
        raise PolicyRefused(
            f"policy {policy.info.name!r} serves one robot: only policy vla has sessions"
            " (without delay_frames)"
        )
    session: Policy = make(seed)
    return session


class Batch:
    """Frames of several sessions that are answered side by side, a turn at a time: a frame that
    comes while others are computed joins them at the next turn. At most one frame a session.

    What can be one pass is one: vision, prompts, tokens and drafts of token policies, prefixes and
    steps of flow policies. What cannot runs one after another. An exception that a session's frame
    raises is that session's answer (InvalidAction: it can go on; another one: reset or drop it).
    What a shared pass raises (out of memory) concerns all and passes through.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._together: Batched[Policy, Inference | None] | None = None
        self._answered: list[tuple[Policy, Answer]] = []

    def __len__(self) -> int:
        """Number of frames that are not answered."""
        return len(self._answered) + (0 if self._together is None else len(self._together))

    def add(self, request: SessionRequest) -> None:
        """Add a frame, which is checked and prepared now."""
        session, frame = request.session, (request.observation, request.timeline, self._clock)
        pieces: Any = getattr(session, "pieces", None)
        if pieces is None:
            try:
                self._answered.append((session, session.step(*frame)))
            except Exception as error:
                self._answered.append((session, error))
            return
        if self._together is None:
            from vla_ros.engine.layers.pieces import Batched

            self._together = Batched((Exception,))
        self._together.add(session, pieces(*frame))

    def turn(self) -> list[tuple[Policy, Answer]]:
        """Go on with all frames; returns the answers that are complete."""
        answered, self._answered = self._answered, []
        return answered if self._together is None else [*answered, *self._together.turn()]


def step_together(requests: Sequence[SessionRequest], clock: Clock) -> list[Answer]:
    """Answers in order, each as of its session's own ``step``: in float32 the same tokens, and
    chunks within 1e-5."""
    batch = Batch(clock)
    for request in requests:
        batch.add(request)
    answers: dict[int, Answer] = {}
    while len(answers) < len(requests):
        answers |= {id(session): answer for session, answer in batch.turn()}
    return [answers[id(request.session)] for request in requests]


def measure(
    sessions: Sequence[Policy],
    observation: Observation,
    clock: Clock,
    rounds: int = 3,
    budget_s: float = math.inf,
) -> dict[int, float]:
    """Seconds of batches of 1, 2, 4, ... of the sessions and of all of them, at start, for
    :class:`vla_ros.runtime.scheduler.BatchCosts`.

    Each has an instruction; ``observation`` is any that the policy takes. Reset them afterwards.
    No larger batch is measured where that would take longer than ``budget_s`` in all, or where it
    does not fit into memory. InvalidAction or another exception where there is no answer to it.
    """
    sizes = sorted({*(2**n for n in range(len(sessions).bit_length())), len(sessions)})
    found, stamp, first = dict[int, float](), observation.stamp_ns, clock.steady_ns()
    for size in sizes:
        spent, last = (clock.steady_ns() - first) / SECOND, max(found, default=0)
        if last and spent + (1 + rounds) * found[last] * size / last > budget_s:
            break
        took = []
        for _ in range(1 + rounds):  # the first warms up
            begun = clock.steady_ns()
            stamp += 1
            frame = replace(observation, stamp_ns=stamp, received_steady_ns=begun)
            timeline = Timeline(begun).mark("queue", begun)
            try:
                answers = step_together(
                    [SessionRequest(s, frame, timeline) for s in sessions[:size]], clock
                )
            except Exception as error:
                if last and is_out_of_memory(error):
                    return found
                raise
            if failed := [answer for answer in answers if isinstance(answer, Exception)]:
                raise failed[0]
            took.append((clock.steady_ns() - begun) / SECOND)
        found[size] = max(median(took[1:]), 1e-9)
    return found
