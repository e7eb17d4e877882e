"""Frames of a bag: which are shown, with what, and which bags are refused."""

from __future__ import annotations

import pytest

pytest.importorskip(
    "rosbags", reason="rosbags is not installed: pip install '.[replay]' in the checkout"
)

from support.bags import SECOND, START, T, film, image, joints, picture, png, task, write_bag
from vla_ros.data.bag_frames import lacking, parse_remaps, pick, read_frames, restamped, scan
from vla_ros.data.bags import Bag, BagError, BagTopic

RAW = ("rgb8", "bgr8", "mono8")
IMAGE = "sensor_msgs/msg/Image"


def judge(path, remaps=(), first=0, last=None):
    with Bag(path) as bag:
        return scan(bag, pick(bag.topics, parse_remaps(remaps)), RAW, 10.0, first, last)


def test_frames_are_read_with_the_companions_nearest_in_time(tmp_path):
    wrist = [image(START + i * T + 2, picture(99 + i), topic="/wrist_image") for i in range(5)]
    states = [joints(START + i * T // 5 - 7, float(i)) for i in range(30)]
    entries = sorted([*film(5), *wrist, *states], key=lambda entry: entry.at_ns)
    with Bag(write_bag(tmp_path / "bag", entries)) as bag:
        picked = pick(bag.topics, {})
        frames = scan(bag, picked, RAW, 10.0)
        assert frames.rate_hz == pytest.approx(20.0)
        needs = ("joint_states", "wrist_image")
        read = list(read_frames(bag, picked, frames, needs, T // 2))
    assert [f.image_ns for f in read] == [START + i * T for i in range(5)]
    for i, frame in enumerate(read):
        assert [part.role for part in frame.parts] == ["joint_states", "wrist_image", "image"]
        state, hand, _ = frame.parts
        assert state.stamp_ns == START + i * T - 7
        assert hand.stamp_ns == START + i * T + 2
        assert frame.stamp_ns == frame.image_ns  # the older one of both cameras
        assert lacking(frame, needs, T // 2) == ""


def test_a_frame_without_its_companion_says_so(tmp_path):
    entries = [*film(3), joints(START), joints(START + 2 * T)]
    with Bag(write_bag(tmp_path / "bag", entries)) as bag:
        picked = pick(bag.topics, {})
        read = read_frames(bag, picked, scan(bag, picked, RAW, 10.0), ("joint_states",), T // 2)
        said = [lacking(frame, ("joint_states",), T // 2) for frame in read]
    assert said == ["", "no joint_states within 25 ms", ""]


def test_a_bag_without_a_topic_that_the_policy_needs(tmp_path):
    with Bag(write_bag(tmp_path / "bag", film(2))) as bag:
        picked = pick(bag.topics, {})
        frames = scan(bag, picked, RAW, 10.0)
        with pytest.raises(BagError, match="the policy needs ground_truth, which the bag lacks"):
            list(read_frames(bag, picked, frames, ("ground_truth",), T // 2))


def test_frames_that_come_twice_or_late_are_left_out(tmp_path):
    frames = film(4)
    again = image(START + T, picture(1), at_ns=START + T + 5)
    late = image(START + T // 2, picture(7), at_ns=START + 2 * T + 5)
    path = write_bag(tmp_path / "bag", [frames[0], frames[1], again, frames[2], late, frames[3]])
    found = judge(path)
    assert len(found.times) == 4
    assert (found.repeated, found.late) == (1, 1)
    with Bag(path) as bag:
        read = read_frames(bag, pick(bag.topics, {}), found, (), T)
        assert [frame.at_ns for frame in read] == [t.at_ns for t in found.times]


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_bags_that_loop_or_jump_are_refused_with_the_part_that_can_be_had(tmp_path, storage):
    step = 40 * T
    once = film(4, step)
    loop = [image(START + i * step, picture(i), at_ns=START + (5 + i) * step) for i in range(4)]
    path = write_bag(tmp_path / "loop", [*once, *loop], storage)
    with pytest.raises(BagError, match=r"time goes back by 6\.0 s at frame 4 .*--frames 0:3"):
        judge(path)
    assert len(judge(path, last=3).times) == 4
    assert len(judge(path, first=4).times) == 4

    jump = [*film(3), image(START + 60 * SECOND, picture(9))]
    path = write_bag(tmp_path / "jump", jump, storage)
    with pytest.raises(BagError, match=r"jumps ahead by 59\.9 s at frame 3: .*--max-gap"):
        judge(path)


def test_wrong_contents_are_refused_in_one_line(tmp_path):
    for name, entries, said in (
        ("depth", [image(START, picture(0), "16UC1")], "encoding '16UC1' is not supported, only"),
        ("zero", [image(0, picture(0), at_ns=START)], "frame 0 has no stamp"),
        ("none", [task(START, "reach")], "the bag has no camera images"),
        ("two", [*film(1, topic="/left"), *film(1, topic="/right")], "several cameras (/left, /ri"),
    ):
        with pytest.raises(BagError) as caught:
            judge(write_bag(tmp_path / name, entries))
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)
    broken = png(START, picture(0))
    broken.content.data[:] = 0
    with pytest.raises(BagError, match="only JPEG and PNG"):
        judge(write_bag(tmp_path / "broken", [broken]))


def test_topics_are_picked_by_name_type_or_remap():
    def topic(name, kind=IMAGE, count=1):
        return BagTopic(name, kind, count)

    joints = topic("/joint_states", "sensor_msgs/msg/JointState")
    found = pick([topic("/arm/image"), topic("/arm/wrist_image"), joints], {})
    assert found.name("image") == "/arm/image"
    assert found.name("wrist_image") == "/arm/wrist_image"
    assert found.name("joint_states") == "/joint_states"
    assert found.name("instruction") is None
    # The only camera, whatever it is called; a topic without messages is none.
    assert pick([topic("/cam/color"), topic("/image", count=0)], {}).name("image") == "/cam/color"
    two = [topic("/left"), topic("/right"), joints]
    assert pick(two, parse_remaps(["image=right"])).name("image") == "/right"
    packed = pick([topic("/image/compressed", "sensor_msgs/msg/CompressedImage")], {})
    assert packed.compressed
    for remap, said in (
        ("image=/nowhere", "the bag has no topic /nowhere for image"),
        ("image=/joint_states", "/joint_states is a sensor_msgs/msg/JointState; image must be"),
        ("pictures=/left", "no role 'pictures'"),
        ("image", "write ROLE=TOPIC"),
    ):
        with pytest.raises(BagError, match=said):
            pick(two, parse_remaps([remap]))


def test_a_new_stamp_changes_nothing_else(tmp_path):
    with Bag(write_bag(tmp_path / "bag", film(1))) as bag:
        (message,) = bag.messages(["/image"])
        stamp = 1_700_000_000 * SECOND + 123_456_789
        from dataclasses import replace

        moved = bag.decode(replace(message, data=restamped(message.data, stamp)))
        assert (moved.header.stamp.sec, moved.header.stamp.nanosec) == (1_700_000_000, 123_456_789)
        assert (moved.data == bag.decode(message).data).all()
