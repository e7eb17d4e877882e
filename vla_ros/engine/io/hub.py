"""Checkpoints by name: a folder, one that comes with the package, or a commit on the hub.

    /models/openvla-7b
    shipped:tabletop
    lerobot/smolvla_base
    openvla/openvla-7b@COMMIT
    openvla/openvla-7b@COMMIT#/etc/vla/openvla-7b.sha256

Whoever can push to a branch would decide what a robot does next. So an id without a commit is
resolved once, and held to that commit and to the hashes of its files from then on
(:mod:`vla_ros.engine.io.lock`). What is downloaded is compared with the hub's own hashes. A
manifest says what it must be at all, before anything is read: a list as `sha256sum` prints it,
beside the weights as ``SHA256SUMS``, which finds a bad copy, or elsewhere (``CHECKPOINT#FILE``),
which finds somebody's change too.
"""

from __future__ import annotations

import fnmatch
import functools
import hashlib
import os
import re
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from vla_ros.core.console import log_line
from vla_ros.core.files import BadFile, open_file, read_text, sha256_of
from vla_ros.core.names import known_or_nearest, nearest
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.io import lock
from vla_ros.engine.io.files import AGAIN, SHIPPED_FOLDER, refuse_broken, some, state_of
from vla_ros.engine.io.foreign import foreign_files

WANTED = ("*.json", "*.safetensors", "tokenizer.model", "*.txt", "README.md")
SHIPPED = "shipped:"
RANDOM = "random:"  # prefix of a preset's name: weights are drawn
MANIFEST = "SHA256SUMS"
#: What decides what a policy says: each of these at the top of a folder must be in its list.
DECIDES = ("*.safetensors", "*.json", "*.model", "*.txt")
#: ... but for what is written there later and changes its speed alone.
SPEED = ("heterospec.json",)
PRECISION = "precision"  # the folder of verdicts, likewise
_LINE = re.compile(r"([0-9a-fA-F]{64}) [ *](.+)")
Judge = Callable[[Sequence[str], str], str | None]


@dataclass(frozen=True, slots=True)
class HubId:
    """A repository and what of it: a commit, a branch, a tag; "": its main branch."""

    repository: str
    revision: str = ""

    @property
    def pinned(self) -> bool:
        return lock.COMMIT.fullmatch(self.revision) is not None

    def __str__(self) -> str:
        return f"{self.repository}@{self.revision}" if self.revision else self.repository


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
    files and its own what is against reading it. CheckpointError: it is none of them, the hub
    cannot be asked, or a hash differs.
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
    what = _hub_id_of(place, path)
    if what.pinned:
        return _fetch(what, wanted, judge, _reachable())[0]
    return _held(what, wanted, judge)


def _hub_id_of(place: str, path: Path) -> HubId:
    """The hub id that a name which is no folder means. CheckpointError: none, or it looks like a
    mistyped folder."""
    if path.exists():
        raise CheckpointError(f"{place!r} is a file: give the folder that it is in")
    what = hub_id(place)
    if what is None:
        raise CheckpointError(
            f"{place!r} is neither a directory nor a hub id (owner/name, or owner/name@commit)"
            f"{_nearest_folder(place, path)}"
        )
    if not what.revision and path.parent.is_dir() and not _known(what):
        there = _nearest_folder(place, path) or f", though {path.parent} is here"
        raise CheckpointError(f"there is no folder {place!r}{there} (the hub's: {place}@main)")
    return what


def _known(what: HubId) -> bool:
    """True of an id that a lock holds, or of which something was downloaded."""
    if lock.find(str(what)) is not None:
        return True
    try:
        return _repository(what).is_dir()
    except ImportError:
        return False


def _nearest_folder(place: str, path: Path) -> str:
    """End of a line about a folder that is not there: the one that may be meant."""
    names = {SHIPPED + one: one for one in _shipped_names()} if path.parent == Path() else {}
    with suppress(OSError):
        beside = (one for one in path.parent.iterdir() if one.is_dir())
        names |= {str(one): one.name for one in beside if not one.name.startswith(".")}
    near = nearest(path.name, names.values())
    meant = [name for name, last in names.items() if near.endswith(f"{last!r}?")]
    return f": did you mean {meant[0]!r}?" if meant else ""


def look(name: str) -> Path | None:
    """The local folder of ``name``, before anything is downloaded or compared; None: it comes from
    the hub, or is drawn. CheckpointError, at once, where :func:`resolve` could only fail: there is
    no such folder, or it is not here and the hub cannot be reached."""
    if name.startswith(SHIPPED):
        return shipped(name)
    if name.startswith(RANDOM):
        return None
    place = name if Path(name).expanduser().is_dir() else name.partition("#")[0]
    path = Path(place).expanduser()
    if path.is_dir():
        return path
    what = _hub_id_of(place, path)
    held = None if what.pinned else lock.find(str(what))
    pinned = what if what.pinned else HubId(what.repository, held.commit if held else "-")
    try:
        here = _snapshot(pinned).is_dir()
    except ImportError as error:
        raise CheckpointError(_no_library(what)) from error
    if not here and not _reachable():
        if what.pinned or held:
            raise CheckpointError(_unreachable(what))
        _commit_of(what, reached=False)  # the cache may know its branch
    return None


def _held(what: HubId, wanted: Sequence[str], judge: Judge | None) -> Path:
    """The folder of an id without a commit: of the one that it is held to, or is from now on."""
    if (held := lock.find(str(what))) is None:
        reached = _reachable()
        commit = _commit_of(what, reached)
        found, _ = _fetch(HubId(what.repository, commit), wanted, judge, reached)
        held = lock.Held(commit, sums_of(found), tuple(wanted))
        where = lock.write(str(what), held)
        log_line(f"{what} is held to {commit} by {where}; `{lock.RENEW} {what}` asks the hub anew")
        return found
    pinned = HubId(what.repository, held.commit)
    known = {name: digest for name, digest in held.files.items() if _matches(name, wanted)}
    found, fresh, reached = _snapshot(pinned), frozenset[str](), False
    # A whole copy of what is held needs no hub: whatever it says now is not asked for.
    if not set(wanted) <= set(held.wanted) or any(not (found / name).is_file() for name in known):
        reached = _reachable()
        found, fresh = _fetch(pinned, wanted, judge, reached)
    elif judge is not None and (reason := judge(sorted(held.files), what.repository)):
        raise CheckpointError(reason)
    _compare_with_lock(found, what, held, known, fresh)
    more = {*wanted} - {*held.wanted} if reached else set[str]()
    if more or lock.locks()[0] != held.source:
        files = {**held.files, **{name: sha256_of_file(found / name) for name in fresh}}
        patterns = (*held.wanted, *sorted(more))
        lock.write(str(what), lock.Held(held.commit, files, patterns), again=bool(more))
    return found


def renew(name: str) -> tuple[lock.Held | None, lock.Held]:
    """Resolve an id without a commit anew and hold it to what the hub has now: what it was held to
    before (None: nothing), and is now. CheckpointError: the hub cannot be asked."""
    what = hub_id(name)
    if what is None or what.pinned:
        raise CheckpointError(f"{name!r} is no hub id without a commit: give owner/name")
    if not (reached := _reachable()):
        raise CheckpointError(_unreachable(what))
    before = lock.find(name)
    commit = _commit_of(what, reached)
    wanted = before.wanted if before else WANTED
    found, _ = _fetch(HubId(what.repository, commit), wanted, foreign_files, reached)
    held = lock.Held(commit, sums_of(found), wanted)
    return before, replace(held, source=lock.write(name, held, again=True))


def sums_of(folder: Path) -> dict[str, str]:
    """Name, relative to ``folder``, to SHA-256 of each file that came from the hub."""
    return {name: sha256_of_file(folder / name) for name in sorted(_files(folder))}


def _files(folder: Path) -> set[str]:
    """Names of the files of a snapshot, without those that are written there later."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {str(p) for p in paths if p.name not in SPEED and p.parts[0] != PRECISION}


def _compare_with_lock(
    found: Path, what: HubId, held: lock.Held, known: dict[str, str], fresh: frozenset[str]
) -> None:
    """Raise CheckpointError where a snapshot is not what its lock says. ``fresh``: files that have
    just come from the hub, of this commit."""
    again = f"delete {found} and {AGAIN}, or run `{lock.RENEW} {what}` if the change is yours"
    if lost := sorted(name for name in known if not (found / name).is_file()):
        raise CheckpointError(f"{found} lacks {some(lost, 5)}, which {held.source} lists: {AGAIN}")
    if more := sorted(_files(found) - held.files.keys() - fresh):
        raise CheckpointError(f"{found} has {some(more, 5)}, not in {held.source}: {again}")
    for name, wanted in sorted(known.items()):
        if (digest := sha256_of_file(found / name)) != wanted:
            raise CheckpointError(
                f"{found / name} is not the file that {what} is held to by {held.source} (SHA-256"
                f" {digest[:12]}..., wanted {wanted[:12]}...): {again}"
            )


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def _fetch(
    what: HubId, wanted: Sequence[str], judge: Judge | None, reached: bool
) -> tuple[Path, frozenset[str]]:
    """The snapshot of a commit, and the names of its files that were not here before."""
    try:
        from huggingface_hub import HfApi, snapshot_download
    except ImportError as error:
        raise CheckpointError(_no_library(what)) from error
    names: list[str] = []
    if reached:
        with suppress(Exception):
            names = HfApi().list_repo_files(what.repository, revision=what.revision)
    if judge is not None and (reason := judge(names, what.repository)):
        raise CheckpointError(reason)
    folder = _snapshot(what)
    before = set(folder.rglob("*"))
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
            raise CheckpointError(_unreachable(what)) from error
        said = " ".join(str(error).split())
        raise CheckpointError(f"cannot download '{what}' from the hub: {said}") from error
    fresh = set(found.rglob("*")) - before
    for file in sorted(fresh):
        _compare(file)
    return found, frozenset(str(file.relative_to(found)) for file in fresh if file.is_file())


def _unreachable(what: HubId) -> str:
    revision = f" --revision {what.revision}" if what.revision else ""
    return (
        f"'{what}' is not downloaded, and the hub cannot be reached: `hf download"
        f" {what.repository}{revision} --local-dir DIRECTORY` where it can be, then give DIRECTORY"
    )


def _no_library(what: HubId) -> str:
    return f"'{what}' is no directory, and huggingface_hub is not installed"


_REACH_S = 2.0  # for the hub's address to be found and to take a connection


def _reachable() -> bool:
    """True where the hub's address takes connections: one look, where its library tries for a
    minute. A proxy is left to the library."""
    try:
        from huggingface_hub import constants
    except ImportError:
        return False
    if constants.HF_HUB_OFFLINE:
        return False
    if any(
        os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
    ):
        return True
    address = urlsplit(constants.ENDPOINT)
    port = address.port or (80 if address.scheme == "http" else 443)
    answered = threading.Event()

    def look() -> None:
        with suppress(OSError):
            socket.create_connection((address.hostname or "", port), _REACH_S).close()
            answered.set()

    # A name server that is not there holds its caller for longer than any timeout of a socket.
    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    looking.join(_REACH_S)
    return answered.is_set()


def _commit_of(what: HubId, reached: bool) -> str:
    """The commit of the branch or tag: by the hub, else by its cache. CheckpointError: neither."""
    try:
        from huggingface_hub import HfApi
    except ImportError as error:
        raise CheckpointError(_no_library(what)) from error
    if reached:
        try:
            info = HfApi().model_info(
                what.repository, revision=what.revision or None, timeout=_ASK_S
            )
        except Exception as error:
            said = " ".join(str(error).split())
            raise CheckpointError(
                f"'{what}' is no directory here, and the hub does not say its commit: {said}"
            ) from error
        if lock.COMMIT.fullmatch(commit := str(info.sha)) is None:
            raise CheckpointError(f"the hub gives no commit of '{what}', but {commit!r}")
        return commit
    with suppress(OSError, BadFile):
        text = read_text(_repository(what) / "refs" / (what.revision or "main")).strip()
        if lock.COMMIT.fullmatch(text):
            return text
    raise CheckpointError(_unreachable(what))


_ASK_S = 10.0  # for the hub to say a commit


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
    elif lock.COMMIT.fullmatch(blob.name):
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
    wanted, known = name.removeprefix(SHIPPED), _shipped_names()
    if wanted not in known:
        names = [SHIPPED + one for one in known]
        raise CheckpointError(f"no checkpoint {name!r}{known_or_nearest(name, names)}")
    return SHIPPED_FOLDER / wanted


def _shipped_names() -> list[str]:
    return sorted(path.parent.name for path in SHIPPED_FOLDER.glob("*/config.json"))


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
