"""From a :class:`PolicySpec` to a policy. Imports only what that policy needs."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from vla_ros.core import extensions
from vla_ros.core.clock import Clock
from vla_ros.core.console import show_traceback
from vla_ros.core.types import Inference, Instruction, Observation, PolicyInfo, Timeline
from vla_ros.policies.adapting import adapted
from vla_ros.policies.base import Policy, PolicyRefused, PolicySpec, refuse_unknown

# The Python that a worker runs in: this one, one that was named, or LeRobot's own.


VARIABLE = "VLA_ROS_LEROBOT_PYTHON"
OLDEST = (3, 12)  # that LeRobot runs on
SETUP = "run `vla-ros lerobot setup`, or give worker_python"


def lerobot_folder() -> Path:
    """The folder of LeRobot's environment unless `vla-ros lerobot setup` is given another."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "vla_ros" / "lerobot"


def lerobot_python() -> Path:
    """LeRobot's interpreter, whether it is there or not: $VLA_ROS_LEROBOT_PYTHON, or setup's."""
    given = os.environ.get(VARIABLE)
    return Path(given).expanduser() if given else lerobot_folder() / "bin" / "python"


def worker_python(spec: PolicySpec) -> str | None:
    """The interpreter that the policy of ``spec`` is run with; None: this one.

    PolicyRefused: it is not there; the line says what to do.
    """
    if spec.worker_python:
        found = shutil.which(os.path.expanduser(spec.worker_python))
        if found is None:
            raise PolicyRefused(
                f"worker_python is {spec.worker_python!r}: there is no such program"
            )
        return found
    if spec.name != "lerobot":
        return None
    if (python := lerobot_python()).is_file():
        return str(python)
    if importlib.util.find_spec("lerobot") is not None:
        return None
    raise PolicyRefused(f"policy 'lerobot' needs LeRobot, and {python} is not there: {SETUP}")


# Policies by their names, and the delay that a study asks for.


class DelayedPolicy:
    """A policy on old observations, each of ``frames`` calls ago; None while there is none.

    The inference names the observation that it rests on, so its age is what it is.
    """

    def __init__(self, policy: Policy, frames: int) -> None:
        self._policy = policy
        self._frames = frames
        self._waiting: deque[Observation] = deque()
        depth = policy.info.pipeline_depth + frames
        self.info: PolicyInfo = replace(policy.info, pipeline_depth=depth)

    def reset(self, instruction: Instruction) -> None:
        """A new task: the observations that wait are void too."""
        self._waiting.clear()
        self._policy.reset(instruction)

    def step(self, observation: Observation, timeline: Timeline, clock: Clock) -> Inference | None:
        """The answer to the oldest observation that waits."""
        self._waiting.append(observation)
        if len(self._waiting) <= self._frames:
            return None
        return self._policy.step(self._waiting.popleft(), timeline, clock)


def load_policy(spec: PolicySpec) -> Policy:
    """The policy that ``spec`` names, loaded; raises PolicyRefused with the reason in one line."""
    policy = adapted(_load(spec), spec.adaptation)
    if spec.delay_frames and policy.info.chunk_length == 1:  # chunks: the control loop's queue
        return DelayedPolicy(policy, spec.delay_frames)
    return policy


def _load(spec: PolicySpec) -> Policy:
    match spec.name:
        case "zero":
            from vla_ros.policies.zero import ZeroPolicy

            return ZeroPolicy(spec.action_space, spec.joint_names)
        case "scripted":
            from vla_ros.policies.scripted import ScriptedPolicy

            return ScriptedPolicy(spec.action_space)
        case "replay":
            from vla_ros.policies.replay import ReplayPolicy

            return ReplayPolicy(spec)
        case "vla":
            return _maker("vla_ros.policies.vla:VlaPolicy")(spec)
        case "lerobot":
            return _load_lerobot(spec)
        case "remote":
            from vla_ros.policies.remote.policy import RemotePolicy

            return RemotePolicy(spec)
    return _load_plugin(spec)


def load_corrector(spec: PolicySpec) -> Policy:
    """The corrector of the checkpoint that ``spec`` names. PolicyRefused: it has none."""
    corrector = _maker("vla_ros.policies.correcting:CorrectingPolicy")(spec)
    return adapted(corrector, spec.adaptation)


def _maker(where: str) -> Callable[[PolicySpec], Policy]:
    """A policy's class that needs torch, found by its name as plug-ins are: nodes import this
    module, and not what their workers load with it."""
    make: Callable[[PolicySpec], Policy] = EntryPoint(where, where, extensions.POLICIES).load()
    return make


def _load_lerobot(spec: PolicySpec) -> Policy:
    try:
        make = _maker("vla_ros.policies.lerobot.policy:LerobotPolicy")
    except ImportError as error:
        raise PolicyRefused(f"{sys.executable} has no LeRobot ({error}): {SETUP}") from error
    return make(spec)


def _load_plugin(spec: PolicySpec) -> Policy:
    """The policy of another package's entry point, which PolicyRefused names."""
    refuse_unknown(spec.name)
    first, *others = claimed = extensions.claims(extensions.POLICIES)[spec.name]
    if others:
        raise PolicyRefused(
            f"several packages offer it: {'; '.join(map(_described, claimed))}:"
            " uninstall all but one"
        )
    try:
        make: Callable[[PolicySpec], Any] = first.load()
        policy = make(spec)
    except PolicyRefused as error:
        raise PolicyRefused(f"{_described(first)}: {error}") from error
    except Exception as error:
        show_traceback(error)  # for who writes it; the line below is for who runs it
        reason = " ".join(str(error).split())
        raise PolicyRefused(
            f"{_described(first)} cannot be loaded: {type(error).__name__}: {reason}"
        ) from error
    lacks = [n for n in ("reset", "step") if not callable(getattr(policy, n, None))]
    if not isinstance(getattr(policy, "info", None), PolicyInfo):
        lacks.insert(0, "info (a vla_ros.core.PolicyInfo)")
    if lacks:
        kind = type(policy).__name__
        raise PolicyRefused(f"{_described(first)} gave a {kind} without {', '.join(lacks)}")
    loaded: Policy = policy
    return loaded


def _described(point: EntryPoint) -> str:
    package = f" of {point.dist.name} {point.dist.version}" if point.dist is not None else ""
    return f"policy {point.name!r} (entry point {point.value}{package})"
