"""Spoilt files to the code that reads strangers' files: whatever it is given, it ends soon, and
either reads it or says in one line what is wrong.

Each batch runs in a child process with a limit of memory and time, so that a file that asks for a
terabyte or for ever is a finding and not the end.
"""

from __future__ import annotations

import contextlib
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
from vla_ros.core.resources import config_path

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


# The readers


def checkpoint(folder: Path, rng: random.Random) -> None:
    """A token policy's folder with one of its files spoilt: plain, OFT, BitVLA, quantized."""
    _used(_spoilt_copy(folder / "checkpoints", folder, rng), rng)


def flow_checkpoint(folder: Path, rng: random.Random) -> None:
    """A flow policy's folder of any family with one of its files spoilt."""
    _used(_spoilt_copy(folder / "flows", folder, rng), rng)


def _used(copy: Path, rng: random.Random) -> None:
    """Looked at, as `vla-ros doctor` does, or loaded and asked once, as the worker does."""
    import numpy as np

    from vla_ros.core.clock import SystemClock
    from vla_ros.core.types import Observation, Timeline
    from vla_ros.engine import EngineOptions, InvalidAction, load_engine
    from vla_ros.engine.load import inspect

    if rng.random() < 0.3:
        inspect(str(copy))
        return
    dtype = rng.choice(("float32", "bfloat16"))  # quantized weights want the second
    engine, clock = load_engine(EngineOptions(str(copy), dtype=dtype)), SystemClock()
    engine.reset("pick up the red cube")
    frame = np.zeros((60, 80, 3), np.uint8)
    state = np.zeros(engine.info.state_dim)
    seen = Observation(1, 1, 0, frame, frame, state)
    with contextlib.suppress(InvalidAction):  # what the weights make of it is not for the loader
        engine.step(seen, Timeline(clock.steady_ns()), clock)


def bag(folder: Path, rng: random.Random) -> None:
    """A bag, MCAP or SQLite, with a file spoilt: all of its messages are read."""
    from vla_ros.data.bags import Bag

    copy = _spoilt_copy(folder / "bags", folder, rng)
    with Bag(copy) as opened:
        for message in opened.messages([topic.name for topic in opened.topics]):
            opened.decode(message)


def graph_file(folder: Path, rng: random.Random) -> None:
    """A file of `vla-ros up`."""
    from vla_ros.ros.bringup.graph_file import GraphSpec

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


def _spoilt_copy(good: Path, folder: Path, rng: random.Random) -> Path:
    """Of one of the folders in ``good``, with one file spoilt; the others are links."""
    source, copy = rng.choice(sorted(good.iterdir())), folder / "spoilt"
    shutil.rmtree(copy, ignore_errors=True)
    files = sorted(path for path in source.rglob("*") if path.is_file())
    told = [path for path in files if path.suffix in (".json", ".yaml")]
    victim = rng.choice(told if told and rng.random() < 0.6 else files)
    for path in files:
        target = copy / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path == victim:
            _spoil(path, target, rng)
        else:
            target.symlink_to(path)
    return copy


def _spoil(source: Path, target: Path, rng: random.Random) -> None:
    good = source.read_bytes()
    if source.suffix == ".json" and rng.random() < 0.8:
        target.write_text(json.dumps(spoilt_value(json.loads(good), rng)))
    elif source.suffix in (".yaml", ".yml") and rng.random() < 0.7:
        target.write_bytes(spoilt_text(good.decode(), rng))
    elif source.suffix == ".safetensors" and rng.random() < 0.7:
        target.write_bytes(_spoilt_header(good, rng))
    elif rng.random() >= 0.05:  # else there is none
        target.write_bytes(spoilt_bytes(good, rng))


def _spoilt_header(good: bytes, rng: random.Random) -> bytes:
    """safetensors: eight bytes of length, JSON, data."""
    length = int.from_bytes(good[:8], "little")
    header = json.dumps(spoilt_value(json.loads(good[8 : 8 + length]), rng)).encode()
    return len(header).to_bytes(8, "little") + header + good[8 + length :]


# Running them


def prepare(folder: Path, stage: str) -> None:
    """The good ones, which are spoilt."""
    makers = {"checkpoints": _token_policies, "flow checkpoints": _flow_policies, "bags": _bags}
    if stage in makers:
        makers[stage](folder)
    shutil.copy(config_path("sim.up.yaml"), folder / "good.up.yaml")


def _token_policies(folder: Path) -> None:
    """Every layout of them; what is quantized is the small one's."""
    import torch

    from vla_ros.engine.families.openvla import PRESETS, load_checkpoint
    from vla_ros.engine.families.random import PREFIX
    from vla_ros.engine.formats import parse_formats
    from vla_ros.engine.quantize import quantize_checkpoint

    made = folder / "checkpoints"
    for name in [n for n in PRESETS if "small" in n]:
        whole = load_checkpoint(PREFIX + name, torch.device("cpu"), torch.float32)
        shutil.copytree(whole.directory, made / name)
    for kind in ("int8", "int4"):
        quantize_checkpoint(str(made / "small"), parse_formats(kind), made / kind)


def _flow_policies(folder: Path) -> None:
    """The small one of every family, in its authors' layout."""
    from vla_ros.engine.families.registry import all_presets, write_folder

    for name, config in all_presets().items():
        if name.endswith("-small") and config.kind != "tokens":
            write_folder(folder / "flows" / name, config, seed=0)


def _bags(folder: Path) -> None:
    from support.bags import START, T, action, film, joints, task, write_bag

    told = [task(START, "reach the red cube"), *film(6)]
    told += [joints(START + i * T) for i in range(6)] + [
        action(START + i * T, [0.01] * 7) for i in range(6)
    ]
    (folder / "bags").mkdir()
    for storage in ("mcap", "sqlite3"):
        write_bag(folder / "bags" / storage, told, storage)


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
    from vla_ros.core.errors import UserError
    from vla_ros.data.bags import BagError

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
