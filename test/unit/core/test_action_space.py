import pytest

from vla_ros.core.action_space import (
    END_EFFECTOR_DELTA,
    ActionKind,
    ActionSpace,
    end_effectors,
    joints,
)


def test_the_default_is_seven_numbers():
    assert END_EFFECTOR_DELTA.names == ("x", "y", "z", "rx", "ry", "rz", "gripper")
    assert END_EFFECTOR_DELTA.grippers == (6,)
    assert END_EFFECTOR_DELTA.motion == (0, 1, 2, 3, 4, 5)
    assert END_EFFECTOR_DELTA.rotations == ((3, 4, 5),)
    assert not END_EFFECTOR_DELTA.absolute


def test_two_arms_are_two_groups_of_names():
    space = end_effectors(ActionKind.END_EFFECTOR_POSE, ("left_", "right_"))
    assert space.width == 14
    assert space.names[0] == "left_x" and space.names[13] == "right_gripper"
    assert space.grippers == (6, 13)
    assert space.rotations == ((3, 4, 5), (10, 11, 12))
    assert space.absolute


def test_joints_have_names_of_their_own():
    space = joints(ActionKind.JOINT_POSITION, ("shoulder", "elbow", "claw"), ("claw",))
    assert space.units == ("rad", "rad", "1")
    assert space.motion == (0, 1) and space.grippers == (2,)
    assert space.rotations == ()


@pytest.mark.parametrize(
    ("names", "units", "grippers", "word"),
    [
        ((), (), (), "must differ"),
        (("a", "a"), ("rad", "rad"), (), "must differ"),
        (("a", ""), ("rad", "rad"), (), "not be empty"),
        (("a", "b"), ("rad",), (), "1 units for 2"),
        (("a", "b"), ("rad", "rad"), (2,), "grippers (2,)"),
    ],
)
def test_what_cannot_be_is_refused(names, units, grippers, word):
    with pytest.raises(ValueError) as caught:
        ActionSpace(ActionKind.JOINT_DELTA, names, units, grippers)
    assert word in str(caught.value)


def test_an_end_effector_is_six_numbers_in_metres_and_radians():
    with pytest.raises(ValueError, match="groups of six"):
        ActionSpace(ActionKind.END_EFFECTOR_DELTA, ("x", "y"), ("m", "m"))
