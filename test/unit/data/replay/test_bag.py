"""Bags as they are found: of both formats, cut off, empty, damaged, or none at all."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3

import pytest
import yaml

pytest.importorskip(
    "rosbags", reason="rosbags is not installed: pip install '.[replay]' in the checkout"
)

from support.bags import START, T, action, film, image, picture, task, write_bag
from vla_ros.data.bags import Bag, BagError


def entries(count=40):
    return [task(START - T, "reach"), *film(count), action(START, [0.0] * 7)]


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_both_formats_as_a_folder_and_as_a_file(tmp_path, storage):
    path = write_bag(tmp_path / "bag", entries(3), storage)
    file = next(p for p in path.iterdir() if p.suffix in (".mcap", ".db3"))
    for given in (path, file):
        with Bag(given) as bag:
            assert {t.name: t.count for t in bag.topics} == {
                "/image": 3,
                "/instruction": 1,
                "/policy/action": 1,
            }
            found = list(bag.messages(["/image"]))
            assert [m.stamp_ns for m in found] == [START + i * T for i in range(3)]
            assert bag.decode(found[0]).encoding == "rgb8"
            assert bag.run is None
            assert bag.notes == []


def test_a_cut_file_is_read_up_to_the_cut(tmp_path):
    path = write_bag(tmp_path / "bag", [task(START, "reach"), *film(1500)])
    file = path / "bag.mcap"
    whole = file.stat().st_size
    with file.open("r+b") as out:
        out.truncate(whole * 2 // 3)
    (path / "metadata.yaml").unlink()  # the recorder did not come to write it
    with Bag(path) as bag:
        (topic,) = [t for t in bag.topics if t.name == "/image"]
        assert 800 < topic.count < 1000
        stamps = [m.stamp_ns for m in bag.messages(["/image"])]
        assert stamps == [START + i * T for i in range(topic.count)]
        assert "not closed properly" in bag.notes[0]


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
@pytest.mark.parametrize("name", ["{i}_run_2026_05_0{day}-10_00_00", "run_{i}"])
def test_the_files_of_a_split_bag_without_metadata_are_read_in_their_order(tmp_path, storage, name):
    """Lyrical's recorder puts the number first, those before it last; 10 comes after 9."""
    bag = tmp_path / "bag"
    bag.mkdir()
    for i in range(12):
        part = write_bag(tmp_path / f"part{i}", film(i + 1)[i:], storage)
        (file,) = (p for p in part.iterdir() if p.suffix in (".mcap", ".db3"))
        file.rename(bag / (name.format(i=i, day=1 + i // 10) + file.suffix))
    with Bag(bag) as found:
        stamps = [m.stamp_ns for m in found.messages(["/image"])]
    assert stamps == [START + i * T for i in range(12)]


def test_two_topics_of_a_cut_file_can_be_read_side_by_side(tmp_path):
    frames = film(900)
    others = film(900, topic="/wrist_image")
    both = [entry for pair in zip(frames, others, strict=True) for entry in pair]
    path = write_bag(tmp_path / "bag", both)
    file = path / "bag.mcap"
    with file.open("r+b") as out:
        out.truncate(file.stat().st_size - 100)
    with Bag(file) as bag:
        pairs = zip(bag.messages(["/image"]), bag.messages(["/wrist_image"]), strict=False)
        seen = [(a.topic, b.topic, a.stamp_ns == b.stamp_ns) for a, b in pairs]
    assert len(seen) > 800
    assert set(seen) == {("/image", "/wrist_image", True)}


def test_a_whole_folder_with_a_cut_file_is_read_too(tmp_path):
    path = write_bag(tmp_path / "bag", film(900))
    file = path / "bag.mcap"
    with file.open("r+b") as out:
        out.truncate(file.stat().st_size // 2)
    with Bag(path) as bag:
        assert 0 < bag.topics[0].count < 900


def _retold(path, old: str, new: str):
    """A bag whose metadata somebody edited."""
    write_bag(path, film(3), "sqlite3")
    told = path / "metadata.yaml"
    text = told.read_text()
    assert old in text
    told.write_text(text.replace(old, new))
    return path


def test_what_is_no_bag_is_said_in_one_line(tmp_path):
    empty = write_bag(tmp_path / "empty", [])
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    (tmp_path / "zero.mcap").touch()
    (tmp_path / "noise.mcap").write_bytes(b"\x89MCAP0\r\n" + bytes(range(256)) * 4)
    (tmp_path / "text.mcap").write_text("this is a text")
    (tmp_path / "notes.txt").write_text("x")
    cut = write_bag(tmp_path / "cut", film(50), "sqlite3") / "cut.db3"
    with cut.open("r+b") as out:
        out.truncate(5000)
    for path, said in (
        (empty, "the bag is empty"),
        (nothing, "it has no metadata.yaml"),
        (tmp_path / "zero.mcap", "the file is empty"),
        (tmp_path / "noise.mcap", "cannot be read"),
        (tmp_path / "text.mcap", "it is no MCAP file"),
        (tmp_path / "notes.txt", "no bag: give a folder"),
        (tmp_path / "missing", "there is no such bag"),
        (cut, "damaged or cut off"),
        (_retold(tmp_path / "list", "name: /image", "name: [7]"), "metadata"),
        (
            _retold(tmp_path / "words", "message_count: 3", "message_count: many"),
            "metadata is damaged",
        ),
    ):
        with pytest.raises(BagError) as caught, Bag(path) as bag:
            list(bag.messages(t.name for t in bag.topics))
        assert said in str(caught.value), path
        assert "\n" not in str(caught.value)


def test_a_message_that_is_not_what_its_type_says(tmp_path):
    from dataclasses import replace

    with Bag(write_bag(tmp_path / "bag", film(1))) as bag:
        (message,) = bag.messages(["/image"])
        with pytest.raises(BagError, match=r"is no sensor_msgs/msg/Image"):
            bag.decode(replace(message, data=message.data[:20]))


def test_rows_that_lie_in_a_databases_log_are_not_left_out(tmp_path):
    """A killed recorder's: 41 of 60 frames were ignored without a word."""
    bag = write_bag(tmp_path / "bag", film(6), "sqlite3")
    file = next(bag.glob("*.db3"))
    with contextlib.closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA wal_autocheckpoint=0")
        database.execute("UPDATE messages SET timestamp = timestamp + 1 WHERE id > 3")
        database.commit()
        left = tmp_path / "killed"
        shutil.copytree(bag, left)
    for path in (left, left / file.name):
        with pytest.raises(BagError, match=r"messages lie in .*-wal .* wal_checkpoint\(TRUNCATE\)"):
            Bag(path)
    with contextlib.closing(sqlite3.connect(left / file.name)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with Bag(left) as whole:
        assert sum(topic.count for topic in whole.topics) == 6


def test_a_part_of_a_split_bag_that_is_not_there_is_said(tmp_path):
    """metadata.yaml names it: 40 of 60 frames were replayed, status 0."""
    folder = tmp_path / "split"
    folder.mkdir()
    for number in range(3):
        frames = [image(START + (20 * number + i) * T, picture(i)) for i in range(20)]
        part = write_bag(tmp_path / f"part{number}", frames)
        shutil.copy(next(part.glob("*.mcap")), folder / f"run_{number}.mcap")
    content = yaml.safe_load((tmp_path / "part0" / "metadata.yaml").read_text())
    about = content["rosbag2_bagfile_information"]
    about["relative_file_paths"] = [f"run_{number}.mcap" for number in range(3)]
    about["message_count"] = 60
    for topic in about["topics_with_message_count"]:
        topic["message_count"] = 60
    (folder / "metadata.yaml").write_text(yaml.safe_dump(content))
    with Bag(folder) as whole:
        assert not whole.notes
    (folder / "run_1.mcap").unlink()
    lost = (
        "run_1.mcap, which metadata.yaml names, is not there: 20 of 60 messages are missing,"
        " the longest hole is 1.0 s"
    )
    with Bag(folder) as bag:
        assert bag.notes == [lost]
    cut = folder / "run_0.mcap"  # and the one before it was cut off
    cut.write_bytes(cut.read_bytes()[:-20])
    with Bag(folder) as bag:
        assert bag.notes[1:] == [lost] and "run_0.mcap was not closed properly" in bag.notes[0]
