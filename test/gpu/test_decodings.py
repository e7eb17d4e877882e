"""On a device, with captured passes: every lossless decoding says in fp32 what `generate` says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support.engine import LANGUAGE, Event, play, stream, tiny_config
from support.gpu import DEVICES
from support.heads import recursive_head
from vla_ros.engine.decoding.draft_head_folder import save_head
from vla_ros.engine.families.openvla import write_random

SCHEDULES = {
    "autoregressive": {},
    "actionflow": {},
    "naive_pipe": {},
    "speculative": {},
    "speculative, fixed shapes": {"fixed_shapes": True},
    "speculative, trees": {"drafter": "temporal_tree"},
    "speculative, draft head": {"drafter": "head", "adaptive_draft": False},
    "speculative, draft model": {"drafter": "model"},
    "vanilla_speculative": {"drafter": "model"},
}
TEXTS = ("push", "pick up the red cube and place it on the plate", "stack it " * 10)
EVENTS = stream(24, {0: TEXTS[0], 8: TEXTS[1], 16: TEXTS[2]}, seed=5)
#: on the CPU, where it is the test that is tried, one kind of language model will do
GPU_MARKS = DEVICES[1].marks  # type: ignore[union-attr]
CASES = [
    ("cpu", "llama_gqa"),
    *(pytest.param("cuda:0", language, marks=GPU_MARKS) for language in LANGUAGE),
]


def options_of(name: str, draft: str) -> tuple[str, dict[str, object]]:
    options: dict[str, object] = dict(SCHEDULES[name])
    if name == "vanilla_speculative" or options.get("drafter") == "model":
        options["draft_checkpoint"] = draft
    if options.get("drafter") == "head":
        save_head(Path(draft) / "head", recursive_head(tiny_config("llama_gqa"), 7, seed=3))
        options["draft_checkpoint"] = str(Path(draft) / "head")
    return name.split(",")[0], options


@pytest.fixture
def draft(tmp_path: Path) -> str:
    write_random(tmp_path, tiny_config("llama_gqa"), seed=9)
    return str(tmp_path)


@pytest.mark.parametrize(("device", "language"), CASES)
@pytest.mark.parametrize("name", SCHEDULES)
def test_it_says_what_generate_says_and_captures_nothing_in_service(
    name: str, language: str, device: str, make_engine, draft: str
) -> None:
    decoding, options = options_of(name, draft)
    config = tiny_config(language, "fused")
    engine = make_engine(config, device, decoding, **options)
    answers = play(engine, EVENTS)
    expected = play(make_engine(config, device, "generate", graphs=False), EVENTS)
    assert len(answers) > 5
    assert {s: a.tokens for s, a in answers.items()} == {s: expected[s].tokens for s in answers}
    assert engine.captures_in_service == 0
    if decoding not in ("generate", "naive_pipe"):
        assert engine.model.captures > 4


@pytest.mark.parametrize("attention", ["auto", "torch"])
@pytest.mark.parametrize(
    "name",
    ["actionflow", "speculative", "speculative, trees", "speculative, draft head"],
)
def test_graphs_say_what_eager_passes_say(
    name: str, attention: str, device: str, make_engine, draft: str
) -> None:
    decoding, options = options_of(name, draft)
    config, options = tiny_config("llama_gqa"), {**options, "attention": attention}
    one, other = (
        play(make_engine(config, device, decoding, graphs, **options), EVENTS)
        for graphs in (True, False)
    )
    assert {s: a.tokens for s, a in one.items()} == {s: a.tokens for s, a in other.items()}


@pytest.mark.parametrize(
    "name", ["autoregressive", "actionflow", "speculative", "speculative, trees"]
)
def test_nobody_waits_for_an_upload(name: str, device: str, make_engine, draft: str) -> None:
    """torch raises where host memory that is not page-locked is copied, or a value is waited for
    but by an event. (On a CPU nothing is uploaded.)"""
    decoding, options = options_of(name, draft)
    engine = make_engine(tiny_config("llama_gqa", "fused"), device, decoding, **options)
    before = play(engine, EVENTS)
    decide, on_gpu = engine.decoder.decoding.pieces, device != "cpu"

    def strictly(request: object) -> object:
        if on_gpu:
            torch.cuda.set_sync_debug_mode("error")
        try:
            return (yield from decide(request))
        finally:
            if on_gpu:
                torch.cuda.set_sync_debug_mode("default")

    engine.decoder.decoding.pieces = strictly
    after = play(engine, EVENTS)
    assert {s: a.tokens for s, a in after.items()} == {s: a.tokens for s, a in before.items()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_graphs_logits_are_those_of_the_eager_pass(dtype: str, device: str, make_engine) -> None:
    """The same kernels of the same shapes: to the bit, padding and static buffers and all."""
    from vla_ros.engine.layers.pack import PackLayout, chain, prefill_layout
    from vla_ros.engine.layers.runner import BUCKET

    length, tokens = 2 * BUCKET, torch.arange(5, device=device)
    found = []
    for graphs in (True, False):
        engine = make_engine(tiny_config("llama_gqa"), device, "autoregressive", graphs, 3, dtype)
        runner = engine.model.runner(1, 3 * BUCKET)
        runner.fit(3 * BUCKET)
        torch.manual_seed(0)
        prompt = torch.randn(length, 64).to(device, engine.model.dtype)
        rows = []
        for _ in range(2):  # the second time a graph is replayed
            layout = prefill_layout(length, tuple(range(length - 4, length)))
            rows.append(runner.logits(layout, prompt, None))
            layout = PackLayout(rows=tuple(range(5)), tail=chain(0, length, 5))
            rows.append(runner.logits(layout, None, tokens))
        found.append(torch.cat(rows).float().cpu())
    torch.testing.assert_close(*found, atol=0 if device == "cpu" else 1e-5, rtol=0)


def test_fixed_shapes_say_the_same_in_bf16_whatever_came_before(device: str, make_engine) -> None:
    config = tiny_config("llama_gqa")
    events = [Event(e.stamp, e.image, TEXTS[1] if not n else None) for n, e in enumerate(EVENTS)]
    fresh = make_engine(config, device, "speculative", dtype="bfloat16", fixed_shapes=True)
    used = make_engine(config, device, "speculative", dtype="bfloat16", fixed_shapes=True)
    play(used, stream(8, {0: TEXTS[2]}, seed=6))
    one, other = play(fresh, events), play(used, events)
    assert {s: a.tokens for s, a in one.items()} == {s: a.tokens for s, a in other.items()}
