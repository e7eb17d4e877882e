"""The expert for LIBERO in a world without forces: the gripper goes where it is told."""

from __future__ import annotations

import numpy as np
import pytest

from vla_ros.core.clock import ManualClock
from vla_ros.core.types import Instruction, Observation, Pose, Timeline
from vla_ros.policies import InvalidAction, PolicySpec, load_policy
from vla_ros.sim.libero.expert import THINGS, LiberoExpert
from vla_ros.sim.libero.suites import MissingThing, UnknownInstruction

DOWN = (1.0, 0.0, 0.0, 0.0)
LEVEL = (0.0, 0.0, 0.0, 1.0)
SOUP = "pick up the alphabet soup and place it in the basket"
BOWL = "pick up the black bowl next to the ramekin and place it on the plate"


class Weightless:
    """A closed gripper carries what is near it; an open one lets it fall to ``floor``."""

    def __init__(self, name: str, place: tuple[float, float, float], others: dict[str, Pose]):
        self.gripper = np.array([-0.15, 0.0, place[2] + 0.2])
        self.name, self.place, self.others = name, np.array(place), others
        self.closed_for = 0
        self.floor = place[2]

    def poses(self) -> dict[str, Pose]:
        return {
            "gripper": Pose(tuple(self.gripper), DOWN),
            self.name: Pose(tuple(self.place), LEVEL),
            **self.others,
        }

    def step(self, action: np.ndarray) -> None:
        closed = action[6] < 0.5
        self.closed_for = self.closed_for + 1 if closed else 0
        near = np.linalg.norm(self.gripper - self.place) < 0.08
        if closed and near and self.closed_for > 3:
            self.place = self.place + action[:3]
        elif not closed:
            self.place[2] = self.floor
        self.gripper = self.gripper + action[:3]


def world(text: str) -> tuple[Weightless, np.ndarray]:
    if text == SOUP:
        target = np.array([0.0, 0.26, 0.0])
        others = {"basket_1": Pose(tuple(target), LEVEL)}
        return Weightless("alphabet_soup_1", (-0.1, -0.2, 0.04), others), target
    target = np.array([0.05, 0.2, 0.9])
    others = {
        "plate_1": Pose(tuple(target), LEVEL),
        "glazed_rim_porcelain_ramekin_1": Pose((-0.2, 0.19, 0.9), LEVEL),
    }
    return Weightless("akita_black_bowl_1", (-0.19, 0.32, 0.9), others), target


@pytest.mark.parametrize("text", [SOUP, BOWL])
def test_it_carries_the_object_to_the_target(text: str) -> None:
    here, target = world(text)
    expert = LiberoExpert(text)
    highest = 0.0
    for _ in range(150):
        action = expert.act(here.poses())
        assert np.abs(action[:3]).max() <= 0.05
        assert 0.0 <= action[6] <= 1.0
        here.step(action)
        highest = max(highest, here.place[2] - here.floor)
    assert np.linalg.norm((here.place - target)[:2]) < 0.02
    assert highest > 0.06
    assert here.closed_for == 0  # it ends with open fingers


def test_an_object_that_is_lost_is_fetched_again() -> None:
    here, target = world(SOUP)
    expert, dropped = LiberoExpert(SOUP), False
    for _ in range(250):
        here.step(expert.act(here.poses()))
        if not dropped and here.place[2] > 0.15:
            here.place, dropped = np.array([0.05, 0.05, here.floor]), True
    assert dropped
    assert np.linalg.norm((here.place - target)[:2]) < 0.02


def test_the_fingers_close_across_the_narrow_side_however_it_lies() -> None:
    """Turned by 90 degrees about the vertical: the gripper must turn too."""
    here, _ = world(SOUP)
    half = np.sqrt(0.5)
    poses = here.poses() | {"butter_1": Pose((0.1, 0.0, 0.01), (0.0, 0.0, half, half))}
    expert = LiberoExpert("pick up the butter and place it in the basket")
    turn = expert.act(poses)[3:6]
    assert abs(turn[2]) > 0.3
    assert np.abs(turn[:2]).max() < 1e-6


def test_it_does_not_take_on_what_it_cannot_carry() -> None:
    with pytest.raises(UnknownInstruction, match="cannot carry wine_bottle to basket"):
        LiberoExpert("pick up the wine bottle and place it in the basket")


def test_a_missing_thing_is_named() -> None:
    with pytest.raises(MissingThing, match="no basket"):
        LiberoExpert(SOUP).act(
            {k: p for k, p in world(SOUP)[0].poses().items() if "basket" not in k}
        )
    with pytest.raises(MissingThing, match="no gripper"):
        LiberoExpert(SOUP).act({"alphabet_soup_1": Pose((0, 0, 0), LEVEL)})


def test_the_fingers_hold_a_thing_between_its_bottom_and_its_top() -> None:
    for thing in THINGS.values():
        assert thing.bottom < thing.grip < thing.top


def test_the_scripted_policy_knows_by_the_names_which_world_it_is_in() -> None:
    policy = load_policy(PolicySpec("scripted"))
    policy.reset(Instruction(SOUP, 0))
    image = np.zeros((4, 4, 3), np.uint8)
    timeline = Timeline(1).mark("queue", 2)
    seen = Observation(5, 1, 1, image, poses=world(SOUP)[0].poses())
    inference = policy.step(seen, timeline, ManualClock())
    assert inference is not None
    assert np.abs(inference.actions[0, :3]).max() > 0.01
    policy.reset(Instruction("open the drawer", 1))
    with pytest.raises(InvalidAction, match="the expert can do 'pick up the X"):
        policy.step(seen, timeline, ManualClock())
