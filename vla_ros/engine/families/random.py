"""Random checkpoints: weights drawn by name, and the small tokenizer.

Each tensor is drawn by its name (:class:`DrawnWeights`); all presets share the small tokenizer.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from vla_ros.engine.io.files import cached
from vla_ros.engine.io.hub import RANDOM
from vla_ros.engine.io.tokens import IMAGE, PROMPTS
from vla_ros.engine.io.weights import Shape, Weights

PREFIX = RANDOM
VERSION = 5  # of what is written; a new one makes what is cached void
TEXT_VOCAB = 704  # what the small tokenizer has at most


def digest_of(config: object, seed: int, dtype: torch.dtype) -> str:
    """The stand-in for the SHA-256 of weights that are on no disk."""
    return hashlib.sha256(f"random {config!r} {seed} {dtype}".encode()).hexdigest()


def fingerprint_of(content: object) -> str:
    """The part of a cached folder's name that stands for its content."""
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def inputs_of(shape: Shape) -> int:
    """The inputs of a row of a matrix, or of a convolution."""
    return int(torch.Size(shape[1:]).numel())


class DrawnWeights(Weights):
    """Each tensor from the seed and its name, float32, so that reading some of them draws no other.

    Matrices are normal with 1 / sqrt(inputs), Q and K twice that so that attention chooses, scales
    of norms 1 and other vectors 0. By patterns of names ``fills`` has what is in a tensor instead,
    a number or a table, and ``gains`` factors.
    """

    def __init__(
        self,
        shapes: Mapping[str, Shape],
        seed: int,
        device: torch.device,
        fills: Mapping[str, float | torch.Tensor] = MappingProxyType({}),
        gains: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self.shapes = shapes
        self._seed, self._device = seed, device
        self._fills, self._gains = fills, gains

    def take(self, name: str) -> torch.Tensor:
        shape = self.shapes[name]
        for pattern, fill in self._fills.items():
            if re.search(pattern, name):
                return torch.as_tensor(fill, device=self._device).expand(shape).clone()
        if len(shape) == 1:
            scale = "norm" in name and name.endswith("weight")
            return torch.full(shape, 1.0 if scale else 0.0, device=self._device)
        gains = [gain for pattern, gain in self._gains.items() if re.search(pattern, name)]
        sharp = 2.0 if ".q_proj." in name or ".k_proj." in name else 1.0
        return self.normal(name, shape, math.prod((sharp, *gains)) * inputs_of(shape) ** -0.5)

    def shape(self, name: str) -> Shape:
        return self.shapes[name]

    def normal(self, name: str, shape: Shape, spread: float) -> torch.Tensor:
        """A normal tensor, drawn by that name."""
        generator = torch.Generator(self._device)
        generator.manual_seed(zlib.crc32(f"{self._seed} {name}".encode()))  # 32 bits count
        tensor = torch.empty(shape, device=self._device)
        return tensor.normal_(0.0, spread, generator=generator)


# The small tokenizer: byte-level BPE with at most 704 ids, for this project's small models. Its
# merges are learned from the few instructions below, so the words of a tabletop task are one token
# each and any other text still has a spelling. Id 0 is BOS and opens every prompt, id 1 ends a
# sequence. BitVLA's has other words for the two, and its own prompt.

_SPECIAL = {
    "openvla": ("<s>", "</s>", "<|im_start|>", "<|im_end|>"),
    "bitvla": ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"),
}
_COLORS = "red green blue yellow orange purple white black brown pink grey"
_THINGS = (
    "cube block plate bowl mug cup box drawer cabinet stove basket tray table ball bottle can"
    " spoon knife fork book caddy ketchup soup sauce butter milk cheese wine rack moka pot pan"
)
_VERBS = (
    "pick up the and place it on in into next to put push pull open close turn move stack reach"
    " touch lift grasp slide"
)
_WHERE = (
    "left right top bottom front back middle first second third between of from under above"
    " behind near far corner centre center side"
)


def corpus() -> list[str]:
    """The instructions that the merges are learned from."""
    words = " ".join((_COLORS, _THINGS, _VERBS, _WHERE)).split()
    tasks = [
        f"pick up the {color} {thing} and place it on the {other}"
        for color in _COLORS.split()
        for thing in ("cube", "block", "bowl")
        for other in ("plate", "table", "tray")
    ]
    prompts = [PROMPTS["openvla"].format(task) for task in tasks]
    return prompts + [" " + word for word in words] * 4 + [PROMPTS["qwen"].format("x")] * 4


def build_tokenizer(style: str = "openvla") -> Any:
    """A ``tokenizers.Tokenizer`` for prompts of a style; the same on every call."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    special, sentences = _SPECIAL[style], corpus()
    if style == "bitvla":
        sentences += [PROMPTS[style].replace(IMAGE, "").format("x")] * 4
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TEXT_VOCAB,
        special_tokens=list(special),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{special[0]} $A", special_tokens=[(special[0], 0)]
    )
    return tokenizer


def write_tokenizer(path: Path, style: str = "openvla", more: tuple[str, ...] = ()) -> None:
    """Write ``tokenizer.json``; ``more`` special tokens stand behind the others."""
    tokenizer = build_tokenizer(style)
    tokenizer.add_special_tokens(list(more))
    tokenizer.save(str(path))


def tokenizer_directory() -> Path:
    """The small tokenizer alone, for weights that never go to disk."""
    return cached(f"tokenizer-{VERSION}", lambda to: write_tokenizer(to / "tokenizer.json"))
