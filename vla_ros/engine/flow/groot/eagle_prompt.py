"""Prompts of GR00T N1.5 and N1.6: Qwen3's words, and a place for every row of a picture.

Sources: NVIDIA/Isaac-GR00T n1.5 ``transforms.py`` (pictures, then the task, then the assistant's
turn), n1.6 ``processing_gr00t_n1d6.py`` (the task, then pictures), Eagle's ``chat_template.json``
and ``replace_media_placeholder``. Words between two special tokens are cut by themselves, as the
authors' tokenizer does.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from vla_ros.engine.checkpoints.files import read_json
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.flow.groot.eagle import IMAGE_TOKEN

VOCABULARY, MERGES, ADDED = "vocab.json", "merges.txt", "added_tokens.json"
START, END, PICTURE = "<|im_start|>", "<|im_end|>", "<IMG_CONTEXT>"
OPEN, CLOSE = "<img>", "</img>"
#: Ids that Eagle gives its own tokens, for a tokenizer of Qwen3 that does not know them.
_EAGLES = {PICTURE: IMAGE_TOKEN, OPEN: 151670, CLOSE: 151671}
_QWENS = {START: 151644, END: 151645}
_HEAD = f"{START}system\nYou are a helpful assistant.{END}\n{START}user\n"
_SPECIAL = re.compile(f"({'|'.join(map(re.escape, (START, END, OPEN, CLOSE, PICTURE)))})")
#: transformers ``tokenization_qwen2.py``
_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class EagleTokenizer:
    """Text -> ids with the tokenizer of a folder, or of the path that was given.

    A folder has ``tokenizer.json``, or ``vocab.json``, ``merges.txt`` and ``added_tokens.json`` as
    they lie beside NVIDIA's code. CheckpointError in one line where there is none or it belongs to
    another model; ``image_token`` is the model's id of a picture's place.
    """

    def __init__(
        self, directory: Path, given: str | None, vocab: int, image_token: int = IMAGE_TOKEN
    ) -> None:
        self._folder = _folder(directory, given)
        self._tokenizer, added = _read(self._folder)
        self._vocab = vocab
        self._special = {n: self._id(n, added) for n in (START, END, OPEN, CLOSE, PICTURE)}
        if self._special[PICTURE] != image_token:
            raise CheckpointError(
                f"{self._folder} gives {PICTURE} the id {self._special[PICTURE]}, the model has"
                f" {image_token}: they do not belong together"
            )

    def __call__(self, text: str) -> list[int]:
        """Ids of a whole chat, whose special tokens are spelled out."""
        ids: list[int] = []
        for piece in _SPECIAL.split(text):
            if piece in self._special:
                ids.append(self._special[piece])
            elif piece:
                ids += self._tokenizer.encode(piece, add_special_tokens=False).ids
        if max(ids, default=0) >= self._vocab:
            raise CheckpointError(
                f"{self._folder} gives ids up to {max(ids)}, the model has {self._vocab}: they do"
                " not belong together"
            )
        return ids

    def _id(self, token: str, added: dict[str, Any]) -> int:
        found = added.get(token, self._tokenizer.token_to_id(token))
        qwens = all(self._tokenizer.token_to_id(t) == i for t, i in _QWENS.items())
        if found is None and qwens:  # Qwen3's own tokenizer ends in front of Eagle's tokens
            found = _EAGLES.get(token)
        if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found < self._vocab:
            raise CheckpointError(
                f"the tokenizer in {self._folder} has no token {token}: it is not Eagle's"
            )
        return found


def pictures_first(task: str, views: int, tokens: int) -> str:
    """N1.5's chat, of so many pictures with so many places each. ValueError: see :func:`plain`."""
    return f"{_HEAD}{_pictures(views, tokens)}{plain(task)}{END}\n{START}assistant\n"


def task_first(task: str, views: int, tokens: int) -> str:
    """N1.6's chat, of so many pictures with so many places each. ValueError: see :func:`plain`."""
    return f"{_HEAD}{plain(task)}{_pictures(views, tokens)}{END}\n"


def plain(task: str) -> str:
    """An instruction; ValueError where it would end the chat or hold the place of a picture."""
    if found := _SPECIAL.search(task):
        raise ValueError(f"an instruction cannot have {found.group()} in it")
    return task


def _pictures(views: int, tokens: int) -> str:
    return "".join(f"<image {i + 1}>{OPEN}{PICTURE * tokens}{CLOSE}" for i in range(views))


def _folder(directory: Path, given: str | None) -> Path:
    places = [directory, directory / "tokenizer"]
    if given:
        chosen = Path(given).expanduser()
        places = [chosen if chosen.is_dir() else chosen.parent]
    for place in places:
        if (place / "tokenizer.json").is_file():
            return place
        if (place / VOCABULARY).is_file() and (place / MERGES).is_file():
            return place
    raise CheckpointError(
        f"no tokenizer in {places[0]}: copy {VOCABULARY}, {MERGES} and {ADDED} there from Eagle's"
        " folder beside NVIDIA's code, or name their folder with the option 'tokenizer'"
    )


def _read(folder: Path) -> tuple[Any, dict[str, Any]]:
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    added = read_json(folder / ADDED) if (folder / ADDED).is_file() else {}
    try:
        if (folder / "tokenizer.json").is_file():
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            tokenizer.no_padding()
            tokenizer.no_truncation()
            return tokenizer, added
        files = (str(folder / VOCABULARY), str(folder / MERGES))
        tokenizer = Tokenizer(models.BPE.from_file(*files))
    except Exception as error:  # tokenizers raises plain Exception
        raise CheckpointError(f"{folder} has no tokenizer that can be read: {error}") from error
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return tokenizer, added
