"""A checkpoint's cameras by their own names, a robot's by their roles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from support.engine import CLOCK, images
from vla_ros.core.types import Observation, Timeline
from vla_ros.engine import EngineOptions, InvalidAction, load_engine
from vla_ros.engine.engine import Engine
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.families.lerobot import PRESETS, STATE_DIM
from vla_ros.engine.families.registry import write_folder
from vla_ros.engine.models.cameras import roles_of

FRONT, WRIST = images(2, still=0.0)


@pytest.mark.parametrize(
    ("cameras", "said", "roles"),
    [
        (("front", "wrist"), None, ("main", "wrist")),
        (("wrist", "front"), None, ("wrist", "main")),
        (("image", "image2"), None, ("main", "wrist")),  # LIBERO in LeRobot
        (("eye_in_hand", "agentview"), None, ("wrist", "main")),
        (("wrist",), None, ("main",)),
        (("cam_left_wrist", "cam_right_wrist"), None, ("main", "wrist")),
        (("top", "side"), "top=wrist", ("wrist", "main")),
        (("base", "left_wrist", "right_wrist"), "right_wrist=none", ("main", "wrist", "none")),
        (("a", "b", "c"), "a=none c=main", ("none", "wrist", "main")),
    ],
)
def test_roles(cameras: tuple[str, ...], said: str | None, roles: tuple[str, ...]) -> None:
    assert roles_of(cameras, said) == roles


def test_further_roles_are_the_cameras_of_their_names() -> None:
    aloha = ("cam_high", "cam_left_wrist", "cam_right_wrist")
    more = ("cam_right_wrist", "belt")
    assert roles_of(aloha, None, more) == ("main", "wrist", "cam_right_wrist")
    assert roles_of(aloha, "cam_left_wrist=belt cam_right_wrist=wrist", more) == (
        "main", "belt", "wrist",
    )  # fmt: skip
    with pytest.raises(CheckpointError, match="main, wrist, belt are offered, and nothing is left"):
        roles_of(aloha, None, ("belt",))


@pytest.mark.parametrize(
    ("cameras", "said", "why"),
    [
        (("base", "left_wrist", "right_wrist"), None, "nothing is left for right_wrist"),
        (("top", "side"), "front=main", "camera_map has 'front=main'"),
        (("top", "side"), "top=above", "camera_map has 'top=above'"),
        (("top", "side"), "top=main side=main", "camera_map gives 'main' twice"),
        (("top",), "top=none", "none of them is left"),
    ],
)
def test_what_cannot_be_is_told_as_wanted_and_offered(
    cameras: tuple[str, ...], said: str | None, why: str
) -> None:
    with pytest.raises(CheckpointError) as raised:
        roles_of(cameras, said)
    told = str(raised.value)
    assert f"wants {', '.join(cameras)}, main, wrist are offered, and {why}; say which" in told
    assert f"camera_map '{cameras[0]}=main" in told


def engine_of(tmp_path: Any, cameras: tuple[str, ...], **options: Any) -> Engine:
    write_folder(tmp_path, replace(PRESETS["pi0-small"], cameras=cameras), seed=3)
    engine = load_engine(EngineOptions(str(tmp_path), **options))
    engine.reset("pick up the red cube")
    return engine


def chunk(engine: Engine, **changes: Any) -> np.ndarray:
    seen = replace(Observation(1, 1, 0, FRONT, WRIST, np.ones(STATE_DIM)), **changes)
    return engine.step(seen, Timeline(0), CLOCK).actions


def test_a_camera_shows_what_its_name_says_wherever_it_stands(tmp_path: Any) -> None:
    first = engine_of(tmp_path / "a", ("front", "wrist"))
    other = engine_of(tmp_path / "b", ("wrist", "front"))
    assert other.robot.roles == ("wrist", "main")
    swapped = chunk(other, image=WRIST, wrist_image=FRONT)
    assert np.array_equal(swapped, chunk(first))
    assert not np.array_equal(chunk(other), chunk(first))


def test_a_checkpoint_looks_through_further_cameras(tmp_path: Any) -> None:
    three = engine_of(tmp_path / "a", ("front", "side", "wrist"), camera_roles=("side", "belt"))
    assert three.robot.roles == ("main", "side", "wrist")
    assert three.info.camera_roles == ("side",)
    shown = chunk(three, more_images={"side": WRIST})
    assert not np.array_equal(shown, chunk(three, more_images={"side": FRONT}))
    order = engine_of(tmp_path / "b", ("front", "wrist", "side"), camera_map="side=none")
    assert not np.array_equal(shown, chunk(order))
    with pytest.raises(InvalidAction, match="side"):
        chunk(three)


def test_an_absent_camera_is_masked_as_lerobot_masks_it(tmp_path: Any) -> None:
    """Its rows are nowhere, and the positions count valid rows only: as if it did not exist."""
    with pytest.raises(CheckpointError, match="nothing is left for side"):
        engine_of(tmp_path / "a", ("front", "wrist", "side"))
    three = engine_of(tmp_path / "b", ("front", "wrist", "side"), camera_map="side=none")
    assert three.cameras == 2
    two = engine_of(tmp_path / "c", ("front", "wrist"))
    assert np.array_equal(chunk(three), chunk(two))
    one = engine_of(tmp_path / "d", ("front", "wrist"), camera_map="wrist=none")
    assert one.cameras == 1
    assert not np.array_equal(chunk(one, wrist_image=None), chunk(two))
