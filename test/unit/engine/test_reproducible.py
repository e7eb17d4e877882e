"""In bf16 the shapes of passes matter: with fixed ones an episode does not depend on the past."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from support.engine import TEXTS, Event, engine_of, play, stream, tiny, tiny_config
from vla_ros.engine import Engine
from vla_ros.engine.families.openvla import write_random

STILL = [replace(stream(1, {0: TEXTS[0]})[0], stamp=i, text=None if i else TEXTS[0])
         for i in range(40)]  # fmt: skip
RESTLESS = [
    Event(i, stream(1, {}, seed=100 + i)[0].image, None if i else TEXTS[1]) for i in range(40)
]
HISTORIES: list[list[Event]] = [[], STILL, RESTLESS]
EPISODE = stream(16, {0: TEXTS[0]}, seed=3)


def bf16_engine(language: str, **options: object) -> Engine:
    checkpoint = tiny(tiny_config(language), seed=9)
    low = {n: t.bfloat16() for n, t in checkpoint.tensors.items()}
    return engine_of(replace(checkpoint, tensors=low), "speculative", dtype="bfloat16", **options)


def after(engine: Engine, history: list[Event]):  # type: ignore[no-untyped-def]
    """Tokens, draft counts, logits and shapes of the episode after a history."""
    play(engine, history)
    bits: list[bytes] = []
    shapes: set[tuple[int, ...]] = set()
    run = engine.decoder.decoding.runner.run

    def record(layout, prompt, tokens):  # type: ignore[no-untyped-def]
        choices, maxima = run(layout, prompt, tokens)
        bits.append(maxima.view(torch.int16).numpy().tobytes())
        shapes.add((layout.prefill, len(layout.tail), len(layout.rows)))
        return choices, maxima

    engine.decoder.decoding.runner.run = record
    answers = play(engine, EPISODE)
    assert len(answers) == len(EPISODE)
    found = [(a.tokens, a.drafted, a.accepted) for a in answers.values()]
    return found, bits, shapes


@pytest.mark.parametrize(
    "language", ["llama_gqa", pytest.param("qwen2_tied", marks=pytest.mark.long)]
)
@pytest.mark.parametrize(
    ("drafter", "gamma"),
    [("temporal", 0), ("temporal", 3), ("model", 3), ("temporal_tree", 0)],
)
def test_fixed_shapes_give_the_same_bits_whatever_came_before(
    language: str, drafter: str, gamma: int, tmp_path: Path
) -> None:
    options: dict[str, object] = {"gamma": gamma, "fixed_shapes": True, "drafter": drafter}
    if drafter == "model":
        write_random(tmp_path, tiny_config(), seed=9)
        options["draft_checkpoint"] = str(tmp_path)
    runs = [after(bf16_engine(language, **options), h) for h in HISTORIES]
    assert runs[0] == runs[1] == runs[2]
    longest = gamma or 6
    shapes = [(0, longest + 1), (longest + 1, longest + 1)]
    if drafter == "temporal_tree":
        shapes = [(24, 25), (65, 65)]
    assert sorted(s[1:] for s in runs[0][2]) == shapes
    assert any(sum(accepted) for _, _, accepted in runs[0][0])  # drafts were tried, and stood


def test_without_them_a_drafts_length_remembers_earlier_episodes() -> None:
    runs = [after(bf16_engine("llama_gqa"), h) for h in (STILL, RESTLESS)]
    assert [drafted for _, drafted, _ in runs[0][0]] != [drafted for _, drafted, _ in runs[1][0]]
    assert len(runs[0][2]) > 2
