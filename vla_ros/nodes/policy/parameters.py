"""The policy node's parameters, and what the rest of the node is configured with."""

from __future__ import annotations

import os
from typing import Any

from vla_ros.control.proprio import LAYOUTS
from vla_ros.core import StalePolicy
from vla_ros.nodes.common.images import TRANSPORTS
from vla_ros.nodes.common.parameters import Parameter as P
from vla_ros.policies.base import POLICIES, PolicySpec
from vla_ros.safety import Limits

_SCHEDULES = (
    "auto",
    "autoregressive",
    "actionflow",
    "speculative",
    "parallel",
    "generate",
    "naive_pipe",
    "vanilla_speculative",
)
_CROP = {"auto": None, "always": True, "never": False}
#: Schedules that draft, or may come to.
_DRAFTING = ("auto", "speculative", "vanilla_speculative")
_UNIT = (0.05, 0.05, 0.05, 0.5, 0.5, 0.5)

TABLE = (
    # what runs
    P("policy", "zero", "Which policy to run", choices=POLICIES, fixed=True),
    P("checkpoint", "", "vla: directory in OpenVLA's layout, hub id, shipped:tabletop (the"
      " built-in simulation's), or random:small", fixed=True),
    P("schedule", "auto", "vla: decoding schedule; auto: the fastest that changes nothing for this"
      " checkpoint", choices=_SCHEDULES, fixed=True),
    P("drafter", "temporal", "speculative: who drafts", choices=("temporal", "model"), fixed=True),
    P("draft_checkpoint", "", "speculative with drafter 'model': its checkpoint", fixed=True),
    P(
        "acceptance",
        "exact",
        "speculative: how drafts are judged; relaxed changes what the policy says",
        choices=("exact", "sampling", "relaxed"),
        fixed=True,
    ),
    P("relaxed_distance", 0, "speculative, relaxed: largest bin distance r", 0, 255, fixed=True),
    P(
        "draft_extrapolation",
        "repeat",
        "speculative, temporal: propose the previous action, or go on as the last two changed",
        choices=("repeat", "linear"),
        fixed=True,
    ),
    P("adaptive_draft", True, "speculative: stop drafting where it does not pay", fixed=True),
    P("temperature", 1.0, "speculative, sampling: of the softmax", 0.001, 100.0, fixed=True),
    P("gamma", 0, "speculative: draft tokens a pass; 0: as many as pay", 0, 64, fixed=True),
    P("device", "cpu", "vla: torch device, such as cpu or cuda:0", fixed=True),
    P(
        "dtype",
        "float32",
        "vla: number format of the weights",
        choices=("float32", "bfloat16", "float16"),
        fixed=True,
    ),
    P("unnorm_key", "", "vla: whose action statistics to use; empty: the only ones", fixed=True),
    P(
        "center_crop",
        "auto",
        "vla: crop as for fine-tunes with crop augmentation; auto: as its statistics say",
        choices=tuple(_CROP),
        fixed=True,
    ),
    P(
        "preprocessing",
        "auto",
        "vla: images as the checkpoint's processor wants them (default), or as in the published"
        " LIBERO evaluations: mirror, JPEG, Lanczos-3; auto: as its statistics say",
        choices=("auto", "default", "libero"),
        fixed=True,
    ),
    P("cuda_graphs", True, "vla: capture the packed passes on CUDA", fixed=True),
    P("seed", 0, "vla: seed of random weights and of sampling", 0, 2**31 - 1, fixed=True),
    P("num_threads", 0, "Threads of the worker; 0: half of the CPUs, so that the control tick and"
      " the cameras have the others; on a GPU torch decides", 0, 256, fixed=True),
    P(
        "action_scale",
        [0.0] * 6,
        "vla: what one unit of its first six numbers is, in m and rad; zeros: as its checkpoint"
        " says, which is 0.05 and 0.5 for LIBERO's",
        fixed=True,
    ),
    P("replay_file", "", "replay: .npy or .npz of float64 [N, 7] in m, rad, 0..1", fixed=True),
    P("replay_loop", True, "replay: begin again at its end", fixed=True),
    P("delay_frames", 0, "Act on the image of so many frames ago: what does old evidence cost?",
      0, 1000, fixed=True),
    P("warmup_count", 5, "Inferences before the node is ready", 1, 1000, fixed=True),
    P("load_timeout_s", 300.0, "Longest time to load and warm up", 1.0, 3600.0, fixed=True),
    # what comes in
    P("mode", "realtime", "Clocked, or one answer a frame", choices=("realtime", "lockstep"),
      fixed=True),
    P("camera_rate_hz", 20.0, "Rate of the camera, for the age budget", 0.1, 1000.0, fixed=True),
    P("image_transport", "raw", "Image or CompressedImage, of cameras that say nothing else",
      choices=TRANSPORTS, fixed=True),
    P("cameras.main.topic", "image", "Topic of the main camera, without /compressed", fixed=True),
    P("cameras.main.transport", "auto", "Of the main camera; auto: image_transport",
      choices=("auto", *TRANSPORTS), fixed=True),
    P("cameras.wrist.topic", "wrist_image", "Topic of the wrist camera, without /compressed;"
      " empty: there is none, and a checkpoint that needs one is refused", fixed=True),
    P("cameras.wrist.transport", "auto", "Of the wrist camera; auto: image_transport",
      choices=("auto", *TRANSPORTS), fixed=True),
    P("use_wrist_image", False, "Frames need a wrist image; they do where the checkpoint looks"
      " through two cameras", fixed=True),
    P("use_joint_states", False, "Frames need joint states; they do where joint_names are given"
      " or the checkpoint takes the robot's state", fixed=True),
    P("joint_names", [""], "Which joints make the robot's state, and their order; empty: a"
      " message's positions as they come", fixed=True),
    P("proprio_layout", "joints", "The robot's state as the checkpoint was taught it: the joints;"
      " or position, axis-angle and two fingers, as LIBERO's OpenVLA-OFT: then joint_names are the"
      " finger joints, two, or one that stands for both", choices=tuple(LAYOUTS), fixed=True),
    P("end_effector_frame", "", "proprio_layout libero_oft: the end effector's pose is this frame"
      " in frame_id, from tf2; empty: from the topic end_effector_pose", fixed=True),
    P("pairing_slop_s", 0.0, "How far the stamps of one frame's parts may lie apart; 0: half a"
      " control period. A stream slower than the control rate needs half of its own", 0.0, 10.0),
    P("max_image_pixels", 1920 * 1200, "Larger images are dropped", 64, 7680 * 4320, fixed=True),
    P("detect_frozen", True, "Hold on a camera that repeats its pixels; off in simulation",
      fixed=True),
    P("instruction", "", "Instruction to begin with; the topic overrides it", fixed=True),
    # what goes out
    P("frame_id", "base", "Frame of the displacements", fixed=True),
    P("publish_twist", False, "Also publish ~/twist and ~/gripper", fixed=True),
    P("action_space", "delta", "What the policy's actions are", choices=("delta", "absolute"),
      fixed=True),
    P("control_rate_hz", 20.0, "Rate of commands; change it while inactive", 1.0, 200.0),
    P("replan_interval", 0, "Actions executed of a chunk; 0: all of it", 0, 1000, fixed=True),
    # what is safe
    P("max_age_s", 0.5, "A: older evidence never moves the robot", 0.005, 60.0),
    P("stale_policy", "zero", "What to publish when the evidence is too old",
      choices=tuple(p.value for p in StalePolicy)),
    P("silence_after_s", 1.0, "Stale commands end after this", 0.0, 60.0),
    P("bounds_low", [-u for u in _UNIT], "Smallest x y z rx ry rz of a command, m and rad"),
    P("bounds_high", list(_UNIT), "Largest x y z rx ry rz of a command, m and rad"),
    P("jump_limit", 1.0, "Largest change between commands, share of the bounds", 0.001, 1.0),
    P("jerk_limit", 2.0, "Largest change of that change, share of the bounds", 0.001, 2.0),
    P("clamp_limit", 5, "Clamped actions in a row before HOLD", 1, 1000),
    P("clamp_tolerance", 0.05, "Excess that is clamped but not counted, share of the bounds", 0.0,
      1.0),
    P("invalid_limit", 3, "Invalid actions in a row before FAULT", 1, 1000),
    P("fresh_needed", 3, "Clean actions in a row before HOLD ends", 1, 1000),
    P("gripper_hysteresis", 0.05, "Smaller changes of the gripper are ignored", 0.0, 1.0),
    P("gripper_dwell_s", 0.15, "Shortest time between two changes of side", 0.0, 10.0),
    P("hang_timeout_s", 0.0, "Kill a worker silent for this; 0: max(3 L, 5 T, A) + T", 0.0, 600.0),
    P("latency_window_s", 10.0, "Window of the percentiles on ~/latency", 0.1, 600.0),
)  # fmt: skip


def limits_of(values: dict[str, Any]) -> Limits:
    """The limits that these values say. Raises ValueError for what cannot be."""
    return Limits(
        control_rate_hz=values["control_rate_hz"],
        camera_rate_hz=values["camera_rate_hz"],
        max_age_s=values["max_age_s"],
        stale_policy=StalePolicy(values["stale_policy"]),
        absolute=values["action_space"] == "absolute",
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


def spec_of(values: dict[str, Any]) -> PolicySpec:
    """Which policy to load. Raises PolicyRefused with the reason."""
    options: dict[str, str | int | float | bool] = {}
    if values["schedule"] in _DRAFTING:
        options = {
            "drafter": values["drafter"],
            "draft_extrapolation": values["draft_extrapolation"],
            "adaptive_draft": values["adaptive_draft"],
            "acceptance": values["acceptance"],
            "temperature": values["temperature"],
            "relax_bins": values["relaxed_distance"],
        }
        if values["draft_checkpoint"]:
            options["draft_checkpoint"] = values["draft_checkpoint"]
        if values["gamma"]:
            options["gamma"] = values["gamma"]
    return PolicySpec(
        name=values["policy"],
        checkpoint=values["checkpoint"],
        schedule=values["schedule"],
        schedule_options=options,
        device=values["device"],
        dtype=values["dtype"],
        unnorm_key=values["unnorm_key"],
        action_scale=tuple(values["action_scale"]) if any(values["action_scale"]) else None,
        center_crop=_CROP[values["center_crop"]],
        preprocessing=None if values["preprocessing"] == "auto" else values["preprocessing"],
        seed=values["seed"],
        replay_file=values["replay_file"],
        replay_loop=values["replay_loop"],
        num_threads=values["num_threads"] or _threads(values["device"]),
        warmup_count=values["warmup_count"],
        cuda_graphs=values["cuda_graphs"],
        delay_frames=values["delay_frames"],
    )


def _threads(device: str) -> int:
    """Of a model that shares the CPUs with everybody else; 0: torch decides."""
    return max(1, len(os.sched_getaffinity(0)) // 2) if device == "cpu" else 0
