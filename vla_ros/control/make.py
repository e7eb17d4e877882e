"""Which control loop to run."""

from __future__ import annotations

from vla_ros.control.lasting import Lasting
from vla_ros.control.lockstep import LockstepControl
from vla_ros.control.loop import Control
from vla_ros.control.outlet import ControlOutlet
from vla_ros.control.realtime import RealtimeControl
from vla_ros.control.timeline import Chunking
from vla_ros.core import PolicyInfo
from vla_ros.safety import Limits
from vla_ros.timing import Clock


def make_control(
    limits: Limits,
    info: PolicyInfo,
    clock: Clock,
    outlet: ControlOutlet,
    *,
    lockstep: bool = False,
    sim_time: bool = False,
    detect_frozen: bool = False,
    chunking: Chunking = Chunking(),
    inference_s: float = 0.0,
    lasting: Lasting | None = None,
) -> Control:
    """The loop in lock-step, whose time is always simulated, or in real time. Raises ValueError
    for a ``chunking`` that the policy cannot take part in.

    ``lasting``: of the loop before it, where its owner had one.
    """
    if lockstep:
        return LockstepControl(
            limits,
            info,
            clock,
            outlet,
            detect_frozen=detect_frozen,
            chunking=chunking,
            lasting=lasting,
        )
    return RealtimeControl(
        limits,
        info,
        clock,
        outlet,
        sim_time=sim_time,
        detect_frozen=detect_frozen,
        chunking=chunking,
        inference_s=inference_s,
        lasting=lasting,
    )
