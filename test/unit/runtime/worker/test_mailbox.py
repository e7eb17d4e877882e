"""The mailbox: the newest letter, whole or not at all, whoever is interrupted or killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vla_ros
from vla_ros.runtime.worker.mailbox import (
    SLOTS,
    Bytes,
    Doorbell,
    MailboxFrame,
    MailboxReader,
    MailboxWriter,
)

HEAD, ROOM = 256, 4096


def pair(room: int = ROOM) -> tuple[MailboxWriter, MailboxReader]:
    writer = MailboxWriter(HEAD, room)
    return writer, MailboxReader(writer.fileno(), writer.head_room, writer.array_room)


def letter(n: int, size: int, size2: int = 0) -> tuple[bytes, tuple[Bytes, ...]]:
    """A letter of which every byte depends on n."""
    sizes = [size, size2] if size2 else [size]
    return f"{n}:{size}:{size2}".encode(), tuple(np.full(s, n % 251, np.uint8) for s in sizes)


def check(got: MailboxFrame) -> int:
    """The letter is one that ``letter`` made, all of it; returns its n."""
    n, size, size2 = map(int, got.head.split(b":"))
    assert [a.size for a in got.arrays] == ([size, size2] if size2 else [size])
    for array in got.arrays:
        assert (array == n % 251).all(), f"torn letter {n}"
    return n


def write_half(writer: MailboxWriter) -> None:
    """Write a letter whose every byte is 255, and die before it is the newest."""
    whole, fences = writer._fence, iter(range(2))

    def fence() -> None:
        if next(fences) == 1:
            raise InterruptedError

    writer._fence = fence  # type: ignore[assignment]
    with pytest.raises(InterruptedError):
        writer.write(b"255:9:9", (np.full(writer.array_room, 255, np.uint8),))
    writer._fence = whole


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 2000), st.integers(0, 2000)), max_size=40))
@settings(max_examples=60, deadline=None)
def test_a_read_gives_the_newest_letter_whole(steps: list[tuple[bool, int, int]]) -> None:
    writer, reader = pair()
    written = seen = 0
    for write, size, size2 in steps:
        if write:
            written += 1
            assert writer.write(*letter(written, size, size2)) == written
        else:
            got = reader.read(seen)
            if written == seen:
                assert got is None
            else:
                assert got is not None
                assert check(got) == got.sequence == written
                seen = written
    assert reader.newest == written


@given(
    bursts=st.lists(st.tuples(st.integers(0, 3 * SLOTS), st.booleans()), min_size=1, max_size=12),
    before=st.integers(1, 6),
    size=st.integers(1, 2000),
)
@settings(max_examples=150, deadline=None)
def test_a_read_overtaken_by_the_writer_is_never_torn(
    bursts: list[tuple[int, bool]], before: int, size: int
) -> None:
    """The writer runs whenever the reader is between two of its steps, and may stop half-way."""
    writer, reader = pair()

    def burst(count: int, half: bool) -> None:
        for _ in range(count):
            writer.write(*letter(writer.sequence + 1, size))
        if half:
            write_half(writer)

    def fence() -> None:
        if bursts:
            burst(*bursts.pop())

    burst(before, False)
    reader._fence = fence  # type: ignore[assignment]
    got = reader.read()
    assert got is not None
    assert before <= check(got) == got.sequence <= writer.sequence


@given(st.integers(1, 12), st.integers(0, 11))
@settings(max_examples=40, deadline=None)
def test_a_writer_stopped_in_mid_letter_leaves_the_one_before(before: int, seen: int) -> None:
    writer, reader = pair()
    for n in range(1, before + 1):
        writer.write(*letter(n, 100))
    write_half(writer)
    got = reader.read(min(seen, before - 1))
    assert got is not None
    assert check(got) == before


def test_letters_that_do_not_fit_are_refused_and_cost_nothing() -> None:
    writer, reader = pair()
    writer.write(*letter(1, 10))
    with pytest.raises(ValueError, match="room for 4096"):
        writer.write(b"", (np.zeros(ROOM + 1, np.uint8),))
    with pytest.raises(ValueError, match="room for 256"):
        writer.write(b"x" * 257)
    got = reader.read()
    assert got is not None
    assert check(got) == 1


def test_strided_and_shaped_images_arrive_as_they_look() -> None:
    writer, reader = pair()
    image = np.arange(2 * 30 * 20 * 3, dtype=np.uint8).reshape(60, 20, 3)[::2, ::-1]
    writer.write(b"", (image,))
    got = reader.read()
    assert got is not None
    assert (got.arrays[0].reshape(image.shape) == image).all()


def test_the_reader_cannot_write_and_nobody_can_resize() -> None:
    writer, reader = pair()
    with pytest.raises(TypeError):
        reader._layout.words[0] = 7
    with pytest.raises(PermissionError):
        os.ftruncate(writer.fileno(), 0)


def test_doorbell_rings_are_one_until_answered() -> None:
    bell = Doorbell()
    assert not bell.answer()
    for _ in range(1000):
        bell.ring()
    assert bell.answer()
    assert not bell.answer()


READER = """
import sys
from unit.runtime.worker.test_mailbox import check
from vla_ros.runtime.worker.mailbox import MailboxReader
fd, head, room, last = map(int, sys.argv[1:])
reader, seen, count = MailboxReader(fd, head, room), 0, 0
while seen < last:
    got = reader.read(seen)
    if got is not None:
        assert check(got) == got.sequence > seen
        seen, count = got.sequence, count + 1
    if count == 1:
        print("reading", flush=True)
print(count)
"""


def start_reader(writer: MailboxWriter, last: int) -> subprocess.Popen[str]:
    arguments = (writer.fileno(), writer.head_room, writer.array_room, last)
    path = [str(Path(vla_ros.__file__).parents[1]), str(Path(__file__).parents[3])]
    return subprocess.Popen(
        [sys.executable, "-c", READER, *map(str, arguments)],
        pass_fds=(writer.fileno(),),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_stress_a_second_process_never_reads_a_torn_frame() -> None:
    size, last = 300_000, 3000
    writer = MailboxWriter(HEAD, size)
    reader = start_reader(writer, last)
    assert reader.stdout is not None
    writer.write(*letter(1, size))
    assert reader.stdout.readline() == "reading\n"
    _, arrays = letter(1, size)
    for n in range(2, last + 1):
        arrays[0][:] = n % 251
        writer.write(f"{n}:{size}:0".encode(), arrays)
        if n % 8 == 0:
            time.sleep(0)
    out, _ = reader.communicate(timeout=30)
    assert reader.returncode == 0
    assert int(out.split()[-1]) >= 2


def test_a_killed_reader_costs_the_writer_nothing() -> None:
    size = 300_000
    writer = MailboxWriter(HEAD, size)
    reader = start_reader(writer, 1 << 40)
    assert reader.stdout is not None
    writer.write(*letter(1, size))
    assert reader.stdout.readline() == "reading\n"
    for n in range(2, 40):
        writer.write(*letter(n, size))
        if n == 20:
            reader.kill()
            reader.communicate()
    fresh = MailboxReader(writer.fileno(), writer.head_room, writer.array_room)
    got = fresh.read()
    assert got is not None
    assert check(got) == 39
