"""Bags as people hand them over: packed, without their metadata, of ROS 1."""

from __future__ import annotations

import shutil

import pytest

pytest.importorskip("rosbags", reason="rosbags is not installed: pip install '.[replay]'")

from support.bags import film, write_bag
from vla_ros.data.bags import Bag, BagError


def count(path):
    with Bag(path) as bag:
        return sum(1 for message in bag.messages(["/image"]) if bag.decode(message).width == 32)


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_a_file_that_was_packed_whole_is_read_alone_and_in_a_folder_without_metadata(
    tmp_path, storage
):
    path = write_bag(tmp_path / "bag", film(5), storage, compressed="file")
    (file,) = path.glob("*.zstd")
    assert count(path) == count(file) == 5
    (path / "metadata.yaml").unlink()
    assert count(path) == 5
    data = file.read_bytes()
    for broken in (data[: len(data) // 2], b"not zstd at all"):
        file.write_bytes(broken)
        with pytest.raises(BagError, match=r"cannot be unpacked|cannot be read|damaged"):
            count(file)


@pytest.mark.parametrize("storage", ["sqlite3"])
def test_packed_messages_are_read_without_the_metadata_that_says_so(tmp_path, storage):
    path = write_bag(tmp_path / "bag", film(5), storage, compressed="message")
    assert count(path) == 5
    (path / "metadata.yaml").unlink()
    assert count(path) == 5
    (file,) = path.glob("*.db3")
    assert count(file) == 5


def test_a_bag_of_ros_1_is_named_with_the_command_that_converts_it(tmp_path):
    file = tmp_path / "old" / "run.bag"
    file.parent.mkdir()
    file.write_bytes(b"#ROSBAG V2.0\n")
    for path in (file, file.parent):
        with pytest.raises(BagError, match="it is of ROS 1: `rosbags-convert --src") as caught:
            Bag(path)
        assert str(file) in str(caught.value)
    shutil.rmtree(file.parent)


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
@pytest.mark.parametrize("change", ["renamed", "without its storage"])
def test_a_bag_whose_metadata_fit_no_more_is_read_by_its_files(tmp_path, storage, change):
    """A file renamed by hand; a reindexed bag (rosbag2#2175): nothing of either is missing."""
    path = write_bag(tmp_path / "bag", film(5), storage)
    about = path / "metadata.yaml"
    if change == "renamed":
        (file,) = [one for one in path.iterdir() if one != about]
        file.rename(path / f"arm_test_0{file.suffix}")
    else:
        text = about.read_text()
        assert f"storage_identifier: {storage}" in text
        about.write_text(text.replace(f"storage_identifier: {storage}", 'storage_identifier: ""'))
    assert count(path) == 5
    with Bag(path) as bag:
        assert not bag.notes
