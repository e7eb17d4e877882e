"""Bags that want to fill a memory or to hang their reader: one line each, in bounded time."""

from __future__ import annotations

import json
import os
import sqlite3
import struct
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip(
    "rosbags", reason="rosbags is not installed: pip install '.[replay]' in the checkout"
)

import lz4.frame

from support.bags import START, Entry, T, film, task, write_bag
from support.hostile import GB, SPECIAL, bounded, laughs
from vla_ros.data import bag_limits
from vla_ros.data.bag_limits import TooLarge, unpack, unpack_file, zstd
from vla_ros.data.bags import Bag, BagError

MAGIC = b"\x89MCAP0\r\n"
READ = """
import sys
from pathlib import Path
from vla_ros.data.bags import Bag, BagError
for path in map(Path, sys.argv[1:]):
    try:
        with Bag(path) as bag:
            names = [topic.name for topic in bag.topics]
            print(path, "was read:", sum(len(m.data) for m in bag.messages(names)), "bytes")
    except BagError as error:
        print(error)
"""


def text(words: str) -> bytes:
    return struct.pack("<I", len(words)) + words.encode()


def record(kind: int, body: bytes) -> bytes:
    return bytes([kind]) + struct.pack("<Q", len(body)) + body


def zeros(size: int) -> bytes:
    """A frame of zstd that unpacks to so many bytes of 0."""
    packer = zstd.ZstdCompressor(level=1)
    block = bytes(1 << 24)
    return b"".join(packer.compress(block) for _ in range(size >> 24)) + packer.flush()


def mcap(size: int, packed: bytes, kind: str = "zstd", more: bytes = b"") -> bytes:
    """A file of one chunk that says to unpack to ``size`` bytes, and is not closed."""
    head = struct.pack("<QQQI", 0, 1, size, 0) + text(kind) + struct.pack("<Q", len(packed))
    return MAGIC + record(1, text("ros2") + text("x")) + more + record(6, head + packed)


CLOSED = record(1, text("ros2") + text("x"))


def channel(qos: str) -> bytes:
    schema = record(
        3, struct.pack("<H", 1) + text("std_msgs/msg/String") + text("ros2msg") + text("")
    )
    metadata = text("offered_qos_profiles") + text(qos)
    body = struct.pack("<HH", 1, 1) + text("/a") + text("cdr")
    return schema + record(4, body + struct.pack("<I", len(metadata)) + metadata)


def database(
    path: Path, data: str = "data BLOB NOT NULL", qos: str = "", value: bytes = b"x"
) -> None:
    """A bag in SQLite with one message, as somebody else writes its tables."""
    base = sqlite3.connect(path)
    base.executescript(
        "CREATE TABLE topics(id INTEGER PRIMARY KEY, name TEXT, type TEXT,"
        " serialization_format TEXT, offered_qos_profiles TEXT);"
        "CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id INTEGER, timestamp INTEGER,"
        f" {data});"
    )
    base.execute("INSERT INTO topics VALUES (1, '/a', 'std_msgs/msg/String', 'cdr', ?)", [qos])
    if "GENERATED" in data:
        base.execute("INSERT INTO messages(id, topic_id, timestamp) VALUES (1, 1, 1)")
    else:
        base.execute("INSERT INTO messages VALUES (1, 1, 1, ?)", [value])
    base.commit()
    base.close()


FILES = {
    "bomb.mcap": lambda p: p.write_bytes(mcap(4 * GB, zeros(4 * GB))),
    "bomb_of_lz4.mcap": lambda p: p.write_bytes(
        mcap(GB, lz4.frame.compress(bytes(GB), store_size=False), "lz4")
    ),
    "liar.mcap": lambda p: p.write_bytes(mcap(1000, zeros(4 * GB))),
    "many_frames.mcap": lambda p: p.write_bytes(mcap(1000, zeros(GB) * 4)),
    "a_record_of_300_GB.mcap": lambda p: sparse(p, struct.pack("<BQ", 5, 300 * GB)),
    "a_chunk_of_300_GB.mcap": lambda p: sparse(p, struct.pack("<BQ", 6, 300 * GB)),
    "zeros.mcap": lambda p: sparse(p, b""),
    "zeros_that_are_closed.mcap": lambda p: sparse(p, CLOSED, b"\x02\x14" + bytes(27) + MAGIC),
    "qos.mcap": lambda p: p.write_bytes(mcap(0, b"", "", channel(laughs()))),
    "computed.db3": lambda p: database(p, "data BLOB GENERATED ALWAYS AS (zeroblob(900000000))"),
    "a_blob_of_280_MB.db3": lambda p: database(p, value=bytes(280_000_000)),
}  # fmt: skip


def sparse(path: Path, head: bytes, tail: bytes = b"") -> None:
    with path.open("wb") as file:
        file.write(MAGIC + head)
        file.truncate(301 * GB)
        file.seek(0, os.SEEK_END)
        file.write(tail)


def test_every_hostile_file_is_one_line_in_a_bounded_process(tmp_path):
    """Beside them one whose QoS is a bomb that nobody looks at, which is read."""
    made = []
    for name, make in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        make(tmp_path / name)
        made.append(tmp_path / name)
    database(tmp_path / "qos.db3", qos=laughs())
    told = bounded(READ, *made, tmp_path / "qos.db3", memory=2 * GB).splitlines()
    assert told.pop() == f"{tmp_path / 'qos.db3'} was read: 1 bytes"
    for line, path in zip(told, made, strict=True):
        assert line.startswith(str(path)) and "was read" not in line and len(line) < 500, line
    assert "4,294,967,296 bytes, and at most 268,435,456" in told[0]


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("name", ["metadata.yaml", "bag.mcap", "bag.db3"])
def test_a_special_file_of_a_bag_is_not_waited_for(tmp_path, kind, name):
    storage = "sqlite3" if name == "bag.db3" else "mcap"
    path = write_bag(tmp_path / "bag", [task(START, "reach"), *film(2)], storage)
    (path / name).unlink()
    SPECIAL[kind](path / name)
    if name == "metadata.yaml":
        (path / "bag.mcap").unlink()
    with pytest.raises(BagError) as caught:
        Bag(path)
    assert "\n" not in str(caught.value) and str(path) in str(caught.value)


@pytest.mark.parametrize(
    "metadata",
    [laughs(), "rosbag2_bagfile_information:\n  <<: [" + "{a: 1}, " * 20_000 + "]", "[" * 5_000],
)
def test_a_bomb_in_the_metadata_is_refused(tmp_path, metadata):
    (tmp_path / "metadata.yaml").write_text(metadata)
    assert "cannot be read" in bounded(READ, tmp_path)


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
@pytest.mark.parametrize("compressed", ["file", "message"])
def test_bags_that_recorders_compress_are_read(tmp_path, storage, compressed):
    entries = [task(START - T, "reach"), *film(3)]
    plain = write_bag(tmp_path / "plain", entries, storage)
    packed = write_bag(tmp_path / "packed", entries, storage, compressed=compressed)
    found = []
    for path in (plain, packed):
        with Bag(path) as bag:
            assert {t.name: t.count for t in bag.topics} == {"/image": 3, "/instruction": 1}
            found.append(list(bag.messages(["/image", "/instruction"])))
    assert found[0] == found[1] and len(found[0]) == 4


def test_a_message_that_unpacks_to_gigabytes_is_refused(tmp_path):
    path = write_bag(tmp_path / "bag", [task(START, "a")], "sqlite3", compressed="message")
    (file,) = path.glob("*.db3")
    base = sqlite3.connect(file)
    base.execute("UPDATE messages SET data = ?", [zeros(2 * GB)])
    base.commit()
    base.close()
    assert "damaged: " in bounded(READ, path, memory=2 * GB)


def test_a_file_that_unpacks_to_more_than_there_is_room_for_is_refused(tmp_path):
    (tmp_path / "a.zstd").write_bytes(zeros(1 << 26))
    assert unpack_file(tmp_path / "a.zstd", tmp_path / "a", 1 << 26) == 1 << 26
    with pytest.raises(TooLarge, match="unpacks to more than"):
        unpack_file(tmp_path / "a.zstd", tmp_path / "b", (1 << 26) - 1)
    assert (tmp_path / "b").stat().st_size < 1 << 26


def test_chunks_of_one_moment_are_counted_together(tmp_path, monkeypatch):
    """Each is small, and all are unpacked side by side: they say to be of the same time."""
    large = np.random.default_rng(0).integers(0, 256, (700, 700, 3), np.uint8)

    def frames(step: int) -> list[Entry]:
        return film(1, topic="/first") + [
            Entry("/image", START + i * step, frame.kind, frame.content)
            for i, frame in enumerate([picture_of(large)] * 8)
        ]

    at_once = write_bag(tmp_path / "at_once", frames(0), compressed="storage")
    in_turn = write_bag(tmp_path / "in_turn", frames(T), compressed="storage")
    monkeypatch.setattr(bag_limits, "MOST_AT_ONCE", 4 << 20)
    with Bag(in_turn) as bag:
        assert len(list(bag.messages(["/image"]))) == 8
    with pytest.raises(BagError, match="chunks of one moment"):
        Bag(at_once)


def picture_of(rgb: np.ndarray) -> Entry:
    from support.bags import image

    return image(START, rgb)


@pytest.mark.parametrize("kind", ["zstd", "lz4"])
def test_what_is_unpacked_is_what_was_packed(kind):
    whole = np.random.default_rng(0).bytes(1_000_000)
    packed = zstd.compress(whole) if kind == "zstd" else lz4.frame.compress(whole)
    assert unpack(packed, len(whole), kind) == whole
    assert unpack(packed * 2, 2 * len(whole), kind) == whole * 2
    with pytest.raises(TooLarge, match="more than 999,999 bytes"):
        unpack(packed, len(whole) - 1, kind)
    assert unpack(b"", 0, kind) == b""
    with pytest.raises((zstd.ZstdError, RuntimeError)):
        unpack(packed[:-100], len(whole), kind)


def test_the_run_beside_a_bag_is_read_with_limits(tmp_path):
    path = write_bag(tmp_path / "bag", [task(START, "reach")])
    (path / "vla_ros_run.json").write_text(json.dumps({"policy": "vla"}))
    with Bag(path) as bag:
        assert bag.run is not None and bag.run.policy == "vla"
    (path / "vla_ros_run.json").write_text("[" * 10_000_000)
    with Bag(path) as bag:
        assert bag.run is None
