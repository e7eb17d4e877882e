"""Prompts, and tokens <-> bins <-> actions, exactly as the OpenVLA family defines them.

Sources: openvla ``prismatic/vla/action_tokenizer.py`` (bins), ``modeling_prismatic.py``
``predict_action`` (decoding, de-normalization, the token 29871), ``deploy.py`` (prompts);
openvla-mini ``action_tokenizer.py`` and its Qwen prompt builder; BitVLA ``bitnet_utils.py`` and the
chat template of its ``convert_ckpt.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from vla_ros.core.types import Floats
from vla_ros.engine.errors import CheckpointError, InvalidAction
from vla_ros.engine.io.config import ModelConfig
from vla_ros.engine.io.ends import check_ends
from vla_ros.engine.io.tokenizer_file import FileTokenizer, open_tokenizer

_CHAT = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant"
    " gives helpful, detailed, and polite answers to the user's questions."
)
_SYSTEM = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
IMAGE = (
    "<|image_pad|>"  # where the image and the robot's state go, where not behind the first token
)
_SYSTEM_BITVLA = (
    "A chat between a curious human and an artificial intelligence assistant. The assistant gives"
    " helpful, detailed, and polite answers to the human's questions."
)
_ASK = "What action should the robot take to {}?"
PROMPTS = {
    "openvla": f"In: {_ASK}\nOut:",
    "openvla-v0.1": f"{_CHAT} USER: {_ASK} ASSISTANT:",
    "qwen": f"<|im_start|>system\n{_SYSTEM}<|im_end|>\n<|im_start|>user\n{_ASK}<|im_end|>\n"
    "<|im_start|>assistant\n",
    "bitvla": f"System: {_SYSTEM_BITVLA}<|eot_id|>User: {IMAGE}{_ASK}<|eot_id|>Assistant: ",
}
_DELAYED = "{} in {}"  # few tokens: what an instruction becomes for a policy that knows its age
MAX_TEXT = 192  # prompt tokens besides the image; longer instructions are refused


def prompt_text(style: str, instruction: str, delay_steps: int | None = None) -> str:
    """The text that asks for an action; the instruction is put in lower case.

    ``delay_steps``: the action is to be right so many action periods later; None: the policy knows
    nothing of delays, and its prompt says nothing of them.
    """
    wanted = instruction.strip().lower()
    if delay_steps is not None:
        wanted = _DELAYED.format(wanted, delay_steps)
    return PROMPTS[style].format(wanted)


class PromptTokenizer:
    """Turns an instruction into prompt ids with the checkpoint's own ``tokenizer.json``.

    CheckpointError: there is none, it is damaged, or it belongs to another model. A SentencePiece
    ``tokenizer.model`` alone is refused: what reads it today gives other ids than the family was
    trained with ("In" for "▁In").
    """

    def __init__(self, directory: Path, config: ModelConfig) -> None:
        self._config = config
        self._path = directory / "tokenizer.json"
        self._tokenizer = _read_tokenizer(self._path)
        #: ids before the image
        self.front = 1
        self._before: list[int] = []
        self._template = PROMPTS[config.prompt_style]
        if IMAGE in self._template:
            self._open()

    def _open(self) -> None:
        """Read what stands before the image, once; the rest is tokenized without it, as it would be
        behind the special token that the image's place is."""
        before, _, _ = self._template.partition(IMAGE)
        self._before = list(self._tokenizer.encode(before).ids)
        self.front = len(self._before)
        known = set(self._tokenizer.added_tokens().values())
        stop, ends = self._config.stop_token, ("<|end_of_text|>", "<|eot_id|>")
        missing = [end for end in ends if end not in known]
        if missing or self._tokenizer.token_to_id(ends[0]) != stop:
            found = self._tokenizer.token_to_id(ends[0])
            raise CheckpointError(
                f"{self._path} has {ends[0]} as {found}, and as special tokens it lacks"
                f" {', '.join(missing) or 'none'}: the model ends its sequence with {stop};"
                " copy the tokenizer.json that it was trained with"
            )

    def __call__(self, instruction: str, delay_steps: int = 0) -> list[int]:
        """Ids of the prompt: the first (BOS, or :attr:`front` ones) go before the image, the rest
        behind it.

        ``delay_steps`` counts for checkpoints that were trained for delays.
        """
        config = self._config
        named = delay_steps if config.max_delay else None
        text = prompt_text(config.prompt_style, instruction, named)
        if self._before:
            rest = self._tokenizer.encode(text.partition(IMAGE)[2], add_special_tokens=False)
            return self._in_range([*self._before, *rest.ids])
        encoded = self._tokenizer.encode(text)
        ids = self._in_range(list(encoded.ids))
        if ids[0] not in self._tokenizer.added_tokens():
            raise CheckpointError(
                f"{self._path} begins a prompt with {encoded.tokens[0]!r}, no special token: the"
                " image goes behind <s> or <|im_start|>; copy the base model's tokenizer.json"
            )
        empty = config.empty_token_id
        if empty is not None and ids[-1] != empty:
            ids.append(empty)
        return ids

    def _in_range(self, ids: list[int]) -> list[int]:
        config = self._config
        if len(ids) < 2 or max(ids) >= config.text.vocab_size:
            raise CheckpointError(
                f"{self._path} gives {len(ids)} ids up to {max(ids, default=-1)}, the model has"
                f" {config.text.vocab_size}: they do not belong together"
            )
        return ids


def _read_tokenizer(path: Path) -> FileTokenizer:
    if not path.exists():
        others = [n for n in ("tokenizer.model", "vocab.json") if (path.parent / n).exists()]
        beside = f", only {others[0]}, which this engine does not read" if others else ""
        raise CheckpointError(f"no {path}{beside}: copy the base model's tokenizer.json there")
    return open_tokenizer(path)


@dataclass(frozen=True, slots=True)
class ActionTokens:
    """Tokens <-> bins <-> values in [-1, 1].

    Encoding: token = V - digitize(clip(a), linspace(-1, 1, bins)). Bin b = V - 1 - token, so
    the 256 bins own the tokens V - 256 ... V - 1. Decoding: the center of bin min(b, 254): the
    255 intervals between 256 edges, the last two bins sharing one.
    """

    vocab: int  # V, the tokenizer's length (32000 for Llama-2, 151921 for MiniVLA)
    bins: int = 256
    ordered: ClassVar[bool] = True  # neighboring tokens are neighboring values

    @property
    def first(self) -> int:
        return self.vocab - self.bins

    @property
    def window(self) -> range:
        """The action tokens."""
        return range(self.first, self.vocab)

    def is_action(self, token: int) -> bool:
        return token in self.window

    def to_bin(self, token: int) -> int:
        """Bin of an action token, 0 (value -1) to 255 (value 1)."""
        return self.vocab - 1 - token

    def from_bin(self, index: int) -> int:
        return self.vocab - 1 - index

    def encode(self, values: Floats) -> list[int]:
        """Tokens of values in [-1, 1] (clipped)."""
        edges = np.linspace(-1.0, 1.0, self.bins)
        return [int(t) for t in self.vocab - np.digitize(np.clip(values, -1.0, 1.0), edges)]

    def refuse_others(self, tokens: Sequence[int]) -> None:
        """Raise InvalidAction where one is no action token."""
        wrong = [t for t in tokens if not self.is_action(t)]
        if wrong:
            raise InvalidAction(
                f"token {wrong[0]} is no action token ({self.first} to {self.vocab - 1}):"
                " is this checkpoint trained for actions?"
            )

    def decode(self, tokens: Sequence[int]) -> Floats:
        """Values in [-1, 1] of action tokens; raises InvalidAction for any other token."""
        self.refuse_others(tokens)
        edges = np.linspace(-1.0, 1.0, self.bins)
        centers = (edges[:-1] + edges[1:]) / 2.0
        index = np.clip(self.vocab - 1 - np.asarray(tokens), 0, self.bins - 2)
        return np.asarray(centers[index], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Normalizer:
    """Bounds of a data set's actions; maps [-1, 1] back to their units where ``mask``.

    ``slack`` is OFT's 1e-8 in (high - low + slack); OpenVLA has none.
    """

    low: Floats
    high: Floats
    mask: np.ndarray[Any, np.dtype[np.bool_]]
    slack: float = 0.0

    @property
    def dim(self) -> int:
        return len(self.low)

    def restore(self, values: Floats) -> Floats:
        """[..., A] in [-1, 1] -> physical units: 0.5 (a + 1)(q99 - q01) + q01 where masked."""
        scaled = 0.5 * (values + 1.0) * (self.high - self.low + self.slack) + self.low
        return np.where(self.mask, scaled, values)

    def normalize(self, values: Floats) -> Floats:
        """Units -> [-1, 1] where masked, then clipped (OFT's proprio input)."""
        scaled = 2.0 * (values - self.low) / (self.high - self.low + 1e-8) - 1.0
        return np.clip(np.where(self.mask, scaled, values), -1.0, 1.0)


def read_normalizer(
    norm_stats: Mapping[str, Any],
    unnorm_key: str | None,
    *,
    part: str = "action",
    minmax: bool = False,
    slack: float = 0.0,
    source: str = "the checkpoint",
) -> Normalizer:
    """Statistics of ``unnorm_key`` (``None``: the only one there is); ``source`` is their file.

    Raises CheckpointError with the list of keys when the key is not there or ambiguous, and
    where its numbers are none.
    """
    keys = ", ".join(sorted(norm_stats)) or "none"
    if unnorm_key is None:
        if len(norm_stats) != 1:
            raise CheckpointError(f"unnorm_key is needed; {source} has: {keys}")
        unnorm_key = next(iter(norm_stats))
    if unnorm_key not in norm_stats:
        raise CheckpointError(f"unnorm_key {unnorm_key!r} is unknown; {source} has: {keys}")
    where = f"{source}: norm_stats[{unnorm_key!r}][{part!r}]"
    stats = norm_stats[unnorm_key].get(part) or {}
    if not isinstance(stats, Mapping):
        raise CheckpointError(f"{where} is no object")
    names = ("min", "max") if minmax else ("q01", "q99")
    missing = [name for name in names if name not in stats]
    if missing:
        there = ", ".join(stats) or "nothing"
        raise CheckpointError(f"{where} lacks {', '.join(missing)}; there is {there}")
    low, high = (_numbers(stats[name], f"{where}[{name!r}]") for name in names)
    mask = stats.get("mask", [True] * len(low))
    if not isinstance(mask, list) or not all(flag in (0, 1) for flag in mask):
        raise CheckpointError(f"{where}['mask'] is no list of true and false")
    if not len(low) == len(high) == len(mask):
        raise CheckpointError(f"{where} has lists of unequal length")
    used = np.asarray(mask, dtype=bool)
    check_ends(np.where(used, low, 0.0), np.where(used, high, 0.0), names, where)
    return Normalizer(low, high, used, slack)


def _numbers(values: object, where: str) -> Floats:
    """A list of finite numbers."""
    numbers = isinstance(values, list) and all(
        isinstance(v, int | float) and not isinstance(v, bool) for v in values
    )
    if not numbers or not values:
        raise CheckpointError(f"{where} is no list of numbers")
    found = np.asarray(values, dtype=np.float64)
    if not np.isfinite(found).all():
        raise CheckpointError(f"{where} holds NaN or infinity")
    return found
