"""Families: every list of flow kinds is theirs, and what they all have to say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.families.base import LoadOptions, Placement
from vla_ros.engine.families.registry import (
    FAMILIES,
    all_presets,
    config_of,
    every_family,
    family_of,
    source_of,
)
from vla_ros.engine.io.flow_config import FAST
from vla_ros.engine.io.foreign import FLOW_KINDS, READS
from vla_ros.engine.load import inspect, sha256_on_disk
from vla_ros.engine.options import TOKENS
from vla_ros_lab.roofline.shapes import load_model

KINDS = [kind for family in every_family() for kind in family.kinds if kind != "tokens"]
FLOWS = {name: config for name, config in all_presets().items() if config.kind != "tokens"}
SMALL = [n for n, c in FLOWS.items() if n.endswith("-small") and c.kind != FAST]
PLACE = Placement(torch.device("cpu"), torch.float32)


def test_every_kind_is_of_one_family_and_is_named() -> None:
    assert (*KINDS, "tokens") == tuple(FAMILIES) == (*FLOW_KINDS, "tokens")
    assert all(kind in READS for kind in FLOW_KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_small_and_a_whole_preset(kind: str) -> None:
    assert all_presets()[f"{kind}-small"].kind == kind
    assert all_presets()[kind].kind == kind


@pytest.mark.parametrize("name", FLOWS)
def test_every_preset_has_a_shape_for_the_roofline(name: str) -> None:
    shape, config = load_model(f"random:{name}"), all_presets()[name]
    if config.kind == FAST:
        assert (shape.kind, shape.action_tokens) == ("tokens", config.max_tokens)
        return
    assert shape.action_tokens == config.horizon or name in ("pi0", "pi05", "smolvla")
    assert shape.kind == ("flow" if config.steps else "parallel")


@pytest.mark.parametrize("name", SMALL)
def test_a_random_policy_is_what_its_config_says(name: str) -> None:
    source = source_of(f"random:{name}")
    assert source == f"random:{name}"
    family, config = family_of(source), config_of(source)
    policy = family.load(source, LoadOptions(), PLACE, seed=3)
    model = policy.model
    assert (model.horizon, model.width) == (config.horizon, config.action_width)
    assert policy.config == config
    assert policy.action_space.width == config.action_dim
    generator = torch.Generator().manual_seed(1)
    given, noise = model.example(5, generator), model.noise(generator)
    assert (noise is None) == (config.steps == 0)
    prefix = model.prefill(model.image_features(given.pixels), given.ids, given.state)
    chunk = model.sample_actions(prefix, None, noise)
    assert chunk.shape == (config.horizon, config.action_width)
    assert chunk.isfinite().all()
    assert chunk.abs().max() > 1e-3
    assert family.parameters(config) > 1000


def test_a_choice_that_means_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="embodiment: this means nothing to a policy of pi0, pi05"):
        config_of("random:pi0-small", LoadOptions(embodiment="gr1"))


def test_nobody_owns_what_is_no_policy(tmp_path: Path) -> None:
    assert family_of(tmp_path).group == TOKENS
    for text in ("{", "[]", json.dumps({"type": 3}), json.dumps({"type": "diffusion"})):
        (tmp_path / "config.json").write_text(text)
        assert family_of(tmp_path).group == TOKENS
        assert not any(family.owns(tmp_path) for family in every_family())
    with pytest.raises(CheckpointError, match="unknown fields type"):
        config_of(tmp_path)
    with pytest.raises(CheckpointError, match="there are random:small, random:"):
        config_of("random:nobody")


@pytest.mark.parametrize("name", SMALL)
def test_the_folder_of_a_small_preset_is_its_own(name: str, tmp_path: Path) -> None:
    """Written by the preset, found by the family, whole for who inspects it."""
    family = family_of(f"random:{name}")
    family.write(tmp_path, all_presets()[name], seed=3)
    assert [f for f in every_family() if f.owns(tmp_path)] == [family]
    config = config_of(tmp_path)
    assert config == all_presets()[name]
    found = inspect(str(tmp_path))
    assert found.kind == config.kind
    assert found.parameters == family.parameters(config)
    assert sha256_on_disk(str(tmp_path)) == family.load(tmp_path, LoadOptions(), PLACE).sha256
