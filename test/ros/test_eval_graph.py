"""Episodes of an evaluation through whole graphs: bridge, policy, and what was heard of them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: source a ROS 2 or use its wheels")
pytest.importorskip("mujoco", reason="mujoco is not installed: evaluations need the simulation")

from PIL import Image as Pillow

from support.engine import tiny_config
from support.processes import children
from support.releases import oft_statistics
from support.timing import judge
from support.wait import wait_until
from vla_ros.cli.eval import completed, setup_of
from vla_ros.cli.main import make_parser
from vla_ros.data.episodes import play as direct
from vla_ros.data.episodes.play import DirectRunner, RunnerFailed, robot_state
from vla_ros.data.episodes.records import Job, Record, Setup, Variant
from vla_ros.data.episodes.store import FrameStrip
from vla_ros.engine.families.openvla import write_random
from vla_ros.ros.listeners.graph_runner import GraphRunner
from vla_ros.sim.env import SimObservation
from vla_ros.sim.episode import Mode

TASK = "reach_red_cube"  # the shortest
SCRIPTED = Setup(policy="scripted", image_size=64)
REALTIME = replace(SCRIPTED, mode=Mode.REALTIME)
RANDOM = Setup(checkpoint="random:small", image_size=64, max_steps=10)
PLAIN = Variant("plain")
AUTOREGRESSIVE = Variant("autoregressive", decoding="autoregressive")

#: What must be the same through the graph and without it, to the last bit.
SAME = (
    "job",
    "success",
    "reason",
    "steps",
    "max_steps",
    "age_ms",
    "drafted",
    "accepted",
    "passes",
    "frames",
    "held",
    "action_digest",
    "token_digest",
    "error",
)

Start = Callable[..., GraphRunner]


@pytest.fixture
def graph(ros_env: dict[str, str]) -> Iterator[Start]:
    """`graph(setup)`: a runner; its nodes' logs are shown where the test fails."""
    runners: list[GraphRunner] = []

    def start(setup: Setup, **options: float) -> GraphRunner:
        runner = GraphRunner(setup, on_line=lambda node, line: print(node, line), **options)
        runners.append(runner.__enter__())
        return runner

    yield start
    for runner in runners:
        runner.__exit__(None, None, None)


def job(variant: Variant, state: int = 0, task: str = TASK, instruction: str = "") -> Job:
    return Job(variant.label, task, state, 0, instruction)


def figures(record: Record) -> dict[str, object]:
    return {name: getattr(record, name) for name in SAME}


def directly(setup: Setup, variant: Variant, jobs: list[Job]) -> list[Record]:
    with DirectRunner(replace(setup, route="direct"), (variant,)) as runner:
        return [runner.play(job, variant) for job in jobs]


# Lock-step


def test_episodes_of_the_expert_are_the_same_with_and_without_ros(graph, tmp_path):
    """Three episodes in one graph; each begins as if it were the first."""
    jobs = [job(PLAIN, 0), job(PLAIN, 3, "push_blue_cube_left"), job(PLAIN, 0)]
    runner, strip = graph(SCRIPTED), FrameStrip()
    records = [runner.play(jobs[0], PLAIN, strip)]
    pids = runner.pid("bridge"), runner.pid("policy")
    records += [runner.play(one, PLAIN) for one in jobs[1:]]
    assert (runner.pid("bridge"), runner.pid("policy")) == pids
    assert all(record.success for record in records), records
    assert figures(records[0]) == figures(records[2])
    expected = directly(SCRIPTED, PLAIN, jobs)
    assert [figures(record) for record in records] == [figures(record) for record in expected]
    assert len({record.action_digest for record in records}) == 2
    assert records[0].held == 0
    assert records[0].rate_hz == pytest.approx(records[0].steps / records[0].wall_s)
    assert records[0].inference_ms.count == records[0].steps
    assert strip.save(tmp_path / "strip.png")
    with Pillow.open(tmp_path / "strip.png") as strip:
        assert strip.width > 6 * 64
        assert np.asarray(strip).std() > 5


def test_another_control_rate_is_the_same_with_and_without_ros(graph):
    """Records count actions, and the policy is asked once an action."""
    setup = replace(SCRIPTED, control_rate_hz=60.0)
    record = graph(setup).play(job(PLAIN), PLAIN)
    (expected,) = directly(setup, PLAIN, [job(PLAIN)])
    (plain,) = directly(SCRIPTED, PLAIN, [job(PLAIN)])
    assert figures(record) == figures(expected)
    assert record.success
    assert record.steps == pytest.approx(plain.steps, abs=4)
    assert record.frames == pytest.approx(record.steps, abs=1)


@pytest.mark.long
def test_lossless_decodings_do_the_same_with_and_without_ros(graph):
    drafting = Variant("speculative", decoding="speculative", adaptive_draft=False)
    variants = [
        AUTOREGRESSIVE,
        drafting,
        replace(drafting, label="linear", drafter="temporal_linear"),
        replace(drafting, label="model", drafter="model", draft_checkpoint="random:small"),
        Variant("generate", decoding="generate"),
    ]
    direct = {v.label: directly(RANDOM, v, [job(v)])[0] for v in variants}
    assert len({record.action_digest for record in direct.values()}) == 1
    assert len({record.token_digest for record in direct.values()}) == 1
    runner = graph(RANDOM)
    for variant in (AUTOREGRESSIVE, drafting):
        record = runner.play(job(variant), variant)
        assert figures(record) == figures(direct[variant.label])
    plain = direct["autoregressive"]
    assert plain.token_digest
    assert (plain.passes, plain.frames) == (70, 10)
    drafted = record.drafted
    assert len(drafted) == len(record.accepted) == 7
    assert sum(drafted) > 0
    assert all(a <= d for a, d in zip(record.accepted, drafted, strict=True))


@pytest.mark.parametrize(
    ("setup", "variant", "age_ms", "held"),
    [
        pytest.param(
            RANDOM, Variant("actionflow", decoding="actionflow"), 300.0, 6, id="a pipeline"
        ),
        pytest.param(SCRIPTED, Variant("old", delay_frames=2), 100.0, 2, id="a delay"),
        pytest.param(
            replace(RANDOM, checkpoint="random:small-oft"),
            Variant("chunks", decoding="parallel", replan_interval=4),
            150.0,
            0,
            id="chunks",
        ),
    ],
)
def test_actions_on_older_observation_are_the_same_with_and_without_ros(
    graph, setup, variant, age_ms, held
):
    record = graph(setup).play(job(variant), variant)
    assert record.age_ms.quantile(100) == pytest.approx(age_ms)
    assert record.held == held
    (expected,) = directly(setup, variant, [job(variant)])
    assert figures(record) == figures(expected)


def test_the_state_that_a_checkpoint_takes_comes_through_the_graph(graph, tmp_path, monkeypatch):
    """LIBERO's eight values, to the last bit: another state gives other actions."""
    folder = tmp_path / "oft"
    config = replace(tiny_config(towers="fused"), parallel=True, chunk=8, proprio_dim=8, images=2)
    write_random(folder, config, seed=3, stats=oft_statistics(7, 8))
    words = ["eval", "--checkpoint", str(folder), "--image-size", "64", "--max-steps", "10"]
    setup = completed(setup_of(make_parser("eval")[0].parse_args(words)))
    variant = Variant("oft", decoding="parallel")
    record = graph(setup).play(job(variant), variant)
    assert (record.steps, record.held, record.frames, record.error) == (10, 0, 2, "")
    (expected,) = directly(setup, variant, [job(variant)])
    assert figures(record) == figures(expected)

    def a_little_aside(seen: SimObservation, size: int) -> np.ndarray:
        return robot_state(seen, size) + 1e-3 * np.eye(8)[6]  # one finger

    monkeypatch.setattr(direct, "robot_state", a_little_aside)
    (other,) = directly(setup, variant, [job(variant)])
    assert other.action_digest != record.action_digest


# What is said to the policy


def test_an_empty_instruction_moves_nothing(graph):
    """A blank stands for it: an empty one is the task's own instruction."""
    setup = replace(SCRIPTED, max_steps=12)
    silent = job(PLAIN, instruction=" ")
    runner = graph(setup)
    record = runner.play(silent, PLAIN)
    assert not record.success
    assert record.reason == "step limit, the policy never acted: waits for an instruction"
    assert (record.steps, record.held, record.frames, record.rate_hz) == (12, 12, 0, 0.0)
    assert record.error == ""
    assert figures(record) == figures(directly(setup, PLAIN, [silent])[0])
    assert runner.play(job(PLAIN), PLAIN).held == 0  # the next instruction is taken up


def test_an_empty_instruction_moves_nothing_in_real_time(graph):
    record = graph(replace(REALTIME, max_steps=15)).play(job(PLAIN, instruction=" "), PLAIN)
    assert not record.success
    assert record.reason.startswith("step limit, the policy never acted: waits for an instruction")
    assert (record.steps, record.held, record.age_ms.count) == (15, 15, 0)


@pytest.mark.long
@pytest.mark.parametrize(
    "said", ["sing a song", "pick up the purple cube and put it on the plate"], ids=["no", "purple"]
)
def test_the_expert_refuses_what_it_cannot_do_and_the_next_episode_is_free_of_it(graph, said):
    setup = replace(SCRIPTED, max_steps=60)
    runner = graph(setup)
    refused = job(PLAIN, instruction=said)
    record = runner.play(refused, PLAIN)
    assert_refused(record)
    assert record.steps == 60
    assert runner.pid("policy") == 0  # what is in FAULT does not go on
    assert figures(record) == figures(directly(setup, PLAIN, [refused])[0])
    assert runner.play(job(PLAIN), PLAIN).success


def test_a_fault_ends_the_episode_in_real_time(graph):
    record = graph(REALTIME).play(job(PLAIN, instruction="sing a song"), PLAIN)
    assert_refused(record)
    assert record.steps < 60


def assert_refused(record: Record) -> None:
    assert not record.success
    assert record.reason.startswith("policy FAULT: ")
    assert "the expert cannot act" in record.reason
    assert record.rate_hz == 0.0
    assert record.held == record.steps > 0


def test_a_vla_acts_on_any_instruction_but_none(graph):
    """Nothing in a VLA knows what is on the table: the gate bounds how it moves, not why."""
    runner = graph(RANDOM)
    own, other, silent = (
        runner.play(job(AUTOREGRESSIVE, instruction=said), AUTOREGRESSIVE)
        for said in ("", "pick up the purple cube", " ")
    )
    assert other.held == 0
    assert other.reason == "step limit"  # judged by the task's own goal
    assert other.token_digest != own.token_digest
    assert silent.held == silent.steps == 10
    told = "stopped: waits for resume or another instruction"  # what an empty instruction means
    assert silent.reason == f"step limit, the policy never acted: {told}"
    assert silent.token_digest == ""


def test_a_job_that_the_bridge_refuses_costs_only_itself(graph):
    runner = graph(SCRIPTED)
    assert runner.play(job(PLAIN), PLAIN).success
    record = runner.play(job(PLAIN, instruction="go\x07"), PLAIN)
    assert not record.success
    assert record.reason == "the bridge refused: instruction has the control character U+0007"
    assert record.error == record.reason
    assert runner.play(job(PLAIN, 1), PLAIN).success


# Real time


@pytest.mark.long
@pytest.mark.timing
def test_real_time_counts_the_age_of_what_was_executed(graph):
    runner = graph(REALTIME)
    records = [runner.play(job(PLAIN, state), PLAIN) for state in range(2)]
    for record in records:
        assert record.success
        assert record.reason.startswith("success")
        assert record.steps / record.wall_s < 21.0
        assert record.rate_hz <= record.steps / record.wall_s
        assert record.error == ""
        # Seen at one step, executed at the next: one control period, or a few.
        assert record.age_ms.p50 > 40.0
        judge("median age when executed", record.age_ms.p50, quiet=110.0, loaded=450.0, unit="ms")
        assert record.age_ms.quantile(100) <= 500.0
    late = Variant("late", image_delay_ms=200.0)
    record = runner.play(job(late), late)
    assert record.error == ""
    assert record.age_ms.quantile(0) >= 200.0
    assert record.age_ms.p50 > 240.0
    judge("median age, images 200 ms late", record.age_ms.p50, quiet=310.0, loaded=480.0, unit="ms")
    assert record.held >= 4  # until the first image came


@pytest.mark.timing
def test_a_policy_that_hangs_is_a_failed_episode(graph):
    """Its worker is stopped: HOLD half a second later, then the robot stands until the end."""
    setup = replace(REALTIME, max_steps=45)
    variant, task = PLAIN, "stack_red_on_blue"  # takes the expert longer than that
    runner = graph(setup)

    def hang() -> None:
        wait_until(lambda: runner.steps >= 3, 60.0, "three steps")
        workers = children(runner.pid("policy"))
        assert workers
        for child in workers:
            os.kill(child, signal.SIGSTOP)

    thread = threading.Thread(target=hang, daemon=True)
    thread.start()
    record = runner.play(job(variant, task=task), variant)
    thread.join(5.0)
    assert not record.success
    assert record.held > 15
    assert "HOLD" in record.reason or "worker was lost" in record.error, record


@pytest.mark.slow
def test_a_node_that_dies_is_a_failed_episode_and_the_next_one_has_a_new_graph(graph):
    runner = graph(RANDOM)
    first = runner.play(job(AUTOREGRESSIVE), AUTOREGRESSIVE)
    pid = runner.pid("policy")

    def kill() -> None:
        wait_until(lambda: 0 < runner.steps < 10, 60.0, "an episode that runs")
        os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    record = runner.play(job(AUTOREGRESSIVE, 1), AUTOREGRESSIVE)
    thread.join(5.0)
    assert not record.success
    assert record.reason.startswith("policy was ended by SIGKILL")
    assert record.error == record.reason
    assert record.steps < 10
    again = runner.play(job(AUTOREGRESSIVE), AUTOREGRESSIVE)
    assert runner.pid("policy") != pid
    assert figures(again) == figures(first)


@pytest.mark.slow
def test_an_episode_in_which_nothing_happens_is_given_up(graph):
    runner = graph(SCRIPTED, stall_s=2.0)
    assert runner.play(job(PLAIN), PLAIN).success
    os.kill(runner.pid("policy"), signal.SIGSTOP)
    record = runner.play(job(PLAIN, 1), PLAIN)
    assert not record.success
    assert record.reason.startswith("no progress for 2 s: policy ")
    assert runner.play(job(PLAIN, 1), PLAIN).success


@pytest.mark.long
def test_what_cannot_be_loaded_is_said_once_for_all(graph, tmp_path):
    runner = graph(replace(RANDOM, checkpoint=str(tmp_path / "nothing")))
    with pytest.raises(
        RunnerFailed, match=r"^autoregressive: policy refused to configure: .*nothing"
    ):
        runner.play(job(AUTOREGRESSIVE), AUTOREGRESSIVE)


@pytest.mark.long
def test_two_graphs_side_by_side_do_not_hear_each_other(graph):
    runners = [graph(SCRIPTED), graph(SCRIPTED)]
    records: dict[int, Record] = {}

    def play(number: int) -> None:
        records[number] = runners[number].play(job(PLAIN, number), PLAIN)

    threads = [threading.Thread(target=play, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    expected = directly(SCRIPTED, PLAIN, [job(PLAIN, 0), job(PLAIN, 1)])
    assert [figures(records[n]) for n in range(2)] == [figures(record) for record in expected]
