"""Folders as they lie on the hub (support/hub_folders.py): each loads and gives the actions of the
authors' own code, or is refused in one line that says what next."""

from __future__ import annotations

import io
import re
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from golden.evo1.cases import CASES as EVO1_CASES
from golden.flow.cases import CASES
from golden.flow.seeded import draw, image
from support.engine import CLOCK
from support.hub_folders import EVO1, FLOW, FOLDERS, WEIGHTS, load, ready
from vla_ros.core.types import Instruction, Observation, Timeline
from vla_ros.engine import EngineOptions
from vla_ros.engine.engine import Engine
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.formats import parse_formats
from vla_ros.engine.io.foreign import foreign_files
from vla_ros.engine.load import inspect, load_engine
from vla_ros.engine.models.cameras import roles_of
from vla_ros.engine.quantize import quantize_checkpoint
from vla_ros.policies.base import PolicyRefused, PolicySpec
from vla_ros.policies.conventions import settle
from vla_ros.policies.vla import VlaPolicy

LOADS = [name for name, it in FOLDERS.items() if not it.says]
REFUSED = [name for name, it in FOLDERS.items() if it.says]


def actions_of(policy: Any, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """What it makes of the golden observation of a case, and what LeRobot made of it."""
    folder, _, evo1 = name.partition("/")
    case: Any = EVO1_CASES[evo1] if evo1 else CASES[folder]
    name = evo1 or name
    arrays = np.load((EVO1 if evo1 else FLOW) / name / "golden.npz")
    preparation, config = policy.preparation(), policy.config
    preparation.instruct(case.task)
    images = [image(f"{name}/{c}", *size) if size else None for c, size in case.cameras.items()]
    raw = torch.from_numpy(draw(f"{name}/state", case.state))
    given = preparation.inputs(images, raw)
    if evo1:
        drawn = draw(f"{name}/noise", config.horizon * config.action_width)
        noise = torch.from_numpy(drawn).clamp(-1, 1).view(config.horizon, -1)
    else:
        noise = torch.from_numpy(draw(f"{name}/noise", config.horizon, config.action_width))
    model = policy.model
    prefix = model.prefill(model.image_features(given.pixels), given.ids, given.state)
    chunk = model.sample_actions(prefix, None, noise)
    return preparation.actions(chunk, raw), torch.from_numpy(arrays["actions"])


def fast_actions_of(policy: Any, _: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The same of pi0-FAST's first golden frame."""
    with tarfile.open(FLOW.parent / "data" / "pi0fast.tar.xz") as archive:
        stored = archive.extractfile("pi0fast/expected.npz")
        assert stored is not None
        arrays = np.load(io.BytesIO(stored.read()))
    pixels, state = arrays["pixels"][0], arrays["states"][0]
    engine = Engine(policy, EngineOptions("the folder"))
    engine.reset(" push_the\nspot ")
    seen = Observation(1, 1, 0, pixels, pixels[::-1].copy(), state)
    found = engine.step(seen, Timeline(0).mark("queue", 0), CLOCK)
    assert found is not None
    return torch.from_numpy(found.actions), torch.from_numpy(arrays["actions"][0])


def test_there_are_as_many_as_were_promised() -> None:
    assert len(FOLDERS) >= 60


@pytest.mark.parametrize("name", LOADS)
def test_it_loads_and_gives_the_authors_actions(name: str, tmp_path: Path) -> None:
    policy = load(name, tmp_path)
    golden = FOLDERS[name].golden
    if golden in ("random", "no state"):
        return
    ours, theirs = (fast_actions_of if golden == "pi0_fast" else actions_of)(policy, golden)
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() < 1e-4


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_in_one_line_that_says_what_next(name: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        load(name, tmp_path)
    said = str(caught.value)
    assert "\n" not in said
    assert len(said) < 700
    assert re.search(FOLDERS[name].says, said), said


def test_a_choice_of_data_set_is_that_data_sets(tmp_path: Path) -> None:
    """so100-blue's statistics are one more than so100's, so actions are another place."""
    folder = ready("smolvla, statistics by data set", tmp_path)
    made = [
        load_engine(EngineOptions(str(folder), unnorm_key=key)).policy
        for key in ("so100", "so100-blue")
    ]
    assert torch.equal(
        made[1].processors.action.low, made[0].processors.action.low + 1
    ) and not torch.equal(made[0].processors.state.low, made[1].processors.state.low)
    assert inspect(str(folder)).statistics == ("so100", "so100-blue", "so100-red")


def test_no_statistics_of_the_state_means_as_it_is(tmp_path: Path) -> None:
    policy = load("smolvla_base: statistics by data set, none of the state", tmp_path)
    state = torch.arange(6.0)
    assert torch.equal(policy.processors.state.normalize(state), state)
    assert policy.processors.action.mode == "MEAN_STD"


def test_a_renamed_wrist_is_still_the_wrists(tmp_path: Path) -> None:
    """camera1 was the data set's front: what the data set called wrist is the robot's wrist."""
    policy = load("smolvla, wrist and front renamed", tmp_path)
    assert policy.config.cameras == ("front", "wrist")
    assert roles_of(policy.config.cameras) == ("main", "wrist")
    assert roles_of(("wrist", "front")) == ("wrist", "main")


def test_the_policy_of_the_node_takes_the_choice(tmp_path: Path) -> None:
    """From the node's parameters to actions in the data set's units; without a choice, one line."""
    name = "smolvla_base: statistics by data set, none of the state"
    folder = ready(name, tmp_path)
    options = FOLDERS[name].options | {"camera_map": "front=main wrist=wrist"}
    spec = PolicySpec("vla", engine=EngineOptions(str(folder), **options))
    used, _ = settle(spec)
    assert used.unnorm_key == "so100"
    with pytest.raises(PolicyRefused, match="nothing says which end is closed: give gripper"):
        VlaPolicy(spec)
    policy = VlaPolicy(replace(spec, gripper="-1..1"))
    policy.reset(Instruction("push the blue block", 1))
    front, wrist = image("smolvla/front", 48, 64), image("smolvla/wrist", 70, 56)
    seen = Observation(1, 1, 0, front, wrist, np.zeros(6))
    answer = policy.step(seen, Timeline(0).mark("queue", 0), CLOCK)
    assert answer.actions.shape == (9, 7)
    with pytest.raises(PolicyRefused, match=r"unnorm_key is needed.*so100, so100-blue, so100-red"):
        settle(PolicySpec("vla", engine=EngineOptions(str(folder))))


def test_a_folder_of_several_data_sets_is_quantized_before_one_is_chosen(tmp_path: Path) -> None:
    """Weights are all data sets' own; what was made keeps the choice open."""
    folder = ready("smolvla, statistics by data set", tmp_path)
    quantize_checkpoint(str(folder), parse_formats("int8"), tmp_path / "less")
    assert inspect(str(tmp_path / "less")).statistics == ("so100", "so100-blue", "so100-red")


def test_a_repository_with_a_folder_a_suite_is_answered_with_them() -> None:
    """nvidia/GR00T-N1.7-LIBERO has no weights in its root; judged by names, before a download."""
    suites = ("libero_spatial", "libero_goal")
    names = ["README.md", *(f"{s}/{n}" for s in suites for n in ("config.json", WEIGHTS))]
    said = foreign_files(names, "nvidia/GR00T-N1.7-LIBERO")
    assert said is not None
    assert "hf download nvidia/GR00T-N1.7-LIBERO --include 'FOLDER/*'" in said
    assert said.endswith("it has libero_spatial, libero_goal")
    assert foreign_files([*names, "config.json", WEIGHTS], "x") is None
    diffusers = foreign_files(["model_index.json", "unet/config.json"], "x")
    assert diffusers is not None and "pipeline of diffusers" in diffusers
