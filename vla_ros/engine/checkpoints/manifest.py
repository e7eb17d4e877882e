"""SHA-256 of a checkpoint's files, compared with a list of them before anything is read.

The list is what `sha256sum` prints. It lies beside the weights as ``SHA256SUMS``, which finds a
bad copy, or elsewhere (``CHECKPOINT#FILE``), which finds somebody's change too.
"""

from __future__ import annotations

import fnmatch
import functools
import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from vla_ros.engine.checkpoints.files import AGAIN, refuse_broken, state_of
from vla_ros.engine.errors import CheckpointError

MANIFEST = "SHA256SUMS"
#: What decides what a policy says: each of these at the top of a folder must be in its list.
DECIDES = ("*.safetensors", "*.json", "*.model", "*.txt")
#: ... but for what is written there later and changes its speed alone.
SPEED = ("heterospec.json",)
_LINE = re.compile(r"([0-9a-fA-F]{64}) [ *](.+)")


def read_manifest(path: Path) -> dict[str, str]:
    """Name, relative to the folder, to SHA-256 in hexadecimal. CheckpointError: no such list."""
    refuse_broken(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is no text in UTF-8: write it with sha256sum") from error
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.rstrip())
        if match is None:
            raise CheckpointError(
                f"{path}, line {number}: wanted 64 hexadecimal digits, two spaces and a name, as"
                " sha256sum writes them"
            )
        name = match[2].removeprefix("./")
        if found.get(name, match[1].lower()) != match[1].lower():
            raise CheckpointError(f"{path} lists {name} twice, with different sums")
        found[name] = match[1].lower()
    if not found:
        raise CheckpointError(f"{path} lists nothing: write it with sha256sum")
    return found


def check_manifest(directory: Path, manifest: Path) -> None:
    """Raise CheckpointError unless every file of ``directory`` that decides what the policy says
    is listed, there, and the one that the list means. Each file is read once a process."""
    wanted = read_manifest(manifest)
    there = {path.name for path in directory.iterdir() if path.is_file() and _decides(path.name)}
    if lost := sorted(name for name in wanted if _lost(directory, name)):
        raise CheckpointError(f"{directory} lacks {_some(lost)}, which {manifest} lists: {AGAIN}")
    if more := sorted(there - wanted.keys()):
        raise CheckpointError(
            f"{manifest} does not list {_some(more)} of {directory}: take it away, or list it if"
            " it belongs there"
        )
    for name in sorted(wanted):
        path = directory / name
        if path.is_file() and (found := sha256_of_file(path)) != wanted[name]:
            raise CheckpointError(
                f"{path} is not the file that {manifest} means (SHA-256 {found[:12]}..., wanted"
                f" {wanted[name][:12]}...): {AGAIN}"
            )


def sha256_of_file(path: Path) -> str:
    """In hexadecimal; a file that has not changed since is not read again."""
    refuse_broken(path)
    return _sha256(path.resolve(), state_of(path))


@functools.lru_cache(maxsize=4096)
def _sha256(path: Path, state: tuple[int, int, int]) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def _decides(name: str) -> bool:
    return name not in SPEED and any(fnmatch.fnmatch(name, one) for one in DECIDES)


def _lost(directory: Path, name: str) -> bool:
    """Of a list of a whole repository only what is downloaded need be there."""
    return "/" not in name and _decides(name) and not (directory / name).is_file()


def _some(names: Iterable[str], limit: int = 5) -> str:
    names = list(names)
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest
