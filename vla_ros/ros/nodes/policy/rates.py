"""Rate of a loaded policy's actions: the parameter's, its data's, or the control rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from vla_ros.core.types import PolicyInfo
from vla_ros.policies.base import WITHOUT_DATA
from vla_ros.ros.nodes.policy.outputs import outputs_of
from vla_ros.runtime.safety import Limits


@dataclass(frozen=True, slots=True)
class SettledRate:
    """Rate that was settled at configure. ``note`` says where it comes from, ``doubt`` what
    contradicts it, each one line or ""."""

    hz: float
    note: str = ""
    doubt: str = ""

    def of(self, limits: Limits) -> Limits:
        """Limits with this rate. Raises ValueError where they cannot be met with it."""
        return replace(limits, action_rate_hz=self.hz)


def settle_rate(
    limits: Limits, info: PolicyInfo, values: Mapping[str, Any], sim_time: bool
) -> SettledRate:
    """Rate of the actions of the policy that ``info`` describes; ``limits`` are the parameters'.

    Raises ValueError, in one line, where nothing says it and an output leads to a robot.
    """
    given, control = limits.action_rate_hz, limits.control_rate_hz
    its = info.action_rate_hz
    if given:
        wrong = its and abs(its - given) > 1e-6 * its
        doubt = f"action_rate_hz {given:g}, not the checkpoint's {its:g}" if wrong else ""
        return SettledRate(given, doubt=doubt)
    if its:
        return SettledRate(
            its,
            ""
            if its == control
            else f"actions at {its:g} Hz, the rate of this policy's data;"
            f" commands at {control:g} Hz",
        )
    if info.name in WITHOUT_DATA:
        what = "this file of actions says no rate" if info.name == "replay" else ""
        return SettledRate(control, _taken(what, control) if what else "")
    what = "nothing says the rate of this policy's data"
    if outputs_of(values) and not sim_time:
        raise ValueError(
            f"action_rate_hz: {what}, and {', '.join(outputs_of(values))} would move a robot at"
            " another speed than it learned: set action_rate_hz (Bridge 5, DROID 15, LIBERO 20,"
            " SO-101 30, ALOHA 50)"
        )
    return SettledRate(control, _taken(what, control))


def _taken(why: str, hz: float) -> str:
    return f"action_rate_hz: {why}; control_rate_hz {hz:g} is taken"


def slower(limits: Limits, info: PolicyInfo) -> str:
    """Warning, in one line, where a policy of one action at a time acts less often than in its
    data; "": it does not."""
    if info.chunk_length > 1 or limits.period_s <= limits.action_period_s:
        return ""
    return (
        f"control_rate_hz {limits.control_rate_hz:g} is below action_rate_hz"
        f" {limits.action_rate_hz:g}: this policy gives one action at a time and is asked once a"
        " control period, so the robot moves more slowly than in its data"
    )
