"""What is captured is fed through buffers that never move: tokens in, tokens out."""

from __future__ import annotations

import torch

from support.engine import CPU, Again, tiny, tiny_config
from vla_ros.engine.layers.pack import PackLayout, chain, prefill_layout
from vla_ros.engine.layers.runner import DecoderRunner
from vla_ros.engine.models.openvla import VLAModel


def runners(slots: int = 1) -> tuple[DecoderRunner, DecoderRunner, Again, VLAModel]:
    """A runner whose passes are captured, and one whose are not."""
    capture = Again()
    captured, plain = (
        VLAModel(tiny(tiny_config("llama_gqa")), CPU, torch.float32, capture=c)
        for c in (capture, None)
    )
    return captured.runner(slots, 64), plain.runner(slots, 64), capture, plain


def alone(entry: int, count: int) -> tuple[PackLayout, ...]:
    return tuple(PackLayout((0,), tail=chain(0, entry + n, 1)) for n in range(count))


def test_passes_that_feed_each_other_are_one_graph_for_prompts_of_all_lengths() -> None:
    captured, plain, capture, model = runners()
    for length in (9, 12, 30, 9):
        prompt = model.decoder.embed(torch.arange(3, 3 + length))
        first = prefill_layout(length, (length - 1,))
        said = []
        for runner in (captured, plain):
            token, _ = runner.run(first, prompt, None)
            said.append((token, *runner.follow(alone(length, 6), token)))
        assert said[0][0].tolist() == said[1][0].tolist()
        assert said[0][1].tolist() == said[1][1].tolist()
        torch.testing.assert_close(said[0][2], said[1][2])
        one_by_one = [said[1][0]]
        for layout in alone(length, 6):
            one_by_one.append(plain.run(layout, None, one_by_one[-1])[0])
        assert torch.cat(one_by_one[1:]).tolist() == said[1][1].tolist()
    assert capture.captured == 2 + 1  # two lengths of prefills, rounded up, and what follows


def test_drafts_go_where_the_prompt_ends_whatever_was_there_before() -> None:
    """One graph for prompts of 20 to 30 tokens with two drafts, even after one of NaN."""
    captured, plain, capture, model = runners()
    draft = torch.tensor([800, 801])
    bad = model.decoder.embed(torch.arange(30)) * float("nan")
    captured.run(prefill_layout(32, (31,)), bad, draft)
    captured.kv_cache.flush(damaged=True)
    for length in (30, 20, 27):
        prompt = model.decoder.embed(torch.arange(3, 3 + length))
        layout = prefill_layout(length + 2, (length + 1,))
        wanted, got = (runner.run(layout, prompt, draft) for runner in (plain, captured))
        torch.testing.assert_close(got[1], wanted[1])
        tail = PackLayout((0, 1), tail=chain(0, length + 2, 2))
        wanted, got = (runner.run(tail, None, draft) for runner in (plain, captured))
        torch.testing.assert_close(got[1], wanted[1])
    assert capture.captured == 2


def test_a_prompt_with_a_draft_and_a_tail_in_one_pass() -> None:
    captured, plain, _, model = runners(2)
    older = model.decoder.embed(torch.arange(50, 60))
    fresh = model.decoder.embed(torch.arange(3, 13))
    layout = PackLayout((9, 10, 11, 12), 12, 1, tail=chain(0, 10, 1))
    found = []
    for runner in (plain, captured):
        runner.run(prefill_layout(10, (9,)), older, None)
        found.append(runner.run(layout, fresh, torch.tensor([800, 801, 802])))
    torch.testing.assert_close(found[0][1], found[1][1])
