"""Requests out of the mailbox: the newest one, which may be looked at before it is taken."""

from __future__ import annotations

from vla_ros.executor.mailbox import MailboxReader
from vla_ros.executor.messages import FrameRequest
from vla_ros.executor.wire import decode_request


class Inbox:
    """The worker's end. ``after``: requests up to this number are void. One thread."""

    def __init__(self, mailbox: MailboxReader, after: int) -> None:
        self._mailbox, self._after = mailbox, after
        self._shown: FrameRequest | None = None

    def peek(self) -> FrameRequest | None:
        """The newest request that was not taken, None where there is none; the same object until
        there is a newer one. It is not taken by this, and a newer one takes its place."""
        shown = self._shown
        if shown is not None and shown.sequence == self._mailbox.newest:
            return shown
        letter = self._mailbox.read(self._after)
        if letter is not None:
            self._shown = decode_request(letter)
        return self._shown

    def take(self) -> FrameRequest | None:
        """The same, taken out."""
        request, self._shown = self.peek(), None
        if request is not None:
            self._after = request.sequence
        return request
