"""Spoilt files to the code that reads strangers' files: whatever it is given, it ends soon, and
either reads it or says in one line what is wrong.

Each batch runs in a child process with a limit of memory and time, so that a file that asks for a
terabyte or for ever is a finding and not the end.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from endurance.mutate import spoilt_bytes, spoilt_text, spoilt_value

BATCH = 50
MEMORY = 6 * 2**30  # bytes of address space of a child; torch alone maps three
CASE_S = 20  # a case that takes longer is a hang
Reader = Callable[[Path, random.Random], None]


@dataclass(frozen=True, slots=True)
class Finding:
    """What one seed did: the seed makes the case again."""

    stage: str
    seed: int
    what: str
    trace: str


# ---------------------------------------------------------------------- the readers


def checkpoint(folder: Path, rng: random.Random) -> None:
    """A token policy's folder with one of its files spoilt."""
    import torch

    from vla_ros.engine.checkpoints.openvla import load_checkpoint

    copy = _copied(folder / "checkpoint", folder)
    _spoil_one(copy, rng)
    load_checkpoint(str(copy), torch.device("cpu"), torch.float32)


def flow_checkpoint(folder: Path, rng: random.Random) -> None:
    """A flow policy's folder with one of its files spoilt."""
    import torch

    from vla_ros.engine.flow.load import load_folder

    copy = _copied(folder / "flow", folder)
    _spoil_one(copy, rng)
    load_folder(copy, torch.device("cpu"), torch.float32)


def bag(folder: Path, rng: random.Random) -> None:
    """A bag, MCAP or SQLite, with a file spoilt: all of its messages are read."""
    from vla_ros.replay.bag import Bag

    storage = rng.choice(("mcap", "sqlite3"))
    copy = _copied(folder / storage, folder)
    _spoil_one(copy, rng)
    with Bag(copy) as opened:
        for message in opened.messages([topic.name for topic in opened.topics]):
            opened.decode(message)


def graph_file(folder: Path, rng: random.Random) -> None:
    """A file of `vla-ros up`."""
    from vla_ros.bringup.graph_file import GraphSpec

    path = folder / "spoilt.up.yaml"
    path.write_bytes(spoilt_text((folder / "good.up.yaml").read_text(), rng))
    spec = GraphSpec.load(str(path))
    for node in spec.nodes:
        node.values()


STAGES: dict[str, Reader] = {
    "checkpoints": checkpoint,
    "flow checkpoints": flow_checkpoint,
    "bags": bag,
    "up-files": graph_file,
}


def _copied(source: Path, folder: Path) -> Path:
    copy = folder / "spoilt"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(source, copy)
    return copy


def _spoil_one(folder: Path, rng: random.Random) -> None:
    path = rng.choice(sorted(folder.iterdir()))
    good = path.read_bytes()
    if path.suffix == ".json" and rng.random() < 0.7:
        path.write_text(json.dumps(spoilt_value(json.loads(good), rng)))
    elif path.suffix in (".yaml", ".yml") and rng.random() < 0.7:
        path.write_bytes(spoilt_text(good.decode(), rng))
    elif path.suffix == ".safetensors" and rng.random() < 0.7:
        path.write_bytes(_spoilt_header(good, rng))
    elif rng.random() < 0.05:
        path.unlink()
    else:
        path.write_bytes(spoilt_bytes(good, rng))


def _spoilt_header(good: bytes, rng: random.Random) -> bytes:
    """safetensors: eight bytes of length, JSON, data."""
    length = int.from_bytes(good[:8], "little")
    header = json.dumps(spoilt_value(json.loads(good[8 : 8 + length]), rng)).encode()
    return len(header).to_bytes(8, "little") + header + good[8 + length :]


# ---------------------------------------------------------------------- running them


def prepare(folder: Path) -> None:
    """The good ones, which are spoilt."""
    from support.bags import START, T, action, film, joints, task, write_bag
    from support.engine import tiny_config
    from support.flow import tiny_flow
    from vla_ros.engine.checkpoints.random import write_random
    from vla_ros.engine.flow.random import write_random_flow
    from vla_ros.resources import config_path

    write_random(folder / "checkpoint", tiny_config(), 0)
    write_random_flow(folder / "flow", tiny_flow("pi0"), 0)
    told = [task(START, "reach the red cube"), *film(6)]
    told += [joints(START + i * T) for i in range(6)] + [
        action(START + i * T, [0.01] * 7) for i in range(6)
    ]
    for storage in ("mcap", "sqlite3"):
        write_bag(folder / storage, told, storage)
    shutil.copy(config_path("sim.up.yaml"), folder / "good.up.yaml")


def run_stage(
    stage: str, cases: int, seed: int, folder: Path, say: Callable[[int], None]
) -> tuple[int, list[Finding]]:
    """``cases`` of them; returns how many were executed, and what was found."""
    done, findings = 0, []
    spawn = multiprocessing.get_context("fork")
    for first in range(seed, seed + cases, BATCH):
        count = min(BATCH, seed + cases - first)
        at = first
        while at < first + count:  # a batch that dies goes on behind the case that killed it
            ours, theirs = spawn.Pipe(False)
            child = spawn.Process(
                target=_batch, args=(stage, at, first + count, str(folder), theirs)
            )
            child.start()
            theirs.close()
            last = at
            while True:
                try:
                    if not ours.poll(CASE_S + 10):
                        findings.append(Finding(stage, last, "hung", ""))
                        break
                    news = ours.recv()
                except EOFError:
                    if last < first + count:
                        child.join()
                        what = f"ended the process ({child.exitcode})"
                        findings.append(Finding(stage, last, what, ""))
                    break
                if isinstance(news, Finding):
                    findings.append(news)
                    continue
                last = news
                if last == first + count:
                    break
            child.kill()
            child.join()
            done += max(1, last - at)
            at = last if last == first + count else last + 1
            say(done)
    return done, findings


def _batch(stage: str, first: int, end: int, folder: str, pipe: object) -> None:
    from vla_ros.errors import UserError
    from vla_ros.replay.errors import BagError

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.environ["HF_HUB_OFFLINE"] = "1"
    with tempfile.TemporaryDirectory() as own:
        for entry in Path(folder).iterdir():
            (Path(own) / entry.name).symlink_to(entry)
        for seed in range(first, end):
            signal.alarm(CASE_S)
            try:
                STAGES[stage](Path(own), random.Random(seed))
            except (UserError, BagError) as error:
                if "\n" in str(error):
                    pipe.send(Finding(stage, seed, "more than one line", str(error)))  # type: ignore
            except BaseException as error:
                words = f"{type(error).__name__}: {str(error)[:200]}"
                pipe.send(Finding(stage, seed, words, traceback.format_exc(limit=-4)))  # type: ignore
            signal.alarm(0)
            pipe.send(seed + 1)  # type: ignore[attr-defined]
