"""Policies: one protocol, and its implementations that every machine can run. ROS-free."""

from vla_ros.policies.base import (
    POLICIES,
    InvalidAction,
    Policy,
    PolicyRefused,
    PolicySpec,
)
from vla_ros.policies.load import load_policy

__all__ = ["POLICIES", "InvalidAction", "Policy", "PolicyRefused", "PolicySpec", "load_policy"]
