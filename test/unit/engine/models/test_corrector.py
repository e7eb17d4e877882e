"""The corrector: shapes, nothing added at first, its folder, and what it reads of the policy."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from support.engine import CLOCK, images
from vla_ros.core.adaptation import ActionAdaptation, Adaptation
from vla_ros.core.types import Executing, Instruction, Observation, Timeline, Uncorrected
from vla_ros.engine import EngineOptions, load_engine
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.families.lerobot import PRESETS
from vla_ros.engine.families.registry import write_folder
from vla_ros.engine.load import corrector_for, sha256_on_disk
from vla_ros.engine.models.corrector import (
    FOLDER,
    Corrector,
    CorrectorConfig,
    find_corrector,
    save_corrector,
)
from vla_ros.policies.base import PolicyRefused, PolicySpec
from vla_ros.policies.load import load_corrector
from vla_ros.policies.vla import VlaPolicy

CPU = torch.device("cpu")
SMALL = CorrectorConfig(hidden=12, state=8, actions=7, horizon=5, width=16, heads=2, head_dim=4)
FRONT, WRIST = images(2, still=0.0)
KINDS = ("pi0", "smolvla")


def given(batch: int = 3, rows: int = 6) -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(0)
    return (
        torch.randn(batch, rows, SMALL.hidden, generator=draw),
        torch.tensor([rows, rows - 2, 1][:batch]),
        torch.randn(batch, SMALL.state, generator=draw),
        torch.randn(batch, SMALL.actions, generator=draw),
        torch.arange(batch),
        torch.arange(batch),
    )


def drawn(config: CorrectorConfig = SMALL) -> Corrector:
    """One that says something."""
    torch.manual_seed(3)
    made = Corrector(config)
    torch.nn.init.normal_(made.out.weight)
    torch.nn.init.normal_(made.out.bias)
    return made.requires_grad_(False)


def test_it_adds_nothing_at_first_and_one_number_for_each_of_an_action():
    said = Corrector(SMALL)(*given())
    assert said.shape == (3, 7)
    assert not said.any()
    assert drawn()(*given()).abs().min() > 0


def test_padding_is_not_read():
    rows, *rest = given()
    other = rows.clone()
    other[1, 4:] = 100.0
    assert torch.equal(drawn()(rows, *rest), drawn()(other, *rest))
    alone = [part[1:2] for part in given()]
    alone[0] = alone[0][:, :4]
    torch.testing.assert_close(drawn()(*alone)[0], drawn()(*given())[1])


@pytest.mark.parametrize("place", [4, 5], ids=["index", "ahead"])
def test_an_action_s_place_and_when_it_is_due_are_told_apart(place):
    other = list(given())
    other[place] = other[place].flip(0)
    changed = (drawn()(*other) != drawn()(*given())).any(1)
    assert changed.tolist() == [True, False, True]


def test_its_folder_is_read_back(tmp_path):
    assert find_corrector(tmp_path, SMALL, CPU) is None
    save_corrector(tmp_path, drawn())
    found = find_corrector(tmp_path, replace(SMALL, width=256), CPU)
    assert found is not None
    assert found.config == SMALL
    want = drawn().to(torch.bfloat16).float()
    assert torch.equal(found(*given()), want(*given()))


@pytest.mark.parametrize("name", ["hidden", "state", "actions", "horizon"])
def test_one_for_another_policy_is_refused_with_both_numbers(tmp_path, name):
    save_corrector(tmp_path, drawn())
    have = getattr(SMALL, name)
    wanted = replace(SMALL, **{name: have + 1})
    with pytest.raises(CheckpointError, match=f"another policy: {name} {have}, the policy's is"):
        find_corrector(tmp_path, wanted, CPU)


@pytest.mark.parametrize("damage", [{"width": 0}, {"width": "16"}, {"depth": 2}])
def test_a_config_of_another_kind_is_refused(tmp_path, damage):
    save_corrector(tmp_path, drawn())
    path = tmp_path / FOLDER / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **damage}))
    with pytest.raises(CheckpointError, match="no corrector of this version"):
        find_corrector(tmp_path, SMALL, CPU)


def folder_of(tmp_path, kind: str, corrected: bool = True) -> str:
    """A random policy's folder with a corrector in it, which adds nothing."""
    write_folder(tmp_path, PRESETS[f"{kind}-small"], seed=1)
    if corrected:
        policy = load_engine(EngineOptions(str(tmp_path))).policy
        config = corrector_for(policy)
        assert config is not None
        save_corrector(tmp_path, Corrector(config))
    return str(tmp_path)


def frame(policy: VlaPolicy, stamp: int) -> Observation:
    state = np.linspace(-0.5, 0.5, policy.info.state_dim)
    return Observation(stamp, stamp, CLOCK.steady_ns(), FRONT, WRIST, proprio=state)


@pytest.mark.parametrize("kind", KINDS)
def test_with_nothing_added_an_action_stays_what_it_was_to_the_last_bit(tmp_path, kind):
    policy = VlaPolicy(PolicySpec("vla", EngineOptions(folder_of(tmp_path, kind))))
    assert policy.info.corrects == 4
    policy.reset(Instruction("pick up the red cube", 1))
    action = np.array([0.01, -0.02, 0.003, 0.1, 0.2, -0.3, 0.7])
    assert policy.correct(frame(policy, 2), action[None], 3).tobytes() == action.tobytes()


def test_what_it_says_is_added_in_units_and_the_gripper_stays_in_its_range(tmp_path):
    folder = folder_of(tmp_path, "pi0")
    corrector = find_corrector(
        tmp_path, corrector_for(load_engine(EngineOptions(folder)).policy), CPU
    )
    corrector.out.bias = torch.nn.Parameter(torch.tensor([1.0, 0, 0, 0, 0, 0, 9.0]))
    save_corrector(tmp_path, corrector)
    policy = VlaPolicy(PolicySpec("vla", EngineOptions(folder)))
    policy.reset(Instruction("pick up the red cube", 1))
    said = policy.correct(frame(policy, 2), np.zeros((1, 7)), 0)[0]
    scaler = policy._engine.policy.processors.action
    one = scaler.restore(torch.eye(7)[0]) - scaler.restore(torch.zeros(7))
    assert said[0] == pytest.approx(float(one[0]), rel=1e-5)
    assert not said[1:6].any()
    assert 0.0 <= said[6] <= 1.0


def test_what_runs_has_another_name_with_another_corrector(tmp_path):
    folder = folder_of(tmp_path, "pi0", False)
    wanted = corrector_for(load_engine(EngineOptions(folder)).policy)
    names = [sha256_on_disk(folder)]
    for corrector in (Corrector(wanted), drawn(wanted)):
        save_corrector(tmp_path, corrector)
        names.append(sha256_on_disk(folder))
    assert len(set(names)) == 3
    assert VlaPolicy(PolicySpec("vla", EngineOptions(folder))).info.checkpoint_sha256 == names[-1]


def test_in_a_worker_of_its_own_it_says_each_action_as_the_policy_would(tmp_path):
    folder = folder_of(tmp_path, "pi0")
    save_corrector(tmp_path, drawn(corrector_for(load_engine(EngineOptions(folder)).policy)))
    spec = PolicySpec("vla", EngineOptions(folder))
    policy, alone = VlaPolicy(spec), load_corrector(spec)
    for one in (policy, alone):
        one.reset(Instruction("pick up the red cube", 1))
    actions = np.random.default_rng(0).uniform(-0.02, 0.02, (3, 7))
    seen = replace(frame(policy, 5), uncorrected=Uncorrected(2, 1, actions))
    said = alone.step(seen, Timeline(0), CLOCK)
    assert (said.stamp_ns, said.continues) == (5, Executing(2, 1, 0))
    np.testing.assert_allclose(said.actions, policy.correct(seen, actions, 1), atol=1e-6)
    now = policy.correct(seen, actions[:1], 1)[0]
    np.testing.assert_allclose(said.actions[0], now, atol=1e-6)
    later = policy.correct(seen, actions[1:2], 2)[0]  # due with the frame, not a period later
    assert np.abs(said.actions[1] - later).max() > 1e-4
    assert np.abs(said.actions - actions).max() > 1e-3


def test_behind_an_adaptation_it_corrects_the_robots_actions(tmp_path):
    folder = folder_of(tmp_path, "pi0")
    save_corrector(tmp_path, drawn(corrector_for(load_engine(EngineOptions(folder)).policy)))
    turned = Adaptation(action=ActionAdaptation(turn="z90"))
    spec = PolicySpec("vla", EngineOptions(folder))
    plain, other = load_corrector(spec), load_corrector(replace(spec, adaptation=turned))
    actions = np.random.default_rng(0).uniform(-0.02, 0.02, (3, 7))
    seen = replace(frame(plain, 5), uncorrected=Uncorrected(2, 1, actions))
    space = plain.info.action_space
    theirs = replace(seen, uncorrected=Uncorrected(2, 1, turned.action.apply(actions, space)))
    for one in (plain, other):
        one.reset(Instruction("pick up the red cube", 1))
    want = turned.action.apply(plain.step(seen, Timeline(0), CLOCK).actions, space)
    np.testing.assert_allclose(other.step(theirs, Timeline(0), CLOCK).actions, want, atol=1e-6)


def test_a_worker_of_its_own_is_refused_where_there_is_none(tmp_path):
    with pytest.raises(PolicyRefused, match="has no corrector"):
        load_corrector(PolicySpec("vla", EngineOptions(folder_of(tmp_path, "pi0", False))))


def test_a_policy_without_one_says_so(tmp_path):
    policy = VlaPolicy(PolicySpec("vla", EngineOptions(folder_of(tmp_path, "pi0", False))))
    assert policy.info.corrects == 0
