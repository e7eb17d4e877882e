"""The protocol of a policy, its specification, and the three errors it may raise on purpose.

A policy lives in one thread of one process (the worker) and is never shared.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from vla_ros.core import extensions
from vla_ros.core.action_space import END_EFFECTOR_DELTA, ActionSpace
from vla_ros.core.adaptation import Adaptation
from vla_ros.core.clock import Clock
from vla_ros.core.errors import UserError
from vla_ros.core.names import nearest
from vla_ros.core.types import Inference, Instruction, Observation, PolicyInfo, Timeline
from vla_ros.engine.errors import InvalidAction as InvalidAction  # what a policy raises
from vla_ros.engine.options import EngineOptions

#: How the names of models begin that a user may take for a policy's.
MODELS = ("smolvla", "pi0", "openvla", "minivla", "bitvla", "turbovla", "evo1", "groot", "gr00t",
          "act", "diffusion", "vqbet", "xvla")  # fmt: skip
POLICIES = ("zero", "scripted", "replay", "vla", "lerobot", "remote")
WITHOUT_DATA = POLICIES[:3]  # which learned from none
Scale = tuple[float, float, float, float, float, float]  # m, m, m, rad, rad, rad of one unit


class PolicyRefused(UserError, RuntimeError):
    """The policy cannot be loaded as configured. One clear line: what is wrong, what to do."""


class Unreachable(Exception):
    """The policy's server cannot be asked now, or has not answered yet: no fault of the policy's.
    It is asked again with the next observation; the robot acts on the last answer until that is too
    old. One clear line."""


class Policy(Protocol):
    """A policy: observations into actions, one call per observation.

    Another package offers one as an entry point of the group ``vla_ros.policies``: a function (or
    class) that takes a :class:`PolicySpec` and returns it.
    """

    @property
    def info(self) -> PolicyInfo:
        """Description of what was loaded. Constant."""
        ...

    def reset(self, instruction: Instruction) -> None:
        """A new task: forget everything computed so far, and follow ``instruction``."""
        ...

    def step(self, observation: Observation, timeline: Timeline, clock: Clock) -> Inference | None:
        """The action that is complete with one observation more.

        ``timeline`` began at the observation's receipt and ends with ``queue``; the policy
        marks ``preprocess``, ``vision``, ``prefill`` and ``decode`` on it. The result may
        belong to an older observation (a pipeline); None means nothing is complete yet.
        Raises InvalidAction when the output is no action, Unreachable when there is none now.
        """
        ...


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """Specification of the policy to load. Picklable; validated once, here.

    ``name`` is one of POLICIES, or what an installed package offers. ``worker_python`` is the
    interpreter of the worker, where the policy's libraries are not those of this one; empty: this
    interpreter, or the one made for the policy. ``options`` are the policy's own, as given.
    ``engine``: the options of the engine, of which ``checkpoint``, ``device``, ``seed`` and
    ``num_threads`` (0: the libraries' own choice) concern every policy with a model. What belongs
    to the checkpoint (``unnorm_key``, ``center_crop``, ``preprocessing``) is the checkpoint's
    (:mod:`vla_ros.policies.conventions`) unless it is given. ``action_scale`` multiplies the first
    six of seven de-normalized values into metres and radians; None: as the checkpoint says.
    ``replay_file`` is the .npy or .npz file of ``replay``, ``replay_loop`` whether it starts over
    at its end. ``warmup_count`` inferences on a synthetic ``warmup_size`` (height, width) image are
    made and timed before the worker is ready; policies without a model make none. ``action_space``
    is what the robot's commands are: ``zero`` stands still in it, ``scripted`` asks the expert of a
    robot that has it, ``replay`` has rows of it, ``vla`` and ``lerobot`` read a checkpoint's
    numbers so where its names do not say otherwise; other policies have a space of their own.
    ``joint_names``: which joints the values of the robot's state are; empty: none, or unknown.
    ``zero`` finds those of its action among them. ``delay_frames`` makes the policy act on the
    observation of that many calls ago. ``state_units`` and ``action_units`` concern ``lerobot``,
    ``remote`` and ``vla``: in which units the checkpoint has the robot's state and its actions
    (:mod:`vla_ros.policies.units`), and ``gripper`` what its actions have for closed..open, "" as
    the checkpoint says (:mod:`vla_ros.policies.layout`). ``action_space_override``: the
    checkpoint's names and statistics do not count against ``action_space``. ``action_rate_hz`` at
    which actions are executed, 0 that of its data: a velocity becomes a displacement by it.
    ``require_verified``: of ``vla``, refuse a precision in which `vla-ros verify` did not pass this
    checkpoint (:mod:`vla_ros.engine.verdicts`). ``adaptation``:
    from the robot's conventions to those of the checkpoint's data and back, for every policy.
    """

    name: str = "zero"
    engine: EngineOptions = EngineOptions()
    action_scale: Scale | None = None
    replay_file: str = ""
    replay_loop: bool = True
    warmup_count: int = 3
    warmup_size: tuple[int, int] = (256, 256)
    delay_frames: int = 0
    worker_python: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    action_space: ActionSpace = END_EFFECTOR_DELTA
    joint_names: tuple[str, ...] = ()
    action_space_override: bool = False
    state_units: tuple[str, ...] = ()
    action_units: tuple[str, ...] = ()
    gripper: str = ""
    action_rate_hz: float = 0.0
    require_verified: bool = False
    adaptation: Adaptation = Adaptation()

    def __post_init__(self) -> None:
        """Raise PolicyRefused for what needs no loading to be refused."""
        if self.name not in POLICIES and not self.worker_python:
            refuse_unknown(self.name)
        if self.name == "vla" and not self.checkpoint:
            raise PolicyRefused("policy 'vla' needs a checkpoint: a directory or shipped:tabletop")
        if self.name == "lerobot" and not self.checkpoint:
            raise PolicyRefused("policy 'lerobot' needs a checkpoint: a folder, or a hub id")
        schemes = ("ws://", "wss://", "tcp://", "http://", "https://")
        if self.name == "remote" and not self.checkpoint.startswith(schemes):
            raise PolicyRefused(
                "policy 'remote' needs a checkpoint: the server, as ws://host:8000,"
                " tcp://host:5555 of GR00T's, or http://host:8000/act of OpenVLA's"
            )
        if self.engine.weights and self.name != "vla":
            raise PolicyRefused(f"weights is for policy vla: {self.name!r} has none in formats")
        if self.require_verified and self.name != "vla":
            raise PolicyRefused(
                f"require_verified is for policy vla: no verdict is about {self.name!r}"
            )
        if self.name == "replay" and not self.replay_file:
            raise PolicyRefused("policy 'replay' needs replay_file: a .npy or .npz of [N, D]")
        scale = self.action_scale
        if scale is not None and not (
            len(scale) == 6 and all(math.isfinite(s) and s != 0.0 for s in scale)
        ):
            raise PolicyRefused("action_scale must be 6 finite numbers other than 0")
        if min(self.warmup_count, self.delay_frames) < 0:
            raise PolicyRefused("warmup_count and delay_frames must be 0 or more")
        if len(self.warmup_size) != 2 or not all(16 <= n <= 8192 for n in self.warmup_size):
            raise PolicyRefused("warmup_size must be a height and a width from 16 to 8192")

    @property
    def checkpoint(self) -> str:
        """A directory, a hub id or a name; "" where the policy has none."""
        return self.engine.checkpoint

    @property
    def device(self) -> str:
        """The model's device, as torch names it."""
        return self.engine.device

    @property
    def seed(self) -> int:
        """Seed of random weights and of sampling."""
        return self.engine.seed

    @property
    def num_threads(self) -> int:
        """Threads of the model; 0: the libraries' own choice."""
        return self.engine.num_threads


def refuse_unknown(name: str) -> None:
    """Raise PolicyRefused unless a package of this interpreter offers the policy."""
    found = extensions.claims(extensions.POLICIES)
    if name not in found:
        if _is_model(name):
            raise PolicyRefused(
                f"policy is {name!r}, which is a model: give policy: vla and checkpoint: its"
                " folder, or policy: lerobot in LeRobot's own environment"
            )
        if near := nearest(name, {*POLICIES, *found}):
            raise PolicyRefused(f"there is no policy {name!r}{near}")
        plugins = (
            f"installed packages offer {', '.join(sorted(found))}"
            if found
            else f"no installed package offers another (entry point {extensions.POLICIES})"
        )
        raise PolicyRefused(f"policy is {name!r}: there are {', '.join(POLICIES)}, and {plugins}")


def _is_model(name: str) -> bool:
    """True of a family that the engine reads, or a model that LeRobot runs."""
    plain = re.sub(r"[^a-z0-9]", "", name.lower().replace("π", "pi"))
    return plain.startswith(MODELS)


def finish(timeline: Timeline, clock: Clock) -> Timeline:
    """Mark every stage of a policy without a model: its own time counts as ``decode``."""
    begun = timeline.end_ns
    for stage in ("preprocess", "vision", "prefill"):
        timeline = timeline.mark(stage, begun)
    return timeline.mark("decode", clock.steady_ns())


def is_out_of_memory(error: BaseException) -> bool:
    """True for MemoryError and torch's OutOfMemoryError, which only exists where torch does."""
    names = {cls.__name__ for cls in type(error).__mro__}
    return isinstance(error, MemoryError) or "OutOfMemoryError" in names
