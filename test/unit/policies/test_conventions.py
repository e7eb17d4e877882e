"""Which settings follow from a checkpoint's action statistics."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from support.engine import tiny_config
from vla_ros.core.types import Command, CommandKind
from vla_ros.engine.families.base import LoadOptions
from vla_ros.engine.families.lerobot import PRESETS
from vla_ros.engine.families.registry import family_of, write_folder
from vla_ros.engine.io.config import config_json
from vla_ros.engine.options import EngineOptions
from vla_ros.policies.base import PolicyRefused, PolicySpec
from vla_ros.policies.conventions import (
    CONTROLLER_UNITS,
    PHYSICAL_UNITS,
    conventions_from,
    conventions_of,
    settle,
)
from vla_ros.sim.commands import environment_action
from vla_ros.sim.env import EnvSpec

GOLDEN = Path(__file__).resolve().parents[2] / "golden"


def nothing_in(keys):
    return {key: {} for key in keys}


@pytest.mark.parametrize(
    ("stats", "suite", "key"),
    [
        (("libero_object", "libero_object_no_noops"), "libero_object", "libero_object"),
        (("libero_object_no_noops",), "libero_object", "libero_object_no_noops"),
        (("bridge_orig", "libero_10"), "libero_10", "libero_10"),
        (("libero_goal_no_noops",), "", "libero_goal_no_noops"),
    ],
)
def test_a_libero_checkpoint_brings_liberos_conventions(stats, suite, key):
    found = conventions_from(nothing_in(stats), suite)
    assert found.unnorm_key == key
    assert found.action_scale == CONTROLLER_UNITS
    assert (found.preprocessing, found.center_crop) == ("libero", True)


def test_our_own_checkpoint_speaks_metres_also_in_libero():
    found = conventions_from({"tabletop": {}}, "libero_object")
    assert (found.unnorm_key, found.action_scale) == ("tabletop", (1.0,) * 6)
    assert (found.preprocessing, found.center_crop) == ("default", False)


@pytest.mark.parametrize(
    ("stats", "suite", "key", "said"),
    [
        (("libero_goal",), "libero_object", "", "trained for another suite"),
        (("bridge_orig", "fractal"), "", "", "give unnorm_key"),
        ((), "", "", "none"),
        (("libero_goal",), "", "libero_10", "'libero_10' is unknown; the checkpoint has libero_g"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(stats, suite, key, said):
    with pytest.raises(PolicyRefused, match=said) as raised:
        conventions_from(nothing_in(stats), suite, key)
    assert "\n" not in str(raised.value)


def test_ones_own_key_wins():
    stats = nothing_in(("libero_goal", "bridge_orig"))
    assert conventions_from(stats, "libero_object", "libero_goal").unnorm_key == "libero_goal"
    assert conventions_from(stats, "libero_goal", "bridge_orig").preprocessing == "default"


def test_a_directory_is_asked_without_its_weights(tmp_path: Path):
    raw = config_json(tiny_config(), {"pretrained": {}})
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert conventions_of(str(tmp_path)).unnorm_key == "pretrained"
    stats = tmp_path / "dataset_statistics.json"  # of a fine-tune: it overrides the other
    stats.write_text(json.dumps({"libero_spatial_no_noops": {}}))
    assert conventions_of(str(tmp_path), "libero_spatial").preprocessing == "libero"


def test_random_weights_speak_the_controllers_units():
    assert conventions_of("random:small", "libero_object").action_scale == CONTROLLER_UNITS


def quantiles(reach: float) -> dict:
    ends = {"q01": [-reach / 2] * 6 + [0.0], "q99": [reach] * 6 + [1.0]}
    return {"action": ends | {"min": [-22.0] * 7, "max": [22.0] * 7}}  # outliers tell nothing


@pytest.mark.parametrize(
    ("data", "reach", "rate"), [("bridge_orig", 0.0417, ", data of 5 Hz"), ("fractal", 0.2316, "")]
)
def test_statistics_that_may_be_metres_are_taken_for_metres_and_it_is_said(data, reach, rate):
    found = conventions_from({data: quantiles(reach)})
    assert found.action_scale == PHYSICAL_UNITS
    assert str(found) == (
        f"statistics '{data}', one unit is [1, 1, 1, 1, 1, 1] m and rad (its data reach {reach:g}"
        f" a step: taken for m and rad), images default without center crop, cameras 1{rate}"
    )


@pytest.mark.parametrize(
    ("data", "hz"),
    [("libero_goal_no_noops", 20.0), ("bridge_orig", 5.0), ("droid", 15.0), ("mine", 0.0)],
)
def test_statistics_of_a_known_data_set_say_its_rate(data, hz):
    scale = (1.0,) * 6
    assert conventions_from({data: quantiles(0.1)}, "", data, 1, scale).action_rate_hz == hz


def test_statistics_that_cannot_be_metres_need_somebody_who_knows_the_unit():
    droid = {"droid": quantiles(0.7776)}
    with pytest.raises(PolicyRefused, match=r"'droid' reach 0\.7776 a step: .* give action_scale"):
        conventions_from(droid)
    known = (0.075,) * 3 + (0.15,) * 3
    assert conventions_from(droid, action_scale=known).action_scale == known


STATISTICS = "policy_postprocessor_step_0_unnormalizer_processor.safetensors"


@pytest.mark.parametrize(("spread", "doubted"), [(0.1, ""), (0.47, "its data reach 0.94 a step")])
def test_a_flow_policy_that_reaches_too_far_is_doubted(tmp_path: Path, spread, doubted):
    """Its folder names no unit either; poses may reach far, so it is not refused."""
    write_folder(tmp_path, PRESETS["smolvla-small"], seed=1)
    stored = load_file(tmp_path / STATISTICS)
    save_file(stored | {"action.std": torch.full((7,), spread)}, tmp_path / STATISTICS)
    used, look = settle(PolicySpec("vla", engine=EngineOptions(str(tmp_path))))
    assert used.action_scale == PHYSICAL_UNITS
    assert look.startswith(doubted)
    assert bool(look) is bool(doubted)
    assert str(used).startswith("its own statistics, one unit is [1, 1, 1, 1, 1, 1] m and rad")
    given = PolicySpec("vla", engine=EngineOptions(str(tmp_path)), action_scale=CONTROLLER_UNITS)
    used, look = settle(given)
    assert used.action_scale == CONTROLLER_UNITS
    assert "its data reach" not in look


def test_no_checkpoint_is_refused(tmp_path: Path):
    with pytest.raises(PolicyRefused, match="neither a directory"):
        conventions_of(str(tmp_path / "missing"))


@pytest.mark.parametrize("opening", [0.0, 0.004, 0.3, 0.499, 0.5, 0.501, 0.996, 1.0])
def test_the_gripper_ends_on_the_side_that_the_published_protocol_says(opening: float):
    """Theirs: 2 g - 1, its sign, negated; LIBERO's gripper itself takes the sign of what comes."""
    command = Command(CommandKind.POLICY, np.array([0.0] * 6 + [opening]), 0, 0, 0, 0)
    ours = environment_action(command, 1.0, EnvSpec("libero", (), (), 256))[6]
    assert np.sign(ours) == -np.sign(2 * opening - 1)


def test_joints_that_reach_further_than_radians_do_are_doubted():
    stats = {"arm": {"action": {"q01": [-150.0] * 6, "q99": [150.0] * 6}}}
    assert "no joint in rad does: give action_units" in conventions_from(stats).doubt
    turns = {"arm": {"action": {"q01": [-6.3] * 6, "q99": [6.3] * 6}}}
    assert conventions_from(turns).doubt == ""


@pytest.mark.parametrize("folder", ["flow/pi0", "flow/smolvla", "evo1/plain", "act/one"])
def test_the_reach_of_actions_is_read_of_all_statistics_and_not_of_those_that_scale_them(
    folder: str, tmp_path: Path
) -> None:
    """LeRobot scales the actions of most by mean and deviation, and keeps the extremes too: two
    deviations about the mean of a gripper that is 0 or 1 are -0.54 to 1.45, which nothing had."""
    mine = tmp_path / "folder"
    shutil.copytree(GOLDEN / folder, mine)
    steps = json.loads((mine / "policy_postprocessor.json").read_text())
    step = next(one for one in steps["steps"] if "unnormalizer" in one["registry_name"])
    step["config"]["norm_map"]["ACTION"] = "MEAN_STD"
    (mine / "policy_postprocessor.json").write_text(json.dumps(steps))
    path = mine / step["state_file"]
    tensors, last = load_file(path), family_of(mine).config(mine, LoadOptions()).action_dim - 1
    for what, value in (("mean", 0.453), ("std", 0.499), ("min", 0.0), ("max", 1.0)):
        tensors[f"action.{what}"][last] = value
    kept = {n: t for n, t in tensors.items() if not n.startswith(("action.q", "action.c"))}
    save_file(kept, path)
    data = family_of(mine).action_data(mine, LoadOptions())
    assert (data.low[last], data.high[last]) == (0.0, 1.0)
