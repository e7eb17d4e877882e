"""Formats of the weights by part of a model."""

from __future__ import annotations

from dataclasses import dataclass

STORED = "bf16"  # as they are: the engine's dtype
FORMATS = (STORED, "int8", "int4", "fp8")
PARTS = ("vision", "decoder", "head")


@dataclass(frozen=True, slots=True)
class Formats:
    """The format of each part. ``vision``: the blocks of the towers, and the projector;
    ``decoder``: the language model's layers; ``head``: the layer that makes logits of its states,
    or actions (OFT's MLP, the action expert of a flow policy)."""

    vision: str = STORED
    decoder: str = STORED
    head: str = STORED

    def __bool__(self) -> bool:
        return self != Formats()

    def __str__(self) -> str:
        """The text that :func:`parse_formats` takes, "" where nothing is quantized."""
        named = ((part, getattr(self, part)) for part in PARTS)
        return ",".join(f"{part}={kind}" for part, kind in named if kind != STORED)


def parse_formats(text: str) -> Formats:
    """Formats of a text: "int4" is all but vision's (decoder and head); "decoder=int4,head=int8"
    names parts.

    ValueError in one line for anything else.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if len(words) == 1 and "=" not in words[0]:
        _known(text, words[0])
        return Formats(decoder=words[0], head=words[0])
    found: dict[str, str] = {}
    for word in words:
        part, _, kind = word.partition("=")
        if part not in PARTS or part in found:
            raise ValueError(f"weights {text!r}: name each of {', '.join(PARTS)} once at most, such"
                             " as decoder=int4,head=int8")  # fmt: skip
        _known(text, kind)
        found[part] = kind
    return Formats(**found)


def _known(text: str, kind: str) -> None:
    if kind not in FORMATS:
        raise ValueError(f"weights {text!r}: give {', '.join(FORMATS)}, or parts of them such as"
                         " decoder=int4,head=int8")  # fmt: skip
