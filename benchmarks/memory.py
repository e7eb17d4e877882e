"""Memory and time of loading a checkpoint: `python benchmarks/memory.py measure NAME`.

`python benchmarks/memory.py make PRESET FOLDER` writes a token policy of random weights in
bfloat16 first, in shards as on the hub (`openvla-7b`: 15 GB). Each line is of a process of its own,
which loaded the same once before: what libraries and compilers take is not of the weights.
*Anonymous* is the process's own memory (RssAnon), which the system cannot take back; pages of the
mapped files that are read come and go and are in *resident* (VmHWM) too.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
from safetensors.torch import save_file

from vla_ros.engine import EngineOptions, load_engine
from vla_ros.engine.families.openvla import PRESETS, expected_shapes, norm_stats
from vla_ros.engine.families.random import write_tokenizer
from vla_ros.engine.io.config import config_json
from vla_ros.engine.io.files import give_back_freed, write_json
from vla_ros.engine.memory import needed

SHARD = 5e9  # bytes
DRAWN = 1 << 22  # numbers that are repeated


def status_bytes(name: str) -> int:
    """A line of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


class Peak:
    """The most anonymous memory of this process, looked at every millisecond, within ``with``."""

    def __enter__(self) -> Peak:
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
        self.bytes, self._done = status_bytes("RssAnon"), False
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._done:
            self.bytes = max(self.bytes, status_bytes("RssAnon"))
            time.sleep(0.001)

    def __exit__(self, *_: object) -> None:
        self._done = True
        self._thread.join()


def measured(options: EngineOptions, warm: str) -> dict[str, object]:
    """Peak, what stays and time of loading, in bytes and seconds."""
    torch.set_num_threads(1)
    first = EngineOptions(warm or options.checkpoint, dtype=options.dtype, weights=options.weights)
    engine = load_engine(first)
    engine = None
    gc.collect()
    give_back_freed()
    need, before, resident = needed(options), status_bytes("RssAnon"), status_bytes("VmRSS")
    wall, cpu = time.perf_counter(), time.process_time()
    with Peak() as peak:
        engine = load_engine(options)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    highest = status_bytes("VmHWM") - resident
    gc.collect()
    return {
        "checkpoint": options.checkpoint,
        "dtype": options.dtype,
        "weights": options.weights,
        "weight_bytes": need.weights,
        "second_layout_bytes": need.second,
        "said_peak_bytes": need.loading,
        "peak_anonymous_bytes": peak.bytes - before,
        "peak_resident_bytes": highest,
        "decoding": engine.info.decoding,
        "stays_bytes": status_bytes("RssAnon") - before,
        "seconds": round(wall, 2),
        "cpu_seconds": round(cpu, 2),
    }


def make(preset: str, folder: Path) -> None:
    """Write a token policy of random weights in bfloat16, in shards."""
    config, random = PRESETS[preset], torch.Generator().manual_seed(0)
    drawn = torch.randn(DRAWN, generator=random).bfloat16() * 0.02
    folder.mkdir(parents=True)
    write_json(folder / "config.json", config_json(config, norm_stats()))
    write_tokenizer(folder / "tokenizer.json")
    shapes, shards, size = expected_shapes(config), [[]], 0
    for name, shape in shapes.items():
        size += 2 * torch.Size(shape).numel()
        if size > SHARD:
            shards.append([])
            size = 2 * torch.Size(shape).numel()
        shards[-1].append(name)
    index = {}
    for number, names in enumerate(shards, 1):
        own = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        tensors = {}
        for name in names:
            count = torch.Size(shapes[name]).numel()
            tensors[name] = drawn.repeat(-(-count // DRAWN))[:count].view(shapes[name])
            if name.endswith(("norm.weight", "norm1.weight", "norm2.weight", "layernorm.weight")):
                tensors[name] = torch.ones_like(tensors[name])
            tensors[name] = tensors[name].clone()
        save_file(tensors, str(folder / own), {"format": "pt"})
        index |= dict.fromkeys(names, own)
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": index})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    written = verbs.add_parser("make")
    written.add_argument("preset", choices=sorted(PRESETS))
    written.add_argument("folder", type=Path)
    asked = verbs.add_parser("measure")
    asked.add_argument("checkpoints", nargs="+")
    asked.add_argument("--dtype", nargs="+", default=["bfloat16"])
    asked.add_argument("--weights", nargs="+", default=[""])
    asked.add_argument("--warm", default="", help="what is loaded before, if not the same")
    asked.add_argument("--here", action="store_true", help="one line, in this process")
    args = parser.parse_args()
    if args.verb == "make":
        make(args.preset, args.folder)
        return
    for name in args.checkpoints:
        for dtype in args.dtype:
            for weights in args.weights:
                if args.here:
                    found = measured(EngineOptions(name, dtype=dtype, weights=weights), args.warm)
                    print(json.dumps(found), flush=True)
                    continue
                again = [sys.executable, __file__, "measure", name, "--here"]
                chosen = ["--dtype", dtype, "--weights", weights, "--warm", args.warm]
                subprocess.run([*again, *chosen], check=True)


if __name__ == "__main__":
    main()
