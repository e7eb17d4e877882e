"""Which product is taken for which number of rows: the fastest that gives the same, and never a
trial while a robot waits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from support.engine import CPU, TEXTS, Again, engine_of, play, stream, tiny, tiny_config
from support.launches import Always, launches, stand_in
from support.tuned import MadeUp
from vla_ros.engine.layers.devices import warn_once
from vla_ros.engine.layers.linear import linear, plain, rows_of
from vla_ros.engine.layers.tiles import FEW, Gemv, Tile, Way, ways
from vla_ros.engine.layers.tuner import (
    PRODUCT,
    TORCH,
    KernelChoice,
    TunedWeight,
    Tuner,
    choose_tuner,
)
from vla_ros.engine.models import openvla as model
from vla_ros.engine.models import transformer
from vla_ros.engine.models.language import llama
from vla_ros.engine.models.language.llama import STEPS

ONE = [str(way) for way in ways(1, torch.bfloat16)]
MANY = [str(way) for way in ways(300, torch.bfloat16)]


def weight(count: int = 24, width: int = 40, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed)).bfloat16()


def given(rows: int, width: int = 40) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(9)).bfloat16()


def chosen(made: MadeUp, tuned: TunedWeight, rows: int) -> str:
    """What is taken for so many rows, asked as a pass that is being captured asks."""
    out = made.tuner.while_capturing(Again())(lambda: (linear(given(rows), tuned),))()
    made.last = TORCH
    assert torch.equal(linear(given(rows), tuned), out[0])
    torch.testing.assert_close(out[0], F.linear(given(rows), tuned.values), rtol=0.02, atol=0.1)
    return made.last


def test_the_fastest_way_is_taken_and_told() -> None:
    made = MadeUp({TORCH: 5e-6, ONE[1]: 4e-6, ONE[2]: 3e-6, MANY[3]: 4e-6})
    tuned = made.tuner.of(weight())
    assert chosen(made, tuned, 1) == ONE[2]
    assert chosen(made, tuned, 300) == MANY[3]
    one, many = made.tuner.choices
    assert one == KernelChoice(1, 24, 40, ONE[2], pytest.approx(3.0), pytest.approx(5.0))
    assert many == KernelChoice(304, 24, 40, MANY[3], pytest.approx(4.0), pytest.approx(5.0))
    assert made.timed == [TORCH, *ONE, TORCH, *MANY]


@pytest.mark.parametrize(("seconds", "taken"), [(4.84e-6, "GEMV 4x512"), (4.86e-6, TORCH)])
def test_what_is_hardly_faster_stays_with_torch(seconds: float, taken: str) -> None:
    made = MadeUp({TORCH: 5e-6, ONE[0]: seconds})
    assert chosen(made, made.tuner.of(weight()), 1) == taken
    (choice,) = made.tuner.choices
    assert (choice.way, choice.us) == (taken, pytest.approx(min(seconds, 5e-6) * 1e6, abs=0.15))


def test_nothing_is_timed_but_while_a_pass_is_captured() -> None:
    made = MadeUp({ONE[0]: 1e-6})
    tuned = made.tuner.of(weight())
    assert torch.equal(linear(given(1), tuned), F.linear(given(1), tuned.values))
    assert made.timed == [] and made.tuner.choices == []
    assert chosen(made, tuned, 1) == ONE[0]
    timed = list(made.timed)
    linear(given(1), tuned)  # outside a capture what is known is taken
    assert (made.last, made.timed) == (ONE[0], timed)
    linear(given(2), tuned)
    assert made.timed == timed


def test_a_capture_that_fails_ends_the_trials() -> None:
    made = MadeUp({})
    tuned = made.tuner.of(weight())

    def fails() -> tuple[torch.Tensor, ...]:
        raise MemoryError

    with pytest.raises(MemoryError):
        made.tuner.while_capturing(Again())(fails)
    linear(given(1), tuned)
    assert made.timed == []


def test_ways_that_fail_or_say_something_else_are_left_out_for_good(
    caplog: pytest.LogCaptureFixture,
) -> None:
    warn_once.cache_clear()
    made = MadeUp({ONE[0]: 1e-6, ONE[1]: 2e-6, ONE[2]: 3e-6}, broken=(ONE[0],), wrong=(ONE[1],))
    assert chosen(made, made.tuner.of(weight()), 1) == ONE[2]
    assert {(kind, str(way)) for kind, way in made.tuner.unfit} == {
        (PRODUCT, ONE[0]),
        (PRODUCT, ONE[1]),
    }
    assert caplog.messages == [
        f"GEMM: {ONE[0]} is left out (RuntimeError: out of resource: shared memory)",
        f"GEMM: {ONE[1]} is left out (ValueError: its result is off by 0.1)",
    ]
    assert ONE[0] not in made.timed and ONE[1] not in made.timed
    asked = len(made.asked)
    assert chosen(made, made.tuner.of(weight(8, 40)), 1) == ONE[2]
    assert {name for name, _ in made.asked[asked:]}.isdisjoint(ONE[:2])


def test_rows_are_told_apart_up_to_a_tile_and_then_in_steps() -> None:
    made = MadeUp({})
    tuned = made.tuner.of(weight())
    for rows in (1, 2, FEW, FEW + 1, 32, 33, 48):
        chosen(made, tuned, rows)
    assert [choice.rows for choice in made.tuner.choices] == [1, 2, 16, 32, 48]
    assert {rows for name, rows in made.asked if name in MANY} == {32, 48}


def test_weights_of_one_shape_are_timed_together_until_the_cache_is_cold() -> None:
    """Each is 24 x 40 x 2 bytes."""
    for cold, products in ((0, 1), (1920, 1), (1921, 2), (5000, 3), (10**9, 4)):
        made = MadeUp({}, cold=cold)
        all_of_them = [made.tuner.of(weight(seed=n)) for n in range(4)]
        made.tuner.of(weight(8, 40))
        chosen(made, all_of_them[2], 1)
        calls = [name for name, _ in made.asked].count(ONE[0])
        assert calls == 1 + products  # one of them to see that it is right


def test_float32_is_left_to_torch_where_there_are_many_rows() -> None:
    for rows in (5, 16, 300):
        assert ways(rows, torch.float32) == ()
    assert all(isinstance(way, Gemv) for way in ways(4, torch.float32))
    assert ways(4, torch.bfloat16)[: len(ways(4, torch.float32))] == ways(4, torch.float32)


def test_a_tuned_weight_is_a_weight() -> None:
    made = MadeUp({ONE[0]: 1e-6})
    tuned, bias = made.tuner.of(weight()), weight(24, 1)[:, 0]
    assert len(tuned) == 24 and plain(tuned) is tuned.values
    x = given(6).view(2, 3, 40)
    assert torch.equal(linear(x, tuned, bias), F.linear(x, tuned.values, bias))
    some = rows_of(tuned, range(3, 9))
    assert torch.equal(plain(some), tuned.values[3:9])
    assert chosen(made, some, 1) == ONE[0]  # type: ignore[arg-type]
    assert rows_of(tuned, range(24)) is tuned


@pytest.mark.parametrize("language", ["llama_gqa", "qwen2_tied"])
@pytest.mark.parametrize(
    ("decoding", "more"),
    [
        ("autoregressive", {}),
        ("actionflow", {}),
        ("speculative", {"drafter": "temporal"}),
        ("speculative", {"drafter": "temporal_tree"}),
    ],
)
def test_an_engine_says_the_same_in_any_way_and_times_nothing_in_service(
    language: str, decoding: str, more: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vla_ros.engine.decoding.tokens.MAX_TEXT", 64)
    made = MadeUp({ONE[0]: 1e-6})
    monkeypatch.setattr(model, "choose_tuner", lambda device, dtype: made.tuner)
    checkpoint = tiny(tiny_config(language), dim=4, seed=1)
    events = stream(6, {0: TEXTS[0], 3: TEXTS[2]})
    engine = engine_of(checkpoint, decoding, Again(), gemm="auto", **more)
    play(engine, stream(1, {0: TEXTS[1]}))  # before the first answer all shapes are captured
    timed, asked = len(made.timed), len(made.asked)
    tuned = play(engine, events)
    assert len(made.timed) == timed > 0
    assert len(made.asked) > asked  # what was chosen is what multiplies
    assert {choice.way for choice in made.tuner.choices} >= {ONE[0]}
    other = engine_of(checkpoint, decoding, Again(), gemm="torch", **more)
    assert other.model.tuner is None
    assert [a.tokens for a in play(other, events).values()] == [a.tokens for a in tuned.values()]


class Steps:
    """A step around a product: x + w, whose ways take what their name says."""

    def __init__(self, seconds: dict[Way | None, float]) -> None:
        self.seconds, self.last = seconds, None
        self.tuner = Tuner(lambda way: F.linear, self.watch)
        self.weight = self.tuner.of(weight(6, 6))
        self.given: list[torch.Tensor] = []

    def watch(self, call: Callable[[], object]) -> float:
        call()
        return self.seconds[self.last]

    def run(self, way: Way | None, weight: TunedWeight, x: torch.Tensor) -> torch.Tensor:
        self.last = way
        self.given.append(x)
        return x + weight.values

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.tuner.fastest("sum", self.weight, (x,), self.run, (FAST, SLOW))


FAST, SLOW = Tile(16, 16, 16), Tile(32, 32, 32)


def test_a_step_around_a_product_is_chosen_like_one() -> None:
    step, x = Steps({FAST: 1e-6, SLOW: 2e-6, None: 1.5e-6}), torch.zeros(6, 6).bfloat16()
    assert torch.equal(step(x), step.weight.values)
    assert step.last is None and not step.tuner.choices  # nothing is timed in service
    step.tuner.while_capturing(Again())(lambda: (step(x),))
    assert step.last is FAST
    (choice,) = step.tuner.choices
    assert choice == KernelChoice(6, 6, 6, str(FAST), pytest.approx(1.0), pytest.approx(1.5), "sum")
    tried = [x for x in step.given if x.any()]
    assert len(tried) > 4  # with numbers, where a buffer is still zero
    calls = len(step.given)
    step(x)
    assert step.last is FAST and len(step.given) == calls + 1


@pytest.mark.parametrize("language", ["llama_gqa", "qwen2_tied"])
@pytest.mark.parametrize("decoding", ["autoregressive", "actionflow", "speculative"])
def test_layers_of_a_kernel_a_step_say_the_same(
    language: str, decoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Norms within the products behind them, biases, sums within those before; ways in float32."""
    stand_in(monkeypatch)
    monkeypatch.setattr("vla_ros.engine.decoding.tokens.MAX_TEXT", 64)
    monkeypatch.setattr(transformer, "paired_ways", lambda rows, dtype: (FAST,))
    monkeypatch.setattr(transformer, "sum_ways", lambda rows, dtype: (FAST,))
    tuner = Always()
    monkeypatch.setattr(model, "choose_tuner", lambda device, dtype: tuner)
    checkpoint = tiny(tiny_config(language), dim=4, seed=1)
    events = stream(6, {0: TEXTS[0], 3: TEXTS[2]})
    engine = engine_of(checkpoint, decoding, Again(), gemm="auto")
    tuned = play(engine, events)
    assert any(kind == "layer" and way == STEPS for (kind, *_), way in tuner._taken.items())
    other = play(engine_of(checkpoint, decoding, Again(), gemm="torch"), events)
    assert [a.tokens for a in other.values()] == [a.tokens for a in tuned.values()]


def test_kernels_of_a_layer_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what is not attention: 4 where what lies between products is 3 more."""
    stand_in(monkeypatch)
    monkeypatch.setattr(transformer, "paired_ways", lambda rows, dtype: (FAST,))
    monkeypatch.setattr(transformer, "sum_ways", lambda rows, dtype: (FAST,))
    config = tiny_config("llama_gqa")
    counted = []
    for tuner in (None, Always()):
        tensors = dict(tiny(config, dim=4, seed=1).tensors)
        decoder = llama.LlamaDecoder(config.text, tensors, tuner=tuner)
        x = torch.randn(1, config.text.hidden_size)
        out = torch.randn(1, config.text.heads * config.text.head_dim)

        def layer(decoder: llama.LlamaDecoder = decoder, x=x, out=out) -> tuple[torch.Tensor]:  # type: ignore[no-untyped-def]
            return (decoder._qkv(1, *decoder._rest(0, x, out)),)

        with torch.no_grad():
            (tuner.while_capturing(Again()) if tuner else Again())(layer)
        counted.append(launches(layer).count)
    # torch's add and norm, and SiLU and times, are two each where Triton's are one
    assert counted == [4 + 6, 4]


def test_where_there_is_none() -> None:
    """Without Triton, without graphs, and where the decoder is not ours."""
    assert choose_tuner(CPU, torch.bfloat16) is None
    assert engine_of(tiny(), "autoregressive", Again(), gemm="auto").model.tuner is None
