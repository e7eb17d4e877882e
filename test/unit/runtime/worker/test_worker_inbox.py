"""A request is looked at before it is taken; whoever looks takes nothing away."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vla_ros.core.clock import SystemClock
from vla_ros.core.types import Inference, Instruction, Observation, Timeline
from vla_ros.runtime.worker.mailbox import MailboxReader, MailboxWriter
from vla_ros.runtime.worker.wire import HEAD_ROOM, FrameRequest, encode_request
from vla_ros.runtime.worker.worker import Inbox, Server

FIRST, SECOND = Instruction("push", 1), Instruction("pull", 2)


def observation(stamp: int) -> Observation:
    return Observation(stamp, stamp, stamp, np.full((4, 4, 3), stamp, np.uint8))


@pytest.fixture
def writer() -> MailboxWriter:
    return MailboxWriter(HEAD_ROOM, 1 << 10)


@pytest.fixture
def inbox(writer: MailboxWriter) -> Inbox:
    return Inbox(MailboxReader(writer.fileno(), writer.head_room, writer.array_room), after=1)


def post(writer: MailboxWriter, stamp: int, instruction: Instruction = FIRST) -> int:
    return writer.write(*encode_request(observation(stamp), instruction))


def test_what_was_looked_at_is_taken_as_the_same_object(
    writer: MailboxWriter, inbox: Inbox
) -> None:
    post(writer, 1)
    assert inbox.peek() is inbox.take() is None  # void
    post(writer, 2)
    shown = inbox.peek()
    assert shown is not None
    assert inbox.peek() is shown
    assert inbox.take() is shown
    assert inbox.peek() is inbox.take() is None


def test_the_newest_wins_over_what_was_looked_at(writer: MailboxWriter, inbox: Inbox) -> None:
    post(writer, 1)
    post(writer, 2)
    shown = inbox.peek()
    for stamp in range(3, 12):  # every slot was written over
        post(writer, stamp)
    taken = inbox.take()
    assert shown is not None and taken is not None
    assert (shown.observation.stamp_ns, taken.observation.stamp_ns) == (2, 11)
    assert int(shown.observation.image[0, 0, 0]) == 2  # a copy of its own
    assert inbox.take() is None


class Watching:
    """A policy that looks at what waits whenever it acts."""

    info = None

    def __init__(self) -> None:
        self.saw: list[int | None] = []
        self._coming = lambda: None

    def watch(self, coming) -> None:  # type: ignore[no-untyped-def]
        self._coming = coming

    def reset(self, instruction: Instruction) -> None: ...

    def step(self, observation: Observation, timeline: Timeline, clock: object) -> Inference | None:
        found = self._coming()
        self.saw.append(None if found is None else found.stamp_ns)
        return None


def test_a_policy_sees_what_waits_under_its_instruction_only() -> None:
    policy, waiting = Watching(), FrameRequest(2, observation(2), FIRST)
    box: list[FrameRequest | None] = [None]
    server = Server(policy, SystemClock())  # type: ignore[arg-type]
    server.watch(lambda: box[0])
    for found in (None, waiting, replace(waiting, instruction=SECOND)):
        box[0] = found
        server.answer(FrameRequest(1, observation(1), FIRST))
    server.answer(FrameRequest(3, observation(3), SECOND))
    assert policy.saw == [None, 2, None, 2]


def test_a_policy_need_not_watch() -> None:
    class Plain(Watching):
        watch = None  # type: ignore[assignment]

    Server(Plain(), SystemClock()).watch(lambda: None)  # type: ignore[arg-type]
