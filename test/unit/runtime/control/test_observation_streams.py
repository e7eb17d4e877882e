"""Streams and their samples: who is near, what is between, what is said of what lacks."""

import weakref

import numpy as np
import pytest

from vla_ros.core.clock import MS, SECOND, Moment
from vla_ros.core.types import Pose
from vla_ros.runtime.control.joints import Joints
from vla_ros.runtime.control.observation import (
    IMAGE_BYTES,
    IMAGES,
    WAITING,
    Assembler,
    History,
    Nearest,
    PairingWindow,
    Poses,
    StampedValue,
    StreamMessage,
    gap,
)

IMAGE = np.zeros((4, 4, 3), np.uint8)
LEVEL = (0.0, 0.0, 0.0, 1.0)


def history(*stamps, limit=10, back_ns=1000):
    found = History(limit, back_ns)
    for stamp in stamps:
        found.add(stamp, str(stamp))
    return found


def stamps(found):
    """All that it holds, asked from the outside."""
    return [s for s in range(5001) if (at := found.nearest(s)) is not None and at.stamp_ns == s]


# One stream


def test_samples_are_kept_in_order_and_the_newest_of_them_stay():
    found = history(30, 10, 20, 40, limit=3)
    assert stamps(found) == [20, 30, 40] and len(found) == 3
    assert found.nearest(40) == StampedValue(40, "40")
    found.add(30, "again")
    assert found.nearest(30) == StampedValue(30, "again") and len(found) == 3


def test_of_two_neighbors_the_closer_one_is_nearest_and_the_later_of_equals():
    found = history(10, 20)
    assert [found.nearest(s).stamp_ns for s in (1, 10, 14, 15, 16, 20, 99)] == [
        10, 10, 10, 20, 20, 20, 20,
    ]  # fmt: skip
    assert history().nearest(5) is None


def test_the_samples_around_a_stamp():
    found = history(10, 20)
    ten, twenty = StampedValue(10, "10"), StampedValue(20, "20")
    assert found.around(5) == (None, ten)
    assert found.around(10) == (ten, ten)
    assert found.around(15) == (ten, twenty)
    assert found.around(25) == (twenty, None)


def test_a_stamp_far_behind_is_a_clock_that_was_set_back():
    assert stamps(history(3000, 2000)) == [2000, 3000], "just late"
    assert stamps(history(3000, 1999)) == [1999]
    ten_s = History(4)
    ten_s.add(10 * SECOND + 1, "a")
    ten_s.add(1, "b")
    assert len(ten_s) == 2
    ten_s.add(0, "c")
    assert len(ten_s) == 1, "more than ten seconds unless told otherwise"


def test_what_is_forgotten_is_older_than_the_last_before_it():
    found = history(10, 20, 30)
    found.forget(10)
    assert stamps(found) == [10, 20, 30]
    found.forget(25)
    assert stamps(found) == [20, 30]
    found.forget(30)
    assert stamps(found) == [20, 30], "the last before it may be a neighbor yet"
    found.forget(31)
    assert stamps(found) == [30]


# The kinds of streams


@pytest.mark.parametrize("part", [Nearest(8), Poses()], ids=["images", "poses"])
def test_a_part_is_there_within_the_slop_and_no_further(part):
    part.add(1000, Pose((0.0, 0.0, 0.0), LEVEL))
    assert part.at(1010, 10).stamp_ns == 1000 and part.at(990, 10).stamp_ns == 1000
    assert part.at(1011, 10) is None and part.at(989, 10) is None


def test_a_pose_is_where_a_steady_motion_has_it_and_its_stamp_the_nearest():
    poses = Poses()
    assert poses.at(100, 1000) is None
    poses.add(100, Pose((0.0, 0.0, 0.0), LEVEL))
    poses.add(200, Pose((4.0, 8.0, 0.0), LEVEL))
    early, late = poses.at(125, 100), poses.at(175, 100)
    assert (early.stamp_ns, early.value.position) == (100, (1.0, 2.0, 0.0))
    assert (late.stamp_ns, late.value.position) == (200, (3.0, 6.0, 0.0))
    assert poses.at(90, 100) == StampedValue(100, Pose((0.0, 0.0, 0.0), LEVEL)), "the first alone"
    assert poses.at(210, 100) == StampedValue(200, Pose((4.0, 8.0, 0.0), LEVEL)), "the last alone"
    assert poses.at(200, 100).value.position == (4.0, 8.0, 0.0)
    poses.forget(150)
    assert poses.at(150, 100).value.position == (2.0, 4.0, 0.0)


def test_the_gap_is_in_words():
    assert gap(None, 5).text == "has said nothing yet"
    sample = StampedValue(7 * MS, "x")
    assert gap(sample, 5 * MS).text == "is 2.0 ms newer than the image at its nearest"
    assert gap(sample, 9_500_000).text == "is 2.5 ms older than the image at its nearest"
    assert gap(sample, 7 * MS).text == "is 0.0 ms older than the image at its nearest"
    pictures = Nearest(4)
    pictures.add(7 * MS, "x")
    assert pictures.lacks(9 * MS).text == "is 2.0 ms older than the image at its nearest"


def named(*said, names=("a", "b")):
    found = Joints(names)
    for stamp, positions in said:
        found.add(stamp, (tuple(positions), np.array(list(positions.values()))))
    return found


def test_joints_by_name_are_each_between_its_own_two_and_stamped_by_the_oldest():
    found = named((0, {"a": 0.0}), (10, {"b": 1.0}), (100, {"a": 1.0}), (90, {"b": 3.0})).at(40, 99)
    assert found.stamp_ns == 0
    np.testing.assert_allclose(found.value, [0.4, 1.0 + 2.0 * 30 / 80])


def test_a_joint_with_one_sample_is_where_that_has_it():
    found = named((10, {"a": 0.5, "b": 1.0}), (20, {"b": 3.0}))
    assert found.at(15, 99).value.tolist() == [0.5, 2.0]
    assert found.at(5, 99).value.tolist() == [0.5, 1.0]


def test_a_joint_that_turns_without_end_is_shown_in_the_turn_that_the_policy_was_taught():
    found = named((0, {"a": 3.0, "b": 3.0}), (100, {"a": 3.4, "b": 3.4}))
    found.turning = frozenset({"a"})
    np.testing.assert_allclose(found.at(50, 99).value, [3.2 - 2 * np.pi, 3.2])
    taught = Joints(("a", "b"), middle=(-12.0, -12.0))
    taught.turning = found.turning
    taught.add(0, (("a", "b"), np.array([3.2, 3.2])))
    np.testing.assert_allclose(taught.at(0, 99).value, [3.2 - 4 * np.pi, 3.2])
    whole = Joints(size=2)
    whole.turning = found.turning
    whole.add(0, (("b", "a"), np.array([3.2, 3.2])))
    np.testing.assert_allclose(whole.at(0, 99).value, [3.2, 3.2 - 2 * np.pi])


def test_a_reading_that_was_not_accepted_is_none_and_its_joint_is_not_missing():
    found = named((0, {"a": 0.0, "b": 0.0}), (100, {"a": np.nan, "b": 1.0}))
    assert found.at(50, 60).value.tolist() == [0.0, 0.5]
    never = named((0, {"a": np.nan, "b": 0.0}))
    assert never.at(0, 9) is None and never.lacks(0).kind == "silent"
    whole = Joints()
    whole.add(0, ((), np.array([0.0, np.nan])))
    assert whole.at(0, 9) is None


def quiet_hand(messages, **given):
    """The arm goes on, the hand's driver spoke once."""
    found = Joints(("arm", "hand"), **given)
    found.add(0, (("hand",), np.array([0.04])))
    for step in range(messages):
        found.add(step * 100 * MS, (("arm",), np.array([0.0])))
    return found


def test_a_joint_that_speaks_only_on_change_is_named_where_it_is_missed():
    hand, now = quiet_hand(57), 5600 * MS
    assert hand.at(now, 25 * MS) is None
    assert hand.lacks(now) == (
        "quiet",
        "has joint 'hand' last read 5.6 s before the image: its driver may speak only on change:"
        " name it in joints_on_change",
    )
    assert hand.lacks(SECOND).kind == "apart", "a pause is none"
    once = Joints(("arm", "hand"))
    once.add(0, (("hand",), np.array([np.nan])))
    for step in range(57):
        once.add(step * 100 * MS, (("arm",), np.array([0.0])))
    assert once.lacks(now) == (
        "quiet",
        "has too few readings of joint 'hand' to accept one: its driver may speak only on change:"
        " name it in joints_on_change",
    )
    apart = Joints(("arm", "hand"))
    for step in range(57):
        apart.add(step * 100 * MS, (("hand",), np.array([0.04])))
        apart.add(step * 100 * MS + 5 * SECOND, (("arm",), np.array([0.0])))
    assert apart.lacks(now + 5 * SECOND).kind == "apart", "the clocks"


def test_the_last_reading_of_a_joint_that_is_named_so_stays():
    hand, now = quiet_hand(57, on_change=("hand",)), 5600 * MS
    found = hand.at(now, 25 * MS)
    assert found.value.tolist() == [0.0, 0.04]
    hand.forget(now)
    assert hand.at(now, 25 * MS).value.tolist() == [0.0, 0.04]
    assert hand.lacks(now + SECOND).text == "is 1000.0 ms older than the image at its nearest"
    never = quiet_hand(3, on_change=("arm",))
    assert never.lacks(now).kind == "apart"


def test_joints_are_there_only_if_all_of_them_are():
    found = named((0, {"a": 0.0}), (50, {"b": 1.0}))
    assert found.at(0, 49) is None and found.at(0, 50).stamp_ns == 0
    assert found.lacks(0).text == "is 0.0 ms newer than the image at its nearest"
    found = named((0, {"a": 0.0}), (3 * MS, {"b": 1.0}))
    assert found.lacks(0).text == "is 3.0 ms newer than the image at its nearest", "the worst"
    assert found.lacks(5 * MS).text == "is 5.0 ms older than the image at its nearest"
    assert Joints(("a",)).lacks(0).text == "has said nothing yet"


def test_what_a_message_says_of_joints_nobody_wants_is_left_out_and_listed():
    found = named((0, {"c": 9.0, "a": 1.0, "b": 2.0}))
    assert found.at(0, 1).value.tolist() == [1.0, 2.0] and found.extra == ["c"]
    assert found.wanted_and_offered == "wanted 'a', 'b'; offered 'c', 'a', 'b'"
    assert Joints().extra == []
    assert Joints(("a",)).wanted_and_offered == "wanted 'a'; offered none"
    with pytest.raises(ValueError, match="argument"):
        found.add(1, (("a", "b"), np.zeros(3)))


def test_long_lists_of_names_stay_short():
    many = [f"j{number:02d}" for number in range(13)]
    assert Joints(many).wanted_and_offered == (
        f"wanted {', '.join(map(repr, many[:12]))} and 1 more; offered none"
    )
    assert Joints(many[:12]).wanted_and_offered.startswith("wanted 'j00'")
    assert "more" not in Joints(many[:12]).wanted_and_offered
    assert Joints(["x" * 50]).wanted_and_offered == f"wanted '{'x' * 40}'; offered none"


def test_a_robot_that_makes_up_names_fills_no_memory():
    found = Joints(("a",))
    for number in range(1100):
        found.add(number, ((f"n{number}",), np.zeros(1)))
    assert len(found.offered) == 1024


def test_forgetting_leaves_the_neighbors_of_what_is_to_come():
    found = named((0, {"a": 0.0, "b": 0.0}), (10, {"a": 1.0, "b": 1.0}), (20, {"a": 2.0, "b": 2.0}))
    found.forget(15)
    assert found.at(15, 99).value.tolist() == [1.5, 1.5]
    assert found.at(0, 9) is None
    whole = Joints(size=1)
    for stamp in (0, 10, 20):
        whole.add(stamp, ((), np.array([stamp / 10])))
    whole.forget(15)
    assert whole.at(15, 99).value.tolist() == [1.5]
    assert whole.at(0, 9) is None and whole.lacks(0) == gap(StampedValue(10, None), 0)


# Joined


def joining(wait_ns=500 * MS, slop_ns=25 * MS, **parts):
    return Assembler(lambda: PairingWindow(slop_ns, wait_ns), parts)


def image(stamp, received=None):
    at = stamp if received is None else received
    return StreamMessage(stamp, Moment(at, at), IMAGE)


def test_images_that_wait_are_given_up_one_by_one_when_there_are_too_many():
    join = joining(wait_ns=10**12, joint_states=Nearest(4))
    for number in range(WAITING + 2):
        assert join.image(image(SECOND + number, SECOND)) is None
    assert len(join.lost()) == 2
    found = join.add("joint_states", StreamMessage(SECOND, Moment(SECOND, SECOND), np.zeros(1)))
    assert found.stamp_ns == SECOND + WAITING + 1, "the newest"
    assert join.lost() == [], "the older ones lack nothing"


def test_an_image_waits_exactly_as_long_as_it_may():
    for late, waits in ((500 * MS, True), (500 * MS + 1, False)):
        join = joining(joint_states=Nearest(4))
        join.image(image(SECOND))
        now = SECOND + late
        said = StreamMessage(SECOND, Moment(now, now), np.ones(1))
        assert (join.add("joint_states", said) is not None) is waits


def test_an_image_that_came_just_now_is_old_and_not_given_up():
    """A slow camera: its image is older than any may wait, and was never waited for."""
    join = joining(wait_ns=10 * MS)
    found = join.image(image(SECOND, SECOND + 200 * MS))
    assert found.stamp_ns == SECOND and join.lost() == []


def test_an_image_out_of_order_is_lost_and_one_again_is_not():
    join = joining()
    assert join.image(image(SECOND + 40 * MS, SECOND + 50 * MS)) is not None
    assert join.image(image(SECOND, SECOND + 50 * MS)) is None
    (lost,) = join.lost()
    assert (lost.stream, lost.reason) == ("image", "out of order by 40.0 ms")
    assert join.image(image(SECOND + 40 * MS, SECOND + 60 * MS)) is not None
    assert join.lost() == []
    back = join.image(image(SECOND - 60 * MS, SECOND - 50 * MS))
    assert back is not None, "received before the newest: the clock was set back"


def test_an_image_without_a_stamp_is_left_to_those_who_refuse_it():
    join = joining()
    join.image(image(SECOND))
    assert join.image(image(0, SECOND)).stamp_ns == 0 and join.lost() == []


def test_two_observations_on_one_picture_have_two_names():
    join = joining(wrist_image=Nearest(4))
    join.add("wrist_image", StreamMessage(SECOND, Moment(SECOND, SECOND), IMAGE))
    names = [join.image(image(SECOND + late * MS)).stamp_ns for late in (5, 10, 15)]
    assert names == [SECOND, SECOND + 1, SECOND + 2]
    join.add("wrist_image", StreamMessage(SECOND + 20 * MS, Moment(SECOND, SECOND), IMAGE))
    assert join.image(image(SECOND + 20 * MS)).stamp_ns == SECOND + 20 * MS


def test_a_picture_lends_its_stamp_to_a_thousand_observations():
    join = joining(wrist_image=Nearest(4))
    join.add("wrist_image", StreamMessage(SECOND, Moment(SECOND, SECOND), IMAGE))
    names = [join.image(image(SECOND + late)).stamp_ns for late in range(1002)]
    assert names[:1001] == list(range(SECOND, SECOND + 1001))
    assert names[1001] == SECOND, "it is refused later on"


def test_an_observation_says_when_its_image_came():
    assert joining().image(image(SECOND)).poses == {}
    join = joining(ground_truth=Nearest(4))
    poses = {"cube": Pose((0.0, 0.0, 0.0), LEVEL)}
    join.add("ground_truth", StreamMessage(SECOND, Moment(SECOND, SECOND), poses))
    found = join.image(StreamMessage(SECOND, Moment(SECOND + 3, SECOND + 77), IMAGE))
    assert (found.received_ns, found.received_steady_ns) == (SECOND + 3, SECOND + 77)
    assert found.poses == poses and found.wrist_image is None and found.proprio is None
    assert found.more_images == {}


def test_what_a_later_image_may_need_is_kept():
    join = joining(wrist_image=Nearest(8))
    for ms in (0, 10, 20):
        at = SECOND + ms * MS
        join.add("wrist_image", StreamMessage(at, Moment(SECOND, SECOND), ms))
    first, second = join.image(image(SECOND)), join.image(image(SECOND + 6 * MS))
    assert (first.wrist_image, second.wrist_image) == (0, 10)


def test_pictures_that_wait_for_a_silent_stream_are_bounded_in_bytes():
    """Two further cameras and the main one, 1080p, for ten seconds without joint states."""
    cameras = ("wrist_image", "left_image")
    parts = {name: Nearest(IMAGES, IMAGE_BYTES) for name in cameras}
    window = PairingWindow(25 * MS, SECOND // 2)
    found = Assembler(
        lambda: window, parts | {"joint_states": Joints(("j",))}, more_cameras={"left_image": "l"}
    )
    made, most = [], 0
    for number in range(1, 301):
        now = Moment(number * SECOND // 30, number * SECOND // 30)
        for name in (*cameras, "image"):
            picture = np.zeros((1080, 1920, 3), np.uint8)  # nobody writes: it takes no memory
            made.append((weakref.ref(picture), picture.nbytes))
            sample = StreamMessage(now.now_ns, now, picture)
            assert (found.image(sample) if name == "image" else found.add(name, sample)) is None
            del picture, sample
        found.lost()
        most = max(most, sum(size for one, size in made if one() is not None))
    assert most <= 3 * IMAGE_BYTES


# A clock set back


def at(now_s, steady_s):
    return Moment(round(now_s * SECOND), round(steady_s * SECOND))


def picture(now_s, steady_s):
    return StreamMessage(round(now_s * SECOND), at(now_s, steady_s), IMAGE)


def posed(now_s, steady_s, value):
    return StreamMessage(round(now_s * SECOND), at(now_s, steady_s), ((), np.array([value])))


def assembler():
    return Assembler(lambda: PairingWindow(25 * MS, 500 * MS), {"joint_states": Joints()})


def test_a_picture_that_waits_is_void_when_the_clock_is_set_back():
    """By 5 s: its stamp lies in the future, where new joints would meet it 5 s later."""
    joined = assembler()
    assert joined.image(picture(100.0, 10.0)) is None  # no joints yet
    assert joined.add("joint_states", posed(95.02, 10.02, 1.0)) is None
    (lost,) = joined.lost()
    assert (lost.stream, lost.kind) == ("image", "clock")
    assert lost.reason == "stamped before the clock was set back"
    assert joined.add("joint_states", posed(100.0, 15.0, 2.0)) is None
    found = joined.image(picture(100.01, 15.01))
    assert found is not None and found.stamp_ns == round(100.01 * SECOND)


def test_parts_from_before_a_clock_was_set_back_are_void():
    joined = assembler()
    joined.add("joint_states", posed(100.0, 10.0, 7.0))
    joined.add("joint_states", posed(95.02, 10.02, 1.0))
    assert joined.image(picture(100.0, 15.0)) is None, "the joints of 5 s ago are no partner"
    joined.add("joint_states", posed(99.99, 15.01, 1.0))
    found = joined.image(picture(100.0, 15.02))
    assert found is not None and found.proprio.tolist() == [1.0]


def test_a_picture_that_took_longer_than_the_clock_s_step_is_void_too():
    """It was received before and is decoded in a thread of its own."""
    joined = assembler()
    joined.add("joint_states", posed(95.02, 10.02, 1.0))
    assert joined.image(picture(100.0, 10.0)) is None
    assert [lost.kind for lost in joined.lost()] == ["clock"]


def test_threads_that_deliver_out_of_turn_set_no_clock_back():
    joined = assembler()
    joined.add("joint_states", posed(100.02, 10.02, 1.0))
    assert joined.image(picture(100.0, 10.0)) is not None
    assert joined.lost() == []
