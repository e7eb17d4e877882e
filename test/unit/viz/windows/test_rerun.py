"""A bag as Rerun's recording, read back with Rerun's own reader."""

import json
import sys

import numpy as np
import pytest

pytest.importorskip("rosbags", reason="rosbags is not installed: pip install '.[replay]'")

from support.bags import START, T, action, film, joints, task, write_bag
from vla_ros.cli.main import main
from vla_ros.data.bags import Bag
from vla_ros.viz.rerun import charts
from vla_ros.viz.scene import Numbers, ScenePose

NUMBERS = [[0.1 * i, -0.2, 0.3, 0.0, 0.1, 0.2, 1.0] for i in range(3)]
ROBOT = """<robot name="r"><link name="base_link"><visual><geometry><box size="1 2 3"/></geometry>
</visual></link></robot>"""


@pytest.fixture
def bag(tmp_path):
    entries = [*film(3), task(START, "push the cube"), task(START, ROBOT, "/robot_description")]
    entries += [action(START + i * T, row) for i, row in enumerate(NUMBERS)]
    entries += [joints(START + i * T, 0.1 * i) for i in range(3)]
    return write_bag(tmp_path / "run1", sorted(entries, key=lambda e: e.at_ns))


def columns(path, entity):
    """Every column of an entity that moves in time, with its values in order; and what stands."""
    from rerun.chunk import RrdReader

    moving, standing = {}, {}
    for chunk in RrdReader(path).stream():
        if chunk.entity_path != entity:
            continue
        batch = chunk.to_record_batch()
        into = standing if chunk.is_static else moving
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if name in ("ros_time", "recorded", "log_time"):
                column = column.cast("int64")  # nanoseconds, which datetime has not
            into.setdefault(name, []).extend(column.to_pylist())
    return moving, standing


def test_a_bag_is_read_back_by_reruns_own_reader(bag, tmp_path, capsys):
    pytest.importorskip("rerun", reason="rerun-sdk is not installed: pip install '.[rerun]'")
    from rerun.chunk import RrdReader

    assert main(["rerun", str(bag), "--json"]) == 0
    told = capsys.readouterr().out.splitlines()
    out = tmp_path / "run1.rrd"
    assert f"rerun {out}" in told[-2]
    said = json.loads(told[-1])
    assert said["file"] == str(out) and said["messages"] == 11
    entities = {chunk.entity_path for chunk in RrdReader(out).stream()}
    wanted = {"/image", "/instruction", "/joint_states", "/policy/action/numbers"}
    wanted |= {"/policy/action/age", "/policy/action/stages", "/world/robot/base_link/0"}
    assert wanted <= entities
    assert {f"/{path}" for path in said["entities"]} <= entities

    moving, standing = columns(out, "/policy/action/numbers")
    said_at = dict(zip(moving["ros_time"], moving["Scalars:scalars"], strict=True))
    assert sorted(said_at) == [START + i * T + T // 5 for i in range(3)]
    np.testing.assert_allclose([said_at[at] for at in sorted(said_at)], NUMBERS)
    assert standing["SeriesLines:names"][0][-1] == "gripper"
    moving, _ = columns(out, "/instruction")
    assert moving["TextLog:text"] == [["push the cube"]]
    moving, _ = columns(out, "/image")
    with Bag(bag) as opened:
        pixels = [opened.decode(m).data for m in opened.messages(["/image"])]
    (buffers,) = [v for name, v in moving.items() if name.endswith("buffer")]
    assert [bytes(one[0]) for one in buffers] == [bytes(one) for one in pixels]
    assert len(RrdReader(out).blueprints()) == 1


def test_bad_input_is_one_line_and_leaves_nothing_behind(bag, tmp_path, capsys):
    pytest.importorskip("rerun", reason="rerun-sdk is not installed: pip install '.[rerun]'")
    empty = write_bag(tmp_path / "none", [])
    for words, reason in (
        ([str(tmp_path / "nothing")], "there is no such bag"),
        ([str(empty)], "the bag is empty"),
        ([str(bag), "--out", str(tmp_path / "x.mcap")], "must be called something.rrd"),
        ([str(bag), "--out", str(tmp_path / "no" / "x.rrd")], "is no folder"),
        ([str(bag), "--jpeg", "101"], "--jpeg 101"),
    ):
        assert main(["rerun", *words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert reason in line
    assert {path.name for path in tmp_path.iterdir()} == {"run1", "none"}


def test_without_the_sdk_one_line_says_what_to_install(bag, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "rerun", None)
    assert main(["rerun", str(bag)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "rerun-sdk is missing" in line and "pip install '.[rerun]'" in line
    assert not (tmp_path / "run1.rrd").exists()


def test_charts_are_made_of_what_there_is():
    kinds = {"left/policy/action/numbers": Numbers, "policy/action/age": Numbers, "age": ScenePose}
    kinds["policy/status/limit"] = Numbers
    assert charts(kinds) == {
        "Age and staleness [s]": ["policy/action/age", "policy/status/limit"],
        "Action": ["left/policy/action/numbers"],
    }


def test_options_that_exclude_each_other_are_refused_before_anything_starts(bag, tmp_path, capsys):
    out = str(tmp_path / "x.rrd")
    for words, reason in (
        ([], "give a BAG, or --live"),
        ([str(bag), "--live"], "give a BAG, or --live"),
        ([str(bag), "--connect", "rerun+http://a:1/proxy"], "--connect goes with --live"),
        (["--live", "--jpeg", "-1"], "--jpeg -1"),
        (["--live", "--json"], "no --open, --web or --json"),
        (["--live", "--out", out, "--connect", "rerun+http://a:1/proxy"], "--live either shows"),
        (["--live", "--out", str(tmp_path / "x.bag")], "must be called something.rrd"),
    ):
        assert main(["rerun", *words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert reason in line
