"""Sessions: several robots on one set of weights, alone and side by side."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.engine import (
    CLOCK,
    engine_of,
    images,
    left_to_collector,
    observation,
    tiny,
    tiny_config,
)
from support.heads import recursive_head
from vla_ros.core.types import Executing, Inference, Observation, Timeline
from vla_ros.engine import EngineOptions
from vla_ros.engine.decoding.draft_head_folder import save_head
from vla_ros.engine.engine import Engine
from vla_ros.engine.errors import InvalidAction
from vla_ros.engine.families.lerobot import STATE_DIM
from vla_ros.engine.families.openvla import write_random
from vla_ros.engine.layers.pieces import Batched, alone
from vla_ros.engine.layers.runner import DecoderRunner
from vla_ros.engine.load import load_engine

TEXTS = ("pick up the red cube", "put the bowl on the plate and go back", "stop")
FRAMES = list(images(12, seed=3))


def now() -> Timeline:
    start = CLOCK.steady_ns()
    return Timeline(start).mark("queue", start)


def pieces(engine: Engine, stamp: int, frame: int, before: int | None = None):  # type: ignore[no-untyped-def]
    shown = observation(stamp, FRAMES[frame % len(FRAMES)])
    if engine.info.decoding == "flow":
        shown = seen(stamp, frame, before if engine.options.rtc_mode else None)
    return engine.pieces(shown, now(), CLOCK)


@dataclass
class Robot:
    """A session that is batched, and one of its own that is not."""

    batched: Engine
    lone: Engine
    busy: bool = False
    wanted: Inference | None = None
    last: int | None = None  # the frame whose chunk is executed


def same(one: Inference | None, other: Inference | None, within: float = 0.0) -> None:
    assert (one is None) == (other is None)
    if one is None or other is None:
        return
    assert not isinstance(one, Exception), one
    assert one.stamp_ns == other.stamp_ns
    assert one.tokens == other.tokens
    assert one.target_passes == other.target_passes
    assert (one.drafted, one.accepted) == (other.drafted, other.accepted)
    assert one.continues == other.continues
    np.testing.assert_allclose(one.actions, other.actions, rtol=0, atol=within)


DECODINGS = {
    "autoregressive": {},
    "speculative": {},
    "temporal_tree": {"drafter": "temporal_tree"},
    "sampling": {"acceptance": "sampling", "temperature": 0.7},
    "relaxed": {"acceptance": "relaxed", "relaxed_distance": 9},
    "actionflow": {},
}


def first_of(name: str) -> Engine:
    options = DECODINGS[name]
    decoding = name if name in ("autoregressive", "actionflow") else "speculative"
    return engine_of(tiny(), decoding, **options)


def arrivals(engine: Engine, moves: list[tuple[int, int, int]], within: float = 0.0) -> None:
    """Robots whose frames arrive between the turns of others, at resets and other instructions:
    each answer is that of a session that is alone."""
    robots = [Robot(engine.session(), engine.session()) for _ in range(3)]
    for robot, text in zip(robots, TEXTS, strict=True):
        robot.batched.reset(text)
        robot.lone.reset(text)
    together: Batched[int, Inference | None] = Batched((InvalidAction,))

    def turn() -> None:
        for name, answer in together.turn():
            same(answer, robots[name].wanted, within)
            robots[name].busy = False

    for stamp, (who, what, frame) in enumerate(moves):
        robot = robots[who]
        while robot.busy:
            turn()
        if what == 0:
            text = TEXTS[frame % 3]
            robot.batched.reset(text)
            robot.lone.reset(text)
            robot.last = None
        robot.wanted = alone(pieces(robot.lone, stamp, frame, robot.last))
        together.add(who, pieces(robot.batched, stamp, frame, robot.last))
        robot.last = stamp
        robot.busy = True
        if what == 1:
            turn()
    while len(together):
        turn()


MOVES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 11)), min_size=1, max_size=7
)


@pytest.fixture(scope="module")
def loaded() -> Callable[[str], Engine]:
    kept: dict[str, Engine] = {}
    return lambda name: kept.setdefault(name, first_of(name))


@pytest.mark.parametrize("name", DECODINGS)
@settings(max_examples=3, deadline=None)
@given(moves=MOVES)
@example(moves=[(0, 2, 1), (1, 2, 1), (2, 1, 4), (0, 2, 1), (1, 1, 1), (2, 2, 4), (0, 0, 5)])
def test_a_robot_says_the_same_alone_and_among_others(
    loaded: Callable[[str], Engine], name: str, moves: list[tuple[int, int, int]]
) -> None:
    arrivals(loaded(name), moves)


@pytest.mark.parametrize("language", ["llama_gqa", "qwen2_tied"])
def test_other_languages(language: str) -> None:
    engine = engine_of(tiny(tiny_config(language, "fused")), "speculative")
    arrivals(engine, [(0, 0, 1), (1, 2, 1), (2, 2, 4), (0, 1, 1), (1, 1, 1), (2, 2, 5)])


def test_a_session_s_step_is_its_pieces() -> None:
    first = engine_of(tiny(), "speculative")
    one, other = first.session(), first.session()
    for engine in (one, other):
        engine.reset(TEXTS[0])
    for stamp in range(4):
        frame = FRAMES[stamp // 2]
        same(
            one.step(observation(stamp, frame), now(), CLOCK),
            alone(pieces(other, stamp, stamp // 2)),
        )


def test_robots_share_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight robots take as many passes as one."""
    first = engine_of(tiny(), "autoregressive")
    robots = [first.session() for _ in range(8)]
    packs: list[int] = []
    real = DecoderRunner.together
    monkeypatch.setattr(
        DecoderRunner, "together", lambda self, each: (packs.append(len(each)), real(self, each))[1]
    )
    together: Batched[int, Inference | None] = Batched((InvalidAction,))
    for number, robot in enumerate(robots):
        robot.reset(TEXTS[number % 3])
        together.add(number, pieces(robot, number, number))
    while len(together):
        together.turn()
    assert packs == [8] * 7


def test_weights_are_shared() -> None:
    first = engine_of(tiny(), "speculative")
    second, third = first.session(), first.session()
    assert second.model is third.model  # type: ignore[attr-defined]
    assert second.model.decoder is first.model.decoder  # type: ignore[attr-defined]
    assert second.decoder.decoding is not third.decoder.decoding  # type: ignore[attr-defined]


def test_one_robot_s_bad_frame_is_its_own() -> None:
    """A frame whose numbers are no numbers ends one answer; the others are what they are alone."""
    first = engine_of(tiny(), "speculative")
    good, bad = first.session(), first.session()
    for engine in (good, bad):
        engine.reset(TEXTS[0])
    together: Batched[str, Inference | None] = Batched((InvalidAction,))

    def broken():  # type: ignore[no-untyped-def]
        running = pieces(bad, 1, 0)
        given = None
        try:
            while True:
                given = yield running.send(given)
                if isinstance(given, tuple) and given[0].is_floating_point():
                    given = tuple(part * float("nan") for part in given)
        except StopIteration as done:
            return done.value

    together.add("bad", broken())
    together.add("good", pieces(good, 1, 0))
    found: dict[str, object] = {}
    while len(together):
        found |= dict(together.turn())
    assert isinstance(found["bad"], InvalidAction)
    lone = first.session()
    lone.reset(TEXTS[0])
    same(found["good"], alone(pieces(lone, 1, 0)))  # type: ignore[arg-type]


FLOW = {
    "pi0-small": ["", "guided"],
    "pi05-small": ["guided"],
    "smolvla-small": ["guided", "guided_vjp"],
}
CASES = [(preset, rtc) for preset, modes in FLOW.items() for rtc in modes]


@pytest.fixture(scope="module")
def flows() -> Callable[[str, str], Engine]:
    kept: dict[tuple[str, str], Engine] = {}

    def load(preset: str, rtc: str) -> Engine:
        asked = EngineOptions(checkpoint=f"random:{preset}", rtc_mode=rtc)
        if (preset, rtc) not in kept:
            engine = load_engine(asked)
            kept[preset, rtc] = engine
        return kept[preset, rtc]

    return load


def seen(stamp: int, frame: int, before: int | None) -> Observation:
    """A frame of a robot that executes the chunk of the frame ``before``."""
    return replace(
        observation(stamp, FRAMES[frame]),
        wrist_image=FRAMES[-1 - frame],
        proprio=np.random.default_rng(frame).normal(size=STATE_DIM),
        executing=None if before is None else Executing(before, frame % 3, frame % 2 + 1),
    )


@pytest.mark.parametrize(("preset", "rtc"), CASES)
@settings(max_examples=2, deadline=None)
@given(moves=MOVES)
@example(moves=[(0, 2, 1), (1, 2, 2), (2, 1, 4), (0, 2, 5), (1, 1, 6), (2, 2, 7), (0, 0, 8)])
def test_a_flow_policy_s_chunks_are_those_of_a_robot_that_is_alone(
    flows: Callable[[str, str], Engine],
    preset: str,
    rtc: str,
    moves: list[tuple[int, int, int]],
) -> None:
    """Frames of three robots that arrive one turn apart, or together, each with its own noise,
    task and chunk to continue."""
    arrivals(flows(preset, rtc), moves, 1e-5)


def test_a_flow_session_has_the_noise_of_its_seed(
    flows: Callable[[str, str], Engine],
) -> None:
    first = flows("pi0-small", "")
    answers = []
    for seed in (None, None, 5):
        robot = first.session(seed)
        robot.reset(TEXTS[0])
        answers.append(alone(robot.pieces(seen(4, 2, None), now(), CLOCK)))
    one, same_seed, other = answers
    assert one is not None and same_seed is not None and other is not None
    same(one, same_seed)
    assert np.abs(one.actions - other.actions).max() > 1e-3


@pytest.mark.parametrize("preset", ["groot-n1.7-small", "evo1-small", "act-small"])
def test_where_frames_take_turns_they_are_answered_all_the_same(preset: str) -> None:
    engine = load_engine(EngineOptions(checkpoint=f"random:{preset}"))
    arrivals(engine, [(0, 0, 1), (1, 2, 1), (2, 2, 4), (0, 1, 1)], 1e-5)


DRAFTERS = ("head", "model")
PRESETS = (
    "small", "small-oft", "small-chunk", "bitvla-small", "pi0_fast-small", "pi0-small",
    "pi05-small", "smolvla-small", "groot-n1.5-small", "groot-n1.6-small", "groot-n1.7-small",
    "evo1-small", "act-small", "turbovla-small",
)  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        *(*DECODINGS, *DRAFTERS, *PRESETS[::4]),
        *(pytest.param(n, marks=pytest.mark.long) for n in PRESETS if n not in PRESETS[::4]),
    ],
)
def test_a_session_that_ends_leaves_nothing_to_the_garbage_collector(
    loaded: Callable[[str], Engine], name: str, tmp_path: Path
) -> None:
    if name in DECODINGS:
        first = loaded(name)
    elif name in PRESETS:
        first = load_engine(EngineOptions(checkpoint=f"random:{name}"))
    else:
        write_random(tmp_path / "model", tiny_config(), seed=2)
        save_head(tmp_path / "head", recursive_head(tiny_config(), 7))
        folder = str(tmp_path / name)
        first = engine_of(tiny(), "speculative", drafter=name, draft_checkpoint=folder)
    state = np.linspace(-1, 1, first.info.state_dim or 0)

    def play() -> weakref.ref[Engine]:
        robot = first.session()
        for text in TEXTS[:2]:
            robot.reset(text)
            for stamp in range(3):
                frame = replace(seen(stamp, stamp, None), proprio=state)
                alone(robot.pieces(frame, now(), CLOCK))
        return weakref.ref(robot)

    play()  # what is remembered for all sessions: layouts, tables
    ended, left = left_to_collector(play)
    assert ended() is None
    assert left == []
