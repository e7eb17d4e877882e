"""Humble's rclpy has everything that the package uses of rclpy, outside of guarded places.

There are no wheels of Humble, so nothing runs here: names and signatures are compared, read from
Humble's own sources where they are:

    git clone --branch humble https://github.com/ros2/rclpy /tmp/rclpy
    make test TESTS=package/test_surface.py HUMBLE_RCLPY=/tmp/rclpy/rclpy/rclpy
"""

import os
from pathlib import Path

import pytest

from package.surface.check import Surface, lacking
from package.surface.make import write_surface

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parents[1] / "vla_ros"
PROGRAM = """
import rclpy
from rclpy.node import Node
class Camera(Node):
    def __init__(self):
        super().__init__("camera")
        {line}
"""


@pytest.fixture(scope="module")
def humble(tmp_path_factory):
    folder = Path(os.environ.get("HUMBLE_RCLPY", ""))
    if not (folder / "node.py").is_file():
        pytest.skip("HUMBLE_RCLPY is not set to the sources of Humble's rclpy")
    path = tmp_path_factory.mktemp("surface") / "humble.json"
    write_surface(folder, "humble", path)
    return Surface(path)


def modules():
    made = {PACKAGE / kind for kind in ("msg", "srv", "action")}
    return sorted(p for p in PACKAGE.rglob("*.py") if not made & set(p.parents))


def test_humble_has_all_that_is_used(humble):
    if not PACKAGE.is_dir():
        pytest.skip("no checkout here")
    found = []
    for path in modules():
        source = path.read_text(encoding="utf-8")
        if "rclpy" in source or "node." in source:
            found += [f"{path.relative_to(PACKAGE)}:{what}" for what in lacking(humble, source)]
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
