"""What the page says of the simulation's world, from what the bridge says of itself."""

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")
pytest.importorskip("viser", reason="viser is not installed: make view")

from diagnostic_msgs.msg import DiagnosticArray

from vla_ros.ros.nodes.bridge.convert import diagnostic_of
from vla_ros.ros.nodes.view.node import note_of
from vla_ros.sim.commands import CommandCounts
from vla_ros.sim.env import AGENTVIEW, EnvSpec, Task
from vla_ros.sim.episode import EpisodeRequest, EpisodeState, EpisodeView

NOTE = "MuJoCo 3.8.1, not LIBERO's 3.3.2: libero_object's floor is a quarter darker"


def said(node, note):
    """What `Diagnostics.publish` makes of a bridge's word."""
    task = Task("libero_object/0", "pick", 50, 280)
    request = EpisodeRequest(task.name, 0, 0, 0, "")
    view = EpisodeView(EpisodeState.RUNNING, request, "", 1, 0, 280, 20.0, CommandCounts())
    spec = EnvSpec("libero", (task,), (AGENTVIEW,), 256, world="a", note=note)
    status = diagnostic_of(view, spec)
    status.name = f"{node}: {status.name}"
    return DiagnosticArray(status=[status])


@pytest.mark.parametrize(
    ("node", "namespace", "note", "heard"),
    [
        ("bridge", "/", NOTE, NOTE),
        ("bridge", "/", "", ""),
        ("robot1/bridge", "/robot1", NOTE, NOTE),
        ("robot2/bridge", "/robot1", NOTE, None),
        ("policy", "/", NOTE, None),
    ],
)
def test_the_label_is_its_own_bridges(node, namespace, note, heard):
    assert note_of(said(node, note), namespace) == heard
