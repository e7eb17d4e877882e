"""What LIBERO's world should show: the stored table and images, and what is said of others."""

import json

import numpy as np
import pytest

from vla_ros.cli import main
from vla_ros.sim.libero import expected, probe
from vla_ros.sim.libero.expected import (
    IMAGED,
    ORIGINAL,
    SIDE,
    STATES,
    ImageDifference,
    TaskReference,
)
from vla_ros.sim.versions import MUJOCO

MILK = {"milk_1": (0.1, -0.2, 0.03)}
SIZES = {"libero_10": 10, "libero_90": 90, "libero_goal": 10}
SIZES |= {"libero_object": 10, "libero_spatial": 10}


def test_the_table_has_every_task_of_the_five_suites_in_liberos_own_world():
    content = json.loads((expected.FOLDER / expected.TABLE).read_text())
    assert content["world"].startswith(f"MuJoCo {MUJOCO}, robosuite 1.4.0")
    table = expected.read_table()
    assert list(table) == [f"{suite}/{index}" for suite, n in SIZES.items() for index in range(n)]
    assert all(len(states) == len(STATES) and all(states) for states in table.values())


def test_the_tables_bowl_stands_where_the_other_probe_wants_it():
    for places in expected.read_table()[probe.BOWL_TASK]:
        bowl = np.array(places["akita_black_bowl_1"])
        apart = bowl - places["glazed_rim_porcelain_ramekin_1"]
        assert 1e3 * np.hypot(*apart[:2]) < probe.BOWL_OFF_MM
        assert 1e3 * apart[2] < probe.BOWL_HIGH_MM


def test_a_table_is_written_task_by_task(tmp_path):
    other = {"milk_1": (0.1, -0.2, 0.04), "basket_1": (0.0, 0.25, 0.0)}
    expected.write_table(tmp_path, "a", [TaskReference("x/10", (MILK, MILK), None)])
    expected.write_table(tmp_path, "b", [TaskReference("x/9", (other, MILK), None)])
    assert json.loads((tmp_path / expected.TABLE).read_text())["world"] == "b"
    table = expected.read_table(tmp_path)
    assert list(table) == ["x/9", "x/10"]
    for name, place in other.items():
        assert table["x/9"][0][name] == pytest.approx(place)
    assert expected.farthest(TaskReference("x/10", (MILK, other), None), (MILK, MILK)) == (
        float("inf"),
        "basket_1",
    )


def test_what_rests_elsewhere_is_said_with_the_worst_first():
    def seen(task, up):
        return TaskReference(task, (MILK, {"milk_1": (0.1, -0.2, 0.03 + up)}), None)

    table = {f"x/{i}": (MILK, MILK) for i in range(3)}
    ok = probe.rest("x", [seen("x/0", 0.004)], table)
    assert ok.right and "up to 4.0 mm" in ok.found and "2 states" in ok.found
    off = probe.rest("x", [seen("x/0", 0.006), seen("x/1", 0.0), seen("x/2", 0.03)], table)
    assert not off.right
    assert off.found.endswith("wrong in 2 of 3 tasks: x/2 milk_1 30.0 mm, x/0 milk_1 6.0 mm")
    assert not probe.rest("x", [], table).right  # nothing was looked at


def test_a_broken_table_is_one_line(tmp_path):
    (tmp_path / expected.TABLE).write_text("{}")
    with pytest.raises(expected.SimError, match=r"cannot read .*settled.json"):
        expected.read_table(tmp_path)


def seen_as(change):
    """The stored images, changed, as a camera of 256 pixels would have shown them."""
    stored = expected.read_images(ORIGINAL)
    assert list(stored) == list(IMAGED)
    for task, picture in stored.items():
        there = np.clip(change(task, picture.astype(int)), 0, 255).astype(np.uint8)
        yield TaskReference(task, (), there.repeat(256 // SIDE, 0).repeat(256 // SIDE, 1))


@pytest.mark.parametrize(
    ("change", "digest", "right", "words"),
    [
        (lambda task, p: p, ORIGINAL, True, "the same images"),
        (lambda task, p: p + 2, ORIGINAL, True, "the renderer draws slightly otherwise"),
        (
            lambda task, p: p - 40 * (task == "libero_object/0"),
            ORIGINAL,
            False,
            "the floor is darker: another version of MuJoCo",
        ),
        (lambda task, p: p, "0123456789ab", True, "the same images"),
        (lambda task, p: p[::-1], "0123456789ab", False, "other assets than LIBERO's own"),
        (lambda task, p: p * 0, ORIGINAL, False, "other images: another version of MuJoCo"),
    ],
)
def test_in_words_what_the_pictures_are(change, digest, right, words):
    reading = probe.images(list(seen_as(change)), digest)
    assert (reading.right, reading.found.startswith(words)) == (right, True), reading


def test_pictures_that_were_written_are_read_again(tmp_path):
    seen = list(seen_as(lambda task, p: p))
    expected.write_images(tmp_path, "abc", seen[:-1])
    assert expected.read_images("abc", tmp_path) == {}  # a strip is whole or none
    expected.write_images(tmp_path, "abc", seen)
    found = expected.read_images("abc", tmp_path)
    apart = [expected.difference(one, found[one.task]) for one in seen]
    assert apart == [ImageDifference(task, 0.0, 0.0, 0.0) for task in IMAGED]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("tasks", "--write", "x"), "--write belongs to probe and images, not to tasks"),
        (("images",), "where to? --write FILE.jpg"),
        (("setup", "--write", "x"), "--write belongs to probe and images, not to setup"),
    ],
)
def test_what_is_written_and_where_must_be_said(words, said, capsys):
    assert main.main(["libero", *words]) == 2
    assert said in capsys.readouterr().err
