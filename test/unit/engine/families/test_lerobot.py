"""LeRobot folders: everything accounted for, and one line for what is wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from support.flow import load_folder
from support.folders import tensors
from vla_ros.core.types import Observation
from vla_ros.engine import EngineOptions, load_engine
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.families.base import LoadOptions, Placement
from vla_ros.engine.families.lerobot import (
    PI0,
    PRESETS,
    expected_tensors,
    write_config,
)
from vla_ros.engine.families.registry import family_of, write_folder
from vla_ros.engine.io.fields import SMOLVLM2_500M
from vla_ros.engine.io.flow_config import flow_config_json, parse_flow_config
from vla_ros.engine.io.processors import Scaler
from vla_ros.engine.load import inspect
from vla_ros.engine.models.preparation import prompt_text

CPU = torch.device("cpu")
GOLDEN = Path(__file__).parents[3] / "golden" / "flow"
#: keys of config.json that say how large a checkpoint is, or what its robot has
SIZES = {
    "input_features", "output_features", "empty_cameras", "chunk_size", "n_action_steps",
    "max_state_dim", "max_action_dim", "num_inference_steps", "num_steps", "image_resolution",
    "resize_imgs_with_padding", "vlm_model_name", "num_vlm_layers", "expert_width_multiplier",
}  # fmt: skip
KINDS = ("pi0-small", "pi05-small", "smolvla-small")


@pytest.fixture(scope="module", params=KINDS)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flow") / request.param
    write_folder(folder, PRESETS[request.param], seed=1)
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / written.name))


def load(folder: Path, **options: Any) -> Any:
    return load_folder(folder, Placement(CPU, torch.float32), LoadOptions(**options))


def refused(folder: Path, **options: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(folder, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 700
    return message


def edit(path: Path, change: Callable[[Any], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_what_is_written_is_read_back(folder: Path) -> None:
    policy = load(folder)
    assert family_of(folder).owns(folder)
    assert policy.config == PRESETS[folder.name]
    assert len(policy.sha256) == 64
    assert load(folder, steps=3).model.solver.steps == 3
    assert load(folder).sha256 == policy.sha256
    edit(folder / "config.json", lambda c: c.update(min_period=1e-3))
    assert "values of the time table are not those stored" in refused(folder)
    (folder / "discrete.json").unlink()
    assert load(folder).sha256 != policy.sha256


def test_a_missing_an_extra_and_a_misshapen_tensor(folder: Path) -> None:
    def damage(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.surplus.weight"] = torch.zeros(2)
        tensors["model.action_out_proj.bias"] = torch.zeros(99)
        del tensors["model.action_in_proj.weight"]

    tensors(damage)(folder)
    message = refused(folder)
    assert "1 missing: action_in_proj.weight" in message
    assert "1 extra: surplus.weight" in message
    assert "1 of the wrong shape: action_out_proj.bias is [99], wanted [13]" in message


def test_a_whole_layer_missing_is_still_one_line(folder: Path) -> None:
    def damage(tensors: dict[str, torch.Tensor]) -> None:
        for name in [n for n in tensors if ".layers.2." in n]:
            del tensors[name]

    tensors(damage)(folder)
    message = refused(folder)
    assert "missing: " in message
    assert " more" in message


def test_weights_of_integers(folder: Path) -> None:
    name = "model.action_in_proj.bias"
    tensors(lambda t: t.update({name: torch.zeros(t[name].shape, dtype=torch.int32)}))(folder)
    assert "action_in_proj.bias is I32" in refused(folder)


def test_statistics_among_the_weights_are_the_old_layout(folder: Path) -> None:
    old = "normalize_inputs.buffer_observation_state.mean"
    tensors(lambda t: t.update({old: torch.zeros(9)}))(folder)
    assert "run `vla-ros convert" in refused(folder)


def test_files_that_are_not_there(folder: Path) -> None:
    for name, words in (
        ("tokenizer.json", "option 'tokenizer'"),
        ("model.safetensors", "no model.safetensors"),
        ("policy_postprocessor.json", "no policy_postprocessor.json"),
        ("config.json", "config.json cannot be read"),
    ):
        kept = (folder / name).read_bytes()
        (folder / name).unlink()
        assert words in refused(folder)
        (folder / name).write_bytes(kept)
    (folder / "model.safetensors").write_bytes(b"version https://git-lfs")
    assert "model.safetensors is a git-lfs pointer" in refused(folder)
    (folder / "model.safetensors").write_bytes(b"12345678")
    assert "model.safetensors is no whole safetensors file" in refused(folder)


def test_the_tokenizer_may_be_elsewhere(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "words"
    other.mkdir()
    (folder / "tokenizer.json").rename(other / "tokenizer.json")
    assert load(folder, tokenizer=str(other)).tokenizer("x")
    assert load(folder, tokenizer=str(other / "tokenizer.json")).tokenizer("x")
    edit(other / "tokenizer.json", lambda c: c["model"]["vocab"].update(z=10**6))
    policy = load(folder, tokenizer=str(other))
    with pytest.raises(CheckpointError, match="do not belong together"):
        policy.tokenizer("z")
    (other / "tokenizer.json").write_text("{}")
    assert "is no tokenizer" in refused(folder, tokenizer=str(other))


def test_a_tokenizer_that_pads_cuts_or_forgets_its_first_token(folder: Path) -> None:
    """Settings saved with a tokenizer would change a prompt behind our back."""
    want = load(folder).tokenizer("pick up the red cube")

    def spoil(content: Any) -> None:
        content["truncation"] = {
            "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0,
        }  # fmt: skip
        content["padding"] = {
            "strategy": {"Fixed": 40}, "direction": "Right", "pad_to_multiple_of": None,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "<s>",
        }  # fmt: skip
        content["post_processor"] = None

    edit(folder / "tokenizer.json", spoil)
    assert load(folder).tokenizer("pick up the red cube") == want[1:]
    said = {"add_bos_token": True, "bos_token": {"content": "<s>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    assert load(folder).tokenizer("pick up the red cube") == want


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"type": "act"}, "type is 'act': wanted one of pi0, pi05, smolvla"),
        ({"n_obs_steps": 2}, "n_obs_steps is 2: wanted 1"),
        ({"chunk_size": 0}, "chunk_size is 0: wanted a whole number from 1"),
        ({"max_state_dim": 4}, "state 9 of 4"),
        ({"input_features": {}}, "has no camera"),
        ({"input_features": []}, "input_features is []: wanted an object"),
        ({"shapes": {"vision": {"wide": 3}}}, "shapes.vision has unknown keys wide"),
        ({"min_period": "x"}, "min_period is 'x': wanted a finite number above 0"),
    ],
)
def test_configs_that_are_not_run(folder: Path, change: dict[str, Any], words: str) -> None:
    edit(folder / "config.json", lambda c: c.update(change))
    assert words in refused(folder)


def test_a_shape_that_is_no_number(folder: Path) -> None:
    edit(folder / "config.json", lambda c: c["shapes"]["text"].update(rope_theta={}))
    assert "shapes.text.rope_theta is {}: wanted a finite number above 0" in refused(folder)


def test_lerobots_own_switches_that_are_not_built() -> None:
    raw = flow_config_json(PRESETS["smolvla-small"])
    for change, words in (
        ({"adapt_to_pi_aloha": True}, "adapt_to_pi_aloha is True: wanted False"),
        ({"add_image_special_tokens": True}, "add_image_special_tokens is True"),
        ({"resize_imgs_with_padding": [84, 42]}, "wanted two equal whole numbers"),
        ({"num_expert_layers": 2}, "num_expert_layers is 2"),
        ({"self_attn_every_n_layers": -1}, "self_attn_every_n_layers is -1"),
        ({"shapes": None, "vlm_model_name": "a/b"}, "vlm_model_name is 'a/b': its shapes are not"),
    ):
        with pytest.raises(CheckpointError, match=words.replace("[", r"\[")):
            parse_flow_config({**raw, **change})


def test_the_published_sizes() -> None:
    """Parameters as counted in the published checkpoints (millions)."""
    for kind, millions in (("pi0", 3238), ("pi05", 3354), ("smolvla", 402.8)):
        shapes = expected_tensors(PRESETS[kind]).must.values()
        count = sum(torch.Size(s).numel() for s in shapes) / 1e6
        assert count == pytest.approx(millions, rel=0.002)
    smol = PRESETS["smolvla"]
    assert (smol.view_tokens, smol.shapes.expert.hidden_size) == (64, 720)
    assert (smol.shapes.expert.intermediate_size, smol.vlm) == (2048, SMOLVLM2_500M)
    assert PRESETS["pi0"].view_tokens == 256


def test_processors_that_are_not_understood(folder: Path) -> None:
    path = folder / "policy_preprocessor.json"
    kept = path.read_text()

    def normalizer(content: Any) -> Any:
        return next(s for s in content["steps"] if s["registry_name"] == "normalizer_processor")

    for change, words in (
        (lambda c: c["steps"].append({"registry_name": "magic"}), "not built: magic"),
        (lambda c: normalizer(c)["config"]["norm_map"].update(STATE="ODD"), "STATE is 'ODD'"),
        (lambda c: normalizer(c)["config"]["norm_map"].update(VISUAL="MEAN_STD"), "VISUAL is"),
        (lambda c: normalizer(c)["config"]["norm_map"].update(STATE="MIN_MAX"),
         "has no observation.state.min for MIN_MAX: there is action."),
        (lambda c: normalizer(c).update(state_file="lost.safetensors"), "lost.safetensors cannot"),
        (lambda c: c.update(steps=c["steps"][:3]), "has no processor step"),
    ):  # fmt: skip
        edit(path, change)
        assert words in refused(folder)
        path.write_text(kept)


def test_statistics_of_the_wrong_size_or_value(folder: Path) -> None:
    path = next(folder.glob("policy_postprocessor*unnormalizer*.safetensors"))
    stored = load_file(str(path))
    name = next(n for n in stored if n.startswith("action."))
    for values in (torch.zeros(3), torch.full((7,), float("inf"))):
        path.unlink()
        save_file({**stored, name: values}, str(path))
        assert f"{name} is " in refused(folder)


def test_a_statistics_file_cannot_be_named_outside_the_folder(folder: Path) -> None:
    path = folder / "policy_preprocessor.json"
    edit(path, lambda c: [s.update(state_file="../../etc/passwd") for s in c["steps"]])
    assert str(folder / "passwd") in refused(folder)


@pytest.mark.parametrize("mode", ["MEAN_STD", "MIN_MAX", "QUANTILES", "QUANTILE10", "IDENTITY"])
def test_scaling_there_and_back(mode: str) -> None:
    low, high = torch.tensor([0.0, -2.0, 5.0]), torch.tensor([1.0, 3.0, 5.5])
    scaler = Scaler(mode, low, high)
    values = torch.randn(4, 3)
    assert torch.allclose(scaler.restore(scaler.normalize(values)), values, atol=1e-5)
    still = Scaler("MIN_MAX", low, low)
    assert torch.equal(still.normalize(low), -torch.ones(3))


def test_names_of_other_versions_are_the_same_tensors(tmp_path: Path) -> None:
    """transformers before and after 5.10 name the tower differently; the published pi0 has only
    PaliGemma's head; openpi leaves out the first word."""
    folder = tmp_path / "pi0"
    write_folder(folder, PRESETS["pi0-small"], seed=1)
    want = torch.cat([load(folder).model.embed_tokens.flatten()[:9], tower_of(folder)])

    def rename(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            new = name.removeprefix("model.").replace("vision_tower.", "vision_tower.vision_model.")
            new = new.replace("paligemma.model.language_model.embed_tokens", "paligemma.lm_head")
            tensors[new] = tensors.pop(name)

    tensors(rename)(folder)
    assert torch.equal(torch.cat([load(folder).model.embed_tokens.flatten()[:9],
                                  tower_of(folder)]), want)  # fmt: skip


def tower_of(folder: Path) -> torch.Tensor:
    tower = load(folder).model.tower
    return tower.blocks[1].attn.qkv.weight.flatten()[:9].clone()


def test_three_cameras_fit_the_model_and_an_empty_one_is_none() -> None:
    raw = flow_config_json(replace(PRESETS["pi0-small"], cameras=("a", "b", "c")))
    assert parse_flow_config(raw).cameras == ("a", "b", "c")
    features = raw["input_features"]
    features["observation.images.empty_camera_0"] = features.pop("observation.images.b")
    assert parse_flow_config(raw).cameras == ("a", "c")


@pytest.mark.parametrize("kind", ["pi0", "pi05", "smolvla"])
def test_every_key_of_lerobots_own_config_is_written(kind: str, tmp_path: Path) -> None:
    """What other programs read, such as converters, may be any of them."""
    config = PRESETS[f"{kind}-small"]
    write_config(tmp_path, config, PI0.random_units(config))
    written = json.loads((tmp_path / "config.json").read_text())
    theirs = json.loads((GOLDEN / kind / "config.json").read_text())
    assert set(theirs) - set(written) == set()
    ours = set(written) - set(theirs)
    assert ours == {"shapes"} | ({"state_in_prompt"} if kind == "pi05" else set())
    for name in set(theirs) - SIZES:
        assert written[name] == theirs[name], name


def test_the_width_of_smolvlas_expert_is_a_share_of_its_language_models(tmp_path: Path) -> None:
    config = PRESETS["smolvla"]
    assert flow_config_json(config)["expert_width_multiplier"] == 0.75
    small = flow_config_json(PRESETS["smolvla-small"])["expert_width_multiplier"]
    shapes = PRESETS["smolvla-small"].shapes
    assert int(shapes.text.hidden_size * small) == shapes.expert.hidden_size


def of_pi05(folder: Path, **said: object) -> Path:
    """A folder of pi0.5 as LeRobot writes it: nothing says how the prompt has the state."""
    write_folder(folder, PRESETS["pi05-small"], seed=1)

    def change(content: Any) -> None:
        del content["state_in_prompt"]
        content.update(said)

    edit(folder / "config.json", change)
    return folder


def test_how_pi05s_prompt_has_the_state_is_asked_for_and_never_guessed(tmp_path: Path) -> None:
    folder = of_pi05(tmp_path / "a")
    said = refused(folder)
    assert "state_in_prompt" in said
    assert "9 values" in said
    assert "14" in said
    assert inspect(str(folder)).kind == "pi05", "to be looked at it need not be said"
    with pytest.raises(CheckpointError, match="state_in_prompt"):
        load_engine(EngineOptions(str(folder)))
    for how, count in (("robot", 9), ("padded", 14)):
        engine = load_engine(EngineOptions(str(folder), state_in_prompt=how))
        engine.reset("pick up the cube")
        image = np.zeros((40, 40, 3), np.uint8)
        seen = Observation(1, 1, 0, image, image, np.full(9, -3.0))
        ids = engine.robot.prepare(seen).ids.tolist()
        bins = [0] * 9 + [128] * (count - 9)
        text = prompt_text("pi05", "pick up the cube", np.array(bins))
        assert ids == load(folder, state_in_prompt=how).tokenizer(text)
    written = of_pi05(tmp_path / "b", state_in_prompt="padded")
    assert load(written).config.prompt_state == 14
    assert load(written, state_in_prompt="robot").config.prompt_state == 9


def test_a_state_as_wide_as_the_model_needs_no_word(tmp_path: Path) -> None:
    config = replace(PRESETS["pi05-small"], state_in_prompt="", state_width=9)
    assert config.prompt_state == 9
    assert "state_in_prompt" not in flow_config_json(config)


def test_no_other_policy_has_a_state_in_its_prompt(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="pi0 has no state there"):
        load_engine(EngineOptions("random:pi0-small", state_in_prompt="robot"))


def test_a_trainers_own_copy_of_the_language_model_is_known_by_its_last_name() -> None:
    """Their config.json has the path of their disk; the tensors tell whether it is that model."""
    raw = flow_config_json(PRESETS["smolvla"])
    del raw["shapes"]
    mine = parse_flow_config(
        raw | {"vlm_model_name": "/data/weights/SmolVLM2-500M-Video-Instruct/"}
    )
    assert mine.shapes == parse_flow_config(raw).shapes
    with pytest.raises(CheckpointError, match="its shapes are not known here"):
        parse_flow_config(raw | {"vlm_model_name": "/data/weights/SmolVLM2-2.2B-Instruct"})
