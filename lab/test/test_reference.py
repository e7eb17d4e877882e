"""The references are what a plain program would do, and no worse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from support.engine import TEXTS, engine_of, play, stream, tiny, tiny_config


class Counted(TorchDispatchMode):
    """How often the host makes or fills a tensor, or brings one to another device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
        made = ("zeros", "fill_", "_to_copy", "lift_fresh", "copy_", "arange")
        self.count += function.overloadpacket.__name__ in made
        return function(*args, **(kwargs or {}))


def made_in_a_pass(layers: int) -> int:
    """By ``naive_pipe`` with a full pipeline."""
    config = tiny_config()
    config = replace(config, text=replace(config.text, layers=layers))
    engine = engine_of(tiny(config), "naive_pipe")
    events = stream(9, {0: TEXTS[0]}, seed=1)
    play(engine, events[:8])
    with Counted() as counted:
        play(engine, events[8:])
    return counted.count


def test_naive_pipe_makes_its_mask_once_a_pass_and_not_in_every_layer() -> None:
    assert made_in_a_pass(2) == made_in_a_pass(6) > 0


def test_naive_pipe_says_what_decoding_says() -> None:
    events = stream(12, {0: TEXTS[0]}, seed=2)
    checkpoint = tiny(tiny_config("llama_gqa"))
    one, other = (play(engine_of(checkpoint, n), events) for n in ("naive_pipe", "autoregressive"))
    assert len(one) == 6
    assert all(answer.tokens == other[stamp].tokens for stamp, answer in one.items())
