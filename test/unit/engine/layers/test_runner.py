"""A runner at its edges: lengths of prompts, buckets, what it fits, layers that are tapped."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from support.engine import CPU, Again, tiny, tiny_config
from vla_ros.engine.layers.attention import Backend, PackedAttention
from vla_ros.engine.layers.linear import linear
from vla_ros.engine.layers.pack import PackLayout, chain, prefill_layout
from vla_ros.engine.layers.runner import BUCKET, DecoderRunner, prompt_lengths, resized
from vla_ros.engine.models.openvla import VLAModel
from vla_ros.engine.options import EngineOptions


def model_of(language: str = "llama_gqa", capture: object = None, **options: object) -> VLAModel:
    chosen = EngineOptions(**options)  # type: ignore[arg-type]
    return VLAModel(tiny(tiny_config(language)), CPU, torch.float32, chosen, capture)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def model() -> VLAModel:
    return model_of()


@pytest.mark.parametrize(
    ("patches", "longest", "lengths"),
    [
        (16, 40, (18, 32, 33, 40)),
        (14, 32, (16, 17, 32)),
        (15, 20, (17, 20)),
        (16, 18, (18,)),
        (16, 49, (18, 32, 33, 48, 49)),
    ],
)
def test_prompts_of_these_lengths_meet_both_ends_of_every_bucket(
    patches: int, longest: int, lengths: tuple[int, ...]
) -> None:
    assert prompt_lengths(patches, longest) == lengths


def test_a_prompt_is_cut_or_goes_on_with_its_last_row() -> None:
    prompt = torch.arange(6.0).view(3, 2)
    assert resized(prompt, 2).tolist() == [[0, 1], [2, 3]]
    assert resized(prompt, 3).tolist() == prompt.tolist()
    assert resized(prompt, 4).tolist() == [[0, 1], [2, 3], [4, 5], [4, 5]]
    assert resized(prompt, 5).tolist() == [[0, 1], [2, 3], [4, 5], [4, 5], [4, 5]]


def test_only_a_captured_prefill_is_rounded_up() -> None:
    plain, captured = (model_of(capture=capture).runner(1, 64) for capture in (None, Again()))
    for tokens, rounded in ((1, 16), (15, 16), (16, 16), (17, 32), (32, 32)):
        assert (plain.behind(tokens), captured.behind(tokens)) == (tokens, rounded)


def test_a_prefill_that_sees_all_of_itself_is_never_padded() -> None:
    """Padding would be seen: parallel decoding says the same captured or not."""
    plain, captured = (model_of(capture=capture) for capture in (None, Again()))
    for length in (9, 16, 20):
        prompt = plain.decoder.embed(torch.arange(3, 3 + length))
        layout = PackLayout((0, length - 1), length, causal=False)
        wanted, got = (m.runner(1, 64).logits(layout, prompt, None) for m in (plain, captured))
        torch.testing.assert_close(got, wanted)
        causal = model_of().runner(1, 64).logits(replace(layout, causal=True), prompt, None)
        assert not torch.allclose(wanted[0], causal[0])


@pytest.mark.parametrize(
    ("entries", "length"), [(1, 16), (16, 16), (17, 32), (48, 48), (100, 100), (101, 100)]
)
def test_a_ring_is_as_long_as_what_comes_rounded_up(
    model: VLAModel, entries: int, length: int
) -> None:
    runner = model.runner(1, 100)
    runner.fit(entries)
    assert runner.kv_cache.slot_length == length


def test_a_ring_keeps_its_shape_while_a_request_is_alive_or_a_graph_knows_it(
    model: VLAModel,
) -> None:
    runner, captured = model.runner(1, 96), model_of(capture=Again()).runner(1, 96)
    kernel = model.runner(1, 96)
    kernel.backend = Backend(PackedAttention)  # which reads no slot to its end
    slot = runner.kv_cache.acquire()
    for each in (runner, captured, kernel):
        each.fit(33)
        assert each.kv_cache.slot_length == 96
    runner.kv_cache.release(slot)
    runner.fit(33)
    assert runner.kv_cache.slot_length == 48


def test_another_length_makes_new_plans_and_the_same_one_keeps_them(model: VLAModel) -> None:
    runner, prompt = model.runner(1, 100), model.decoder.embed(torch.arange(3, 23))
    layout = prefill_layout(20, (19,))
    runner.fit(40)
    wanted = runner.run(layout, prompt, None)[1].tolist()
    assert runner.planner.built == 1
    runner.fit(45)
    runner.run(layout, prompt, None)
    assert runner.planner.built == 1
    runner.fit(100)
    assert runner.planner.built == 0
    assert runner.run(layout, prompt, None)[1].tolist() == pytest.approx(wanted)
    tail = PackLayout((0,), tail=chain(0, 20, 1))
    got = runner.run(tail, None, torch.tensor([7]))[1].tolist()
    again = model.runner(1, 100)
    again.run(layout, prompt, None)
    assert again.run(tail, None, torch.tensor([7]))[1].tolist() == pytest.approx(got)


@pytest.mark.parametrize("graphs", [False, True])
def test_layers_that_are_tapped_give_what_the_rows_made_of_them(graphs: bool) -> None:
    """In the order asked for, of ``run``, of ``logits``, and of passes that feed each other."""
    model = model_of(capture=Again() if graphs else None)
    runner = model.runner(1, 64, None, (0, 1))
    plain = model_of().runner(1, 64)
    assert runner.tapped is None
    prompt = model.decoder.embed(torch.arange(3, 12))
    layout = prefill_layout(9, (4, 8))
    choices, maxima = runner.run(layout, prompt, None)
    first = runner.tapped
    assert first is not None
    assert first.shape == (2, 2 * 64)
    wanted = plain.run(layout, prompt, None)
    assert choices.tolist() == wanted[0].tolist()
    torch.testing.assert_close(maxima, wanted[1])
    first = first.clone()
    logits = runner.logits(layout, prompt, None)
    assert runner.tapped is not None
    torch.testing.assert_close(runner.tapped, first)
    torch.testing.assert_close(logits.amax(-1), maxima)
    others = model.runner(1, 64, None, (1,))
    others.run(layout, prompt, None)
    assert others.tapped is not None
    torch.testing.assert_close(others.tapped, first[:, 64:])
    assert plain.tapped is None
    follow = tuple(PackLayout((0,), tail=chain(0, 9 + n, 1)) for n in range(3))
    said, _ = runner.follow(follow, choices[1:])
    assert runner.tapped.shape == (3, 2 * 64)
    assert said.tolist() == plain.follow(follow, choices[1:])[0].tolist()


@pytest.mark.parametrize("window", [None, range(704, 960), range(3, 30)])
def test_passes_that_feed_each_other_choose_within_the_window(
    model: VLAModel, window: range | None
) -> None:
    runner, whole = model.runner(1, 64, window), model.runner(1, 64)
    prompt = model.decoder.embed(torch.arange(3, 12))
    token, _ = runner.run(prefill_layout(9, (8,)), prompt, None)
    whole.run(prefill_layout(9, (8,)), prompt, None)
    said, peaks = runner.follow(
        tuple(PackLayout((0,), tail=chain(0, 9 + n, 1)) for n in range(4)), token
    )
    for place in range(4):
        layout = PackLayout((0,), tail=chain(0, 9 + place, 1))
        logits = whole.logits(layout, None, token)[0].clone()
        if window is not None:
            outside = torch.ones(len(logits), dtype=torch.bool)
            outside[window.start : window.stop] = False
            logits[outside] = float("-inf")
        assert said[place] == logits.argmax()
        torch.testing.assert_close(peaks[place], logits.max())
        token = said[place : place + 1]


def test_hidden_states_are_those_the_logits_come_from(model: VLAModel) -> None:
    runner, x = model.runner(1, 32), model.decoder.embed(torch.arange(3, 12))
    layout = prefill_layout(9, (2, 8))
    states = runner.hidden(layout, x)
    assert states.shape == (2, 64)
    assert not states.requires_grad and states.is_inference()
    logits = linear(states, model.decoder.head)
    torch.testing.assert_close(runner.logits(layout, x, None), logits)


def test_attention_is_made_once_for_a_plan_that_comes_again(model: VLAModel) -> None:
    """Eager: what it takes from a plan is taken once. Captured: its plan changes under it."""
    made = []

    def make(kv_cache, plan):  # type: ignore[no-untyped-def]
        made.append(plan)
        return PackedAttention(kv_cache, plan)

    for capture, count in ((None, 2), (lambda f: f, 5)):
        runner = model.runner(1, 64)
        own = DecoderRunner(model.decoder, runner.kv_cache, Backend(make), capture)
        made.clear()
        for entry in (5, 5, 9, 5, 9):
            own.run(PackLayout((0,), tail=chain(0, entry, 1)), None, torch.tensor([entry]))
        if capture is None:
            assert len(made) == count
        else:
            assert len(made) >= count
    assert BUCKET == 16


def test_a_layout_that_brings_its_padding_keeps_it(model: VLAModel) -> None:
    tokens = torch.arange(3, 12)
    padded = PackLayout((6,), 7, pad=2)
    got = model.runner(1, 64).logits(padded, model.decoder.embed(tokens), None)
    wanted = model.runner(1, 64).logits(
        prefill_layout(7, (6,)), model.decoder.embed(tokens[:7]), None
    )
    torch.testing.assert_close(got, wanted)
