"""No graph is captured in service: whatever an instruction's length, all shapes were prepared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.calibrations import write_calibration
from support.engine import (
    CLOCK,
    Again,
    Event,
    engine_of,
    observation,
    play,
    stream,
    tiny,
    tiny_config,
)
from support.heads import recursive_head
from vla_ros.core.types import Timeline
from vla_ros.engine import Engine
from vla_ros.engine.decoding.draft_head_folder import save_head
from vla_ros.engine.families.openvla import write_random
from vla_ros.engine.io.tokens import MAX_TEXT
from vla_ros.engine.layers.graphs import Outputs
from vla_ros.engine.layers.runner import BUCKET, prompt_lengths

#: 4, 13, 29 and 41 tokens of text or so: four buckets
WORDS = ("push", "pick up the red cube and place it", "push the blue block " * 5, "stack it " * 15)
SCHEDULES = {
    "autoregressive": {},
    "actionflow": {},
    "speculative": {},
    "speculative, fixed shapes": {"fixed_shapes": True},
    "speculative, short drafts": {"gamma": 2},
    "speculative, trees": {"drafter": "temporal_tree"},
    "speculative, draft head": {"drafter": "head", "adaptive_draft": False},
    "speculative, draft model": {"drafter": "model"},
    "speculative, sampling": {"drafter": "model", "acceptance": "sampling"},
    "vanilla_speculative": {"drafter": "model"},
}


@pytest.fixture(autouse=True)
def short_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("vla_ros.engine.decoding.tokens", "vla_ros_lab.model_drafter"):
        monkeypatch.setattr(f"{module}.MAX_TEXT", 80)


@pytest.fixture
def draft(tmp_path: Path) -> str:
    """A draft model that sees with eyes of its own, and with another prompt's length."""
    write_random(tmp_path, tiny_config("llama_gqa", "fused"), seed=9)
    return str(tmp_path)


def engines(name: str, draft: str) -> tuple[Engine, Engine, Again]:
    """The engine with captured passes, and the same without."""
    options, capture = dict(SCHEDULES[name]), Again()
    if options.get("drafter") == "model":
        options["draft_checkpoint"] = draft
    if options.get("drafter") == "head":
        save_head(Path(draft) / "head", recursive_head(tiny_config(), 7, seed=3))
        options["draft_checkpoint"] = str(Path(draft) / "head")
    decoding = name.split(",")[0]
    made = engine_of(tiny(seed=2), decoding, capture, **options)
    return made, engine_of(tiny(seed=2), decoding, **options), capture


def every_length(frames: int) -> list[Event]:
    """A stream that changes its instruction, each for so many frames."""
    resets = {number * frames: text for number, text in enumerate(WORDS)}
    return stream(frames * len(WORDS), resets, seed=3)


@pytest.mark.parametrize("name", SCHEDULES)
def test_no_graph_is_captured_in_service_whatever_the_instruction(name: str, draft: str) -> None:
    engine, plain, capture = engines(name, draft)
    events = every_length(9)
    lengths = {len(engine.policy.tokenizer(text)) // BUCKET for text in WORDS}
    assert len(lengths) > 2
    first = play(engine, events[:1])
    before = capture.captured
    assert before > 4
    answers = play(engine, events[1:])
    assert capture.captured == before
    assert engine.captures_in_service == 0
    assert {a.captures for a in answers.values()} == {0}
    if "sampling" not in name:
        expected = play(plain, events)
        assert {s: a.tokens for s, a in {**first, **answers}.items()} == {
            s: a.tokens for s, a in expected.items()
        }


def test_preparing_does_not_move_what_is_drawn(draft: str) -> None:
    engine, plain, _ = engines("speculative, sampling", draft)
    events = every_length(2)
    one, other = play(engine, events), play(plain, events)
    assert [a.tokens for a in one.values()] == [a.tokens for a in other.values()]


def test_a_graph_captured_in_service_is_counted(draft: str) -> None:
    """A shape that was not prepared for: the answer that waited for it says so."""
    engine, _, _ = engines("autoregressive", draft)
    engine.decoder.decoding.warm_up = lambda request: None  # type: ignore[method-assign]
    answers = list(play(engine, stream(2, {0: WORDS[0]})).values())
    assert answers[0].captures == engine.captures_in_service >= 2
    assert answers[1].captures == answers[0].captures


@pytest.mark.parametrize("name", ["speculative", "speculative, draft model"])
def test_speculation_is_two_graphs_a_length(name: str, draft: str) -> None:
    """Its rows are filled up to the longest draft: the prompt's pass, and the one behind it."""
    engine, _, capture = engines(name, draft)
    engine.reset(WORDS[1])
    request = engine.encode(observation(0, stream(1, {})[0].image), Timeline(0), CLOCK)
    engine.decoder.decoding.drafter.prepare(request)
    before = capture.captured
    engine.decoder.decoding.warm_up(request)
    assert capture.captured - before == 2


MOST = 70  # at a tenth to a third of a second each, less than half a minute on a Jetson
TOKENS = {"7": (7, 1), "40": (40, 1), "56": (7, 8)}  # values an action, actions


EVERY = (*SCHEDULES, "heterospec")
LONG = pytest.mark.long
#: what is made for single actions
SINGLE = ("actionflow", "vanilla_speculative")


@pytest.mark.parametrize("tokens", [*"7", *(pytest.param(n, marks=LONG) for n in ("40", "56"))])
@pytest.mark.parametrize("name", EVERY)
def test_few_graphs_are_captured_before_the_first_answer(
    name: str, tokens: str, draft: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of prompts of every length, as a robot waits for them."""
    for module in ("vla_ros.engine.decoding.tokens", "vla_ros_lab.model_drafter"):
        monkeypatch.setattr(f"{module}.MAX_TEXT", MAX_TEXT)
    dim, chunk = TOKENS[tokens]
    if chunk > 1 and name in SINGLE:
        pytest.skip("made for single actions")
    options = dict(SCHEDULES.get(name, {}))
    config = replace(tiny_config(), chunk=chunk)
    if options.get("drafter") == "model":
        write_random(Path(draft), replace(tiny_config("llama_gqa", "fused"), chunk=chunk), seed=9)
        options["draft_checkpoint"] = draft
    elif options.get("drafter") == "head":
        save_head(Path(draft) / "head", recursive_head(config, dim * chunk, dim, seed=3))
        options["draft_checkpoint"] = str(Path(draft) / "head")
    if name == "heterospec":
        options = {"extra": write_calibration(Path(draft), dim * chunk)}
    captured = []

    def counted(function: Callable[[], Outputs]) -> Callable[[], Outputs]:
        captured.append(function)
        function()
        return function

    engine = engine_of(tiny(config, dim=dim), name.split(",")[0], counted, **options)
    play(engine, stream(1, {0: WORDS[0]}))
    assert engine.captures == len(captured)
    assert 10 < len(captured) <= MOST


def test_long_drafts_fill_up_few_shapes_and_say_the_same(draft: str) -> None:
    """A chunk of 56 tokens whose drafts, all lengths of them, are filled up in steps of 8."""
    config = replace(tiny_config(), chunk=8)
    capture = Again()
    made = engine_of(tiny(config, seed=2), "speculative", capture)
    plain = engine_of(tiny(config, seed=2), "autoregressive")
    events = stream(24, {0: WORDS[0], 9: WORDS[1]}, seed=3)
    first = play(made, events[:1])
    before = capture.captured
    drafts = set()
    propose = made.decoder.decoding.drafter.propose

    def watched(action: Any, limit: int) -> Any:
        found = propose(action, limit)
        drafts.add(len(found.tokens))
        return found

    made.decoder.decoding.drafter.propose = watched  # type: ignore[method-assign]
    answers = {**first, **play(made, events[1:])}
    assert capture.captured == before
    assert len(drafts) > 5
    assert {s: a.tokens for s, a in answers.items()} == {
        s: a.tokens for s, a in play(plain, events).items()
    }


LONG = ("autoregressive", "actionflow", "speculative, short drafts", "speculative, fixed shapes",
        "speculative, trees", "vanilla_speculative")  # fmt: skip


@pytest.mark.parametrize("name", LONG)
def test_an_action_of_40_tokens_reaches_no_new_shape(name: str, draft: str) -> None:
    """As the benchmark runs it, prepared for one length: wherever a tail lies, its shape is one."""
    options, capture = dict(SCHEDULES[name]), Again()
    if options.get("drafter") == "model":
        options["draft_checkpoint"] = draft
    if name != "actionflow":
        options["gamma"] = 2
    engine = engine_of(tiny(dim=40), name.split(",")[0], capture, **options)
    frames = 48 if name == "actionflow" else 4
    events = stream(frames, {0: WORDS[1]})
    engine.reset(WORDS[1])
    engine.decoder.decoding.prepare(
        engine.encode(observation(0, events[0].image), Timeline(0), CLOCK)
    )
    before = capture.captured
    for event in events:
        seen = observation(event.stamp, event.image)
        engine.decoder.decoding.step(engine.encode(seen, Timeline(0), CLOCK))
    assert capture.captured == before


def test_lengths_reach_every_bucket_at_both_ends() -> None:
    lengths = prompt_lengths(256, 256 + 192)
    rounded = {-(-length // BUCKET) for length in lengths}
    assert rounded == {-(-length // BUCKET) for length in range(258, 449)}
    assert {258, 272, 273, 448} <= set(lengths)
    for reach in range(40):  # what lies behind a prompt
        some = {-(-(length + reach) // BUCKET) for length in lengths}
        assert some == {-(-(length + reach) // BUCKET) for length in range(258, 449)}
