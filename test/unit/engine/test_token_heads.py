"""Of the product with the vocabulary only the rows that can win: where all, and where the bins."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support.engine import TEXTS, engine_of, play, stream, tiny, tiny_config
from vla_ros.engine.decoding.speculative import Speculative
from vla_ros.engine.engine import Engine
from vla_ros.engine.families.openvla import write_random
from vla_ros.engine.layers import runner as module
from vla_ros.engine.layers.linear import plain
from vla_ros.engine.layers.runner import DecoderRunner
from vla_ros_lab.model_drafter import ModelDrafter

SIZE = 1024  # rows of the tiny model's head; 704 texts, 256 bins, 64 nobody says
BINS = 256
GREEDY = ("autoregressive", "actionflow", "speculative", "vanilla_speculative")


@pytest.fixture
def draft(tmp_path: Path) -> str:
    write_random(tmp_path, tiny_config("llama_gqa"), seed=9)
    return str(tmp_path)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[tuple[DecoderRunner, int, int]]:
    """Every product with a vocabulary from now on: whose runner, rows of the weight, logits."""
    seen: list[tuple[DecoderRunner, int, int]] = []
    runners: list[DecoderRunner] = []
    give, linear = DecoderRunner._give, module.linear

    def of_runner(self: DecoderRunner, *words: object):  # type: ignore[no-untyped-def]
        runners.append(self)
        return give(self, *words)  # type: ignore[arg-type]

    def counted(x: torch.Tensor, weight, bias=None):  # type: ignore[no-untyped-def]
        out = linear(x, weight, bias)
        seen.append((runners[-1], len(weight), out.shape[-1]))
        return out

    monkeypatch.setattr(DecoderRunner, "_give", of_runner)
    monkeypatch.setattr(module, "linear", counted)
    return seen


def answered(engine: Engine) -> Engine:
    play(engine, stream(10, {0: TEXTS[0]}, seed=3))
    return engine


@pytest.mark.parametrize("name", GREEDY)
def test_a_greedy_target_chooses_among_all_tokens(
    name: str, draft: str, products: list[tuple[DecoderRunner, int, int]]
) -> None:
    """`generate` may say a text token, which is no action: it must be seen to be refused."""
    options = {"draft_checkpoint": draft} if name == "vanilla_speculative" else {}
    engine = answered(engine_of(tiny(seed=2), name, **options))
    own = {
        sizes for whose, sizes in map(_named, products) if whose is engine.decoder.decoding.runner
    }
    assert own == {(SIZE, SIZE)}


def _named(product: tuple[DecoderRunner, int, int]) -> tuple[DecoderRunner, tuple[int, int]]:
    return product[0], product[1:]


def test_where_only_bins_are_drawn_only_bins_are_multiplied(
    draft: str, products: list[tuple[DecoderRunner, int, int]]
) -> None:
    options = {"acceptance": "sampling", "drafter": "model", "draft_checkpoint": draft}
    answered(engine_of(tiny(seed=2), "speculative", **options))
    assert {sizes for _, sizes in map(_named, products)} == {(BINS, BINS)}


@pytest.mark.parametrize("name", ["speculative", "vanilla_speculative"])
def test_a_draft_model_multiplies_its_bins_alone(
    name: str, draft: str, products: list[tuple[DecoderRunner, int, int]]
) -> None:
    """Whatever else it likes better is no action of the target's."""
    engine = answered(engine_of(tiny(seed=2), name, drafter="model", draft_checkpoint=draft))
    assert isinstance(engine.decoder.decoding, Speculative)
    drafter = engine.decoder.decoding.drafter
    assert isinstance(drafter, ModelDrafter)
    assert {sizes for whose, sizes in map(_named, products) if whose is drafter.runner} == {
        (256, 256)
    }
    first = drafter._draft.actions.first
    whole = plain(drafter._draft.decoder.head)[first : first + BINS]
    torch.testing.assert_close(plain(drafter.runner._head), whole, rtol=0, atol=0)
