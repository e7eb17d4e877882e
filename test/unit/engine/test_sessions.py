"""Sessions: several robots on one set of weights, alone and side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.engine import CLOCK, engine_of, images, observation, tiny, tiny_config
from vla_ros.core.types import Inference, Timeline
from vla_ros.engine.decoding.pieces import Together, alone
from vla_ros.engine.decoding.runner import DecoderRunner
from vla_ros.engine.engine import Engine
from vla_ros.engine.errors import InvalidAction

TEXTS = ("pick up the red cube", "put the bowl on the plate and go back", "stop")
FRAMES = list(images(12, seed=3))


def now() -> Timeline:
    start = CLOCK.steady_ns()
    return Timeline(start).mark("queue", start)


def pieces(engine: Engine, stamp: int, frame: int):  # type: ignore[no-untyped-def]
    return engine.pieces(observation(stamp, FRAMES[frame % len(FRAMES)]), now(), CLOCK)


@dataclass
class Robot:
    """A session that is batched, and one of its own that is not."""

    batched: Engine
    lone: Engine
    busy: bool = False
    wanted: Inference | None = None
    stamps: list[int] = field(default_factory=list)


def same(one: Inference | None, other: Inference | None, within: float = 0.0) -> None:
    assert (one is None) == (other is None)
    if one is None or other is None:
        return
    assert not isinstance(one, Exception), one
    assert one.stamp_ns == other.stamp_ns
    assert one.tokens == other.tokens
    assert one.target_passes == other.target_passes
    assert (one.drafted, one.accepted) == (other.drafted, other.accepted)
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
    together: Together[int, Inference | None] = Together((InvalidAction,))

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
        robot.wanted = alone(pieces(robot.lone, stamp, frame))
        together.add(who, pieces(robot.batched, stamp, frame))
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
    together: Together[int, Inference | None] = Together((InvalidAction,))
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
    assert second.decoding is not third.decoding  # type: ignore[attr-defined]


def test_one_robot_s_bad_frame_is_its_own() -> None:
    """A frame whose numbers are no numbers ends one answer; the others are what they are alone."""
    first = engine_of(tiny(), "speculative")
    good, bad = first.session(), first.session()
    for engine in (good, bad):
        engine.reset(TEXTS[0])
    together: Together[str, Inference | None] = Together((InvalidAction,))

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
