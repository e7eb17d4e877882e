"""From a :class:`PolicySpec` to a policy. Imports only what that policy needs."""

from __future__ import annotations

from vla_ros.policies.base import Policy, PolicyRefused, PolicySpec


def load_policy(spec: PolicySpec) -> Policy:
    """Load the policy that ``spec`` names; raises PolicyRefused with the reason in one line."""
    policy = _load(spec)
    if spec.delay_frames:
        from vla_ros.policies.delayed import DelayedPolicy

        return DelayedPolicy(policy, spec.delay_frames)
    return policy


def _load(spec: PolicySpec) -> Policy:
    match spec.name:
        case "zero":
            from vla_ros.policies.zero import ZeroPolicy

            return ZeroPolicy()
        case "scripted":
            from vla_ros.policies.scripted import ScriptedPolicy

            return ScriptedPolicy()
        case "replay":
            from vla_ros.policies.replay import ReplayPolicy

            return ReplayPolicy(spec)
        case "vla":
            from vla_ros.policies.vla import VlaPolicy

            return VlaPolicy(spec)
    raise PolicyRefused(f"policy {spec.name!r} is not known")
