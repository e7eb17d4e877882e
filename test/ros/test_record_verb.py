"""`vla-ros record` as a user runs it: where it writes, how far it is, what it wrote."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")
pytest.importorskip("rosbags", reason="rosbags is not installed")

from support.nodes import run_cli
from support.timing import bound
from vla_ros.core.types import PolicyState
from vla_ros.data.bags import Bag


@pytest.mark.long
@pytest.mark.timing
def test_it_says_where_how_much_and_at_the_end_all_of_it(start_policy, ros_env, tmp_path):
    rig = start_policy()
    rig.bring_up("reach the cube")
    rig.camera()
    rig.expect(PolicyState.RUNNING)
    bag = tmp_path / "bag"
    code, out, err = run_cli("record", "-o", str(bag), "--for", "8", env=ros_env, timeout=120.0)
    assert (code, out) == (0, "")
    first, *going, last = [line for line in err.splitlines() if not line.startswith("[")]
    assert first == f"recording: {bag}"
    figures = [re.fullmatch(r"(\d+) messages, (\d+\.\d) MB, (\d+) s", line) for line in going]
    assert len(figures) >= 2 and all(figures), err
    counts = [int(found[1]) for found in figures if found]
    assert counts == sorted(counts) and counts[-1] > 100
    end = re.fullmatch(r"(\d+) messages, (\d+\.\d) MB in (\d+) s: (.*)", last)
    assert end, last
    with Bag(bag) as whole:
        assert int(end[1]) == whole.run.written == sum(topic.count for topic in whole.topics)
    assert float(end[2]) > 0.1
    assert 8 <= int(end[3]) <= bound(quiet=12, loaded=30)
    assert end[4] == str(bag)


def test_only_flight_records_are_counted_too(ros_env, tmp_path):
    words = ("record", "--flight-only", "--flight-folder", str(tmp_path), "--for", "2")
    code, _, err = run_cli(*words, env=ros_env, timeout=120.0)
    assert code == 0
    said = [line for line in err.splitlines() if not line.startswith("[")]
    assert said[0] == f"recording: flight records only, into {tmp_path}"
    assert said[-1] == f"0 flight records: {tmp_path}"
