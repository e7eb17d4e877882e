"""What the policy node's parameters mean: what to load, what holds it, how chunks are executed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from vla_ros.control import check_instruction
from vla_ros.control.timeline import Chunking, Execution
from vla_ros.core import StalePolicy
from vla_ros.nodes.policy.outputs.choose import check_outputs
from vla_ros.nodes.policy.parameters import CROP, DRAFTING, ENGINE, LOW, roles_of
from vla_ros.nodes.policy.space import space_of
from vla_ros.policies.base import PolicyRefused, PolicySpec
from vla_ros.safety import Limits


def judged(values: dict[str, Any], sim_time: bool) -> tuple[PolicySpec, Limits]:
    """What to load and what holds it, from values that are each allowed by themselves.

    Raises ValueError or PolicyRefused, in one line, for what they cannot mean together.
    """
    limits = limits_of(values)
    check_instruction(values["instruction"])
    if values["mode"] == "lockstep" and not sim_time:
        raise ValueError("mode 'lockstep' needs use_sim_time:=true and a /clock")
    if values["retold_chunks"] and values["mode"] != "lockstep":
        raise ValueError("retold_chunks is for mode 'lockstep': in real time nothing comes again")
    check_outputs(values, limits.space)
    return spec_of(values), limits


def limits_of(values: dict[str, Any]) -> Limits:
    """The limits that these values say. Raises ValueError for what cannot be."""
    space = space_of(values)
    if space.kind.joints and list(values["bounds_low"]) == LOW:
        raise ValueError(
            f"action_space {values['action_space']} needs bounds_low and bounds_high of its own:"
            " the defaults are an end effector's, in m and rad"
        )
    return Limits(
        control_rate_hz=values["control_rate_hz"],
        camera_rate_hz=values["camera_rate_hz"],
        max_age_s=values["max_age_s"],
        stale_policy=StalePolicy(values["stale_policy"]),
        space=space,
        silence_after_s=values["silence_after_s"],
        low=tuple(values["bounds_low"]),
        high=tuple(values["bounds_high"]),
        jump=values["jump_limit"],
        jerk=values["jerk_limit"],
        clamp_limit=values["clamp_limit"],
        clamp_tolerance=values["clamp_tolerance"],
        invalid_limit=values["invalid_limit"],
        fresh_needed=values["fresh_needed"],
        gripper_hysteresis=values["gripper_hysteresis"],
        gripper_dwell_s=values["gripper_dwell_s"],
    )


def chunking_of(values: Mapping[str, Any]) -> Chunking:
    """How chunks are executed."""
    return Chunking(
        execution=Execution(values["execution"]),
        replan_interval=values["replan_interval"],
        ensemble_decay=values["ensemble_decay"],
        delay_window=values["delay_window"],
        delay_frames=values["delay_frames"],
        told_delay=None if values["told_delay"] < 0 else values["told_delay"],
    )


def pairs_of(values: Mapping[str, Any], name: str) -> dict[str, str]:
    """A list of "name=value". Raises PolicyRefused for anything else."""
    out: dict[str, str] = {}
    for word in filter(None, values[name]):
        key, equals, value = word.partition("=")
        if not equals or not key.strip() or key.strip() in out:
            raise PolicyRefused(f"{name} has {word!r}: each entry is name=value, each name once")
        out[key.strip()] = value.strip()
    return out


def spec_of(values: dict[str, Any]) -> PolicySpec:
    """Which policy to load. Raises PolicyRefused with the reason."""
    options: dict[str, str | int | float | bool | tuple[str, ...]] = {}
    if values["schedule"] in DRAFTING:
        options |= {
            "drafter": values["drafter"],
            "draft_extrapolation": values["draft_extrapolation"],
            "adaptive_draft": values["adaptive_draft"],
            "acceptance": values["acceptance"],
            "temperature": values["temperature"],
            "relax_bins": values["relaxed_distance"],
        }
        if values["draft_checkpoint"]:
            options["draft_checkpoint"] = values["draft_checkpoint"]
        if values["calibration"]:
            options["calibration"] = values["calibration"]
        if values["gamma"]:
            options["gamma"] = values["gamma"]
    for name in ("tokenizer", "flow_steps", "flow_cameras", "embodiment"):
        if values[name]:
            options[name] = values[name]
    options |= {name: values[name] for name in ENGINE}
    options["compile"] = tuple(filter(None, values["compile"]))
    if values["execution"] in ("rtc", "rtc_trained"):
        trained = values["execution"] == "rtc_trained"
        options["rtc"] = "trained" if trained else values["rtc_jacobian"]
        options["rtc_limit"] = values["rtc_guidance_limit"]
    return PolicySpec(
        name=values["policy"],
        action_space=space_of(values),
        checkpoint=values["checkpoint"],
        schedule=values["schedule"],
        schedule_options=options,
        device=values["device"],
        dtype=values["dtype"],
        weights=values["weights"],
        require_gate=values["require_gate"],
        unnorm_key=values["unnorm_key"],
        action_scale=tuple(values["action_scale"]) if any(values["action_scale"]) else None,
        center_crop=CROP[values["center_crop"]],
        preprocessing=None if values["preprocessing"] == "auto" else values["preprocessing"],
        seed=values["seed"],
        replay_file=values["replay_file"],
        replay_loop=values["replay_loop"],
        num_threads=values["num_threads"] or _threads(values["device"]),
        warmup_count=values["warmup_count"],
        cuda_graphs=values["cuda_graphs"],
        delay_frames=values["delay_frames"],
        worker_python=values["worker_python"],
        options=pairs_of(values, "policy_options"),
        camera_roles=roles_of(values),
        state_units=tuple(filter(None, values["state_units"])),
        action_units=tuple(filter(None, values["action_units"])),
    )


def _threads(device: str) -> int:
    """Of a model that shares the CPUs with everybody else; 0: torch decides."""
    return max(1, len(os.sched_getaffinity(0)) // 2) if device == "cpu" else 0
