"""`vla-ros doctor --clean` removes only what nobody uses."""

import fcntl
import mmap
import os
import uuid

import pytest

from vla_ros.ros.bringup.environment import find_leftovers, foreign_segments, remove

# What a living process maps is told by its name: these must be nobody's, and no other test's.
_OWN = uuid.uuid4().int
SEGMENT = f"fastdds_{_OWN % 16**16:016x}"
PORT = f"fastdds_port{_OWN % 10**12}"


@pytest.fixture
def folder(tmp_path):
    for name in (SEGMENT, f"{SEGMENT}_el", PORT, f"sem.{PORT}_mutex"):
        (tmp_path / name).write_bytes(b"x" * 5000)
    for name in ("sem.other", "pulse-shm-1", "fastdds_notes.txt", "my_fastdds_port7411"):
        (tmp_path / name).touch()
    return tmp_path


def names(folder, **options):
    return [item.name for item in find_leftovers(folder, min_age_s=0.0, **options)]


def test_what_nobody_holds_is_removed_and_nothing_else(folder):
    found = find_leftovers(folder, min_age_s=0.0)
    assert [item.name for item in found] == [SEGMENT, PORT]
    assert remove(found) >= 4 * 4096
    left = {path.name for path in folder.iterdir()}
    assert left == {"sem.other", "pulse-shm-1", "fastdds_notes.txt", "my_fastdds_port7411"}


def test_a_segment_whose_lock_is_held_stays(folder):
    with (folder / f"{SEGMENT}_el").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert names(folder) == [PORT]
    assert SEGMENT in names(folder)


def test_a_mapped_segment_stays(folder):
    with (folder / PORT).open("r+b") as file, mmap.mmap(file.fileno(), 0):
        assert names(folder) == [SEGMENT]


def test_a_young_segment_stays(folder):
    assert find_leftovers(folder, min_age_s=60.0) == []


def test_a_missing_folder_has_no_leftovers(tmp_path):
    assert find_leftovers(tmp_path / "none") == []


def test_files_that_vanish_meanwhile_are_no_error(folder):
    found = find_leftovers(folder, min_age_s=0.0)
    remove(found)
    assert remove(found) >= 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make another user's files")
def test_another_user_s_segments_are_counted_and_never_removed(tmp_path):
    for name in ("fastdds_00000000000000aa", "fastdds_00000000000000aa_el", "fastdds_port7411"):
        (tmp_path / name).write_bytes(b"x")
        os.chown(tmp_path / name, 12345, 12345)
    (tmp_path / "fastdds_00000000000000bb").write_bytes(b"x")
    assert foreign_segments(tmp_path) == {12345: 1}
    assert [one.name for one in find_leftovers(tmp_path, min_age_s=0.0)] == [
        "fastdds_00000000000000bb"
    ]
