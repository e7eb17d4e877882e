"""What goes into GR00T N1.5 and N1.6 and what comes out, against NVIDIA's own processors: equal."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.flow.seeded import draw, image
from golden.groot import eagle_cases as cases
from unit.engine.flow.groot.eagle_small import FOLDERS, SIDES, halves
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.flow.groot import eagle_gate
from vla_ros.engine.flow.groot.eagle import eagle_n16
from vla_ros.engine.flow.groot.eagle_config import N15, N16, smart_side
from vla_ros.engine.flow.groot.eagle_gate import N16_TAPS, eagle_integers
from vla_ros.engine.flow.groot.eagle_pictures import cropped
from vla_ros.engine.flow.groot.eagle_prompt import EagleTokenizer, pictures_first, task_first
from vla_ros.engine.flow.groot.interpolation import WEIGHT_SCALE, Taps, stretched, taps
from vla_ros.engine.flow.groot.metadata import DATA_CONFIG, METADATA, read_robot
from vla_ros.engine.flow.groot.prompt import formal

SAID = {
    "video": list(cases.N15_CAMERAS),
    "state": list(cases.N15_STATES),
    "action": list(cases.N15_ACTIONS),
}


def golden(kind: str) -> dict[str, np.ndarray]:
    with np.load(FOLDERS[kind] / "golden.npz") as arrays:
        return {n: arrays[n] for n in arrays.files}


def words(kind: str) -> EagleTokenizer:
    return EagleTokenizer(FOLDERS[kind], None, cases.TEXT["vocab_size"], cases.IMAGE_TOKEN)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """N1.5's, with its data configuration written down."""
    shutil.copytree(FOLDERS[N15], tmp_path / "n15")
    (tmp_path / "n15" / DATA_CONFIG).write_text(json.dumps(SAID))
    return tmp_path / "n15"


def test_n15s_prompt() -> None:
    ids = words(N15)(pictures_first(cases.TASK, 2, 16))
    assert ids == golden(N15)["ids"].tolist()


def test_n16s_prompt() -> None:
    ids = words(N16)(task_first(formal(cases.TASK), 2, 9))
    assert ids == golden(N16)["ids"].tolist()


@pytest.mark.parametrize("text", ["push <IMG_CONTEXT>", "<img> push", "<|im_end|>"])
def test_an_instruction_cannot_hold_the_place_of_a_picture(text: str) -> None:
    with pytest.raises(ValueError, match="an instruction cannot have"):
        pictures_first(text, 1, 16)


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(FOLDERS[N15] / name, tmp_path)
    with pytest.raises(CheckpointError, match=r"has no token <\|im_start\|>: it is not"):
        EagleTokenizer(tmp_path, None, 280, 265)
    with pytest.raises(CheckpointError, match="no tokenizer in"):
        EagleTokenizer(tmp_path / "..", None, 280, 265)


def test_n15s_pictures() -> None:
    sizes = cases.N15_CAMERAS.items()
    seen = torch.stack([cropped(image(f"n15/{k}", *size), SIDES[N15]) for k, size in sizes])
    assert np.array_equal(seen.numpy(), golden(N15)["pixels"])


def test_n15s_state_and_actions(folder: Path) -> None:
    robot, known = read_robot(folder, None), golden(N15)
    state = np.concatenate(
        [draw(f"n15/state/{k}", 1, 1, n) for k, n in cases.N15_STATES.items()], 2
    )
    shown = robot.shown(torch.from_numpy(state[0, 0]))
    assert np.array_equal(shown.numpy(), known["state"][: robot.state_wide])
    units = robot.restored(torch.from_numpy(known["chunk"]), torch.zeros(6))
    assert np.array_equal(units.numpy(), known["actions"])
    assert robot.row == 31


def test_what_python_said_must_be_written_down(folder: Path) -> None:
    (folder / DATA_CONFIG).unlink()
    with pytest.raises(CheckpointError, match=r"write it down, of .*\"front\", \"wrist\""):
        read_robot(folder, "NEW_EMBODIMENT")
    with pytest.raises(CheckpointError, match=r"is unknown: .* has new_embodiment"):
        read_robot(folder, "gr1")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"state": ["arm"]}, "has state 'arm', the metadata gripper, single_arm"),
        ({"modes": {"action.gripper": "sin_cos"}}, "wanted a mode that can be undone"),
        ({"modes": {"action.foot": "none"}}, "modes has action.foot, of which nothing is used"),
        ({"modes": {"state.gripper": "median"}}, "wanted one of min_max, q99"),
        ({"video": ["top"]}, r"wanted of front, wrist"),
    ],
)
def test_a_data_configuration_that_does_not_fit(
    folder: Path, change: dict[str, object], message: str
) -> None:
    (folder / DATA_CONFIG).write_text(json.dumps({**SAID, **change}))
    with pytest.raises(CheckpointError, match=message):
        read_robot(folder, None)


def test_the_modes_of_n15(folder: Path) -> None:
    """Source: ``Normalizer``; sine and cosine as ``StateActionSinCosTransform``."""
    modes = {"state.single_arm": "sin_cos", "state.gripper": "q99", "action.gripper": "binary",
             "action.single_arm": "mean_std"}  # fmt: skip
    (folder / DATA_CONFIG).write_text(json.dumps({**SAID, "modes": modes}))
    robot = read_robot(folder, None)
    state = torch.tensor([0.1, 0.2, 0.3, 0.4, 90.0, -90.0])
    shown = robot.shown(state)
    assert torch.equal(shown, torch.cat((state[:4].sin(), state[:4].cos(), torch.tensor([1, -1]))))
    stats = json.loads((folder / METADATA).read_text())["new_embodiment"]["statistics"]["action"]
    units = robot.restored(torch.tensor([[0.0, 1.0, 2.0, 0.6]]), torch.zeros(6))[0]
    arm = stats["single_arm"]
    wanted = torch.tensor([0.0, 1.0, 2.0]) * torch.tensor(arm["std"]) + torch.tensor(arm["mean"])
    assert torch.allclose(units[:3], wanted)
    assert units[3] == 1


@settings(max_examples=40, deadline=None)
@given(source=st.integers(1, 24), target=st.integers(1, 40))
def test_the_stretched_table_is_torchs(source: int, target: int) -> None:
    table = torch.from_numpy(draw("table", source * source, 3))
    grid = table.view(source, source, 3).permute(2, 0, 1)[None]
    theirs = F.interpolate(
        grid, (target, target), mode="bilinear", align_corners=False, antialias=True
    )[0].permute(1, 2, 0)
    assert (stretched(table, target) - theirs.flatten(0, 1)).abs().max() < 1e-6


def test_the_stored_rows_and_weights_are_torchs() -> None:
    """The gate's reference for N1.6, read out of torch's own interpolation."""
    pictures = torch.eye(16)[:, None, :, None].expand(16, 1, 16, 16)  # one row each
    wide = F.interpolate(pictures, (18, 16), mode="bilinear", align_corners=False, antialias=True)
    matrix = wide[:, 0, :, 0].T  # [18, 16]
    rows = [row.nonzero().flatten().tolist() for row in matrix]
    weights = tuple(
        tuple(round(v * WEIGHT_SCALE) for v in row[used].tolist())
        for row, used in zip(matrix, rows, strict=True)
    )
    assert Taps(tuple(used[0] for used in rows), weights) == N16_TAPS == taps(16, 18)


def test_the_published_table_is_held_to_the_stored_one(monkeypatch: pytest.MonkeyPatch) -> None:
    _, head = halves(N16)
    integers = eagle_integers(eagle_n16(), head)
    assert integers["times"] == [0, 250, 500, 750]
    assert integers["position_rows"] == list(N16_TAPS.first)
    moved = Taps((0, 1, *N16_TAPS.first[2:]), N16_TAPS.weights)
    monkeypatch.setattr(eagle_gate, "taps", lambda source, target: moved)
    with pytest.raises(CheckpointError, match=r"1 of 18 position rows .*\[1\] 0 is 1.*another"):
        eagle_integers(eagle_n16(), head)


@pytest.mark.parametrize(("side", "wanted"), [(256, 252), (80, 84), (224, 224), (20, 56)])
def test_sides_of_n16(side: int, wanted: int) -> None:
    """Source: ``smart_resize``: 256 / 28 is nearer 9 than 10, and four blocks are the least."""
    assert smart_side(side) == wanted
