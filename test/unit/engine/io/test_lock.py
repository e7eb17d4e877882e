"""Hub ids without a commit: resolved once, written down, held by every verb; a hub of our own."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
pytest.importorskip("torch", reason="torch is not installed")

from support.engine import tiny_config
from support.local_hub import LocalHub, local_hub
from support.timing import judge
from vla_ros.core.files import sha256_of
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.families.openvla import write_random
from vla_ros.engine.io import lock

NAME = "somebody/policy"
NOBODY = "http://127.0.0.1:9"  # discard: nobody is there


@pytest.fixture
def hub() -> Iterator[LocalHub]:
    with local_hub() as found:
        yield found


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "policy"
    write_random(folder, tiny_config(), seed=1)
    return folder


class Machine:
    """A machine with caches of its own. Calling it runs a verb: status and both outputs."""

    def __init__(self, hub: LocalHub, home: Path) -> None:
        self.environment = hub.environment(home)
        self.state = home / "state" / "vla_ros" / lock.FILE
        self.cache = home / "hf" / "hub" / f"models--{NAME.replace('/', '--')}"

    def __call__(self, *words: str, **variables: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "vla_ros", *words],
            env=self.environment | variables, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout + done.stderr

    def doctor(self, **variables: str) -> tuple[int, str]:
        return self("doctor", "--checkpoint", NAME, **variables)

    def held(self) -> dict:
        return json.loads(self.state.read_text())["checkpoints"][NAME]


@pytest.fixture
def machine(hub: LocalHub, tmp_path: Path) -> Machine:
    return Machine(hub, tmp_path)


def test_an_id_is_resolved_once_and_held(hub: LocalHub, machine: Machine, checkpoint: Path) -> None:
    first = hub.push_folder(NAME, checkpoint)
    status, text = machine.doctor()
    assert status == 0, text
    assert f"{NAME} is held to {first} by {machine.state}" in text
    held = machine.held()
    assert held["commit"] == first
    weights = "model.safetensors"
    assert held["files"][weights] == sha256_of(checkpoint / weights)
    # Whoever pushes to main decides nothing here any more, and nothing is asked.
    write_random(checkpoint.parent / "other", tiny_config(), seed=2)
    later = hub.push_folder(NAME, checkpoint.parent / "other")
    hub.asked.clear()
    status, text = machine.doctor()
    assert status == 0, text
    assert "is held to" not in text
    assert hub.asked == []
    assert machine.held() == held
    # ... until somebody wants it.
    status, text = machine("lock", NAME)
    assert (status, f"was {first}, and is held to {later}" in text) == (0, True), text
    assert "changed: model.safetensors" in text
    assert machine.held()["commit"] == later
    assert machine("lock", NAME) == (0, f"{NAME} is what it was: {later}, by {machine.state}\n")
    assert machine("lock")[1].startswith(f"{NAME}@{later} (")


@pytest.mark.parametrize("damage", ["another", "gone", "more"])
def test_a_copy_that_is_not_what_is_held_is_refused(
    hub: LocalHub, machine: Machine, checkpoint: Path, damage: str
) -> None:
    commit = hub.push_folder(NAME, checkpoint)
    assert machine.doctor()[0] == 0
    folder = machine.cache / "snapshots" / commit
    path = folder / "config.json"
    text = path.read_text()
    path.unlink()  # a link into the cache
    if damage == "gone":  # and with its hub, whose copy would do, out of reach
        status, text = machine.doctor(HF_ENDPOINT=NOBODY)
        wanted = ("lacks config.json", "is not downloaded, and the hub cannot be reached")
    elif damage == "more":
        path.write_text(text)
        (folder / "policy_preprocessor.json").write_text("{}")
        status, text = machine.doctor()
        wanted = (f"has policy_preprocessor.json, not in {machine.state}",)
    else:
        path.write_text(text.replace("{", "{ ", 1))
        status, text = machine.doctor()
        wanted = (f"config.json is not the file that {NAME} is held to by {machine.state}",)
    assert status != 0
    assert any(one in text for one in wanted), text


def test_a_commit_is_neither_locked_nor_changed(
    hub: LocalHub, machine: Machine, checkpoint: Path
) -> None:
    commit = hub.push_folder(NAME, checkpoint)
    assert machine("doctor", "--checkpoint", f"{NAME}@{commit}")[0] == 0
    assert not machine.state.exists()
    status, text = machine("lock", f"{NAME}@{commit}")
    assert status == 2
    assert "is no hub id without a commit" in text


def test_without_a_network_one_line_says_how_to_bring_it(machine: Machine) -> None:
    began = time.monotonic()
    status, text = machine.doctor(HF_ENDPOINT=NOBODY)
    assert status != 0
    assert f"the hub cannot be reached: `hf download {NAME} --local-dir DIRECTORY`" in text
    judge("refused offline", time.monotonic() - began, quiet=3.0, loaded=30.0)
    assert not machine.state.exists()
    status, text = machine("lock", NAME, HF_ENDPOINT=NOBODY)
    assert (status, text.count("\n")) == (2, 1), text
    assert "the hub cannot be reached" in text


@pytest.fixture
def mute() -> Iterator[str]:
    """An address that answers nobody, as behind a firewall that drops what it does not let in."""
    with socket.socket() as server, contextlib.ExitStack() as waiting:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):  # fill its queue: it drops every further one
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("where", ["mute", "http://no-such-host.invalid"])
def test_the_look_for_the_hub_ends_in_three_seconds(
    machine: Machine, mute: str, where: str
) -> None:
    endpoint = mute if where == "mute" else where
    program = (
        "import time; from vla_ros.engine.io import hub; import huggingface_hub\n"
        "began = time.monotonic()\n"
        f"try: hub.folder_of({NAME!r})\n"
        "except hub.CheckpointError as error: print(error)\n"
        "print(time.monotonic() - began)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=machine.environment | {"HF_ENDPOINT": endpoint},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    line, seconds = done.stdout.splitlines()
    assert "the hub cannot be reached: `hf download" in line
    assert float(seconds) < 3.0


def test_what_the_hub_does_not_have_is_one_line(machine: Machine) -> None:
    status, text = machine.doctor()
    assert status != 0
    assert f"'{NAME}' is no directory here, and the hub does not say its commit" in text


def test_what_was_downloaded_before_is_held_without_a_network(
    hub: LocalHub, machine: Machine, checkpoint: Path
) -> None:
    commit = hub.push_folder(NAME, checkpoint)
    program = f"import huggingface_hub as h; h.snapshot_download({NAME!r})"
    subprocess.run([sys.executable, "-c", program], env=machine.environment, check=True)
    status, text = machine.doctor(HF_ENDPOINT=NOBODY)
    assert status == 0, text
    assert machine.held()["commit"] == commit


def test_the_lock_beside_the_robots_file_wins(
    hub: LocalHub, machine: Machine, checkpoint: Path, tmp_path: Path
) -> None:
    first = hub.push_folder(NAME, checkpoint)
    robot = tmp_path / "robot" / "robot.yaml"
    robot.parent.mkdir()
    robot.write_text("/**/policy: {ros__parameters: {}}\n")
    assert machine("lock", NAME, "--robot", str(robot))[0] == 0
    beside = lock.read(robot.with_name(lock.FILE))[NAME]
    assert beside.commit == first == machine.held()["commit"]
    write_random(checkpoint.parent / "third", tiny_config(), seed=3)
    later = hub.push_folder(NAME, checkpoint.parent / "third")
    assert machine("lock", NAME)[0] == 0
    assert machine.held()["commit"] == later
    text = machine("lock", "--robot", str(robot))[1].splitlines()
    assert [line.partition(" ")[0] for line in text] == [f"{NAME}@{first}", f"{NAME}@{later}"]
    # On another machine the file in git says it all.
    other = Machine(hub, tmp_path / "other")
    status, said = other.doctor(VLA_ROS_LOCK=str(robot.with_name(lock.FILE)))
    assert (status, (other.cache / "snapshots" / first).is_dir()) == (0, True), said


def test_a_lock_that_cannot_be_written_is_refused(
    hub: LocalHub, machine: Machine, checkpoint: Path
) -> None:
    commit = hub.push_folder(NAME, checkpoint)
    status, text = machine.doctor(XDG_STATE_HOME="/dev/null")
    assert status != 0
    assert "the lock cannot be written (/dev/null" in text
    assert f"give {NAME}@{commit}" in text


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"version": 2, "checkpoints": {}}',
        '{"version": 1, "checkpoints": {"a/b": {"commit": "main", "wanted": [], "files": {}}}}',
        '{"version": 1, "checkpoints": {"a/b": {"commit": "COMMIT", "wanted": [], "files": {"../x":'
        ' "SUM"}}}}',
    ],
)
def test_what_is_no_lock_is_refused(tmp_path: Path, text: str) -> None:
    text = text.replace("COMMIT", "0" * 40).replace("SUM", "0" * 64)
    (tmp_path / lock.FILE).write_text(text)
    with pytest.raises(CheckpointError, match=str(tmp_path / lock.FILE)):
        lock.read(tmp_path / lock.FILE)


def test_two_writers_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    program = (
        "import sys; from vla_ros.engine.io import lock\n"
        "for i in range(20): lock.write(f'{sys.argv[1]}/{i}', lock.Held('0' * 40, {}))"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", program, who], env=dict(os.environ)) for who in "ab"
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    assert len(lock.read(tmp_path / "vla_ros" / lock.FILE)) == 40
