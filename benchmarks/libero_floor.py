"""Chunks of a policy at the first frames of a LIBERO suite, and how far those of another world are.

MuJoCo from 3.3.3 on draws libero_object's floor darker. Run once in each world with --write, the
second time with --against the first: how far the chunks of the same initial states are apart,
beside how far those of two initial states of a task are. Needs LIBERO and its assets
(`make libero`).

    benchmarks/libero_floor.py runs/object/policy --write right.npz
    pip install --no-deps --target other mujoco==3.8.1
    PYTHONPATH=other benchmarks/libero_floor.py runs/object/policy --write b.npz --against right.npz
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from vla_ros.core.clock import SystemClock
from vla_ros.core.types import Instruction, Observation, Timeline
from vla_ros.engine.options import EngineOptions
from vla_ros.policies import PolicySpec, load_policy
from vla_ros.sim.env import AGENTVIEW
from vla_ros.sim.factory import EnvConfig

STATES = (0, 1)  # of every task


def chunks_of(checkpoint: str, suite: str) -> tuple[np.ndarray, float]:
    """Chunks [tasks, states, C, 7] of the first frames, and the mean of their pixels."""
    engine = EngineOptions(checkpoint, dtype="float32", num_threads=1)
    policy, clock = load_policy(PolicySpec("vla", engine=engine)), SystemClock()
    world = EnvConfig("libero", 256, wrist=False, suite=suite)()
    chunks, brightness = [], []
    for task in world.spec.tasks:
        for state in STATES:
            image = world.reset(task.name, state, 0).images[AGENTVIEW]
            now = clock.steady_ns()
            policy.reset(Instruction(task.instruction, 1))
            answer = policy.step(Observation(now, now, now, image), Timeline(now), clock)
            chunks.append(answer.actions)
            brightness.append(image.mean())
    world.close()
    found = np.array(chunks)
    return found.reshape(-1, len(STATES), *found.shape[1:]), float(np.mean(brightness))


def apart_mm(one: np.ndarray, other: np.ndarray) -> float:
    """Mean distance of the commanded displacements, mm a step and axis."""
    return 1e3 * float(np.abs(one - other)[..., :3].mean())


def main() -> None:
    import mujoco

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint")
    parser.add_argument("--suite", default="libero_object")
    parser.add_argument("--write", type=Path, required=True, help="an .npz of the chunks")
    parser.add_argument("--against", type=Path, help="an .npz of another world")
    args = parser.parse_args()
    chunks, brightness = chunks_of(args.checkpoint, args.suite)
    np.savez(args.write, chunks=chunks)
    result = {
        "mujoco": mujoco.__version__,
        "brightness": round(brightness, 1),
        "states_apart_mm": round(apart_mm(chunks[:, 0], chunks[:, 1]), 2),
    }
    if args.against:
        before = np.load(args.against)["chunks"]
        result["worlds_apart_mm"] = round(apart_mm(chunks, before), 2)
        way, gap = (1e3 * np.linalg.norm(c[..., :3].sum(2), axis=-1).mean()
                    for c in (before, chunks - before))  # fmt: skip
        result["chunk_way_mm"], result["chunk_apart_mm"] = round(way, 0), round(gap, 0)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
