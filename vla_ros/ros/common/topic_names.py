"""Names that nodes here have in the graph: what a remapping may rename.

ROS passes over a remapping of a name that no node has: a camera that is misspelt is one that never
comes. Needs no ROS: such a name is refused before anything starts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from vla_ros.core.errors import UserError
from vla_ros.core.names import nearest
from vla_ros.core.video import VIDEOS

_IMAGES = ("image", "wrist_image")
_TRANSPORTS = ("compressed", *VIDEOS)
#: Topics that nodes share, relative to their namespace.
SHARED = frozenset(
    {
        *_IMAGES,
        *(f"{image}/{transport}" for image in _IMAGES for transport in _TRANSPORTS),
        "camera_info", "wrist_camera_info", "joint_states", "robot_description", "instruction",
        "end_effector_pose", "measured_pose", "ground_truth", "get_action_chunk",
        "clock", "diagnostics", "tf", "tf_static", "rosout", "parameter_events",
    }
)  # fmt: skip
_LIFECYCLE = (
    "change_state", "get_state", "get_available_states", "get_available_transitions",
    "get_transition_graph", "transition_event",
)  # fmt: skip
#: Topics, services and actions of a node's own, below its name.
OWN = {
    "policy": frozenset(
        {
            "action", "action_chunk", "description", "status", "camera", "latency", "twist",
            "gripper", "shadow/action", "shadow/difference",
            "joint_trajectory", "cartesian_reference", "positions", "joint_positions",
            "joint_commands",
            "gripper_positions",
            "takeover/action", "takeover/twist", "takeover/gripper", "takeover/joint_states",
            "stop", "resume", "release", "recover", "reset", "execute_instruction", *_LIFECYCLE,
        }
    ),
    "bridge": frozenset({"episode", "reset"}),
    "monitor": frozenset({"report"}),
    "recorder": frozenset({"record", "stop"}),
}  # fmt: skip
_OF_ALL = (
    "get_parameters", "set_parameters", "set_parameters_atomically", "list_parameters",
    "describe_parameters", "get_parameter_types", "get_type_description",
)  # fmt: skip


def check_remapped(old: str, place: str, more: Iterable[str] = ()) -> None:
    """Raise UserError, which begins with ``place``, for a name that no node here has. ``more``:
    names that parameters give, of cameras and further topics."""
    given = {name.strip("/") for name in more if name}
    own = sorted({name for names in OWN.values() for name in names})
    if not _is_there(old, given):
        names = [*sorted(SHARED | given), *(f"~/{name}" for name in own)]
        bare = old.removeprefix("~/").strip("/")
        own_name = f"~/{bare}"
        wanted = own_name if own_name in names else old.lstrip("/")
        hint = nearest(wanted, names, "; see docs/reference/topics.md")
        raise UserError(f"{place}: no node here has a topic or service {old!r}{hint}")


def _is_there(old: str, given: Collection[str]) -> bool:
    own, bare = ("~/", old[2:]) if old.startswith("~/") else ("", old)
    for arm in given:  # arms whose prefix is a namespace: left_arm/joint_states
        if bare.startswith(f"{arm}/") and _is_there(own + bare[len(arm) + 1 :], ()):
            return True
    if old.startswith("~/"):
        return any(_is_own(old[2:], node) for node in OWN)
    parts = old.strip("/").split("/")
    for at in range(len(parts)):  # behind a namespace, or the name of a node
        name = "/".join(parts[at:])
        base = name
        for transport in _TRANSPORTS:
            base = base.removesuffix(f"/{transport}")
        if base in SHARED or base in given or base.endswith(("_image", "_joint_states")):
            return at == 0 or old.startswith("/")
        if at and any(_is_own(name, node) for node in OWN):
            return True
    return any(old.endswith(f"_{pose}") for pose in ("measured_pose", "end_effector_pose"))


def _is_own(name: str, node: str) -> bool:
    """True of a name below a node's; those of several arms have one more word in front."""
    if name in _OF_ALL or name in OWN.get(node, ()):
        return True
    first, slash, last = name.rpartition("/")
    arms = node == "policy" and f"{first}{slash}{last.partition('_')[2]}" in OWN["policy"]
    return arms or (node == "policy" and last.endswith("_cmd"))  # of a gripper's action
