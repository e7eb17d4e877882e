"""Chunks that continue each other, against the papers' formulas in numpy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.engine import CLOCK, images
from support.flow import inputs_of, model_of, noise_for, noise_of, tiny_flow
from unit.runtime.control.bench import Bench
from vla_ros.core.types import Executing, Inference, Instruction, Observation, Timeline
from vla_ros.engine import EngineOptions
from vla_ros.engine.engine import Engine
from vla_ros.engine.errors import CheckpointError, InvalidAction
from vla_ros.engine.families.lerobot import PRESETS, STATE_DIM
from vla_ros.engine.families.registry import write_folder
from vla_ros.engine.io.processors import Scaler
from vla_ros.engine.layers.flow_matching import Guidance, RtcMode, guidance_of, soft_mask
from vla_ros.engine.layers.pieces import alone
from vla_ros.engine.load import load_engine
from vla_ros.engine.models.base import Prefix
from vla_ros.engine.models.preparation import LerobotPreparation
from vla_ros.engine.models.vlm_with_expert import VLMWithExpert
from vla_ros.policies.base import PolicySpec
from vla_ros.policies.vla import VlaPolicy
from vla_ros.runtime.control.queue import Chunking, Execution
from vla_ros.runtime.control.requests import (
    RecordedRequest,
    RecordedRequests,
    read_requests,
    write_requests,
)
from vla_ros.runtime.safety import Limits

KINDS = ("pi0", "pi05", "smolvla")
FRONT, WRIST = images(2, still=0.0)
TEXT = "pick up the red cube"


def paper_mask(horizon: int, s: int, d: int) -> np.ndarray:
    """arXiv 2506.07339, eq. 5."""
    out = np.zeros(horizon)
    for i in range(horizon):
        if i < d:
            out[i] = 1.0
        elif i < horizon - s:
            c = (horizon - s - i) / (horizon - s - d + 1)
            out[i] = c * (np.e**c - 1) / (np.e - 1)
    return out


def paper_chunk(velocity, noise, times, previous, weights, beta, jacobian=None) -> np.ndarray:
    """The guided solver, eq. 1 to 4, in the paper's time: tau runs from 0 to 1."""
    x, n = noise.copy(), len(times)
    for step, time in enumerate(times):
        tau = 1.0 - time
        v = -velocity(x, step)  # towards the actions
        ahead = x + (1 - tau) * v
        error = weights[:, None] * (previous - ahead)
        if jacobian is not None:
            error = jacobian(x, step, error)
        r2 = (1 - tau) ** 2 / (tau**2 + (1 - tau) ** 2)
        gain = min(beta, (1 - tau) / (tau * r2)) if tau > 0 else beta
        x = x + (v + gain * error) / n
    return x


@pytest.mark.parametrize(("horizon", "s"), [(h, s) for h in (4, 9) for s in range(h + 1)])
def test_the_soft_mask_is_the_papers(horizon: int, s: int) -> None:
    for d in range(horizon - s + 1):
        got = soft_mask(horizon, horizon - s, d).numpy()
        assert np.allclose(got, paper_mask(horizon, s, d), atol=1e-7)


def test_the_leftover_is_moved_and_never_zero() -> None:
    chunk = torch.arange(1.0, 11.0).view(5, 2)
    guidance = guidance_of(chunk, Executing(7, 3, 9), 5.0, RtcMode.GUIDED)
    assert guidance is not None
    assert guidance.previous.tolist() == [[7, 8], [9, 10], [9, 10], [9, 10], [9, 10]]
    assert (guidance.delay, guidance.limit) == (2, 5.0)
    assert guidance.weights.tolist() == [1, 1, 0, 0, 0]
    assert guidance_of(chunk, Executing(7, 5, 0), 5.0, RtcMode.GUIDED) is None


def prepared(kind: str, **changes: Any) -> tuple[VLMWithExpert, Prefix, torch.Tensor]:
    config = tiny_flow(kind, **changes)
    model, inputs = model_of(config), inputs_of(config, 2, 5)
    return model, model.prefill(model.image_features(inputs[0]), *inputs[1:]), noise_of(config)


def in_numpy(model: VLMWithExpert, prefix: Prefix):
    def velocity(x: np.ndarray, step: int) -> np.ndarray:
        return model.denoise_step(prefix, torch.from_numpy(x).float(), step).double().numpy()

    return velocity


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("s", "d", "beta"), [(3, 2, 5.0), (4, 0, 5.0), (2, 7, 0.7)])
def test_guidance_with_the_identity_is_the_formula(kind: str, s: int, d: int, beta: float) -> None:
    model, prefix, noise = prepared(kind)
    earlier = model.sample_actions(prefix, None, torch.flip(noise, (0,)))
    guidance = guidance_of(earlier, Executing(1, s, d), beta, RtcMode.GUIDED)
    assert guidance is not None
    got = model.sample_actions(prefix, None, noise, guidance).double().numpy()
    held = earlier.double().numpy()
    previous = np.concatenate((held[s:], np.repeat(held[-1:], s, 0)))
    weights = paper_mask(model.horizon, s, d)
    want = paper_chunk(
        in_numpy(model, prefix), noise.double().numpy(), model.solver.times, previous, weights, beta
    )
    assert np.abs(got - want).max() < 1e-4 * max(1.0, np.abs(want).max())


@pytest.mark.parametrize("kind", KINDS)
def test_guidance_with_the_true_jacobian_is_the_formula(kind: str) -> None:
    """J^T e by central differences, one number of x at a time."""
    model, prefix, noise = prepared(kind, horizon=4, action_width=7, steps=3)
    earlier = model.sample_actions(prefix, None, torch.flip(noise, (0,)))
    guidance = guidance_of(earlier, Executing(1, 1, 1), 5.0, RtcMode.GUIDED_VJP)
    assert guidance is not None
    velocity = in_numpy(model, prefix)

    def pulled(x: np.ndarray, step: int, error: np.ndarray) -> np.ndarray:
        out, eps, time = np.zeros_like(x), 2e-3, model.solver.times[step]
        for place in np.ndindex(x.shape):
            up, down = x.copy(), x.copy()
            up[place] += eps
            down[place] -= eps
            there, here = (y - time * velocity(y, step) for y in (up, down))
            out[place] = ((there - here) / (2 * eps) * error).sum()
        return out

    args = (noise.double().numpy(), model.solver.times, guidance.previous.double().numpy(),
            guidance.weights.double().numpy(), 5.0)  # fmt: skip
    want, plain = paper_chunk(velocity, *args, pulled), paper_chunk(velocity, *args)
    got = model.sample_actions(prefix, None, noise, guidance).double().numpy()
    apart = np.abs(want - plain).max()
    assert apart > 1e-3
    assert np.abs(got - want).max() < 0.05 * apart
    free = model.sample_actions(prefix, None, noise)
    again = model.sample_actions(prefix, None, noise)
    assert torch.equal(free, again)
    assert not free.requires_grad


@pytest.mark.parametrize("kind", KINDS)
def test_the_true_jacobian_leaves_no_trace_in_the_buffers(kind: str) -> None:
    model, prefix, noise = prepared(kind)
    want = model.sample_actions(prefix, None, noise)
    ones = torch.ones(model.horizon, model.width), torch.ones(model.horizon)
    model.sample_actions(prefix, None, noise, Guidance(*ones, 2, 5.0, RtcMode.GUIDED_VJP))
    assert torch.equal(model.sample_actions(prefix, None, noise), want)
    assert not any(k.requires_grad for k in (model.key_cache, model.value_cache))


@pytest.mark.parametrize("kind", KINDS)
def test_given_rows_stay_as_they_are_at_the_time_of_actions(kind: str) -> None:
    """arXiv 2512.05964: no noise and time 0 for the rows under way, the solver's for the rest."""
    model, prefix, noise = prepared(kind, rtc_trained=True)
    plain, want_free, _ = prepared(kind)
    free = model.sample_actions(prefix, None, noise), plain.sample_actions(want_free, None, noise)
    assert torch.allclose(*free, atol=1e-5), "without given rows it is the same network"
    earlier = model.sample_actions(prefix, None, torch.flip(noise, (0,)))
    guidance = guidance_of(earlier, Executing(1, 3, 2), 5.0, RtcMode.TRAINED)
    assert guidance is not None
    got = model.sample_actions(prefix, None, noise, guidance)
    assert torch.equal(got[:2], earlier[3:5])
    x = torch.where(guidance.weights[:, None] > 0, guidance.previous, noise)
    for step, _ in enumerate(model.solver.times):
        with torch.inference_mode():
            model.denoise_step(prefix, x, step)
            model.given = guidance.weights[:, None] > 0
            v = model.denoise_step(prefix, x, step, begin=False)
            model.given = None
            other = model.denoise_step(prefix, x, step, begin=False)
        assert not torch.allclose(v[2:], other[2:], atol=1e-6), "the time of given rows counts"
        x = torch.where(guidance.weights[:, None] > 0, guidance.previous, x + model.solver.dt * v)
    assert torch.allclose(got, x, atol=1e-5)
    assert guidance_of(earlier, Executing(1, 3, 0), 5.0, RtcMode.TRAINED) is None


def test_rows_at_their_own_times_are_those_of_each_time() -> None:
    model, _, noise = prepared("smolvla", rtc_trained=True)
    given = (torch.arange(model.horizon) < 3)[:, None]
    timed = model.action_time_mlp
    mixed = timed(noise, 1, given)
    assert torch.allclose(mixed[:3], timed(noise, -1)[:3], atol=1e-6)
    assert torch.allclose(mixed[3:], timed(noise, 1)[3:], atol=1e-6)


def test_a_network_with_one_time_for_all_is_refused_in_one_line() -> None:
    with pytest.raises(CheckpointError, match=r"a time for each action.*choose sync, async, "):
        engine_of("smolvla-small", rtc_mode="trained")
    model, prefix, noise = prepared("smolvla")
    guidance = Guidance(noise, torch.ones(model.horizon), 1, 5.0, RtcMode.TRAINED)
    with pytest.raises(ValueError, match="one time for all actions"):
        model.sample_actions(prefix, None, noise, guidance)


# The engine


def engine_of(preset: str, **options: Any) -> Engine:
    asked = EngineOptions(checkpoint=f"random:{preset}", **options)
    return load_engine(asked)


def test_a_delay_beyond_what_it_was_trained_for_is_refused(tmp_path: Path) -> None:
    """LeRobot's rtc_training_max_delay: so many given actions at most, and zeros behind them."""
    config = replace(PRESETS["pi05-small"], rtc_trained=True, max_delay=2)
    write_folder(tmp_path / "it", config, seed=1)
    asked = EngineOptions(str(tmp_path / "it"), rtc_mode="trained")
    engine = load_engine(asked)
    engine.reset(TEXT)
    first = step(engine, seen(1))
    chunk = engine.decoder.last_chunk
    assert chunk is not None
    assert chunk[:, config.action_dim :].abs().max() > 0
    second = step(engine, seen(2, Executing(1, 3, 2)))
    np.testing.assert_allclose(second.actions[:2], first.actions[3:5], atol=1e-6)
    given = engine.decoder.last_chunk
    assert given is not None
    assert not given[:2, config.action_dim :].any()
    assert given[2:, config.action_dim :].any()
    with pytest.raises(InvalidAction, match=r"3 steps late.*trained for 2 .rtc_training_max_delay"):
        step(engine, seen(3, Executing(2, 3, 3)))


def seen(stamp: int, executing: Executing | None = None) -> Observation:
    proprio = np.random.default_rng(stamp).normal(size=STATE_DIM)
    return Observation(stamp, stamp, 0, FRONT, WRIST, proprio, executing=executing)


def step(engine: Engine, observation: Observation) -> Inference:
    return engine.step(observation, Timeline(0).mark("queue", 0), CLOCK)


@pytest.mark.parametrize("preset", ["smolvla-small", "pi0-small"])
def test_the_engine_continues_what_the_observation_says_is_executed(preset: str) -> None:
    engine, free = engine_of(preset, rtc_mode="guided", rtc_guidance_limit=4.0), engine_of(preset)
    for one in (engine, free):
        one.reset(TEXT)
        step(one, seen(1))
    assert engine.info.continues == ("rtc",)
    first = engine.decoder.last_chunk
    assert first is not None
    step(engine, seen(2))  # a chunk that came between is not the one that is executed
    executing = Executing(1, 4, 2)
    answer = step(engine, seen(3, executing))
    assert answer.continues == executing
    prefix = free.encode(seen(3), Timeline(0), CLOCK).prefix
    held = first.double().numpy()
    held[:, engine.info.action_space.width :] = 0  # what pads an action
    want = paper_chunk(
        in_numpy(free.policy.model, prefix),
        noise_for(0, 3, *held.shape).double().numpy(),
        free.policy.model.solver.times,
        np.concatenate((held[4:], np.repeat(held[-1:], 4, 0))),
        paper_mask(len(held), 4, 2),
        4.0,
    )
    assert engine.decoder.last_chunk is not None
    assert np.abs(engine.decoder.last_chunk.double().numpy() - want).max() < 1e-4
    # nothing to continue: as if there were no such thing
    for stamp, nothing in ((4, None), (5, Executing(1, 10, 0)), (6, Executing(99, 4, 2))):
        alone = step(engine, seen(stamp, nothing))
        assert alone.continues is None
        assert np.array_equal(alone.actions, step(free, seen(stamp)).actions)
    engine.reset(TEXT)
    assert step(engine, seen(7, Executing(6, 4, 2))).continues is None, "a new epoch"


SPEC = PolicySpec("vla", engine=EngineOptions("random:smolvla-small"), warmup_count=0)


def policy_of(rtc: str) -> VlaPolicy:
    policy = VlaPolicy(replace(SPEC, engine=replace(SPEC.engine, rtc_mode=rtc)))
    policy.reset(Instruction(TEXT, 1))
    return policy


def run(policy: VlaPolicy, execution: Execution, delays: list[int], replan: int, steps: int):
    """A loop in real time whose answers take so many periods: what was asked and said."""
    bench = Bench(
        limits=Limits(max_age_s=5.0), chunk=10, continues=policy.info.continues,
        chunking=Chunking(execution, replan_interval=replan),
    )  # fmt: skip
    bench.control.activate()
    bench.control.set_instruction(TEXT)
    said: list[tuple[Observation, Inference]] = []
    due: int | None = None
    for now in range(steps):
        stamp = bench.clock.now
        proprio = np.random.default_rng(now).normal(size=STATE_DIM)
        bench.control.offer(Observation(stamp, stamp, bench.clock.steady, FRONT, WRIST, proprio))
        asked = bench.out.submitted
        if len(asked) > len(said):
            due = now + delays[len(said) % len(delays)] if due is None else due
            if now >= due:
                observation = asked[len(said)][0]
                inference = policy.step(observation, Timeline(0).mark("queue", 0), CLOCK)
                assert inference is not None
                said.append((observation, inference))
                bench.answer(observation, inference.actions)
                due = None
        bench.control.tick()
        bench.clock.advance(0.05)
    return said, bench.out.commands


@pytest.mark.parametrize("rtc", ["guided", "guided_vjp"])
def test_an_asynchronous_run_is_replayed_from_its_recorded_delays(rtc: str) -> None:
    said, _ = run(policy_of(rtc), Execution.RTC, [2, 4, 1, 3], 4, 40)
    assert len(said) >= 6
    recorded = [inference.continues for _, inference in said]
    assert recorded[0] is None
    assert all(c is not None for c in recorded[1:])
    assert len({c.delay_steps for c in recorded if c is not None}) > 1
    again = policy_of(rtc)
    for (observation, want), continued in zip(said, recorded, strict=True):
        observation = replace(observation, executing=continued)
        got = again.step(observation, Timeline(0).mark("queue", 0), CLOCK)
        assert got is not None
        assert np.array_equal(got.actions, want.actions)


def test_a_loop_in_lock_step_that_is_told_of_it_asks_the_same_and_hears_the_same() -> None:
    """As `vla-ros replay --mode chunks` does it, a frame after the other."""
    said, _ = run(policy_of("guided"), Execution.RTC, [2, 4, 1, 3], 4, 40)
    for told in (True, False):
        bench = Bench(
            lockstep=True, limits=Limits(max_age_s=5.0), chunk=10, continues=("rtc",),
            chunking=Chunking(Execution.RTC, replan_interval=4),
        )  # fmt: skip
        bench.control.activate()
        bench.control.set_instruction(TEXT)
        questions = [RecordedRequest(o.stamp_ns, i.continues if told else None) for o, i in said]
        bench.control.requests.recorded = RecordedRequests(questions)
        again = policy_of("guided")
        same = []
        for observation, want in said:
            seen_before = len(bench.out.submitted)
            bench.clock.advance((observation.stamp_ns - bench.clock.now) / 1e9)
            bench.control.offer(replace(observation, executing=None))
            ((asked, _),) = bench.out.submitted[seen_before:]
            got = again.step(asked, Timeline(0).mark("queue", 0), CLOCK)
            assert got is not None
            same.append(np.array_equal(got.actions, want.actions))
            bench.answer(asked, got.actions)
            assert bench.out.commands[-1].latest_ns == observation.stamp_ns, "each is answered"
        assert all(same) if told else not any(same[1:])


def test_questions_are_asked_once_each_and_kept_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "chunks.json"
    asked = [
        RecordedRequest(5),
        RecordedRequest(9, Executing(5, 3, 2)),
        RecordedRequest(9, None, 3),
    ]
    write_requests(file, asked)
    retold = read_requests(file)
    assert retold.next(4) is None
    assert retold.next(9) == asked[1], "those before are over"
    assert [retold.next(9), retold.next(9), retold.next(10)] == [asked[2], None, None]
    for wrong in ("{}x", "[[1]]", "[[1, 2, 3]]", "7"):
        file.write_text(wrong)
        with pytest.raises(ValueError, match="cannot read"):
            read_requests(file)


def test_rtc_without_delay_and_leftover_is_sync_to_the_bit() -> None:
    guided, commands = run(policy_of("guided"), Execution.RTC, [0], 0, 30)
    plain, wanted = run(policy_of(""), Execution.SYNC, [0], 0, 30)
    assert len(guided) == len(plain) == 3
    for (_, a), (_, b) in zip(guided, plain, strict=True):
        assert a.continues is None
        assert np.array_equal(a.actions, b.actions)
    assert [c.action.tobytes() for c in commands] == [c.action.tobytes() for c in wanted]


def test_a_guided_chunk_joins_the_one_before_it() -> None:
    """At the seam it is much nearer to what would have come than one made by itself."""
    jumps = {}
    for rtc, execution in (("", Execution.ASYNC), ("guided", Execution.RTC)):
        said, _ = run(policy_of(rtc), execution, [2], 4, 40)
        jumps[rtc] = np.mean([
            np.abs(new.actions[2] - old.actions[6])[:6].max()
            for (_, old), (_, new) in zip(said[1:], said[2:], strict=False)
        ])  # fmt: skip
    assert jumps["guided"] < 0.5 * jumps[""]


# Relative actions

MARKS = (True, True, True, False, True, True, False)


def relative_engine(marks: tuple[bool, ...], **scaling: Any) -> Engine:
    """pi0 whose marked actions are relative to the state."""
    engine = engine_of("pi0-small", rtc_mode="guided")
    policy = engine.policy
    processors = replace(policy.processors, relative=marks, **scaling)
    made = LerobotPreparation(policy.config, processors, policy.tokenizer, torch.device("cpu"))
    policy = replace(policy, processors=processors, preparation=lambda: made)
    engine = Engine(policy, engine.options)
    engine.reset(TEXT)
    return engine


def at(stamp: int, state: np.ndarray, executing: Executing | None = None) -> Observation:
    return Observation(stamp, stamp, 0, FRONT, WRIST, state, executing=executing)


@pytest.mark.parametrize("marks", [(False,) * 7, (True,) * 7, MARKS])
@pytest.mark.parametrize("moved", [0.0, 0.5])
def test_a_chunk_goes_on_from_where_the_arm_was_sent_however_far_it_has_moved(
    marks: tuple[bool, ...], moved: float
) -> None:
    """The rows that will have been executed say the same positions in both chunks."""
    engine = relative_engine(marks)
    state = np.linspace(-0.3, 0.4, STATE_DIM)
    first = step(engine, at(1, state)).actions
    second = step(engine, at(2, state + moved, Executing(1, 2, 3)))
    assert second.continues == Executing(1, 2, 3)
    assert np.abs(second.actions[:3] - first[2:5]).max() < 0.01


@pytest.mark.parametrize("mode", ["MEAN_STD", "MIN_MAX", "QUANTILES", "IDENTITY"])
def test_every_scaling_is_undone_and_what_never_moves_stays(mode: str) -> None:
    """In units the leftover is what was said, but for an action whose statistics have no width."""
    low, high = torch.linspace(-1, 0.5, 7), torch.linspace(0.6, 2, 7)
    if mode == "MEAN_STD":
        high[4] = 0.0
    else:
        high[4] = low[4]
    engine = relative_engine(MARKS, action=Scaler(mode, low, high))
    made = engine.policy.preparation()
    rest, (then, now) = torch.randn(6, 13), torch.randn(2, STATE_DIM)
    kept = made.reanchored(rest, 3, then, now)
    want, got = made.actions(rest, then), made.actions(kept, now)
    flat = [] if mode == "IDENTITY" else [4]
    places = [i for i in range(7) if i not in flat]
    assert (want - got)[:, places].abs().max() < 1e-5
    same = [3, 6, *flat]
    assert torch.equal(kept[:, same], rest[:, same])
    assert torch.equal(made.reanchored(rest, 3, now, now)[:, :7], rest[:, :7])


def test_a_joint_that_follows_its_chunks_meets_no_step_where_they_meet() -> None:
    """In closed loop: the arm is where its last action sent it, and answers take two periods."""
    engine, state = relative_engine((True,) * 7), np.zeros(STATE_DIM)
    queue, steps, stamp = step(engine, at(0, state)).actions, [], 0
    taken = 0
    for chunk in range(1, 6):
        asked = step(engine, at(chunk, state, Executing(stamp, taken, 2))).actions
        going_on = queue[taken : taken + 2]
        steps.append(np.abs(asked[:2] - going_on).max())
        for action in (*going_on, *asked[2:5]):  # then the new chunk is there
            state[:7] = action
        queue, stamp, taken = asked, chunk, 5
    assert np.abs(state).max() > 0.05, "the arm has not moved"
    assert max(steps) < 0.01


@pytest.mark.parametrize("mode", ["guided", "guided_vjp"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_left_of_a_chunk_has_zeros_behind_an_action_as_lerobots_has(
    kind: str, mode: str, tmp_path: Path
) -> None:
    """LeRobot's queue holds actions of the robot's width, which its RTC pads with zeros
    (``RTCProcessor.denoise_step``): the columns that pad an action are guided to these."""
    config = replace(PRESETS[f"{kind}-small"], action_width=32, action_dim=6)
    write_folder(tmp_path / kind, config, seed=2)
    engine = load_engine(
        EngineOptions(str(tmp_path / kind), rtc_mode=mode, action_dim=6, num_threads=1)
    )
    engine.reset(TEXT)
    state = np.linspace(-1, 1, STATE_DIM)
    engine.step(Observation(1, 1, 0, FRONT, WRIST, state), Timeline(0), CLOCK)
    chunk = engine.decoder.last_chunk  # type: ignore[attr-defined]
    assert chunk[:, 6:].abs().max() > 0.1
    executing = Executing(1, 3, 2)
    seen = Observation(2, 2, 0, WRIST, FRONT, state, executing=executing)
    answer = engine.step(seen, Timeline(0), CLOCK)
    lerobots = torch.zeros_like(chunk)
    lerobots[: config.horizon - 3, :6] = chunk[3:, :6]
    guidance = guidance_of(chunk, executing, engine.options.rtc_guidance_limit, RtcMode(mode))
    assert guidance is not None
    request = engine.encode(seen, Timeline(0), CLOCK)
    expected = alone(engine.decoder.decode(request, replace(guidance, previous=lerobots)))
    wanted = engine.robot.finish(expected).actions
    assert np.abs(answer.actions - wanted).max() < 1e-6
