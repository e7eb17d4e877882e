"""The states of the policy node: what leads from one to another."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vla_ros.core import PolicyState
from vla_ros.safety.limits import Limits


@dataclass(frozen=True, slots=True)
class Safety:
    """State of the node with what its transitions count. ``since_ns`` is steady time."""

    state: PolicyState = PolicyState.UNCONFIGURED
    reason: str = "not configured"
    since_ns: int = 0
    fresh: int = 0  # clean actions in a row while in HOLD
    clamped: int = 0  # clamped actions in a row
    invalid: int = 0  # invalid inferences in a row

    @property
    def active(self) -> bool:
        return self.state >= PolicyState.WAITING


def enter(safety: Safety, state: PolicyState, reason: str, steady_ns: int) -> Safety:
    """Go to ``state``. FAULT is latched: only :func:`recover` and deactivation leave it."""
    if safety.state is PolicyState.FAULT and state in (
        PolicyState.WAITING,
        PolicyState.RUNNING,
        PolicyState.HOLD,
    ):
        return safety
    if safety.state is state:
        return replace(safety, reason=reason)
    return Safety(state, reason, steady_ns)


def hold(safety: Safety, reason: str, steady_ns: int) -> Safety:
    """Go to HOLD if the robot may be moving; in WAITING nothing moves that could be held.

    Invalid actions stay counted: evidence that grows old because nothing valid comes is the same
    trouble going on.
    """
    if safety.state is PolicyState.RUNNING:
        return replace(enter(safety, PolicyState.HOLD, reason, steady_ns), invalid=safety.invalid)
    if safety.state is PolicyState.HOLD:
        return replace(safety, fresh=0, reason=reason)
    return safety


def recover(safety: Safety, steady_ns: int) -> Safety:
    """The explicit recover call: the only way out of FAULT that stays active."""
    return Safety(PolicyState.WAITING, "recovered", steady_ns)


def after_valid(safety: Safety, limits: Limits, far: bool, steady_ns: int) -> Safety:
    """A finite, fresh action of this epoch has come: count it, and move on where it suffices.

    ``far``: it was beyond its limits, see :class:`Gated`.
    """
    clamps = safety.clamped + 1 if far else 0
    counted = replace(safety, invalid=0, clamped=clamps)
    if clamps >= limits.clamp_limit and safety.state is PolicyState.RUNNING:
        return hold(counted, f"{clamps} actions in a row exceeded their limits", steady_ns)
    if safety.state is PolicyState.WAITING:
        return Safety(PolicyState.RUNNING, "running", steady_ns, clamped=clamps)
    if safety.state is PolicyState.HOLD:
        fresh = 0 if far else safety.fresh + 1
        if fresh >= limits.fresh_needed:
            return Safety(PolicyState.RUNNING, "running", steady_ns)
        return replace(counted, fresh=fresh)
    return counted


def after_invalid(safety: Safety, limits: Limits, reason: str, steady_ns: int) -> Safety:
    """NaN logits, a token that is no action, a short output: three in a row are a fault."""
    count = safety.invalid + 1
    if count >= limits.invalid_limit:
        return enter(safety, PolicyState.FAULT, f"{count} invalid actions: {reason}", steady_ns)
    return replace(safety, invalid=count, fresh=0)
