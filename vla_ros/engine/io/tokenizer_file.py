"""A tokenizer of a stranger's ``tokenizer.json``, looked at before the Rust library reads it.

That library trusts its file: a template of a few megabytes makes an instruction of gigabytes, and
some content ends the process or panics past every ``except Exception``. So the file is read as our
JSON, its parts must be ones that tokenizers of known checkpoints have, of their sizes, and the
library is given what was looked at, not the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_ros.core.files import TOKENIZER
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.io.files import AGAIN, read_json

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

_MODELS = ("BPE", "Unigram", "WordPiece", "WordLevel")
#: What known checkpoints have; not Precompiled, whose bytes the library trusts.
_PARTS = {
    "normalizer": (
        "Sequence", "Prepend", "Replace", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip",
        "StripAccents", "BertNormalizer", "ByteLevel",
    ),
    "pre_tokenizer": (
        "Sequence", "Split", "ByteLevel", "Metaspace", "Digits", "Punctuation", "Whitespace",
        "WhitespaceSplit", "BertPreTokenizer",
    ),
    "post_processor": (
        "Sequence", "TemplateProcessing", "ByteLevel", "BertProcessing", "RobertaProcessing",
    ),
    "decoder": (
        "Sequence", "ByteLevel", "ByteFallback", "Fuse", "Strip", "Replace", "Metaspace",
        "BPEDecoder", "WordPiece",
    ),
}  # fmt: skip
_COMPONENTS = 16  # in a part; the most known is 5
_REPLACED = 4  # letters that one becomes, of as many rules at most: they multiply
_PATTERN = 1_000  # characters of a regular expression; the longest known has 300
_TEMPLATE = 16  # pieces around a text, and tokens of a piece
_ADDED = 20_000  # tokens beside the vocabulary; the most known are 6,415
_TOKEN = 1_000  # characters of one
_IDS = 10_000_000  # no vocabulary is larger


class FileTokenizer:
    """Text <-> ids by a tokenizer of a file. A panic of the library, over a pattern that an
    instruction brings to its limit, is a CheckpointError: it would end the process."""

    def __init__(self, tokenizer: Tokenizer, path: Path) -> None:
        self._tokenizer, self._path = tokenizer, path

    def encode(self, text: str, add_special_tokens: bool = True) -> Encoding:
        with _refusing_panics(self._path):
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        with _refusing_panics(self._path):
            return str(self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def token_to_id(self, token: str) -> int | None:
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def added_tokens(self) -> dict[int, str]:
        """The tokens beside the vocabulary, by their ids."""
        found = self._tokenizer.get_added_tokens_decoder()
        return {number: str(token.content) for number, token in found.items()}

    def vocab_size(self, with_added_tokens: bool = True) -> int:
        return int(self._tokenizer.get_vocab_size(with_added_tokens=with_added_tokens))


def open_tokenizer(path: Path) -> FileTokenizer:
    """The tokenizer in ``path``, which neither pads nor cuts off. CheckpointError, in one line:
    there is none, it is damaged, or has what no tokenizer of a known checkpoint has."""
    content = checked(path)
    from tokenizers import Tokenizer

    with refusing(path):
        found = Tokenizer.from_str(json.dumps(content))
        found.no_padding()  # which some store in it, for training
        found.no_truncation()
        found.encode("pick up the red cube")  # some content shows itself only here
    return FileTokenizer(found, path)


def checked(path: Path) -> Any:
    """What stands in a ``tokenizer.json``. CheckpointError as of :func:`open_tokenizer`, before the
    library sees it."""
    content = read_json(path, TOKENIZER)
    if wrong := next(_wrong(content), None):
        raise CheckpointError(
            f"{path} is no tokenizer that is read: {wrong}, as none of a known checkpoint"
        )
    return content


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Whatever the library raises about ``path`` becomes a CheckpointError in one line."""
    with _refusing_panics(path):
        try:
            yield
        except Exception as error:
            raise _refusal(path, error) from None


@contextmanager
def _refusing_panics(path: Path) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        # A panic of Rust is no Exception, and has no class that could be imported.
        if type(error).__name__ != "PanicException":
            raise
        raise _refusal(path, error) from None


def _refusal(path: Path, error: BaseException) -> CheckpointError:
    said = " ".join(str(error).split())[:200]
    return CheckpointError(f"{path} is no tokenizer of this format ({said}): {AGAIN}")


def _wrong(content: Mapping[str, Any]) -> Iterator[str]:
    """What must not be in such a file, of the parts that decide how much a text becomes."""
    for part, known in _PARTS.items():
        components = list(_components(content.get(part)))
        if len(components) > _COMPONENTS:
            yield f"its {part} has {len(components):,} components"
        for one in components:
            if one.get("type") not in known:
                yield f"its {part} is {str(one.get('type'))[:40]!r}"
            yield from _wrong_component(part, one)
        if sum(one.get("type") in ("Replace", "Prepend") for one in components) > _REPLACED:
            yield f"its {part} replaces more than {_REPLACED} things"
    yield from _wrong_added(content.get("added_tokens") or [])
    yield from _wrong_model(content.get("model"))


def _components(part: Any) -> Iterator[Mapping[str, Any]]:
    """A part and, of a sequence, the parts in it."""
    if isinstance(part, Mapping):
        yield part
        for value in part.values():
            if isinstance(value, list):
                for inner in value:
                    if isinstance(inner, Mapping) and "type" in inner:
                        yield from _components(inner)


def _wrong_component(part: str, one: Mapping[str, Any]) -> Iterator[str]:
    for name in ("content", "prepend", "replacement"):
        if len(str(one.get(name, ""))) > _REPLACED:
            yield f"its {part} puts {len(str(one[name])):,} letters in place of one"
    if len(str(one.get("pattern", ""))) > _PATTERN:
        yield f"its {part} has a pattern of {len(str(one['pattern'])):,} characters"
    if one.get("type") != "TemplateProcessing":
        return
    tokens = one.get("special_tokens")
    pieces = [one.get("single"), one.get("pair"), tokens]
    for values in tokens.values() if isinstance(tokens, Mapping) else ():
        if isinstance(values, Mapping):
            pieces += [values.get("ids"), values.get("tokens")]
    longest = max((len(p) for p in pieces if isinstance(p, list | Mapping | str)), default=0)
    if longest > _TEMPLATE:
        yield f"its template has {longest:,} pieces"


def _wrong_added(added: Any) -> Iterator[str]:
    if not isinstance(added, list) or len(added) > _ADDED:
        yield f"it has {len(added):,} added tokens"
        return
    for one in added:
        found = one if isinstance(one, Mapping) else {}
        number, text = found.get("id"), found.get("content")
        if not isinstance(text, str) or len(text) > _TOKEN or not _is_id(number):
            yield f"it has an added token {str(one)[:60]}"


def _wrong_model(model: Any) -> Iterator[str]:
    kind = model.get("type", "BPE") if isinstance(model, Mapping) else type(model).__name__
    if kind not in _MODELS:
        yield f"its model is {str(kind)[:40]!r}"
        return
    vocab = model.get("vocab")
    if isinstance(vocab, Mapping) and not all(map(_is_id, vocab.values())):
        yield "its vocabulary has a token whose id is none"


def _is_id(number: Any) -> bool:
    return type(number) is int and 0 <= number < _IDS
