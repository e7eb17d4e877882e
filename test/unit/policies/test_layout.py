"""What the numbers of an action are, in which order, unit and sense, for every policy."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from vla_ros.core.action_space import (
    END_EFFECTOR_DELTA,
    ActionKind,
    action_space_of,
    end_effectors,
    joints,
)
from vla_ros.engine.io.action_data import ActionData, action_names_in, libero_in, reach_of
from vla_ros.policies import PolicyRefused, PolicySpec
from vla_ros.policies.layout import OwnUnits, action_layout
from vla_ros.policies.units import unit_of

ARM = ("shoulder_pan", "elbow", "gripper")
PAN = joints(ActionKind.JOINT_POSITION, ARM, ("gripper",))
UR = (*(f"{n}_joint" for n in ("shoulder_pan", "shoulder_lift", "elbow", "wrist_1", "wrist_2",
                               "wrist_3")), "finger_joint")  # fmt: skip
UR5E = joints(ActionKind.JOINT_POSITION, UR, ("finger_joint",))
POSE = ("x", "y", "z", "roll", "pitch", "yaw", "gripper")
LIBERO_ENDS = ((-0.94,) * 3 + (-0.3,) * 3 + (-1.0,), (0.94,) * 3 + (0.3,) * 3 + (1.0,))


def spec(**given) -> PolicySpec:
    return PolicySpec(**given)


def row_of(layout, what: str):
    (found,) = [row for row in layout.assumptions if row.what == what]
    return found


@pytest.mark.parametrize("word", ["degree", "", "1..1", "..", "0..x", "0rad", "rad/min"])
def test_what_is_no_unit_is_refused(word):
    with pytest.raises(PolicyRefused, match="is no unit: give rad, deg, m, cm, mm, 1, %, one with"):
        unit_of(word)


@pytest.mark.parametrize(
    ("word", "value", "ours"),
    [("0.2rad", 1.0, 0.2), ("-1deg", 180.0, -math.pi), ("5cm", 2.0, 0.1), (".5rad", 1.0, 0.5)],
)
def test_a_unit_may_be_a_multiple_and_turn_the_other_way(word, value, ours):
    assert unit_of(word).factor * value == pytest.approx(ours)


@pytest.mark.parametrize(
    ("word", "hz", "step"), [("rad/s", 15.0, 1 / 15), ("deg/s", 10.0, math.pi / 1800)]
)
def test_a_velocity_is_the_displacement_of_a_period(word, hz, step):
    """Its sum over a second is what a second of it moves, whatever the rate."""
    unit = unit_of(word).over(hz)
    assert unit.factor == pytest.approx(step)
    assert unit.factor * hz == pytest.approx(unit_of(word).factor)
    with pytest.raises(PolicyRefused, match=r"is a velocity's unit, .*: give action_rate_hz"):
        unit_of(word).over(0.0)


# Names, statistics, parameters: in this order


def test_actions_by_name_in_another_order_and_unit():
    turned = ActionData(("gripper.pos", "elbow.pos", "shoulder_pan.pos"), "config.json")
    told = spec(action_space=PAN, action_units=("deg", "deg", "0..100"))
    layout = action_layout(turned, 3, told)
    assert (layout.space, layout.doubt) == (PAN, "")
    read = layout.read(np.array([[120.0, 90.0, -180.0], [50.0, 0.0, 0.0]]))
    assert read.tolist() == pytest.approx(np.array([[-math.pi, math.pi / 2, 1.0], [0, 0, 0.5]]))
    assert layout.write(read)[1].tolist() == pytest.approx([50.0, 0.0, 0.0])


def test_names_that_nobody_knows_are_taken_in_order_and_said():
    layout = action_layout(ActionData(("a", "b", "c"), "config.json"), 3, spec(action_space=PAN))
    assert layout.order == (0, 1, 2)
    assert "offered: 3 (a b c): taken in this order, since no name is the same" in layout.doubt


def test_where_no_parameter_says_it_the_checkpoint_s_names_do():
    names = ActionData(("shoulder_pan.pos", "elbow.pos", "gripper.pos"), "config.json")
    layout = action_layout(names, 3, spec())
    assert layout.space == PAN
    assert row_of(layout, "actions").source == "config.json"
    seven = action_layout(ActionData(), 7, spec(action_scale=(0.05,) * 3 + (0.5,) * 3))
    assert seven.space == END_EFFECTOR_DELTA
    assert row_of(seven, "actions").default
    assert seven.read(np.ones((1, 7)))[0].tolist() == [0.05] * 3 + [0.5] * 3 + [1.0]
    assert action_layout(ActionData(), 6, spec()).space.names == tuple(
        f"joint_{i}" for i in range(6)
    )


@pytest.mark.parametrize(
    ("names", "space"),
    [
        (POSE, END_EFFECTOR_DELTA),
        (("delta_x", "delta_y", "delta_z", "delta_rx", "delta_ry", "delta_rz", "gripper"),
         END_EFFECTOR_DELTA),
        ((*[f"eef_position_delta_{i}" for i in range(3)],
          *[f"eef_rotation_delta_{i}" for i in range(3)], "gripper_close"), END_EFFECTOR_DELTA),
        (UR, UR5E),
        (tuple(f"{n}.pos" for n in UR), UR5E),
        (tuple(f"{n}.vel" for n in UR), joints(ActionKind.JOINT_DELTA, UR, ("finger_joint",))),
        (("actions",), END_EFFECTOR_DELTA),  # physical-intelligence/libero: of another number
    ],
)  # fmt: skip
def test_seven_numbers_are_what_their_names_say(names, space):
    assert action_space_of(7, names) == space


def test_torques_are_refused():
    with pytest.raises(PolicyRefused, match="are torques or currents"):
        action_layout(ActionData(("a.effort", "b.effort"), "config.json"), 2, spec())


def test_seven_joints_without_names_are_what_the_parameters_say():
    layout = action_layout(ActionData(), 7, spec(action_space=UR5E))
    assert layout.space == UR5E
    assert row_of(layout, "actions").source == "parameter action_space"
    pose = end_effectors(ActionKind.END_EFFECTOR_POSE)
    assert action_layout(ActionData(), 7, spec(action_space=pose)).space == pose


def test_names_come_before_parameters_unless_these_are_to():
    poses = ActionData(POSE, "meta/info.json")
    assert action_layout(poses, 7, spec(action_space=UR5E)).space == END_EFFECTOR_DELTA
    given = spec(action_space=UR5E, action_space_override=True, action_units=("deg",))
    assert action_layout(poses, 7, given).space == UR5E


def test_velocities_by_name_are_displacements_at_the_rate_of_their_data():
    data = ActionData(("a.vel", "b.vel"), "meta/info.json")
    layout = action_layout(data, 2, spec(), rate_hz=20.0)
    assert layout.space.kind is ActionKind.JOINT_DELTA
    assert layout.read(np.array([[1.0, -2.0]]))[0].tolist() == pytest.approx([0.05, -0.1])
    faster = action_layout(data, 2, spec(action_rate_hz=50.0), rate_hz=20.0)
    assert faster.read(np.array([[1.0, -2.0]]))[0].tolist() == pytest.approx([0.02, -0.04])


def test_positions_are_not_run_as_displacements():
    """Seven joints of an arm, without names and parameters: home is far from 0."""
    low = (-0.5, -1.9, 1.0, -2.0, -1.6, -0.4, 0.0)
    high = (0.5, -1.0, 1.9, -1.0, -1.5, 0.4, 1.0)
    with pytest.raises(PolicyRefused, match="never near 0, so they are positions, no displ"):
        action_layout(ActionData(low=low, high=high), 7, spec())
    layout = action_layout(ActionData(low=low, high=high), 7, spec(action_space=UR5E))
    assert layout.space == UR5E


# Grippers


@pytest.mark.parametrize(
    ("ends", "word", "closed", "opened"),
    [
        ((0.0, 1.0), "", 0.0, 1.0),
        ((0.0, 1.0), "1..0", 1.0, 0.0),
        ((0.0, 100.0), "0..100", 0.0, 100.0),
        ((0.0, 0.8), "0.8..0", 0.8, 0.0),
        ((-1.0, 1.0), "1..-1", 1.0, -1.0),
    ],
)
def test_a_six_joint_arm_s_gripper_in_any_range(ends, word, closed, opened):
    data = ActionData(low=(-3.0,) * 6 + ends[:1], high=(3.0,) * 6 + ends[1:])
    layout = action_layout(data, 7, spec(action_space=UR5E, gripper=word))
    rows = np.array([[0.1, -0.2, 0.3, -0.4, 0.5, -0.6, end] for end in (closed, opened)])
    assert layout.read(rows)[:, 6].tolist() == pytest.approx([0.0, 1.0])
    assert layout.read(rows)[0, :6].tolist() == pytest.approx([0.1, -0.2, 0.3, -0.4, 0.5, -0.6])


@pytest.mark.parametrize("space", [END_EFFECTOR_DELTA, UR5E])
@pytest.mark.parametrize("ends", [(-1.0, 1.0), (0.0, 100.0), (0.0, 255.0)])
def test_a_gripper_whose_side_nothing_says_is_refused(space, ends):
    data = ActionData(low=(-0.1,) * 6 + ends[:1], high=(0.1,) * 6 + ends[1:])
    with pytest.raises(PolicyRefused, match=r"nothing says which end is closed: give gripper") as e:
        action_layout(data, 7, spec(action_space=space))
    assert "\n" not in str(e.value)


def test_a_gripper_that_never_opens_to_1_is_doubted():
    data = ActionData(low=(-0.1,) * 6 + (0.0,), high=(0.1,) * 6 + (0.8,))
    assert (
        "taken for 0 closed to 1 open; where that is wrong" in action_layout(data, 7, spec()).doubt
    )


def test_libero_s_gripper_is_libero_s():
    data = ActionData(POSE, "meta/info.json", *LIBERO_ENDS, libero="train_config.json")
    layout = action_layout(data, 7, spec(), OwnUnits((0.05,) * 3 + (0.5,) * 3, source="LIBERO's"))
    read = layout.read(np.array([[1.0] * 6 + [1.0], [0.0] * 6 + [-1.0]]))
    assert read[:, 6].tolist() == [0.0, 1.0]
    assert read[0, :6].tolist() == [0.05] * 3 + [0.5] * 3
    assert row_of(layout, "gripper").source == "LIBERO's protocol (train_config.json)"
    assert row_of(layout, "gripper").value == "1 closed, -1 open"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"action_space": PAN, "action_units": ("deg", "deg")},
         "action_units has 2 units, the checkpoint 3 values"),
        ({"action_space": PAN, "action_units": ("m", "deg", "1")},
         "action_units do not fit the action space: shoulder_pan in m, wanted rad"),
        ({"action_space": PAN, "action_units": ("deg", "deg", "deg")},
         "action_units is 'deg': give what is closed..open"),
        ({"action_space": PAN, "action_scale": (1.0,) * 6},
         "action_scale is for end effectors, and these actions are joints: give action_units"),
        ({"action_space": PAN, "action_units": ("deg", "deg", "1"), "gripper": "1..0"},
         "gripper and action_units say the same"),
        ({"action_space": PAN, "gripper": "0.2rad"},
         "gripper is '0.2rad': give what is closed..open"),
        ({"action_scale": (1.0,) * 6, "action_units": ("rad",)}, "say the same: leave one out"),
    ],
)  # fmt: skip
def test_a_layout_that_does_not_fit_is_refused(given, says):
    with pytest.raises(PolicyRefused) as error:
        action_layout(ActionData(), 3 if "action_space" in given else 7, spec(**given))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


# The files that say it


@pytest.mark.parametrize(
    "names",
    [list(UR), {"motors": list(UR)}, [list(UR)], {name: i for i, name in enumerate(UR)}],
)
def test_names_of_the_data_set_are_found(tmp_path: Path, names):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "meta").mkdir()
    info = {"fps": 30, "features": {"action": {"names": names, "shape": [7]}}}
    (tmp_path / "meta" / "info.json").write_text(json.dumps(info))
    assert action_names_in(tmp_path, 7) == (UR, "meta/info.json")
    assert action_names_in(tmp_path, 6) == ((), "")
    (tmp_path / "config.json").write_text(json.dumps({"action_feature_names": list(POSE)}))
    assert action_names_in(tmp_path, 7) == (POSE, "config.json")


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("train_config.json", '{"env": {"type": "libero"}}', "train_config.json"),
        ("train_config.json", '{"dataset": {"repo_id": "HuggingFaceVLA/libero"}}',
         "train_config.json"),
        ("README.md", "---\ndatasets: HuggingFaceVLA/libero\n---\n", "README.md"),
        ("README.md", "---\ndatasets:\n- HuggingFaceVLA/libero\n---\n", "README.md"),
        ("README.md", "better than on libero", ""),
    ],
)  # fmt: skip
def test_a_folder_says_that_it_learned_from_libero(tmp_path: Path, file, text, says):
    (tmp_path / file).write_text(text)
    assert libero_in(tmp_path) == says


@pytest.mark.parametrize(
    ("mean", "std", "ends"),
    [(0.5, 0.5, (0.0, 1.0)), (0.0, 1.0, (-1.0, 1.0)), (-0.05, 0.998, (-1.0, 1.0)),
     (0.5, 0.85, (-1.0, 1.0)), (60.0, 30.0, (0.0, 120.0)), (0.0, 0.1, (-0.2, 0.2))],
)  # fmt: skip
def test_the_reach_of_a_gripper_by_mean_and_deviation(mean, std, ends):
    low, high = reach_of({"mean": [mean], "std": [std]})
    assert (low[0], high[0]) == pytest.approx(ends)


def test_another_number_of_values_than_the_robot_s_is_refused_with_both():
    data = ActionData(("x", "y"), "config.json")
    with pytest.raises(PolicyRefused, match=r"wanted: 3 \(.*\); offered: 2 \(x y\): give action_s"):
        action_layout(data, 2, spec(action_space=PAN))
