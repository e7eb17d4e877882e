"""TurboVLA against its authors' own code, from their checkpoint to actions in units.

Made by tools/golden/turbovla/make.py, with the transformers that the authors ask for.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from golden.flow.seeded import draw, image
from golden.turbovla.cases import CASES, STATE, TEXT, VISION, statistics, weight
from support.engine import CLOCK, Again
from vla_ros.core.types import Observation, Timeline
from vla_ros.engine.convert import ConvertOptions, convert
from vla_ros.engine.convert import turbovla as converter
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.families.base import LoadOptions, Placement
from vla_ros.engine.families.turbovla import TurboVLAFamily
from vla_ros.engine.load import load_engine
from vla_ros.engine.models.turbovla import UNUSED
from vla_ros.engine.options import EngineOptions

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "turbovla"
CPU = torch.device("cpu")
#: the small encoders have one width of a head each, and it is not the published 64
HEADS = {"vision": VISION["num_attention_heads"], "text": TEXT["num_attention_heads"]}


def saved(name: str, folder: Path, **more: Any) -> Path:
    """What the authors' trainer saves, and their statistics, in two folders as they release it."""
    checkpoint = folder / "checkpoints" / "libero"
    checkpoint.mkdir(parents=True)
    shapes = json.loads((GOLDEN / name / "tensors.json").read_text())
    state = {f"module.{n}": torch.from_numpy(np.asarray(weight(n, tuple(s))))
             for n, s in shapes.items()}  # fmt: skip
    content = {
        "model_state_dict": state,
        "optimizer_state_dict": {"step": 3},
        "args": {"chunk_size": 12, "dinov3_path": "x"},
        "model_config": json.loads((GOLDEN / name / "model_config.json").read_text()),
    }
    torch.save(content | more, checkpoint / "turbovla_libero.pth")
    (folder / "libero_all4_stats.json").write_text(json.dumps(statistics()))
    return checkpoint


@pytest.fixture(autouse=True)
def small_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes are read from the tensors; heads are told by the width that published ones have."""
    made = converter._shapes

    def shapes(tensors: Any, path: Path) -> Any:
        found = made(tensors, path)
        return {part: {**found[part], "heads": HEADS[part]} for part in found}

    monkeypatch.setattr(converter, "_shapes", shapes)


def converted(name: str, folder: Path) -> Path:
    convert(saved(name, folder), folder / "target", ConvertOptions(tokenizer=GOLDEN))
    return folder / "target"


def far(one: torch.Tensor, other: Any) -> float:
    assert one.shape == other.shape
    return float((one - torch.from_numpy(np.asarray(other))).abs().max())


@pytest.mark.parametrize("capture", [None, Again()], ids=["plain", "captured"])
@pytest.mark.parametrize("name", CASES)
def test_it_says_what_the_authors_code_says(
    name: str, capture: Again | None, tmp_path: Path
) -> None:
    folder = converted(name, tmp_path)
    golden = np.load(GOLDEN / name / "golden.npz")
    policy = TurboVLAFamily().load(folder, LoadOptions(), Placement(CPU, torch.float32, capture))
    preparation, model, config = policy.preparation(), policy.model, policy.config
    side = config.vision.image_size
    pictures = [image(f"{name}/{view}", side, side) for view in range(len(config.cameras))]
    raw = torch.from_numpy(draw(f"{name}/state", STATE))
    for number, task in enumerate(CASES[name].tasks):
        preparation.instruct(task)
        given = preparation.inputs(pictures, raw)
        assert far(given.pixels[..., ::8, ::8], golden["pixels"]) < 1e-6
        assert far(given.state, golden["state"]) < 1e-5
        prefix = model.prefill(model.image_features(given.pixels), given.ids, given.state)
        assert far(model._words, golden[f"words_{number}"]) < 1e-5
        with torch.inference_mode():
            memory = model.fill_kv_cache(model._span)[: -config.state_rows]
        assert far(memory, golden[f"memory_{number}"]) < 2e-5
        chunk = model.sample_actions(prefix, None, None)
        assert far(chunk, golden[f"chunk_{number}"]) < 1e-5
        assert 0.05 < np.abs(golden[f"chunk_{number}"]).mean() < 0.9
        actions = preparation.actions(chunk, raw)
        wanted = golden[f"actions_{number}"]
        assert far(actions[:, :-1], wanted[:, :-1]) < 1e-5
        # LIBERO's environment closes at 1 and opens at -1; here 1 is open and 0 closed.
        assert torch.equal(actions[:, -1] == 1, torch.from_numpy(wanted[:, -1] == -1))


def test_every_tensor_of_the_authors_is_known(tmp_path: Path) -> None:
    for name in CASES:
        folder = converted(name, tmp_path / name)
        shapes = json.loads((GOLDEN / name / "tensors.json").read_text())
        expected = TurboVLAFamily().expected(TurboVLAFamily().config(folder, LoadOptions()))
        assert {**expected.must, **expected.spare} == {n: tuple(s) for n, s in shapes.items()}
        assert set(expected.spare) == set(UNUSED)


def test_the_engine_runs_a_converted_folder(tmp_path: Path) -> None:
    folder = converted("padded", tmp_path)
    engine = load_engine(EngineOptions(checkpoint=str(folder)))
    engine.reset("pick up the red block")
    frame = image("padded/0", 60, 90)  # of another size: stretched
    seen = Observation(1, 1, 0, frame, frame, np.zeros(STATE))
    answer = engine.step(seen, Timeline(1), CLOCK)
    assert answer is not None and answer.actions.shape == (5, 7)
    assert set(answer.actions[:, -1]) <= {0.0, 1.0}
    with pytest.raises(CheckpointError, match=r"weights .*int8.*leave weights empty"):
        load_engine(EngineOptions(checkpoint=str(folder), dtype="bfloat16", weights="int8"))
    with pytest.raises(ValueError, match="the instruction has 15 tokens, the most is 13"):
        engine.reset("pick up the red block and place the drawer on the plate.")


def test_weights_of_an_average_are_those_that_are_run(tmp_path: Path) -> None:
    shapes = json.loads((GOLDEN / "own" / "tensors.json").read_text())
    average = {n: torch.full(s, 0.25) for n, s in shapes.items()}
    source = saved("own", tmp_path, ema_model_state_dict=average)
    found = convert(source, tmp_path / "target", ConvertOptions(tokenizer=GOLDEN))
    assert found.summary.startswith("ema_model_state_dict of turbovla_libero.pth")
    with safe_open(str(tmp_path / "target" / "model.safetensors"), "pt") as stored:
        assert bool((stored.get_tensor("view_embedding") == 0.25).all())


@pytest.mark.parametrize(
    ("part", "fields", "says"),
    [
        ("action", {"action_dim": 14}, "action.action_dim is 14: of TurboVLA's robots"),
        (
            "vision",
            {"position_embedding": "learned_patch"},
            "vision.position_embedding is 'learned",
        ),
        ("interaction", {"residual_style": "pre_norm"}, "interaction.residual_style is 'pre_norm'"),
        ("text", {"spell_out": True}, r"unknown fields text\.spell_out \(True\)"),
    ],
)
def test_what_is_not_computed_is_refused_by_its_name(
    part: str, fields: dict[str, Any], says: str, tmp_path: Path
) -> None:
    raw = json.loads((GOLDEN / "own" / "model_config.json").read_text())
    raw[part] |= fields
    with pytest.raises(CheckpointError, match=says):
        convert(saved("own", tmp_path, model_config=raw), tmp_path / "target")


def test_what_lacks_something_is_refused_in_a_line(tmp_path: Path) -> None:
    source = saved("own", tmp_path)
    (tmp_path / "libero_all4_stats.json").unlink()
    with pytest.raises(CheckpointError, match="no statistics"):
        convert(source, tmp_path / "target")
    named = {"vision_encoder.backbone.model.layer.0.norm1.weight": torch.zeros(3)}
    later = saved("own", tmp_path / "later", model_state_dict=named)
    with pytest.raises(CheckpointError, match=r"made with transformers 5.*before its final norm"):
        convert(later, tmp_path / "target")
    shutil.rmtree(source)
    other = saved("own", tmp_path / "other", model_config={"name": "ACT"})
    with pytest.raises(CheckpointError, match="has no model_config of TurboVLA"):
        convert(other, tmp_path / "target")
