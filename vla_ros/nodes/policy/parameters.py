"""The policy node's parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vla_ros.control.proprio import LAYOUTS
from vla_ros.control.timeline import Execution
from vla_ros.core import StalePolicy
from vla_ros.executor.mailbox import MAX_ARRAYS
from vla_ros.nodes.common.images import TRANSPORTS
from vla_ros.nodes.common.parameters import Parameter as P
from vla_ros.nodes.policy.outputs.gripper import ACTIONS
from vla_ros.nodes.policy.space import CHOICES

_SCHEDULES = (
    "auto",
    "autoregressive",
    "actionflow",
    "speculative",
    "heterospec",
    "parallel",
    "generate",
    "naive_pipe",
    "vanilla_speculative",
)
CROP = {"auto": None, "always": True, "never": False}
_MORE_CAMERAS = MAX_ARRAYS - 2
_RESERVED = ("main", "wrist", "none")
#: Of token policies: how the engine runs, whatever its schedule; by the engine's own names.
ENGINE = ("attention", "gemm", "image_steps", "vision_streams", "look_ahead")
#: Schedules that draft, or may come to.
DRAFTING = ("auto", "speculative", "heterospec", "vanilla_speculative")
HIGH = [0.05, 0.05, 0.05, 0.5, 0.5, 0.5]
LOW = [-bound for bound in HIGH]

TABLE = (
    # what runs
    P("policy", "zero", "Which policy to run: zero, scripted, replay, vla, lerobot, or the name of"
      " an entry point vla_ros.policies of an installed package", fixed=True),
    P("policy_options", [""], "Options of an installed package's policy, each name=value; lerobot:"
      " fields of the checkpoint's config.json to replace", fixed=True),
    P("worker_python", "", "Python of the worker, where the policy's libraries exclude this one's;"
      " empty: this Python, and for lerobot the one that `vla-ros lerobot setup` made", fixed=True),
    P("checkpoint", "", "vla: directory in OpenVLA's layout, hub id (owner/name@commit),"
      " shipped:tabletop (the built-in simulation's), or random:small; lerobot: LeRobot's folder,"
      " or hub id; with #FILE behind: checked with that list of SHA-256",
      fixed=True),
    P("state_units", [""], "lerobot: unit of each value of observation.state, or one for all: rad,"
      " deg, m, cm, mm, 1, %, or a gripper's closed..open, as -1..1; empty: rad, m, 0 to 1",
      fixed=True),
    P("action_units", [""], "lerobot: unit of each value of an action, as for state_units",
      fixed=True),
    P("schedule", "auto", "vla: decoding schedule; auto: the fastest that changes nothing for this"
      " checkpoint", choices=_SCHEDULES, fixed=True),
    P("drafter", "temporal", "speculative: who drafts; heterospec: whose uncertainty, head or else"
      " temporal_tree",
      choices=("temporal", "temporal_tree", "head", "model"), fixed=True),
    P("calibration", "", "heterospec: file of `vla-ros calibrate`; empty: heterospec.json beside"
      " the checkpoint, of drafter head beside the head", fixed=True),
    P("draft_checkpoint", "", "speculative with drafter 'model': its checkpoint; with 'head': its"
      " folder, empty: the one within the checkpoint", fixed=True),
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
    P("tokenizer", "", "flow policies, lerobot: folder of the language model's tokenizer.json;"
      " empty: the checkpoint's own", fixed=True),
    P("flow_steps", 0, "flow policies: steps of the solver; 0: the checkpoint's", 0, 1000,
      fixed=True),
    P("flow_cameras", "", "flow policies, lerobot: which of the checkpoint's cameras is which of"
      " the robot's, such as 'top=main left=wrist right=none'; what is left out the names tell",
      fixed=True),
    P("embodiment", "", "flow policies: which of the robots that the checkpoint was trained for"
      " this is; empty: the only one", fixed=True),
    P("device", "cpu", "vla: torch device, such as cpu or cuda:0", fixed=True),
    P(
        "dtype",
        "float32",
        "vla: number format of the weights",
        choices=("float32", "bfloat16", "float16"),
        fixed=True,
    ),
    P("weights", "", "vla: formats of the weights, such as int8, fp8 or decoder=int4,head=int8,"
      " with dtype bfloat16 on a CPU or CUDA; empty: as they are stored",
      fixed=True),
    P("require_gate", False, "vla: refuse dtype and weights in which `vla-ros gate` did not pass"
      " this checkpoint", fixed=True),
    P("unnorm_key", "", "vla: whose action statistics to use; empty: the only ones", fixed=True),
    P(
        "center_crop",
        "auto",
        "vla: crop as for fine-tunes with crop augmentation; auto: as its statistics say",
        choices=tuple(CROP),
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
    P("attention", "auto", "vla, token policies: the tail of a pack by Triton's kernel on CUDA"
      " (auto), or by torch everywhere", choices=("auto", "torch"), fixed=True),
    P("gemm", "auto", "vla, token policies: products of captured passes on CUDA; auto: the fastest"
      " of Triton's and torch's, timed; torch: the same sums to the bit from run to run",
      choices=("auto", "torch"), fixed=True),
    P("image_steps", "auto", "vla, token policies: where images are resized, to the same pixels;"
      " auto: on the GPU where there is one", choices=("auto", "cpu", "device"), fixed=True),
    P("vision_streams", True, "vla, token policies: on CUDA two vision towers run beside each"
      " other", fixed=True),
    P("look_ahead", True, "vla, schedule actionflow: on CUDA the next frame is seen while a pass"
      " runs", fixed=True),
    P("compile", [""], "vla, token policies: parts for torch.compile, which makes loading slow;"
      " empty: none", choices=("vision", "decoder"), fixed=True),
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
    P("replay_file", "", "replay: .npy or .npz of float64 [N, D], or chunks [N, C, D], in m, rad,"
      " 0..1", fixed=True),
    P("replay_loop", True, "replay: begin again at its end", fixed=True),
    P("delay_frames", 0, "Act on the image of so many frames ago: what does old evidence cost?",
      0, 1000, fixed=True),
    P("warmup_count", 5, "Inferences before the node is ready", 1, 1000, fixed=True),
    P("load_timeout_s", 300.0, "Longest time to load and warm up", 1.0, 3600.0, fixed=True),
    P("warm_spare", False, "Keep a second worker loaded that takes over where the first is lost, if"
      " memory holds another copy of the policy", fixed=True),
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
    P("camera_roles", [""], "The robot's cameras beside main and wrist, for checkpoints that look"
      " through more: each has cameras.ROLE.topic (ROLE_image) and cameras.ROLE.transport; given at"
      " the start", fixed=True),
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
    P("allow_topic_preempt", False, "Another text on the topic instruction ends a goal of"
      " ~/execute_instruction; false: it is ignored meanwhile, and only the empty text counts"),
    # what goes out
    P("frame_id", "base_link", "Frame of the displacements", fixed=True),
    P("outputs", [""], "What is published beside ~/action: twist, trajectory, positions, gripper",
      fixed=True),
    P("publish_twist", False, "The same as twist in outputs", fixed=True),
    P("gripper_range", [0.0, 1.0], "What a gripper's controller takes for closed and open, in its"
      " joint's unit: of all grippers, or two values each", fixed=True),
    P("gripper_action", "GripperCommand", "outputs gripper: the action of control_msgs",
      choices=ACTIONS, fixed=True),
    P("gripper_max_effort", 0.0, "outputs gripper: of its goals; 0: the controller's own", 0.0,
      1000.0, fixed=True),
    P("action_space", "end_effector_delta", "What the policy's actions are; delta and absolute are"
      " older words for end_effector_delta and end_effector_pose", choices=CHOICES, fixed=True),
    P("action_names", [""], "joint_delta, joint_position: the joints in the policy's order; empty:"
      " joint_names", fixed=True),
    P("arms", [""], "end_effector_*: a prefix of the names an arm, as left_ and right_: seven"
      " numbers each", fixed=True),
    P("gripper_names", [""], "Which of action_names are grippers, 0 closed to 1 open", fixed=True),
    P("control_rate_hz", 20.0, "Rate of commands; change it while inactive", 1.0, 200.0),
    P("execution", "async", "How chunks of actions are executed: stand still for each; skip what"
      " was executed since its observation; the mean of all chunks; or continue the chunk before,"
      " guided or trained for it (flow policies)", choices=tuple(e.value for e in Execution),
      fixed=True),
    P("replan_interval", 0, "S, actions executed of a chunk before the next; 0: as many as"
      " max_age_s allows, and with execution ensemble as few as the worker allows", 0, 1000,
      fixed=True),
    P("ensemble_decay", 0.01, "execution ensemble: m, the i-th oldest chunk weighs exp(-m i)", 0.0,
      100.0, fixed=True),
    P("rtc_guidance_limit", 5.0, "execution rtc: beta, the largest gain of the guidance", 0.0, 1e6,
      fixed=True),
    P("rtc_jacobian", "identity", "execution rtc: the network's Jacobian, taken as the identity or"
      " computed by a backward pass a step", choices=("identity", "true"), fixed=True),
    P("delay_window", 10, "Delays remembered: of chunks the largest is expected next, of single"
      " actions the median", 1, 1000, fixed=True),
    P("told_delay", -1, "Control periods of delay that a policy trained for delays is told; -1:"
      " what is measured, pipeline included", -1, 1000, fixed=True),
    P("retold_chunks", "", "mode lockstep: a file of `vla-ros replay --mode chunks`, which frames"
      " to ask for and what each answer continues", fixed=True),
    P("tick_priority", 0, "SCHED_FIFO priority of the thread that publishes commands; 0: none. It"
      " gets a CPU at once, but still waits for Python's lock", 0, 99, fixed=True),
    P("tick_cpus", [-1], "CPUs that this thread may run on; [-1]: all that the process may",
      fixed=True),
    # what is safe
    P("max_age_s", 0.5, "A: older evidence never moves the robot", 0.005, 60.0),
    P("stale_policy", "zero", "What to publish when the evidence is too old",
      choices=tuple(p.value for p in StalePolicy)),
    P("silence_after_s", 1.0, "Stale commands end after this", 0.0, 60.0),
    P("bounds_low", LOW, "Smallest numbers of a command, grippers left out: x y z rx ry rz an arm"
      " in m and rad, or the joints in rad"),
    P("bounds_high", HIGH, "Largest numbers of a command, in the same order"),
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


def camera_rows(values: Mapping[str, Any]) -> tuple[P, ...]:
    """The parameters of the cameras in ``camera_roles``. Raises ValueError for what is no role."""
    rows: list[P] = []
    roles = roles_of(values)
    if len(roles) > _MORE_CAMERAS:
        raise ValueError(f"camera_roles has {len(roles)} cameras, at most {_MORE_CAMERAS}")
    for role in roles:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", role) or role in _RESERVED or roles.count(role) > 1:
            raise ValueError(
                f"camera_roles has {role!r}: small letters, digits and _, each once, and none of"
                f" {', '.join(_RESERVED)}"
            )
        rows += (
            P(f"cameras.{role}.topic", f"{role}_image", f"Topic of camera {role}", fixed=True),
            P(f"cameras.{role}.transport", "auto", f"Of camera {role}; auto: image_transport",
              choices=("auto", *TRANSPORTS), fixed=True),
        )  # fmt: skip
    return tuple(rows)


def roles_of(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The cameras beside main and wrist."""
    return tuple(filter(None, values["camera_roles"]))
