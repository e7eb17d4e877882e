"""A newest-wins mailbox in shared memory: one writing process, one reading process, no locks.

The writer never waits and the reader never sees half a frame, whenever either is killed.
There are four slots. The writer fills the one that was written longest ago: it puts the new
number on it, writes, and only then names that number the newest. The reader copies the
newest frame and takes the copy only if its slot still bears that number afterwards.

The memory is anonymous (memfd): it has no name in /dev/shm, is sealed against resizing, the
reader maps it read-only, and the kernel frees it with the last process that maps it.

Threads: ``write`` from one thread at a time, ``read`` from one thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vla_ros.core.numbers import round_up

Bytes = npt.NDArray[np.uint8]

SLOTS = 4
MAX_ARRAYS = 6  # as many lengths as a slot's header has room for
_NEWEST = 0  # index of a 64-bit word at the start of the memory
_FILE_HEADER = 64  # bytes
_SLOT_HEADER = 64  # bytes, eight 64-bit words:
_NUMBER, _HEAD_LENGTH, _FIRST_ARRAY_LENGTH = 0, 1, 2


@dataclass(frozen=True, slots=True)
class MailboxFrame:
    """A frame that was read: its number, a head, and flat uint8 arrays. Own copies."""

    sequence: int
    head: bytes
    arrays: tuple[Bytes, ...]


class _Fence:
    """A full memory barrier, which ARM needs between the words and the data.

    Releasing and then acquiring a lock orders everything before against everything after: nothing
    goes below the store that releases, nothing above the load that acquires, and ARMv8 does not
    exchange these two (its model's ``[L]; po; [A]``).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def __call__(self) -> None:
        self._lock.release()
        self._lock.acquire()


class _Layout:
    """Words and bytes of the mapped memory."""

    def __init__(self, memory: mmap.mmap, head_room: int, array_room: int) -> None:
        self.head_room, self.array_room = head_room, array_room
        self.room = head_room + array_room
        self.bytes: Bytes = np.frombuffer(memory, np.uint8)
        self.words = memoryview(memory).cast("Q")

    def slot(self, sequence: int) -> int:
        """Offset in bytes of the slot that the frame of this number goes to."""
        return _FILE_HEADER + (sequence % SLOTS) * (_SLOT_HEADER + self.room)


def _size(head_room: int, array_room: int) -> int:
    return _FILE_HEADER + SLOTS * (_SLOT_HEADER + head_room + array_room)


class MailboxWriter:
    """The writing end. Owns the memory; ``fileno`` is what the reader is started with."""

    def __init__(self, head_room: int, array_room: int) -> None:
        self.head_room, self.array_room = round_up(head_room, 64), round_up(array_room, 64)
        size = _size(self.head_room, self.array_room)
        self._fd = os.memfd_create("vla_ros_mailbox", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._fd, size)
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self._layout = _Layout(mmap.mmap(self._fd, size), self.head_room, self.array_room)
        self._fence = _Fence()
        self.sequence = 0  # number of the newest frame

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Give the memory back; nothing can be written any more. May be called again."""
        if (fd := getattr(self, "_fd", -1)) >= 0:
            self._fd = -1
            os.close(fd)
            if hasattr(self, "_layout"):
                del self._layout  # unmaps: there is no other view of it

    def fileno(self) -> int:
        """The memory's file descriptor, valid until ``close``."""
        return self._fd

    def write(self, head: bytes, arrays: Sequence[Bytes] = ()) -> int:
        """Post a frame and return its number. ValueError where it does not fit."""
        need = sum(array.nbytes for array in arrays)
        if len(head) > self.head_room:
            raise ValueError(f"{len(head)} bytes of text and numbers, room for {self.head_room}")
        if need > self.array_room or len(arrays) > MAX_ARRAYS:
            raise ValueError(f"{len(arrays)} images of {need} bytes, room for {self.array_room}")
        sequence = self.sequence + 1
        self._fill(sequence, head, arrays)
        self._fence()
        self._layout.words[_NEWEST] = sequence
        self.sequence = sequence
        return sequence

    def _fill(self, sequence: int, head: bytes, arrays: Sequence[Bytes]) -> None:
        words, data = self._layout.words, self._layout.bytes
        offset = self._layout.slot(sequence)
        word = offset // 8
        words[word + _NUMBER] = sequence
        self._fence()
        words[word + _HEAD_LENGTH] = len(head)
        for i in range(MAX_ARRAYS):
            length = arrays[i].nbytes if i < len(arrays) else 0
            words[word + _FIRST_ARRAY_LENGTH + i] = length
        offset += _SLOT_HEADER
        data[offset : offset + len(head)] = np.frombuffer(head, np.uint8)
        offset += self.head_room
        for array in arrays:
            np.copyto(data[offset : offset + array.nbytes].reshape(array.shape), array)
            offset += array.nbytes


class MailboxReader:
    """The reading end, in another process: maps what ``MailboxWriter.fileno`` gave, read-only."""

    def __init__(self, fd: int, head_room: int, array_room: int) -> None:
        memory = mmap.mmap(fd, _size(head_room, array_room), prot=mmap.PROT_READ)
        self._layout = _Layout(memory, head_room, array_room)
        self._fence = _Fence()

    @property
    def newest(self) -> int:
        """Number of the newest frame, 0 before the first."""
        return int(self._layout.words[_NEWEST])

    def read(self, after: int = 0) -> MailboxFrame | None:
        """The newest frame numbered above ``after``, or None. Copies; never torn."""
        while (sequence := self.newest) > after:
            self._fence()
            frame = self._copy(sequence)
            self._fence()
            word = self._layout.slot(sequence) // 8
            if frame is not None and self._layout.words[word + _NUMBER] == sequence:
                return frame  # else the writer came round meanwhile: there is a newer one
        return None

    def _copy(self, sequence: int) -> MailboxFrame | None:
        words, data = self._layout.words, self._layout.bytes
        offset = self._layout.slot(sequence)
        word = offset // 8
        head_length = int(words[word + _HEAD_LENGTH])
        lengths = [int(words[word + _FIRST_ARRAY_LENGTH + i]) for i in range(MAX_ARRAYS)]
        if head_length > self._layout.head_room or sum(lengths) > self._layout.array_room:
            return None  # overwritten while the lengths were read
        offset += _SLOT_HEADER
        head = data[offset : offset + head_length].tobytes()
        offset += self._layout.head_room
        arrays = []
        for length in lengths:
            if length:
                arrays.append(data[offset : offset + length].copy())
            offset += length
        return MailboxFrame(sequence, head, tuple(arrays))


class Doorbell:
    """Bell of the mailbox: an eventfd, so any number of rings before an answer are one.

    The descriptor closes with the object, or by ``close``; a ring after that is not heard. One
    thread answers, and closes no earlier than it has stopped to.
    """

    def __init__(self, fd: int | None = None) -> None:
        self._ringing = threading.Lock()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) if fd is None else fd

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()

    def close(self) -> None:
        """It rings no more. May be called again."""
        with self._ringing:  # else its number might be somebody else's by the time of the write
            fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def fileno(self) -> int:
        """The descriptor, to poll or to hand to the other process."""
        return self._fd

    def ring(self) -> None:
        """Ring. Never blocks."""
        with self._ringing, contextlib.suppress(BlockingIOError):  # 2**64 - 2 without an answer
            if self._fd >= 0:
                os.eventfd_write(self._fd, 1)

    def answer(self) -> bool:
        """True if it rang since the last answer."""
        try:
            return os.eventfd_read(self._fd) > 0
        except BlockingIOError:
            return False
