"""Non-finite values, in the target or in a draft model, do not outlive what made them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from support.engine import TEXTS, Event, engine_of, play, stream, tiny, tiny_config
from vla_ros.engine import Engine, InvalidAction
from vla_ros.engine.families.openvla import write_random

EVENTS = stream(18, {0: TEXTS[0]}, seed=4)
#: deep enough that one layer's NaN is written into the next layer's KV again and again
DEEP = replace(tiny_config(), text=replace(tiny_config().text, layers=5))
SCHEDULES = [
    ("speculative", "exact"),
    ("speculative", "sampling"),
    ("vanilla_speculative", "exact"),
]


@pytest.fixture
def engine_with_twin(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Engines whose draft model is the target itself: undamaged, every draft stands."""
    write_random(tmp_path, DEEP, seed=4)

    def make(decoding: str, acceptance: str) -> Engine:
        return engine_of(
            tiny(DEEP, seed=4), decoding, drafter="model", draft_checkpoint=str(tmp_path),
            acceptance=acceptance, temperature=0.05,
        )  # fmt: skip

    return make


@contextmanager
def damaged(tensor: torch.Tensor) -> Iterator[None]:
    good = tensor.clone()
    tensor.fill_(float("nan"))
    yield
    tensor.copy_(good)


def draft_of(engine: Engine):  # type: ignore[no-untyped-def]
    return engine.decoder.decoding.drafter._draft  # type: ignore[attr-defined]


def counts(engine: Engine, events: list[Event]) -> tuple[int, int]:
    """Draft tokens offered and kept."""
    answers = play(engine, events).values()
    return sum(sum(a.drafted) for a in answers), sum(sum(a.accepted) for a in answers)


@pytest.mark.parametrize(("decoding", "acceptance"), SCHEDULES)
def test_damage_in_target_and_draft_ends_with_its_frames(
    engine_with_twin, decoding: str, acceptance: str
) -> None:
    engine = engine_with_twin(decoding, acceptance)
    play(engine, EVENTS[:4])
    eyes = [m.vision.vision_backbone.featurizer.pos_embed for m in (engine.model, draft_of(engine))]
    with damaged(eyes[0]), damaged(eyes[1]):
        for event in EVENTS[4:7]:
            with pytest.raises(InvalidAction, match="not finite"):
                play(engine, [event])
    drafted, accepted = counts(engine, EVENTS[7:])
    assert drafted == accepted == 6 * len(EVENTS[7:])


@pytest.mark.parametrize(("decoding", "acceptance"), SCHEDULES)
def test_damage_in_the_draft_alone_costs_passes_only(
    engine_with_twin, decoding: str, acceptance: str
) -> None:
    engine = engine_with_twin(decoding, acceptance)
    good = play(engine, EVENTS[:4])
    with damaged(draft_of(engine).vision.projector.fc1.bias):
        hurt = play(engine, EVENTS[4:7])
    drafted, accepted = counts(engine, EVENTS[7:])
    assert drafted == accepted == 6 * len(EVENTS[7:])
    assert len(hurt) == 3
    if acceptance == "exact":
        expected = play(engine_of(tiny(DEEP, seed=4)), EVENTS)
        assert all(a.tokens == expected[s].tokens for s, a in {**good, **hurt}.items())
