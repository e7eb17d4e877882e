"""Checkpoints by name: a folder, one that comes with the package, or a commit on the hub.

    /models/openvla-7b
    shipped:tabletop
    openvla/openvla-7b@COMMIT
    openvla/openvla-7b@COMMIT#/etc/vla/openvla-7b.sha256

A branch or a tag is refused: whoever can push to it would decide what a robot does next. What is
downloaded is compared with the hub's own hashes. A manifest says what it must be at all, before
anything is read: a list as `sha256sum` prints it, beside the weights as ``SHA256SUMS``, which finds
a bad copy, or elsewhere (``CHECKPOINT#FILE``), which finds somebody's change too.
"""

from __future__ import annotations

import fnmatch
import functools
import hashlib
import os
import re
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from vla_ros.core.files import BadFile, open_file, read_text, sha256_of
from vla_ros.core.names import known_or_nearest
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.io.files import AGAIN, SHIPPED_FOLDER, refuse_broken, some, state_of
from vla_ros.engine.io.foreign import foreign_files

WANTED = ("*.json", "*.safetensors", "tokenizer.model", "*.txt", "README.md")
SHIPPED = "shipped:"
MANIFEST = "SHA256SUMS"
#: What decides what a policy says: each of these at the top of a folder must be in its list.
DECIDES = ("*.safetensors", "*.json", "*.model", "*.txt")
#: ... but for what is written there later and changes its speed alone.
SPEED = ("heterospec.json",)
_LINE = re.compile(r"([0-9a-fA-F]{64}) [ *](.+)")
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
    """The id in ``owner/name[@revision]``; None: it is written in another way."""
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
    reached = _reachable()
    if reached:
        with suppress(Exception):
            names = HfApi().list_repo_files(what.repository, revision=what.revision)
    if judge is not None and (reason := judge(names, what.repository)):
        raise CheckpointError(reason)
    before = set(_snapshot(what).rglob("*"))
    try:
        found = Path(
            snapshot_download(
                what.repository,
                revision=what.revision,
                allow_patterns=list(wanted),
                local_files_only=not reached,  # what was downloaded before will do
            )
        )
    except Exception as error:
        if not reached:
            raise CheckpointError(
                f"{place!r} is not downloaded, and the hub cannot be reached: `hf download"
                f" {what.repository} --revision {what.revision} --local-dir DIRECTORY` where it can"
                " be, then give DIRECTORY"
            ) from error
        said = " ".join(str(error).split())
        raise CheckpointError(f"cannot download {place!r} from the hub: {said}") from error
    for file in sorted(set(found.rglob("*")) - before):
        _compare(file)
    return found


_PROXIES = ("HTTPS_PROXY", "ALL_PROXY")
_REACH_S = 3.0  # for the hub's address to take a connection


def _reachable() -> bool:
    """True where the hub's address takes connections: one look, where its library tries for a
    minute. A proxy is left to the library."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    if any(
        os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
    ):
        return True
    address = urlsplit(constants.ENDPOINT)
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname or "", port), _REACH_S).close()
    except OSError:
        return False
    return True


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
    """The commit of the branch or tag: by the hub, else by its cache, else ""."""
    from huggingface_hub import HfApi

    with suppress(Exception):
        if not _reachable():
            raise OSError
        return str(HfApi().model_info(what.repository, revision=what.revision or None).sha)
    with suppress(OSError, BadFile):
        text = read_text(_repository(what) / "refs" / (what.revision or "main")).strip()
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
        with open_file(blob) as stream:
            digest = hashlib.sha1(b"blob %d\0" % blob.stat().st_size, usedforsecurity=False)
            while block := stream.read(1 << 22):
                digest.update(block)
        found = digest.hexdigest()
    else:
        return
    if found != blob.name:
        raise CheckpointError(
            f"{file} is not what the hub has (its hash is {found[:12]}..., not"
            f" {blob.name[:12]}...): delete {blob} and {AGAIN}"
        )


def shipped(name: str) -> Path:
    """``shipped:<name>`` -> its directory. CheckpointError: there is none of that name."""
    wanted = name.removeprefix(SHIPPED)
    known = sorted(path.parent.name for path in SHIPPED_FOLDER.glob("*/config.json"))
    if wanted not in known:
        names = [SHIPPED + one for one in known]
        raise CheckpointError(f"no checkpoint {name!r}{known_or_nearest(name, names)}")
    return SHIPPED_FOLDER / wanted


def read_manifest(path: Path) -> dict[str, str]:
    """Name, relative to the folder, to SHA-256 in hexadecimal. CheckpointError: no such list."""
    refuse_broken(path)
    try:
        lines = read_text(path).splitlines()
    except BadFile as error:
        raise CheckpointError(f"{error}: write it with sha256sum") from error
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
        raise CheckpointError(f"{directory} lacks {some(lost, 5)}, which {manifest} lists: {AGAIN}")
    if more := sorted(there - wanted.keys()):
        raise CheckpointError(
            f"{manifest} does not list {some(more, 5)} of {directory}: take it away, or list it if"
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
    return sha256_of(path)


def _decides(name: str) -> bool:
    return name not in SPEED and any(fnmatch.fnmatch(name, one) for one in DECIDES)


def _lost(directory: Path, name: str) -> bool:
    """Names that are not downloaded: a list of a whole repository may have more."""
    return "/" not in name and _decides(name) and not (directory / name).is_file()


def resolve(name: str) -> Path:
    """The local directory of ``name``: itself, ``shipped:<name>``, or a commit on the hub.

    CheckpointError where it is none of them.
    """
    if name.startswith(SHIPPED):
        return shipped(name)
    return folder_of(name)
