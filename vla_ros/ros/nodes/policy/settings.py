"""Settings from the policy node's parameters: policy to load, limits, chunking, engine options."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vla_ros.core.adaptation import Adaptation, adaptation_of
from vla_ros.core.types import StaleAction
from vla_ros.engine.options import AUTO, EngineOptions, parse_options
from vla_ros.policies.base import PolicyRefused, PolicySpec
from vla_ros.ros.nodes.policy.outputs import check_outputs, outputs_of
from vla_ros.ros.nodes.policy.parameters import ENGINE, HIGH, IN_ENGINE_OPTIONS, LOW, roles_of
from vla_ros.ros.nodes.policy.space import space_of
from vla_ros.runtime.control.goals import check_instruction
from vla_ros.runtime.control.queue import Chunking, Execution
from vla_ros.runtime.safety import Limits


def validate(values: dict[str, Any], sim_time: bool) -> tuple[PolicySpec, Limits]:
    """Policy and limits, from values that are each allowed by themselves.

    Raises ValueError or PolicyRefused, in one line, for values that contradict each other.
    """
    limits = limits_of(values)
    check_instruction(values["instruction"])
    if values["mode"] == "lockstep" and not sim_time:
        raise ValueError("mode 'lockstep' needs use_sim_time:=true and a /clock")
    if values["replay_requests_file"] and values["mode"] != "lockstep":
        raise ValueError(
            "replay_requests_file is for mode 'lockstep': in real time nothing comes again"
        )
    if values["shadow"] and values["mode"] == "lockstep":
        raise ValueError(
            "mode 'lockstep' waits for our commands, and in the shadow none goes out: shadow is for"
            " mode 'realtime'"
        )
    if values["shadow"] and values["action_chunk_service"]:
        raise ValueError(
            "action_chunk_service: whoever asks for a chunk executes it, and in the shadow nothing"
            " of ours moves the robot: leave one of them out"
        )
    check_outputs(values, limits.space)
    _refuse_default_limits(values)
    return _with_limits(spec_of(values), limits, sim_time), limits


def _with_limits(spec: PolicySpec, limits: Limits, sim_time: bool) -> PolicySpec:
    """Policy with the age that an answer of a server may have: the tick after it has to publish it.
    In simulated time the server has no clock to judge it by."""
    if spec.name != "remote" or sim_time:
        return spec
    own = {"max_age_s": f"{limits.max_age_s - limits.period_s:.6g}"}
    return replace(spec, options={**own, **spec.options})


def _refuse_default_limits(values: Mapping[str, Any]) -> None:
    """Raise ValueError where a robot would move within a simulation's limits."""
    names = outputs_of(values)
    own = list(values["bounds_low"]) != LOW or list(values["bounds_high"]) != HIGH
    if names and not own and not any(values["velocity_limits"]):
        raise ValueError(
            f"outputs {', '.join(names)} need limits of the robot's own: the default bounds are a"
            f" simulation's, {HIGH[0]:g} m an axis and {HIGH[3]:g} rad an action; set"
            " velocity_limits (per second), or bounds_low and bounds_high (an action's)"
        )


def limits_of(values: dict[str, Any]) -> Limits:
    """Limits from the parameters. Raises ValueError for limits that cannot be."""
    space = space_of(values)
    if space.kind.joints and list(values["bounds_low"]) == LOW:
        raise ValueError(
            f"action_space {values['action_space']} needs bounds_low and bounds_high of its own:"
            " the defaults are an end effector's, in m and rad"
        )
    return Limits(
        control_rate_hz=values["control_rate_hz"],
        action_rate_hz=values["action_rate_hz"],
        camera_rate_hz=values["camera_rate_hz"],
        max_age_s=values["max_age_s"],
        stale_action=StaleAction(values["stale_action"]),
        space=space,
        silence_after_s=values["silence_after_s"],
        low=tuple(values["bounds_low"]),
        high=tuple(values["bounds_high"]),
        jump=values["jump_limit"],
        jerk=values["jerk_limit"],
        velocity=_given(values["velocity_limits"]),
        acceleration=_given(values["acceleration_limits"]),
        clamp_limit=values["clamp_limit"],
        clamp_tolerance=values["clamp_tolerance"],
        invalid_limit=values["invalid_limit"],
        fresh_needed=values["fresh_needed"],
        gripper_hysteresis=values["gripper_hysteresis"],
        gripper_dwell_s=values["gripper_dwell_s"],
        hold_latch_s=values["hold_latch_s"],
        stamp_tolerance_s=values["stamp_tolerance_s"],
        takeover_timeout_s=values["takeover_timeout_s"],
        smoothing_hz=values["smoothing_hz"],
        leash_s=values["leash_s"],
    )


def _given(limits: list[float]) -> tuple[float, ...]:
    return tuple(limits) if any(limits) else ()


def chunking_of(values: Mapping[str, Any]) -> Chunking:
    """Execution of chunks, from the parameters."""
    delay = values["conditioning_delay_steps"]
    return Chunking(
        execution=Execution(values["execution"]),
        replan_interval=values["replan_interval"],
        ensemble_decay=values["ensemble_decay"],
        delay_frames=values["delay_frames"],
        blend_s=values["chunk_blend_s"],
        conditioning_delay_steps=None if delay < 0 else delay,
    )


def pairs_of(values: Mapping[str, Any], name: str) -> dict[str, str]:
    """Pairs of a list of "name=value". Raises PolicyRefused for anything else."""
    out: dict[str, str] = {}
    for word in filter(None, values[name]):
        key, equals, value = word.partition("=")
        if not equals or not key.strip() or key.strip() in out:
            raise PolicyRefused(f"{name} has {word!r}: each entry is name=value, each name once")
        out[key.strip()] = value.strip()
    return out


def spec_of(values: dict[str, Any]) -> PolicySpec:
    """Policy to load. Raises PolicyRefused with the reason."""
    return PolicySpec(
        name=values["policy"],
        action_space=space_of(values),
        joint_names=_joints_of_state(values),
        engine=engine_of(values),
        require_verified=values["require_verified"],
        action_scale=tuple(values["action_scale"]) if any(values["action_scale"]) else None,
        replay_file=values["replay_file"],
        replay_loop=values["replay_loop"],
        warmup_count=values["warmup_count"],
        delay_frames=values["delay_frames"],
        worker_python=values["worker_python"],
        options=pairs_of(values, "policy_options"),
        state_units=tuple(filter(None, values["state_units"])),
        action_units=tuple(filter(None, values["action_units"])),
        gripper=values["gripper"],
        action_space_override=values["action_space_override"],
        action_rate_hz=values["action_rate_hz"],
        adaptation=_adaptation(values),
    )


def _adaptation(values: Mapping[str, Any]) -> Adaptation:
    try:
        return adaptation_of(values, ("main", "wrist", *roles_of(values)))
    except ValueError as error:
        raise PolicyRefused(str(error)) from error


def _joints_of_state(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Joints of the state's values; in another layout none of them is a joint of the arm."""
    named = values["joint_names"] if values["state_layout"] == "joints" else ()
    return tuple(filter(None, named))


def engine_of(values: Mapping[str, Any]) -> EngineOptions:
    """Options of the engine. Raises PolicyRefused with the reason."""
    execution = Execution(values["execution"])
    try:
        options = parse_options(pairs_of(values, "engine_options"))
        if both := sorted(set(options) - {*IN_ENGINE_OPTIONS, "extra"}):
            raise ValueError(
                f"engine_options has {', '.join(both)}: a parameter of that name says it"
            )
        if execution is Execution.RTC_TRAINED:
            options["rtc_mode"] = "trained"
        elif execution is Execution.RTC:
            if options.setdefault("rtc_mode", "guided") == "trained":
                raise ValueError("rtc_mode trained is execution 'rtc_trained'")
        else:
            options.pop("rtc_mode", None)
        options |= {name: values[name] for name in ENGINE}
        options["num_threads"] = values["num_threads"] or _threads(values["device"])
        return EngineOptions(**options, camera_roles=roles_of(values))  # type: ignore[arg-type]
    except ValueError as error:
        raise PolicyRefused(str(error)) from error


def _threads(device: str) -> int:
    """Threads of a model that shares the CPUs with the other nodes; 0: torch decides."""
    return max(1, len(os.sched_getaffinity(0)) // 2) if device in ("cpu", AUTO) else 0
