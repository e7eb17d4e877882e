"""pi0, pi0.5 and SmolVLA against LeRobot 0.6.1, from an observation to actions in units.

The files were made once by tools/golden/flow/make.py in LeRobot's own environment.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from golden.flow.cases import CASES, PI_SHAPES
from golden.flow.seeded import draw, image, weight
from support.flow import load_folder
from vla_ros.engine.families.base import LoadedPolicy, LoadOptions, Placement
from vla_ros.engine.layers.flow_matching import Guidance
from vla_ros.engine.models.base import Prefix
from vla_ros.engine.models.preparation import padded_square, prompt_text, state_bins

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "flow"
INTERPRETER = "VLA_ROS_LEROBOT_PYTHON"


def folder_of(name: str, target: Path) -> Path:
    """LeRobot's folder with its weights drawn again."""
    folder = target / name
    shutil.copytree(GOLDEN / name, folder)
    gemma = CASES[name].kind != "smolvla"
    tensors = {
        saved: torch.from_numpy(weight(drawn, tuple(shape), gemma).copy())
        for saved, drawn, shape in json.loads((folder / "tensors.json").read_text())
    }
    save_file(tensors, str(folder / "model.safetensors"))
    if gemma:  # LeRobot has the published sizes in its code
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "shapes": PI_SHAPES}))
    return folder


class Played:
    """One case: the policy, its golden arrays, and what this engine makes of the inputs."""

    def __init__(self, name: str, target: Path) -> None:
        self.name, self.case = name, CASES[name]
        folder = folder_of(name, target)
        self.policy: LoadedPolicy = load_folder(
            folder,
            Placement(torch.device("cpu"), torch.float32),
            LoadOptions(
                tokenizer=str(GOLDEN / "tokenizer"),
                state_in_prompt="robot" if name.startswith("pi05") else None,
            ),
        )
        arrays = np.load(folder / "golden.npz")
        self.golden = {n: torch.from_numpy(arrays[n]) for n in arrays.files}
        config, processors = self.policy.config, self.policy.processors
        self.raw = torch.from_numpy(draw(f"{name}/state", self.case.state))
        self.state = processors.state.normalize(self.raw)
        bins = state_bins(self.state.numpy()) if config.kind == "pi05" else None
        self.ids = self.policy.tokenizer(prompt_text(config.kind, self.case.task, bins))
        centred = config.kind != "smolvla"
        self.pixels = torch.stack([
            padded_square(image(f"{name}/{camera}", *size), config.image_size, centred)
            for camera, size in self.case.cameras.items() if size is not None
        ])  # fmt: skip
        shape = (1, config.horizon, config.action_width)
        self.noise = torch.from_numpy(draw(f"{name}/noise", *shape))[0]

    def prefix(self) -> Prefix:
        model, config = self.policy.model, self.policy.config
        padded = torch.zeros(config.state_width)
        padded[: len(self.state)] = self.state
        return model.prefill(model.image_features(self.pixels), torch.tensor(self.ids), padded)


@pytest.fixture(scope="module", params=list(CASES))
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Played:
    return Played(request.param, tmp_path_factory.mktemp("golden"))


def test_state_pixels_and_prompt_are_equal(played: Played) -> None:
    golden = played.golden
    assert torch.equal(played.state, golden["state"])
    assert torch.equal(played.pixels, golden["pixels"])
    assert played.ids == golden["tokens"][golden["token_mask"]].tolist()


def test_the_velocity_of_every_step(played: Played) -> None:
    prefix = played.prefix()
    for number, x in enumerate(played.golden["x"]):
        velocity = played.policy.model.denoise_step(prefix, x, number)
        assert (velocity - played.golden["v"][number]).abs().max() < 1e-4
        assert played.golden["v"][number].abs().max() > 1


def test_the_chunk_and_the_actions_in_units(played: Played) -> None:
    policy, golden = played.policy, played.golden
    count = policy.config.action_dim
    chunk = policy.model.sample_actions(played.prefix(), None, played.noise)[:, :count]
    assert (chunk - golden["chunk"]).abs().max() < 1e-4
    assert (chunk - played.noise[:, :count]).abs().max() > 1
    relative = torch.tensor(policy.processors.relative or [False] * count)
    state = torch.zeros(count)
    state[: len(played.raw)] = played.raw[:count]
    actions = policy.processors.action.restore(chunk) + state * relative
    assert (actions - golden["actions"]).abs().max() < 1e-4
    exact = policy.processors.action.restore(golden["chunk"]) + state * relative
    assert torch.equal(exact, golden["actions"])


def test_guidance_is_lerobots(played: Played) -> None:
    """Real-time chunking with the identity for a Jacobian, which is what it computes."""
    policy, golden = played.policy, played.golden
    shape = (policy.config.horizon, policy.config.action_width)
    left = torch.from_numpy(draw(f"{played.name}/left", *shape))
    guidance = Guidance(left, golden["guided_weights"], delay=2, limit=6.0)
    chunk = policy.model.sample_actions(played.prefix(), None, played.noise, guidance)
    chunk = chunk[:, : policy.config.action_dim]
    assert (chunk - golden["guided_chunk"]).abs().max() < 1e-4
    assert (golden["guided_chunk"] - golden["chunk"]).abs().max() > 0.5


def test_only_the_relative_case_has_relative_actions(played: Played) -> None:
    want = tuple(i % 7 != 6 for i in range(14)) if played.name == "pi0_relative" else ()
    assert played.policy.processors.relative == want


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETER not in os.environ, reason=f"{INTERPRETER} names no interpreter")
def test_lerobot_still_says_what_the_files_say(tmp_path: Path) -> None:
    """Live: LeRobot's environment makes the files anew (set VLA_ROS_LEROBOT_PYTHON)."""
    maker = GOLDEN.parents[2] / "tools" / "golden" / "flow" / "make.py"
    subprocess.run([os.environ[INTERPRETER], str(maker), str(tmp_path)], check=True)
    for name in CASES:
        fresh, stored = (np.load(p / name / "golden.npz") for p in (tmp_path, GOLDEN))
        assert fresh.files == stored.files
        for array in stored.files:
            assert np.allclose(fresh[array], stored[array], atol=1e-5), (name, array)
