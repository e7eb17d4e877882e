"""Data of `vla-ros check --live`: a bag of a running robot that a person drives. Apart from the
verb, which needs no ROS without it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from vla_ros.core.errors import UserError
from vla_ros.data.lerobot.streams import ROLES
from vla_ros.data.run_info import TOPICS

_LOOK_S = 5.0  # for discovery; what is there by then is there
_END_S = 30.0  # for the recorder to come up, and to write what it holds
_LEAST_S = 3.0  # a shorter recording has no frames to choose from
#: Roles that a check reads, with what the line calls them that says they are missing.
_CALLED = {
    "image": "camera images",
    "policy/action": "commands of a person",
    "joint_states": "state",
    "instruction": "instruction",
}


def record_live(
    seconds: float, folder: Path, remaps: Mapping[str, str], more: Sequence[str], needs: set[str]
) -> Path:
    """A bag in ``folder`` of so many seconds of the running graph, by the recorder's own process.
    UserError: a topic that is needed is not there, or nothing could be recorded.

    ``remaps``: role -> topic; ``more``: further cameras' topics; ``needs``: the roles without
    which there is nothing to check.
    """
    if seconds < _LEAST_S:
        raise UserError(f"--live {seconds:g}: give {_LEAST_S:g} seconds or more")
    if folder.exists():
        raise UserError(f"--out {folder}: exists already; a recording overwrites nothing")
    own = {f"/{name.lstrip('/')}": kind.rstrip("*") for name, kind in TOPICS}
    there = _topics(remaps, needs)
    _refuse_missing(there, remaps, needs)
    if lost := [topic for topic in more if topic not in there]:
        raise UserError(f"--camera: nobody publishes {lost[0]}")
    wanted = {*remaps.values(), *more}
    extra = [
        f"--topic={topic}:{there[topic]}"
        for topic in sorted(wanted)
        if topic in there and own.get(topic) != there[topic]
    ]
    words = ["record", "--output", str(folder), "--no-flight", "--for", f"{seconds:g}", *extra]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "vla_ros", *words],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds + _END_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise UserError("--live: the recording did not end: is the disk stuck?") from None
    if done.returncode or not folder.is_dir():
        lines = done.stdout.strip().splitlines() or [f"exit status {done.returncode}"]
        raise UserError(f"--live: nothing was recorded: {lines[-1]}")
    return folder


def _candidates(role: str, remaps: Mapping[str, str]) -> tuple[str, ...]:
    if role in remaps:
        return (remaps[role],)
    if role == "joint_states":
        return ("/joint_states", "/end_effector_pose")
    return (f"/{role}", f"/{role}/compressed") if role == "image" else (f"/{role}",)


def _topics(remaps: Mapping[str, str], needs: set[str]) -> dict[str, str]:
    """Topics that somebody publishes by now, and their types."""
    from vla_ros.ros.bringup.environment import prepare

    prepare()
    try:
        from vla_ros.ros.common.peer import Peer
    except ImportError as error:
        raise UserError(f"{error}; `vla-ros doctor` says what to install") from None
    with Peer("vla_ros_check", int(os.environ.get("ROS_DOMAIN_ID") or 0)) as peer:
        peer.start()
        found: dict[str, str] = {}

        def look() -> bool:
            for name, kinds in peer.node.get_topic_names_and_types():
                if name not in found and kinds and peer.node.count_publishers(name):
                    found[name] = kinds[0]
            return all(any(t in found for t in _candidates(r, remaps)) for r in needs)

        peer.wait(look, _LOOK_S)
        return found


def _refuse_missing(there: Mapping[str, str], remaps: Mapping[str, str], needs: set[str]) -> None:
    lines = []
    for role in (role for role in _CALLED if role in needs):
        kinds = (*ROLES[role], *(ROLES["end_effector_pose"] if role == "joint_states" else ()))
        tried = _candidates(role, remaps)
        fitting = [topic for topic in tried if there.get(topic) in kinds]
        if fitting:
            continue
        others = [f"{name} ({kind})" for name, kind in there.items() if kind in kinds]
        more = f" (there are {', '.join(others[:6])})" if others else ""
        how = "give --instruction TEXT" if role == "instruction" else f"-r {role}=TOPIC"
        lines.append(f"no {_CALLED[role]} on {' or '.join(tried)}: {how}{more}")
    if lines:
        raise UserError(f"--live: {'; '.join(lines)}")
