"""The policy node's parameters: one table in groups, the engine's rows made from its options.

config/policy.yaml and docs/reference/parameters.md are written from it by
`python -m vla_ros.ros.describe`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from vla_ros.core.adaptation import COLORS, FITS, IMAGE_DEFAULTS, TURNS
from vla_ros.core.types import StaleAction
from vla_ros.engine.options import HERE, OPTIONS, parse_options
from vla_ros.ros.common.parameters import Parameter as P
from vla_ros.ros.common.parameters import check_values
from vla_ros.ros.common.peer import TRANSPORTS
from vla_ros.ros.nodes.policy.cameras import RELIABILITIES
from vla_ros.ros.nodes.policy.outputs import ACTIONS, FROM
from vla_ros.ros.nodes.policy.space import CHOICES
from vla_ros.runtime.control.observation import LAYOUTS
from vla_ros.runtime.control.queue import Execution
from vla_ros.runtime.safety import MOST_CONTROL_HZ
from vla_ros.runtime.worker.mailbox import MAX_ARRAYS

_MORE_CAMERAS = MAX_ARRAYS - 2
_RESERVED = ("main", "wrist", "none")
#: Options of the engine that are parameters of their own; the others go through engine_options.
ENGINE = (
    "checkpoint", "decoding", "device", "dtype", "weights", "unnorm_key", "embodiment",
    "camera_map", "center_crop", "preprocessing", "num_threads",
)  # fmt: skip
#: The others, without those that follow from further parameters.
IN_ENGINE_OPTIONS = tuple(sorted(set(OPTIONS) - {*ENGINE, "camera_roles", "action_dim"}))
#: The bounds of a simulated hand: a control period, m and rad.
HIGH = [0.05, 0.05, 0.05, 0.5, 0.5, 0.5]
LOW = [-bound for bound in HIGH]


#: A parameter that is read at configure.
F = partial(P, fixed=True)


def _reliability(role: str) -> P:
    text = f"Of camera {role}'s reader; auto: reliable where all its writers are"
    return F(f"cameras.{role}.reliability", "auto", text, choices=RELIABILITIES)


def _view(role: str) -> tuple[P, ...]:
    """How a camera's image becomes the training data's (:mod:`vla_ros.core.adaptation`)."""
    name, default = f"cameras.{role}.", IMAGE_DEFAULTS
    return (
        F(
            f"{name}colors",
            default["colors"],
            f"Camera {role}: bgr exchanges red and blue, where the checkpoint was trained so",
            choices=COLORS,
        ),
        F(
            f"{name}gamma",
            default["gamma"],
            f"Camera {role}: exponent of its values as 0..1; below 1 is brighter",
            0.1,
            10.0,
        ),
        F(
            f"{name}rotate",
            default["rotate"],
            f"Camera {role}: turn by 0, 90, 180 or 270 degrees, counter-clockwise",
            0,
            270,
        ),
        F(f"{name}mirror", default["mirror"], f"Camera {role}: exchange left and right"),
        F(
            f"{name}crop",
            default["crop"],
            f"Camera {role}: share of each side that is kept, around the middle",
            0.1,
            1.0,
        ),
        F(
            f"{name}fit",
            default["fit"],
            f"Camera {role}: make it a square before the checkpoint's own steps",
            choices=FITS,
        ),
    )


def _engine(name: str) -> P:
    """The engine's option as a parameter."""
    option = OPTIONS[name]
    if name in HERE:
        option = replace(option, default=HERE[name])
    default = list(option.default) or [""] if isinstance(option.default, tuple) else option.default
    text = option.text[0].upper() + option.text[1:]
    return F(name, default, text, option.low, option.high, option.choices)


_POLICY = (
    F(
        "policy",
        "zero",
        "Which policy to run: zero, scripted, replay, vla, lerobot, remote, or the name of"
        " an entry point vla_ros.policies of an installed package",
    ),
    F(
        "policy_options",
        [""],
        "Options of an installed package's policy, each name=value; lerobot:"
        " fields of the checkpoint's config.json to replace; remote: names (libero, droid, aloha, a"
        " file), timeout_s",
    ),
    F(
        "worker_python",
        "",
        "Python of the worker, where the policy's libraries exclude this one's;"
        " empty: this Python, and for lerobot the one that `vla-ros lerobot setup` made",
    ),
    F(
        "state_units",
        [""],
        "vla, lerobot, remote: unit of each value of the state, or one for all: rad,"
        " deg, m, cm, mm, 1, %, a gripper's closed..open, as -1..1, or both that and its joint's,"
        " as 0..100=-0.17..1.75; empty: rad, m, 0 to 1",
    ),
    F(
        "action_units",
        [""],
        "vla, lerobot, remote: unit of each value of an action, or one for all that move, as for"
        " state_units; with a number, as 0.2rad; of velocities rad/s, deg/s (action_space"
        " joint_delta); empty: as the checkpoint says, else rad",
    ),
    F(
        "gripper",
        "",
        "vla, lerobot, remote: what an action's grippers have for closed..open, as 1..-1 (LIBERO,"
        " robosuite), 0..100 or 0.8..0; empty: as the checkpoint says, and refused where its data"
        " leave 0..1 and nothing says it",
    ),
    F(
        "action_scale",
        [0.0] * 6,
        "vla, lerobot, remote: what one unit of its first six numbers is, in m and rad; zeros: as"
        " its checkpoint says, which is 0.05 and 0.5 for LIBERO's",
    ),
    F(
        "replay_file",
        "",
        "replay: .npy or .npz of float64 [N, D], or chunks [N, C, D], in m, rad, 0..1",
    ),
    F("replay_loop", True, "replay: begin again at its end"),
    F(
        "require_verified",
        False,
        "vla: refuse dtype and weights in which `vla-ros verify` did not pass this checkpoint",
    ),
    F("warmup_count", 5, "Inferences before the node is ready", 1, 1000),
    F("load_timeout_s", 300.0, "Longest time to load and warm up", 1.0, 3600.0),
    F(
        "warm_spare",
        False,
        "Keep a second worker loaded that takes over where the first is lost, if"
        " memory holds another copy of the policy",
    ),
)
_ENGINE = (
    *map(_engine, ENGINE),
    F(
        "engine_options",
        [""],
        "More options of the engine, each name=value, such as gamma=3 or"
        " drafter=temporal_tree; see their table below",
    ),
)
_INPUTS = (
    F("mode", "realtime", "Clocked, or one answer a frame", choices=("realtime", "lockstep")),
    F("camera_rate_hz", 20.0, "Rate of the camera, for the age budget", 0.1, 1000.0),
    F(
        "image_transport",
        "raw",
        "Of cameras without a transport of their own: Image, CompressedImage (JPEG, PNG, H.264,"
        " H.265), or the packets of ffmpeg_image_transport or foxglove",
        choices=TRANSPORTS,
    ),
    F(
        "image_resize",
        [""],
        "Height x width that images are brought to, by the nearest pixel, where the data set was"
        " recorded so (Rosetta): 512x512 for all cameras, main=480x640 for one; empty: as they"
        " come, the checkpoint resizes",
    ),
    F("cameras.main.topic", "image", "Topic of the main camera, without /compressed or /ffmpeg"),
    F(
        "cameras.main.transport",
        "auto",
        "Of the main camera; auto: image_transport",
        choices=("auto", *TRANSPORTS),
    ),
    _reliability("main"),
    *_view("main"),
    F(
        "cameras.wrist.topic",
        "wrist_image",
        "Topic of the wrist camera, without /compressed or /ffmpeg;"
        " empty: there is none, and a checkpoint that needs one is refused",
    ),
    F(
        "cameras.wrist.transport",
        "auto",
        "Of the wrist camera; auto: image_transport",
        choices=("auto", *TRANSPORTS),
    ),
    _reliability("wrist"),
    *_view("wrist"),
    F(
        "camera_roles",
        [""],
        "The robot's cameras beside main and wrist, for checkpoints that look through more: each"
        " has cameras.ROLE.topic (ROLE_image), .transport and .reliability; given at the start",
    ),
    F(
        "use_wrist_image",
        False,
        "Frames need a wrist image; they do where the checkpoint looks through two cameras",
    ),
    F(
        "use_joint_states",
        False,
        "Frames need joint states; they do where joint_names are given"
        " or the checkpoint takes the robot's state",
    ),
    F(
        "joint_names",
        [""],
        "Which joints make the robot's state, and their order; empty: a"
        " message's positions as they come",
    ),
    F(
        "continuous_joints",
        [""],
        "Joints that turn without end, beside those of robot_description: their readings"
        " are compared, and the policy's state is given, modulo a turn",
    ),
    F(
        "joints_on_change",
        [""],
        "Joints whose driver publishes only when they move, as many grippers' do: their last"
        " reading stays valid, however old",
    ),
    F(
        "state_layout",
        "joints",
        "The robot's state as the checkpoint was trained on it: the joints; or position, axis-angle"
        " and two fingers, as LIBERO's OpenVLA-OFT: then joint_names are the finger joints, two,"
        " or one that stands for both",
        choices=tuple(LAYOUTS),
    ),
    F(
        "state_order",
        [-1],
        "Which values of the robot's state, counted from 0, are the checkpoint's, in its order;"
        " [-1]: all as they are",
    ),
    F(
        "state_factor",
        [1.0],
        "Each value of the checkpoint's state is so many times the robot's, -1 for the other sign;"
        " one for all, or one each",
    ),
    F(
        "state_offset",
        [0.0],
        "And so much more, in rad or m: a joint whose zero is elsewhere",
    ),
    F(
        "end_effector_frame",
        "",
        "state_layout libero_oft: the end effector's pose is this frame"
        " in frame_id, from tf2; empty: from the topic end_effector_pose",
    ),
    P(
        "pairing_slop_s",
        0.0,
        "How far the stamps of one frame's parts may lie apart; 0: half an action period, or half a"
        " control period if that is longer (always, in lock-step). A stream that is slower needs"
        " half of its own",
        0.0,
        10.0,
    ),
    F("max_image_pixels", 1920 * 1200, "Larger images are dropped", 64, 7680 * 4320),
    F("detect_frozen", True, "Hold on a camera that repeats its pixels; off in simulation"),
    F("instruction", "", "Instruction to begin with; the topic overrides it"),
    P(
        "allow_topic_preempt",
        False,
        "Another text on the topic instruction ends a goal of"
        " ~/execute_instruction; false: it is ignored meanwhile, and only the empty text counts",
    ),
)
_OUTPUTS = (
    F("frame_id", "base_link", "Frame of the displacements"),
    F(
        "outputs",
        [""],
        "What is published beside ~/action: twist, trajectory, cartesian_trajectory, positions,"
        " joint_positions (the grippers' among them), joint_state, gripper",
    ),
    F(
        "action_chunk_service",
        False,
        "Serve get_action_chunk, MoveIt Pro's GetActionChunk, while configured and not active:"
        " ExecutePolicy asks for chunks and executes them itself",
    ),
    F(
        "shadow",
        False,
        "Nothing of ours moves the robot: commands go to ~/shadow/action alone, no output has a"
        " publisher, and what a person does meanwhile is compared with them",
    ),
    F(
        "shadow_topic",
        "",
        "shadow: the topic of the person's commands (ActionCommand; TwistStamped of an end"
        " effector; JointState, JointTrajectory or Float64MultiArray of joints); empty: the"
        " measured movement, of joints and poses",
    ),
    F(
        "joint_delta_from",
        "",
        "What trajectory and positions add a joint_delta to, and cartesian_trajectory an"
        " end_effector_delta: what is measured (of demonstrations whose actions are a command minus"
        " the measured joints or pose), or the last command (of differences of commands); empty:"
        " refused",
        choices=FROM,
    ),
    F(
        "trajectory_lead_s",
        0.02,
        "outputs trajectory: it begins so long after its publication; more than a message and a"
        " cycle of the controller take, so that one replaces another at the position it was made"
        " for",
        0.0,
        1.0,
    ),
    F(
        "continuous_as",
        "unwrapped",
        "How outputs count joints that turn without end: on from the last command, or"
        " from -pi to pi, as a driver that wraps by itself takes them; a controller with"
        " angle_wraparound takes both",
        choices=("unwrapped", "wrapped"),
    ),
    F(
        "gripper_range",
        [0.0, 1.0],
        "What a gripper's controller takes for closed and open, in its"
        " joint's unit: of all grippers, or two values each",
    ),
    F(
        "gripper_action",
        "GripperCommand",
        "outputs gripper: the action of control_msgs",
        choices=ACTIONS,
    ),
    F(
        "gripper_max_effort",
        0.0,
        "outputs gripper: of its goals; 0: the controller's own",
        0.0,
        1000.0,
    ),
    F(
        "action_space",
        "end_effector_delta",
        "What the policy's actions are",
        choices=CHOICES,
    ),
    F(
        "action_names",
        [""],
        "joint_delta, joint_position: the joints in the policy's order; empty: joint_names",
    ),
    F(
        "arms",
        [""],
        "A prefix of the names an arm, as left_ and right_, or a namespace, left/, in which the"
        " driver's names are without it. end_effector_*: seven numbers each; joint_*: each arm has"
        " its own topics of outputs and of joint states",
    ),
    F(
        "action_order",
        [-1],
        "Which numbers of the policy's action, counted from 0, are the robot's, in its order;"
        " [-1]: all as they are",
    ),
    F(
        "action_factor",
        [1.0],
        "Each number of the robot's action is so many times the policy's; a gripper that is the"
        " other way round: -1, and 1 for its action_offset",
    ),
    F("action_offset", [0.0], "And so much more, in rad, m or 0..1"),
    F(
        "action_turn",
        "none",
        "action_space end_effector_delta: the robot's frame is turned against the data's, x90, ..."
        " z270: the axis and degrees",
        choices=TURNS,
    ),
    F("gripper_names", [""], "Which of action_names are grippers, 0 closed to 1 open"),
    F(
        "action_space_override",
        False,
        "The checkpoint's names and statistics do not count against these parameters, and a policy"
        " that reports actions of another kind, order or gripper is run: the parameters are right",
    ),
    F(
        "action_rate_hz",
        0.0,
        "Rate of the data that the policy's actions were learned from; between them commands"
        " follow a curve. 0: as its checkpoint says; where nothing says it a simulation takes"
        " control_rate_hz, and a robot asks for it",
        0.0,
        MOST_CONTROL_HZ,
    ),
    P(
        "control_rate_hz",
        20.0,
        "Rate of commands, the robot's; above 250 with tick_priority; change it while inactive",
        1.0,
        MOST_CONTROL_HZ,
    ),
    F(
        "tick_priority",
        0,
        "SCHED_FIFO priority of the thread that publishes commands; 0: none. It"
        " gets a CPU at once, but still waits for Python's lock",
        0,
        99,
    ),
    F("tick_cpus", [-1], "CPUs that this thread may run on; [-1]: all that the process may"),
)
_CHUNKS = (
    F(
        "execution",
        "async",
        "How chunks of actions are executed: stand still for each; skip the actions"
        " due since its observation; the mean of all chunks; continue the chunk before,"
        " guided or trained for it (flow policies); or correct each action by the newest frame,"
        " in a second worker (flow policies with a corrector, realtime)",
        choices=tuple(e.value for e in Execution),
    ),
    F(
        "replan_interval",
        0,
        "S, actions executed of a chunk before the next; 0: as many as"
        " max_age_s allows, and with execution ensemble as few as the worker allows",
        0,
        1000,
    ),
    F(
        "ensemble_decay",
        0.01,
        "execution ensemble: m, the i-th oldest chunk weighs exp(-m i); LeRobot's"
        " temporal_ensemble_coeff",
        -1.0,
        100.0,
    ),
    P(
        "chunk_blend_s",
        0.25,
        "The offset of a new chunk of targets from what was commanded last fades out over this"
        " time, or longer where that asks for more acceleration than the chunk has",
        0.0,
        5.0,
    ),
    P(
        "smoothing_hz",
        0.0,
        "Cutoff of a critically damped low-pass of second order on the commands, trajectories left"
        " out, for policies that tremble; its delay, 0.32 / smoothing_hz, counts as age; 0: none",
        0.0,
        100.0,
    ),
    F(
        "conditioning_delay_steps",
        -1,
        "Action periods of motion between image and action that a policy trained for delays is"
        " given; -1: the measured ones, pipeline included",
        -1,
        1000,
    ),
    F(
        "delay_frames",
        0,
        "Act on the image of so many frames ago: what does an old observation cost?",
        0,
        1000,
    ),
    F(
        "replay_requests_file",
        "",
        "mode lockstep: a file of `vla-ros replay --mode chunks`, which frames"
        " to ask for and what each answer continues",
    ),
)
_SAFETY = (
    P("max_age_s", 0.5, "A: an older observation never moves the robot", 0.005, 60.0),
    P(
        "stale_action",
        "zero",
        "What to publish when the observation is too old",
        choices=tuple(p.value for p in StaleAction),
    ),
    P("silence_after_s", 1.0, "Stale commands end after this", 0.0, 60.0),
    P(
        "bounds_low",
        LOW,
        "Smallest numbers of an action, grippers left out: x y z rx ry rz an arm"
        " in m and rad, or the joints in rad",
    ),
    P("bounds_high", HIGH, "Largest numbers of an action, in the same order"),
    P("jump_limit", 1.0, "Largest change between actions, share of the bounds", 0.001, 1.0),
    P("jerk_limit", 2.0, "Largest change of that change, share of the bounds", 0.001, 2.0),
    P(
        "velocity_limits",
        [0.0],
        "Largest speed of each number that moves, in m/s and rad/s;"
        " [0.0]: as bounds and jump_limit say",
    ),
    P(
        "acceleration_limits",
        [0.0],
        "Largest change of that speed, in m/s^2 and rad/s^2; [0.0]: none",
    ),
    P(
        "leash_s",
        0.3,
        "For so long at the largest speed a commanded position may be ahead of the measured one, so"
        " it waits for an arm that is slow; more than the servo's lag",
        0.01,
        10.0,
    ),
    P("clamp_limit", 5, "Clamped actions in a row before HOLD", 1, 1000),
    P(
        "clamp_tolerance",
        0.05,
        "Excess that is clamped but not counted, share of the bounds",
        0.0,
        1.0,
    ),
    P("invalid_limit", 3, "Invalid actions in a row before FAULT", 1, 1000),
    P("fresh_needed", 3, "Clean actions before HOLD ends", 1, 1000),
    P(
        "hold_latch_s",
        10.0,
        "A HOLD longer than this ends only by ~/resume: somebody may be looking for its cause;"
        " 0: it ends by itself, as in a simulation",
        0.0,
        3600.0,
    ),
    P(
        "takeover_timeout_s",
        0.3,
        "So long after a person's last command on ~/takeover the robot holds, until ~/release or"
        " ~/resume",
        0.05,
        10.0,
    ),
    P(
        "stamp_tolerance_s",
        0.0,
        "How far stamps of images, joints and poses may lie in the future; 0: 5 ms or a quarter of"
        " the period",
        0.0,
        1.0,
    ),
    P("gripper_hysteresis", 0.05, "Smaller changes of the gripper are ignored", 0.0, 1.0),
    P("gripper_dwell_s", 0.15, "Shortest time between two changes of side", 0.0, 10.0),
    P(
        "hang_timeout_s",
        0.0,
        "Kill a worker silent for this; 0: the largest of 3 L, 5 T, A, 2 s"
        " and a quarter of its load time, and T more; T as above",
        0.0,
        600.0,
    ),
    P("latency_window_s", 10.0, "Window of the percentiles on ~/latency", 0.1, 600.0),
)

#: Group -> its heading and its rows.
GROUPS: dict[str, tuple[str, tuple[P, ...]]] = {
    "policy": (
        "What runs. `zero` commands no motion: the safe thing to start with on a new robot.",
        _POLICY,
    ),
    "engine": ("How a model runs: options of the engine, with its names and defaults.", _ENGINE),
    "inputs": ("What comes in.", _INPUTS),
    "outputs": ("What goes out.", _OUTPUTS),
    "chunks": ("How chunks of actions are executed.", _CHUNKS),
    "safety": (
        "Limits. max_age_s must be at least camera period + (pipeline depth - 1) x"
        " T + inference (p99 at warm-up) + T (S x T for chunks), T the action period, or the"
        " control period if that is longer, or configure is refused.",
        _SAFETY,
    ),
}
TABLE = tuple(row for _, rows in GROUPS.values() for row in rows)


def check_parameters(table: Iterable[P], values: dict[str, Any]) -> None:
    """Raise ValueError, naming it, for a value that no parameter or engine option can have.

    Contradictions between them are judged at configure.
    """
    check_values(table, values)
    words = (word.partition("=") for word in values["engine_options"] if word)
    try:
        parse_options({name.strip(): text.strip() for name, _, text in words})
    except ValueError as error:
        raise ValueError(f"engine_options: {error}") from None


def camera_rows(values: Mapping[str, Any]) -> tuple[P, ...]:
    """Parameters of the cameras in ``camera_roles``. Raises ValueError for a bad role."""
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
            F(f"cameras.{role}.topic", f"{role}_image", f"Topic of camera {role}"),
            F(f"cameras.{role}.transport", "auto", f"Of camera {role}; auto: image_transport",
              choices=("auto", *TRANSPORTS)),
            _reliability(role),
            *_view(role),
        )  # fmt: skip
    return tuple(rows)


def roles_of(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Roles of the cameras beside main and wrist."""
    return tuple(filter(None, values["camera_roles"]))
