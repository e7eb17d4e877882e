"""The seam of a family that is not there yet: docs/how-to/example_family, a model and a reader.

Installed as a package, by its entry point, it is loaded, run and replayed by the one Engine as
every family is; its chunk is held to a plain program over the same tensors, which shares no code
with it.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from support.engine import CLOCK, Again
from support.plugins import EXAMPLE, install
from vla_ros.core.types import Observation, Timeline
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.families import registry
from vla_ros.engine.families.base import LoadOptions, Placement
from vla_ros.engine.load import inspect, load_engine
from vla_ros.engine.options import EngineOptions

FOLDER = EXAMPLE.parent / "example_family"
TEXT = "pick up the red cube"


@pytest.fixture
def reader(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ModuleType]:
    """The example, installed as its pyproject.toml says."""
    monkeypatch.syspath_prepend(str(install(FOLDER, tmp_path_factory.mktemp("example"))))
    yield importlib.import_module("cross_dit_family")
    for name in ("cross_dit_family", "cross_dit"):
        del sys.modules[name]
    registry._imported.cache_clear()


def reference(
    raw: dict[str, torch.Tensor], pixels: torch.Tensor, ids: torch.Tensor, state: torch.Tensor,
    noise: torch.Tensor, steps: int = 4, heads: int = 4, patch: int = 14,
) -> torch.Tensor:  # fmt: skip
    """The chunk, with torch's own attention over everything at once; nothing is kept."""

    def layer(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, raw[f"{name}.weight"], raw[f"{name}.bias"])

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:], raw[f"{name}.weight"], raw[f"{name}.bias"])

    rows = []
    for image in pixels:
        cut = F.unfold(image[None], patch, stride=patch)[0].T
        weight = raw["patch_embed.weight"].flatten(1)
        rows.append(F.linear(cut, weight, raw["patch_embed.bias"]) + raw["patch_position"])
    rows += [raw["word_embed.weight"][ids], layer("state_embed", state)[None]]
    prefix, x, width = norm("prefix_norm", torch.cat(rows)), noise, len(raw["prefix_norm.bias"])
    for step in range(steps):
        angles = math.pi * step / steps * torch.logspace(0, 3, width // 2)
        time = layer("time_embed", torch.cat((angles.cos(), angles.sin())))
        h, number = layer("action_embed", x) + raw["action_position"] + time, 0
        while f"blocks.{number}.out.weight" in raw:
            base, number = f"blocks.{number}.", number + 1
            q, k, v = layer(base + "qkv", norm(base + "norm1", h)).chunk(3, 1)
            kp, vp = layer(base + "prefix_kv", prefix).chunk(2, 1)
            keys, values = torch.cat((kp, k)), torch.cat((vp, v))
            each = []
            for a, b, c in zip(*(t.chunk(heads, 1) for t in (q, keys, values)), strict=True):
                each.append((a @ b.T / math.sqrt(width / heads)).softmax(1) @ c)
            h = h + layer(base + "out", torch.cat(each, 1))
            h = h + layer(base + "down", F.gelu(layer(base + "up", norm(base + "norm2", h))))
        x = x + layer("action_out", norm("final_norm", h)) / steps
    return x


@pytest.mark.parametrize("capture", [None, Again()], ids=["plain", "padded for graphs"])
def test_the_chunk_is_that_of_a_plain_program(
    reader: ModuleType, tmp_path: Path, capture: Again | None
) -> None:
    family = registry.family_of("random:cross-dit-small")
    family.write(tmp_path, family.presets["cross-dit-small"], seed=3)
    place = Placement(torch.device("cpu"), torch.float32, capture)
    model = family.load(tmp_path, LoadOptions(), place).model
    generator = torch.Generator().manual_seed(1)
    given, noise = model.example(5, generator), model.noise(generator)
    state = torch.randn(9, generator=generator)
    for views in (2, 1):  # both cameras, and one of them away
        pixels = given.pixels[:views]
        prefix = model.prefill(model.image_features(pixels), given.ids, state)
        chunk = model.sample_actions(prefix, None, noise)
        raw = load_file(str(tmp_path / "model.safetensors"))
        want = reference(raw, pixels, given.ids, state, noise)
        assert (chunk - want).abs().max() < 1e-5
        assert want.abs().max() > 0.1


def test_the_engine_runs_it_as_any_other(reader: ModuleType, tmp_path: Path) -> None:
    registry.write_folder(tmp_path, registry.all_presets()["cross-dit-small"], seed=3)
    assert inspect(str(tmp_path)).kind == "cross-dit"
    engine = load_engine(
        EngineOptions(checkpoint=str(tmp_path), dtype="float32", rtc_mode="guided")
    )
    assert (engine.info.chunk_length, engine.info.state_dim) == (8, 9)
    said = []
    for red in (10, 10, 200):
        engine.reset(TEXT)
        image = np.full((48, 64, 3), red, np.uint8)
        seen = Observation(1, 1, 0, image, image, np.zeros(9))
        answer = engine.step(seen, Timeline(1), CLOCK)
        assert answer is not None
        said.append(answer.actions)
    assert said[0].shape == (8, 7)
    assert np.array_equal(said[0], said[1])
    assert np.abs(said[0] - said[2]).max() > 1e-3


def test_a_folder_that_does_not_fit_is_refused_in_one_line(
    reader: ModuleType, tmp_path: Path
) -> None:
    family = registry.family_of("random:cross-dit-small")
    family.write(tmp_path, family.presets["cross-dit-small"], seed=3)
    config = tmp_path / "config.json"
    text = config.read_text()
    config.write_text(text.replace('"horizon"', '"horizons"'))
    with pytest.raises(CheckpointError, match=r"lacks \['horizon'\] and has \['horizons'\]"):
        family.open(tmp_path, LoadOptions())
    config.write_text(text.replace('"width": 48', '"width": 40'))
    with pytest.raises(CheckpointError, match="of the wrong shape"):
        family.open(tmp_path, LoadOptions())
