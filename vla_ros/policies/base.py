"""What a policy is, how one is asked for, and the two errors it may raise on purpose.

A policy lives in one thread of one process (the worker) and is never shared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from vla_ros.action_space import END_EFFECTOR_DELTA, ActionSpace
from vla_ros.core import Inference, Instruction, Observation, PolicyInfo, Timeline
from vla_ros.errors import UserError
from vla_ros.policies.plugins import installed
from vla_ros.timing import Clock

POLICIES = ("zero", "scripted", "replay", "vla", "lerobot")
Scale = tuple[float, float, float, float, float, float]  # m, m, m, rad, rad, rad of one unit


class InvalidAction(RuntimeError):
    """The policy's output is no action: NaN, a non-action token, too short. One clear line."""


class PolicyRefused(UserError, RuntimeError):
    """The policy cannot be loaded as configured. One clear line: what is wrong, what to do."""


class Policy(Protocol):
    """Turns observations into actions, one call per observation.

    Three members, and if it likes ``watch(coming)``: that is called once, before the robot's first
    frame, with a function that names the newest frame that waits (an Observation, or None). The
    policy may look at it while it computes; ``step`` asks for it, or for a newer one.
    A package of its own offers a policy as an entry point of the group ``vla_ros.policies``: a
    function (or class) that takes a :class:`PolicySpec` and returns it.
    """

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

    ``name`` is one of POLICIES, or what an installed package offers. ``worker_python`` is the
    interpreter of the worker, where the policy's libraries are not those of this one; empty: this
    interpreter, or the one made for the policy. ``options`` are the policy's own, word by word.
    ``checkpoint`` ... ``dtype`` concern ``vla``, and so do ``schedule_options``: further fields
    of ``engine.EngineOptions`` by name, such as ``{"drafter": "temporal", "gamma": 3}``.
    ``unnorm_key`` ... ``preprocessing`` belong to the checkpoint: empty or None is as it says
    (:mod:`vla_ros.policies.conventions`), anything else wins over it. ``action_scale``
    multiplies the first six of seven de-normalised values into metres and radians;
    ``center_crop`` and ``preprocessing`` ("default", "libero") see
    :mod:`vla_ros.engine.vision.images`.
    ``replay_file`` is the .npy or .npz file of ``replay``, ``replay_loop`` whether it starts
    over at its end.
    ``num_threads`` limits the worker's compute threads (0: the libraries' own choice).
    ``warmup_count`` inferences on a synthetic ``warmup_size`` (height, width) image are made
    and timed before the worker says that it is ready; policies without a model make none.
    ``action_space`` is what the robot's commands are: ``zero`` stands still in it, ``replay``
    has rows of it, ``lerobot`` reads its checkpoint's numbers so unless it is the default; other
    policies say themselves what their actions are.
    ``delay_frames`` makes the policy act on the observation of that many calls ago.
    ``camera_roles`` are the robot's cameras beside main and wrist.
    ``state_units`` and ``action_units`` concern ``lerobot``: in which units the checkpoint has the
    robot's state and its actions (:mod:`vla_ros.policies.lerobot.layout`).
    ``require_gate``: of ``vla``, refuse a precision in which `vla-ros gate` did not pass this
    checkpoint (:mod:`vla_ros.precision.store`). ``weights``: of ``vla``, the formats of its
    weights, such as "int8" (:mod:`vla_ros.engine.quantised.formats`), "" as they are stored.
    """

    name: str = "zero"
    checkpoint: str = ""
    schedule: str = "auto"
    schedule_options: Mapping[str, str | int | float | bool | tuple[str, ...]] = field(
        default_factory=dict
    )
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
    worker_python: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    action_space: ActionSpace = END_EFFECTOR_DELTA
    camera_roles: tuple[str, ...] = ()
    state_units: tuple[str, ...] = ()
    action_units: tuple[str, ...] = ()
    require_gate: bool = False
    weights: str = ""

    def __post_init__(self) -> None:
        """Raise PolicyRefused for what can be told without loading anything."""
        if self.name not in POLICIES and not self.worker_python:
            refuse_unknown(self.name)
        if self.name == "vla" and not self.checkpoint:
            raise PolicyRefused("policy 'vla' needs a checkpoint: a directory or shipped:tabletop")
        if self.name == "lerobot" and not self.checkpoint:
            raise PolicyRefused("policy 'lerobot' needs a checkpoint: a folder, or a hub id")
        if self.weights and self.name != "vla":
            raise PolicyRefused(f"weights is for policy vla: {self.name!r} has none in formats")
        if self.require_gate and self.name != "vla":
            raise PolicyRefused(f"require_gate is for policy vla: no gate judges {self.name!r}")
        if self.name == "replay" and not self.replay_file:
            raise PolicyRefused("policy 'replay' needs replay_file: a .npy or .npz of [N, D]")
        scale = self.action_scale
        if scale is not None and not (
            len(scale) == 6 and all(math.isfinite(s) and s != 0.0 for s in scale)
        ):
            raise PolicyRefused("action_scale must be 6 finite numbers other than 0")
        if min(self.num_threads, self.warmup_count, self.delay_frames) < 0:
            raise PolicyRefused("num_threads, warmup_count and delay_frames must be 0 or more")
        if len(self.warmup_size) != 2 or not all(16 <= n <= 8192 for n in self.warmup_size):
            raise PolicyRefused("warmup_size must be a height and a width from 16 to 8192")


def refuse_unknown(name: str) -> None:
    """Raise PolicyRefused unless a package of this interpreter offers the policy."""
    found = installed()
    if name not in found:
        plugins = (
            f"installed packages offer {', '.join(sorted(found))}"
            if found
            else ("no installed package offers another (entry point vla_ros.policies)")
        )
        raise PolicyRefused(f"policy is {name!r}: there are {', '.join(POLICIES)}, and {plugins}")


def finish(timeline: Timeline, clock: Clock) -> Timeline:
    """Mark every stage of a policy without a model: its own time counts as ``decode``."""
    begun = timeline.end_ns
    for stage in ("preprocess", "vision", "prefill"):
        timeline = timeline.mark(stage, begun)
    return timeline.mark("decode", clock.steady_ns())
