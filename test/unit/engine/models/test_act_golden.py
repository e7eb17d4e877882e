"""ACT against LeRobot 0.6.1, from a folder that it saved and an observation to actions in units.

The files were made by tools/golden/act/make.py in LeRobot's own environment.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from golden.act.cases import CASES, weight
from golden.flow.seeded import draw, image
from support.engine import CLOCK, Again
from vla_ros.core.types import Observation, Timeline
from vla_ros.engine.convert import convert
from vla_ros.engine.errors import CheckpointError, InvalidAction
from vla_ros.engine.families.act import ActFamily
from vla_ros.engine.families.base import LoadOptions, Placement
from vla_ros.engine.families.folder import describe
from vla_ros.engine.load import load_engine
from vla_ros.engine.options import EngineOptions
from vla_ros.policies import PolicySpec, load_policy
from vla_ros.runtime.worker.worker import warm_up

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "act"
CPU = torch.device("cpu")
NORMALIZER = "policy_preprocessor_step_3_normalizer_processor.safetensors"


def folder_of(name: str, target: Path) -> Path:
    """LeRobot's folder with its weights drawn again."""
    folder = target / name
    shutil.copytree(GOLDEN / name, folder)
    named = json.loads((folder / "tensors.json").read_text())
    tensors = {n: torch.from_numpy(weight(n, tuple(shape)).copy()) for n, shape in named}
    save_file(tensors, str(folder / "model.safetensors"))
    return folder


def golden_of(name: str) -> dict[str, torch.Tensor]:
    arrays = np.load(GOLDEN / name / "golden.npz")
    return {n: torch.from_numpy(arrays[n]) for n in arrays.files}


def images_of(name: str) -> list[Any]:
    return [image(f"{name}/{key}", *size) for key, size in CASES[name].cameras.items()]


def state_of(name: str) -> torch.Tensor:
    return torch.from_numpy(draw(f"{name}/state", CASES[name].state))


def far(one: torch.Tensor, other: torch.Tensor) -> float:
    assert one.shape == other.shape
    return float((one - other).abs().max())


@pytest.mark.parametrize("capture", [None, Again()], ids=["plain", "captured"])
@pytest.mark.parametrize("name", CASES)
def test_it_gives_what_lerobots_code_gives(
    name: str, capture: Again | None, tmp_path: Path
) -> None:
    golden = golden_of(name)
    place = Placement(CPU, torch.float32, capture)
    policy = ActFamily().load(folder_of(name, tmp_path), LoadOptions(), place)
    preparation, model = policy.preparation(), policy.model
    given = preparation.inputs(images_of(name), state_of(name))
    prefix = model.prefill(model.image_features(given.pixels), given.ids, given.state)
    with torch.inference_mode():
        rows = model.fill_kv_cache(model.open(prefix, None))[0]
    assert far(rows, golden["rows"]) < 3e-5
    chunk = model.sample_actions(prefix, None, None)
    assert far(chunk, golden["chunk"]) < 3e-5
    assert far(preparation.actions(chunk, given.state), golden["actions"]) < 1e-4


@pytest.mark.parametrize("name", CASES)
def test_an_engine_gives_its_actions_alone_and_among_sessions(name: str, tmp_path: Path) -> None:
    from vla_ros.engine.layers.pieces import Batched

    roles = [key.rpartition(".")[2] for key in CASES[name].cameras]
    more = dict(zip(roles, images_of(name), strict=True))
    mapped = dict(zip(roles, ("main", "wrist"), strict=False))
    engine = load_engine(
        EngineOptions(
            checkpoint=str(folder_of(name, tmp_path)),
            camera_map=" ".join(f"{key}={role}" for key, role in mapped.items()),
            camera_roles=("side",),
        )
    )
    observation = Observation(
        stamp_ns=5,
        received_ns=5,
        received_steady_ns=5,
        image=more[roles[0]],
        wrist_image=more[roles[1]] if len(roles) > 1 else None,
        more_images={"side": more["side"]} if "side" in more else {},
        proprio=state_of(name).numpy(),
    )
    now = Timeline(CLOCK.steady_ns())
    engine.reset("whatever it is told")
    lone = engine.step(observation, now, CLOCK)
    assert lone is not None
    assert far(torch.from_numpy(lone.actions).float(), golden_of(name)["actions"]) < 1e-4
    together: Batched[int, Any] = Batched((InvalidAction,))
    sessions = [engine.session() for _ in range(3)]
    for number, session in enumerate(sessions):
        session.reset("go")
        together.add(number, session.pieces(observation, now, CLOCK))
    found: dict[int, Any] = {}
    turns = 0
    while len(together):
        found |= dict(together.turn())
        turns += 1
    assert turns == 3  # images, the encoder, the decoder: each a pass for all
    for answer in found.values():
        np.testing.assert_allclose(answer.actions, lone.actions, atol=1e-5)


def test_a_folder_of_before_the_processor_files_is_converted(tmp_path: Path) -> None:
    """LeRobot 0.1 to 0.3: statistics among the weights, as ``normalize_inputs.buffer_...``."""
    today = folder_of("three", tmp_path)
    old = tmp_path / "old"
    old.mkdir()
    tensors = load_file(str(today / "model.safetensors"))
    for name, value in load_file(str(today / NORMALIZER)).items():
        feature, _, what = name.rpartition(".")
        if feature != "observation.state" or what not in ("q01", "q99"):
            group = "unnormalize_outputs" if feature == "action" else "normalize_inputs"
            tensors[f"{group}.buffer_{feature.replace('.', '_')}.{what}"] = value
    raw = json.loads((today / "config.json").read_text())
    raw["normalization_mapping"]["ACTION"] = "MEAN_STD"
    kept = {n: t for n, t in tensors.items() if not n.endswith((".q01", ".q99"))}
    save_file(kept, str(old / "model.safetensors"))
    (old / "config.json").write_text(json.dumps(raw))
    with pytest.raises(CheckpointError, match="run `vla-ros convert"):
        ActFamily().open(old, LoadOptions())
    convert(old, tmp_path / "new")
    place = Placement(CPU, torch.float32)
    policy = ActFamily().load(tmp_path / "new", LoadOptions(), place)
    given = policy.preparation().inputs(images_of("three"), state_of("three"))
    model = policy.model
    prefix = model.prefill(model.image_features(given.pixels), given.ids, given.state)
    chunk = model.sample_actions(prefix, None, None)
    assert far(chunk, golden_of("three")["chunk"]) < 3e-5


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"replace_final_stride_with_dilation": 1}, "replace_final_stride_with_dilation is 1"),
        ({"vision_backbone": "resnet50"}, "vision_backbone is 'resnet50': wanted one of resnet18"),
        ({"feedforward_activation": "glu"}, "feedforward_activation is 'glu'"),
        ({"n_heads": 5}, "dim_model 24 does not divide by 5 heads"),
        ({"n_obs_steps": 2}, "n_obs_steps is 2"),
        ({"input_features": {}}, "no camera"),
        (
            {"input_features": {"observation.environment_state": {"type": "ENV", "shape": [3]}}},
            "input_features has observation.environment_state",
        ),
        ({"looks_twice": True}, "unknown fields looks_twice"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(
    fields: dict[str, object], says: str, tmp_path: Path
) -> None:
    folder = folder_of("one", tmp_path)
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | fields))
    with pytest.raises(CheckpointError, match=says) as caught:
        ActFamily().open(folder, LoadOptions())
    assert "\n" not in str(caught.value)


def test_images_without_statistics_are_refused(tmp_path: Path) -> None:
    """LeRobot leaves them as they are without a word."""
    folder = folder_of("one", tmp_path)
    stored = load_file(str(folder / NORMALIZER))
    save_file({n: t for n, t in stored.items() if "image" not in n}, str(folder / NORMALIZER))
    with pytest.raises(CheckpointError, match=r"no observation\.image\.mean for MEAN_STD"):
        ActFamily().open(folder, LoadOptions())


def test_a_camera_of_another_size_is_scaled_and_of_another_shape_refused(tmp_path: Path) -> None:
    folder = folder_of("one", tmp_path)
    preparation = (
        ActFamily().load(folder, LoadOptions(), Placement(CPU, torch.float32)).preparation()
    )
    (plain,) = images_of("one")
    twice = plain.repeat(2, 0).repeat(2, 1)
    wanted, found = (preparation.inputs([p], state_of("one")).pixels for p in (plain, twice))
    assert wanted.shape == found.shape and far(wanted, found) < 2.0  # smoothed
    with pytest.raises(InvalidAction, match=r"is 64 x 95 pixels, this checkpoint was trained"):
        preparation.inputs([np.ascontiguousarray(plain[:, 1:])], state_of("one"))
    with pytest.raises(InvalidAction, match="needs all of its cameras"):
        preparation.inputs([None], state_of("one"))


def test_a_look_at_the_folder_names_cameras_state_and_how_it_was_run(tmp_path: Path) -> None:
    folder = folder_of("three", tmp_path)
    raw = json.loads((folder / "config.json").read_text()) | {"temporal_ensemble_coeff": 0.01}
    (folder / "config.json").write_text(json.dumps(raw))
    found = describe(str(folder))
    assert not found.lacks and found.family == "act of LeRobot"
    assert "a state of 14 values; it gives actions of 14" in found.needs
    assert any("ensemble_decay: 0.01" in need for need in found.needs)
    (tmp_path / "blind").mkdir()
    blind = describe(str(folder_of("blind_to_itself", tmp_path / "blind")))
    assert "no state; it gives actions of 7" in blind.needs


def test_it_is_warmed_up_with_images_of_its_datas_sizes(tmp_path: Path) -> None:
    """Of another shape they are refused, and no node would configure."""
    engine = EngineOptions(
        str(folder_of("three", tmp_path)),
        camera_map="top=main left_wrist=wrist side=side",
        camera_roles=("side",),
        num_threads=1,
    )
    policy = load_policy(PolicySpec("vla", engine=engine))
    assert policy.info.image_sizes == (70, 100, 70, 100, 50, 90)
    assert warm_up(policy, PolicySpec("vla", engine=engine, warmup_count=1), 1, CLOCK).pid == 1
