"""Recording, without ROS: whatever happens to the disk or the process, what is there is read."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip(
    "rosbags", reason="rosbags is not installed: pip install '.[replay]' in the checkout"
)

from rosbags.rosbag2 import Reader

from support.bags import STORE, picture, task
from support.bags import image as frame
from support.timing import judge
from support.wait import wait_until
from vla_ros.core.clock import SECOND, ManualClock, SystemClock
from vla_ros.data.bag_writer import MB, BagFile, BagSink, Record, SinkLimits, Topic
from vla_ros.data.bags import Bag, BagError
from vla_ros.data.flight_recorder import FlightLimits, FlightRecorder, MessageRing
from vla_ros.data.run_info import RunInfo

IMAGE = Topic("/image", "sensor_msgs/msg/Image")
TASK = Topic("/instruction", "std_msgs/msg/String", latched=True)
ZSTD = b"\x28\xb5\x2f\xfd"  # how its frames begin
LIMITS = SinkLimits(free_bytes=0, flush_s=0.1)

RECORDER = """
import os, sys, time
from pathlib import Path
from vla_ros.core.clock import SystemClock
from vla_ros.data.bag_writer import BagFile, BagSink, Record, SinkLimits, Topic
from vla_ros.data.run_info import RunInfo

def warn(text):
    print("warning:", text, flush=True)

limits = SinkLimits(free_bytes=0, flush_s=0.1)
sink = BagSink(Path(sys.argv[1]), RunInfo(policy="vla"), limits, SystemClock(), warn)
topic = Topic("/image", "sensor_msgs/msg/Image")
longest = 0.0
for i in range(int(sys.argv[2])):
    data = os.urandom(20_000)  # nothing makes this smaller
    began = time.monotonic()
    sink.put(Record(topic, (i + 1) * 10_000_000, data))
    longest = max(longest, time.monotonic() - began)
    if i % 50 == 49:
        print("put", i + 1, flush=True)
    time.sleep(0.002)
sink.close()
print("ended", sink.written, sink.dropped, f"{longest:.4f}", sink.ended, flush=True)
"""


def record(i, data=None):
    content = frame(i, picture(i)).content
    raw = data or bytes(STORE.serialize_cdr(content, IMAGE.kind))
    return Record(IMAGE, i, raw)


def plain(i):
    """An image as a simulation gives it: large areas of one color."""
    rgb = np.zeros((128, 128, 3), np.uint8)
    rgb[i : 2 * i] = i
    return frame(i, rgb).content


def recorder(path: Path, count: int, limit: int | None = None) -> subprocess.Popen[str]:
    import resource

    def limited() -> None:
        if limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    command = [sys.executable, "-c", RECORDER, str(path), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=limited)


def test_a_finished_bag_says_what_it_is_of(tmp_path):
    run = RunInfo(policy="vla", checkpoint_sha256="abc", parameters={"policy": {"seed": 3}})
    sink = BagSink(tmp_path / "bag", RunInfo(), LIMITS, SystemClock(), print)
    for i in range(1, 11):
        sink.put(record(i))
    sink.set_run(run)
    assert sink.close()
    with Bag(tmp_path / "bag") as bag:
        assert [m.stamp_ns for m in bag.messages(["/image"])] == list(range(1, 11))
        assert (bag.run.policy, bag.run.checkpoint_sha256) == ("vla", "abc")
        assert bag.run.parameters["policy"]["seed"] == 3
        assert (bag.run.written, bag.run.dropped, bag.run.ended) == (10, 0, "asked")
        assert bag.notes == []
    with pytest.raises(FileExistsError, match="overwrites nothing"):
        BagSink(tmp_path / "bag", run, LIMITS, SystemClock(), print)


def test_a_bag_is_its_owners_alone_at_every_moment(tmp_path):
    before = os.umask(0o022)  # with which everything else is everybody's
    try:
        bag = BagFile(tmp_path / "new" / "bag", RunInfo())
        begun = modes(bag.path)
        bag.write(record(1))
        bag.close()
        (tmp_path / "other").touch()
    finally:
        os.umask(before)
    assert begun == {"": 0o700, "bag.mcap": 0o600, "vla_ros_run.json": 0o600}
    assert modes(bag.path) == {**begun, "metadata.yaml": 0o600}
    assert modes(tmp_path)["other"] == 0o644


def modes(folder):
    found = {"": folder, **{path.name: path for path in folder.iterdir()}}
    return {name: stat.S_IMODE(path.stat().st_mode) for name, path in found.items()}


def test_a_bag_is_compressed_chunk_by_chunk_and_gives_back_every_byte(tmp_path):
    sink = BagSink(tmp_path / "bag", RunInfo(), LIMITS, SystemClock(), print)
    flat = [record(i, data=bytes(STORE.serialize_cdr(plain(i), IMAGE.kind))) for i in range(1, 9)]
    noise = [record(i) for i in range(9, 12)]  # which nothing can make smaller
    for one in (*flat, *noise):
        sink.put(one)
    assert sink.close()
    raw = sum(len(one.data) for one in (*flat, *noise))
    assert (tmp_path / "bag" / "bag.mcap").stat().st_size < 0.2 * raw
    with Reader(
        tmp_path / "bag" / "bag.mcap"
    ) as reader:  # somebody else's, who knows nothing of us
        assert {chunk.compression for chunk in reader.storage.chunks} == {"zstd"}
        assert [data for _, _, data in reader.messages()] == [r.data for r in (*flat, *noise)]
    with Bag(tmp_path / "bag") as bag:
        assert [m.data for m in bag.messages(["/image"])] == [r.data for r in (*flat, *noise)]


@pytest.mark.parametrize("share", [0.12, 0.3, 0.5, 0.77, 0.99])
def test_a_compressed_bag_is_read_up_to_any_cut(tmp_path, share):
    bag = BagFile(tmp_path / "bag", RunInfo())
    data = {i: np.random.default_rng(i).bytes(20_000) for i in range(1, 81)}
    for i in data:
        bag.write(record(i, data=data[i]))
        if i % 8 == 0:
            bag.flush()
    bag.abandon()
    file = tmp_path / "bag" / "bag.mcap"
    whole = file.stat().st_size
    os.truncate(file, round(whole * share))
    with Bag(tmp_path / "bag") as left:
        found = list(left.messages(["/image"]))
        assert [m.stamp_ns for m in found] == list(range(1, len(found) + 1))
        assert len(found) % 8 == 0
        assert 80 * share - 8 <= len(found) <= 80 * share
        assert all(m.data == data[m.stamp_ns] for m in found)
        assert "not closed properly" in left.notes[0]


def damaged(path: Path, finished: bool) -> Path:
    """A bag of five chunks of eight messages; a byte of the second chunk fell over."""
    bag = BagFile(path, RunInfo())
    for i in range(1, 41):
        bag.write(record(i, data=bytes(STORE.serialize_cdr(plain(i), IMAGE.kind))))
        if i % 8 == 0:
            bag.flush()
    bag.close() if finished else bag.abandon()
    file = path / f"{path.name}.mcap"
    content = bytearray(file.read_bytes())
    begin = content.index(ZSTD)
    content[content.index(ZSTD, begin + 1) + 40] ^= 0x10
    file.write_bytes(content)
    return path


def test_a_damaged_chunk_of_a_whole_bag_is_one_line(tmp_path):
    with (
        pytest.raises(BagError, match="damaged") as caught,
        Bag(damaged(tmp_path / "b", True)) as b,
    ):
        list(b.messages(["/image"]))
    assert "\n" not in str(caught.value)


def test_a_bag_that_nobody_closed_is_read_up_to_a_damaged_chunk(tmp_path):
    """What a power cut leaves: the file is long enough, and the disk has not what it should."""
    with Bag(damaged(tmp_path / "bag", finished=False)) as left:
        assert [m.stamp_ns for m in left.messages(["/image"])] == list(range(1, 9))
        assert "8 messages" in left.notes[0]


def test_a_killed_recorder_leaves_a_bag_that_lacks_its_last_moment_only(tmp_path):
    process = recorder(tmp_path / "bag", 100_000)
    put = 0
    for line in process.stdout:
        put = int(line.split()[1])
        if put >= 250:
            break
    time.sleep(0.3)  # three times the flush period
    process.kill()
    process.wait()
    with Bag(tmp_path / "bag") as bag:
        stamps = [m.stamp_ns for m in bag.messages(["/image"])]
        assert len(stamps) >= put
        assert stamps == [10_000_000 * (i + 1) for i in range(len(stamps))]
        assert "not closed properly" in bag.notes[0]
        assert bag.run.policy == "vla"


def test_a_full_disk_costs_messages_and_nothing_else(tmp_path):
    process = recorder(tmp_path / "bag", 400, limit=3 * MB)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    lines = out.splitlines()
    assert any("recording ended: OSError: [Errno 27]" in line for line in lines)
    _, written, dropped, longest, *_ = lines[-1].split()
    assert int(dropped) > 100
    assert int(written) + int(dropped) <= 400
    assert float(longest) < 0.1
    with Bag(tmp_path / "bag") as bag:
        count = sum(1 for _ in bag.messages(["/image"]))
        assert 50 < count <= int(written)


def test_a_disk_that_is_getting_full_ends_the_bag_properly(tmp_path):
    said = []
    limits = SinkLimits(free_bytes=1 << 60, flush_s=0.05)
    sink = BagSink(tmp_path / "bag", RunInfo(), limits, SystemClock(), said.append)
    sink.put(record(1))
    wait_until(lambda: sink.ended and not sink._thread.is_alive(), 5.0, "the end of the bag")
    sink.put(record(2))
    sink.close()
    assert (sink.written, sink.dropped) == (1, 1)
    assert "MB left on the disk" in said[0]
    with Bag(tmp_path / "bag") as bag:
        assert bag.notes == []
        assert "MB left on the disk" in bag.run.ended


def test_a_full_queue_leaves_out_and_counts_and_warns_once_a_second(tmp_path):
    said = []
    clock = ManualClock()
    limits = SinkLimits(queue_bytes=10_000, free_bytes=0)
    sink = BagSink(tmp_path / "bag", RunInfo(), limits, clock, said.append)
    for _ in range(5):
        sink.put(record(1, data=bytes(20_000)))
    assert (sink.dropped, len(said)) == (5, 1)
    clock.advance(1.1)
    sink.put(record(1, data=bytes(20_000)))
    assert said[-1].startswith("6 messages not recorded so far: the disk is slower")
    sink.close()
    assert sink.written == 0


def test_the_ring_keeps_the_last_seconds_and_the_task():
    ring = MessageRing(10.0, 10 * MB)
    given = Record(TASK, 0, b"task")
    ring.add(0, given)
    for i in range(1, 31):
        ring.add(i * SECOND, record(i, data=bytes(10)))
    kept = ring.records()
    assert kept[0] is given
    assert [r.stamp_ns for r in kept[1:]] == list(range(20, 31))
    small = MessageRing(10.0, 25)
    for i in range(5):
        small.add(i, record(i, data=bytes(10)))
    assert [r.stamp_ns for r in small.records()] == [3, 4]
    assert small.cut_short == 3


def test_every_event_becomes_a_bag_of_its_seconds(tmp_path):
    clock, said = ManualClock(), []
    limits = FlightLimits(seconds=2.0, after_s=0.5, bags=2)
    recorder = FlightRecorder(tmp_path, limits, clock, said.append)
    content = task(1, "reach").content
    recorder.add(Record(TASK, 1, bytes(STORE.serialize_cdr(content, TASK.kind))))
    for i in range(100):
        clock.advance(0.1)
        recorder.add(record(i + 2))
        if i == 50:
            recorder.trigger("hold", RunInfo(reason="hold: too old"))
        recorder.poll()
    recorder.trigger("fault", RunInfo())
    assert recorder.finish(10.0)
    first, second = sorted(tmp_path.iterdir())
    assert first.name.endswith("_hold")
    assert second.name.endswith("_fault")
    with Bag(first) as bag:
        stamps = [m.stamp_ns for m in bag.messages(["/image"])]
        assert stamps[0] == 52 - 20
        assert stamps[-1] == 52 + 5
        assert bag.run.reason == "hold: too old"
        assert [t.name for t in bag.topics] == ["/image", "/instruction"]


def test_a_hold_that_comes_and_goes_is_one_record_until_it_has_stayed_away(tmp_path):
    clock = ManualClock()
    limits = FlightLimits(seconds=10.0, after_s=1.0)
    recorder = FlightRecorder(tmp_path, limits, clock, lambda line: None)
    for i in range(10 * 25):  # 25 s, a HOLD each of them
        clock.advance(0.1)
        recorder.add(record(i + 2))
        if i % 10 == 0:
            recorder.trigger("hold", RunInfo(reason="hold: too old"))
        recorder.poll()
    recorder.trigger("fault", RunInfo())
    clock.advance(11.0)
    recorder.add(record(900))
    recorder.trigger("hold", RunInfo())
    assert recorder.finish(10.0)
    names = [path.name.rpartition("_")[2] for path in sorted(tmp_path.iterdir())]
    assert names == ["hold", "fault", "hold"]
    assert (recorder.bags, recorder.repeated) == (3, 24)


@pytest.mark.parametrize("limit", [{"bags": 3}, {"disk_bytes": 3_900_000}])
def test_the_oldest_flight_records_go(tmp_path, limit):
    """By number and by bytes, those of an earlier run too; what is no flight record stays."""
    clock, said = ManualClock(), []
    (tmp_path / "notes").mkdir()
    for run in range(2):
        limits = FlightLimits(seconds=2.0, after_s=0.0, **limit)
        recorder = FlightRecorder(tmp_path, limits, clock, said.append)
        recorder.add(record(1, data=os.urandom(1_000_000)))
        for number in range(4):
            clock.advance(0.1)
            recorder.trigger(f"hold{run}{number}", RunInfo())
            assert recorder.finish(10.0)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert [name.rsplit("_")[-1] for name in left] == ["hold11", "hold12", "hold13", "notes"]
    assert sum("taken away" in line for line in said) == 5


def test_a_slow_disk_costs_the_last_messages_and_not_the_index(tmp_path, monkeypatch):
    """The real writer, on a disk that takes 50 ms a message: 100 wait when the end comes."""
    write = BagFile.write

    def slow(self, record):
        time.sleep(0.05)
        write(self, record)

    monkeypatch.setattr(BagFile, "write", slow)
    said = []
    sink = BagSink(tmp_path / "bag", RunInfo(), LIMITS, SystemClock(), said.append)
    for number in range(100):
        sink.put(record(number + 1))
    began = time.monotonic()
    assert sink.close(2.0), "in time"
    judge("closed, of 2 s that it may take", time.monotonic() - began, quiet=2.0, loaded=6.0)
    assert sink.written + sink.dropped == 100 and 1 <= sink.written <= 40
    assert said == [f"{sink.dropped} messages left out at the end: the disk is too slow for them"]
    with Bag(tmp_path / "bag") as bag:
        assert not bag.notes, "closed properly"
        assert len(list(bag.messages(["/image"]))) == sink.written
        assert (bag.run.dropped, bag.run.ended) == (sink.dropped, "asked")


def test_a_flight_record_that_the_disk_does_not_take_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(BagFile, "close", lambda self: time.sleep(1.0))
    recorder = FlightRecorder(tmp_path, FlightLimits(), SystemClock(), lambda _: None)
    recorder.trigger("hold", RunInfo())
    assert not recorder.finish(0.2)
    assert recorder.finish(5.0)
