"""What is known about a checkpoint before it is loaded."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from vla_ros.engine.checkpoint import load_checkpoint
from vla_ros.engine.random_checkpoint import PRESETS, norm_stats, write_random
from vla_ros.policies import PolicyRefused
from vla_ros.policies.checkpoint import action_scale, checkpoint_facts

UNITS = (0.05,) * 3 + (0.5,) * 3


def stats(reach: float) -> dict:
    return {"a": {"action": {"q01": [-reach] * 6 + [0.0], "q99": [reach] * 6 + [1.0]}}}


@pytest.mark.parametrize(("reach", "scale"), [(0.05, (1.0,) * 6), (0.9375, UNITS), (1.0, UNITS)])
def test_bounds_that_no_arm_reaches_are_units_of_a_controller(reach, scale) -> None:
    assert action_scale(stats(reach), "", UNITS) == scale
    assert action_scale(stats(reach), "a", UNITS) == scale


def test_a_directory_is_known_without_its_weights(tmp_path) -> None:
    import torch

    write_random(tmp_path / "one", PRESETS["small"], 0, stats(0.05) | {"b": norm_stats()["random"]})
    facts = checkpoint_facts(str(tmp_path / "one"), "a")
    loaded = load_checkpoint(str(tmp_path / "one"), torch.device("cpu"), torch.float32)
    assert (facts.sha256, facts.images) == (loaded.sha256, 1)
    assert facts.action_scale == (1.0,) * 6
    assert checkpoint_facts(str(tmp_path / "one"), "b").action_scale == UNITS
    assert checkpoint_facts("random:small").action_scale == UNITS


@pytest.mark.parametrize("name", ["random:huge", "/nowhere/at/all", "no such thing"])
def test_what_is_no_checkpoint_is_one_line(name) -> None:
    with pytest.raises(PolicyRefused) as error:
        checkpoint_facts(name)
    assert "\n" not in str(error.value)


def test_an_unknown_key_is_refused_with_those_there_are() -> None:
    with pytest.raises(PolicyRefused, match="has: a"):
        action_scale(stats(1.0), "z", UNITS)
