"""Roles of a checkpoint's cameras: which of the robot's each of them is.

A checkpoint knows its cameras by names of its own (``observation.images.<camera>``), the robot by
their *roles*: ``main`` is an observation's image, ``wrist`` its wrist image, and further ones are
among its ``more_images``.
"""

from __future__ import annotations

from vla_ros.core.types import Image, Observation
from vla_ros.engine.errors import CheckpointError

MAIN, WRIST = "main", "wrist"
ROLES = (MAIN, WRIST)
ABSENT = "none"  # there is no such camera: masked, as LeRobot masks one that a frame lacks
_AT_THE_HAND = ("wrist", "hand", "gripper")


def roles_of(
    cameras: tuple[str, ...], camera_map: str | None = None, more: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """The role of each of a checkpoint's ``cameras``, in their order.

    ``camera_map`` is somebody's own choice, "top=main left=wrist right=none". Where it is silent
    the names decide: a camera at the hand is the wrist's, and of the others the first is the main
    one; where no name helps, the order does. ``more`` are the robot's roles beside main and wrist:
    each is the camera of its name.

    CheckpointError, what is wanted and what is offered: there are more cameras than roles, or the
    choice cannot be.
    """
    offered = (*ROLES, *more)
    chosen = _chosen(cameras, camera_map, offered)
    chosen |= {
        name: name
        for name in cameras
        if name in more and name not in chosen and name not in chosen.values()
    }
    unmapped = [name for name in cameras if name not in chosen]
    free = [role for role in ROLES if role not in chosen.values()]
    for role in free:
        fitting = [n for n in unmapped if _at_the_hand(n) is (role == WRIST)] or unmapped
        if fitting:
            chosen[fitting[0]] = role
            unmapped.remove(fitting[0])
    if unmapped:
        raise CheckpointError(
            _misfit(cameras, offered, f"nothing is left for {', '.join(unmapped)}")
        )
    if not set(offered) & set(chosen.values()):
        raise CheckpointError(_misfit(cameras, offered, "none of them is left"))
    return tuple(chosen[name] for name in cameras)


def images_of(observation: Observation, roles: tuple[str, ...]) -> tuple[Image | None, ...]:
    """The image of each role; None where the observation has none."""
    images = {MAIN: observation.image, WRIST: observation.wrist_image, **observation.more_images}
    return tuple(images.get(role) for role in roles)


def _chosen(
    cameras: tuple[str, ...], camera_map: str | None, offered: tuple[str, ...]
) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in (camera_map or "").split():
        name, _, role = pair.partition("=")
        if name not in cameras or role not in (*offered, ABSENT) or name in found:
            raise CheckpointError(_misfit(cameras, offered, f"camera_map has {pair!r}"))
        if role != ABSENT and role in found.values():
            raise CheckpointError(_misfit(cameras, offered, f"camera_map gives {role!r} twice"))
        found[name] = role
    return found


def _at_the_hand(name: str) -> bool:
    return any(word in name.lower() for word in _AT_THE_HAND)


def _misfit(cameras: tuple[str, ...], offered: tuple[str, ...], why: str) -> str:
    example = " ".join(
        f"{name}={role}"
        for name, role in zip(cameras, (*offered, *[ABSENT] * len(cameras)), strict=False)
    )
    return (
        f"cameras: the checkpoint wants {', '.join(cameras)}, {', '.join(offered)} are offered, and"
        f" {why}; say which is which, such as camera_map '{example}' ({ABSENT}: absent, masked)"
    )
