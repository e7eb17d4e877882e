"""Packages of ROS messages that have no wheel (control_msgs, tf2_msgs, cameras' video, MoveIt
Pro's service): the same fields.

The message of a GripperCommand's goal has a name of its own, since rosidl's generators, called
without CMake, take a message and an action of one name for the same. Fields and names are otherwise
those of the packages, so what speaks to these speaks to those.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_MEASURED = "float64 position\nfloat64 effort\nbool stalled\nbool reached_goal\n"
DEFINITIONS = {
    "control_msgs": {
        "msg/GripperPosition.msg": "float64 position\nfloat64 max_effort\n",
        "action/GripperCommand.action": (
            f"GripperPosition command\n---\n{_MEASURED}---\n{_MEASURED}"
        ),
        "action/ParallelGripperCommand.action": (
            "sensor_msgs/JointState command\n---\n"
            "sensor_msgs/JointState state\nbool stalled\nbool reached_goal\n---\n"
            "sensor_msgs/JointState state\n"
        ),
    },
    "tf2_msgs": {"msg/TFMessage.msg": "geometry_msgs/TransformStamped[] transforms\n"},
    # As its callers and servers in PickNik's public workspaces use it: the values of the constants
    # and the widths of the integers are not known, and nothing here depends on them.
    "moveit_pro_ml_msgs": {
        "srv/GetActionChunk.srv": (
            "sensor_msgs/Image[] images\nstring[] image_names\n"
            "sensor_msgs/JointState robot_state\nstring prompt\nbool new_episode\n"
            "std_msgs/Float64MultiArray previous_action_chunk\n"
            "sensor_msgs/JointState previous_anchor_state\n"
            "uint32 frozen_prefix_steps\nuint32 guidance_horizon\n---\n"
            "uint8 CHUNK_PRODUCED=1\nuint8 ERROR=2\n"
            "uint8 status\nstring message\ntrajectory_msgs/JointTrajectory chunk\n"
            "float64 native_control_period\nstd_msgs/Float64MultiArray policy_action_chunk\n"
        )
    },
    "foxglove_msgs": {
        "msg/CompressedVideo.msg": (
            "builtin_interfaces/Time timestamp\nstring frame_id\nuint8[] data\nstring format\n"
        )
    },
    "ffmpeg_image_transport_msgs": {
        "msg/FFMPEGPacket.msg": (
            "std_msgs/Header header\nint32 width\nint32 height\nstring encoding\nuint64 pts\n"
            "uint8 flags\nbool is_bigendian\nuint8[] data\n"
        )
    },
}
NEEDS = {
    "control_msgs": (
        "action_msgs",
        "builtin_interfaces",
        "sensor_msgs",
        "service_msgs",
        "std_msgs",
        "unique_identifier_msgs",
    ),
    "foxglove_msgs": ("builtin_interfaces",),
    "ffmpeg_image_transport_msgs": ("builtin_interfaces", "std_msgs"),
    "tf2_msgs": ("builtin_interfaces", "geometry_msgs", "std_msgs"),
    "moveit_pro_ml_msgs": (
        "builtin_interfaces",
        "sensor_msgs",
        "service_msgs",
        "std_msgs",
        "trajectory_msgs",
    ),
}
_SETUP = """\
import sys
sys.path.insert(0, {root!r})
from setuptools import setup
from rosidl_build import BuildInterfaces, Interfaces

class Build(BuildInterfaces):
    interfaces = Interfaces({package!r}, {needs!r})

setup(name={package!r}, packages=[], ext_modules=Build.interfaces.extensions(),
      cmdclass={{"build_ext": Build}})
"""


def where(package: str, folder: Path) -> str:
    """What to put in front of PYTHONPATH to import ``package``; "": it is installed.

    Raises LookupError, with the reason, where it can be neither found nor built.
    """
    if importlib.util.find_spec(package) is not None:
        return ""
    if importlib.util.find_spec("rosidl_generator_py") is None:
        raise LookupError(f"neither {package} nor the message generators are installed")
    if shutil.which("cc") is None:
        raise LookupError(f"{package} is not installed and there is no C compiler to build it")
    for path, text in DEFINITIONS[package].items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
    (folder / package).mkdir()
    (folder / package / "__init__.py").touch()
    setup = _SETUP.format(root=str(ROOT), package=package, needs=NEEDS[package])
    (folder / "setup.py").write_text(setup)
    libraries = Path(sysconfig.get_path("purelib")).parents[2]
    env = {**os.environ, "LDFLAGS": f"-Wl,-rpath,{libraries}"}
    build = [sys.executable, "setup.py", "build_ext", "--inplace"]
    done = subprocess.run(build, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return str(folder)
