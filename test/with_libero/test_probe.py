"""The world is the one that LIBERO's published figures belong to, and `libero probe` says so."""

import json
import os
import subprocess
import sys

import numpy as np
import PIL.Image
import pytest

from vla_ros.cli import main
from vla_ros.sim.libero import expected, probe

# Fifty resets and five tasks to build, on a busy machine.
pytestmark = [pytest.mark.timeout(420), pytest.mark.long]


@pytest.fixture(scope="module")
def probed():
    """`vla-ros libero probe --json`: its exit status, its lines, and what the last one holds."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-m", "vla_ros", "libero", "probe", "--json"],
        env=environ,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=400,
    )
    assert done.stdout, done.stderr
    *lines, last = done.stdout.splitlines()
    return done.returncode, lines, json.loads(last)


def test_the_bowl_stands_on_the_ramekin_in_every_initial_state(probed):
    """From MuJoCo 3.4.0 on it stands on the rim and tips over."""
    reading = probed[2]["readings"][0]
    assert reading["task"] == "libero_spatial/5"
    assert "wrong in 0 of 50 initial states" in reading["found"]
    assert reading["right"], reading


def test_the_floor_is_as_bright_as_its_texture(probed):
    """From MuJoCo 3.3.3 on it is darker by a third."""
    reading = probed[2]["readings"][1]
    assert reading["task"] == "libero_object/0"
    assert reading["right"], reading


def test_the_probe_says_that_it_is_the_right_world(probed):
    status, lines, content = probed
    assert (status, content["right"]) == (0, True), lines
    assert lines[0].startswith("world MuJoCo 3.3.2, robosuite 1.4.0, LIBERO assets ")
    assert [line.split()[0] for line in lines[1:]] == ["ok", "ok", "ok", "ok", "the"]


def test_things_rest_where_the_table_has_them(probed):
    reading = probed[2]["readings"][2]
    assert reading["right"] and "10 states" in reading["found"], reading


def test_the_pictures_are_those_of_these_assets(probed):
    """Of the subset for tests too: its placeholders have a strip of their own."""
    reading = probed[2]["readings"][3]
    assert reading["right"], reading


TASKS = ("libero_spatial/8", "libero_object/3", "libero_goal/7", "libero_10/4")


@pytest.fixture(scope="module")
def env(start):
    return start("")


@pytest.fixture(scope="module")
def settled(env):
    return [expected.observe(env, task, imaged=False) for task in TASKS]


def test_the_table_holds_for_other_tasks_too(settled):
    reading = probe.rest("some", settled, expected.read_table())
    assert reading.right, reading


def test_a_thing_that_rests_elsewhere_is_named(settled):
    """In the world itself nothing can be moved: the table is told otherwise."""
    table = expected.read_table()
    first, second = table[TASKS[1]]
    x, y, z = second["alphabet_soup_1"]
    table[TASKS[1]] = (first, {**second, "alphabet_soup_1": (x, y + 0.012, z)})
    reading = probe.rest("some", settled, table)
    assert not reading.right
    assert "wrong in 1 of 4 tasks: libero_object/3 alphabet_soup_1 12.0 mm" in reading.found


def test_a_picture_of_a_task_as_both_cameras_see_it(env, settled, tmp_path):
    expected.draw(env, TASKS[-1:], tmp_path / "seen.png")
    with PIL.Image.open(tmp_path / "seen.png") as picture:
        shown = np.asarray(picture)
    assert shown.shape == (20 + 2 * 64, 64, 3)
    images = env.reset(TASKS[-1], 0).images
    assert np.array_equal(shown[20:84], images["agentview"])
    assert np.array_equal(shown[84:], images["wrist"])


def test_another_world_is_an_exit_status_of_its_own(monkeypatch, capsys):
    """No image is brighter than white: with that limit this world is another."""
    monkeypatch.setattr(probe, "FLOOR_LEVEL", 255.0)
    monkeypatch.setattr(probe, "readings", lambda env, *_: iter([_floor(env)]))
    assert main.main(["libero", "probe"]) == 1
    _, first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("WRONG libero_object/0")
    assert last.startswith("another world: ")


def _floor(env):
    return probe.floor(env.reset(probe.FLOOR_TASK, 0).images["agentview"])


@pytest.mark.parametrize("suite", ["libero_spatial", "libero_object"])
def test_the_versions_are_said(start, suite):
    said = start(suite).spec.world
    assert "MuJoCo 3.3.2, robosuite 1.4.0, LIBERO assets " in said
