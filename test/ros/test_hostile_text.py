"""The policy node, given a name that a terminal would obey: its log, status and diagnostics."""

from __future__ import annotations

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from diagnostic_msgs.msg import DiagnosticArray
from rcl_interfaces.msg import Log

from support.shown import EVIL, obeyed
from support.wait import wait_until
from vla_ros.ros.common import qos


def test_a_name_that_a_terminal_would_obey_is_shown(start_policy):
    rig = start_policy(policy="vla", checkpoint=f"/{EVIL}")
    log = rig.ros.inbox(Log, "/rosout", qos.LATCHED)
    diagnostics = rig.ros.inbox(DiagnosticArray, "/diagnostics", qos.REPORT)
    assert not rig.ros.change_state("/policy", "configure")
    status = rig.expect(lambda s: "refused" in s.reason)
    for text in (status.reason, status.checkpoint):
        assert "fake" in text and obeyed(text) == [] and "\n" not in text
    rig.node.wait_for_log("configure refused")
    assert [line for line in rig.node.log.splitlines() if obeyed(line)] == []
    assert "\n[FATAL] fake" not in rig.node.log

    def logged():
        return [m.msg for m in log.messages if "configure refused" in m.msg]

    text = wait_until(logged, 10.0, "the log on /rosout")[0]
    assert "fake" in text and obeyed(text) == [] and "\n[FATAL]" not in text

    def diagnosed():
        found = [one for array in diagnostics.messages for one in array.status]
        return [one for one in found if "refused" in one.message]

    found = wait_until(diagnosed, 10.0, "the diagnostics")[0]
    texts = [found.message, *(value.value for value in found.values)]
    assert [text for text in texts if obeyed(text)] == []
