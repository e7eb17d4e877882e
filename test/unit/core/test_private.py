"""What lies in the temporary folder, where every user of the machine may prepare what we find."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from vla_ros.core.private import open_lock, owner_only, temporary_folder


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder of all users; nobody has a runtime folder."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_the_folder_is_ours_and_is_found_again(shared, capfd):
    found = temporary_folder("locks")
    assert found == shared / f"locks_{os.getuid()}" == temporary_folder("locks")
    assert mode(found) == 0o700 and not capfd.readouterr().err


def link_to_a_folder(path: Path) -> None:
    (path.parent / "elsewhere").mkdir(mode=0o700)
    path.symlink_to("elsewhere")


def open_to_all(path: Path) -> None:
    path.mkdir()
    path.chmod(0o755)


def anothers(path: Path) -> None:
    if os.getuid():
        pytest.skip("only root can make a folder of another user's")
    path.mkdir(mode=0o700)
    os.chown(path, 12345, 12345)


PREPARED = {
    "a link": link_to_a_folder,
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "open to all": open_to_all,
    "a file": Path.touch,
    "another's": anothers,
}


@pytest.mark.parametrize("kind", PREPARED)
def test_a_folder_that_somebody_prepared_is_not_used(shared, kind, capfd, monkeypatch):
    PREPARED[kind](shared / f"locks_{os.getuid()}")
    found = temporary_folder("locks")
    told = capfd.readouterr().err
    assert temporary_folder("locks") == found and not capfd.readouterr().err
    assert found.parent == shared and found.name.startswith("locks_") and mode(found) == 0o700
    assert not found.is_symlink() and found != shared / f"locks_{os.getuid()}"
    assert told.count("\n") == 1 and str(found) in told
    runtime = shared.parent / "run"
    runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    assert temporary_folder("locks") == runtime / "locks" == temporary_folder("locks")
    assert not capfd.readouterr().err


def test_a_lock_follows_no_link_and_empties_nothing(tmp_path):
    victim = tmp_path / "victim.txt"
    victim.write_text("precious\n")
    (tmp_path / "1").symlink_to(victim)
    os.mkfifo(tmp_path / "2")
    (tmp_path / "3").mkdir()
    (tmp_path / "4").write_text("kept")
    for name in ("1", "2", "3"):
        with pytest.raises(OSError):
            open_lock(tmp_path / name)
    os.close(open_lock(tmp_path / "4"))
    os.close(open_lock(tmp_path / "5"))
    assert victim.read_text() == "precious\n" and (tmp_path / "4").read_text() == "kept"
    assert mode(tmp_path / "5") == 0o600


def test_threads_that_write_side_by_side_leave_the_mask_as_it_was(tmp_path):
    def write(number: int) -> int:
        with owner_only():
            (tmp_path / str(number)).touch()
        return mode(tmp_path / str(number))

    before = os.umask(0o022)
    try:
        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(write, range(400))) == {0o600}
    finally:
        assert os.umask(before) == 0o022


def test_what_is_private_is_so_from_its_first_moment(tmp_path):
    before = os.umask(0o022)
    try:
        with owner_only():
            (tmp_path / "folder").mkdir()
            (tmp_path / "folder" / "file").touch()
        (tmp_path / "after").touch()
    finally:
        os.umask(before)
    assert mode(tmp_path / "folder") == 0o700 and mode(tmp_path / "folder" / "file") == 0o600
    assert mode(tmp_path / "after") == 0o644
