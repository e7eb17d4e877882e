"""What a checkpoint's numbers are, where nothing but their number is known."""

from __future__ import annotations

from vla_ros.action_space import END_EFFECTOR_DELTA, ActionKind, ActionSpace, joints


def action_space_of(width: int, names: tuple[str, ...] = ()) -> ActionSpace:
    """Seven numbers are an end effector's displacement and a gripper, as most VLA policies say.

    Any other width is positions of joints, called ``names`` or joint_0, joint_1, ... Which of them
    are grippers, and of which unit, no checkpoint says: whoever runs it has to.
    """
    if width == END_EFFECTOR_DELTA.width:
        return END_EFFECTOR_DELTA
    known = len(set(names)) == len(names) == width and "" not in names
    return joints(
        ActionKind.JOINT_POSITION,
        names if known else tuple(f"joint_{i}" for i in range(width)),
    )
