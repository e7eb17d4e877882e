"""What a policy is, how one is asked for, and the two errors it may raise on purpose.

A policy lives in one thread of one process (the worker) and is never shared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from vla_ros.core import Inference, Instruction, Observation, PolicyInfo, Timeline
from vla_ros.errors import UserError
from vla_ros.timing import Clock

POLICIES = ("zero", "scripted", "replay", "vla")
Scale = tuple[float, float, float, float, float, float]  # m, m, m, rad, rad, rad of one unit


class InvalidAction(RuntimeError):
    """The policy's output is no action: NaN, a non-action token, too short. One clear line."""


class PolicyRefused(UserError, RuntimeError):
    """The policy cannot be loaded as configured. One clear line: what is wrong, what to do."""


class Policy(Protocol):
    """Turns observations into actions, one call per observation."""

    @property
    def info(self) -> PolicyInfo:
        """What was loaded. Constant."""
        ...

    def reset(self, instruction: Instruction) -> None:
        """Forget everything computed so far; from now on pursue ``instruction``."""
        ...

    def step(self, observation: Observation, timeline: Timeline, clock: Clock) -> Inference | None:
        """Take one observation in and return the action that is now complete.

        ``timeline`` began at the observation's receipt and ends with ``queue``; the policy
        marks ``preprocess``, ``vision``, ``prefill`` and ``decode`` on it. The result may
        belong to an older observation (a pipeline); None means nothing is complete yet.
        Raises InvalidAction when the output is no action.
        """
        ...


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """Everything that says which policy to load. Picklable; validated once, here.

    ``checkpoint`` ... ``dtype`` concern ``vla``, and so do ``schedule_options``: further fields
    of ``engine.EngineOptions`` by name, such as ``{"drafter": "temporal", "gamma": 3}``.
    ``unnorm_key`` ... ``preprocessing`` belong to the checkpoint: empty or None is as it says
    (:mod:`vla_ros.policies.conventions`), anything else wins over it. ``action_scale``
    multiplies the first six de-normalised values into metres and radians; ``center_crop`` and
    ``preprocessing`` ("default", "libero") see :mod:`vla_ros.engine.vision.images`.
    ``replay_file`` is the .npy or .npz file of ``replay``, ``replay_loop`` whether it starts
    over at its end.
    ``num_threads`` limits the worker's compute threads (0: the libraries' own choice).
    ``warmup_count`` inferences on a synthetic ``warmup_size`` (height, width) image are made
    and timed before the worker says that it is ready; policies without a model make none.
    ``delay_frames`` makes the policy act on the observation of that many calls ago.
    """

    name: str = "zero"
    checkpoint: str = ""
    schedule: str = "auto"
    schedule_options: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    device: str = "cpu"
    dtype: str = "float32"
    unnorm_key: str = ""
    action_scale: Scale | None = None
    center_crop: bool | None = None
    preprocessing: str | None = None
    seed: int = 0
    replay_file: str = ""
    replay_loop: bool = True
    num_threads: int = 0
    warmup_count: int = 3
    warmup_size: tuple[int, int] = (256, 256)
    cuda_graphs: bool = True
    delay_frames: int = 0

    def __post_init__(self) -> None:
        """Raise PolicyRefused for what can be told without loading anything."""
        if self.name not in POLICIES:
            raise PolicyRefused(f"policy is {self.name!r}: give one of {', '.join(POLICIES)}")
        if self.name == "vla" and not self.checkpoint:
            raise PolicyRefused("policy 'vla' needs a checkpoint: a directory or shipped:tabletop")
        if self.name == "replay" and not self.replay_file:
            raise PolicyRefused("policy 'replay' needs replay_file: a .npy or .npz of [N, 7]")
        scale = self.action_scale
        if scale is not None and not (
            len(scale) == 6 and all(math.isfinite(s) and s != 0.0 for s in scale)
        ):
            raise PolicyRefused("action_scale must be 6 finite numbers other than 0")
        if min(self.num_threads, self.warmup_count, self.delay_frames) < 0:
            raise PolicyRefused("num_threads, warmup_count and delay_frames must be 0 or more")
        if len(self.warmup_size) != 2 or not all(16 <= n <= 8192 for n in self.warmup_size):
            raise PolicyRefused("warmup_size must be a height and a width from 16 to 8192")


def finish(timeline: Timeline, clock: Clock) -> Timeline:
    """Mark every stage of a policy without a model: its own time counts as ``decode``."""
    begun = timeline.end_ns
    for stage in ("preprocess", "vision", "prefill"):
        timeline = timeline.mark(stage, begun)
    return timeline.mark("decode", clock.steady_ns())
