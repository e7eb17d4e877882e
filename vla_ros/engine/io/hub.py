"""Checkpoints by name: a folder, or a commit of a repository on the Hugging Face hub.

    /models/openvla-7b
    openvla/openvla-7b@COMMIT
    openvla/openvla-7b@COMMIT#/etc/vla/openvla-7b.sha256

A branch or a tag is refused: whoever can push to it would decide what a robot does next. What is
downloaded is compared with the hub's own hashes; a manifest says what it must be at all.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vla_ros.engine.checkpoints.family import foreign_files
from vla_ros.engine.checkpoints.files import AGAIN
from vla_ros.engine.checkpoints.manifest import MANIFEST, check_manifest, sha256_of_file
from vla_ros.engine.errors import CheckpointError

WANTED = ("*.json", "*.safetensors", "tokenizer.model", "*.txt")
_COMMIT = re.compile(r"[0-9a-f]{40}")
Judge = Callable[[Sequence[str], str], str | None]


@dataclass(frozen=True, slots=True)
class HubId:
    """A repository and what of it: a commit, a branch, a tag; "": nothing was said."""

    repository: str
    revision: str = ""

    @property
    def pinned(self) -> bool:
        return _COMMIT.fullmatch(self.revision) is not None


def hub_id(place: str) -> HubId | None:
    """What ``owner/name[@revision]`` names; None: it is written in another way."""
    repository, at, revision = place.partition("@")
    if repository.count("/") != 1 or repository.startswith((".", "/", "~")):
        return None
    if at and not revision:
        return None
    return HubId(repository, revision)


def folder_of(
    name: str, wanted: Sequence[str] = WANTED, judge: Judge | None = foreign_files
) -> Path:
    """The local folder of ``name``: itself, or a commit's in the hub's cache, with its manifest
    checked where there is one.

    ``wanted``: patterns of the files to download. ``judge`` says of the names of a repository's
    files and its own what is against reading it. CheckpointError: it is none of them, it is not
    pinned, or a hash differs.
    """
    place, mark, manifest = name.partition("#")
    if Path(name).expanduser().is_dir():
        place, mark, manifest = name, "", ""
    path = Path(place).expanduser()
    found = path if path.is_dir() else _download(place, path, wanted, judge)
    if mark and not manifest:
        raise CheckpointError(f"{name!r}: after # comes the file of SHA-256 sums")
    if manifest:
        check_manifest(found, Path(manifest).expanduser())
    elif (found / MANIFEST).is_file():
        check_manifest(found, found / MANIFEST)
    return found


def _download(place: str, path: Path, wanted: Sequence[str], judge: Judge | None) -> Path:
    what = hub_id(place)
    if path.exists() or what is None:
        raise CheckpointError(f"{place!r} is neither a directory nor a hub id (owner/name@commit)")
    try:
        from huggingface_hub import HfApi, snapshot_download
    except ImportError as error:
        raise CheckpointError(
            f"{place!r} is no directory, and huggingface_hub is not installed"
        ) from error
    if not what.pinned:
        raise CheckpointError(_not_pinned(what))
    names: list[str] = []
    with suppress(Exception):  # without a network, what was downloaded before will do
        names = HfApi().list_repo_files(what.repository, revision=what.revision)
    if judge is not None and (reason := judge(names, what.repository)):
        raise CheckpointError(reason)
    before = set(_snapshot(what).rglob("*"))
    try:
        found = Path(
            snapshot_download(what.repository, revision=what.revision, allow_patterns=list(wanted))
        )
    except Exception as error:
        said = " ".join(str(error).split())
        raise CheckpointError(f"cannot download {place!r} from the hub: {said}") from error
    for file in sorted(set(found.rglob("*")) - before):
        _compare(file)
    return found


def _not_pinned(what: HubId) -> str:
    said = f"{what.revision} is" if what.revision else "main is"
    now = _commit_of(what)
    hint = f" ({said} now {what.repository}@{now})" if now else ""
    found = f"{what.revision!r} is no commit" if what.revision else "it is not pinned"
    return (
        f"{what.repository}: {found}, and a robot must not load what a branch happens to point"
        f" at: give owner/name@COMMIT with all 40 digits{hint}"
    )


def _commit_of(what: HubId) -> str:
    """What the branch or tag points at: by the hub, else by its cache, else ""."""
    from huggingface_hub import HfApi

    with suppress(Exception):
        return str(HfApi().model_info(what.repository, revision=what.revision or None).sha)
    with suppress(OSError):
        text = (_repository(what) / "refs" / (what.revision or "main")).read_text().strip()
        return text if _COMMIT.fullmatch(text) else ""
    return ""


def _repository(what: HubId) -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / f"models--{what.repository.replace('/', '--')}"


def _snapshot(what: HubId) -> Path:
    return _repository(what) / "snapshots" / what.revision


def _compare(file: Path) -> None:
    """The cache names a file by its hash: SHA-256 of large ones, git's of the others. Raise
    CheckpointError where it has another. A cache without links keeps no such names."""
    if not file.is_symlink() or not file.is_file():
        return
    blob = file.resolve()
    if re.fullmatch(r"[0-9a-f]{64}", blob.name):
        found = sha256_of_file(blob)
    elif _COMMIT.fullmatch(blob.name):
        data = blob.read_bytes()
        found = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    else:
        return
    if found != blob.name:
        raise CheckpointError(
            f"{file} is not what the hub has (its hash is {found[:12]}..., not"
            f" {blob.name[:12]}...): delete {blob} and {AGAIN}"
        )
