"""The next frame is seen while a pass runs: when, which, and that no token and no age is worse.

With stand-ins: a clock that moves by steps, answers that are under way, a stream that writes down
what it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from support.engine import TEXTS, engine_of, observation, stream, tiny, tiny_config
from vla_ros.core.clock import MS
from vla_ros.core.types import Inference, Observation, Timeline
from vla_ros.engine import Engine
from vla_ros.engine.decoding.prefetch import ObservationEncoder, Prefetcher
from vla_ros.engine.layers.request import Underway

PASS, LOOK, HOST = 9 * MS, 2 * MS, 1 * MS


@dataclass
class Clock:
    """Moves by 0.1 ms whenever it is read."""

    ns: int = 0

    def steady_ns(self) -> int:
        self.ns += MS // 10
        return self.ns

    def now_ns(self) -> int:
        return self.ns


@dataclass
class UnderWay:
    """An answer that arrives at a time."""

    clock: Clock
    at: int

    def arrived(self) -> bool:
        return self.clock.ns >= self.at

    def read(self) -> None:
        return None


@dataclass
class Beside:
    """A stand-in for a stream apart."""

    log: list[str] = field(default_factory=list)

    def run(self, function: Callable[[], Any], behind: bool) -> Any:
        self.log.append("see" if behind else "see ahead")
        return function()

    def join(self, tensors: Iterable[torch.Tensor]) -> None:
        assert all(isinstance(tensor, torch.Tensor) for tensor in tensors)
        self.log.append("join")


class Scene:
    """Passes of 9 ms and vision of 2 ms, of which the host is busy with 1."""

    def __init__(self, look: int = LOOK, host: int = HOST) -> None:
        self.clock, self.apart, self.seen_at = Clock(), Beside(), []
        engine = engine_of(tiny(), "actionflow")
        self.encoder = ObservationEncoder(engine.model, self._pixels(engine, host), beside=False)
        self.encoder.apart = self.apart  # type: ignore[assignment]
        self.prefetcher = Prefetcher(self.encoder)
        for stamp in range(5):
            self.encoder.encode(frame(stamp), Timeline(0), self.clock)
            self.prefetcher.learn(Timeline(0).mark("preprocess", look // 2).mark("vision", look))
            self.prefetcher.meanwhile(UnderWay(self.clock, self.clock.ns + PASS), self.clock)
        self.apart.log.clear()
        self.seen_at.clear()

    def _pixels(self, engine: Engine, host: int) -> Callable[[Observation], Any]:
        def pixels(observation: Observation) -> Any:
            self.seen_at.append((observation.stamp_ns, self.clock.ns))
            self.clock.ns += host
            if observation.stamp_ns == BROKEN:
                raise ValueError("this frame is broken")
            return engine.prepare(observation)

        return pixels

    def wait(self, coming: Callable[[int], Observation | None]) -> list[tuple[int, float]]:
        """A pass; ``coming`` says what waits, by ns since its submission. What was seen, when (ms
        since then), and whether the answer was read late."""
        begun = self.clock.ns
        self.prefetcher.watch(lambda: coming(self.clock.ns - begun))
        self.prefetcher.meanwhile(UnderWay(self.clock, begun + PASS), self.clock)
        self.late_ms = (self.clock.ns - begun - PASS) / MS
        seen = [(stamp, (at - begun) / MS) for stamp, at in self.seen_at]
        self.seen_at.clear()
        return seen


BROKEN = 666


def frame(stamp: int, number: int = 0, count: int = 1) -> Observation:
    """One of a stream of frames, received at the beginning of the clock's time."""
    image = stream(count, {}, seed=stamp if count == 1 else 7)[number].image
    return replace(observation(stamp, image), received_steady_ns=0)


def test_a_waiting_frame_is_seen_so_late_that_it_is_just_done_with_the_pass() -> None:
    scene, newest = Scene(), [frame(10), frame(11)]
    seen = scene.wait(lambda ns: newest[ns > 5 * MS])
    ((stamp, at),) = seen
    assert stamp == 11  # which came in the pass
    assert 9 - 2 - 0.6 <= at <= 9 - 2 + 0.6
    assert scene.late_ms < 0.3
    assert scene.apart.log == ["see ahead"]


def test_a_frame_that_comes_later_is_seen_as_it_comes_if_the_host_has_the_time() -> None:
    scene, late = Scene(), frame(10)
    ((_, at),) = scene.wait(lambda ns: late if ns > 7.4 * MS else None)
    assert 7.4 <= at <= 7.8
    assert scene.wait(lambda ns: late if ns > 8.4 * MS else None) == []  # the host has no 1 ms
    assert scene.late_ms < 0.3


def test_no_answer_waits_for_a_host_that_takes_longer_than_a_pass() -> None:
    """As LIBERO's JPEG step may: then all is as without looking ahead."""
    scene, waiting = Scene(look=22 * MS, host=20 * MS), frame(10)
    assert scene.wait(lambda ns: waiting) == []
    assert scene.late_ms < 0.3


def test_nothing_is_seen_ahead_before_anything_is_known() -> None:
    scene, waiting = Scene(), frame(10)
    scene.prefetcher = Prefetcher(scene.encoder)
    assert scene.wait(lambda ns: waiting) == []


def test_what_was_seen_ahead_is_taken_for_that_very_frame_only() -> None:
    scene, waiting = Scene(), frame(10)
    scene.wait(lambda ns: waiting)
    newer = frame(11)
    scene.encoder.encode(newer, Timeline(0), scene.clock)
    assert scene.apart.log == ["see ahead", "see", "join"]
    scene.encoder.encode(waiting, Timeline(0), scene.clock)  # it was dropped
    assert scene.apart.log[3:] == ["see", "join"]


def test_the_timeline_of_a_frame_seen_ahead_says_when_that_was() -> None:
    scene, waiting = Scene(), frame(10)
    scene.wait(lambda ns: waiting)
    done = scene.clock.ns
    seen = scene.encoder.encode(waiting, Timeline(0).mark("queue", done), scene.clock)
    marks = seen.stages.resolve().marks
    assert [stage for stage, _ in marks] == ["queue", "preprocess", "vision", "queue"]
    assert all(one[1] <= other[1] for one, other in zip(marks, marks[1:], strict=False))
    assert marks[2][1] <= done <= marks[3][1]


def test_a_broken_frame_is_its_own_calls_fault() -> None:
    scene, broken = Scene(), frame(BROKEN)
    assert [stamp for stamp, _ in scene.wait(lambda ns: broken)] == [BROKEN]
    with pytest.raises(ValueError, match="broken"):
        scene.encoder.encode(broken, Timeline(0), scene.clock)


class Slow:
    """Choices that take 30 looks to arrive; every look is a moment in which frames come."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        init = Underway.__init__

        def begin(underway: Underway, numbers: torch.Tensor) -> None:
            init(underway, numbers)
            self.left = 30

        def arrived(_: Underway) -> bool:
            self.left -= 1
            return self.left < 0

        monkeypatch.setattr(Underway, "__init__", begin)
        monkeypatch.setattr(Underway, "arrived", arrived)


def play(engine: Engine, clock: Clock, frames: list[Observation], texts: dict[int, str],
         waiting: Callable[[int], Observation | None]) -> dict[int, Inference]:  # fmt: skip
    """Answers by stamp; ``waiting`` says which frame waits while this one is answered."""
    out, now = {}, [0]
    engine.watch(lambda: waiting(now[0]))
    for number, seen in enumerate(frames):
        now[0] = number
        if number in texts:
            engine.reset(texts[number])
        answer = engine.step(seen, Timeline(clock.ns).mark("queue", clock.ns), clock)
        if answer is not None:
            out[answer.stamp_ns] = answer
    return out


@pytest.mark.parametrize("language", ["llama_gqa", "qwen2_tied"])
def test_every_token_is_that_of_generate_whatever_was_seen_ahead(
    language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames that were seen ahead and asked for, seen ahead and replaced, and not seen; two
    instructions."""
    frames = [frame(stamp, stamp, 40) for stamp in range(40)]
    texts = {0: TEXTS[0], 22: TEXTS[1]}
    config = tiny_config(language, "fused")
    expected = play(engine_of(tiny(config), "generate"), Clock(), frames, texts, lambda n: None)
    engine, clock = engine_of(tiny(config), "actionflow"), Clock()
    Slow(monkeypatch)
    engine.encoder.apart = apart = Beside()  # type: ignore[assignment]
    for _ in range(9):
        engine.encoder.host.add(0)

    def waiting(number: int) -> Observation | None:
        if number % 3 == 0 or number + 2 >= len(frames):
            return None
        return frames[number + 1 + (number % 3 == 2)]  # the next one, or a later one

    answers = play(engine, clock, frames, texts, waiting)
    assert len(answers) == 40 - 2 * 6
    assert {s: a.tokens for s, a in answers.items()} == {s: expected[s].tokens for s in answers}
    assert apart.log.count("see ahead") > 10
    assert apart.log.count("see") > 10
    for answer in answers.values():
        assert all(ms >= 0 for ms in answer.timeline.durations_ms().values())


def test_a_reset_drops_what_was_seen_under_the_old_instruction() -> None:
    engine = engine_of(tiny(), "actionflow")
    engine.encoder.apart = apart = Beside()  # type: ignore[assignment]
    engine.reset(TEXTS[0])
    waiting, clock = frame(1), Clock()
    engine.encoder.prefetch(waiting, clock)
    engine.reset(TEXTS[1])
    engine.step(waiting, Timeline(0), clock)
    assert apart.log == ["see ahead", "see", "join"]


def test_an_answer_without_a_next_frame_comes_as_soon_as_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, clock = engine_of(tiny(), "actionflow"), Clock()
    frames = [frame(stamp) for stamp in range(9)]
    Slow(monkeypatch)
    engine.encoder.apart = Beside()  # type: ignore[assignment]
    answers = play(engine, clock, frames, {0: TEXTS[0]}, lambda number: None)
    assert sorted(answers) == [0, 1, 2]  # of the calls 7, 8 and 9, as ever


@pytest.mark.parametrize("decoding", ["autoregressive", "speculative", "actionflow"])
def test_on_a_cpu_nothing_is_looked_at_ahead(decoding: str) -> None:
    engine = engine_of(tiny(), decoding)
    engine.watch(lambda: pytest.fail("nobody has the time"))
    engine.reset(TEXTS[0])
    for stamp in range(9):
        engine.step(frame(stamp), Timeline(0), Clock())
    assert engine.encoder.apart is None
