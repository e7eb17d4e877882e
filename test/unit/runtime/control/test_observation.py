"""Which images become observations when every stream comes late by a time of its own."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_ros.core.clock import MS, SECOND, Moment
from vla_ros.core.types import Observation, Pose
from vla_ros.runtime.control.joints import Joints
from vla_ros.runtime.control.observation import (
    IMAGES,
    Assembler,
    FrameCheck,
    Nearest,
    PairingWindow,
    Poses,
    StreamMessage,
    libero_oft,
)
from vla_ros.runtime.safety import Limits

START = 1_000 * SECOND


@dataclass
class Stream:
    """Messages of one sensor: stamped at ``rate_hz`` from ``phase_ms`` on, there ``late_ms`` (and
    up to ``jitter_ms``) after their stamp, a share of ``drop`` never."""

    name: str
    rate_hz: float
    late_ms: float = 0.0
    jitter_ms: float = 0.0
    drop: float = 0.0
    phase_ms: float = 0.0

    def messages(self, seconds: float, seed: int) -> list[tuple[int, int]]:
        """When each is there and its stamp, both in ns."""
        dice = random.Random(f"{self.name} {seed}")
        out = []
        for number in range(int(seconds * self.rate_hz)):
            stamp = START + round((number / self.rate_hz + self.phase_ms / 1e3) * SECOND)
            late = round((self.late_ms + dice.uniform(0.0, self.jitter_ms)) * MS)
            if dice.random() >= self.drop:
                out.append((stamp + late, stamp))
        return out


@dataclass
class Run:
    """What came of simulated arrivals."""

    offered: list[tuple[int, int]]  # images that arrived: when, stamp
    answered: list[int] = field(default_factory=list)  # stamps of the main images
    observations: list[Observation] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    @property
    def share(self) -> str:
        return f"{len(self.answered)} of {len(self.offered)}"


def play(
    camera: Stream, *others: Stream, slop_ms: float = 25.0, wait_s: float = 0.5,
    seconds: float = 20.0, seed: int = 0,
) -> Run:  # fmt: skip
    """Deliver everything in the order it is there, through the loop's own check of stamps."""
    join = assembler(*(other.name for other in others), slop_ms=slop_ms, wait_s=wait_s)
    check, limits = FrameCheck(sim_time=False, detect_frozen=False), Limits(max_age_s=wait_s)
    run = Run(camera.messages(seconds, seed))
    arrivals = [(at, 0, camera.name, stamp) for at, stamp in run.offered]
    for other in others:
        arrivals += [(at, 1, other.name, stamp) for at, stamp in other.messages(seconds, seed)]
    for at, _, name, stamp in sorted(arrivals):
        observation = deliver(join, name, stamp, at)
        run.lost += [lost.reason for lost in join.lost()]
        if observation is None:
            continue
        if check.refuse(observation, limits) is None:
            run.observations.append(observation)
            run.answered.append(observation_image(observation))
    return run


def picture(stamp: int) -> np.ndarray:
    """An image that knows its stamp."""
    return np.frombuffer(stamp.to_bytes(12, "little"), np.uint8).reshape(2, 2, 3)


def observation_image(observation: Observation) -> int:
    """Stamp of the main image of an observation."""
    return int.from_bytes(observation.image.tobytes(), "little")


def assembler(
    *names: str, slop_ms: float = 25.0, wait_s: float = 0.5, joints: Joints | None = None
) -> Assembler:
    parts = {
        "wrist_image": Nearest(IMAGES),
        "joint_states": joints or Joints(("a", "b")),
        "end_effector_pose": Poses(),
    }
    window = PairingWindow(round(slop_ms * MS), round(wait_s * SECOND))
    return Assembler(lambda: window, {name: parts[name] for name in names})


def state(stamp: int) -> tuple[tuple[str, ...], np.ndarray]:
    """Joint "a" moves by 1 rad/s from the start on, "b" the other way."""
    seconds = (stamp - START) / SECOND
    return ("b", "a"), np.array([-seconds, seconds])


def deliver(join: Assembler, name: str, stamp: int, at: int) -> Observation | None:
    received = Moment(at, at)
    if name == "image":
        return join.image(StreamMessage(stamp, received, picture(stamp)))
    value = picture(stamp) if name == "wrist_image" else state(stamp)
    return join.add(name, StreamMessage(stamp, received, value))


def answerable(camera: Stream, *others: Stream, slop_ms: float, wait_s: float, seconds: float,
               seed: int) -> set[int]:  # fmt: skip
    """The images that could be answered, from the whole record: complete once everything within
    the slop that is first of its stream is there, before they are too old, and before a newer
    image was complete. Written without a look at the code under test."""
    slop, wait = round(slop_ms * MS), round(wait_s * SECOND)
    complete: list[tuple[int, int]] = []  # stamp, when
    records = [other.messages(seconds, seed) for other in others]
    for at, stamp in camera.messages(seconds, seed):
        firsts = [
            min((t for t, s in record if abs(s - stamp) <= slop), default=None)
            for record in records
        ]
        if all(first is not None for first in firsts):
            ready = max([at, *(first for first in firsts if first is not None)])
            if ready - stamp <= wait:
                complete.append((stamp, ready))
    return {
        stamp for stamp, ready in complete
        if not any(s > stamp and r <= ready for s, r in complete)
    }  # fmt: skip


CAMERA = Stream("image", 20.0, late_ms=40.0, jitter_ms=8.0)
STATES = Stream("joint_states", 200.0)
WRIST = Stream("wrist_image", 20.0, late_ms=65.0, jitter_ms=8.0, phase_ms=17.0)


def test_every_image_that_is_40_ms_late_meets_a_200_hz_joint_state() -> None:
    run = play(CAMERA, STATES)
    assert run.share == "400 of 400"
    assert run.lost == []


def test_two_cameras_late_by_different_times_and_joint_states() -> None:
    run = play(CAMERA, WRIST, STATES)
    assert len(run.answered) >= len(run.offered) - 1, run.share  # the very last may lack its pair
    for observation in run.observations:
        assert observation.wrist_image is not None
        wrist = int.from_bytes(observation.wrist_image.tobytes(), "little")
        assert abs(wrist - observation_image(observation)) <= 25 * MS
        assert observation.stamp_ns == min(wrist, observation_image(observation))


@pytest.mark.parametrize("slow", ["wrist_image", "joint_states"])
def test_a_stream_at_10_hz_answers_all_with_the_slop_for_it(slow: str) -> None:
    ten = Stream(slow, 10.0, late_ms=20.0, phase_ms=3.0)
    run = play(CAMERA, ten, slop_ms=50.0)
    assert len(run.answered) >= len(run.offered) - 1, run.share
    stamps = [o.stamp_ns for o in run.observations]
    assert all(a < b for a, b in zip(stamps[:-1], stamps[1:], strict=True))  # each a name


def test_of_20_percent_drops_only_what_lacks_a_partner_is_lost() -> None:
    lossy = [Stream(s.name, s.rate_hz, s.late_ms, s.jitter_ms, 0.2, s.phase_ms)
             for s in (CAMERA, WRIST, STATES)]  # fmt: skip
    run = play(*lossy)
    assert set(run.answered) == answerable(*lossy, slop_ms=25.0, wait_s=0.5, seconds=20.0, seed=0)
    # All but those whose own wrist image was dropped.
    assert len(run.answered) >= 0.75 * len(run.offered), run.share
    assert all(reason.startswith("no wrist_image within 25.0 ms") for reason in run.lost)
    assert len(run.answered) + len(run.lost) >= len(run.offered) - 2


LATE = st.floats(0.0, 300.0)


def test_an_image_that_was_overtaken_takes_no_name_from_a_newer_one() -> None:
    """Three images by one wrist image; the oldest comes second."""
    camera = Stream("image", 53.0, jitter_ms=24.0)
    given = {"slop_ms": 31.0, "wait_s": 0.5, "seconds": 3.0, "seed": 0}
    slow = Stream("wrist_image", 5.0), Stream("joint_states", 5.0)
    run = play(camera, *slow, **given)
    assert set(run.answered) == answerable(camera, *slow, **given)
    assert any(reason.startswith("out of order by") for reason in run.lost)


def test_an_image_of_the_future_does_not_make_all_that_follow_late() -> None:
    join = assembler()
    assert deliver(join, "image", START + 3600 * SECOND, START) is not None  # for others to refuse
    assert deliver(join, "image", START + 50 * MS, START + 50 * MS) is not None
    assert join.lost() == []


@given(
    camera=st.builds(Stream, st.just("image"), st.floats(5.0, 60.0), LATE, st.floats(0.0, 40.0),
                     st.floats(0.0, 0.4)),
    wrist=st.builds(Stream, st.just("wrist_image"), st.floats(5.0, 60.0), LATE,
                    st.floats(0.0, 40.0), st.floats(0.0, 0.4), st.floats(0.0, 100.0)),
    joints=st.builds(Stream, st.just("joint_states"), st.floats(5.0, 250.0), LATE,
                     st.floats(0.0, 40.0), st.floats(0.0, 0.4), st.floats(0.0, 100.0)),
    slop_ms=st.floats(1.0, 60.0),
    seed=st.integers(0, 100),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_exactly_what_can_be_answered_is(
    camera: Stream, wrist: Stream, joints: Stream, slop_ms: float, seed: int
) -> None:
    given = {"slop_ms": slop_ms, "wait_s": 0.5, "seconds": 3.0, "seed": seed}
    run = play(camera, wrist, joints, **given)
    assert set(run.answered) == answerable(camera, wrist, joints, **given)
    assert len(run.answered) == len(set(run.answered))


def test_joints_are_interpolated_to_the_image_and_put_in_order() -> None:
    run = play(Stream("image", 20.0, late_ms=40.0, phase_ms=1.7), Stream("joint_states", 100.0))
    for observation in run.observations:
        assert observation.proprio is not None
        seconds = (observation_image(observation) - START) / SECOND
        np.testing.assert_allclose(observation.proprio, [seconds, -seconds], atol=1e-9)


def test_parts_of_equal_stamps_join_one_way_only() -> None:
    """Lock-step: image, wrist and states of one instant, in any order, and once more."""
    names = ["image", "wrist_image", "joint_states"]
    for order in range(50):
        join = assembler("wrist_image", "joint_states")
        dice = random.Random(order)
        for step in range(1, 6):
            stamp, out = START + step * 50 * MS, []
            for name in dice.sample(names, 3):
                out.append(deliver(join, name, stamp, stamp))
            (observation,) = [o for o in out if o is not None]
            assert observation.stamp_ns == stamp
            assert observation.wrist_image is not None
            assert observation.wrist_image.tobytes() == observation.image.tobytes()
            assert observation.proprio is not None
            assert observation.proprio.tolist() == state(stamp)[1][::-1].tolist()
            again = deliver(join, "image", stamp, stamp)
            assert again is not None  # a frame that comes again is answered again
            assert again.stamp_ns == stamp
        assert join.lost() == []


def test_what_is_lacking_is_named_with_the_gap() -> None:
    join = assembler("wrist_image", "joint_states")
    deliver(join, "joint_states", START - 812_400_000, START)
    assert deliver(join, "image", START, START) is None
    deliver(join, "wrist_image", START, START)
    assert deliver(join, "joint_states", START - 700 * MS, START + 501 * MS) is None
    (lost,) = join.lost()
    assert lost.stream == "joint_states"
    assert lost.reason == (
        "no joint_states within 25.0 ms of the image: joint_states is 700.0 ms older than the"
        " image at its nearest"
    )
    assert join.lost() == []
    silent = assembler("wrist_image")
    deliver(silent, "image", START, START)
    deliver(silent, "image", START + SECOND, START + SECOND)
    assert [lost.reason for lost in silent.lost()] == [
        "no wrist_image within 25.0 ms of the image: wrist_image has said nothing yet"
    ]


def test_further_cameras_are_joined_and_the_oldest_picture_is_the_observation() -> None:
    parts = {"left_image": Nearest[int](IMAGES), "belt_image": Nearest[int](IMAGES)}
    cameras = {"left_image": "left", "belt_image": "belt"}
    join = Assembler(lambda: PairingWindow(25 * MS, SECOND), parts, more_cameras=cameras)

    def at(ms: int) -> StreamMessage:
        return StreamMessage(START + ms * MS, Moment(START + ms * MS, START + ms * MS), ms)

    assert join.image(at(100)) is None
    assert join.add("left_image", at(90)) is None
    found = join.add("belt_image", at(110))
    assert found is not None
    assert found.more_images == {"left": 90, "belt": 110}
    assert found.stamp_ns == START + 90 * MS
    assert found.wrist_image is None


# State by name


def test_partial_messages_of_several_publishers_are_merged_by_name() -> None:
    joints = Joints(("elbow", "finger", "shoulder"))
    join = assembler("joint_states", joints=joints)
    arm = (("shoulder", "elbow", "extra"), np.array([1.0, 2.0, 9.0]))
    hand = (("finger",), np.array([0.04]))
    received = Moment(START, START)
    assert deliver(join, "image", START, START) is None
    assert join.add("joint_states", StreamMessage(START, received, arm)) is None  # no finger yet
    observation = join.add("joint_states", StreamMessage(START + 3 * MS, received, hand))
    assert observation is not None
    assert observation.proprio is not None
    assert observation.proprio.tolist() == [2.0, 0.04, 1.0]
    assert joints.extra == ["extra"]


def test_a_name_that_has_fallen_silent_is_not_taken_from_the_past() -> None:
    join = assembler("joint_states", joints=Joints(("arm", "finger")))
    received = Moment(START, START)
    join.add("joint_states", StreamMessage(START, received, (("finger",), np.array([0.04]))))
    later = START + 200 * MS
    join.add("joint_states", StreamMessage(later, received, (("arm",), np.array([1.0]))))
    assert deliver(join, "image", later, later) is None
    assert deliver(join, "image", later + SECOND, later + SECOND) is None
    (lost,) = join.lost()
    assert lost.reason.endswith("is 200.0 ms older than the image at its nearest")
    assert lost.kind == "apart"


def test_missing_names_are_told_with_what_was_wanted_and_offered() -> None:
    joints = Joints(("arm", "thumb"))
    join = assembler("joint_states", joints=joints)
    received = Moment(START, START)
    join.add(
        "joint_states", StreamMessage(START, received, (("arm", "finger"), np.array([1.0, 2.0])))
    )
    deliver(join, "image", START, START)
    deliver(join, "image", START + SECOND, START + SECOND)
    assert join.lost()[0].reason == (
        "joint_states has no 'thumb': wanted 'arm', 'thumb'; offered 'arm', 'finger'"
    )


def test_without_names_a_message_is_the_state_and_its_size_is_checked() -> None:
    whole = Joints(size=3)
    whole.add(START, (("x", "y"), np.array([1.0, 2.0])))
    assert whole.at(START, MS) is None
    assert whole.lacks(START).text == "has 2 values, the checkpoint needs 3"
    whole.add(START, ((), np.array([1.0, 2.0, 3.0])))
    found = whole.at(START, MS)
    assert found is not None
    assert found.value.tolist() == [1.0, 2.0, 3.0]


# Poses, layouts


DRIVERS = {
    "of either sign": lambda q, i: -q if i % 2 else q,
    "w above 0": lambda q, i: -q if q[3] < 0 else q,
    "w below 0": lambda q, i: -q if q[3] > 0 else q,
    "steady": lambda q, i: q,
    "steady, the other": lambda q, i: -q,
}


def pose_of(quaternion: np.ndarray) -> Pose:
    x, y, z, w = map(float, quaternion)
    return Pose((0.4, 0.0, 0.3), (x, y, z, w))


def about_x(angle: float) -> np.ndarray:
    return np.array([np.sin(angle / 2), 0.0, 0.0, np.cos(angle / 2)])


def rotations(poses: Poses, angles: np.ndarray, driver: str = "steady") -> np.ndarray:
    """What a policy with LIBERO's state is shown of a hand that is turned so about x."""
    out = []
    for i, angle in enumerate(angles):
        stamp = START + i * SECOND
        poses.add(stamp, pose_of(DRIVERS[driver](about_x(angle), i)))
        found = poses.at(stamp, MS)
        assert found is not None
        values = {"end_effector_pose": found.value, "joint_states": np.zeros(2)}
        out.append(libero_oft(values)[3:6])
    return np.array(out)


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_hand_that_points_down_and_trembles_is_seen_as_libero_shows_it(driver: str) -> None:
    """LIBERO's hand starts at half a turn about x, with x above 0 and w of either sign."""
    trembles = np.pi + np.radians(0.5) * np.sin(np.arange(91) / 7)
    seen = rotations(Poses(), trembles, driver)
    np.testing.assert_allclose(seen[:, 0], trembles)
    np.testing.assert_allclose(seen[:, 1:], 0.0, atol=1e-9)


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_hand_that_points_up_is_hardly_turned(driver: str) -> None:
    trembles = np.radians(0.5) * np.sin(np.arange(1, 91) / 7)
    np.testing.assert_allclose(rotations(Poses(), trembles, driver)[:, 0], trembles, atol=1e-9)


def test_a_rotation_goes_on_where_the_one_before_was_until_there_is_another_task() -> None:
    task = [0]
    poses = Poses(lambda: task[0])
    whole = np.linspace(np.pi, 3 * np.pi, 41)  # a turn: LIBERO's angle is 0 to 2 pi
    seen = rotations(poses, whole)
    np.testing.assert_allclose(seen[:20, 0], whole[:20])
    np.testing.assert_allclose(seen[21:, 0], whole[21:] - 4 * np.pi)
    again = rotations(poses, whole[-1:])
    np.testing.assert_allclose(again[0], [-np.pi, 0.0, 0.0], atol=1e-9)
    task[0] = 1
    np.testing.assert_allclose(rotations(poses, whole[-1:])[0], [np.pi, 0.0, 0.0], atol=1e-9)
    rotations(poses, whole)
    poses.clear()
    np.testing.assert_allclose(rotations(poses, whole[-1:])[0], [np.pi, 0.0, 0.0], atol=1e-9)


def test_liberos_state_is_position_axis_angle_and_two_fingers() -> None:
    half = float(np.sqrt(0.5))
    pose = Pose((0.1, 0.2, 0.3), (half, 0.0, 0.0, half))
    both = libero_oft({"end_effector_pose": pose, "joint_states": np.array([0.04, -0.04])})
    np.testing.assert_allclose(both, [0.1, 0.2, 0.3, np.pi / 2, 0, 0, 0.04, -0.04])
    one = libero_oft({"end_effector_pose": pose, "joint_states": np.array([0.04])})
    np.testing.assert_allclose(one, both)
