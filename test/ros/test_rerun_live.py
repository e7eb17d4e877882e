"""A running graph into Rerun's recording, read back with Rerun's own reader."""

from __future__ import annotations

import signal
import sys
import time

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")
pytest.importorskip("rerun", reason="rerun-sdk is not installed: pip install '.[rerun]'")

from sensor_msgs.msg import Image
from std_msgs.msg import Header, String

from support.nodes import Program
from vla_ros.msg import PolicyStatus
from vla_ros.ros.common.convert import to_time
from vla_ros.ros.common.qos import IMAGE_PUB, LATCHED

MAIN = "import sys; from vla_ros.cli.main import main; sys.exit(main())"


def test_a_running_graph_is_written_until_it_is_interrupted(ros, ros_env, tmp_path):
    from rerun.chunk import RrdReader

    status = ros.publisher(PolicyStatus, "/policy/status", LATCHED)
    status.publish(PolicyStatus(state=PolicyStatus.STATE_RUNNING, reason="said before"))
    said = ros.publisher(String, "/instruction", LATCHED)
    camera = ros.publisher(Image, "/image", IMAGE_PUB)
    out = tmp_path / "live.rrd"
    words = ["rerun", "--live", "--out", str(out)]
    program = Program("rerun", [sys.executable, "-c", MAIN, *words], ros_env)
    try:
        for topic in ("/policy/status", "/instruction", "/image"):
            program.wait_for_log(f"shows {topic}", timeout=90)
        ros.wait_for_subscriber(camera, 30)
        said.publish(String(data="push the cube"))
        began = time.monotonic()
        for i in range(20):
            header = Header(stamp=to_time((100 + i) * 10**9))
            camera.publish(Image(header=header, height=2, width=2, step=6, encoding="rgb8",
                                 data=bytes(12)))  # fmt: skip
            time.sleep(0.02)
        time.sleep(1.0)
        took = time.monotonic() - began  # 20 sleeps of a busy machine last longer than 0.4 s
        program.signal(signal.SIGINT)
        assert program.wait(30) == 0
    finally:
        program.kill()
        print(program.log)
    rows = {}
    for chunk in RrdReader(out).stream():
        if not chunk.is_static:
            rows[chunk.entity_path] = rows.get(chunk.entity_path, 0) + chunk.num_rows
    assert rows["/policy/status/state"] == 1
    assert rows["/instruction"] >= 1
    assert 1 <= rows["/image"] < 10 * took + 2  # 50 Hz came, at most 10 are shown
    assert len(RrdReader(out).blueprints()) >= 1
