"""An adaptation is undone by its inverse, says its parameters, and refuses what is none."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_ros.core.action_space import END_EFFECTOR_DELTA, ActionKind, joints
from vla_ros.core.adaptation import (
    COLORS,
    QUARTERS,
    TURNS,
    ActionAdaptation,
    Adaptation,
    ImageAdaptation,
    ValueAdaptation,
    adaptation_of,
    adaptation_of_words,
    changed,
    rotation_of,
)

RNG = np.random.default_rng(3)
IMAGE = RNG.integers(0, 256, (6, 8, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    ("colors", "rotate", "mirror"), itertools.product(COLORS, QUARTERS, (0, 1))
)
def test_an_image_comes_back(colors, rotate, mirror):
    steps = ImageAdaptation(colors=colors, rotate=rotate, mirror=bool(mirror))
    there = steps.apply(IMAGE)
    assert there.flags["C_CONTIGUOUS"]
    assert np.array_equal(steps.undo(there), IMAGE)
    changed = colors == "bgr" or rotate or mirror
    assert (there.shape != IMAGE.shape or not np.array_equal(there, IMAGE)) == bool(changed)


def of_images():
    return st.builds(
        ImageAdaptation,
        colors=st.sampled_from(COLORS),
        rotate=st.sampled_from(QUARTERS),
        mirror=st.booleans(),
    )


def of_values(count):
    numbers = st.floats(-4, 4).map(lambda x: round(x, 3) or 1.0)
    lists = st.one_of(st.just(()), numbers.map(lambda x: (x,)), st.tuples(*[numbers] * count))
    orders = st.one_of(st.just(()), st.permutations(range(count)).map(tuple))
    return st.builds(ValueAdaptation, orders, lists, lists)


@given(of_images(), of_images())
def test_two_changes_of_an_image_are_one(first, second):
    both = second.apply(first.apply(IMAGE))
    assert np.array_equal(first.then(second).apply(IMAGE), both)


@given(st.integers(1, 6).flatmap(lambda n: st.tuples(of_values(n), of_values(n), st.just(n))))
def test_two_changes_of_values_are_one(found):
    first, second, count = found
    values = RNG.normal(size=(3, count))
    both = second.apply(first.apply(values))
    assert np.allclose(first.then(second).apply(values), both)


def test_values_that_the_first_leaves_out_stay_out():
    first, second = ValueAdaptation((2, 0)), ValueAdaptation((), (2.0, 3.0))
    values = np.array([1.0, 5.0, 7.0])
    assert first.then(second).apply(values).tolist() == [14.0, 3.0]
    picked = ValueAdaptation((), (2.0, 1.0, 1.0)).then(ValueAdaptation((2, 0)))
    assert picked.apply(values).tolist() == [7.0, 2.0]


TURNED = st.builds(ActionAdaptation, of_values(7), st.sampled_from(TURNS))


@given(TURNED, TURNED)
def test_two_changes_of_actions_are_one_or_none(first, second):
    actions = RNG.normal(size=(3, 7))
    both = second.apply(first.apply(actions, END_EFFECTOR_DELTA), END_EFFECTOR_DELTA)
    try:
        one = first.then(second)
    except ValueError:
        assert first.turn != "none"
        return
    assert np.allclose(one.apply(actions, END_EFFECTOR_DELTA), both)


def test_a_fit_takes_no_cut_and_no_quarter_behind_it():
    square = ImageAdaptation(fit="letterbox")
    for other in (ImageAdaptation(crop=0.5), ImageAdaptation(rotate=90)):
        with pytest.raises(ValueError, match="made a square"):
            square.then(other)
    assert square.then(ImageAdaptation(mirror=True)) == ImageAdaptation(
        mirror=True, fit="letterbox"
    )
    assert ImageAdaptation(crop=0.5).then(square) == ImageAdaptation(crop=0.5, fit="letterbox")


def test_what_is_to_be_set_anew_says_what_is_as_it_is_again():
    bgr = Adaptation({"main": ImageAdaptation(colors="bgr")}, ValueAdaptation((), (-1.0, 1.0)))
    back = bgr.then(bgr)
    assert back == Adaptation({"main": ImageAdaptation()})
    assert changed(bgr, back) == {"cameras.main.colors": "rgb", "state_factor": [1.0]}
    assert changed(bgr, bgr) == {}
    assert changed(Adaptation(), bgr) == bgr.parameters()
    turned = Adaptation(action=ActionAdaptation(ValueAdaptation((1, 0)), "z90"))
    assert changed(turned, Adaptation()) == {"action_order": [-1], "action_turn": "none"}
    for name, value in changed(turned, Adaptation()).items():
        assert not adaptation_of({name: value}, ()).parameters()


def test_a_turn_is_counter_clockwise_and_a_mirror_exchanges_the_sides():
    image = np.zeros((2, 2, 3), np.uint8)
    image[0, 1] = 9  # above, right
    assert ImageAdaptation(rotate=90).apply(image)[0, 0].tolist() == [9, 9, 9]
    assert ImageAdaptation(mirror=True).apply(image)[0, 0].tolist() == [9, 9, 9]


def test_a_gamma_comes_back_nearly():
    steps = ImageAdaptation(gamma=0.5)
    assert steps.apply(IMAGE).mean() > IMAGE.mean()
    away = np.abs(steps.undo(steps.apply(IMAGE)).astype(int) - IMAGE)
    assert away.max() <= 2


@pytest.mark.parametrize(
    ("fit", "shape"), [("squash", (6, 6, 3)), ("letterbox", (8, 8, 3)), ("crop", (6, 6, 3))]
)
def test_a_fit_makes_a_square_that_cannot_be_undone(fit, shape):
    steps = ImageAdaptation(fit=fit)
    assert steps.apply(IMAGE).shape == shape
    with pytest.raises(ValueError, match="cannot be brought back"):
        steps.undo(IMAGE)


def test_fits_keep_the_middle():
    assert np.array_equal(ImageAdaptation(fit="crop").apply(IMAGE), IMAGE[:, 1:7])
    assert np.array_equal(ImageAdaptation(fit="letterbox").apply(IMAGE)[1:7], IMAGE)
    assert np.array_equal(ImageAdaptation(crop=0.5).apply(IMAGE), IMAGE[1:4, 2:6])


@pytest.mark.parametrize("seed", range(20))
def test_values_come_back(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 9))
    values = ValueAdaptation(
        tuple(rng.permutation(count).tolist()),
        tuple((rng.uniform(0.1, 3, count) * rng.choice((-1, 1), count)).tolist()),
        tuple(rng.normal(size=count).tolist()),
    )
    given = rng.normal(size=(4, count))
    assert np.allclose(values.undo(values.apply(given)), given)


@pytest.mark.parametrize("turn", TURNS)
def test_actions_come_back_and_keep_their_length(turn):
    action = ActionAdaptation(
        ValueAdaptation(factor=(1, -1, 1, 1, 1, 1, -1), offset=(0,) * 6 + (1,)), turn
    )
    given = RNG.normal(size=(5, 7))
    there = action.apply(given, END_EFFECTOR_DELTA)
    assert np.allclose(action.undo(there, END_EFFECTOR_DELTA), given)
    assert np.allclose(np.linalg.norm(there[:, :3], axis=1), np.linalg.norm(given[:, :3], axis=1))
    assert np.allclose(there[:, 6], 1 - given[:, 6])
    assert np.isclose(np.linalg.det(rotation_of(turn)), 1.0)


def test_a_turn_about_z_makes_y_of_x():
    assert np.allclose(rotation_of("z90") @ [1, 0, 0], [0, 1, 0])


def test_parameters_are_read_and_written():
    given = {
        "cameras.main.rotate": 180,
        "cameras.wrist.colors": "bgr",
        "cameras.left.mirror": True,
        "state_factor": [1.0, -1.0],
        "state_offset": [0.0, 0.5],
        "action_order": [1, 0],
        "action_turn": "z90",
    }
    found = adaptation_of(given, ("main", "wrist", "left"))
    assert found and found.parameters() == given
    nothing = {"state_order": [-1], "state_factor": [1.0], "state_offset": [0.0]}
    assert not adaptation_of(nothing, ("main",))
    assert not Adaptation()


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"cameras.main.rotate": 45}, "cameras.main.rotate is 45, must be one of 0, 90"),
        ({"cameras.main.gamma": 0.0}, "cameras.main.gamma is 0"),
        ({"cameras.main.crop": 1.5}, "cameras.main.crop is 1.5"),
        ({"state_factor": [0.0, 1.0]}, "state_factor is"),
        ({"action_order": [0, 0]}, "action_order is"),
        ({"action_turn": "z45"}, "action_turn is 'z45'"),
        ({"state_order": [-2, 0]}, "state_order is"),
    ],
)
def test_what_is_none_is_refused_by_its_name(given, line):
    with pytest.raises(ValueError, match=line.replace("[", r"\[")):
        adaptation_of(given, ("main",))


def test_what_does_not_fit_the_actions_is_refused():
    two = joints(ActionKind.JOINT_POSITION, ("a", "b"))
    with pytest.raises(ValueError, match="action_turn is for displacements"):
        ActionAdaptation(turn="z90").check(two)
    with pytest.raises(ValueError, match="action_factor has 3 values: give 2"):
        ActionAdaptation(ValueAdaptation(factor=(1, 1, 2))).check(two)
    with pytest.raises(ValueError, match="state_order takes number 4 of 3"):
        ValueAdaptation(order=(4, 0)).check(3, 2, "state")


def test_words_say_all_of_an_adaptation_and_are_read_again():
    given = {
        "cameras.main.colors": "bgr", "cameras.main.rotate": 180, "cameras.main.mirror": True,
        "cameras.wrist.crop": 0.9, "cameras.left.fit": "letterbox", "cameras.left.gamma": 0.5,
        "state_order": [1, 0], "state_offset": [0.1, -0.25], "action_factor": [1.0, -1.0],
        "action_turn": "z90",
    }  # fmt: skip
    made = adaptation_of(given, ("main", "wrist", "left"))
    assert made.parameters() == given
    assert adaptation_of_words(made.words()) == made
    assert "action_factor=1.0,-1.0" in made.words()
    assert not adaptation_of_words(()).words()


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("cameras.main.rotate", "write name=value"),
        ("cameras.main.rotat=180", "there are cameras.ROLE.colors"),
        ("rotate=180", "there are cameras.ROLE.colors"),
        ("cameras.main.mirror=1", "write true or false"),
        ("cameras.main.rotate=half", "'cameras.main.rotate=half'"),
        ("cameras.main.rotate=45", "must be one of 0, 90"),
        ("action_order=a", "'action_order=a'"),
    ],
)
def test_words_that_say_nothing_are_refused(word, line):
    with pytest.raises(ValueError, match=line.replace(".", r"\.")):
        adaptation_of_words([word])
