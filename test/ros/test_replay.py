"""`vla-ros replay` as a user runs it: bags of the tabletop recorded here, and bags of others."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")
pytest.importorskip(
    "rosbags", reason="rosbags is not installed: pip install '.[replay]' in the checkout"
)

from support.bags import START, T, action, film, image, joints, picture, png, task, write_bag
from support.domain import leased_domain
from support.nodes import Program, ros_environment, run_cli
from support.timing import judge
from vla_ros.cli.main import main
from vla_ros.data.actions import Rates
from vla_ros.data.bags import Bag
from vla_ros.data.lerobot.from_bags import BagOptions, BagRows
from vla_ros.policies.trust import VARIABLE

pytestmark = pytest.mark.ros
CLI = "import sys; from vla_ros.cli.main import main; sys.exit(main())"


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with leased_domain() as domain:
        roots = {VARIABLE: str(tmp_path_factory.getbasetemp())}  # of the checkpoints made here
        yield ros_environment(domain) | roots


Replay = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def replay(env: dict[str, str]) -> Replay:
    """Run `vla-ros replay ... --json`: exit status, the JSON (empty if none), stderr."""

    def run(*words: object) -> tuple[int, dict[str, Any], str]:
        texts = [str(word) for word in words]
        domain = ("--domain-id", env["ROS_DOMAIN_ID"])
        code, out, err = run_cli("replay", *texts, *domain, "--json", env=env, timeout=90.0)
        return code, json.loads(out.splitlines()[-1]) if out else {}, err

    return run


def record(env: dict[str, str], bag: Path, *words: str) -> Path:
    """Record a tabletop episode in lock-step; the policy is what ``words`` say."""
    recorder = Program("record", [sys.executable, "-c", CLI, "record", "-o", str(bag)], env)
    try:
        recorder.wait_for_log("recording:")
        words = (
            "--mode",
            "lockstep",
            "--domain-id",
            env["ROS_DOMAIN_ID"],
            *words,
        )  # the last --mode counts
        code, _, err = run_cli("demo", *words, env=env, timeout=90.0)
        assert code in (0, 1), err
        recorder.signal(signal.SIGINT)
        assert recorder.wait() == 0, recorder.log
    finally:
        recorder.kill()
    return bag


@pytest.fixture(scope="module")
def expert_bag(env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripted expert at the shortest task."""
    pytest.importorskip("mujoco", reason="mujoco is not installed")
    words = ("--policy", "scripted", "--task", "reach_red_cube")
    return record(env, tmp_path_factory.mktemp("bags") / "expert", *words)


@pytest.fixture(scope="module")
def vla_bag(env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few steps of a very small VLA with random weights, autoregressive."""
    pytest.importorskip("mujoco", reason="mujoco is not installed")
    from support.engine import tiny_config
    from vla_ros.engine.families.openvla import write_random

    folder = tmp_path_factory.mktemp("vla")
    write_random(folder / "checkpoint", tiny_config(), 3)
    steps = ("--task", "reach_red_cube", "-p", "bridge.max_steps=12")
    # Its statistics are -1..1: controller units, and not the metres of a policy of our own.
    units = ("-p", "policy.action_scale=[0.05,0.05,0.05,0.5,0.5,0.5]")
    model = ("--checkpoint", str(folder / "checkpoint"), *units)
    return record(env, folder / "bag", *model, *steps)


def test_a_recorded_run_gives_the_same_actions_again(
    replay: Replay, expert_bag: Path, tmp_path: Path
) -> None:
    golden, page = tmp_path / "golden.json", tmp_path / "report.html"
    code, said, err = replay(expert_bag, "--save", golden, "--html", page)
    assert code == 0, err
    assert said["identical"] is True
    assert said["frames"] == said["compared"] >= 15
    assert (said["missing"], said["extra"], said["max_abs_diff"]) == (0, 0, 0.0)
    assert (said["policy"], said["before"]["policy"]) == ("scripted", "scripted")
    assert said["inference_ms"]["count"] == said["frames"]
    assert said["before"]["inference_ms"]["count"] == said["frames"]
    assert said["answer_ms"]["p50"] > said["inference_ms"]["p50"]
    assert "IDENTICAL" in page.read_text()

    # A gate that lets through less: the actions are other ones.
    slow = ("-p", "bounds_high=[0.001,0.001,0.001,0.5,0.5,0.5]", "-p", "clamp_limit=1000")
    code, said, err = replay(expert_bag, *slow, "--golden", golden)
    assert code == 1, err
    assert said["identical"] is False
    assert said["before"]["name"] == "golden"
    assert said["first_difference"]["now"] == 0.001


@pytest.mark.long
def test_a_run_commanded_five_times_an_action_is_replayed_and_exported_by_actions(
    replay: Replay, env: dict[str, str], tmp_path: Path
) -> None:
    pytest.importorskip("mujoco", reason="mujoco is not installed")
    words = ("--policy", "scripted", "--task", "reach_red_cube", "--control-rate", "100")
    folder = record(env, tmp_path / "bag", *words)
    code, said, err = replay(folder)
    assert code == 0, said or err
    assert said["identical"] is True and said["frames"] >= 75
    assert 5 * (said["compared"] - 1) < said["frames"] <= 5 * said["compared"]
    with Bag(folder) as bag:
        found = BagRows(bag, BagOptions())
    assert (found.rates, found.fps) == (Rates(20.0, 100.0), 20)
    assert len(found) == said["compared"]


@pytest.mark.slow
@pytest.mark.parametrize("decoding", ["autoregressive", "speculative", "actionflow"])
def test_every_lossless_decoding_says_the_same(
    replay: Replay, vla_bag: Path, decoding: str
) -> None:
    code, said, err = replay(vla_bag, "--decoding", decoding)
    assert code == 0, err
    assert said["identical"] is True
    assert said["token_match_rate"] == 1.0
    assert said["frames"] == 13
    assert said["decoding"] == decoding
    assert said["checkpoint_sha256"] == said["before"]["checkpoint_sha256"] != ""
    # A pipeline answers older frames: those it had not finished at the end are no difference.
    tail = 6 if decoding == "actionflow" else 0
    assert (said["compared"], said["pipeline_tail"], said["missing"]) == (13 - tail, tail, 0)


@pytest.mark.timing
@pytest.mark.parametrize(
    "mode", [("--rate", "1"), pytest.param(("--mode", "fast"), marks=pytest.mark.slow)]
)
def test_as_recorded_and_flat_out_show_real_ages(
    replay: Replay, expert_bag: Path, mode: tuple[str, str]
) -> None:
    code, said, err = replay(expert_bag, *mode)
    assert code == 0, err
    assert said["max_abs_diff"] == 0.0
    assert said["compared"] >= 5
    assert 0.0 < said["observation_age_ms"]["p50"] < 500.0
    if mode[0] == "--rate":
        # Paced like the camera; a busy machine may answer fewer frames, never more.
        assert said["wall_s"] > 0.9 * said["frames"] / 20.0
        assert said["rate_hz"] < 21.0
        judge("time per answered frame", 1 / said["rate_hz"], quiet=1 / 8.0, loaded=1.0)


def moves(folder: Path) -> tuple[object, ...]:
    """A policy that repeats known rows, so that a bag by hand can hold the right answers."""
    import numpy as np

    rows = np.zeros((8, 7))
    rows[:, 0] = np.arange(1, 9) / 1000
    np.save(folder / "rows.npy", rows)
    return ("--policy", "replay", "-p", f"replay_file={folder / 'rows.npy'}")


def test_a_foreign_bag_with_other_names_bgr8_and_sqlite3(replay: Replay, tmp_path: Path) -> None:
    entries = [*film(8, 2 * T, encoding="bgr8", topic="/cam/color/image_raw")]
    entries += [joints(START + i * T, topic="/robot/states") for i in range(16)]
    path = write_bag(tmp_path / "bag", sorted(entries, key=lambda e: e.at_ns), "sqlite3")
    options = (*moves(tmp_path), "-p", "use_joint_states=true", "-r", "joint_states=robot/states")
    code, said, err = replay(path, *options, "--instruction", "reach", "--save", tmp_path / "g")
    assert code == 0, err
    assert said["identical"] is None
    assert (said["frames"], said["actions"]) == (8, 8)
    assert said["camera_rate_hz"] == pytest.approx(10.0)
    code, said, err = replay(path, *options, "--instruction", "reach", "--golden", tmp_path / "g")
    assert code == 0, err
    assert said["identical"] is True


def test_resets_and_tasks_of_a_bag_are_played_back_and_odd_frames_survived(
    replay: Replay, tmp_path: Path
) -> None:
    """Two episodes in one bag: the replaying policy begins again where it was reset."""
    frames = [png(START + i * T, picture(i)) for i in range(7)]
    frames[2].content.data[100:] = 0  # the policy refuses this one
    answers = [action(START + i * T, [(i + 1) / 1000, 0, 0, 0, 0, 0, 0], epoch=2) for i in (0, 1)]
    answers += [
        action(START + i * T, [(i - 3) / 1000, 0, 0, 0, 0, 0, 0], epoch=3) for i in (4, 5, 6)
    ]
    entries = [task(START - T, "reach"), *frames, *answers]
    path = write_bag(tmp_path / "bag", sorted(entries, key=lambda e: e.at_ns))
    code, said, err = replay(path, *moves(tmp_path), "-p", "gripper_hysteresis=0.0")
    assert code == 0, err
    assert said["compared"] == 5
    assert said["identical"] is True
    assert any("1 frames could not be answered" in note for note in said["notes"])


def test_a_bag_whose_recorder_was_killed_is_replayed(replay: Replay, tmp_path: Path) -> None:
    entries = [task(START - T, "reach")]
    entries += [image(START + i * T, picture(i, 256)) for i in range(12)]
    path = write_bag(tmp_path / "bag", entries)
    (path / "metadata.yaml").unlink()
    os.truncate(path / "bag.mcap", (path / "bag.mcap").stat().st_size - 2000)
    code, said, err = replay(path, *moves(tmp_path))
    assert code == 0, err
    assert 5 <= said["frames"] <= 12
    assert "not closed properly" in said["notes"][0]


def test_what_cannot_be_replayed_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # they are this test runner's
    step = 40 * T
    again = [image(START + i * step, picture(i), at_ns=START + (3 + i) * step) for i in range(3)]
    looped = write_bag(tmp_path / "loop", [*film(3, step), *again])
    mute = write_bag(tmp_path / "mute", film(2))
    depth = write_bag(tmp_path / "depth", film(2, encoding="32FC1"))
    plain = write_bag(tmp_path / "plain", [task(START - T, "reach"), *film(2)])
    for words, said in (
        ((looped,), "time goes back"),
        ((mute, "--policy", "zero"), "the bag has no instruction for its frames"),
        ((plain,), "does not say which policy it is of: give --policy"),
        ((depth,), "encoding '32FC1' is not supported"),
        ((tmp_path / "none",), "there is no such bag"),
        ((plain, "--frames", "5:9"), "none of them is in --frames"),
        ((plain, "--frames", "x"), "write A:B"),
        ((plain, "-r", "image=/nowhere"), "the bag has no topic /nowhere"),
        ((plain, "--policy", "scripted"), "the policy needs ground_truth"),
        ((plain, "--golden", tmp_path / "none"), "cannot read"),
        ((plain, "--mode", "fast", "--rate", "2"), "--rate needs --mode recorded"),
        ((plain, "--html", tmp_path / "a" / "b"), "there is no folder"),
        ((plain, "-p", "no_such=1"), "-p no_such"),
    ):
        assert main(["replay", *map(str, words)]) == 2, words
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line, words


@pytest.mark.parametrize(
    "named",
    [
        {"worker_python": "{program}"},
        {"policy": "remote", "checkpoint": "ws://127.0.0.1:{port}"},
        {"policy": "magic", "worker_python": "{program}"},
        {"policy": "vla", "checkpoint": "/etc"},
    ],
)
def test_a_bag_starts_no_program_and_asks_no_server(
    replay: Replay, expert_bag: Path, tmp_path: Path, named: dict[str, str]
) -> None:
    """Its own note of the run named a program, which was started with the user's environment."""
    bag = Path(shutil.copytree(expert_bag, tmp_path / "bag"))
    ran, program = tmp_path / "ran", tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        names = {"program": program, "port": server.getsockname()[1]}
        spoil(bag, {name: text.format(**names) for name, text in named.items()})
        code, _, err = replay(bag)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert (code, err.count("\n")) == (2, 1), err
    assert "only who starts the process may: give it by --checkpoint, --policy or -p" in err
    assert not ran.exists()


def spoil(bag: Path, named: dict[str, str]) -> None:
    """Change the recorded parameters of the policy node, in both places."""
    run = bag / "vla_ros_run.json"
    content = json.loads(run.read_text())
    content["parameters"]["policy"].update(named)
    run.write_text(json.dumps(content))
    file = bag / "metadata.yaml"
    metadata = yaml.safe_load(file.read_text())
    custom = metadata["rosbag2_bagfile_information"]["custom_data"]
    custom["vla_ros.run"] = json.dumps(content)
    file.write_text(yaml.safe_dump(metadata))


def test_a_policy_that_does_not_load_says_why(replay: Replay, tmp_path: Path) -> None:
    path = write_bag(tmp_path / "bag", [task(START - T, "reach"), *film(2)])
    code, _, err = replay(path, "--policy", "vla", "--checkpoint", tmp_path / "nothing")
    assert code == 2
    assert str(tmp_path / "nothing") in err.splitlines()[-1]


@pytest.mark.slow
def test_a_run_in_real_time_whose_chunks_continue_each_other_is_asked_again(
    replay: Replay, env: dict[str, str], tmp_path: Path
) -> None:
    """Told the recorded delays the chunks are the same to the last bit; without them not."""
    pytest.importorskip("mujoco", reason="mujoco is not installed")
    how = ("execution=rtc", "replan_interval=4", "max_age_s=3.0",
           "engine_options=[rtc_guidance_limit=4.0]")  # fmt: skip
    words = ["--mode", "realtime", "--checkpoint", "random:smolvla-small", "--task",
             "reach_red_cube", "-p", "bridge.max_steps=60"]  # fmt: skip
    bag = record(env, tmp_path / "bag", *words, *(w for h in how for w in ("-p", f"policy.{h}")))
    code, said, err = replay(bag, "--mode", "chunks")
    assert code == 0, err
    assert said["identical"] is True
    assert said["compared"] == 10 * said["frames"] >= 50
    weaker = "engine_options=[rtc_guidance_limit=0.5]"
    code, said, err = replay(bag, "--mode", "chunks", "-p", weaker)
    assert code == 1, err
    assert said["max_abs_diff"] > 0
