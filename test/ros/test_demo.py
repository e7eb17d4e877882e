"""`vla-ros demo` as a user runs it: whole graphs, in processes, in domains of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: source a ROS 2 or use its wheels")
pytest.importorskip("mujoco", reason="mujoco is not installed: the demo needs the simulation")

from PIL import Image as Pillow

from support.missing import LAB, without
from support.nodes import run_cli
from support.plugins import EXAMPLE, LATE, install, offer
from support.timing import QUIET, bound, judge
from vla_ros.core.console import WIDTH
from vla_ros.ros.bringup.environment import PROFILES, python_path

pytestmark = pytest.mark.ros
TIMEOUT_S = 150.0
TASK = "reach_red_cube"  # the shortest
EXPERT = ("--policy", "scripted")


@pytest.fixture
def env() -> dict[str, str]:
    """A user's shell: no ROS variables; the demo chooses its domain itself."""
    names = ("ROS_DOMAIN_ID", "ROS_AUTOMATIC_DISCOVERY_RANGE", *PROFILES)
    env = {key: value for key, value in os.environ.items() if key not in names}
    return {**env, "PYTHONPATH": python_path(env)}


def run_demo(env: dict[str, str], *words: str) -> tuple[int, str, str]:
    return run_cli("demo", *words, env=env, timeout=TIMEOUT_S)


def result_of(out: str) -> dict[str, Any]:
    content = json.loads(out.splitlines()[-1])
    assert isinstance(content, dict)
    return content


@pytest.mark.long
@pytest.mark.timing
def test_the_scripted_policy_solves_a_task_in_real_time(
    env: dict[str, str], tmp_path: Path
) -> None:
    gif = tmp_path / "episode.gif"
    words = ("--policy", "scripted", "--json", "--task", "pick_red_cube", "--gif", str(gif))
    code, out, err = run_demo(env, *words)
    assert code == 0, err
    result = result_of(out)
    assert result["success"] is True
    assert (result["policy"], result["mode"], result["task"]) == (
        "scripted",
        "realtime",
        "pick_red_cube",
    )
    assert result["stale_published"] == 0
    assert result["worker_restarts"] == 0
    assert result["control_rate_hz"] == 20.0
    assert result["achieved_rate_hz"] == pytest.approx(20.0, rel=bound(quiet=0.1, loaded=0.3))
    # The simulation may lag on a busy machine; the control tick may not.
    assert result["camera_rate_hz"] < 22.0
    judge("camera period", 1 / result["camera_rate_hz"], quiet=1 / 10.0, loaded=1 / 3.0)
    ages = result["observation_age_ms"]
    assert 0 < ages["p50"] <= ages["p95"] <= ages["p99"] <= 500.0
    assert 0 < result["inference_ms"]["p50"] < ages["p50"]
    assert result["steps"] / result["episode_s"] < 23.0
    # Every control period had a new action or counts as missed.
    periods = result["actions"] + result["missed_deadlines"]
    slack = bound(quiet=3, loaded=3 + 5 * result["episode_s"])
    assert periods == pytest.approx(20.0 * result["episode_s"], abs=slack)
    assert result["stages_ms"]["vision"]["p50"] is None  # the expert sees nothing
    assert result["actions_blocked"] == 0
    box = out.splitlines()[:-1]
    assert {len(line) for line in box} == {WIDTH}
    assert "SOLVED" in out
    with Pillow.open(gif) as film:
        assert film.n_frames > 10


def test_lock_step_answers_every_frame_and_counts_simulated_ages(env: dict[str, str]) -> None:
    code, out, err = run_demo(env, *EXPERT, "--mode", "lockstep", "--task", TASK, "--json")
    assert code == 0, err
    result = result_of(out)
    assert result["mode"] == "lockstep"
    assert result["success"] is True
    assert result["observation_age_ms"]["max"] < 1.0  # the world waited
    assert result["stale_published"] == 0
    assert result["lost_commands"] == 0


@pytest.mark.timing
def test_the_trained_policy_does_what_the_instruction_asks(
    env: dict[str, str], tmp_path: Path
) -> None:
    """In real time where the machine does nothing else; where it does, in a world that waits: how
    late its actions come there says nothing about the policy. A robot has no lab: here it is not
    to be found."""
    env = without(tmp_path, LAB, env)
    mode = () if QUIET else ("--mode", "lockstep")
    code, out, err = run_demo(env, *mode, "--task", TASK, "--json")
    assert code == 0, err
    result = result_of(out)
    assert (result["policy"], result["checkpoint"]) == ("vla", "shipped:tabletop")
    assert result["success"] is True
    if QUIET:
        judge("time per action", 1 / result["achieved_action_rate_hz"], quiet=0.1, loaded=0.1)
    assert 1.0 <= result["passes_per_action"] <= 7.0


@pytest.mark.long
def test_actions_that_were_all_blocked_are_named_and_what_was_not_measured_is_null(
    env: dict[str, str],
) -> None:
    # A second, and 350 ms of pipeline; a machine may take 800 ms for an inference.
    late = ("-p", "bridge.image_delay_ms=1000", "-p", "policy.max_age_s=1.2",
            "--decoding", "actionflow")  # fmt: skip
    code, out, err = run_demo(env, *late, "--task", TASK, "--json")
    assert code == 1, err
    result = result_of(out)
    assert result["actions"] == 0
    assert result["actions_blocked"] > (50 if QUIET else 5)
    assert "ms old, max_age is 1200 ms" in result["last_block"]
    assert f"{result['actions_blocked']} actions blocked; the last: its observation" in out
    assert set(result["observation_age_ms"].values()) == {None}
    assert result["achieved_rate_hz"] is result["missed_deadlines"] is None
    assert result["episode_s"] == pytest.approx(6.0, abs=bound(quiet=1.0, loaded=5.0))
    assert result["camera_rate_hz"] < 22.0
    assert result["passes_per_action"] == pytest.approx(1.0)
    assert " 0.00  " not in out.replace("new actions            0.00", "")


@pytest.mark.slow
def test_a_vla_with_random_weights_is_judged_by_the_graph(env: dict[str, str]) -> None:
    code, out, err = run_demo(
        env, "--checkpoint", "random:small", "--task", TASK, "--timeout", "20", "--json"
    )
    assert code == 0, err
    result = result_of(out)
    assert result["judged_by"] == "graph"
    assert result["graph_ok"] is True
    assert result["checkpoint"].startswith("random")
    assert result["actions"] > 0
    assert result["inference_ms"]["p50"] > 1.0
    assert "no success is expected" in out


@pytest.mark.long
def test_a_graph_that_does_not_come_up_says_why_and_leaves_nothing_behind(
    env: dict[str, str], tmp_path: Path
) -> None:
    mark = f"policy.replay_file={tmp_path}"  # to find the processes by
    words = ("--checkpoint", "random:small", "--decoding", "parallel", "-p", mark)
    code, out, err = run_demo(env, *words)
    assert code == 3
    assert out == ""
    assert "refused to configure" in err.splitlines()[-1]
    assert "no OFT checkpoint" in err
    assert processes_with(str(tmp_path)) == []


@pytest.mark.long
@pytest.mark.timing
def test_an_installed_package_s_policy_is_shown_with_its_options(
    env: dict[str, str], tmp_path: Path
) -> None:
    site = install(EXAMPLE, tmp_path)
    env = {**env, "PYTHONPATH": os.pathsep.join([str(site), env["PYTHONPATH"]])}
    words = ("--policy", "nod", "--policy-option", "step_m=0.002", "--task", TASK, "--json")
    code, out, err = run_demo(env, *words, "--timeout", "4")
    assert code == 1, err
    result = result_of(out)
    assert (result["policy"], result["success"], result["stale_published"]) == ("nod", False, 0)
    near = bound(quiet=0.1, loaded=0.3)
    assert result["achieved_rate_hz"] == pytest.approx(20.0, rel=near)


@pytest.mark.long
@pytest.mark.timing
@pytest.mark.parametrize("takes_s", [0.08, 0.005])
def test_a_machine_slower_than_real_time_is_named(
    env: dict[str, str], tmp_path: Path, takes_s: float
) -> None:
    """In the summary and its JSON; a fast one is not."""
    offer(tmp_path, "late", LATE, "late = late:Late")
    env = {**env, "PYTHONPATH": os.pathsep.join([str(tmp_path), env["PYTHONPATH"]])}
    words = ("--policy", "late", "--policy-option", f"takes_s={takes_s}", "--task", TASK, "--json")
    _, out, err = run_demo(env, *words, "--timeout", "6")
    said = "this machine is slower than real time: inference takes "
    notes = [note for note in result_of(out)["notes"] if said in note]
    if takes_s > 0.05:
        assert len(notes) == 1 and "an action lasts 50 ms; dtype auto" in notes[0], err
        assert "slower than real time" in " ".join(out.replace("|", " ").split())
    elif QUIET:  # a machine that others use may well be too slow
        assert not notes


def test_a_task_that_is_not_solved_in_time_is_status_1(env: dict[str, str]) -> None:
    words = (*EXPERT, "--task", "stack_red_on_blue", "--timeout", "1.5", "--json")
    code, out, err = run_demo(env, *words)
    assert code == 1, err
    assert result_of(out)["ended"] == "timeout"
    assert "not done within 1.5 s" in out


def test_ctrl_c_ends_the_whole_graph(env: dict[str, str], tmp_path: Path) -> None:
    marker = f"policy.replay_file={tmp_path}"  # to find the processes by
    main = "import sys; from vla_ros.cli.main import main; sys.exit(main())"
    command = [
        sys.executable,
        "-c",
        main,
        "demo",
        *EXPERT,
        "--task",
        "stack_red_on_blue",
        "-p",
        marker,
    ]
    demo = subprocess.Popen(
        command, env=env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    assert demo.stderr is not None
    said = []
    for line in demo.stderr:
        said.append(line)
        if line.startswith("RUNNING"):
            break
    assert len(processes_with(str(tmp_path))) >= 2, said  # the demo itself and the policy
    demo.send_signal(signal.SIGINT)
    said.append(demo.stderr.read())
    assert demo.wait(timeout=20) == 130, said
    assert processes_with(str(tmp_path)) == [], said


def processes_with(text: str) -> list[int]:
    """Living processes whose command line contains ``text``."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                command = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if text.encode() in command:
                found.append(int(folder.name))
    return found
