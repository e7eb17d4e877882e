"""Images, states and actions against NVIDIA's own code, and what a folder must say."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from golden.flow.seeded import draw, image
from golden.groot import eagle_cases as n15
from golden.groot.cases import PICTURES, ROBOTS
from unit.engine.models.groot_small import GOLDEN
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.io.embodiment import Embodiment, Group, Relative
from vla_ros.engine.io.groot import CROP, DATA_CONFIG, METADATA, read_metadata, read_processor
from vla_ros.engine.io.images.framing import Framing, framed, letterboxed, resized

KNOWN = {"turner": 1}
GROWN = (
    (26, 80, "a0bc02b2eaec38ba"),
    (58, 224, "82ff4b8a04d93455"),
    (186, 256, "00a90a0f83005048"),
)


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "processing.npz") as arrays:
        return {n: arrays[n] for n in arrays.files}


def robot(name: str) -> Embodiment:
    return read_processor(GOLDEN / "robots", name, KNOWN)


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
def test_one_color_stays_it_at_every_size(source: int, side: int, value: int) -> None:
    out = resized(np.full((source, source, 3), value, np.uint8), side)
    assert out.shape == (side, side, 3)
    assert (out == value).all()


@pytest.mark.parametrize(("source", "side", "sha256"), GROWN)
def test_growing_a_square_is_opencvs_where_its_scale_is_no_whole_number(
    source: int, side: int, sha256: str
) -> None:
    """Sizes at which source / side and 1 / (side / source) fall on two sides of a pixel; the hashes
    are of ``cv2.resize(..., INTER_AREA)``, OpenCV 5.0.0."""
    pixels = image(f"grown/{source}", source, source)
    assert hashlib.sha256(resized(pixels, side).tobytes()).hexdigest()[:16] == sha256


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
    shown = made.normalize(torch.from_numpy(raw))
    assert shown.tolist() == golden[f"{name}/shown"].tolist()
    chunk = torch.from_numpy(golden[f"{name}/chunk"])
    actions = made.unnormalize(chunk, torch.from_numpy(raw)).numpy()
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
    group = Group("x", np.zeros(3), np.ones(3), "zero")
    assert not group.normalize(np.ones(3, np.float32)).any()


def test_a_pose_is_moved_in_its_own_frame() -> None:
    quarter = np.array([0, 0, 0, 0, 0, np.pi / 2], np.float32)
    group = Group("twist", -np.ones(6), np.ones(6), relative=Relative.ROTVEC)
    out = group.absolute(np.array([[0.5, 0, 0, 0, 0, 0.25]]), quarter)
    assert out[0] == pytest.approx([0, 0.5, 0, 0, 0, np.pi / 2 + 0.25], abs=1e-6)


@pytest.mark.parametrize("name", list(ROBOTS))
def test_what_is_left_of_a_chunk_is_moved_to_another_state_and_to_other_rows(name: str) -> None:
    """In units it is what was said, as far as the new place's range reaches; what has statistics
    of its own for every row is said anew."""
    made = robot(name)
    random = np.random.default_rng(0)
    chunk = torch.from_numpy(random.uniform(-0.5, 0.5, (made.horizon, 20)).astype(np.float32))
    then, moved = torch.from_numpy(random.normal(size=(2, made.state_dim)).astype(np.float32))
    now = then + 0.02 * moved
    said = made.unnormalize(chunk, then)[2:]
    kept = made.reanchored(chunk[2:], 2, then, now)
    off, left = ((made.unnormalize(rows, now) - said).abs() for rows in (kept, chunk[2:]))
    begin = compared = 0
    for group in made.actions:
        part = slice(begin, begin + group.size)
        reached = kept[:, part].abs().amax(1) <= 1
        assert not off[reached, part].gt(2e-5).any()
        if group.relative is Relative.NOTHING and group.low.ndim == 1:
            assert torch.equal(kept[:, part], chunk[2:, part])
        else:
            compared += int(left[reached, part].gt(1e-3).any())
        begin += group.size
    assert compared > 0
    assert torch.equal(kept[:, begin:], chunk[2:, begin:])


@pytest.mark.parametrize("how", [Relative.SUM, Relative.ROT6D, Relative.ROTVEC])
def test_an_absolute_action_is_brought_back_to_any_state(how: Relative) -> None:
    size = {Relative.SUM: 4, Relative.ROT6D: 9, Relative.ROTVEC: 6}[how]
    group = Group("x", -np.ones(size), np.ones(size), relative=how)
    random = np.random.default_rng(1)
    state, values = random.normal(size=size).astype(np.float32), random.normal(0, 0.5, (5, size))
    if how is Relative.ROT6D:  # of which only the rotation counts
        values = group.relative_to(group.absolute(values, state), state)
    found = group.relative_to(group.absolute(values, state), state)
    assert found == pytest.approx(values, abs=1e-9)


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
        (set_in(*ARM, "video", "delta_indices", [-15, 0]), "one image, the newest"),
        (set_in(*ARM, "state", "delta_indices", [-1, 0]), "one state, the newest"),
        (set_in(*ARM, "action", "delta_indices", [0, 2]), "0, 1, 2 and so on"),
        (set_in(*ARM, "state", "modality_keys", ["pose", "legs"]), "legs.q01 is None"),
        (set_in(*ARM, "action", "action_configs", [{"rep": "RELATIVE"}]), "one for each"),
        (set_in("use_albumentations", False), "torchvision"),
        (set_in("use_mean_std", True), "computes nothing else"),
        (set_in("use_tactile", True), r"processor_kwargs\.use_tactile is True"),
        (set_in("unheard_of", 3), r"unknown fields .*processor_kwargs\.unheard_of \(3\)"),
        (set_in("crop_fraction", 1.5), "at most 1"),
    ],
)
def test_what_is_not_built_is_refused_in_one_line(tmp_path: Path, change: Any, words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        read_processor(folder(tmp_path, change), "arm", KNOWN)
    assert "\n" not in str(caught.value)


def test_the_robots_that_there_are_are_listed(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"trained for 2 robots.*'embodiment': arm, turner"):
        read_processor(GOLDEN / "robots", None, KNOWN)
    with pytest.raises(CheckpointError, match=r"'leg' is unknown: .* has arm, turner"):
        read_processor(GOLDEN / "robots", "leg", KNOWN)
    with pytest.raises(CheckpointError, match=r"gives 'turner' the row None"):
        read_processor(GOLDEN / "robots", "turner", {})
    with pytest.raises(CheckpointError, match=r"processor_config.json in"):
        read_processor(tmp_path, None, KNOWN)


def test_an_only_robot_needs_no_name(tmp_path: Path) -> None:
    alone = folder(tmp_path, lambda s: s["modality_configs"].pop("turner"))
    (tmp_path / "model" / "processor").parent.mkdir()
    shutil.move(alone, tmp_path / "model" / "processor")
    assert read_processor(tmp_path / "model", None, {}).tag == "arm"


def test_statistics_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    made = folder(tmp_path, lambda s: None)
    path = made / "statistics.json"
    content = json.loads(path.read_text())
    content["arm"]["state"]["joints"]["q99"] = [1.0, float("nan"), 1.0, 1.0]
    path.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"joints.q99 .* finite numbers"):
        read_processor(made, "arm", KNOWN)


SAID = {
    "video": list(n15.N15_CAMERAS),
    "state": list(n15.N15_STATES),
    "action": list(n15.N15_ACTIONS),
}


@pytest.fixture(scope="module")
def golden15() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "n15" / "golden.npz") as arrays:
        return {n: arrays[n] for n in arrays.files}


@pytest.fixture
def folder15(tmp_path: Path) -> Path:
    """N1.5's, with its data configuration written down."""
    shutil.copytree(GOLDEN / "n15", tmp_path / "n15")
    (tmp_path / "n15" / DATA_CONFIG).write_text(json.dumps(SAID))
    return tmp_path / "n15"


def test_n15s_pictures(golden15: dict[str, np.ndarray]) -> None:
    sizes = n15.N15_CAMERAS.items()
    framing = Framing(56, CROP, letterbox=False)
    seen = torch.stack([framed(image(f"n15/{k}", *size), framing) for k, size in sizes])
    assert np.array_equal(seen.numpy(), golden15["pixels"])


def test_n15s_state_and_actions(golden15: dict[str, np.ndarray], folder15: Path) -> None:
    robot, known = read_metadata(folder15, None), golden15
    state = np.concatenate([draw(f"n15/state/{k}", 1, 1, n) for k, n in n15.N15_STATES.items()], 2)
    shown = robot.normalize(torch.from_numpy(state[0, 0]))
    assert np.array_equal(shown.numpy(), known["state"][: robot.state_wide])
    units = robot.unnormalize(torch.from_numpy(known["chunk"]), torch.zeros(6))
    assert np.array_equal(units.numpy(), known["actions"])
    assert robot.row == 31


def test_what_python_said_must_be_written_down(folder15: Path) -> None:
    (folder15 / DATA_CONFIG).unlink()
    with pytest.raises(CheckpointError, match=r"write it down, of .*\"front\", \"wrist\""):
        read_metadata(folder15, "NEW_EMBODIMENT")
    with pytest.raises(CheckpointError, match=r"is unknown: .* has new_embodiment"):
        read_metadata(folder15, "gr1")


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
    folder15: Path, change: dict[str, object], message: str
) -> None:
    (folder15 / DATA_CONFIG).write_text(json.dumps({**SAID, **change}))
    with pytest.raises(CheckpointError, match=message):
        read_metadata(folder15, None)


def test_the_modes_of_n15(folder15: Path) -> None:
    """Source: ``Normalizer``; sine and cosine as ``StateActionSinCosTransform``."""
    modes = {
        "state.single_arm": "sin_cos",
        "state.gripper": "q99",
        "action.gripper": "binary",
        "action.single_arm": "mean_std",
    }
    (folder15 / DATA_CONFIG).write_text(json.dumps({**SAID, "modes": modes}))
    robot = read_metadata(folder15, None)
    state = torch.tensor([0.1, 0.2, 0.3, 0.4, 90.0, -90.0])
    shown = robot.normalize(state)
    assert torch.equal(shown, torch.cat((state[:4].sin(), state[:4].cos(), torch.tensor([1, -1]))))
    stats = json.loads((folder15 / METADATA).read_text())["new_embodiment"]["statistics"]["action"]
    units = robot.unnormalize(torch.tensor([[0.0, 1.0, 2.0, 0.6]]), torch.zeros(6))[0]
    arm = stats["single_arm"]
    wanted = torch.tensor([0.0, 1.0, 2.0]) * torch.tensor(arm["std"]) + torch.tensor(arm["mean"])
    assert torch.allclose(units[:3], wanted)
    assert units[3] == 1


def test_without_a_letterbox_an_image_must_be_a_square(tmp_path: Path) -> None:
    """N1.7 since NVIDIA's option: false shows the network other shapes as they are."""
    wide, square = image("wide", 48, 64), image("square", 64, 64)
    plain = robot("arm").framing
    for number, (value, squares) in enumerate(((True, False), (None, False), (False, True))):
        changed = folder(tmp_path / str(number), set_in("letter_box_transform", value))
        framing = read_processor(changed, "arm", KNOWN).framing
        assert framing.squares == squares
        assert torch.equal(framed(square, framing), framed(square, plain))
        if not squares:
            assert torch.equal(framed(wide, framing), framed(wide, plain))
            continue
        with pytest.raises(ValueError, match=r"48 x 64 pixels: .* letter_box_transform false"):
            framed(wide, framing)
