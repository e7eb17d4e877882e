"""GR00T's folders: what they must have, what they may say, and what is refused in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from golden.groot.cases import QWEN
from vla_ros.core.clock import SystemClock
from vla_ros.core.types import Observation, Timeline
from vla_ros.engine import EngineOptions, load_engine
from vla_ros.engine.errors import CheckpointError, InvalidAction
from vla_ros.engine.families.base import LoadOptions, Placement
from vla_ros.engine.families.groot import N17_FAMILY, PRESETS, DrawnRows
from vla_ros.engine.families.registry import config_of, family_of
from vla_ros.engine.io.field_table import Fields
from vla_ros.engine.io.weights import FileWeights
from vla_ros.engine.load import inspect
from vla_ros.engine.models.groot import GrootModel
from vla_ros.engine.models.groot_head import HeadConfig, head_json, parse_head
from vla_ros.engine.models.qwen3_vl import parse_qwen3_vl

NAME = "groot-n1.7-small"
PLACE = Placement(torch.device("cpu"), torch.float32)
STACK = "action_head.action_encoder.W1.W"


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("groot") / "model"
    N17_FAMILY.write(folder, PRESETS[NAME], seed=1)
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "model"))


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def weights_changed(folder: Path, name: str, value: torch.Tensor | None) -> None:
    """A tensor in its shard replaced, or taken out of it."""
    index = folder / "model.safetensors.index.json"
    path = folder / json.loads(index.read_text())["weight_map"][name]
    tensors = load_file(str(path))
    if value is None:
        del tensors[name]
    else:
        tensors[name] = value
    save_file(tensors, str(path))


def refused(folder: Path, words: str, **options: Any) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        load_engine(EngineOptions(checkpoint=str(folder), **options))
    assert "\n" not in str(caught.value)


def frame(state: int = 9) -> Observation:
    picture = np.full((60, 80, 3), 90, np.uint8)
    return Observation(7, 7, 7, picture, picture[:, ::-1].copy(), np.zeros(state))


def actions(engine: Any, observation: Observation | None = None) -> Any:
    engine.reset("Pick up the red cube!")
    return engine.step(observation or frame(), Timeline(0), SystemClock()).actions


def test_a_folder_runs_and_is_what_its_files_say(folder: Path) -> None:
    engine = load_engine(EngineOptions(checkpoint=str(folder), embodiment="tabletop", seed=1))
    made = actions(engine)
    assert made.shape == (10, 7)
    assert np.abs(made[:, :6]).max() < 0.1 + 1e-6
    assert ((made[:, 6] >= 0.25) & (made[:, 6] <= 0.75)).all()
    assert np.ptp(made, axis=0).min() > 1e-3
    again = load_engine(EngineOptions(checkpoint=f"random:{NAME}", seed=1))
    assert np.array_equal(actions(again), made)
    found = inspect(str(folder))
    assert found.parameters == family_of(folder).parameters(config_of(folder))


def test_capitals_and_punctuation_of_an_instruction_do_not_count(folder: Path) -> None:
    engine = load_engine(EngineOptions(checkpoint=str(folder)))
    made = actions(engine)
    engine.reset("pick up the red cube")
    assert np.array_equal(engine.step(frame(), Timeline(0), SystemClock()).actions, made)


def test_the_pieces_of_an_observation_count(folder: Path) -> None:
    engine = load_engine(EngineOptions(checkpoint=str(folder)))
    made = actions(engine)
    dark = np.zeros((60, 80, 3), np.uint8)
    picture = frame().image
    others = (
        Observation(7, 7, 7, dark, frame().wrist_image, np.zeros(9)),
        Observation(7, 7, 7, picture, dark, np.zeros(9)),
        Observation(7, 7, 7, picture, frame().wrist_image, np.ones(9)),
    )
    for other in others:
        assert not np.array_equal(actions(engine, other), made)


def test_what_an_observation_lacks_is_said(folder: Path) -> None:
    engine = load_engine(EngineOptions(checkpoint=str(folder)))
    with pytest.raises(InvalidAction, match=r"needs a wrist image .*'wrist_image'"):
        actions(engine, Observation(7, 7, 7, frame().image, None, np.zeros(9)))
    with pytest.raises(InvalidAction, match="needs 9 values of robot state, the frame has 3"):
        actions(engine, frame(state=3))
    options = EngineOptions(checkpoint=str(folder), camera_map="wrist_image=none")
    with pytest.raises(InvalidAction, match="'wrist_image': it cannot be none"):
        actions(load_engine(options))
    with pytest.raises(ValueError, match="the most is 128"):
        engine.reset("cube " * 200)


def test_one_row_of_a_stack_is_read_and_no_other(folder: Path) -> None:
    made = actions(load_engine(EngineOptions(checkpoint=str(folder))))
    stack = family_stack(folder)
    stack[[0, 1, 3]] = float("nan")
    weights_changed(folder, STACK, stack)
    assert np.array_equal(actions(load_engine(EngineOptions(checkpoint=str(folder)))), made)
    with pytest.raises(CheckpointError, match=f"{STACK} holds NaN or infinity"):
        family_of(folder).inspect(folder, LoadOptions())
    stack[2, 0, 0] = float("inf")
    weights_changed(folder, STACK, stack)
    refused(folder, f"{STACK} holds NaN or infinity")


def family_stack(folder: Path) -> torch.Tensor:
    return FileWeights(folder, config_of(folder).expected()).take(STACK)  # type: ignore[arg-type]


def test_a_single_file_is_as_good_as_shards(folder: Path) -> None:
    made = actions(load_engine(EngineOptions(checkpoint=str(folder))))
    shards = sorted(folder.glob("model-*.safetensors"))
    tensors = {n: t for path in shards for n, t in load_file(str(path)).items()}
    head = "backbone.model.lm_head.weight"
    embedding = "backbone.model.model.language_model.embed_tokens.weight"
    tensors[head] = tensors.pop(embedding)  # tied: a file has one of the two
    for path in [*shards, folder / "model.safetensors.index.json"]:
        path.unlink()
    save_file(tensors, str(folder / "model.safetensors"))
    assert np.array_equal(actions(load_engine(EngineOptions(checkpoint=str(folder)))), made)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"input_embedding_dim": 100}, "config.json: input_embedding_dim is 100: wanted 72"),
        ({"state_history_length": 2}, "state_history_length is 2: wanted 1"),
        ({"reproject_vision": True}, "reproject_vision is True"),
        ({"select_layer": 40}, "select_layer is 40: wanted at most"),
        ({"max_state_dim": 8}, "tabletop is wider than the model: state 9 of 8"),
        ({"action_horizon": 9}, "horizon 10 of 9"),
        ({"max_num_embodiments": 2}, "row 3 of 2"),
        ({"max_seq_len": 4}, "max_seq_len is 4: wanted at least the 12"),
        ({"shapes": None, "model_name": "me/mine"}, "'me/mine', of which this engine knows no"),
        ({"shapes": {"text_config": {"hidden_size": 32}}}, "backbone_embedding_dim is 64"),
    ],
)
def test_a_config_that_cannot_be_run_is_refused(
    folder: Path, values: dict[str, Any], words: str
) -> None:
    change(folder / "config.json", **values)
    refused(folder, words)


def test_another_number_of_actions_than_was_asked_for_is_refused(folder: Path) -> None:
    refused(folder, "action: 6 values are wanted, the checkpoint has 7", action_dim=6)
    refused(folder, "embodiment 'g1' is unknown: .* has tabletop", embodiment="g1")
    with pytest.raises(CheckpointError, match="has tabletop"):
        load_engine(EngineOptions(checkpoint=f"random:{NAME}", embodiment="g1"))


def test_a_tokenizer_of_another_model_is_refused(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace("<|image_pad|>", "<|image_pat|>"))
    engine = load_engine(EngineOptions(checkpoint=str(folder)))
    with pytest.raises(CheckpointError, match="gives 0 positions of 18 for images"):
        engine.reset("pick")
    path.unlink()
    refused(folder, "no tokenizer.json in")


@pytest.mark.parametrize("name", ["times", "table_rows", "frequency_axes", "positions"])
def test_the_gate_refuses_other_integers(folder: Path, name: str) -> None:
    path = folder / "discrete.json"
    stored = json.loads(path.read_text())[name]
    change(path, **{name: [*stored[:-1], stored[-1] + 1]})
    refused(folder, f"1 of {len(stored)} {name.replace('_', ' ')} are not those stored")


def test_a_gate_of_other_choices_is_refused(folder: Path) -> None:
    change(folder / "discrete.json", bins=[1])
    refused(folder, "discrete.json has bins: known are times")


def test_other_steps_than_the_gates_may_be_asked_for(folder: Path) -> None:
    engine = load_engine(EngineOptions(checkpoint=str(folder), flow_steps=2))
    assert engine.policy.config.head.times == (0, 500)  # type: ignore[union-attr]
    assert actions(engine).shape == (10, 7)


def test_sizes_are_read_back_as_they_were_written() -> None:
    config = PRESETS[NAME]

    assert parse_head(Fields(head_json(config.head))) == config.head
    shapes = config.backbone.shapes_json()
    said = {"shapes": shapes, "select_layer": 4, "backbone_embedding_dim": 64}
    assert parse_qwen3_vl(Fields(said), 96) == config.backbone
    assert QWEN["text_config"]["num_hidden_layers"] > 4


def test_the_published_size_is_nvidias(tmp_path: Path) -> None:
    """3 billion parameters, 326 million of them the encoders of 32 robots, of which one is held."""
    family, config = family_of("random:groot-n1.7"), PRESETS["groot-n1.7"]
    assert config.head == HeadConfig(40, 132, 132)
    assert family.parameters(config) == pytest.approx(3.1e9, rel=0.05)
    stacks = {n: s for n, s in config.expected().must.items() if n.endswith((".W", ".b"))}
    count = sum(int(np.prod(s)) for s in stacks.values())
    assert count == pytest.approx(326e6, rel=0.01)
    held = family.weight_bytes(config, torch.bfloat16)
    assert held == (family.parameters(config) - count) * 2 + count // 32 * 4


def test_a_drawn_model_is_the_one_that_is_written(tmp_path: Path) -> None:
    """What the whole presets draw as they load is what a folder would hold."""
    config = PRESETS[NAME]
    drawn = DrawnRows(config, 1, torch.device("cpu"))
    assert torch.equal(drawn.take(STACK)[2], drawn.take_row(STACK, 2))
    robot = N17_FAMILY.random_units(config)
    assert (robot.state_dim, robot.action_dim) == (config.state_dim, config.action_dim)
    N17_FAMILY.save(tmp_path, {n: drawn.take(n) for n in drawn.shapes})
    read = GrootModel(config, FileWeights(tmp_path, config.expected()), PLACE.like)
    made = GrootModel(config, drawn, PLACE.like)
    given = made.example(6, torch.Generator().manual_seed(2))
    noise = made.noise(torch.Generator().manual_seed(3))
    chunks = [
        model.sample_actions(
            model.prefill(model.image_features(given.pixels), given.ids, given.state), None, noise
        )
        for model in (made, read)
    ]
    assert torch.equal(*chunks)
