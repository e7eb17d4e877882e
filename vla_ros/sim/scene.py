"""The tabletop as an MJCF model: a Panda of primitive shapes, four cubes, a plate, two cameras.

World frame: x away from the robot, y to the right in the agentview image, z up, the origin
on the table top. The arm's kinematics are those of the public Franka Panda description
(modified Denavit-Hartenberg); its shapes are capsules and boxes and collide with nothing,
only the hand does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from vla_ros.sim.env import FINGERS

if TYPE_CHECKING:
    import mujoco

CUBE_COLORS: Final[Mapping[str, str]] = {
    "red": ".82 .08 .08 1",
    "green": ".08 .60 .16 1",
    "blue": ".08 .22 .82 1",
    "yellow": ".98 .82 .08 1",
}
CUBE_HALF: Final = 0.021  # half the edge of a cube, m
PLATE_XY: Final = (0.10, 0.24)
PLATE_TOP: Final = 0.009  # height of the plate's surface, m
PLATE_RADIUS: Final = 0.075

ARM_JOINTS: Final = tuple(f"joint{i}" for i in range(1, 8))
FINGER_TRAVEL: Final = 0.04  # m, each finger
HOME: Final = (0.0, 0.1961, 0.0, -2.196, 0.0, 2.4456, 0.785)  # rad, hand over the table
GRIP_SITE: Final = "grip"
BASE: Final = "base_link"
TIMESTEP: Final = 0.002

_ROT_X = "0.70710678 0.70710678 0 0"
_ROT_MX = "0.70710678 -0.70710678 0 0"
#: per joint: position and orientation of its frame, range [rad], damping, torque limit [Nm]
_LINKS = (
    ("0 0 0.333", "1 0 0 0", "-2.8973 2.8973", 0.1, 80),
    ("0 0 0", _ROT_MX, "-1.7628 1.7628", 0.1, 80),
    ("0 -0.316 0", _ROT_X, "-2.8973 2.8973", 0.1, 80),
    ("0.0825 0 0", _ROT_X, "-3.0718 -0.0698", 0.1, 80),
    ("-0.0825 0.384 0", _ROT_MX, "-2.8973 2.8973", 0.1, 80),
    ("0 0 0", _ROT_X, "-0.0175 3.7525", 0.01, 12),
    ("0.088 0 0", _ROT_X, "-2.8973 2.8973", 0.01, 12),
)
#: per link: its capsules (and one cylinder) as "type fromto radius mass"
_SHAPES: tuple[tuple[tuple[str, str, float, float], ...], ...] = (
    (("capsule", "0 0 -.19 0 0 0", 0.060, 3.0),),
    (("capsule", "0 0 -.05 0 0 .05", 0.060, 3.0),),
    (("capsule", "0 0 -.2 0 0 -.05", 0.055, 2.5), ("capsule", "0 0 -.05 .08 0 0", 0.050, 0.5)),
    (("capsule", "0 0 -.05 0 0 .05", 0.055, 2.0),),
    (("capsule", "0 0 -.3 0 0 -.05", 0.045, 2.0), ("capsule", "0 .06 -.2 0 .06 0", 0.030, 0.5)),
    (("capsule", "0 0 -.04 .08 0 0", 0.045, 1.2),),
    (("cylinder", "0 0 .04 0 0 .105", 0.042, 0.5),),
)
_LIGHT_GREY = ".93 .94 .95 1"
_DARK_GREY = ".70 .73 .76 1"


def build_model(msaa: int = 0, max_image_size: int = 1024) -> mujoco.MjModel:
    """Compile the scene. ``msaa`` samples per pixel smooth edges at twice the rendering time."""
    import mujoco  # here: the tasks need the measures above, `vla-ros demo --help` no physics

    return mujoco.MjModel.from_xml_string(_document(msaa, max_image_size))


def _document(msaa: int, size: int) -> str:
    return f"""<mujoco model="tabletop">
<compiler angle="radian" autolimits="true"/>
<option timestep="{TIMESTEP}" integrator="implicitfast" cone="elliptic" impratio="10"/>
<visual>
  <global offwidth="{size}" offheight="{size}"/>
  <quality offsamples="{msaa}" shadowsize="2048"/>
  <headlight ambient=".38 .38 .38" diffuse=".3 .3 .3" specular="0 0 0"/>
</visual>
{_materials()}
<worldbody>
  <light pos=".5 -.5 2" dir="-.2 .2 -1" diffuse=".6 .6 .6" specular="0 0 0"/>
  <camera name="agentview" pos=".85 0 .65" xyaxes="0 1 0 -.50 0 .866" fovy="40"/>
  <geom type="plane" size="3 3 .1" pos="0 0 -.8" material="floor"/>
  <body name="table"><geom type="box" size=".5 .6 .02" pos="-.05 0 -.02" material="wood"
    friction="1 .005 .0001"/></body>
  {_plate()}
  {"".join(_cube(color) for color in CUBE_COLORS)}
  <body name="{BASE}" pos="-.6 0 0">
    <geom type="cylinder" size=".08 .07" pos="0 0 .07" rgba=".25 .27 .3 1"/>{_arm()}
  </body>
</worldbody>
<actuator>{_actuators()}</actuator>
</mujoco>"""


def _materials() -> str:
    return """<asset>
  <texture name="wood" type="2d" builtin="flat" rgb1=".74 .62 .47" width="64" height="64"
    mark="random" markrgb=".69 .56 .41" random=".3"/>
  <material name="wood" texture="wood" texrepeat="4 4" specular="0"/>
  <texture name="floor" type="2d" builtin="checker" rgb1=".36 .37 .40" rgb2=".44 .45 .48"
    width="64" height="64"/>
  <material name="floor" texture="floor" texrepeat="8 8" specular="0"/>
</asset>"""


def _plate() -> str:
    x, y = PLATE_XY
    half = PLATE_TOP / 2
    return (
        f'<body name="plate" pos="{x} {y} {half}">'
        f'<geom type="cylinder" size="{PLATE_RADIUS} {half}" rgba=".97 .97 .97 1"/>'
        f'<geom type="cylinder" size=".055 {half + 0.0005}" rgba=".74 .82 .93 1"'
        ' contype="0" conaffinity="0"/></body>'
    )


def _cube(color: str) -> str:
    return (
        f'<body name="{color}_cube" pos="0 0 .5"><freejoint name="{color}_cube"/>'
        f'<geom name="{color}_cube" type="box" size="{CUBE_HALF} {CUBE_HALF} {CUBE_HALF}"'
        f' rgba="{CUBE_COLORS[color]}" mass=".06" friction="1 .005 .0001" condim="4"/></body>'
    )


def _arm() -> str:
    """The chain of links, each nested in the one before it, the hand at its end."""
    text = ""
    for index, (pos, quat, limits, damping, _) in enumerate(_LINKS):
        color = _LIGHT_GREY if index % 2 == 0 else _DARK_GREY
        text += (
            f'<body name="link{index + 1}" pos="{pos}" quat="{quat}"><joint'
            f' name="joint{index + 1}" axis="0 0 1" range="{limits}" damping="{damping}"'
            ' armature=".1"/>'
        )
        for kind, fromto, radius, mass in _SHAPES[index]:
            text += (
                f'<geom type="{kind}" fromto="{fromto}" size="{radius}" mass="{mass}"'
                f' rgba="{color}" contype="0" conaffinity="0"/>'
            )
    return text + _hand() + "</body>" * len(_LINKS)


def _hand() -> str:
    """The hand, turned by -45 degrees as on the Panda: at HOME its fingers close along y."""
    return f"""<body name="hand" pos="0 0 .107" quat="0.9238795 0 0 -0.3826834">
  <geom name="palm" type="box" size=".03 .1 .03" pos="0 0 .03" mass=".5" rgba=".88 .88 .9 1"/>
  <camera name="wrist" pos="0.07 0 0.02" quat="0 0.7071 0.7071 0" fovy="75"/>
  <site name="{GRIP_SITE}" pos="0 0 .1034" size=".005" rgba="1 0 0 0"/>
  {_finger(FINGERS[0], 1)}{_finger(FINGERS[1], -1)}</body>"""


def _finger(name: str, side: int) -> str:
    limits = f"0 {FINGER_TRAVEL}" if side > 0 else f"-{FINGER_TRAVEL} 0"
    return (
        f'<body name="{name}" pos="0 0 .0584"><joint name="{name}" type="slide" axis="0 1 0"'
        f' range="{limits}" damping="20" armature=".1"/><geom name="{name}" type="box"'
        f' size=".01 .006 .027" pos="0 {0.006 * side} .027" mass=".05" rgba=".2 .2 .22 1"'
        ' friction="2 .05 .0001" condim="4" solref=".01 .7"/></body>'
    )


def _actuators() -> str:
    text = "".join(
        f'<motor joint="{joint}" ctrlrange="-{limit} {limit}"/>'
        for joint, (*_, limit) in zip(ARM_JOINTS, _LINKS, strict=True)
    )
    for joint, limits in zip(FINGERS, ("0 .04", "-.04 0"), strict=True):
        text += f'<position joint="{joint}" kp="500" ctrlrange="{limits}" forcerange="-20 20"/>'
    return text
