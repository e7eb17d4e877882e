"""pi0-FAST against LeRobot 0.6.1: tokens equal, actions in units, odd strings, early stop.

The files were made by test/golden/make_pi0fast.py in LeRobot's own environment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vla_ros.core.clock import SystemClock
from vla_ros.core.types import Observation, Timeline
from vla_ros.engine import EngineOptions, load_engine
from vla_ros.engine.engine import FastEngine
from vla_ros.engine.errors import InvalidAction

SYSTEM = SystemClock()
TASK = " push_the\nspot "
ODD = (
    "short", "long", "empty", "no_end", "prefix_twice", "a_word", "above", "half_prefix",
    "behind_the_end",
)  # fmt: skip


def engine_of(folder: Path, **options: Any) -> FastEngine:
    engine = load_engine(EngineOptions(str(folder), state_in_prompt="robot", **options))
    assert isinstance(engine, FastEngine)
    engine.reset(TASK)
    return engine


def frame(number: int, expected: dict[str, Any], **more: Any) -> Observation:
    """One of the trained case's frames, as the maker fed it."""
    pixels = expected["pixels"][number]
    state = expected["states"][number]
    return Observation(number, number, 0, pixels, wrist_image=pixels[::-1].copy(), proprio=state,
                       **more)  # fmt: skip


def step(engine: FastEngine, observation: Observation) -> Any:
    found = engine.step(observation, Timeline(SYSTEM.steady_ns()), SYSTEM)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def trained(golden):
    return golden("pi0fast")


@pytest.fixture(scope="module", params=["autoregressive", "speculative"])
def engine(request, trained):
    return engine_of(trained.directory, decoding=request.param)


def said(row: Any, end: int) -> tuple[int, ...]:
    """LeRobot's tokens up to its end marker; zeros are behind it."""
    tokens = row.tolist()
    return tuple(tokens[: tokens.index(end) + 1] if end in tokens else tokens)


def test_prompts_tokens_and_actions_are_lerobots(engine, trained) -> None:
    expected, end = trained.expected, engine.model.ends
    engine.reset(TASK)
    for number, row in enumerate(expected["tokens"]):
        observation = frame(number, expected)
        ids = engine.prepare(observation).ids.tolist()
        assert ids == expected["ids"][number][expected["ids"][number] >= 0].tolist()
        found = step(engine, observation)
        assert found.tokens == said(row, end)
        assert np.abs(found.actions - expected["actions"][number]).max() < 1e-5
    assert np.abs(np.diff(expected["actions"], axis=0)).max() > 0.1


def test_it_stops_at_the_end_marker(trained) -> None:
    engine = engine_of(trained.directory, decoding="autoregressive")
    found = step(engine, frame(0, trained.expected))
    assert found.tokens[-1] == engine.model.ends
    assert found.target_passes == len(found.tokens) < engine.info.max_tokens


@pytest.mark.parametrize("name", ODD)
def test_odd_strings_are_decoded_as_lerobot_decodes_them(engine, trained, name) -> None:
    tokens, made = trained.expected[f"odd_{name}"], trained.expected[f"made_{name}"]
    assert np.abs(engine.model.actions.decode(tokens.tolist()) - made).max() < 1e-6


def test_odd_strings_are_not_all_alike(trained) -> None:
    made = [trained.expected[f"made_{name}"] for name in ODD]
    assert not made[ODD.index("above")].any()  # LeRobot's answer to what is no action token
    assert len({one.tobytes() for one in made}) >= 5


def test_an_answer_that_does_not_begin_as_trained_is_no_action(engine) -> None:
    with pytest.raises(InvalidAction, match=r"not with 'Action: '.*trained for actions"):
        engine.model.actions.decode([5, 6, engine.model.ends])


def test_a_chunk_is_spelled_as_for_training(engine, trained) -> None:
    actions = engine.model.actions
    tokens = said(trained.expected["tokens"][0], engine.model.ends)
    assert tuple(actions.encode(actions.decode(tokens))) == tokens


@pytest.mark.parametrize("decoding", ["autoregressive", "speculative"])
def test_random_weights_an_absent_camera_and_no_end(golden, decoding) -> None:
    case = golden("pi0fast-random")
    expected = case.expected
    engine = engine_of(
        case.directory, decoding=decoding, flow_cameras="top=main right=wrist left=none"
    )
    for number, row in enumerate(expected["tokens"]):
        observation = Observation(
            number, number, 0, expected["top"], wrist_image=expected["right"],
            proprio=expected["states"][number],
        )  # fmt: skip
        found = step(engine, observation)
        assert found.tokens == said(row, engine.model.ends)
        assert np.abs(found.actions - expected["actions"][number]).max() < 1e-5


def test_the_logits_are_lerobots(golden) -> None:
    case = golden("pi0fast-random")
    expected = case.expected
    engine = engine_of(
        case.directory, decoding="autoregressive", flow_cameras="top=main right=wrist left=none"
    )
    observation = Observation(0, 0, 0, expected["top"], wrist_image=expected["right"],
                              proprio=expected["states"][0])  # fmt: skip
    request = engine.encode(observation, Timeline(SYSTEM.steady_ns()), SYSTEM)
    runner = engine.decoding.runner
    layout = engine.decoding._prompt(len(request.prompt))
    logits = runner.logits(layout, request.prompt, None)[0].numpy()
    assert np.abs(logits - expected["logits"][0]).max() < 1e-4
    assert np.abs(expected["logits"][0]).max() > 1
