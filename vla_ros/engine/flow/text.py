"""Prompts of the flow policies, and the state as words.

Sources: lerobot 0.6.1 ``processor_pi0.py`` (a new line ends the task), ``processor_pi05.py``
(the state in 256 bins is part of the prompt), ``processor_smolvla.py``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from vla_ros.engine.checkpoints.files import read_json
from vla_ros.engine.errors import CheckpointError

BINS = 256
Ints = npt.NDArray[np.int64]


def state_bins(state: npt.NDArray[np.float32]) -> Ints:
    """Bins of a normalised state [n]: 0 to 255 in [-1, 1], -1 below it; float32 against float64
    edges, as the reference compares them."""
    edges = np.linspace(-1, 1, BINS + 1)[:-1]
    return np.asarray(np.digitize(state, bins=edges) - 1, dtype=np.int64)


def prompt_text(kind: str, task: str, bins: Ints | None = None) -> str:
    """What is tokenised; ``bins`` are pi0.5's."""
    if kind != "pi05":
        return task if task.endswith("\n") else f"{task}\n"
    assert bins is not None
    cleaned = task.strip().replace("_", " ").replace("\n", " ")
    return f"Task: {cleaned}, State: {' '.join(map(str, bins))};\nAction: "


class PromptTokenizer:
    """Text -> ids with the tokenizer of a folder, or of the path that was given.

    CheckpointError in one line where there is none or it belongs to another model.
    """

    def __init__(self, directory: Path, given: str | None, name: str, vocab: int) -> None:
        path = _find(directory, given, name)
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:
            raise CheckpointError(f"{path} is no tokenizer: {error}") from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._path, self._vocab = path, vocab
        self._bos = _bos(path.parent / "tokenizer_config.json")

    def __call__(self, text: str) -> list[int]:
        ids = list(self._tokenizer.encode(text).ids)
        if self._bos is not None:
            first = self._tokenizer.token_to_id(self._bos)
            if first is not None and ids[:1] != [first]:
                ids.insert(0, first)
        if not ids or max(ids) >= self._vocab:
            raise CheckpointError(
                f"{self._path} gives {len(ids)} ids up to {max(ids, default=-1)}, the model has"
                f" {self._vocab}: they do not belong together"
            )
        return ids

    def id_of(self, token: str) -> int:
        """The id of a token by its name. CheckpointError: there is none."""
        found = self._tokenizer.token_to_id(token)
        if found is None or found >= self._vocab:
            raise CheckpointError(f"{self._path} has no token {token} below {self._vocab}")
        return int(found)


def _find(directory: Path, given: str | None, name: str) -> Path:
    """``tokenizer.json`` at the path given, in the checkpoint, or where its name is a folder."""
    places = [directory, directory / "tokenizer"]
    if name and (Path(name).is_absolute() or (directory / name).is_dir()):
        places.append(directory / name)
    if given:
        chosen = Path(given).expanduser()
        places = [chosen if chosen.is_dir() else chosen.parent]
    for place in places:
        if (place / "tokenizer.json").is_file():
            return place / "tokenizer.json"
    raise CheckpointError(
        f"no tokenizer.json in {places[0]}: copy that of {name or 'the language model'} there,"
        " or name its folder with the option 'tokenizer'"
    )


def _bos(path: Path) -> str | None:
    """The token that opens every prompt, where tokenizer_config.json asks for one."""
    if not path.is_file():
        return None
    raw = read_json(path)
    token = raw.get("bos_token")
    token = token.get("content") if isinstance(token, dict) else token
    return token if raw.get("add_bos_token") is True and isinstance(token, str) else None
