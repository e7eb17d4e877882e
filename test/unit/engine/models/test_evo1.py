"""Evo-1: its config, its gate, its gripper, its graphs; parity is in test_evo1_golden.py."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from support.folders import refused
from unit.engine.families.test_family_faults import engine_of, seen, step
from unit.engine.models.test_vlm_with_expert import Again
from vla_ros.core.types import Executing
from vla_ros.engine import EngineOptions, InvalidAction
from vla_ros.engine.engine import Engine
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.families.base import LoadOptions, Placement
from vla_ros.engine.families.evo1 import (
    FAMILY,
    PRESETS,
    evo1_config_json,
    parse_evo1_config,
    square_of,
)
from vla_ros.engine.families.registry import write_folder
from vla_ros.engine.models.evo1 import (
    TIME_INDEX,
    CrossBlock,
    Gripper,
    check_table,
    evo1_expected,
    kept_rows,
    position_table,
    time_index,
)
from vla_ros_lab.bench.flow import NaiveRow, OwnRow, inputs_of

SMALL = PRESETS["evo1-small"]
CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_folder(tmp_path / "it", SMALL, seed=1)
    return tmp_path / "it"


def edited(folder: Path, name: str = "config.json", **changes: Any) -> Path:
    path = folder / name
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return folder


def test_a_config_is_written_as_it_is_read() -> None:
    for config in (
        *PRESETS.values(),
        replace(SMALL, embodiments=4, embodiment=2, gripper=Gripper(5, -0.2, 0.0, 2.0)),
    ):
        assert parse_evo1_config(evo1_config_json(config)) == config


def test_the_published_shapes_are_those_without_shapes() -> None:
    raw = evo1_config_json(PRESETS["evo1"])
    del raw["shapes"]
    assert parse_evo1_config(raw) == PRESETS["evo1"]
    sizes = evo1_expected(PRESETS["evo1"]).must.values()
    # 304 M of InternViT, 345 M of Qwen with its embedding, 121 M of the head
    assert sum(int(torch.Size(s).numel()) for s in sizes) == pytest.approx(771e6, rel=0.01)
    assert parse_evo1_config({**raw, "vlm_num_layers": None}).text.layers == 24


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"return_cls_only": True}, "return_cls_only is True: wanted False"),
        ({"action_head": "diffusion"}, "action_head is 'diffusion'"),
        ({"embed_dim": 85}, "embed_dim is not the language model's width, 84"),
        ({"chunk_size": 1}, "chunk_size is 1"),
        ({"max_views": 1}, "2 cameras"),
        ({"max_text_length": 12}, "3 images of 4 tokens leave no room in max_text_length 12"),
        ({"image_resolution": [56, 64]}, "image_resolution is"),
        ({"num_heads": 5}, "a width of 84 does not divide by 5 heads"),
        ({"default_embodiment_id": 1}, "default_embodiment_id is 1"),
        ({"shapes": None, "vlm_model_name": "OpenGVLab/InternVL3-2B-hf"}, "knows the shapes of"),
        ({"binarize_gripper": True, "gripper_index": 7}, "gripper_index is 7"),
        ({"postprocess_action_dim": 6}, "postprocess_action_dim is 6: wanted 7"),
    ],
)
def test_what_is_not_built_is_refused(folder: Path, change: dict[str, Any], message: str) -> None:
    assert message in refused(edited(folder, **change))


def test_a_step_that_is_not_known_and_a_tokenizer_without_places(folder: Path) -> None:
    path = folder / "policy_preprocessor.json"
    whole = path.read_text()
    steps = json.loads(whole)["steps"]
    edited(folder, path.name, steps=[*steps, {"registry_name": "magic", "config": {}}])
    assert "processor steps that are not built: magic" in refused(folder)
    path.write_text(whole)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["added_tokens"] = tokenizer["added_tokens"][:-1]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert "has no token <IMG_CONTEXT>" in refused(folder)


def test_the_rows_of_the_table_of_times() -> None:
    assert time_index(32) == TIME_INDEX
    assert time_index(50)[:4] == (0, 19, 39, 59)  # the authors' server takes 50 steps
    assert max(time_index(1000)) == 998
    check_table("it", position_table(1000, 12)[None].bfloat16().float())
    with pytest.raises(CheckpointError, match="differs by 1 from the table"):
        check_table("it", position_table(1000, 12)[None] + 1.0)


def test_a_table_of_times_that_is_another_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(str(path))
    name = "model.action_head.time_pos_enc.pe"
    tensors[name] = tensors[name].roll(1, 1)
    save_file(tensors, str(path))
    assert "from the table of its positions" in refused(folder)


def test_the_rows_that_are_kept_and_where_they_stand() -> None:
    ids = torch.tensor([1, 9, 9, 2, 1, 9, 9, 2, 1, 9, 9, 2, 5])
    assert kept_rows(ids, 9, 6).tolist() == list(range(13))
    assert kept_rows(ids, 9, 4).tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 12]
    assert kept_rows(ids, 9, 2).tolist() == [0, 1, 2, 3, 4, 7, 8, 11, 12]
    with pytest.raises(ValueError, match="6 positions for 8 rows"):
        kept_rows(ids, 9, 8)


def test_images_are_rounded_to_256_values_twice() -> None:
    """As LeRobot's floats go through to_pil_image: some values lose one."""
    values = np.arange(256, dtype=np.uint8).repeat(3).reshape(16, 16, 3)
    same = (square_of(values, 16) * 255).round().to(torch.uint8)
    wanted = (torch.arange(256).float() / 255.0 * 255.0).to(torch.uint8).view(16, 16)
    assert torch.equal(same[0], wanted)
    grown = square_of(values, 32) * 255
    assert torch.allclose(grown, grown.round(), atol=1e-4)
    assert 0 <= grown.min() <= grown.max() <= 255
    with pytest.raises(ValueError, match="give uint8"):
        square_of(values[..., 0], 16)


def test_a_gripper_of_two_ends(folder: Path) -> None:
    plain = engine_of(str(folder))
    actions = step(plain, seen(plain)).actions
    cut = float(np.median(actions[:, 6]))
    edited(folder, binarize_gripper=True, gripper_threshold=cut)
    engine = engine_of(str(folder))
    answer = step(engine, seen(engine)).actions
    assert np.array_equal(answer[:, :6], actions[:, :6])
    assert np.array_equal(answer[:, 6], np.where(actions[:, 6] > cut, -1.0, 1.0))
    assert len(set(answer[:, 6])) == 2
    engine.policy.model.head._outer.bias[6] = torch.nan
    with pytest.raises(InvalidAction, match="not finite"):
        step(engine, seen(engine))


def test_noise_is_uniform_and_only_where_there_are_actions() -> None:
    model = FAMILY.load("random:evo1-small", LoadOptions(), Placement(CPU, torch.float32)).model
    noise = model.noise(torch.Generator().manual_seed(1))
    used = noise[:, : SMALL.action_dim]
    assert -1 <= used.min() < -0.8
    assert 0.8 < used.max() < 1
    assert not noise[:, SMALL.action_dim :].any()


def test_an_embodiment_is_one_of_the_checkpoints(tmp_path: Path) -> None:
    write_folder(tmp_path, replace(SMALL, embodiments=3), seed=1)
    answers = []
    for name in ("", "0", "2"):
        engine = engine_of(str(tmp_path), embodiment=name)
        answers.append(step(engine, seen(engine)).actions)
    assert np.array_equal(answers[0], answers[1])
    assert not np.allclose(answers[1], answers[2], atol=1e-3)
    assert "'3' is unknown: this checkpoint has 0, 1, 2" in refused(tmp_path, embodiment="3")
    assert FAMILY.chosen(SMALL, LoadOptions(steps=3)).steps == 3


def test_an_instruction_that_is_too_long_is_refused() -> None:
    engine = engine_of("random:evo1-small")
    with pytest.raises(ValueError, match="images included, the most is 96"):
        engine.reset("pick up the cube " * 60)


@pytest.mark.parametrize("rtc", ["", "guided"])
def test_no_graph_is_captured_in_service(rtc: str) -> None:
    """Padded prompts in graphs say what plain ones do, whatever their length."""
    options = EngineOptions("random:evo1-small", flow_steps=2, rtc_mode=rtc)
    capture, choice = Again(), LoadOptions(steps=2)
    made = Engine(
        FAMILY.load("random:evo1-small", choice, Placement(CPU, torch.float32, capture)), options
    )
    plain = engine_of("random:evo1-small", flow_steps=2, rtc_mode=rtc)
    for number, words in enumerate((1, 4)):
        for each in (made, plain):
            each.reset(" ".join(["push the cube"] * words))
        for stamp in range(10 * number, 10 * number + 2):
            observation = seen(plain, stamp)
            if stamp % 10 and rtc:
                observation = replace(observation, executing=Executing(stamp - 1, 1, 1))
            answer, expected = step(made, observation), step(plain, observation)
            assert np.abs(answer.actions - expected.actions).max() < 1e-5
            assert answer.captures == 0
    assert capture.captured > 4


def test_the_naive_row_says_the_same_and_does_more() -> None:
    model = FAMILY.load("random:evo1-small", LoadOptions(), Placement(CPU, torch.float32)).model
    inputs = inputs_of(model, 0)
    calls = 0
    inner = model.head.keys_values

    def counted(block: CrossBlock, context: torch.Tensor) -> Any:
        nonlocal calls
        calls += 1
        return inner(block, context)

    model.head.keys_values = counted  # type: ignore[method-assign]
    own, _ = OwnRow(model).chunk(inputs)
    once, calls = calls, 0
    naive, _ = NaiveRow(model).chunk(inputs)
    assert (own - naive).abs().max() < 1e-5
    assert once == SMALL.blocks
    assert calls == SMALL.blocks * (1 + SMALL.steps)


def test_a_run_of_the_authors_own_code_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "mp_rank_00_model_states.pt").write_bytes(b"x")
    (tmp_path / "config.json").write_text('{"vlm_name": "OpenGVLab/InternVL3-1B"}')
    assert "is a run of MINT-SJTU/Evo-1" in refused(tmp_path)
