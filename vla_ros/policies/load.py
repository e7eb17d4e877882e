"""From a :class:`PolicySpec` to a policy. Imports only what that policy needs."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any

from vla_ros.core import PolicyInfo
from vla_ros.policies.base import Policy, PolicyRefused, PolicySpec, refuse_unknown
from vla_ros.policies.interpreter import SETUP
from vla_ros.policies.plugins import described, installed


def load_policy(spec: PolicySpec) -> Policy:
    """Load the policy that ``spec`` names; raises PolicyRefused with the reason in one line."""
    policy = _load(spec)
    if spec.delay_frames and policy.info.chunk_length == 1:  # chunks: the control loop's queue
        from vla_ros.policies.delayed import DelayedPolicy

        return DelayedPolicy(policy, spec.delay_frames)
    return policy


def _load(spec: PolicySpec) -> Policy:
    match spec.name:
        case "zero":
            from vla_ros.policies.zero import ZeroPolicy

            return ZeroPolicy(spec.action_space)
        case "scripted":
            from vla_ros.policies.scripted import ScriptedPolicy

            return ScriptedPolicy()
        case "replay":
            from vla_ros.policies.replay import ReplayPolicy

            return ReplayPolicy(spec)
        case "vla":
            from vla_ros.policies.vla import VlaPolicy

            return VlaPolicy(spec)
        case "lerobot":
            return _load_lerobot(spec)
    return _load_plugin(spec)


def _load_lerobot(spec: PolicySpec) -> Policy:
    try:
        from vla_ros.policies.lerobot.policy import LerobotPolicy
    except ImportError as error:
        raise PolicyRefused(f"{sys.executable} has no LeRobot ({error}): {SETUP}") from error
    return LerobotPolicy(spec)


def _load_plugin(spec: PolicySpec) -> Policy:
    """What another package's entry point makes of the spec. PolicyRefused names the entry point."""
    refuse_unknown(spec.name)
    first, *others = installed()[spec.name]
    if others:
        raise PolicyRefused(
            f"several packages offer it: {'; '.join(map(described, (first, *others)))}:"
            " uninstall all but one"
        )
    try:
        make: Callable[[PolicySpec], Any] = first.load()
        policy = make(spec)
    except PolicyRefused as error:
        raise PolicyRefused(f"{described(first)}: {error}") from error
    except Exception as error:
        traceback.print_exc()  # for who writes it; the line below is for who runs it
        reason = " ".join(str(error).split())
        raise PolicyRefused(
            f"{described(first)} cannot be loaded: {type(error).__name__}: {reason}"
        ) from error
    lacks = [n for n in ("reset", "step") if not callable(getattr(policy, n, None))]
    if not isinstance(getattr(policy, "info", None), PolicyInfo):
        lacks.insert(0, "info (a vla_ros.core.PolicyInfo)")
    if lacks:
        kind = type(policy).__name__
        raise PolicyRefused(f"{described(first)} gave a {kind} without {', '.join(lacks)}")
    loaded: Policy = policy
    return loaded
