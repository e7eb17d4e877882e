"""A pack gives every token what a dense forward pass over its own sequence gives it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.engine import CPU, tiny, tiny_config
from vla_ros.engine.decoding.draft_tree import branches
from vla_ros.engine.layers.pack import PackLayout, TailToken, branching, chain, prefill_layout
from vla_ros.engine.layers.runner import DecoderRunner
from vla_ros.engine.models.openvla import VLAModel
from vla_ros.engine.options import EngineOptions
from vla_ros_lab.hugging_face import build_causal_lm

LANGUAGES = ["llama_mha", "llama_gqa", "qwen2_tied"]
ATTENTIONS = ["auto", "torch"]


def model_of(
    language: str, attention: str = "auto", capture: object = None, **options: object
) -> VLAModel:
    chosen = EngineOptions(attention=attention, **options)  # type: ignore[arg-type]
    return VLAModel(tiny(tiny_config(language)), CPU, torch.float32, chosen, capture)  # type: ignore[arg-type]


def dense(model: VLAModel, tokens: list[int]) -> torch.Tensor:
    """transformers' logits [T, V] of a plain sequence."""
    with torch.inference_mode():
        lm = build_causal_lm(model.config.text, model.unpacked())
        out: torch.Tensor = lm(torch.tensor([tokens])).logits[0]
    return out


def embed(model: VLAModel, tokens: list[int]) -> torch.Tensor:
    return model.decoder.embed(torch.tensor(tokens))


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("language", LANGUAGES)
def test_prefill_equals_transformers(language: str) -> None:
    model, tokens = model_of(language), list(range(5, 25))
    runner = model.runner(1, 32)
    logits = runner.logits(prefill_layout(20, tuple(range(20))), embed(model, tokens), None)
    close(logits, dense(model, tokens))


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("language", LANGUAGES)
def test_every_part_of_a_mixed_pack_equals_its_own_sequence(language: str, attention: str) -> None:
    """A fresh prefill, a single token of one request and a chain of three of another."""
    model = model_of(language, attention)
    runner = model.runner(3, 32)
    one, two, fresh = list(range(3, 13)), list(range(40, 47)), list(range(70, 79))
    for slot, tokens in ((0, one), (2, two)):
        runner.logits(prefill_layout(len(tokens), (0,), slot), embed(model, tokens), None)
    layout = PackLayout(
        rows=tuple(range(13)), prefill=9, slot=1,
        tail=(*chain(2, 7, 3), *chain(0, 10, 1)),
    )  # fmt: skip
    logits = runner.logits(layout, embed(model, fresh), torch.tensor([100, 101, 102, 200]))
    close(logits[:9], dense(model, fresh))
    close(logits[9:12], dense(model, [*two, 100, 101, 102])[7:])
    close(logits[12], dense(model, [*one, 200])[-1])


def test_a_greedy_pass_gives_choices_and_their_logits() -> None:
    """Over all tokens, or over a window of them."""
    model, tokens = model_of("llama_mha"), list(range(5, 25))
    layout = prefill_layout(20, tuple(range(10, 20)))
    wanted = dense(model, tokens)[10:]
    for window in (None, range(704, 960), range(3, 30)):
        runner = model.runner(1, 32, window)
        choices, maxima = runner.run(layout, embed(model, tokens), None)
        where = slice(None) if window is None else slice(window.start, window.stop)
        best = wanted[:, where].max(-1)
        assert choices.tolist() == (best.indices + (where.start or 0)).tolist()
        close(maxima, best.values)
        close(runner.logits(layout, embed(model, tokens), None), wanted[:, where])


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("graphs", [False, True])
def test_a_draft_tree_sees_its_own_branch_only(attention: str, graphs: bool) -> None:
    model = model_of("llama_gqa", attention, capture=(lambda f: f) if graphs else None)
    runner = model.runner(1, 32)
    prompt, n = list(range(3, 13)), 10
    runner.logits(prefill_layout(n, (0,)), embed(model, prompt), None)
    seen = tuple(range(n))
    tail = (
        TailToken(0, 10, 10, (*seen, 10)),  # 50
        TailToken(0, 11, 10, (*seen, 11)),  # its sibling 60
        TailToken(0, 12, 11, (*seen, 10, 12)),  # 70 behind 50
        TailToken(0, 13, 11, (*seen, 11, 13)),  # 80 behind 60
    )
    layout = PackLayout(rows=(0, 1, 2, 3), tail=tail)
    other = PackLayout(rows=(0, 1, 2, 3), tail=(*tail[:3], TailToken(0, 13, 11, (*seen, 10, 13))))
    runner.logits(other, None, torch.tensor([50, 60, 70, 80]))  # of the same shape, another tree
    logits = runner.logits(layout, None, torch.tensor([50, 60, 70, 80]))
    close(logits[2], dense(model, [*prompt, 50, 70])[-1])
    close(logits[3], dense(model, [*prompt, 60, 80])[-1])
    runner.kv_cache.move(0, torch.tensor([11, 13]), torch.tensor([10, 11]))  # accept 60, 80
    after = runner.logits(PackLayout(rows=(0,), tail=chain(0, 12, 1)), None, torch.tensor([90]))
    close(after[0], dense(model, [*prompt, 60, 80, 90])[-1])


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_draft_tree_behind_the_prompt_in_its_own_pass(
    language: str, attention: str, graphs: bool
) -> None:
    """Every node sees the prompt and its branch; a prompt's padding is seen by none."""
    model = model_of(language, attention, capture=(lambda f: f) if graphs else None)
    runner = model.runner(1, 64)
    prompt, tokens = list(range(3, 13)), [50, 60, 70, 80, 90]
    parents = (-1, -1, 1, 2, 0)
    start = runner.behind(len(prompt))
    assert start == (16 if graphs else 10)
    tail = branching(0, start, len(prompt), branches(parents))
    layout = PackLayout(rows=tuple(range(9, 15)), prefill=10, tail=tail)
    logits = runner.logits(layout, embed(model, prompt), torch.tensor(tokens))
    close(logits[0], dense(model, prompt)[-1])
    for row, branch in enumerate(branches(parents), 1):
        close(logits[row], dense(model, [*prompt, *(tokens[n] for n in branch)])[-1])
    runner.kv_cache.move(
        0, torch.tensor([start + n for n in (1, 2, 3)]), torch.tensor([10, 11, 12])
    )
    after = runner.logits(PackLayout(rows=(0,), tail=chain(0, 13, 1)), None, torch.tensor([99]))
    close(after[0], dense(model, [*prompt, 60, 70, 80, 99])[-1])


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_pack_equals_its_sequences_and_reads_nothing_else(data: st.DataObject) -> None:
    """Random requests in random slots, everything else in the KV cache poisoned."""
    model = model_of("llama_gqa", data.draw(st.sampled_from(ATTENTIONS)))
    slots = data.draw(st.integers(2, 4))
    runner = model.runner(slots, 24)
    for slot in range(slots):
        runner.kv_cache.fill(slot, 1e6)
    known = {}
    for slot in range(slots - 1):
        length = data.draw(st.integers(2, 10))
        known[slot] = data.draw(st.lists(st.integers(0, 900), min_size=length, max_size=length))
        runner.logits(prefill_layout(length, (0,), slot), embed(model, known[slot]), None)
    tail: list[TailToken] = []
    fed: dict[int, list[int]] = {}
    for slot, tokens in known.items():
        fed[slot] = data.draw(st.lists(st.integers(0, 900), max_size=4))
        tail += chain(slot, len(tokens), len(fed[slot]))
    fresh = data.draw(st.lists(st.integers(0, 900), min_size=1, max_size=8))
    total = len(fresh) + len(tail)
    layout = PackLayout(tuple(range(total)), len(fresh), slots - 1, tuple(tail))
    ids = [t for tokens in fed.values() for t in tokens]
    logits = runner.logits(layout, embed(model, fresh), torch.tensor(ids) if ids else None)
    close(logits[: len(fresh)], dense(model, fresh))
    row = len(fresh)
    for slot, tokens in known.items():
        count = len(fed[slot])
        if count:
            close(logits[row : row + count], dense(model, [*tokens, *fed[slot]])[-count:])
        row += count


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_padding_to_a_bucket_and_static_buffers_change_nothing(attention: str) -> None:
    """The path of CUDA graphs, with a capture that only runs the function again."""
    shapes = []

    def capture(function):  # type: ignore[no-untyped-def]
        shapes.append(function()[0].shape)
        return function

    plain = model_of("llama_mha")
    graphed = model_of("llama_mha", capture=capture, attention=attention)
    runners: list[DecoderRunner] = [m.runner(2, 48) for m in (plain, graphed)]
    for length in (17, 20, 30, 33):
        prompt = list(range(3, 3 + length))
        draft = torch.tensor([800, 801])
        results = []
        for model, runner in zip((plain, graphed), runners, strict=True):
            layout = PackLayout((length - 1, length, length + 1), length + 2, slot=0)
            first = runner.logits(layout, embed(model, prompt), draft).clone()
            tail = PackLayout(rows=(0, 1), tail=chain(0, length + 1, 2))
            second = runner.logits(tail, None, torch.tensor([802, 803])).clone()
            results.append(torch.cat((first, second)))
        close(results[1], results[0])
    # Lengths 19, 22, 32 share a bucket, 35 has its own; wherever a tail lies, it has one shape.
    assert len(shapes) == 3
