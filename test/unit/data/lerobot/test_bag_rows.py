"""Bags as rows, without LeRobot: ours and strangers', and bags that make none."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("rosbags", reason="rosbags is not installed: pip install '.[replay]'")

from support.bags import (
    START,
    STORE,
    Entry,
    T,
    action,
    chunk,
    film,
    header,
    image,
    joints,
    picture,
    png,
    task,
    write_bag,
)
from vla_ros.cli.main import main
from vla_ros.core.types import CommandKind, Instruction
from vla_ros.data.bags import Bag, BagError
from vla_ros.data.lerobot.from_bags import BagOptions, BagRows, Bags


def rows_of(path, **options):
    with Bag(path) as bag:
        found = BagRows(bag, BagOptions(**options))
        return found, list(found.rows())


def ours(count=6, tasks=1):
    entries = [task(START - T, "reach")]
    for i in range(count):
        entries += [image(START + i * T, picture(i)), joints(START + i * T, i / 10)]
        entries.append(action(START + i * T, [i / 100] * 7, epoch=1 + i // 4))
    return sorted(entries, key=lambda e: e.at_ns)


def test_a_bag_of_ours(tmp_path):
    held = action(START + 3 * T, [0.0] * 7, kind=CommandKind.HELD)
    found, rows = rows_of(write_bag(tmp_path / "bag", [*ours(), held]))
    assert (len(found), found.episodes, found.fps) == (6, 2, 20)
    assert found.dropped == {"HELD, which is no policy's": 1}
    for i, row in enumerate(rows):
        np.testing.assert_array_equal(row.images["main"], picture(i))
        np.testing.assert_array_equal(row.numbers["action"], np.float32([i / 100] * 7))
        assert row.numbers["observation.state"] == np.float32(i / 10)
        assert row.numbers["timing.action_observation_age_s"] == pytest.approx(
            0.01
        )  # bags.action: T / 5
        assert (row.task, row.episode) == ("reach", i // 4)
    with Bag(tmp_path / "bag") as bag:
        columns = BagRows(bag, BagOptions()).columns()
    assert columns.cameras == {"main": (32, 32)}
    assert columns.numbers[0].names == ("x", "y", "z", "rx", "ry", "rz", "gripper")


def test_a_persons_actions_are_marked_and_belong_to_the_episode_that_they_helped(tmp_path):
    kinds = [CommandKind.POLICY] * 2 + [CommandKind.TAKEOVER] * 2 + [CommandKind.POLICY] * 3
    epochs = [1, 1, 1, 1, 2, 2, 3]  # given back, and later a reset
    entries = [task(START - T, "reach")]
    for i, (kind, epoch) in enumerate(zip(kinds, epochs, strict=True)):
        entries.append(image(START + i * T, picture(i)))
        entries.append(action(START + i * T, [i / 100] * 7, epoch=epoch, kind=kind))
    _, rows = rows_of(write_bag(tmp_path / "bag", entries))
    assert [bool(row.numbers["intervention"][0]) for row in rows] == [k == 3 for k in kinds]
    assert [row.episode for row in rows] == [0] * 6 + [1]
    with Bag(tmp_path / "bag") as bag:
        features = BagRows(bag, BagOptions()).columns().features(videos=False)
    assert features["intervention"] == {"dtype": "bool", "shape": [1], "names": None}


def test_what_the_policy_said_itself_stands_beside_what_was_done(tmp_path):
    """A person acts in the third and fourth period; the policy goes on answering, in chunks of
    which the gate cuts what moves the robot, and falls silent in the end."""
    entries = [task(START - T, "reach")]
    for i in range(6):
        at = START + i * T
        entries.append(image(at, picture(i)))
        if i < 4:
            entries.append(chunk(at, [[i + 0.5] * 7, [i + 0.75] * 7], "reach"))
        kind = CommandKind.TAKEOVER if i in (2, 3) else CommandKind.POLICY
        one = action(at, [i / 100] * 7, kind=kind)
        one.content.instruction_hash = Instruction("reach", 1).digest
        if i == 1:  # the second action of the chunk before
            one.content.chunk_index, one.content.observation_stamp = 1, header(START).stamp
        entries.append(one)
    _, rows = rows_of(write_bag(tmp_path / "bag", entries), max_age_s=0.09)
    said = [float(row.numbers["policy.action"][0]) for row in rows]
    # Then: the last one's second, which is due; and at last one that is too old to be an answer.
    np.testing.assert_allclose(said, [0.5, 0.75, 2.5, 3.5, 3.75, 0.05])
    answered = [bool(row.numbers["policy.answered"][0]) for row in rows]
    assert answered == [True] * 5 + [False]
    delays = [float(row.numbers["timing.delay_s"][0]) for row in rows]
    np.testing.assert_allclose(delays, [0.01] * 5 + [0.0])  # bags.chunk: T / 5
    with Bag(tmp_path / "bag") as bag:
        features = BagRows(bag, BagOptions()).columns().features(videos=False)
    assert features["policy.action"]["names"] == features["action"]["names"]
    mute = [entry for entry in entries if "chunk" not in entry.topic]
    _, rows = rows_of(write_bag(tmp_path / "mute", mute))
    assert "policy.action" not in rows[0].numbers


def array(at_ns, numbers, topic="/cmd"):
    kind = "std_msgs/msg/Float64MultiArray"
    layout = STORE.types["std_msgs/msg/MultiArrayLayout"](dim=[], data_offset=0)
    content = STORE.types[kind](layout=layout, data=np.array(numbers, dtype=np.float64))
    return Entry(topic, at_ns, kind, content)


def pose(at_ns, x, topic="/hand"):
    types, kind = STORE.types, "geometry_msgs/msg/PoseStamped"
    place = types["geometry_msgs/msg/Point"](x=x, y=0.0, z=0.0)
    turn = types["geometry_msgs/msg/Quaternion"](x=0.0, y=0.0, z=0.0, w=1.0)
    inner = types["geometry_msgs/msg/Pose"](position=place, orientation=turn)
    return Entry(topic, at_ns, kind, types[kind](header=header(at_ns), pose=inner))


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_a_strangers_bag(tmp_path, storage):
    """PNG images that arrive 30 ms late, unstamped commands, a pose, two more cameras, no task."""
    late = 30_000_000
    entries = []
    for i in range(5):
        one = png(START + i * T, picture(i), topic="/cam/color/compressed")
        entries.append(Entry(one.topic, one.at_ns + late, one.kind, one.content))
        entries.append(image(START + i * T, picture(50 + i), topic="/side/image_raw"))
        entries.append(pose(START + i * T, float(i)))
        entries.append(array(START + i * T + 20_000_000, [float(i)] * 7))
    entries.sort(key=lambda e: e.at_ns)
    bag = write_bag(tmp_path / "bag", entries, storage)
    remaps = {"image": "/cam/color/compressed", "policy/action": "/cmd",
              "end_effector_pose": "/hand"}  # fmt: skip
    found, rows = rows_of(
        bag, remaps=remaps, cameras={"side": "/side/image_raw"}, instruction="fold the towel"
    )
    # The first command came before any image had arrived; later ones have the image before.
    assert found.dropped == {"no main before it": 1}
    assert [row.numbers["action"][0] for row in rows] == [1, 2, 3, 4]
    for i, row in enumerate(rows, 1):
        np.testing.assert_array_equal(row.images["main"], picture(i - 1))
        np.testing.assert_array_equal(row.images["side"], picture(50 + i))
        assert row.numbers["observation.state"][0] == i
        assert row.task == "fold the towel"
    assert found.fps == 20 and found.episodes == 1


def test_bags_that_make_no_rows_say_why(tmp_path):
    still = write_bag(tmp_path / "still", [task(START, "reach"), *film(3)])
    with pytest.raises(BagError, match="no actions: name their topic with -r policy/action=TOPIC"):
        rows_of(still)
    mute = [entry for entry in ours() if entry.topic != "/instruction"]
    with pytest.raises(BagError, match="6 no instruction: give one with --instruction"):
        rows_of(write_bag(tmp_path / "mute", mute))
    assert len(rows_of(tmp_path / "mute", instruction="reach")[1]) == 6
    zero = [*ours(2), image(0, picture(9), at_ns=START + 9 * T)]
    with pytest.raises(BagError, match="1 images have no stamp"):
        rows_of(write_bag(tmp_path / "zero", zero))
    loop = [*ours(), *(image(START - 5 * 10**9, picture(9), at_ns=START + 99 * T),)]
    with pytest.raises(BagError, match="time goes back at image 6"):
        rows_of(write_bag(tmp_path / "loop", loop))


def test_several_bags_must_fit_together(tmp_path):
    one, two = (write_bag(tmp_path / name, ours()) for name in ("one", "two"))
    with Bags([one, two], BagOptions()) as bags:
        assert (len(bags), bags.episodes) == (12, 4)
        assert [row.episode for row in bags.rows()] == [0] * 4 + [1] * 2 + [2] * 4 + [3] * 2
    other = [e for e in ours() if e.topic != "/joint_states"]
    with pytest.raises(BagError, match=r"does not fit .*observation.state \[1\]"):
        Bags([one, write_bag(tmp_path / "other", other)], BagOptions())


def test_an_image_asked_for_twice_is_read_once_and_kept(tmp_path):
    """Three commands rest on one image, as those of a chunk do."""
    entries = [task(START - T, "reach"), *film(3)]
    entries += [action(START + T, [i / 10] * 7) for i in range(3)]
    _, rows = rows_of(write_bag(tmp_path / "bag", sorted(entries, key=lambda e: e.at_ns)), fps=20)
    for row in rows:
        np.testing.assert_array_equal(row.images["main"], picture(1))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--camera", "left"], "write NAME=TOPIC"),
        (["-r", "nonsense=/x"], "no role 'nonsense'"),
        (["--max-age", "0"], "above 0 seconds"),
    ],
)
def test_wrong_usage_is_one_line(tmp_path, capsys, words, said):
    bag = write_bag(tmp_path / "bag", ours())
    python = ["--python", "/bin/true"]
    status = main(["export", "--lerobot", str(bag), "--out", str(tmp_path / "x"), *words, *python])
    error = capsys.readouterr().err
    assert (status, error.count("\n")) == (2, 1) and said in error


def test_without_lerobot_one_line_says_what_to_do(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("VLA_ROS_LEROBOT_PYTHON", str(tmp_path / "none"))
    bag = write_bag(tmp_path / "bag", ours())
    assert main(["export", "--lerobot", str(bag), "--out", str(tmp_path / "x")]) == 2
    error = capsys.readouterr().err
    assert "make lerobot" in error and error.count("\n") == 1
    # A Python without it, and one that is none, are told apart from a data set that is no good.
    words = ["export", "--lerobot", str(bag), "--out", str(tmp_path / "x"), "--python"]
    assert main([*words, "/usr/bin/env"]) == 2
    assert "LeRobot's Python ended" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
