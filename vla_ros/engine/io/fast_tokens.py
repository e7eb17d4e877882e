"""FAST: a chunk of actions as a few tokens, and back.

A chunk [H, A] becomes the DCT of each of its values over time, times a scale and rounded. Row by
row, slow movements first, each number is a letter; byte pairs of the letters are the action tokens,
which are the last ones of PaliGemma's vocabulary, backwards. Sources: lerobot 0.6.1
``modeling_pi0_fast.py`` (``detokenize_actions``, ``decode_actions_with_fast``) and
``tokenizer_processor.py``; physical-intelligence/fast ``processing_action_tokenizer.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from vla_ros.core.types import Floats
from vla_ros.engine.errors import InvalidAction
from vla_ros.engine.io.field_table import Fields
from vla_ros.engine.io.files import read_json, write_json
from vla_ros.engine.io.flow_config import FAST_PROCESSOR, fast_folder
from vla_ros.engine.io.processors import TextTokenizer
from vla_ros.engine.io.tokenizer_file import open_tokenizer

PREFIX, END = "Action: ", "|"  # what an answer begins and ends with
_CLASS = "UniversalActionProcessor"
_HIGHEST = 0xD7FF  # a letter's number: surrogates, which are no letters, are above
_BEGUN = "\N{REPLACEMENT CHARACTER}"  # what a letter is read as whose bytes are not all there


class FastTokenizer:
    """Chunks <-> action tokens, by the folder of a FAST tokenizer. CheckpointError in one line."""

    def __init__(self, folder: Path) -> None:
        self._pairs = open_tokenizer(folder / "tokenizer.json")
        fields = Fields(read_json(folder / FAST_PROCESSOR))
        fields.only("processor_class", _CLASS)
        self.scale = fields.number("scale", 10.0)
        self._least = int(fields.real("min_token", 0))  # the number of the first letter

    @property
    def size(self) -> int:
        """Size of its vocabulary."""
        return self._pairs.vocab_size()

    def numbers(self, tokens: Sequence[int]) -> Floats:
        """The rounded coefficients that these tokens spell. OverflowError: one is below 0."""
        letters = self._pairs.decode(list(tokens), skip_special_tokens=False)
        return np.array([ord(letter) for letter in letters], dtype=np.float64) + self._least

    def reached(self, tokens: Sequence[int]) -> tuple[int, list[int], Floats]:
        """The number of coefficients that these tokens spell; the last tokens where they have begun
        another, since a letter may be two bytes; and the coefficients that are whole in those.
        OverflowError: a token is below 0."""
        said = list(tokens)
        letters = self._pairs.decode(said, skip_special_tokens=False)
        for whole in range(len(said), max(-1, len(said) - 4), -1):
            before = self._pairs.decode(said[:whole], skip_special_tokens=False)
            if not before.endswith(_BEGUN):
                done = letters[len(before) :].rstrip(_BEGUN)
                return len(before), said[whole:], np.array([ord(c) + self._least for c in done])
        return len(letters), [], np.array([])

    def spelled(self, numbers: Floats) -> list[int]:
        """Tokens of rounded coefficients."""
        return self.spelled_to(numbers)[0]

    def spelled_to(self, numbers: Floats) -> tuple[list[int], list[int]]:
        """Tokens of rounded coefficients, and with each how many of these were begun so far."""
        letters = np.clip(numbers.flatten() - self._least, 0, _HIGHEST).astype(int)
        found = self._pairs.encode("".join(map(chr, letters)), add_special_tokens=False)
        return list(found.ids), [end for _, end in found.offsets]

    def coefficients(self, chunk: Floats) -> Floats:
        """[H, A] in model space -> rounded coefficients [H, A]."""
        return np.around(_dct(len(chunk)) @ chunk * self.scale)

    def chunk(self, numbers: Floats) -> Floats:
        """Coefficients [H, A] -> [H, A] in model space."""
        return _dct(len(numbers)).T @ (numbers / self.scale)


def _dct(length: int) -> Floats:
    """The orthonormal DCT-II [H, H]: its transpose is the inverse."""
    when = (2 * np.arange(length) + 1) * np.pi / (2 * length)
    rows = np.cos(np.arange(length)[:, None] * when) * (2 / length) ** 0.5
    rows[0] /= 2**0.5
    return np.asarray(rows, dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class FastTokens:
    """PaliGemma's tokens <-> chunks [horizon, dim] in model space.

    An answer is ``prefix``, action tokens and ``end``: action token t is ``last`` - t. ``bos``
    stands behind the prompt. ``strict``: an answer must begin with the first two of the prefix.
    """

    tokenizer: FastTokenizer
    horizon: int
    dim: int
    last: int
    bos: int
    prefix: tuple[int, ...]
    end: int
    strict: bool = True
    ordered: ClassVar[bool] = False  # neighboring tokens are other byte pairs

    @property
    def first(self) -> int:
        """The lowest of the action tokens' ids."""
        return max(0, self.last + 1 - self.tokenizer.size)

    @property
    def bins(self) -> int:
        """The number of action tokens."""
        return self.last + 1 - self.first

    @property
    def window(self) -> range:
        """The action tokens."""
        return range(self.first, self.last + 1)

    def decode(self, tokens: Sequence[int]) -> Floats:
        """The chunk of an answer. InvalidAction where it begins otherwise than it must."""
        if self.strict and tuple(tokens[:2]) != self.prefix[:2]:
            raise InvalidAction(
                f"an answer begins with the tokens {list(tokens[:2])}, not with {PREFIX!r}: is this"
                " checkpoint trained for actions?"
            )
        return self.tokenizer.chunk(self.coefficients(tokens))

    def coefficients(self, tokens: Sequence[int]) -> Floats:
        """Actions of an answer [horizon, dim], as LeRobot reads any: cut at the end
        marker, every prefix in it left out, what is too long cut, what is too short filled with
        zeros. A token above the action tokens makes all of it zeros, the data's mean."""
        wanted = self.horizon * self.dim
        found = self._numbers(tokens)
        found = np.pad(found[:wanted], (0, max(0, wanted - len(found))))
        return found.reshape(self.horizon, self.dim)

    def whole(self, tokens: Sequence[int]) -> bool:
        """True of an answer that spells as many coefficients as a chunk has."""
        return len(self._numbers(tokens)) == self.horizon * self.dim

    def _numbers(self, tokens: Sequence[int]) -> Floats:
        """The coefficients of an answer; none where a token is above the action tokens."""
        try:
            return self.tokenizer.numbers([self.last - token for token in self.body(tokens)])
        except OverflowError:
            return np.zeros(0)

    def body(self, tokens: Sequence[int]) -> list[int]:
        """The answer without its prefix, and up to its end."""
        rest = list(tokens)
        if self.end in rest:
            rest = rest[: rest.index(self.end)]
        place, size = 0, len(self.prefix)
        while place <= len(rest) - size:
            if tuple(rest[place : place + size]) == self.prefix:
                del rest[place : place + size]
            else:
                place += 1
        return rest

    def encode(self, chunk: Floats) -> list[int]:
        """The answer that the model was trained to give for a chunk [horizon, dim]."""
        spelled = self.tokenizer.spelled(self.tokenizer.coefficients(chunk))
        return [*self.prefix, *(self.last - token for token in spelled), self.end]


def read_fast_tokens(
    directory: Path,
    given: str | None,
    name: str,
    words: TextTokenizer,
    horizon: int,
    dim: int,
    skip: int,
    strict: bool,
) -> FastTokens:
    """The tokens of a checkpoint in ``directory``, whose FAST tokenizer it knows by ``name``;
    ``given``: the folder of the option ``tokenizer``. CheckpointError in one line."""
    return FastTokens(
        FastTokenizer(fast_folder(directory, given, name)),
        horizon,
        dim,
        words.size - 1 - skip,
        words.opening,
        tuple(words.plain(PREFIX)),
        words.id_of(END),
        strict,
    )


def write_fast_tokenizer(folder: Path) -> None:
    """A small one: a letter for every number from -128 to 127, pairs for runs of zeros."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    zero: list[str] = list(split.pre_tokenize_str(chr(128))[0][0])
    merges = [(zero[0], zero[1])]
    for _ in range(4):
        merges.append(("".join(merges[-1]),) * 2)
    vocab = {word: n for n, word in enumerate([*alphabet, *("".join(pair) for pair in merges)])}
    pairs = Tokenizer(models.BPE(vocab, merges))
    pairs.pre_tokenizer, pairs.decoder = split, decoders.ByteLevel()
    folder.mkdir()
    pairs.save(str(folder / "tokenizer.json"))
    said = {"processor_class": _CLASS, "scale": 10, "min_token": -128, "vocab_size": len(vocab)}
    write_json(folder / FAST_PROCESSOR, said)
