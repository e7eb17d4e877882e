"""The fault matrix: every family's small policy through the engine's face, whole and damaged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from support.folders import refused
from vla_ros.core.clock import SystemClock
from vla_ros.core.types import Inference, Observation, Timeline
from vla_ros.engine import CheckpointError, EngineOptions, InvalidAction, load_engine
from vla_ros.engine.engine import Engine
from vla_ros.engine.families.registry import all_presets, config_of, family_of, write_folder
from vla_ros.engine.load import inspect

CLOCK = SystemClock()
SMALL = [n for n, c in all_presets().items() if n.endswith("-small") and c.kind != "tokens"]
TEXT = "pick up the red cube"


def engine_of(checkpoint: str, **options: Any) -> Engine:
    engine = load_engine(EngineOptions(checkpoint, **options))
    engine.reset(TEXT)
    return engine


def seen(engine: Engine, stamp: int = 1, **changes: Any) -> Observation:
    random = np.random.default_rng(stamp)
    front, wrist = (random.integers(0, 256, (80, 80, 3), dtype=np.uint8) for _ in range(2))
    state = random.normal(size=engine.info.state_dim)
    return replace(Observation(stamp, stamp, 0, front, wrist, state), **changes)


def step(engine: Engine, observation: Observation) -> Inference:
    return engine.step(observation, Timeline(CLOCK.steady_ns()), CLOCK)


def said(answer: Inference) -> tuple[object, ...]:
    """Its tokens too: random FAST tokens spell no chunk, which is zeros then."""
    return tuple(answer.tokens), answer.actions.tolist()


@pytest.fixture(params=SMALL)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    name = request.param
    write_folder(tmp_path / name, all_presets()[name], seed=1)
    return Path(tmp_path / name)


def weights_in(folder: Path) -> Path:
    return max(folder.glob("*.safetensors"), key=lambda p: p.stat().st_size)


def test_a_chunk_from_the_folder_that_replays(folder: Path) -> None:
    engine, config = engine_of(str(folder)), config_of(folder)
    answer = step(engine, seen(engine))
    assert answer.actions.shape == (config.horizon, config.action_dim)
    assert [name for name, _ in answer.timeline.marks] == [
        "preprocess", "vision", "prefill", "decode",
    ]  # fmt: skip
    again = engine_of(str(folder))
    step(again, seen(again, 9))
    assert said(step(again, seen(again))) == said(answer)
    assert said(step(again, seen(again, 2))) != said(answer)
    again.reset("open the drawer of the cabinet")
    told = said(step(again, seen(again))) != said(answer)
    assert told == (config.kind != "act")  # which takes no instruction


def test_an_observation_that_lacks_something(folder: Path) -> None:
    engine = engine_of(str(folder))
    if engine.cameras == 2:
        with pytest.raises(InvalidAction, match="needs a wrist image"):
            step(engine, seen(engine, wrist_image=None))
    if engine.info.state_dim:
        with pytest.raises(InvalidAction, match="values of robot state, the frame has none"):
            step(engine, seen(engine, proprio=None))
        broken = np.full(engine.info.state_dim, np.nan)
        with pytest.raises(InvalidAction, match="state is not finite"):
            step(engine, seen(engine, proprio=broken))
    assert np.isfinite(step(engine, seen(engine)).actions).all()


def test_a_robot_of_other_actions(folder: Path) -> None:
    wanted = config_of(folder).action_dim + 1
    assert f"{wanted} values are wanted" in refused(folder, action_dim=wanted)


def test_weights_that_are_damaged(folder: Path) -> None:
    path = weights_in(folder)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert path.name in refused(folder)
    path.write_bytes(whole)
    tensors = load_file(str(path))
    # GR00T reads one robot's row of the first two; a head that is not there is the embedding.
    but = (".W", ".b", "lm_head.weight", "embed_tokens.weight")
    name = max((n for n, t in tensors.items() if t.is_floating_point() and not n.endswith(but)),
               key=lambda n: tensors[n].numel())  # fmt: skip
    good = tensors[name].clone()
    tensors[name].view(-1)[3] = torch.nan
    save_file(tensors, str(path))
    assert "NaN or infinity" in refused(folder)
    with pytest.raises(CheckpointError, match="NaN or infinity"):
        inspect(str(folder))
    tensors[name] = good
    tensors["something.else"] = torch.zeros(2)
    save_file(tensors, str(path))
    assert "extra: something.else" in refused(folder)
    del tensors["something.else"], tensors[name]
    save_file(tensors, str(path))
    assert "1 missing: " in refused(folder)
    tensors[name] = good.new_zeros(3, 3, 3)
    save_file(tensors, str(path))
    assert "1 of the wrong shape: " in refused(folder)
    path.unlink()
    assert path.name in refused(folder)


def test_an_option_that_means_nothing_here(folder: Path) -> None:
    assert "temperature" in refused(folder, temperature=0.5)
    family = family_of(folder)
    if "embodiment" not in family.takes:
        why = refused(folder, embodiment="nobody")
        assert why.startswith(("embodiment: this means nothing", "embodiment: these options"))
    else:
        assert "embodiment 'nobody' is unknown" in refused(folder, embodiment="nobody")
