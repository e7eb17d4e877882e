"""`vla-ros check` over a bag of the tabletop: clean it fits, with a planted fault it names it."""

import json

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed: no vla policy here")
pytest.importorskip("mujoco", reason="mujoco is not installed: no tabletop here")

from support.bags import SECOND, START, STORE, Entry, T, action, header, image, task, write_bag
from support.lerobot import interpreter
from vla_ros.cli.main import main
from vla_ros.core.yaml_files import read_yaml
from vla_ros.sim.env import AGENTVIEW
from vla_ros.sim.expert import Expert
from vla_ros.sim.factory import EnvConfig

FLOW = "shipped:tabletop-flow"
TASKS = (0, 9)  # of the tabletop
FINGERS = ["finger_left", "finger_right"]


def made(kind, **fields):
    return STORE.types[kind](**fields)


def pose(stamp_ns, seen):
    kind = "geometry_msgs/msg/PoseStamped"
    position = made("geometry_msgs/msg/Point", **dict(zip("xyz", seen.eef_pos, strict=True)))
    turn = made("geometry_msgs/msg/Quaternion", **dict(zip("xyzw", seen.eef_quat, strict=True)))
    content = made(
        kind,
        header=header(stamp_ns),
        pose=made("geometry_msgs/msg/Pose", position=position, orientation=turn),
    )
    return Entry("/end_effector_pose", stamp_ns, kind, content)


def fingers(stamp_ns, seen):
    kind, none = "sensor_msgs/msg/JointState", np.zeros(0)
    content = made(kind, header=header(stamp_ns), name=FINGERS, velocity=none, effort=none,
                   position=np.array(seen.gripper_qpos, np.float64))  # fmt: skip
    return Entry("/joint_states", stamp_ns, kind, content)


@pytest.fixture(scope="module")
def episodes():
    """Instruction, and each step's observation and the expert's action."""
    environment = EnvConfig("tabletop", 256, False)()
    spec = environment.spec
    scale = np.array([spec.position_scale] * 3 + [spec.rotation_scale] * 3)
    found = []
    for number in TASKS:
        one = spec.tasks[number]
        seen, expert, steps = environment.reset(one.name, 5, seed=3), Expert(one.instruction), []
        for _ in range(60):
            wanted = expert.act(seen.poses)
            steps.append((seen, wanted))
            given = np.append(wanted[:6] / scale, 1.0 - 2.0 * wanted[6])
            step = environment.step(np.clip(given, -1.0, 1.0))
            seen = step.observation
            if step.done:
                break
        found.append((one.instruction, steps))
    environment.close()
    return found


def bag(path, episodes, turn=lambda rgb: rgb, command=lambda numbers: numbers):
    """A stranger's bag: no parameters, a pause between the episodes."""
    entries, at = [], START
    for epoch, (text, steps) in enumerate(episodes):
        entries.append(task(at - T // 2, text))
        for seen, wanted in steps:
            rgb = np.ascontiguousarray(turn(seen.images[AGENTVIEW]))
            entries += [image(at, rgb), pose(at, seen), fingers(at, seen)]
            entries.append(action(at, command(wanted.copy()), epoch=epoch + 1, text=text))
            at += T
        at += 3 * SECOND
    return write_bag(path, entries)


def run(capsys, *words):
    status = main(["check", FLOW, *map(str, words), "--json", "--fps", "20", "--dtype", "float32"])
    out = capsys.readouterr().out
    return status, json.loads(out.strip().splitlines()[-1]), out


@pytest.mark.slow
def test_a_clean_bag_fits(tmp_path, episodes, capsys):
    status, found, out = run(capsys, bag(tmp_path / "clean", episodes), "--frames", 12)
    assert status == 0, out
    assert (found["named"], found["parameters"], found["status"]) == ([], {}, 0)
    assert found["error"] < 0.2
    assert found["ignores"] == []
    assert "FITS" in out


@pytest.mark.slow
def test_a_fault_is_named_and_its_parameter_written(tmp_path, episodes, capsys):
    path = bag(tmp_path / "bgr", episodes, turn=lambda rgb: rgb[..., ::-1])
    page, file = tmp_path / "check.html", tmp_path / "fix.yaml"
    words = ("--frames", 12, "--html", page, "--write", file)
    status, found, out = run(capsys, path, *words)
    assert status == 1, out
    assert found["named"] == ["main: bgr"]
    assert found["error_after"] < 0.5 * found["error"]
    assert "set cameras.main.colors: bgr" in out
    given = {"cameras.main.colors": "bgr"}
    assert read_yaml(file) == {"policy": {"ros__parameters": given}}
    assert "main: bgr" in page.read_text() and "<svg" in page.read_text()
    # With what was written it fits: the same bag, and the robot that it is of.
    pytest.importorskip("rclpy", reason="rclpy is not installed: --robot needs it")
    status, found, out = run(capsys, path, "--frames", 12, "--robot", file)
    assert (status, found["named"]) == (0, []), out


def test_a_gripper_the_other_way_round_is_named(tmp_path, episodes, capsys):
    def command(numbers):
        numbers[6] = 1.0 - 2.0 * numbers[6]
        return numbers

    path = bag(tmp_path / "grip", episodes, command=command)
    status, found, _ = run(capsys, path, "--frames", 12)
    assert (status, found["named"]) == (1, ["action gripper: 1..-1"])
    assert found["parameters"]["action_factor"][6] == -2.0
    assert any("gripper goes from -1 to 1" in one["line"] for one in found["findings"])


@pytest.mark.slow
def test_a_data_set_of_lerobots_with_a_turned_camera(tmp_path, episodes, capsys):
    interpreter()
    path = bag(tmp_path / "turned", episodes, turn=lambda rgb: rgb[::-1, ::-1])
    out = tmp_path / "set"
    assert main(["export", "--lerobot", str(path), "--out", str(out), "--fps", "20"]) == 0
    capsys.readouterr()
    status, found, _ = run(capsys, out, "--frames", 12)
    assert (status, found["named"]) == (1, ["main: 180"])
    assert found["parameters"] == {"cameras.main.rotate": 180}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--frames", "2"], "--frames 2: give 4 to 1000"),
        (["--budget", "0"], "--budget 0: must be above 0"),
        (["--camera", "main"], "--camera main: write ROLE=NAME"),
        (["--robot", "/nowhere.yaml"], "/nowhere.yaml"),
        (["--camera", "main=top"], "there is no camera 'top'"),
    ],
)
def test_wrong_words_are_refused_in_a_line(tmp_path, episodes, capsys, words, line):
    path = bag(tmp_path / "clean", episodes[:1])
    assert main(["check", FLOW, str(path), "--fps", "20", *words]) == 2
    err = [one for one in capsys.readouterr().err.splitlines() if "vla-ros check:" in one]
    assert len(err) == 1 and line in err[0]


def test_a_robots_file_of_no_policy_and_of_a_misspelt_parameter_is_refused(tmp_path, capsys):
    pytest.importorskip("rclpy", reason="rclpy is not installed: --robot needs it")
    file = tmp_path / "robot.yaml"
    file.write_text("monitor: {ros__parameters: {max_age_s: 1.0}}\n")
    assert main(["check", FLOW, "nothing", "--robot", str(file)]) == 2
    assert "no parameters of the node policy" in capsys.readouterr().err
    file.write_text("policy: {ros__parameters: {cameras.main.rotat: 180}}\n")
    assert main(["check", FLOW, "nothing", "--robot", str(file)]) == 2
    assert "did you mean 'cameras.main.rotate'" in capsys.readouterr().err
