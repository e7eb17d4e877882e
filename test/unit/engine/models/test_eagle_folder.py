"""NVIDIA's folders of GR00T N1.5 and N1.6 through the real loader, from a frame to actions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from golden.flow.seeded import draw, image
from golden.groot import eagle_cases as cases
from unit.engine.models import eagle_small
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.families.base import LoadOptions, Placement
from vla_ros.engine.families.groot import FAMILIES, GrootFamily
from vla_ros.engine.io.groot import DATA_CONFIG
from vla_ros.engine.models.groot import N15, N16

CPU = Placement(torch.device("cpu"), torch.float32)
FRAMES: dict[str, Any] = {
    N15: (cases.N15_CAMERAS, cases.N15_STATES, (1, 1)),
    N16: (cases.CAMERAS, cases.STATES, (1,)),
}


def family_of(kind: str) -> GrootFamily:
    return next(f for f in FAMILIES if f.kinds == (kind,))


def folder_of(kind: str, target: Path) -> Path:
    """What NVIDIA's code wrote, with its weights drawn again and what it keeps beside its code."""
    folder = target / kind
    shutil.copytree(eagle_small.FOLDERS[kind], folder)
    (folder / "config.json").write_text(json.dumps(eagle_small.said(kind)))
    drawn = eagle_small.Drawn(eagle_small.stored(kind))
    family_of(kind).save(folder, {name: drawn.take(name) for name in drawn.shapes})
    if kind == N15:
        names = (
            ("video", cases.N15_CAMERAS),
            ("state", cases.N15_STATES),
            ("action", cases.N15_ACTIONS),
        )
        (folder / DATA_CONFIG).write_text(json.dumps({k: list(v) for k, v in names}))
    return folder


@pytest.fixture(scope="module", params=[N15, N16])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(request.param, tmp_path_factory.mktemp("groot"))


def test_a_frame_becomes_nvidias_actions(folder: Path) -> None:
    kind, name = folder.name, eagle_small.FOLDERS[folder.name].name
    cameras, states, shape = FRAMES[kind]
    tag = cases.TAG if kind == N16 else None  # statistics of one robot, and its only one
    policy = family_of(kind).load(folder, LoadOptions(embodiment=tag), CPU)
    assert policy.config.cameras == tuple(cameras)
    preparation = policy.preparation()
    preparation.instruct(cases.TASK)
    state = np.concatenate(
        [draw(f"{name}/state/{k}", *shape, n).flatten() for k, n in states.items()]
    )
    seen = [image(f"{name}/{k}", *size) for k, size in cameras.items()]
    given = preparation.inputs(seen, torch.from_numpy(state))
    prefix = policy.model.prefill(policy.model.image_features(given.pixels), given.ids, given.state)
    noise = torch.from_numpy(draw(f"{name}/noise", 1, 7, 11))[0]
    chunk = policy.model.sample_actions(prefix, None, noise)
    actions = preparation.actions(chunk, torch.from_numpy(state)).numpy()
    with np.load(eagle_small.FOLDERS[kind] / "golden.npz") as golden:
        theirs = golden["actions"]
    assert actions.shape == theirs.shape
    assert np.abs(actions - theirs).max() < 1e-5
    assert np.abs(theirs).max() > 1


def test_a_folder_is_its_versions_alone_and_is_inspected(folder: Path) -> None:
    owners = [f.kinds[0] for f in FAMILIES if f.owns(folder)]
    assert owners == [folder.name]
    config, parameters = family_of(folder.name).inspect(folder, LoadOptions())
    assert config.kind == folder.name
    assert parameters == family_of(folder.name).parameters(config)


def test_an_embedding_may_lie_under_the_other_name_that_it_is_tied_to(
    folder: Path, tmp_path: Path
) -> None:
    """As transformers saves tied tensors: one of them."""
    other = tmp_path / "tied"
    shutil.copytree(folder, other)
    for path in other.glob("model*"):
        path.unlink()
    drawn = eagle_small.Drawn(eagle_small.stored(folder.name))
    tensors = {name: drawn.take(name) for name in drawn.shapes}
    embedding = next(n for n in tensors if n.endswith("embed_tokens.weight"))
    head = next(n for n in tensors if n.endswith("lm_head.weight"))
    tensors[head] = tensors.pop(embedding)
    family = family_of(folder.name)
    family.save(other, tensors)
    assert family.load(other, LoadOptions(), CPU).config.kind == folder.name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"select_layer": 30, "shapes": None}, r"select_layer is 30: Qwen3-1.7B has 28"),
        ({"model_name": "nvidia/Eagle9"}, r"model_name is .*computes nothing else"),
        ({"backbone_embedding_dim": 64}, r"wanted 40, as of its Qwen3"),
        ({"diffusion_model_cfg": {"norm_type": "rms"}}, r"norm_type"),
        ({"max_num_embodiments": 2}, r"libero_panda is wider than the model: row 3 of 2"),
    ],
)
def test_what_an_n16_cannot_be(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    target = tmp_path / "n16"
    shutil.copytree(eagle_small.FOLDERS[N16], target)
    (target / "config.json").write_text(json.dumps({**eagle_small.said(N16), **change}))
    with pytest.raises(CheckpointError, match=message):
        family_of(N16).config(target, LoadOptions())


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("backbone_cfg", {"project_to_dim": 1536}, r"project_to_dim is 1536: wanted null"),
        ("backbone_cfg", {"reproject_vision": True}, r"reproject_vision"),
        ("action_head_cfg", {"backbone_embedding_dim": 48}, r"attention_head_dim is 10"),
    ],
)
def test_what_an_n15_cannot_be(
    tmp_path: Path, part: str, change: dict[str, Any], message: str
) -> None:
    target = folder_of(N15, tmp_path)
    said = eagle_small.said(N15)
    (target / "config.json").write_text(json.dumps({**said, part: {**said[part], **change}}))
    with pytest.raises(CheckpointError, match=message):
        family_of(N15).config(target, LoadOptions())
