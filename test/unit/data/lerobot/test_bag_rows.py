"""Bags as rows, without LeRobot: ours and strangers', and bags that make none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("rosbags", reason="rosbags is not installed: pip install '.[replay]'")

from support.bags import (
    START,
    STORE,
    Entry,
    T,
    action,
    chunk,
    commanded,
    film,
    header,
    image,
    joints,
    picture,
    png,
    status,
    task,
    write_bag,
)
from vla_ros.cli.main import main
from vla_ros.core.action_space import END_EFFECTOR_DELTA, ActionKind
from vla_ros.core.action_space import joints as joint_space
from vla_ros.core.types import CommandKind, Instruction
from vla_ros.data.actions import periods
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


POSITIONS = joint_space(ActionKind.JOINT_POSITION, ("a", "b", "hand"), grippers=("hand",))


def policy_actions(count, width=7):
    return np.random.default_rng(0).uniform(0.0, 0.01, (count, width))


def test_a_rate_that_lerobot_cannot_name_is_said(tmp_path):
    entries, _ = commanded(12.5, 100.0, policy_actions(20, 7))
    found, _ = rows_of(write_bag(tmp_path / "bag", entries))
    (line,) = found.notes
    assert f"12.5 Hz and are named {found.fps} fps" in line
    entries, _ = commanded(30.0, 120.0, policy_actions(20, 7))
    assert not rows_of(write_bag(tmp_path / "other", entries))[0].notes


@pytest.mark.parametrize("space", [END_EFFECTOR_DELTA, POSITIONS], ids=["delta", "position"])
def test_a_run_of_30_actions_a_second_commanded_at_120_hz_makes_30_rows_a_second(tmp_path, space):
    actions = policy_actions(60, space.width)
    entries, commands = commanded(30.0, 120.0, actions, space)
    assert len(commands) == 240
    found, rows = rows_of(write_bag(tmp_path / "bag", entries))
    assert (len(rows), found.fps, found.episodes) == (60, 30, 1)
    assert not found.dropped
    for i, row in enumerate(rows):
        np.testing.assert_allclose(row.numbers["action"], actions[i], atol=1e-8)
        np.testing.assert_allclose(row.numbers["policy.action"], actions[i], atol=1e-8)
        np.testing.assert_array_equal(
            row.numbers["commands"], commands[4 * i : 4 * i + 4].astype(np.float32)
        )
        assert row.numbers["timing.action_observation_age_s"] == pytest.approx(
            0.002 + (i % 5) / 30, abs=1e-6
        )
    with Bag(tmp_path / "bag") as bag:
        features = BagRows(bag, BagOptions()).columns().features(videos=False)
    assert features["commands"]["shape"] == [4, space.width]
    assert features["commands"]["names"]["numbers"] == list(space.names)


@pytest.mark.parametrize(("action_hz", "control_hz"), [(30.0, 125.0), (30.0, 100.0), (15.0, 100.0)])
def test_a_command_that_ends_one_action_and_begins_the_next_is_shared_by_both(
    tmp_path, action_hz, control_hz
):
    """Else a third of the rows would move a third farther than the others."""
    actions = np.full((30, 7), 0.01)
    entries, commands = commanded(action_hz, control_hz, actions)
    found, rows = rows_of(write_bag(tmp_path / "bag", entries))
    assert (len(rows), found.fps) == (30, action_hz)
    moved = np.array([row.numbers["action"] for row in rows])
    np.testing.assert_allclose(moved, 0.01, rtol=0.01)  # it begins at rest
    np.testing.assert_allclose(moved[:, :6].sum(0), commands[:, :6].sum(0), atol=1e-6)
    most = int(np.ceil(control_hz / action_hz))
    assert {row.numbers["commands"].shape for row in rows} == {(most, 7)}
    # Where an action has one command less the last one stands there again.
    short = [c for c in (row.numbers["commands"] for row in rows) if (c[-1] == c[-2]).all()]
    assert short and len(commands) <= 30 * most


def test_below_the_rate_of_actions_a_row_is_a_command(tmp_path):
    actions = policy_actions(50)
    entries, commands = commanded(50.0, 20.0, actions)
    found, rows = rows_of(write_bag(tmp_path / "bag", entries))
    assert (len(rows), found.fps) == (20, 20)
    np.testing.assert_allclose([row.numbers["action"] for row in rows], commands, atol=1e-8)
    assert "commands" not in rows[0].numbers
    # An action of the policy is no row there.
    assert "policy.action" not in rows[0].numbers


def test_at_one_rate_every_command_is_a_row_as_it_was(tmp_path):
    actions = policy_actions(20)
    entries, commands = commanded(20.0, 20.0, actions)
    found, rows = rows_of(write_bag(tmp_path / "bag", entries))
    np.testing.assert_array_equal(
        [row.numbers["action"] for row in rows], commands.astype(np.float32)
    )
    assert found.fps == 20 and "commands" not in rows[0].numbers


def test_a_persons_commands_are_counted_in_action_periods(tmp_path):
    """A person's at 100 Hz with ticks that come up to 3 ms late, and at 40 Hz, each once, with
    nothing new between them."""
    late = np.random.default_rng(1).integers(0, 3_000_000, 100)
    for step in (1, 2.5):
        entries = [task(START - T, "reach"), status(START - 1, 3, (20.0, 100.0))]
        entries += [image(START + i * T, picture(i)) for i in range(20)]
        new = {round(n * step) for n in range(100)}
        for n in range(100):
            at = START + n * 10_000_000 + int(late[n]) + 1_000_000
            kind = CommandKind.TAKEOVER if n in new else CommandKind.HELD
            one = action(at, [0.001] * 7 if n in new else [0.0] * 7, kind=kind, at_ns=at)
            one.content.latest_observation_stamp = header(START + n // 5 * T).stamp
            entries.append(one)
        entries.sort(key=lambda e: e.at_ns)
        found, rows = rows_of(write_bag(tmp_path / str(step), entries))
        assert (len(rows), found.fps) == (20, 20)
        assert all(row.numbers["intervention"][0] for row in rows)
        moved = np.array([row.numbers["action"][0] for row in rows])
        np.testing.assert_allclose(moved.sum(), 0.001 * len(new & set(range(100))), rtol=1e-5)
        assert np.abs(moved - 0.005 / step).max() <= 0.00101 * (step > 1) + 1e-7


def test_a_stop_ends_an_action(tmp_path):
    entries, commands = commanded(20.0, 80.0, np.full((2, 7), 0.01))
    own = [e for e in entries if e.topic == "/policy/action"]
    own[1].content.kind = int(CommandKind.STOP)
    found, rows = rows_of(write_bag(tmp_path / "bag", entries))
    moved = [float(row.numbers["action"][0]) for row in rows]
    parts = [commands[:1], commands[2:4], commands[4:]]
    np.testing.assert_allclose(moved, [part[:, 0].sum() for part in parts], atol=1e-8)
    assert found.dropped == {"STOP, which is no policy's": 1}


def test_rows_last_as_long_as_the_motion_where_chunks_take_over_between_two_images():
    """A chunk whose image is half an action old begins in the middle of its second action."""
    marks = [((chunk, i), p / 4) for chunk in range(6) for i in (1, 2) for p in range(4)]
    marks = [(of, phase) for of, phase in marks if not (of[0] and of[1] == 1 and phase < 0.5)]
    found = periods(marks, 0.25)
    assert [len(one.commands) for one in found] == [4] * 9 + [2]
    assert [i for one in found for i in one.commands] == list(range(len(marks)))


@given(action_hz=st.floats(1.0, 60.0), ratio=st.floats(1.01, 20.0), late=st.integers(0, 9))
def test_every_command_is_of_one_row_and_rows_are_action_periods(action_hz, ratio, late):
    share = 1.0 / ratio
    marks, at = [], 0.0
    for n in range(200):
        end = at + share * (1 + (n % 50 == late and 3 * share < 1.0))
        crosses = n == 0 or int(end - 1e-9) > int(at - 1e-9)
        marks.append((int(end - 1e-9), 0.0) if crosses else (int(at), at % 1.0))
        at = end
    found = periods(marks, share)
    assert [i for one in found for i in one.commands] == list(range(200))
    assert len(found) == int(np.ceil(at - 1e-6))
    assert all(0.0 <= one.before < 1.0 for one in found)


def test_a_run_whose_action_rate_changes_is_refused(tmp_path):
    entries = [*ours(), status(START, 3, (20.0, 20.0)), status(START + T, 3, (30.0, 20.0))]
    entries.sort(key=lambda e: e.at_ns)
    with pytest.raises(BagError, match=r"several action rates \(20, 30 Hz\)"):
        rows_of(write_bag(tmp_path / "bag", entries))


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


def arm(stamp_ns, names, values):
    kind = "sensor_msgs/msg/JointState"
    empty = np.zeros(0)
    content = STORE.types[kind](
        header=header(stamp_ns), name=list(names), position=np.array(values, float),
        velocity=empty, effort=empty,
    )  # fmt: skip
    return Entry("/joint_states", stamp_ns, kind, content)


@pytest.mark.parametrize("first", ["arm", "hand"])
def test_joints_of_several_publishers_are_joined_by_name(tmp_path, first):
    """An arm and its gripper publish apart: whoever spoke first was the whole state."""
    entries = [e for e in ours() if e.topic != "/joint_states"]
    early, late = (-9_000_000, -4_000_000) if first == "arm" else (-4_000_000, -9_000_000)
    for i in range(6):
        at = START + i * T
        entries.append(arm(at + early, ("b", "a"), [i / 10, -i / 10]))
        entries.append(arm(at + late, ("finger",), [i / 100]))
    for i in range(0, 6, 3):
        kind = "sensor_msgs/msg/JointState"
        still = arm(START + i * T - 1_000_000, ("b", "a"), [])
        entries.append(Entry("/joint_states", still.at_ns, kind, still.content))
    path = write_bag(tmp_path / "bag", sorted(entries, key=lambda e: e.at_ns))
    with Bag(path) as bag:
        columns = BagRows(bag, BagOptions()).columns()
    assert columns.numbers[1].names == ("b", "a", "finger")
    _, rows = rows_of(path)
    for i, row in enumerate(rows):
        expected = np.float32([i / 10, -i / 10, i / 100])
        np.testing.assert_array_equal(row.numbers["observation.state"], expected)
    assert len(rows) == 6


def test_a_state_that_is_not_finite_makes_no_row(tmp_path):
    """It was the mean and the deviation of all joints in the data set's statistics."""
    entries = [e for e in ours() if e.topic != "/joint_states"]
    entries += [arm(START + i * T, ("a",), [np.nan if i == 2 else i]) for i in range(6)]
    found, rows = rows_of(write_bag(tmp_path / "bag", sorted(entries, key=lambda e: e.at_ns)))
    assert [row.numbers["observation.state"][0] for row in rows] == [0, 1, 3, 4, 5]
    assert found.dropped["a state that is not finite"] == 1


@pytest.mark.parametrize(
    ("lost", "max_gap_s", "numbers"),
    [((), 0.0, [0] * 4), ((2,), 0.0, [0] * 3), ((1, 2), 0.0, [0, 1]), ((1, 2), 10.0, [0, 0])],
)
def test_a_gap_of_more_than_a_row_ends_an_episode(tmp_path, lost, max_gap_s, numbers):
    """Seconds of pause were closed up as if they were a period."""
    entries = [e for e in ours(4) if e.topic != "/policy/action"]
    entries += [action(START + i * T, [i / 100] * 7, epoch=1) for i in range(4) if i not in lost]
    bag = write_bag(tmp_path / "bag", sorted(entries, key=lambda e: e.at_ns))
    found, rows = rows_of(bag, fps=20, max_gap_s=max_gap_s)
    assert [row.episode for row in rows] == numbers
    noted = any("gaps begin another episode, the longest of 0.15 s" in n for n in found.notes)
    assert noted is (len(set(numbers)) > 1)


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


def test_images_are_brought_to_the_size_that_the_runs_policy_saw(tmp_path):
    from vla_ros.core.pixels import resized
    from vla_ros.data.run_info import FILE, RunInfo

    path = write_bag(tmp_path / "bag", ours())
    run = RunInfo(parameters={"policy": {"image_resize": ["main=16x8"]}})
    (path / FILE).write_text(run.text())
    found, rows = rows_of(path)
    np.testing.assert_array_equal(rows[3].images["main"], resized(picture(3), 16, 8))
    with Bags([path], BagOptions()) as bags:
        assert bags.columns().cameras == {"main": (16, 8)}
    assert any(
        "images of main are brought to 16x8 (height x width)" in note for note in found.notes
    )
    _, rows = rows_of(path, sizes={"": (4, 6)})
    assert rows[0].images["main"].shape == (4, 6, 3)
    run = RunInfo(parameters={"policy": {"image_resize": [""]}})
    (path / FILE).write_text(run.text())
    assert rows_of(path)[1][0].images["main"].shape == (32, 32, 3)


@pytest.mark.parametrize(("given", "says"), [("512", "HEIGHTxWIDTH"), ("0x5", "HEIGHTxWIDTH"),
                         ("left=5x5", "the cameras are main, wrist")])  # fmt: skip
def test_a_size_that_is_none(tmp_path, capsys, monkeypatch, given, says):
    monkeypatch.setenv("VLA_ROS_LEROBOT_PYTHON", "/usr/bin/env")
    path = write_bag(tmp_path / "bag", ours())
    words = ["export", "--lerobot", str(path), "--out", str(tmp_path / "set"), "--resize", given]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1


def test_stamps_of_another_clock_than_the_commands_are_named(tmp_path):
    """A camera in simulated time beside a stranger's commands, which carry no stamp."""
    import dataclasses

    entries = [e for e in ours() if e.topic != "/policy/action"]
    late = 1_700_000_000 * 10**9
    entries = [dataclasses.replace(e, at_ns=e.at_ns + late) for e in entries]
    array = STORE.types["std_msgs/msg/Float64MultiArray"](
        layout=STORE.types["std_msgs/msg/MultiArrayLayout"](dim=[], data_offset=0),
        data=np.zeros(3),
    )
    entries += [
        Entry("/cmd", START + late + i * T + 1, "std_msgs/msg/Float64MultiArray", array)
        for i in range(6)
    ]
    entries.sort(key=lambda e: e.at_ns)
    path = write_bag(tmp_path / "bag", entries)
    with pytest.raises(BagError, match="a stamp of main from another clock than the commands'"):
        rows_of(path, remaps={"policy/action": "/cmd"}, fps=20)


@pytest.mark.parametrize(("every", "times"), [(2, "leaps"), (5, "leaps"), (0, "")])
def test_joints_that_leap_and_are_back_are_a_note(tmp_path, every, times):
    """A second publisher's zeros, or a bus that reads 0: they were rows without a word."""
    entries = [task(START - T, "reach")]
    for i in range(30):
        at = START + i * T
        entries += [image(at, picture(i)), joints(at, 1.2 + 0.02 * i)]
        if every and i % every == 1:
            entries.append(joints(at + T // 4, 0.0))
        entries.append(action(at, [i / 100] * 7))
    found, rows = rows_of(write_bag(tmp_path / "bag", sorted(entries, key=lambda e: e.at_ns)))
    assert len(rows) == 30
    said = [note for note in found.notes if "leaps and is back in" in note]
    assert bool(said) == bool(times)
    if every == 5:
        assert "/joint_states: joint 'joint' leaps and is back in 6 readings, as from" in said[0]
        assert "to 0: two publishers, or wrong readings" in said[0]
