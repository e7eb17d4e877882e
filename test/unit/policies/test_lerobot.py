"""What a LeRobot folder wants and what is offered: features, layout, weights, positions. Without
LeRobot; against LeRobot itself: unit/runtime/worker/test_lerobot_worker.py."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from vla_ros.policies import PolicyRefused
from vla_ros.policies.lerobot.checkpoint import (
    CameraFeature,
    Features,
    cameras_of,
    read_features,
    state_scaling,
)


def feature(kind: str, *shape: int) -> dict:
    return {"type": kind, "shape": list(shape)}


CONFIG = {
    "type": "act",
    "input_features": {
        "observation.images.top": feature("VISUAL", 3, 480, 640),
        "observation.images.empty_camera_0": feature("VISUAL", 3, 480, 640),
        "observation.state": feature("STATE", 3),
    },
    "output_features": {"action": feature("ACTION", 3)},
    "action_feature_names": ["shoulder_pan.pos", "elbow.pos", "gripper.pos"],
}


def folder(path: Path, without: str = "", **changes) -> Path:
    names = ("model.safetensors", "policy_preprocessor.json", "policy_postprocessor.json")
    for name in names:
        if name != without:
            (path / name).touch()
    (path / "config.json").write_text(json.dumps(CONFIG | changes))
    return path


def some(names: tuple[str, ...] = (), width: int = 3, *cameras: str) -> Features:
    eyes = tuple(CameraFeature(f"observation.images.{c}", 480, 640) for c in cameras or ("top",))
    return Features("act", eyes, width, width, names)


def test_features_are_read_by_the_checkpoint_s_own_names(tmp_path):
    assert read_features(folder(tmp_path)) == Features(
        "act",
        (CameraFeature("observation.images.top", 480, 640),),
        3,
        3,
        ("shoulder_pan.pos", "elbow.pos", "gripper.pos"),
        "config.json",
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"type": None}, "it has no type and features"),
        ({"use_peft": True}, "is a PEFT adapter: merge it into its base policy first"),
        ({"input_features": {"observation.environment_state": feature("ENV", 7)}},
         "wants observation.environment_state [7]; offered are cameras, observation.state and the"),
        ({"input_features": {"observation.state": feature("STATE", 3)}}, "looks through no camera"),
        ({"output_features": {"reward": feature("REWARD", 1)}}, "gives reward, not an action"),
        ({"output_features": {"action": {"type": "ACTION"}}}, "output_features of config.json"),
        ({"without": "model.safetensors"}, "no model.safetensors in"),
        ({"without": "policy_preprocessor.json"}, "saved by a LeRobot before 0.4"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_refused_in_one_line(tmp_path, changes, says):
    with pytest.raises(PolicyRefused) as error:
        read_features(folder(tmp_path, **changes))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_cameras_find_their_roles():
    two = some((), 3, "gripper_cam", "front")
    assert {role: c.name for role, c in cameras_of(two, "").items()} == {
        "main": "observation.images.front", "wrist": "observation.images.gripper_cam",
    }  # fmt: skip
    assert list(cameras_of(two, "front=main gripper_cam=none")) == ["main"]
    three = some((), 3, "left", "gripper_cam", "front")
    assert list(cameras_of(three, "", ("left",))) == ["left", "wrist", "main"]
    assert list(cameras_of(three, "front=left left=main", ("left",))) == ["main", "wrist", "left"]
    with pytest.raises(PolicyRefused, match="the checkpoint wants gripper_cam, front, main, wrist"):
        cameras_of(two, "top=main")


@pytest.mark.parametrize(
    ("unit", "value", "ours"),
    [
        ("rad", 1.5, 1.5), ("deg", 180.0, math.pi), ("mm", 5.0, 0.005), ("%", 40.0, 0.4),
        ("1", 0.3, 0.3), ("0..100", 25.0, 0.25), ("-1..1", 0.0, 0.5), ("1..-1", 1.0, 0.0),
        ("1..-1", -1.0, 1.0), ("10.5..-2", 10.5, 0.0),
    ],
)  # fmt: skip
def test_units_lead_there_and_back(unit, value, ours):
    scaling = state_scaling(some(), (unit,))
    assert scaling.to_runtime(np.full(3, value)) == pytest.approx(np.full(3, ours))
    assert scaling.to_checkpoint(np.full(3, ours)) == pytest.approx(np.full(3, value))


# Weights and positions

torch = pytest.importorskip("torch", reason="torch is not installed")

from vla_ros.policies.lerobot.policy import check_positions, check_weights, exact


class Small(torch.nn.Module):
    """A tied head, a name that openpi calls otherwise, a prefix: as pi0."""

    config = None

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.model = torch.nn.Module()
        self.model.embed = torch.nn.Linear(3, 4, bias=False, dtype=dtype)
        self.model.head = torch.nn.Linear(3, 4, bias=False, dtype=dtype)
        self.model.head.weight = self.model.embed.weight
        self.model.action_time = torch.nn.Linear(2, 2, dtype=dtype)

    def _fix_pytorch_state_dict_keys(self, state: dict, config: object) -> dict:
        return {name.replace("openpi_time", "action_time"): v for name, v in state.items()}


def saved(path: Path, **tensors: torch.Tensor) -> Path:
    from safetensors.torch import save_file

    save_file({n.replace("__", "."): t for n, t in tensors.items()}, path / "model.safetensors")
    return path


def weights_of(model: Small) -> dict[str, torch.Tensor]:
    linear = model.model.action_time
    return {
        "embed__weight": model.model.embed.weight.detach().float().clone(),
        "openpi_time__weight": linear.weight.detach().float().clone(),
        "openpi_time__bias": linear.bias.detach().float().clone(),
    }


def test_tied_renamed_and_rounded_weights_are_accounted_for(tmp_path):
    model = Small()
    check_weights(model, saved(tmp_path, **weights_of(model)))
    check_weights(model.to(torch.bfloat16), tmp_path)  # what rounding made of them


def test_every_way_to_be_another_model_is_refused(tmp_path):
    model = Small()
    good = weights_of(model)
    lost = {n: t for n, t in good.items() if n != "openpi_time__bias"}
    cases = {
        "1 weights of the model are not in the file, and would be random: model.action_time.bias":
            lost,
        "1 weights of the file are not used: extra": good | {"extra": torch.zeros(1)},
        "1 weights are not the file's values: openpi_time.bias":
            good | {"openpi_time__bias": good["openpi_time__bias"] + 1e-6},
        "1 weights are not the file's values: embed.weight":
            good | {"embed__weight": torch.ones(2)},
    }  # fmt: skip
    for says, tensors in cases.items():
        with pytest.raises(PolicyRefused) as error:
            check_weights(model, saved(tmp_path, **tensors))
        assert str(error.value).startswith(says)
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(PolicyRefused, match="cannot be read"):
        check_weights(model, tmp_path)


def tower(dtype: torch.dtype, size: int, patch: int) -> torch.nn.Module:
    pytest.importorskip("transformers", reason="transformers is not installed")
    from transformers import SmolVLMVisionConfig
    from transformers.models.smolvlm.modeling_smolvlm import SmolVLMVisionEmbeddings

    config = SmolVLMVisionConfig(hidden_size=4, image_size=size, patch_size=patch)
    return torch.nn.Sequential(SmolVLMVisionEmbeddings(config).to(dtype))


def test_the_published_tower_gives_every_patch_its_own_row(tmp_path):
    check_positions(tower(torch.float32, 512, 16), tmp_path, 512)
    assert exact(32, 32) == list(range(1024))
    assert exact(2, 4) == [0, 2, 8, 10]


def test_a_tower_whose_bucket_search_is_off_by_a_row_is_refused(tmp_path):
    """25 x 25 patches: 1/25 and its multiples round to either side. transformers 5.5, LeRobot's,
    moves 160 of 14 x 14 in bfloat16."""
    check_positions(tower(torch.bfloat16, 384, 16), tmp_path, 384)
    with pytest.raises(PolicyRefused) as error:
        check_positions(tower(torch.float32, 400, 16), tmp_path, 400)
    says = r"\d+ of 625 position ids are not the checkpoint's \("  # 400, or of an ARM's floats 301
    assert re.match(says, str(error.value))
    assert "use the transformers and dtype that it was trained with" in str(error.value)


def test_a_model_without_that_tower_passes(tmp_path):
    check_positions(Small(), tmp_path, 224)
