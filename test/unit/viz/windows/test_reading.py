"""Messages as facts: what a window is shown of a bag, without any window."""

import math

import numpy as np
import pytest

pytest.importorskip("rosbags", reason="rosbags is not installed: pip install '.[replay]'")

from support.bags import (
    SECOND,
    START,
    STORE,
    Entry,
    T,
    action,
    header,
    image,
    joints,
    picture,
    png,
    task,
    time,
    write_bag,
)
from support.bags import _make as make
from vla_ros.data.bags import Bag, BagError
from vla_ros.viz.rerun import show_bag
from vla_ros.viz.robot_model import place_of
from vla_ros.viz.scene import (
    FrameTree,
    Lines,
    Numbers,
    Reader,
    SceneImage,
    ScenePose,
    SceneSolid,
    SceneState,
    Text,
    stamp_of,
)

URDF = """<robot name="r"><link name="base_link"><visual><geometry><box size="1 2 3"/></geometry>
</visual></link><link name="tip"><visual><geometry><sphere radius="0.1"/></geometry></visual></link>
<joint name="joint" type="prismatic"><parent link="base_link"/><child link="tip"/>
<axis xyz="0 0 1"/></joint></robot>"""


class Kept:
    """A window that keeps what it is shown."""

    def __init__(self):
        self.shown = []

    def show(self, fact, stamp_ns, recorded_ns):
        self.shown.append((fact, stamp_ns, recorded_ns))

    def of(self, kind, path):
        return [(f, at) for f, at, _ in self.shown if isinstance(f, kind) and f.path == path]


def shown(tmp_path, entries):
    kept = Kept()
    with Bag(write_bag(tmp_path / "bag", entries)) as bag:
        said = show_bag(bag, kept, lambda done, total: None)
    return kept, said


def pose(x):
    return make(
        "geometry_msgs/msg/Pose",
        position=make("geometry_msgs/msg/Point", x=x, y=0.0, z=0.0),
        orientation=make("geometry_msgs/msg/Quaternion", x=0.0, y=0.0, z=0.0, w=1.0),
    )


def poses(stamp, frame="world", **places):
    kind = "vla_ros/msg/NamedPoses"
    content = make(
        kind,
        header=header(stamp, frame),
        names=list(places),
        poses=[pose(x) for x in places.values()],
    )
    return Entry("/ground_truth", stamp, kind, content)


def transform(stamp, parent, child, x):
    kind = "tf2_msgs/msg/TFMessage"
    one = make(
        "geometry_msgs/msg/TransformStamped",
        header=header(stamp, parent),
        child_frame_id=child,
        transform=make(
            "geometry_msgs/msg/Transform",
            translation=make("geometry_msgs/msg/Vector3", x=x, y=0.0, z=0.0),
            rotation=make("geometry_msgs/msg/Quaternion", x=0.0, y=0.0, z=0.0, w=1.0),
        ),
    )
    return Entry("/tf", stamp, kind, make(kind, transforms=[one]))


def test_a_command_is_its_numbers_its_age_and_its_stages(tmp_path):
    numbers = [0.1, -0.2, 0.3, 0.0, 0.1, 0.2, 1.0]
    kept, said = shown(tmp_path, [action(START, numbers)])
    ((got, at),) = kept.of(Numbers, "policy/action/numbers")
    assert got.names == ("x", "y", "z", "rx", "ry", "rz", "gripper")
    assert got.values == tuple(numbers)
    assert at == START + T // 5  # the command's own stamp, not that of its frame
    ((age, _),) = kept.of(Numbers, "policy/action/age")
    assert age.values == pytest.approx((0.01,))
    ((stages, _),) = kept.of(Numbers, "policy/action/stages")
    assert sum(stages.values) == pytest.approx(0.010)
    ((kind, _),) = kept.of(SceneState, "policy/action/kind")
    assert kind.word == "POLICY"
    assert said.messages == 1 and said.skipped == () and said.malformed == {}


def test_a_stop_that_rests_on_nothing_has_no_age_and_no_stages(tmp_path):
    stop = action(START, [0.0] * 7, kind=2)
    stop.content.observation_stamp = time(0)
    kept, _ = shown(tmp_path, [stop])
    ((age, _),) = kept.of(Numbers, "policy/action/age")
    assert math.isnan(age.values[0])
    assert not kept.of(Numbers, "policy/action/stages")
    assert not kept.of(Numbers, "policy/action/staleness")


def test_pictures_are_decoded_raw_and_compressed(tmp_path):
    kept, _ = shown(tmp_path, [image(START, picture(1), "bgr8"), png(START + T, picture(2))])
    found = [fact for fact, *_ in kept.shown]
    assert [type(fact) for fact in found] == [SceneImage, SceneImage]
    assert found[0].path == found[1].path == "image"  # two ways of the same camera
    np.testing.assert_array_equal(found[0].image, picture(1))
    np.testing.assert_array_equal(found[1].image, picture(2))


def test_what_has_no_stamp_stands_at_the_newest_stamp_before_it(tmp_path):
    late = START + 700 * SECOND  # the recorder's clock is another one: a simulation's run
    entries = [
        task(late, "first"),
        image(START, picture(1), at_ns=late + T),
        task(late + 2 * T, "second"),
    ]
    kept, _ = shown(tmp_path, entries)
    assert [at for _, at in kept.of(Text, "instruction")] == [START, START]
    assert [recorded for *_, recorded in kept.shown] == [late, late + T, late + 2 * T]


def test_the_robot_stands_where_its_joints_and_transforms_say(tmp_path):
    entries = [
        transform(START, "world", "base_link", 2.0),
        task(START, URDF, "/robot_description"),
        joints(START + T, 0.5),
    ]
    kept, _ = shown(tmp_path, entries)
    solids = {f.path: f.shape.kind for f, *_ in kept.shown if isinstance(f, SceneSolid)}
    assert solids == {"world/robot/base_link/0": "box", "world/robot/tip/0": "sphere"}
    (*_, (tip, at)) = kept.of(ScenePose, "world/robot/tip")
    np.testing.assert_allclose(tip.at[:3, 3], [2.0, 0.0, 0.5])
    assert at == START + T
    ((frame, _),) = kept.of(ScenePose, "world/tf/base_link")
    np.testing.assert_allclose(frame.at[:3, 3], [2.0, 0.0, 0.0])


def test_the_arrow_begins_at_the_hand_and_ends_with_the_displacements(tmp_path):
    kept, _ = shown(
        tmp_path,
        [
            poses(START, gripper=1.0, red_cube=3.0),
            action(START, [0.1, 0, 0, 0, 0, 0, 1.0]),
            action(START + T, [0.0] * 7),
        ],
    )
    things = {f.path for f, *_ in kept.shown if isinstance(f, ScenePose)}
    assert things == {"world/things/red_cube"}
    moved, stood = (fact for fact, _ in kept.of(Lines, "world/commanded"))
    np.testing.assert_allclose(moved.ends[0, 0], [1.0, 0.0, 0.0])
    assert len(stood.ends) == 0  # and is taken away where nothing is commanded


def test_malformed_messages_are_left_out_and_counted(tmp_path):
    broken = image(START + T, picture(1))
    broken.content.encoding = "bayer_rggb8"
    kept, said = shown(tmp_path, [image(START, picture(1)), broken])
    assert len(kept.shown) == 1
    count, complaint = said.malformed["/image"]
    assert count == 1 and "bayer_rggb8" in complaint
    with pytest.raises(BagError, match="bayer_rggb8"):
        shown(tmp_path / "all", [broken])


def test_a_bag_of_other_things_is_refused_with_what_it_has(tmp_path):
    kind = "std_msgs/msg/Bool"
    with pytest.raises(BagError, match=r"/switch \(std_msgs/msg/Bool\)"):
        shown(tmp_path, [Entry("/switch", START, kind, make(kind, data=True))])


def test_every_type_that_is_read_exists(tmp_path):
    assert Reader().kinds <= set(STORE.fielddefs)


def test_transforms_make_a_tree_and_never_a_ring():
    frames = FrameTree()

    def at(x):
        return place_of((x, 0.0, 0.0), (0.0, 0.0, 0.0, 1.0))

    frames.set("a", "b", at(1.0))
    frames.set("b", "c", at(2.0))
    frames.set("c", "a", at(4.0))
    frames.set("d", "d", at(4.0))
    assert frames.place("c")[0, 3] == 3.0
    assert frames.place("a")[0, 3] == 0.0
    assert set(frames.below("b")) == {"b", "c"}


def test_stamps_are_found_wherever_a_message_has_them():
    assert stamp_of(image(START, picture(1)).content) == START
    assert stamp_of(transform(START, "a", "b", 0.0).content) == START
    assert stamp_of(task(START, "x").content) is None
    assert stamp_of(make("rosgraph_msgs/msg/Clock", clock=time(START))) == START
    assert stamp_of(image(0, picture(1)).content) is None  # a driver that leaves it zero
