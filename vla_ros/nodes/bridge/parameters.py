"""The bridge's parameters."""

from __future__ import annotations

from vla_ros.nodes.common.parameters import Parameter as P
from vla_ros.sim.env import IMAGE_SIZES
from vla_ros.sim.factory import ENVIRONMENTS, MOST_NUDGE_M

SIZES = (IMAGE_SIZES[0], IMAGE_SIZES[-1])
TABLE = (
    P("environment", "tabletop", "Which simulation", choices=ENVIRONMENTS, fixed=True),
    P("suite", "", "libero: the suite its tasks are of; empty: all of them", fixed=True),
    P("task", "pick_red_cube", "Name of the first episode's task", fixed=True),
    P("initial_state", 0, "Index of the first episode's initial state", 0, 100_000, fixed=True),
    P("seed", 0, "Which set of initial states; counts from the next reset", 0, 2**31 - 1),
    P("max_steps", 0, "Step limit from the next reset on; 0: the task's own", 0, 1_000_000),
    P(
        "nudge_m",
        0.0,
        "tabletop: the task's cube is moved by so much while the hand is on its way to it, m",
        0.0,
        MOST_NUDGE_M,
        fixed=True,
    ),
    P(
        "instruction",
        "",
        "What the policy is told from the next reset on; empty: the task's own sentence; a blank:"
        " the empty instruction, which means stop",
    ),
    P(
        "mode",
        "realtime",
        "lockstep: every frame waits for its command; realtime: the world does not wait",
        choices=("lockstep", "realtime"),
        fixed=True,
    ),
    P("image_size", 256, "Pixels a side of every camera image", *SIZES, fixed=True),
    P("wrist_camera", True, "Also render and publish wrist_image", fixed=True),
    P(
        "camera_rate_hz",
        0.0,
        "realtime: rate of the images, at most the control rate; 0: every control step",
        0.0,
        1000.0,
        fixed=True,
    ),
    P(
        "image_delay_ms",
        0.0,
        "realtime: images, and the states that belong to them, are published this much after"
        " their capture, which they are stamped with",
        0.0,
        10_000.0,
        fixed=True,
    ),
    P(
        "publish_tf",
        True,
        "Publish /tf and /tf_static where tf2_msgs is; off where robot_state_publisher does it",
        fixed=True,
    ),
    P("auto_reset", False, "Begin the next initial state when an episode ends", fixed=True),
    P(
        "reset_pause_s",
        3.0,
        "realtime, auto_reset: between an episode's end and the next; the still world is shown",
        0.0,
        3600.0,
        fixed=True,
    ),
    P(
        "wait_for_policy",
        True,
        "Begin episodes only once policy/status says WAITING, RUNNING or HOLD",
        fixed=True,
    ),
    P("policy_reset_service", "policy/reset", "Called before every episode", fixed=True),
    P(
        "answer_timeout_s",
        1.0,
        "lockstep: least wait before a frame is sent again; 2 x the slowest answer if longer",
        0.01,
        3600.0,
        fixed=True,
    ),
)
