"""What world a simulation is: said in one place, asked for everywhere, another one is named."""

from pathlib import Path

import pytest

from vla_ros.sim.versions import MUJOCO, mujoco_note

ROOT = Path(__file__).resolve().parents[3]
LOCKS = sorted((ROOT / "requirements").glob("lock-*.txt"))


@pytest.mark.skipif(not LOCKS, reason="no checkout here")
def test_setup_and_every_lock_ask_for_liberos_own_mujoco():
    assert f'"mujoco=={MUJOCO}"' in (ROOT / "setup.py").read_text()
    for path in (*LOCKS, ROOT / "requirements" / "pins.txt"):
        assert f"\nmujoco=={MUJOCO}" in path.read_text(), path.name


@pytest.mark.parametrize(
    ("found", "floor", "bowl"),
    [("3.3.3", True, False), ("3.3.7", True, False), ("3.4.0", True, True), ("3.8.1", True, True)],
)
def test_another_mujoco_is_said_with_the_suites_that_it_changes(found, floor, bowl):
    note = mujoco_note(found)
    assert note.startswith(f"MuJoCo {found}, not LIBERO's {MUJOCO}: ")
    assert ("libero_object" in note, "libero_spatial/5" in note) == (floor, bowl)


def test_liberos_own_needs_no_note_and_an_older_one_is_not_called_equal():
    assert mujoco_note(MUJOCO) == ""
    assert mujoco_note("3.1.0").endswith("not compared")
