"""Pictures, states and actions against NVIDIA's own code, and what a folder must say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden.flow.seeded import image
from golden.groot.cases import PICTURES, ROBOTS
from unit.engine.flow.groot.small import GOLDEN
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.flow.groot.embodiment import Embodiment, read_embodiment
from vla_ros.engine.flow.groot.pictures import Framing, framed, letterboxed, resized
from vla_ros.engine.flow.groot.units import (
    Group,
    Relative,
    Scale,
    actions_to_robot,
    state_to_model,
)

KNOWN = {"turner": 1}


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "processing.npz") as arrays:
        return {n: arrays[n] for n in arrays.files}


def robot(name: str) -> Embodiment:
    return read_embodiment(GOLDEN / "robots", name, KNOWN)


@pytest.mark.parametrize("name", list(PICTURES))
def test_pictures_are_nvidias_to_the_last_bit(name: str, golden: dict[str, np.ndarray]) -> None:
    case = PICTURES[name]
    framing = Framing(case["side"], case["crop"] / case["side"])
    ours = framed(image(f"picture/{name}", *case["size"]), framing)
    theirs = golden[f"picture/{name}"].astype(np.float32) / 127.5 - 1.0
    kept = ours.permute(1, 2, 0)[:: case["every"], :: case["every"]].numpy()
    assert theirs.std() > 0.2
    assert np.abs(kept - theirs).max() < 1e-6


@given(source=st.integers(1, 80), side=st.integers(1, 80), value=st.integers(0, 255))
def test_one_colour_stays_it_at_every_size(source: int, side: int, value: int) -> None:
    out = resized(np.full((source, source, 3), value, np.uint8), side)
    assert out.shape == (side, side, 3)
    assert (out == value).all()


def test_a_letterbox_is_black_and_in_the_middle() -> None:
    out = letterboxed(np.full((2, 5, 3), 9, np.uint8))
    assert out.shape == (5, 5, 3)
    assert [bool(row.all()) for row in out] == [False, True, True, False, False]


def test_what_is_no_picture_is_refused() -> None:
    with pytest.raises(ValueError, match="uint8"):
        framed(np.zeros((4, 4), np.uint8), Framing(8))


@pytest.mark.parametrize("name", list(ROBOTS))
def test_states_and_actions_are_nvidias(name: str, golden: dict[str, np.ndarray]) -> None:
    made, raw = robot(name), golden[f"{name}/raw"]
    shown = state_to_model(made.state, raw, made.clip)
    assert shown.tolist() == golden[f"{name}/shown"].tolist()
    actions = actions_to_robot(made.actions, golden[f"{name}/chunk"], raw)
    off = np.abs(actions - golden[f"{name}/actions"]).max()
    assert off < 1e-6  # NVIDIA's code has rotations of the state in float32
    assert actions.shape == (made.horizon, made.action_dim)


def test_a_folder_says_what_a_robot_is() -> None:
    made = robot("ARM")
    assert (made.tag, made.row, made.cameras) == ("arm", 4, ("front", "wrist_image"))
    assert (made.state_dim, made.state_wide, made.action_dim) == (16, 18, 14)
    assert [g.relative for g in made.actions] == [Relative.ROT6D, Relative.SUM, Relative.NOTHING]
    assert [g.begin for g in made.actions] == [0, 9, 0]
    assert made.framing == Framing(256, 230 / 256)
    assert made.action_names[8:10] == ("pose_8", "moved_0")
    assert made.action_names[-1] == "grip"


def test_a_state_that_is_not_shown_is_zeros() -> None:
    group = Group("x", np.zeros(3), np.ones(3), Scale.ZERO)
    assert not state_to_model((group,), np.ones(3, np.float32), True).any()


def test_a_pose_is_moved_in_its_own_frame() -> None:
    quarter = np.array([0, 0, 0, 0, 0, np.pi / 2], np.float32)
    group = Group("twist", -np.ones(6), np.ones(6), relative=Relative.ROTVEC)
    out = actions_to_robot((group,), np.array([[0.5, 0, 0, 0, 0, 0.25]], np.float32), quarter)
    assert out[0] == pytest.approx([0, 0.5, 0, 0, 0, np.pi / 2 + 0.25], abs=1e-6)


def folder(target: Path, change: Any) -> Path:
    shutil.copytree(GOLDEN / "robots", target / "robots")
    path = target / "robots" / "processor_config.json"
    content = json.loads(path.read_text())
    change(content["processor_kwargs"])
    path.write_text(json.dumps(content))
    return target / "robots"


def set_in(*keys: Any) -> Any:
    """A change of the settings: all but the last are where, the last is what."""

    def change(settings: dict[str, Any]) -> None:
        place: Any = settings
        for key in keys[:-2]:
            place = place[key]
        place[keys[-2]] = keys[-1]

    return change


ARM = ("modality_configs", "arm")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (set_in(*ARM, "video", "delta_indices", [-15, 0]), "one picture, the newest"),
        (set_in(*ARM, "state", "delta_indices", [-1, 0]), "one state, the newest"),
        (set_in(*ARM, "action", "delta_indices", [0, 2]), "0, 1, 2 and so on"),
        (set_in(*ARM, "state", "modality_keys", ["pose", "legs"]), "legs.q01 is None"),
        (set_in(*ARM, "action", "action_configs", [{"rep": "RELATIVE"}]), "one for each"),
        (set_in("use_albumentations", False), "torchvision"),
        (set_in("use_mean_std", True), "computes nothing else"),
        (set_in("crop_fraction", 1.5), "at most 1"),
    ],
)
def test_what_is_not_built_is_refused_in_one_line(tmp_path: Path, change: Any, words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        read_embodiment(folder(tmp_path, change), "arm", KNOWN)
    assert "\n" not in str(caught.value)


def test_the_robots_that_there_are_are_listed(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"trained for 2 robots.*'embodiment': arm, turner"):
        read_embodiment(GOLDEN / "robots", None, KNOWN)
    with pytest.raises(CheckpointError, match=r"'leg' is unknown: .* has arm, turner"):
        read_embodiment(GOLDEN / "robots", "leg", KNOWN)
    with pytest.raises(CheckpointError, match=r"gives 'turner' the row None"):
        read_embodiment(GOLDEN / "robots", "turner", {})
    with pytest.raises(CheckpointError, match=r"processor_config.json in"):
        read_embodiment(tmp_path, None, KNOWN)


def test_an_only_robot_needs_no_name(tmp_path: Path) -> None:
    alone = folder(tmp_path, lambda s: s["modality_configs"].pop("turner"))
    (tmp_path / "model" / "processor").parent.mkdir()
    shutil.move(alone, tmp_path / "model" / "processor")
    assert read_embodiment(tmp_path / "model", None, {}).tag == "arm"


def test_statistics_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    made = folder(tmp_path, lambda s: None)
    path = made / "statistics.json"
    content = json.loads(path.read_text())
    content["arm"]["state"]["joints"]["q99"] = [1.0, float("nan"), 1.0, 1.0]
    path.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"joints.q99 .* finite numbers"):
        read_embodiment(made, "arm", KNOWN)
