"""Passes of pi0-FAST with drafts and without, on the golden checkpoint that LeRobot trained.

    .venv/bin/python benchmarks/pi0_fast.py [FRAMES]

The stream is the spot of test/golden/spot.py, which the checkpoint was trained on: of each chunk of
8 actions 1, 2 or 4 are executed before the next frame. First what drafts could be worth: the chunks
themselves, as a policy without any error makes them, in passes. The draft head is trained here,
by `vla-ros train --head` without a bag around the frames, on the spot's path from where the stream
of 1 executed ends to where the checkpoint's own training ended. Writes pi0_fast/summary.json.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vla_ros.core.console import json_text
from vla_ros.core.types import Executing, Observation, Timeline
from vla_ros.data.lerobot.dataset import STATE, DatasetRow
from vla_ros.engine import EngineOptions, load_engine
from vla_ros.engine.decoding.draft_tree import Budget
from vla_ros.engine.decoding.fast_drafter import FastDrafter
from vla_ros.engine.io.fast_tokens import FastTokens
from vla_ros.engine.io.processors import Scaler
from vla_ros.engine.layers.request import Request, StageTimer
from vla_ros.sim.env import AGENTVIEW, WRIST
from vla_ros_lab.bench.fast import ROWS, engine_of, measure
from vla_ros_lab.bench.measure import CLOCK
from vla_ros_lab.train.head import recorded
from vla_ros_lab.train.head.judge import speculated
from vla_ros_lab.train.head.options import HeadOptions
from vla_ros_lab.train.head.run import HEAD, Reporter
from vla_ros_lab.train.head.run import run as train
from vla_ros_lab.train.options import HeadRun

HERE = Path(__file__).resolve().parent
GOLDEN = HERE.parent / "test" / "golden"
sys.path.insert(0, str(GOLDEN))
from spot import STEP, TASK, trajectory  # noqa: E402

TRAINED_TO = 40.0  # the phase at which the checkpoint's training ended (test/golden)
NOTHING = np.zeros((1, 1, 3), np.uint8)


def exact_policy(
    actions: FastTokens, scaler: Scaler, executed: int, count: int, wide: bool
) -> float:
    """Passes a chunk of an exact policy, with drafts of its last chunk: chains, or trees."""
    drafter = FastDrafter(actions, torch.device("cpu"), Budget(), None, wide)
    passes = 0
    for number in range(count):
        chunk = torch.from_numpy(trajectory(5.0 + executed * STEP * number)[2])
        own = actions.encode(scaler.normalize(chunk).double().numpy())
        seen = Observation(number, number, 0, NOTHING, executing=Executing(number - 1, executed, 0))
        stages = StageTimer(Timeline(0), CLOCK, torch.device("cpu"))
        request = Request(number, torch.zeros(1, 1), stages, observation=seen)
        passes += speculated(drafter, request, own, torch.zeros(len(own), 0))[0] * bool(number)
    return passes / (count - 1)


def trained_head(target: Path, out: Path, begin: float) -> tuple[Path, dict[str, Any]]:
    """A draft head's folder, and its figures on episodes held out."""
    count, length = int((TRAINED_TO - begin) / STEP) // 10, 10

    def rows() -> Iterator[DatasetRow]:
        for episode in range(count):
            for number in range(length):
                pixels, state, _ = trajectory(begin + STEP * (length * episode + number))
                images = {AGENTVIEW: pixels, WRIST: pixels[::-1].copy()}
                yield DatasetRow(episode, TASK, images, {STATE: state})

    cameras = {AGENTVIEW: AGENTVIEW, WRIST: WRIST}
    recorded.open_recording = lambda *_: recorded.Recording(cameras, count, rows())
    asked = HeadRun(str(target), executed=1, data=(target,), state_in_prompt="robot")
    quiet = Reporter(lambda _: None, lambda _: None)
    found = train(asked, HeadOptions(), out, quiet)
    assert found is not None
    print(f"draft head, step {found.step}: {found.judged.passes} passes on frames held out,"
          f" {found.temporal.passes} by temporal_tree")  # fmt: skip
    figures = {"episodes": count, "frames": count * length, "step": found.step}
    return out / HEAD, figures | {"passes_held_out": found.judged.passes}


def main() -> None:
    torch.set_num_threads(1)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 120
    out: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        with tarfile.open(GOLDEN / "data" / "pi0fast.tar.xz") as archive:
            archive.extractall(scratch, filter="data")
        begin = 5.0 + STEP * count
        target = Path(scratch) / "pi0fast"
        folder, out["head"] = trained_head(target, Path(scratch) / "run", begin)
        for executed in (1, 2, 4):
            frames = []
            for number in range(count):
                pixels, state, _ = trajectory(5.0 + executed * STEP * number)
                frames.append(Observation(number, number, 0, pixels, pixels[::-1].copy(), state))
            first = load_engine(EngineOptions(str(target), state_in_prompt="robot"))
            asked = replace(first.options, draft_checkpoint=str(folder))
            engines = {name: engine_of(first, name, replace(asked, **row))
                       for name, row in ROWS.items()}  # fmt: skip
            policy = engines["speculative"].policy
            spoken = policy.model.actions, policy.processors.action
            exact = [exact_policy(*spoken, executed, count, wide) for wide in (False, True)]
            print(f"{executed} executed  an exact policy: {exact} passes, chains and trees")
            found = measure(engines, TASK, frames, executed, warm_up=10)
            out[f"{executed} executed"] = {
                "exact_policy_passes": dict(zip(("chain", "tree"), exact, strict=True)),
                **found,
            }
            for name, row in found.items():
                print(f"{executed} executed  {name:17} {row}")
    target = HERE / "pi0_fast"
    target.mkdir(exist_ok=True)
    head = {"command": "benchmarks/pi0_fast.py", "torch": torch.__version__, "frames": count}
    (target / "summary.json").write_text(json_text(head | out) + "\n")


if __name__ == "__main__":
    main()
