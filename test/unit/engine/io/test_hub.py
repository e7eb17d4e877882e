"""Checkpoints by name: pinned to a commit, held to hashes, in the hub's own cache on disk."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")

import huggingface_hub
from huggingface_hub import constants

from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.io import hub

COMMIT, LATER = "0123456789" * 4, "abcdef0123" * 4
NAME = "somebody/policy"
FILES = {"config.json": b'{"a": 1}', "model.safetensors": b"weights" * 100}


class FakeHub:
    """huggingface_hub's cache, written as it writes it, and nothing behind it."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "models--somebody--policy"

    def add(self, commit: str, files: dict[str, bytes], branch: str = "") -> Path:
        snapshot = self.folder / "snapshots" / commit
        snapshot.mkdir(parents=True)
        for name, data in files.items():
            self.put(snapshot, name, data)
        if branch:
            (self.folder / "refs").mkdir(exist_ok=True)
            (self.folder / "refs" / branch).write_text(commit)
        return snapshot

    def put(self, snapshot: Path, name: str, data: bytes, stored: bytes | None = None) -> None:
        """``stored``: what lies on disk under the hash of ``data``."""
        large = name.endswith(".safetensors")
        git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        digest = hashlib.sha256(data).hexdigest() if large else git
        blob = self.folder / "blobs" / digest
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data if stored is None else stored)
        (snapshot / name).symlink_to(Path("..") / ".." / "blobs" / digest)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return FakeHub(tmp_path)


def listed(folder: Path, *names: str) -> str:
    """As sha256sum says it."""
    sums = ((hashlib.sha256((folder / name).read_bytes()).hexdigest(), name) for name in names)
    return "".join(f"{digest}  {name}\n" for digest, name in sums)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("a/b", hub.HubId("a/b")),
        ("a/b@main", hub.HubId("a/b", "main")),
        (f"a/b@{COMMIT}", hub.HubId("a/b", COMMIT)),
        ("a/b@", None),
        ("a", None),
        ("/a/b", None),
        ("./a", None),
        ("~/a", None),
        ("a/b/c", None),
    ],
)
def test_names_of_the_hub(name: str, wanted: hub.HubId | None) -> None:
    assert hub.hub_id(name) == wanted
    assert wanted is None or wanted.pinned == (wanted.revision == COMMIT)


def test_a_commit_is_read_from_the_cache_without_a_network(cache: FakeHub) -> None:
    snapshot = cache.add(COMMIT, FILES, branch="main")
    cache.add(LATER, {**FILES, "config.json": b'{"a": 2}'})
    assert hub.folder_of(f"{NAME}@{COMMIT}") == snapshot
    assert (hub.folder_of(f"{NAME}@{LATER}") / "config.json").read_bytes() == b'{"a": 2}'


@pytest.mark.parametrize("asked", ["", "@main", "@v1.0"])
def test_what_a_branch_points_at_is_held(cache: FakeHub, asked: str) -> None:
    """With what the cache knows of it; a hub of our own is in test_lock.py."""
    branch = asked.removeprefix("@") or "main"
    first = cache.add(COMMIT, FILES, branch=branch)
    assert hub.folder_of(f"{NAME}{asked}") == first
    cache.add(LATER, FILES, branch=branch)
    assert hub.folder_of(f"{NAME}{asked}") == first


@pytest.mark.parametrize("asked", ["", "@v1.0", "@0123456", f"@{COMMIT.upper()[:-1]}F"])
def test_what_nobody_knows_is_refused(cache: FakeHub, asked: str) -> None:
    cache.add(COMMIT, FILES)
    with pytest.raises(CheckpointError, match=r"is not downloaded, .*`hf download some") as caught:
        hub.folder_of(f"{NAME}{asked}")
    assert ("--revision" in str(caught.value)) == bool(asked)


def test_a_commit_that_is_not_here_is_no_traceback(cache: FakeHub) -> None:
    cache.add(COMMIT, FILES)
    with pytest.raises(CheckpointError, match=r"policy@abc.* is not downloaded, .*`hf down"):
        hub.folder_of(f"{NAME}@{LATER}")


def test_a_hub_that_cannot_be_reached_is_asked_once(
    cache: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its library tried for a minute and printed twenty lines."""
    cache.add(COMMIT, FILES)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # discard: nobody is there
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    began = time.monotonic()
    with pytest.raises(CheckpointError, match="cannot be reached: `hf download somebody/policy"):
        hub.folder_of(f"{NAME}@{LATER}")
    assert hub.folder_of(f"{NAME}@{COMMIT}").name == COMMIT, "what is here is read"
    assert time.monotonic() - began < 10.0


@pytest.mark.parametrize("name", list(FILES))
def test_a_download_that_is_not_what_the_hub_has_is_refused(
    cache: FakeHub, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def download(repository: str, revision: str, **_: object) -> str:
        assert (repository, revision) == (NAME, COMMIT)
        snapshot = cache.add(revision, {})
        for file, data in FILES.items():
            cache.put(snapshot, file, data, stored=b"another" if file == name else None)
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(CheckpointError, match=rf"{name} is not what the hub has"):
        hub.folder_of(f"{NAME}@{COMMIT}")


def test_a_whole_download_is_taken(cache: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda *_, **k: str(cache.add(k["revision"], FILES))
    )
    assert hub.folder_of(f"{NAME}@{COMMIT}").name == COMMIT


def test_a_manifest_beside_the_weights_is_checked(tmp_path: Path) -> None:
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / hub.MANIFEST).write_text(listed(tmp_path, *FILES))
    assert hub.folder_of(str(tmp_path)) == tmp_path
    (tmp_path / "model.safetensors").write_bytes(b"weighty" * 100)
    with pytest.raises(CheckpointError, match=r"model.safetensors is not the file that"):
        hub.folder_of(str(tmp_path))


def test_a_manifest_elsewhere_is_checked_of_the_hubs_too(cache: FakeHub, tmp_path: Path) -> None:
    snapshot = cache.add(COMMIT, FILES)
    sums = tmp_path / "policy.sha256"
    # Of the whole repository, of which only a part is downloaded.
    sums.write_text("# of 2026\n" + listed(snapshot, *FILES) + f"{'0' * 64}  README.md\n")
    assert hub.folder_of(f"{NAME}@{COMMIT}#{sums}") == snapshot
    sums.write_text(listed(snapshot, "config.json") + f"{'0' * 64} *model.safetensors\n")
    with pytest.raises(CheckpointError, match=r"model.safetensors is not the file that"):
        hub.folder_of(f"{NAME}@{COMMIT}#{sums}")


def test_what_is_listed_and_lost_or_there_and_not_listed_is_refused(tmp_path: Path) -> None:
    folder, sums = tmp_path / "model", tmp_path / "sums"
    folder.mkdir()
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    sums.write_text(listed(folder, *FILES))
    (folder / "heterospec.json").write_text("{}")  # only how fast, and written later
    assert hub.folder_of(f"{folder}#{sums}") == folder
    (folder / "model-00002.safetensors").write_bytes(b"more")
    with pytest.raises(CheckpointError, match=r"does not list model-00002.safetensors"):
        hub.folder_of(f"{folder}#{sums}")
    (folder / "model-00002.safetensors").unlink()
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"lacks config\.json"):
        hub.folder_of(f"{folder}#{sums}")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("# nothing\n", "lists nothing"),
        ("config.json\n", "line 1: wanted 64"),
        (f"{'0' * 63}  config.json\n", "line 1: wanted 64"),
        (f"{'0' * 64}  a.json\n{'1' * 64}  a.json\n", "twice"),
    ],
)
def test_what_is_no_manifest_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "sums").write_text(text)
    with pytest.raises(CheckpointError, match=says):
        hub.folder_of(f"{tmp_path}#{tmp_path / 'sums'}")
    with pytest.raises(CheckpointError, match="cannot be read"):
        hub.folder_of(f"{tmp_path}#{tmp_path / 'nowhere'}")
    with pytest.raises(CheckpointError, match="after # comes"):
        hub.folder_of(f"{tmp_path}#")


def test_a_folder_with_a_mark_in_its_name_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a#b").mkdir()
    assert hub.folder_of(str(tmp_path / "a#b")) == tmp_path / "a#b"


def test_an_engine_reads_no_weights_that_the_manifest_does_not_mean(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    import torch

    from vla_ros.engine.families.openvla import PRESETS, load_checkpoint, write_random

    write_random(tmp_path, PRESETS["small"], seed=0)
    names = [p.name for p in tmp_path.iterdir() if p.is_file()]
    sums = tmp_path / hub.MANIFEST
    sums.write_text(listed(tmp_path, *names))
    loaded = load_checkpoint(str(tmp_path), torch.device("cpu"), torch.float32)
    assert loaded.directory == tmp_path
    # Weights of the same shapes, which nothing but their hash tells from the right ones.
    other = tmp_path.parent / "other"
    other.mkdir()
    write_random(other, PRESETS["small"], seed=1)
    shutil.copy(other / "model.safetensors", tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"model.safetensors is not the file that"):
        load_checkpoint(str(tmp_path), torch.device("cpu"), torch.float32)


def test_lerobots_folders_are_found_the_same_way(cache: FakeHub) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from vla_ros.policies.base import PolicyRefused
    from vla_ros.policies.lerobot.policy import folder_of

    snapshot = cache.add(COMMIT, FILES, branch="main")
    assert folder_of(f"{NAME}@{COMMIT}") == snapshot
    assert folder_of(NAME) == snapshot
    with pytest.raises(PolicyRefused, match="neither a directory nor a hub id"):
        folder_of("/nowhere")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("models/mine", r"no folder 'models/mine', though models is here .*models/mine@main"),
        ("models/my_smolvl", "no folder 'models/my_smolvl': did you mean 'models/my_smolvla'"),
        ("./models/my_smolvl", "neither a directory nor .*: did you mean 'models/my_smolvla'"),
        ("tabletop-flw", "neither a directory nor .*: did you mean 'shipped:tabletop-flow'"),
        ("models/my_smolvla/config.json", "is a file: give the folder that it is in"),
        ("models/mine@main", "the hub cannot be reached: `hf download models/mine --rev"),
        ("others/mine", "the hub cannot be reached: `hf download others/mine"),
        (f"others/mine@{COMMIT}", "the hub cannot be reached: `hf download others/mine"),
    ],
)
@pytest.mark.parametrize("ask", [hub.look, hub.resolve])
def test_a_mistyped_folder_is_not_asked_of_the_hub(
    cache: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, says: str,
    ask: Callable[[str], object],
) -> None:  # fmt: skip
    folder = tmp_path / "models" / "my_smolvla"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=says):
        ask(name)


def test_what_was_downloaded_is_meant_though_a_folder_of_its_owner_is_here(
    cache: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = cache.add(COMMIT, FILES, branch="main")
    (tmp_path / "somebody").mkdir()
    monkeypatch.chdir(tmp_path)
    assert hub.look(NAME) is None
    assert hub.resolve(NAME) == snapshot
    assert hub.look(f"{NAME}@{COMMIT}") is None
    assert hub.look("random:small") is None
    assert hub.look("shipped:tabletop") == hub.shipped("shipped:tabletop")
