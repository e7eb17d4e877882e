"""LeRobotDatasets written and read by LeRobot's own code, in a process of LeRobot's Python."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vla_ros.core.errors import UserError
from vla_ros.core.files import read_json
from vla_ros.core.types import Image
from vla_ros.data.lerobot import wire
from vla_ros.data.lerobot.older import INFO, refuse_older
from vla_ros.data.lerobot.wire import Array, Message
from vla_ros.policies.lerobot.environment import seen_variables
from vla_ros.policies.load import lerobot_python

IMAGES = "observation.images."
STATE = "observation.state"
ACTION = "action"
#: What went to the robot over an action, [n, D]; only where the control rate is above the action's.
COMMANDS = "commands"
#: Neither begins with "observation" or "action": LeRobot's policies take those for inputs.
OBSERVATION_AGE = "timing.observation_age_s"
ACTION_OBSERVATION_AGE = "timing.action_observation_age_s"
#: The policy's action for the moment, executed or not; whether there is one; how long it took.
POLICY_ACTION = "policy.action"
ANSWERED = "policy.answered"
DELAY = "timing.delay_s"
#: Whether a person acted; the name that LeRobot's DAgger rollout gives it.
INTERVENTION = "intervention"


@dataclass(frozen=True, slots=True)
class DatasetColumn:
    """Numbers of one kind, [D]: a name each, or () for the one that needs none. With ``rows`` [n,
    D]: so many of them one after the other."""

    name: str
    names: tuple[str, ...]
    dtype: str = "float32"
    rows: int = 0

    def feature(self) -> dict[str, Any]:
        """The feature for LeRobotDataset.create; the names of rows are by axis."""
        shape, names = [len(self.names) or 1], list(self.names) or None
        if not self.rows:
            return {"dtype": self.dtype, "shape": shape, "names": names}
        axes = {"commands": [f"command_{i}" for i in range(self.rows)], "numbers": names}
        return {"dtype": self.dtype, "shape": [self.rows, *shape], "names": axes}


@dataclass(frozen=True, slots=True)
class Columns:
    """``cameras``: name -> (height, width). ``fps``: rows a second, which LeRobot wants whole."""

    fps: int
    cameras: Mapping[str, tuple[int, int]]
    numbers: tuple[DatasetColumn, ...]

    def features(self, videos: bool) -> dict[str, Any]:
        """Features for LeRobotDataset.create."""
        kind, axes = ("video" if videos else "image"), ["height", "width", "channels"]
        found: dict[str, Any] = {
            IMAGES + name: {"dtype": kind, "shape": [*size, 3], "names": axes}
            for name, size in self.cameras.items()
        }
        return found | {one.name: one.feature() for one in self.numbers}


@dataclass(frozen=True, slots=True)
class DatasetRow:
    """One frame. ``episode`` counts up; a row with another number begins another episode."""

    episode: int
    task: str
    images: Mapping[str, Image] = field(default_factory=dict)
    numbers: Mapping[str, Array] = field(default_factory=dict)

    def arrays(self) -> dict[str, Array]:
        """By the names of the columns."""
        return {**{IMAGES + name: image for name, image in self.images.items()}, **self.numbers}


# LeRobot's Python as a process: requests go in, answers come out, and it ends with us.


#: Our site-packages hold binaries of another Python: only the one folder may be seen.
_BOOT = """
import sys
from importlib.util import module_from_spec, spec_from_file_location
folder = sys.argv[1]
spec = spec_from_file_location("vla_ros", folder + "/__init__.py",
                               submodule_search_locations=[folder])
sys.modules["vla_ros"] = module_from_spec(spec)
spec.loader.exec_module(sys.modules["vla_ros"])
from vla_ros.data.lerobot.served import main
sys.exit(main())
"""
_PACKAGE = Path(__file__).resolve().parents[2]
SETUP = (
    "LeRobot is not there: `make lerobot` (or `vla-ros lerobot setup`) installs it beside this"
    " environment, or name a Python that has lerobot[dataset] with --python"
)


def python_of(given: str = "") -> str:
    """The interpreter that LeRobot is in: ``given``, else setup's, else this one. UserError: none
    has it, and what to do."""
    if given:
        path = Path(given).expanduser()
        if not path.is_file():
            raise UserError(f"--python {given}: there is no such program")
        return str(path)
    if (path := lerobot_python()).is_file():
        return str(path)
    if importlib.util.find_spec("lerobot") is not None:
        return sys.executable
    raise UserError(SETUP)


class LeRobot:
    """A process of LeRobot's Python, and the pipe to it. Use it as a context manager."""

    def __init__(self, python: str) -> None:
        self._python = python
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        env = seen_variables(os.environ)
        env |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1", "SVT_LOG": "1"}
        self._process = subprocess.Popen(
            [python, "-I", "-c", _BOOT, str(_PACKAGE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=env,
        )

    def __enter__(self) -> LeRobot:
        return self

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        self.close(30.0 if kind is None else 0.0)

    def close(self, patience_s: float) -> None:
        """Let it end by itself for a while, then kill it."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # it is gone already
                    stream.close()
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def send(
        self, kind: str, fields: Mapping[str, Any], arrays: Mapping[str, Array] | None = None
    ) -> None:
        """Send one message. UserError: it has failed; its last words."""
        assert self._process.stdin is not None
        try:
            wire.send(self._process.stdin, Message(kind, fields, arrays or {}))
        except OSError:
            self.receive("")  # raises with its last message
            raise UserError(self._exit_reason()) from None

    def receive(self, *wanted: str) -> Message:
        """The next message of one of the kinds ``wanted``. UserError: it failed, and why."""
        assert self._process.stdout is not None
        try:
            message = wire.receive(self._process.stdout)
        except EOFError:
            message = None
        if message is None:
            raise UserError(self._exit_reason())
        if message.kind == "missing":
            raise UserError(
                f"{self._python} lacks what LeRobot's data sets need ({message.fields['line']}):"
                " run `vla-ros lerobot setup` again, or pip install 'lerobot[dataset]' there"
            )
        if message.kind == "failed":
            raise UserError(f"LeRobot refused: {message.fields['line']}")
        if message.kind not in wanted:
            return self.receive(*wanted)
        return message

    def _exit_reason(self) -> str:
        self._process.wait()
        self._log.seek(0)
        words = self._log.read().decode(errors="replace").strip().splitlines()
        last = words[-1] if words else f"exit status {self._process.returncode}"
        return f"LeRobot's Python ended ({self._python}): {last[:300]}"


# Rows into a new LeRobotDataset, by LeRobot's own code.


OURS = Path("meta") / "vla_ros.json"  # where it came from, and what LeRobot has no field for


@dataclass(frozen=True, slots=True)
class WrittenDataset:
    """Size of the new data set; ``version`` of its format."""

    episodes: int
    frames: int
    version: str


def write(
    python: str,
    out: Path,
    repo_id: str,
    robot_type: str,
    columns: Columns,
    rows: Iterable[DatasetRow],
    videos: bool,
    note: Callable[[], dict[str, Any]],
    progress: Callable[[int, int], None],
) -> WrittenDataset:
    """Write ``rows`` into ``out``, which must not be there; ``progress`` gets episodes and
    frames on the way, ``note`` gives the content of meta/vla_ros.json at the end.

    The folder appears when it is whole. UserError: LeRobot refused, or nothing came.
    """
    scratch = out.with_name(f".{out.name}.part")
    refuse_existing(out)
    shutil.rmtree(scratch, ignore_errors=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        with LeRobot(python) as there:
            request = {
                "root": str(scratch.absolute()),
                "repo_id": repo_id,
                "fps": columns.fps,
                "robot_type": robot_type,
                "features": columns.features(videos),
                "videos": videos,
                "threads": 2,
            }
            there.send("create", request)
            episodes = 0
            last: int | None = None
            for frames, row in enumerate(rows, 1):
                if last is not None and row.episode != last:
                    episodes = _save(there)
                last = row.episode
                there.send("frame", {"task": row.task}, row.arrays())
                progress(episodes, frames)
            if last is None:
                raise UserError("there is not one frame to write")
            _save(there)
            there.send("end", {})
            done = there.receive("done").fields
        (scratch / OURS).write_text(json.dumps(note(), indent=1) + "\n", encoding="utf-8")
        scratch.rename(out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return WrittenDataset(int(done["episodes"]), int(done["frames"]), str(done["version"]))


def refuse_existing(out: Path) -> None:
    """UserError: ``out`` is there."""
    if out.exists():
        raise UserError(f"{out} is there already: give another --out, or remove it")


def _save(there: LeRobot) -> int:
    there.send("save", {})
    return int(there.receive("saved").fields["episodes"])


# A LeRobotDataset's rows, by LeRobot's own code.


@dataclass(frozen=True, slots=True)
class Feature:
    """A column of somebody's data set. ``names``: of its numbers, or () where it has none."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    names: tuple[str, ...]

    @property
    def image(self) -> bool:
        return self.dtype in ("image", "video")


@dataclass(frozen=True, slots=True)
class Info:
    """The description of a data set. ``ours``: meta/vla_ros.json, {} where another wrote it.
    ``tasks``: how many episodes each has."""

    fps: float
    episodes: int
    frames: int
    features: Mapping[str, Feature]
    ours: Mapping[str, Any]
    tasks: tuple[int, ...] = ()

    @property
    def cameras(self) -> tuple[str, ...]:
        return tuple(name for name, one in self.features.items() if one.image)


def is_dataset(folder: Path) -> bool:
    """Whether a folder is a LeRobotDataset of any version."""
    return (folder / INFO).is_file()


class Reader:
    """An open data set: its ``info``, then its ``rows``. A context manager.

    UserError: LeRobot cannot read it, with its message.
    """

    def __init__(self, python: str, folder: Path) -> None:
        refuse_older(folder)
        self._lerobot = LeRobot(python)
        self._folder = folder

    def __enter__(self) -> Reader:
        self.info = self._open()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._lerobot.close(0.0)

    def _open(self) -> Info:
        try:
            self._lerobot.send("read", {"root": str(self._folder.absolute())})
            meta = self._lerobot.receive("meta").fields
        except UserError as error:
            self._lerobot.close(0.0)
            raise UserError(f"{self._folder}: {error}") from None
        ours = self._folder / OURS
        return Info(
            fps=float(meta["fps"]),
            episodes=int(meta["episodes"]),
            frames=int(meta["frames"]),
            features={name: _feature(name, one) for name, one in meta["features"].items()},
            ours=read_json(ours) if ours.is_file() else {},
            tasks=tuple(map(int, meta["tasks"])),
        )

    def rows(self, names: tuple[str, ...]) -> Iterator[DatasetRow]:
        """Every frame, with these columns, in the order of the data set."""
        self._lerobot.send("go", {"features": list(names)})
        while (message := self._lerobot.receive("frame", "done")).kind == "frame":
            images = {n: a for n, a in message.arrays.items() if self.info.features[n].image}
            numbers = {n: a for n, a in message.arrays.items() if n not in images}
            episode, task = int(message.fields["episode"]), str(message.fields["task"])
            yield DatasetRow(episode, task, images, numbers)


def _feature(name: str, described: Mapping[str, Any]) -> Feature:
    names = described.get("names") or ()
    if isinstance(names, Mapping):  # older sets: {"motors": [...]}
        names = [
            one
            for group in names.values()
            for one in (group if isinstance(group, list) else [group])
        ]
    return Feature(name, str(described["dtype"]), tuple(described["shape"]), tuple(map(str, names)))


def short(camera: str) -> str:
    """A camera without LeRobot's prefix."""
    return camera.removeprefix(IMAGES)
