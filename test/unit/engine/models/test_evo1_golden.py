"""Evo-1 against LeRobot 0.6.1, from an observation to actions in units, stage by stage.

The files were made by tools/golden/evo1/make.py in an environment with LeRobot.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from golden.evo1.cases import CASES, weight
from golden.flow.seeded import draw, image
from vla_ros.engine.families.base import LoadOptions, Placement
from vla_ros.engine.families.evo1 import Evo1Family
from vla_ros.engine.layers.flow_matching import Guidance, RtcMode
from vla_ros.engine.models.base import Prefix
from vla_ros.engine.models.evo1 import TIME_INDEX, Evo1Config, kept_rows, position_table, time_index
from vla_ros.engine.models.transformer import rope

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "evo1"
PLACE = Placement(torch.device("cpu"), torch.float32)


def folder_of(name: str, target: Path) -> Path:
    """LeRobot's folder with its weights drawn again; the tables are those that it stores."""
    folder = target / name
    shutil.copytree(GOLDEN / name, folder)
    shutil.copy(GOLDEN / "tokenizer.json", folder)
    tensors = {}
    for saved, shape in json.loads((folder / "tensors.json").read_text()):
        values = weight(saved, tuple(shape))
        if saved.endswith(".pe"):
            values = position_table(shape[1], shape[2])[None].numpy()
        tensors[saved] = torch.from_numpy(values.copy())
    save_file(tensors, str(folder / "model.safetensors"))
    return folder


class Played:
    """One case: the policy, its golden arrays, and what this engine makes of the inputs."""

    def __init__(self, name: str, target: Path) -> None:
        self.name, self.case = name, CASES[name]
        self.folder = folder_of(name, target)
        self.policy = Evo1Family().load(self.folder, LoadOptions(), PLACE)
        arrays = np.load(self.folder / "golden.npz")
        self.golden = {n: torch.from_numpy(arrays[n]) for n in arrays.files}
        self.preparation = self.policy.preparation()
        self.preparation.instruct(self.case.task)
        images = [
            image(f"{name}/{camera}", *size)
            for camera, size in self.case.cameras.items()
            if size is not None
        ]
        self.raw = torch.from_numpy(draw(f"{name}/state", self.case.state))
        self.given = self.preparation.inputs(images, self.raw)
        config = self.policy.config
        noise = draw(f"{name}/noise", config.horizon * config.action_width)
        self.noise = torch.from_numpy(noise).clamp(-1, 1).view(config.horizon, -1)

    def prefix(self) -> Prefix:
        model, given = self.policy.model, self.given
        return model.prefill(model.image_features(given.pixels), given.ids, given.state)

    def guidance(self, how: RtcMode = RtcMode.GUIDED) -> Guidance:
        config = self.policy.config
        left = torch.from_numpy(draw(f"{self.name}/left", config.horizon, config.action_width))
        left[:, config.action_dim :] = 0
        return Guidance(left, self.golden["guided_weights"], delay=2, limit=6.0, mode=how)


@pytest.fixture(scope="module", params=list(CASES))
def played(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Played:
    return Played(request.param, tmp_path_factory.mktemp("golden"))


def far(one: torch.Tensor, other: torch.Tensor) -> float:
    assert one.shape == other.shape
    return float((one - other).abs().max())


def test_pixels_and_state_are_equal(played: Played) -> None:
    views = len(played.given.pixels)
    assert far(played.given.pixels, played.golden["pixels"][:views]) < 1e-6
    rounded = played.golden["pixels"][:views] * torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    assert rounded.unique().numel() > 100  # it is an image
    assert torch.equal(played.given.state, played.golden["state"])


def test_the_features_of_the_cameras_that_are_there(played: Played) -> None:
    golden = played.golden["features"]
    views = len(played.given.pixels)
    assert len(golden) == played.policy.config.slots > views
    features = played.policy.model.image_features(played.given.pixels)
    assert far(features, golden[:views].flatten(0, 1)) < 2e-5
    assert golden.abs().max() > 0.3


def test_positions_and_times_are_the_references_integers(played: Played) -> None:
    """Which rows are kept, at which positions, and which rows of the table of times are taken."""
    config, model, golden = played.policy.config, played.policy.model, played.golden
    rows = len(played.given.pixels) * config.view_tokens
    kept = kept_rows(played.given.ids, model.image_token, rows)
    assert kept.tolist() == golden["attended"].nonzero()[:, 0].tolist()
    assert len(golden["attended"]) == len(played.given.ids) > len(kept)
    assert list(time_index(config.steps)) == golden["time_index"].tolist()
    table = rope(config.text, len(played.given.ids), torch.device("cpu")).cos
    assert far(table, golden["cos"]) < 1e-5  # the row of every position
    nearest = (golden["cos"][:, None] - table[None]).abs().sum(-1).argmin(1)
    assert nearest.tolist() == list(range(len(table)))


def test_the_stored_times_are_those_of_the_case_with_the_published_steps(played: Played) -> None:
    if played.policy.config.steps == len(TIME_INDEX):
        assert tuple(played.golden["time_index"].tolist()) == TIME_INDEX


def test_the_context(played: Played) -> None:
    """The language model's last hidden states, and the state's row before them."""
    prefix, golden = played.prefix(), played.golden
    model = played.policy.model
    wanted = golden["hidden"][golden["attended"]]
    span = model.span(len(wanted))
    assert far(span.context[1:], wanted) < 5e-5
    assert wanted.abs().max() > 1
    assert len(prefix.mask) == len(wanted) + 1
    assert bool(prefix.mask.all())


def test_the_velocity_of_every_step(played: Played) -> None:
    prefix, config = played.prefix(), played.policy.config
    assert len(played.golden["x"]) == config.steps
    for number, x in enumerate(played.golden["x"]):
        velocity = played.policy.model.denoise_step(prefix, x, number, begin=number == 1)
        wanted = played.golden["v"][number]
        assert far(velocity[:, : config.action_dim], wanted[:, : config.action_dim]) < 5e-5
        assert wanted.abs().max() > 0.3
        assert not velocity[:, config.action_dim :].any()


def test_the_chunk_and_the_actions_in_units(played: Played) -> None:
    golden, config = played.golden, played.policy.config
    chunk = played.policy.model.sample_actions(played.prefix(), None, played.noise)
    assert far(chunk, golden["chunk"]) < 5e-5
    assert far(chunk[:, : config.action_dim], played.noise[:, : config.action_dim]) > 0.3
    actions = played.preparation.actions(chunk, played.raw)
    assert far(actions, golden["actions"]) < 2e-4
    exact = played.preparation.actions(golden["chunk"], played.raw)
    assert torch.equal(exact, golden["actions"])


def test_the_authors_own_head_on_a_context_without_a_mask(played: Played) -> None:
    """MINT-SJTU/Evo-1 lets the head see every row; the arithmetic is the same."""
    golden, model = played.golden, played.policy.model
    span = model.span(len(golden["hidden"]))
    with torch.inference_mode():
        span.context[1:].copy_(golden["hidden"])
        span.context[0].copy_(model.head.state_row(golden["state"]))
        model.redo_chunk(span)
        model.solver.load(model.sample, played.noise * model._used, None)
        chunk = model._steps(span, None)
    assert far(chunk, golden["authors_chunk"]) < 5e-5
    assert far(chunk, golden["chunk"]) > 1e-3  # so the mask matters


def test_guidance_is_lerobots(played: Played) -> None:
    golden = played.golden
    model = played.policy.model
    chunk = model.sample_actions(played.prefix(), None, played.noise, played.guidance())
    assert far(chunk, golden["guided_chunk"]) < 2e-4
    assert far(golden["guided_chunk"], golden["chunk"]) > 0.3


def test_the_true_jacobian_is_another_chunk_and_finite(played: Played) -> None:
    model, prefix = played.policy.model, played.prefix()
    true = model.sample_actions(prefix, None, played.noise, played.guidance(RtcMode.GUIDED_VJP))
    assert true.isfinite().all()
    assert far(true, played.golden["guided_chunk"]) > 1e-3


def test_a_state_of_its_own_replaces_one_row(played: Played) -> None:
    """As if the observation had had it."""
    model = played.policy.model
    moved = played.given.state + torch.linspace(-1, 1, len(played.given.state))
    chunk = model.sample_actions(played.prefix(), moved, played.noise)
    prefix = model.prefill(model.image_features(played.given.pixels), played.given.ids, moved)
    assert far(chunk, model.sample_actions(prefix, None, played.noise)) < 1e-5
    assert far(chunk, played.golden["chunk"]) > 1e-3


def test_an_absent_camera_leaves_its_place(tmp_path: Path) -> None:
    """What stands first of the cameras takes the first place, whichever is said to be absent."""
    played = Played("plain", tmp_path)
    config: Evo1Config = played.policy.config
    front, wrist = (image(f"plain/{n}", *played.case.cameras[n]) for n in ("front", "wrist"))
    with_hole = played.preparation.inputs([front, None, wrist], played.raw)
    assert torch.equal(with_hole.pixels, played.given.pixels)
    one = played.preparation.inputs([None, wrist], played.raw)
    assert torch.equal(one.pixels[0], played.given.pixels[1])
    model = played.policy.model
    prefix = model.prefill(model.image_features(one.pixels), one.ids, one.state)
    whole = played.prefix()
    assert len(whole.mask) - len(prefix.mask) == config.view_tokens
