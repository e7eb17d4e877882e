"""pi0-FAST against LeRobot 0.6.1: tokens equal, actions in units, odd strings, early stop.

The files were made by tools/golden/make_pi0fast.py in LeRobot's own environment.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from golden.spot import STEP, TASK, trajectory
from vla_ros.core.clock import SystemClock
from vla_ros.core.types import Executing, Observation, Timeline
from vla_ros.engine import EngineOptions, load_engine
from vla_ros.engine.engine import Engine
from vla_ros.engine.errors import CheckpointError, InvalidAction
from vla_ros.engine.families.folder import describe
from vla_ros.engine.load import sha256_on_disk

SYSTEM = SystemClock()
ODD = (
    "short", "long", "empty", "no_end", "prefix_twice", "a_word", "above", "half_prefix",
    "behind_the_end",
)  # fmt: skip


def engine_of(folder: Path, **options: Any) -> Engine:
    engine = load_engine(EngineOptions(str(folder), state_in_prompt="robot", **options))
    engine.reset(TASK)
    return engine


def frame(number: int, expected: dict[str, Any], **more: Any) -> Observation:
    """One of the trained case's frames, as the maker fed it."""
    pixels = expected["pixels"][number]
    state = expected["states"][number]
    return Observation(number, number, 0, pixels, wrist_image=pixels[::-1].copy(), proprio=state,
                       **more)  # fmt: skip


def step(engine: Engine, observation: Observation) -> Any:
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
        ids = engine.robot.prepare(observation).ids.tolist()
        assert ids == expected["ids"][number][expected["ids"][number] >= 0].tolist()
        found = step(engine, observation)
        assert found.tokens == said(row, end)
        assert np.abs(found.actions - expected["actions"][number]).max() < 1e-5
    assert np.abs(np.diff(expected["actions"], axis=0)).max() > 0.1


def test_drafts_of_the_last_chunk_save_passes_and_change_nothing(trained) -> None:
    """Over a stream whose chunks are executed by an action: every token is the model's own."""
    plain = engine_of(trained.directory, decoding="autoregressive")
    for options in ({}, {"decoding": "speculative", "adaptive_draft": False}):
        engine, passes, tokens = engine_of(trained.directory, **options), 0, 0
        for number in range(40):
            pixels, state, _ = trajectory(5.0 + STEP * number)
            executing = Executing(number - 1, 1, 0) if number else None
            seen = Observation(number, number, 0, pixels, pixels[::-1].copy(), state,
                               executing=executing)  # fmt: skip
            found, wanted = step(engine, seen), step(plain, seen)
            assert found.tokens == wanted.tokens
            assert np.array_equal(found.actions, wanted.actions)
            assert found.target_passes + sum(found.accepted) >= len(found.tokens)
            passes, tokens = passes + found.target_passes, tokens + len(found.tokens)
        assert passes < 0.9 * tokens


def test_tokenizers_are_found_where_lerobot_0_6_2_saves_them(trained, tmp_path) -> None:
    """``tokenizer/`` and ``action_tokenizer/``, by the names in the preprocessor's steps; what the
    second one says counts in the checkpoint's hash."""
    folder = tmp_path / "it"
    shutil.copytree(trained.directory, folder)
    (folder / "fast-action-tokenizer").rename(folder / "action_tokenizer")
    (folder / "tokenizer").mkdir()
    for path in folder.glob("tokenizer*.json"):
        path.rename(folder / "tokenizer" / path.name)
    path = folder / "policy_preprocessor.json"
    raw = json.loads(path.read_text())
    named = {"action_tokenizer_processor": ("action_tokenizer_name", "action_tokenizer"),
             "tokenizer_processor": ("tokenizer_name", "tokenizer")}  # fmt: skip
    for it in raw["steps"]:
        if it["registry_name"] in named:
            key, where = named[it["registry_name"]]
            it["config"][key], it["artifacts"] = where, {key: where}
    path.write_text(json.dumps(raw))
    found = step(engine_of(folder), frame(0, trained.expected))
    assert np.abs(found.actions - trained.expected["actions"][0]).max() < 1e-5
    assert not describe(str(folder)).lacks
    before, own = sha256_on_disk(str(folder)), folder / "action_tokenizer" / "processor_config.json"
    own.write_text(own.read_text() + " ")
    assert sha256_on_disk(str(folder)) != before


def test_a_chunk_has_the_actions_it_was_trained_with(trained, tmp_path) -> None:
    """LeRobot decodes ``n_action_steps`` rows of a spelled chunk of ``chunk_size``: a slower and
    larger movement than was said. Here the chunk is whole, and how much of it is executed is the
    runtime's."""
    folder = tmp_path / "it"
    shutil.copytree(trained.directory, folder)
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | {"n_action_steps": 3}))
    found = step(engine_of(folder), frame(0, trained.expected))
    assert np.abs(found.actions - trained.expected["actions"][0]).max() < 1e-5


def test_what_decides_its_answers_is_in_its_fingerprint(trained, tmp_path) -> None:
    folder = tmp_path / "it"
    shutil.copytree(trained.directory, folder)
    before = sha256_on_disk(str(folder))
    path = folder / "fast-action-tokenizer" / "processor_config.json"
    path.write_text(path.read_text().replace("10.0", "11.0"))
    assert sha256_on_disk(str(folder)) != before == sha256_on_disk(str(trained.directory))


def test_nobody_guesses_how_the_state_was_said(trained) -> None:
    with pytest.raises(CheckpointError, match=r"pi0_fast says its state.*robot or padded"):
        load_engine(EngineOptions(str(trained.directory)))
    padded = load_engine(EngineOptions(str(trained.directory), state_in_prompt="padded"))
    padded.reset(TASK)
    ids = padded.robot.prepare(frame(0, trained.expected)).ids.tolist()
    said = trained.expected["ids"][0]
    assert len(ids) > (said >= 0).sum(), "LeRobot 0.4 says zeros behind the state"


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
    """What is no action token is passed over if it is too low, and if it is too high all is lost:
    zeros, which are the data's mean."""
    made = {name: trained.expected[f"made_{name}"] for name in ODD}
    assert not made["above"].any() and not made["empty"].any()
    for name in ("a_word", "half_prefix", "behind_the_end", "no_end", "prefix_twice", "long"):
        assert np.array_equal(made[name], made["behind_the_end"]), name
    assert np.abs(made["short"] - made["long"]).max() > 0.1 < np.abs(made["short"]).max()


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
        case.directory, decoding=decoding, camera_map="top=main right=wrist left=none"
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
        case.directory, decoding="autoregressive", camera_map="top=main right=wrist left=none"
    )
    observation = Observation(0, 0, 0, expected["top"], wrist_image=expected["right"],
                              proprio=expected["states"][0])  # fmt: skip
    request = engine.encode(observation, Timeline(SYSTEM.steady_ns()), SYSTEM)
    runner = engine.decoder.decoding.runner
    layout = engine.decoder.decoding._prompt(len(request.prompt))
    logits = runner.logits(layout, request.prompt, None)[0].numpy()
    assert np.abs(logits - expected["logits"][0]).max() < 1e-4
    assert np.abs(expected["logits"][0]).max() > 1


def test_transformers_generate_says_the_same(trained) -> None:
    """PaliGemma's own program, vision included. Under a causal mask it says something else."""
    pytest.importorskip("transformers")
    from vla_ros_lab.bench.fast import engine_of as row_of

    plain = engine_of(trained.directory, decoding="autoregressive")
    theirs = row_of(plain, "generate", plain.options)
    theirs.reset(TASK)
    for number in range(6):
        found, wanted = (step(one, frame(number, trained.expected)) for one in (theirs, plain))
        assert found.tokens == wanted.tokens
        assert found.tokens[-1] == plain.model.ends
        assert found.target_passes == len(found.tokens)
        assert np.array_equal(found.actions, wanted.actions)
    told, logits = theirs.paligemma.generate, []

    def untold(**words: Any) -> Any:
        less = {name: value for name, value in words.items() if name != "token_type_ids"}
        out = told(**less, output_logits=True, return_dict_in_generate=True)
        logits.append(out.logits[0])
        return out.sequences

    theirs.paligemma.generate = untold
    first = frame(0, trained.expected)
    assert step(theirs, first).tokens == step(plain, first).tokens
    for layer in theirs.paligemma.model.language_model.layers:
        layer.self_attn.is_causal = True
    with contextlib.suppress(InvalidAction):
        step(theirs, first)
    assert (logits[1] - logits[0]).abs().max() > 1.0
