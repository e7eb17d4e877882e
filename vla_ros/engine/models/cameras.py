"""Which camera of the robot is which of a checkpoint.

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
    cameras: tuple[str, ...], said: str | None = None, more: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """The role of each of a checkpoint's ``cameras``, in their order.

    ``said`` is somebody's own choice, "top=main left=wrist right=none". What it leaves open is
    told by the names: a camera at the hand is the wrist's, and of the others the first is the main
    one; where no name tells, the order does. ``more`` are the robot's roles beside main and wrist:
    each is the camera of its name.

    CheckpointError, what is wanted and what is offered: there are more cameras than roles, or the
    choice cannot be.
    """
    offered = (*ROLES, *more)
    chosen = _chosen(cameras, said, offered)
    chosen |= {
        name: name
        for name in cameras
        if name in more and name not in chosen and name not in chosen.values()
    }
    open_ = [name for name in cameras if name not in chosen]
    free = [role for role in ROLES if role not in chosen.values()]
    for role in free:
        fitting = [n for n in open_ if _at_the_hand(n) is (role == WRIST)] or open_
        if fitting:
            chosen[fitting[0]] = role
            open_.remove(fitting[0])
    if open_:
        raise CheckpointError(_misfit(cameras, offered, f"nothing is left for {', '.join(open_)}"))
    if not set(offered) & set(chosen.values()):
        raise CheckpointError(_misfit(cameras, offered, "none of them is left"))
    return tuple(chosen[name] for name in cameras)


def images_of(observation: Observation, roles: tuple[str, ...]) -> tuple[Image | None, ...]:
    """The image of each role; None where the observation has none."""
    seen = {MAIN: observation.image, WRIST: observation.wrist_image, **observation.more_images}
    return tuple(seen.get(role) for role in roles)


def _chosen(cameras: tuple[str, ...], said: str | None, offered: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in (said or "").split():
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
