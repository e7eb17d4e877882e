"""Spaces of actions: names and units of an action's numbers, which are targets or displacements.

Two arms are two groups of names ("left_x" ... "right_gripper"): the gate, the messages and the
outputs never count on seven.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

_POSE = ("x", "y", "z", "rx", "ry", "rz")
_POSE_UNITS = ("m", "m", "m", "rad", "rad", "rad")
GRIPPER_UNIT = "1"  # of an opening from 0 (closed) to 1 (open)


class ActionKind(IntEnum):
    """Kind of an action's numbers; the values are those of ActionCommand.msg.

    A *delta* is executed once, over one action period. A *pose* or a *position* is a target for
    the period's end. Rotations of end effectors are axis-angle.
    """

    END_EFFECTOR_DELTA = 0
    END_EFFECTOR_POSE = 1
    JOINT_DELTA = 2
    JOINT_POSITION = 3

    @property
    def absolute(self) -> bool:
        """True of targets: repeating one moves nothing, and zero is a target too."""
        return self in (ActionKind.END_EFFECTOR_POSE, ActionKind.JOINT_POSITION)

    @property
    def joints(self) -> bool:
        return self in (ActionKind.JOINT_DELTA, ActionKind.JOINT_POSITION)


#: Kinds by the names that parameters and flags have for them.
KINDS = {kind.name.lower(): kind for kind in ActionKind}


@dataclass(frozen=True)  # without slots: what follows from it is asked for many times a command
class ActionSpace:
    """Space of actions of D numbers: a name and a unit each ("m", "rad", "1"). Raises ValueError.

    ``grippers``: the indices of grippers, 0 (closed) to 1 (open). They are absolute in every kind:
    an opening is held, never added. Of end effectors the values come in groups of six, x y z in m
    and an axis-angle in rad, one group an arm.
    """

    kind: ActionKind
    names: tuple[str, ...]
    units: tuple[str, ...]
    grippers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.names or len(set(self.names)) != len(self.names) or "" in self.names:
            raise ValueError(f"an action's names must differ and not be empty: {self.names}")
        if len(self.units) != len(self.names):
            raise ValueError(f"{len(self.units)} units for {len(self.names)} values of an action")
        if not set(self.grippers) <= set(range(len(self.names))):
            raise ValueError(f"grippers {self.grippers} of an action of {len(self.names)} values")
        if not self.kind.joints and [self.units[i] for i in self.motion] != list(
            _POSE_UNITS * (len(self.motion) // 6)
        ):
            raise ValueError(
                "an end effector's action has groups of six, x y z in m and rx ry rz in rad, not "
                + " ".join(f"{n}[{u}]" for n, u in zip(self.names, self.units, strict=True))
            )

    @cached_property
    def width(self) -> int:
        """D, how many numbers an action has."""
        return len(self.names)

    @property
    def absolute(self) -> bool:
        """True of targets (:attr:`ActionKind.absolute`); grippers are absolute anyhow."""
        return self.kind.absolute

    @cached_property
    def motion(self) -> tuple[int, ...]:
        """The indices of the numbers that move the arms: all but the grippers'."""
        return tuple(i for i in range(self.width) if i not in self.grippers)

    @cached_property
    def rotations(self) -> tuple[tuple[int, int, int], ...]:
        """The indices of each arm's axis-angle; joints have none."""
        if self.kind.joints:
            return ()
        motion = self.motion
        return tuple(
            (motion[i + 3], motion[i + 4], motion[i + 5]) for i in range(0, len(motion), 6)
        )


def end_effectors(kind: ActionKind, arms: tuple[str, ...] = ("",)) -> ActionSpace:
    """Space of end effectors: x y z rx ry rz and a gripper an arm; ``arms`` are prefixes of the
    names ("left_")."""
    names = tuple(f"{arm}{name}" for arm in arms for name in (*_POSE, "gripper"))
    units = (*_POSE_UNITS, GRIPPER_UNIT) * len(arms)
    return ActionSpace(kind, names, units, tuple(range(6, len(names), 7)))


def joints(kind: ActionKind, names: tuple[str, ...], grippers: tuple[str, ...] = ()) -> ActionSpace:
    """Space of revolute joints in rad; ``grippers`` are those of ``names`` that open from 0 to
    1."""
    units = tuple(GRIPPER_UNIT if name in grippers else "rad" for name in names)
    indices = tuple(i for i, name in enumerate(names) if name in grippers)
    return ActionSpace(kind, names, units, indices)


#: The space of most VLA policies, and the default everywhere: float64 [7].
END_EFFECTOR_DELTA = end_effectors(ActionKind.END_EFFECTOR_DELTA)


#: Ends of a name that state its kind, as LeRobot's drivers write them.
_POSITION, _VELOCITY = (".pos", ".position"), (".vel", ".velocity")
_TORQUES = (".effort", ".torque", ".current", ".tau")
_BEFORE = ("action.", "delta_", "delta.", "ee.", "eef_", "eef.", "ee_", "tcp_", "pos_", "d_")
_TURNS = ({"roll", "pitch", "yaw"}, {"rx", "ry", "rz"}, {"wx", "wy", "wz"}, {"ax", "ay", "az"})
_HAND = ("eef", "end_effector", "cartesian", "tcp", "pose", "twist", "motion")
_GRIPPERS = ("gripper", "finger", "hand_open", "jaw")


def is_gripper(name: str) -> bool:
    """True of the names that people give to a gripper's value."""
    return any(word in name.lower() for word in _GRIPPERS)


def names_velocities(names: tuple[str, ...]) -> bool:
    """True of names of which one ends as a velocity's do ("elbow_flex.vel")."""
    return any(name.lower().endswith(_VELOCITY) for name in names)


def names_positions(names: tuple[str, ...]) -> bool:
    """True of names of which one ends as a position's do ("elbow_flex.pos")."""
    return any(name.lower().endswith(_POSITION) for name in names)


def names_an_end_effector(names: tuple[str, ...]) -> bool:
    """True of the names of an end effector's six numbers and a gripper: x y z roll pitch yaw
    gripper, as LIBERO's and Bridge's data sets have them, or eef_position_0 ... as GR00T's."""
    if len(names) != len(_POSE) + 1:
        return False
    short = [_short(name) for name in names]
    spelled = short[:3] == ["x", "y", "z"] and set(short[3:6]) in _TURNS
    return spelled or all(any(word in n.lower() for word in _HAND) for n in names[:6])


def joint_names_of(names: tuple[str, ...]) -> tuple[str, ...]:
    """Joints that are called so: LeRobot's "elbow_flex.pos" is the joint elbow_flex."""
    return tuple(
        next((n[: -len(end)] for end in _POSITION + _VELOCITY if n.lower().endswith(end)), n)
        for n in names
    )


def _short(name: str) -> str:
    word = name.lower()
    for before in _BEFORE:
        word = word.removeprefix(before)
    return word[1:] if len(word) == 2 and word[0] == "d" else word


def action_space_of(width: int, names: tuple[str, ...] = ()) -> ActionSpace:
    """Space of an action of ``width`` numbers that are called ``names`` (() or of another number:
    nothing names them).

    Names decide: x y z roll pitch yaw gripper are an end effector's displacement, others are
    joints: "elbow_flex.pos" the position of elbow_flex, "elbow_flex.vel" its velocity, which is
    the displacement of an action period. Without names seven numbers are an end effector's
    displacement and a gripper, any other width is positions of joints joint_0, joint_1, .... Raises
    ValueError for torques, which nothing here executes.
    """
    known = len(set(names)) == len(names) == width and "" not in names
    if torques := [n for n in names if known and n.lower().endswith(_TORQUES)]:
        raise ValueError(
            f"its actions are torques or currents ({', '.join(torques[:3])}): positions, velocities"
            " and displacements are executed"
        )
    if width == END_EFFECTOR_DELTA.width and (not known or names_an_end_effector(names)):
        return END_EFFECTOR_DELTA
    called = joint_names_of(names) if known else tuple(f"joint_{i}" for i in range(width))
    kind = ActionKind.JOINT_POSITION
    if known and names_velocities(names):
        kind = ActionKind.JOINT_DELTA
    return joints(kind, called, tuple(n for n in called if known and is_gripper(n)))
