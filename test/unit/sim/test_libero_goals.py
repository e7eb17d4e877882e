"""Instructions of libero_object and libero_spatial, and which thing of several they mean."""

from __future__ import annotations

import pytest

from vla_ros.core.types import Pose
from vla_ros.sim.libero.suites import (
    Goal,
    MissingThing,
    ObjectChoice,
    UnknownInstruction,
    find,
    parse,
)

BOWL, RAMEKIN = "akita_black_bowl", "glazed_rim_porcelain_ramekin"


def lying(**places: tuple[float, float, float]) -> dict[str, Pose]:
    return {name: Pose(place, (0.0, 0.0, 0.0, 1.0)) for name, place in places.items()}


@pytest.mark.parametrize(
    ("text", "goal"),
    [
        (
            "pick up the alphabet soup and place it in the basket",
            Goal("alphabet_soup", "basket"),
        ),
        ("Pick up the  BBQ sauce and place it in the basket.", Goal("bbq_sauce", "basket")),
        (
            "pick up the black bowl between the plate and the ramekin and place it on the plate",
            Goal(BOWL, "plate", ObjectChoice.BETWEEN, ("plate", RAMEKIN)),
        ),
        (
            "pick up the black bowl next to the cookie box and place it on the plate",
            Goal(BOWL, "plate", ObjectChoice.NEAR, ("cookies",)),
        ),
        (
            "pick up the black bowl on the stove and place it on the plate",
            Goal(BOWL, "plate", ObjectChoice.NEAR, ("flat_stove",)),
        ),
        (
            "pick up the black bowl in the top drawer of the wooden cabinet and place it on the"
            " plate",
            Goal(BOWL, "plate", ObjectChoice.INSIDE, ("wooden_cabinet",)),
        ),
        (
            "pick up the black bowl from table center and place it on the plate",
            Goal(BOWL, "plate", ObjectChoice.CENTRE),
        ),
        # LIBERO-PRO's
        ("Pick the milk and place it in the basket", Goal("milk", "basket")),
        (
            "Pick the akita black bowl on the cookies box and place it on the plate",
            Goal(BOWL, "plate", ObjectChoice.NEAR, ("cookies",)),
        ),
        (
            "Pick the akita black bowl in the top layer of the wooden cabinet and place it on the"
            " plate",
            Goal(BOWL, "plate", ObjectChoice.INSIDE, ("wooden_cabinet",)),
        ),
        (
            "Pick the akita black bowl on the top of the cabinet and place it on the plate",
            Goal(BOWL, "plate", ObjectChoice.NEAR, ("wooden_cabinet",)),
        ),
    ],
)
def test_the_suites_sentences(text: str, goal: Goal) -> None:
    assert parse(text) == goal


@pytest.mark.parametrize(
    "text",
    [
        "",
        "open the middle drawer of the cabinet",
        "do not pick up the milk and place it in the basket",
        "pick up the milk",
        "pick up the red cube and put it on the plate",
    ],
)
def test_anything_else_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UnknownInstruction, match="the expert can do") as raised:
        parse(text)
    assert "\n" not in str(raised.value)


# Two bowls as the suite has them: one is meant, the other must not be taken.
@pytest.mark.parametrize(
    ("words", "meant", "other"),
    [
        ("between the plate and the ramekin", (-0.06, 0.20, 0.90), (-0.19, 0.32, 0.90)),
        ("next to the ramekin", (-0.19, 0.32, 0.90), (0.14, -0.08, 0.90)),
        ("next to the plate", (0.01, 0.30, 0.90), (-0.18, 0.31, 0.90)),
        ("on the cookie box", (0.07, 0.02, 0.92), (0.02, -0.28, 1.13)),
        ("in the top drawer of the wooden cabinet", (0.08, -0.13, 1.06), (0.02, -0.28, 1.13)),
        ("on the wooden cabinet", (0.04, -0.26, 1.13), (-0.25, -0.14, 0.93)),
        ("on the stove", (-0.26, -0.13, 0.93), (0.04, -0.28, 1.13)),
        ("from table center", (-0.07, 0.02, 0.90), (0.00, 0.31, 0.90)),
    ],
)
def test_the_bowl_that_is_meant(words: str, meant, other) -> None:
    around = lying(
        plate_1=(0.06, 0.20, 0.90),
        glazed_rim_porcelain_ramekin_1=(-0.20, 0.19, 0.90),
        cookies_1=(0.07, 0.03, 0.91),
        wooden_cabinet_1=(0.04, -0.27, 0.90),
        flat_stove_1=(-0.40, -0.14, 0.90),
    )
    goal = parse(f"pick up the black bowl {words} and place it on the plate")
    first = lying(akita_black_bowl_1=meant, akita_black_bowl_2=other)
    second = lying(akita_black_bowl_1=other, akita_black_bowl_2=meant)
    assert find(goal, around | first) == "akita_black_bowl_1"
    assert find(goal, around | second) == "akita_black_bowl_2"


def test_what_is_not_there_is_named() -> None:
    with pytest.raises(MissingThing, match="no milk; it has: plate_1"):
        find(Goal("milk", "plate"), lying(plate_1=(0, 0, 0)))


def test_one_of_several_must_be_told_apart() -> None:
    with pytest.raises(MissingThing, match="say which one"):
        find(Goal("milk", "plate"), lying(milk_1=(0, 0, 0), milk_2=(1, 0, 0)))


def test_what_libero_pro_has_in_a_things_place_is_found() -> None:
    poses = lying(red_basket_1=(0, 0, 0), green_butter_1=(1, 0, 0), black_bowl_1=(2, 0, 0))
    assert find(Goal("butter", "basket"), poses) == "green_butter_1"
    assert find(Goal(BOWL, "plate"), poses) == "black_bowl_1"
    poses |= lying(butter_1=(3, 0, 0))
    assert find(Goal("butter", "basket"), poses) == "butter_1"
    with pytest.raises(MissingThing, match="no milk; it has"):
        find(Goal("milk", "basket"), poses)
    with pytest.raises(MissingThing, match="no bread_butter_knife"):
        find(Goal("bread_butter_knife", "basket"), poses)
