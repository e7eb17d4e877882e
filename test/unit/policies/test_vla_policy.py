"""The engine as a policy: units, errors, options. A random small model on one thread."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed: no vla policy here")

from support.engine import tiny_config
from support.releases import oft_statistics
from vla_ros.core.clock import SystemClock
from vla_ros.core.types import STAGES, Inference, Instruction, Observation, Timeline
from vla_ros.engine.families.openvla import norm_stats, write_random
from vla_ros.engine.layers.devices import device_of
from vla_ros.engine.options import EngineOptions
from vla_ros.policies import InvalidAction, PolicyRefused, PolicySpec, load_policy
from vla_ros.policies.conventions import settle
from vla_ros.policies.vla import VlaPolicy, engine_options
from vla_ros.runtime.worker.worker import warm_up

CLOCK = SystemClock()
SCALE = (0.05, 0.05, 0.05, 0.5, 0.5, 0.5)
TASK = Instruction("pick up the red cube and place it on the plate", 0)


def load(checkpoint="random:small", action_scale=None, **options) -> VlaPolicy:
    engine = EngineOptions(checkpoint, num_threads=1, seed=1, **options)
    policy = load_policy(PolicySpec("vla", engine=engine, action_scale=action_scale))
    assert isinstance(policy, VlaPolicy)
    return policy


def step(policy: VlaPolicy) -> Inference | None:
    image = np.random.default_rng(3).integers(0, 256, (60, 80, 3), np.uint8)
    now = CLOCK.steady_ns()
    return policy.step(Observation(5, now, now, image), Timeline(now).mark("queue", now), CLOCK)


def test_actions_are_scaled_into_metres_and_radians() -> None:
    plain, scaled = load(action_scale=(1.0,) * 6), load(action_scale=SCALE)
    for policy in (plain, scaled):
        policy.reset(TASK)
    one, other = step(plain), step(scaled)
    assert one is not None
    assert other is not None
    assert one.tokens == other.tokens
    assert len(one.tokens) == 7
    assert np.abs(one.actions[0, :6]).max() > 0
    np.testing.assert_allclose(other.actions[:, :6], one.actions[:, :6] * SCALE)
    assert other.actions[0, 6] == one.actions[0, 6]
    assert 0 <= one.actions[0, 6] <= 1
    assert [name for name, _ in one.timeline.marks] == list(STAGES[1:-1])
    assert plain.info.dtype == "float32"


@pytest.mark.parametrize(
    ("checkpoint", "scale"), [("random:small", SCALE), ("shipped:tabletop", (1.0,) * 6)]
)
def test_the_units_are_the_checkpoint_s_own(checkpoint: str, scale: tuple[float, ...]) -> None:
    own, given = load(checkpoint), load(checkpoint, action_scale=scale)
    for policy in (own, given):
        policy.reset(TASK)
    one, other = step(own), step(given)
    assert one is not None
    assert other is not None
    np.testing.assert_array_equal(one.actions, other.actions)
    assert own.info.contradiction == given.info.contradiction == ""
    words = ", ".join(f"{unit:g}" for unit in scale)
    assert f"one unit is [{words}] m and rad" in own.info.conventions


def test_what_is_given_wins_over_the_checkpoint_and_is_said() -> None:
    policy = load(action_scale=(2.0,) * 6, center_crop="never", preprocessing="libero")
    policy.reset(TASK)
    one = step(policy)
    assert one is not None
    assert np.abs(one.actions[0, :6]).max() > 0.5  # controller units would be 0.5 at most
    assert policy.info.contradiction == (
        "action_scale (2.0, 2.0, 2.0, 2.0, 2.0, 2.0), not the checkpoint's"
        " (0.05, 0.05, 0.05, 0.5, 0.5, 0.5); preprocessing libero, not the checkpoint's default"
    )
    assert "one unit is [2, 2, 2, 2, 2, 2] m and rad (as given)" in policy.info.conventions


def test_a_fine_tune_on_libero_brings_its_image_steps_and_its_wrist_camera(tmp_path) -> None:
    config = replace(tiny_config(), images=2)
    stats = norm_stats()["random"]
    write_random(tmp_path, config, 0, {"libero_goal_no_noops": stats})
    spec = PolicySpec("vla", engine=EngineOptions(str(tmp_path), num_threads=1))
    options = engine_options(spec, settle(spec)[0])
    assert (options.preprocessing, options.center_crop) == ("libero", "always")
    assert options.unnorm_key == "libero_goal_no_noops"
    policy = load(str(tmp_path))
    assert policy.info.cameras == 2
    policy.reset(TASK)
    with pytest.raises(InvalidAction, match="needs a wrist image"):
        step(policy)


def test_task_that_the_model_cannot_take_makes_invalid_results_until_the_next() -> None:
    policy = load()
    with pytest.raises(InvalidAction, match="no instruction"):
        step(policy)
    policy.reset(Instruction("word " * 5000, 0))
    with pytest.raises(InvalidAction, match="tokens"):
        step(policy)
    policy.reset(TASK)
    assert step(policy) is not None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"unnorm_key": "nowhere"}, "nowhere"),
        ({"device": "cuda:99"}, "cuda"),
        ({"flow_steps": 3}, "flow_steps: these options are for flow policies, not for token"),
    ],
)
def test_unusable_configuration_is_refused(fields: dict, words: str) -> None:
    with pytest.raises(PolicyRefused, match=words):
        load(**fields)


def test_missing_checkpoint_is_refused(tmp_path) -> None:
    with pytest.raises(PolicyRefused):
        load_policy(
            PolicySpec("vla", engine=EngineOptions(str(tmp_path / "nowhere"), num_threads=1))
        )


def test_spec_fields_reach_the_engine() -> None:
    asked = EngineOptions(
        "random:small",
        decoding="speculative",
        dtype="bfloat16",
        seed=4,
        cuda_graphs=False,
        drafter="temporal",
        gamma=3,
    )
    spec = PolicySpec("vla", asked)
    options = engine_options(spec, settle(spec)[0])
    assert (options.decoding, options.gamma, options.dtype) == ("speculative", 3, "bfloat16")
    assert (options.seed, options.cuda_graphs, options.unnorm_key) == (4, False, "random")


def test_a_checkpoint_with_robot_state_is_warmed_up_and_refuses_another_size(tmp_path) -> None:
    config = replace(tiny_config(), parallel=True, chunk=8, proprio_dim=8)
    directory = tmp_path / "oft"
    write_random(directory, config, seed=3, stats=oft_statistics(7, 8))
    policy = load(str(directory), decoding="parallel")
    assert policy.info.state_dim == 8
    ready = warm_up(policy, PolicySpec("vla", engine=EngineOptions(str(directory))), 1, CLOCK)
    assert ready.inference_p50_ms > 0
    policy.reset(TASK)
    image = np.zeros((60, 80, 3), np.uint8)

    def shown(state):
        now = CLOCK.steady_ns()
        seen = Observation(5, now, now, image, proprio=state)
        return policy.step(seen, Timeline(now).mark("queue", now), CLOCK).actions

    assert shown(np.zeros(8)).shape == (8, 7)
    assert (shown(np.zeros(8)) != shown(np.full(8, 0.7))).any()
    for state, size in ((None, "none"), (np.zeros(7), "7")):
        with pytest.raises(InvalidAction, match=f"needs 8 values of robot state .* has {size}"):
            shown(state)


def test_device_auto_is_what_torch_sees_and_is_said(monkeypatch) -> None:
    spec = PolicySpec("vla", engine=EngineOptions("shipped:tabletop-flow", device="auto"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    info = load_policy(spec).info
    assert info.device == "cpu"
    assert "; device auto is cpu: torch sees no GPU" in info.conventions
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda _: "RTX")
    assert device_of("auto") == ("cuda:0", "torch sees RTX")
    assert device_of("cpu") == ("cpu", "")


def test_a_policy_that_reads_no_instruction_says_so() -> None:
    """ACT does the one task of its data, whatever it is given."""
    engine = EngineOptions("random:act-small", num_threads=1)
    said = {a.what: a.value for a in load_policy(PolicySpec("vla", engine=engine)).info.assumptions}
    assert said["instruction"] == "not read: it does the task of its data"
    assert "instruction" not in {a.what for a in load("random:small").info.assumptions}
