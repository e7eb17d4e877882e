"""A robot's description, from whoever publishes it."""

import pytest

from vla_ros.core.urdf import MAX_LENGTH, DescribedJoint, read_joints

ARM = """<?xml version="1.0"?>
<robot name="arm">
  <joint name="base" type="fixed"/>
  <joint name="turn" type="continuous"><limit effort="9" velocity="1.4"/></joint>
  <joint name="bend" type="revolute"><limit lower="-1" upper="1" velocity="2"/></joint>
  <joint name="slide" type="prismatic"/>
  <joint name="odd" type="revolute"><limit velocity="nan"/></joint>
  <joint name="none" type="revolute"><limit velocity="fast"/></joint>
  <joint name="back" type="revolute"><limit lower="1" upper="-1" velocity="-1"/></joint>
  <joint name="half" type="revolute"><limit upper="0.8" velocity="1"/></joint>
  <joint name="other" type="revolute"><limit lower="x" velocity="1"/><mimic joint="half"/></joint>
</robot>"""


def test_joints_that_move_are_read_with_their_speeds_and_ends():
    assert read_joints(ARM) == {
        "turn": DescribedJoint(True, 1.4),
        "bend": DescribedJoint(False, 2.0, (-1.0, 1.0)),
        "slide": DescribedJoint(False, 0.0),
        "odd": DescribedJoint(False, 0.0),
        "none": DescribedJoint(False, 0.0),
        "back": DescribedJoint(False, 0.0),
        "half": DescribedJoint(False, 1.0, (0.0, 0.8)),
        "other": DescribedJoint(False, 1.0, (), "half"),
    }


LAUGHS = "".join(f'<!ENTITY l{i} "' + f"&l{i - 1};" * 10 + '">' for i in range(1, 10))


@pytest.mark.parametrize(
    ("urdf", "says"),
    [
        (f'<!DOCTYPE r [<!ENTITY l0 "lol">{LAUGHS}]><robot name="&l9;"/>', "no DOCTYPE"),
        ('<!DOCTYPE r [<!ENTITY x SYSTEM "file:///etc/passwd">]><robot name="&x;"/>', "no DOCTYPE"),
        ('<!ENTITY x "y"><robot/>', "no ENTITY"),
        ("<robot>" + " " * MAX_LENGTH, "too long"),
        ("<robot>", "not XML"),
        ("", "not XML"),
        ("\ud800", "not XML"),
        ("<robot>" + "<a/>" * 200_001 + "</robot>", "200,003 tags"),
        ("<robot>" + "<joint/>" * 2_001 + "</robot>", "2,001 joints, and at most 2,000"),
        ("<robot>" + "<link/>" * 2_001 + "</robot>", "2,001 links"),
        ("<robot><link>" + "<visual/>" * 4_001 + "</link></robot>", "4,001 visuals"),
    ],
)
def test_a_description_that_would_fill_a_memory_is_not_read(urdf, says):
    with pytest.raises(ValueError, match=says):
        read_joints(urdf)


def test_a_deep_one_is_read_all_the_same():
    assert read_joints("<robot>" + "<a>" * 50_000 + "</a>" * 50_000 + "</robot>") == {}
