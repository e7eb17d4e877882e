"""Humble and Lyrical have everything that the package uses of ROS 2's Python packages, outside of
guarded places.

There are no wheels of either, so nothing runs here: names and signatures are compared with those
that ``package.surface.make`` took from the distros' own sources (rclpy of both; of Lyrical launch,
launch_ros and rosidl's parser and generators, too).
"""

from pathlib import Path

import pytest

from package.surface.check import Surface, lacking
from package.surface.make import ROOT, programs, write_surface

HERE = Path(__file__).resolve().parent
PROGRAM = """
import rclpy
from rclpy.node import Node
class Camera(Node):
    def __init__(self):
        super().__init__("camera")
        {line}
"""
DISTROS = ("humble", "lyrical")


@pytest.fixture(scope="module", params=DISTROS)
def surface(request):
    return Surface(HERE / "surface" / f"{request.param}.json")


@pytest.fixture(scope="module")
def lyrical():
    return Surface(HERE / "surface" / "lyrical.json")


@pytest.fixture(scope="module")
def humble():
    return Surface(HERE / "surface" / "humble.json")


def test_it_has_all_that_is_used(surface):
    if not (ROOT / "vla_ros").is_dir():
        pytest.skip("no checkout here")
    found = []
    for path in programs():
        source = path.read_text(encoding="utf-8")
        if surface.speaks_of(source):
            found += [f"{path.relative_to(ROOT)}:{what}" for what in lacking(surface, source)]
    assert found == []


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("self.add_post_set_parameters_callback(print)", "not in humble"),
        ("self.create_timer(0.1, print, autostart=False)", "no argument 'autostart'"),
        ("self.create_publisher(int, 'x')", "needs 'qos_profile'"),
        ("self.create_publisher(int, 'x', 1, 2)", "takes 3 arguments by place"),
        ("rclpy.get_nothing()", "not in humble"),
        ("from rclpy.event_handler import SubscriptionEventCallbacks", "no such name"),
        ("from rclpy.subscription import MessageInfo", "no such name"),
        ("import rclpy.experimental", "no such module"),
    ],
)
def test_a_planted_wrong_call_is_found(humble, line, why):
    (found,) = lacking(humble, PROGRAM.format(line=line))
    assert why in found


@pytest.mark.parametrize(
    "line",
    [
        "self.create_timer(0.1, print, clock=self.get_clock())",
        "self.create_subscription(int, 'x', print, 1, raw=True)",
        "rclpy.init(args=None, signal_handler_options=None)",
        "if hasattr(self, 'a'): self.add_post_set_parameters_callback(print)",
    ],
)
def test_what_humble_has_is_not_found(humble, line):
    assert lacking(humble, PROGRAM.format(line=line)) == []


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("from rclpy.qos_event import SubscriptionEventCallbacks", "no such"),
        ("rclpy.create_node('x', enable_everything=True)", "no argument 'enable_everything'"),
        ("self.create_timer(0.1, print, clocks=None)", "no argument 'clocks'"),
        ("self.declare_parameters('', [], True, 1)", "takes 3 arguments by place"),
        ("from launch.actions import OpaqueProgram", "no such name"),
        ("from launch_ros.descriptions import ParameterFiles", "no such name"),
        ("from rosidl_parser.definition import BufferType", "no such name"),
        ("from rosidl_generator_py.cli import GenerateC", "no such name"),
        ("from rosidl_adapter.msg import msg_to_idl", "no such name"),
        ("import rosidl_parser.parse", "no such module"),
    ],
)
def test_a_planted_call_that_lyrical_lacks_is_found(lyrical, line, why):
    (found,) = lacking(lyrical, PROGRAM.format(line=line))
    assert why in found


@pytest.mark.parametrize(
    "line",
    [
        "self.create_timer(0.1, print, autostart=False)",
        "from rclpy.event_handler import SubscriptionEventCallbacks",
        "from rclpy.subscription import MessageInfo",
        "self.add_post_set_parameters_callback(print)",
        "from launch_ros.actions import Node",
    ],
)
def test_what_lyrical_has_is_not_found(lyrical, line):
    assert lacking(lyrical, PROGRAM.format(line=line)) == []


GUARDED = """
try:
    from rclpy.event_handler import {first}
except ImportError:
    from rclpy.{second} import SubscriptionEventCallbacks
"""


@pytest.mark.parametrize(
    ("first", "second", "lacks"),
    [
        ("SubscriptionEventCallbacks", "nothing", []),
        ("Nothing", "event_handler", []),
        ("Nothing", "nothing", ["5: rclpy.nothing.SubscriptionEventCallbacks: no such name"]),
    ],
)
def test_of_a_guarded_import_one_way_must_work(lyrical, first, second, lacks):
    assert lacking(lyrical, GUARDED.format(first=first, second=second)) == lacks


def test_names_are_found_through_relative_imports_and_inherited_ones_through_bases(tmp_path):
    """As `launch_ros.actions.Node` and `LifecycleNode.create_timer` are."""
    package = tmp_path / "rclpy"
    package.mkdir()
    (package / "__init__.py").write_text("from .node import Node\n")
    (package / "base.py").write_text("class Base:\n    def create_timer(self, period): ...\n")
    (package / "node.py").write_text("from .base import Base\nclass Node(Base): ...\n")
    write_surface([package], "made_up", tmp_path / "made_up.json")
    made_up = Surface(tmp_path / "made_up.json")
    assert made_up.find("rclpy.Node")["class"]["bases"] == ["Base"]
    assert made_up.method("rclpy.node.Node", "create_timer")["function"]["required"] == 2
    assert made_up.method("rclpy.node.Node", "create_nothing") is None
