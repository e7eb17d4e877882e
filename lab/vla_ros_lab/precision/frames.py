"""Frames for a policy and its reference: of a bag, a file, or rendered."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vla_ros.core.clock import SECOND
from vla_ros.core.console import Report
from vla_ros.core.errors import UserError
from vla_ros.core.types import Image, Observation
from vla_ros_lab.bench.options import flag

if TYPE_CHECKING:
    from vla_ros.policies.conventions import Conventions
    from vla_ros.sim.env import Environment, Task
    from vla_ros_lab.precision.watch import ProbeFrame

TEXT = "pick up the red cube"
_EVERY = 12  # control steps between two frames of an episode: approach, grasp, carry
_PIXELS = 7680 * 4320
_MOST_GAP_S = 1e9  # any: every frame stands for itself


@dataclass(frozen=True, slots=True)
class FrameSource:
    """Source of the frames; without ``bag``, ``images`` and ``synthetic`` the tabletop. The fields
    are flags; ``remap`` renames topics of the bag."""

    frames: int = flag(24, "how many")
    seed: int = flag(0, "of the simulation, of random weights, of noise (0)")
    bag: str = flag("", "evenly of a recording", metavar="BAG")
    images: str = flag("", ".npz with uint8 images [N, h, w, 3]", metavar="FILE")
    synthetic: bool = flag(False, "drawn squares; needs no simulation")
    instruction: str = flag("", "of --images, --synthetic, or instead of the bag's")
    remap: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.frames < 1:
            raise UserError("--frames must be at least 1")
        if sum(map(bool, (self.bag, self.images, self.synthetic))) > 1:
            raise UserError("--bag, --images or --synthetic: one of them")


def frames_of(
    asked: FrameSource, used: Conventions, report: Report
) -> tuple[list[ProbeFrame], str]:
    """The frames, and one line about where they are from. UserError: there are none."""
    wrist = used.cameras == 2
    if asked.bag:
        return _recorded(Path(asked.bag), asked, used), f"{asked.bag}, frames evenly over it"
    if asked.images or asked.synthetic:
        images, source = _images(asked)
        return _plain(images, asked.instruction or TEXT, used), source
    found = []
    with contextlib.closing(_tabletop(wrist)) as environment:
        for frame in _played(environment, asked.frames, used.state, asked.seed):
            found.append(frame)
            report("frames of the tabletop", len(found), asked.frames)
    return found, f"the tabletop, its expert acting, seed {asked.seed}"


def spread(count: int, most: int) -> list[int]:
    """``most`` of ``count`` indices, evenly."""
    return sorted({int(i) for i in np.linspace(0, count - 1, min(count, most)).round()})


def _images(asked: FrameSource) -> tuple[list[Image], str]:
    from vla_ros_lab.bench.measure import drifting_frames, load_frames

    if asked.synthetic:
        return drifting_frames(asked.frames, asked.seed), "drawn squares that drift"
    images = load_frames(Path(asked.images))
    return [images[i] for i in spread(len(images), asked.frames)], asked.images


def _plain(images: Sequence[Image], instruction: str, used: Conventions) -> list[ProbeFrame]:
    """Frames of images without a robot: its state, where the policy takes one, is zero."""
    from vla_ros_lab.precision.watch import ProbeFrame

    zeros = np.zeros(used.state) if used.state else None
    second = used.cameras == 2
    return [
        ProbeFrame(0, instruction, Observation(
            stamp, stamp, stamp, image, image if second else None, zeros))
        for stamp, image in enumerate(images, 1)
    ]  # fmt: skip


def _tabletop(wrist: bool) -> Environment:
    """The simulation. UserError: it cannot be."""
    from vla_ros.sim.factory import EnvConfig

    try:
        return EnvConfig("tabletop", wrist=wrist)()
    except UserError as error:
        more = "or give frames with --bag or --images, or --synthetic"
        raise UserError(f"{error}; {more}") from error


def _played(environment: Environment, count: int, state: int, seed: int) -> Iterator[ProbeFrame]:
    """Frames of episodes that the expert plays: three of each, of tasks spread over all."""
    each, number, left = 3, 0, count
    tasks = _spread(environment.spec.tasks, -(-count // each))
    while left:  # an episode that is solved early has fewer
        task = tasks[number % len(tasks)]
        for frame in _episode(environment, number, task, min(each, left), state, seed):
            yield frame
            left -= 1
        number += 1


def _spread(tasks: Sequence[Task], count: int) -> list[Task]:
    """So many of the tasks, evenly over the list, in which a family's lie together."""
    edges = np.linspace(0, len(tasks), min(count, len(tasks)) + 1).astype(int)
    return [tasks[begin] for begin, _ in pairwise(edges)]


def _episode(
    environment: Environment, number: int, task: Task, count: int, state: int, seed: int
) -> Iterator[ProbeFrame]:
    from vla_ros.data.episodes.play import robot_state
    from vla_ros.sim.env import AGENTVIEW, WRIST
    from vla_ros.sim.expert import Expert
    from vla_ros_lab.precision.watch import ProbeFrame
    from vla_ros_lab.train.units import scales, to_environment

    scale = scales(environment.spec)
    now = environment.reset(task.name, number % task.initial_states, seed)
    expert = Expert(task.instruction)
    for index in range(count):
        stamp = (1 + number) * 1000 * SECOND + index * SECOND
        yield ProbeFrame(number, task.instruction, Observation(
            stamp, stamp, stamp, now.images[AGENTVIEW], now.images.get(WRIST),
            robot_state(now, state),
        ))  # fmt: skip
        for left in range(_EVERY if index + 1 < count else 0, 0, -1):
            step = environment.step(to_environment(expert.act(now.poses), scale), left == 1)
            if step.done:
                return
            now = step.observation


def _recorded(path: Path, asked: FrameSource, used: Conventions) -> list[ProbeFrame]:
    try:
        from vla_ros.data.bags import Bag
    except ImportError:
        raise UserError("rosbags is missing: pip install '.[replay]' in the checkout") from None
    with Bag(path) as bag:
        found = _of_bag(bag, asked, used)
    if not found:
        raise UserError(f"{path}: no frame has all that the policy needs")
    return found


def _of_bag(bag: Any, asked: FrameSource, used: Conventions) -> list[ProbeFrame]:
    from vla_ros.core.pixels import ENCODINGS
    from vla_ros.data.bag_frames import parse_remaps, pick, read_frames, scan
    from vla_ros.data.replay import read_recorded
    from vla_ros_lab.precision.watch import ProbeFrame

    picked = pick(bag.topics, parse_remaps(asked.remap))
    frames = scan(bag, picked, tuple(ENCODINGS), _MOST_GAP_S)
    tasks = read_recorded(bag, picked).tasks
    if not tasks and not asked.instruction:
        raise UserError(f"{asked.bag} has no instruction: give --instruction")
    needs = [
        *(["wrist_image"] if used.cameras == 2 else []),
        *(["joint_states"] if used.state else []),
    ]
    wanted = set(spread(len(frames.times), asked.frames))
    found = []
    for frame in read_frames(bag, picked, frames, needs, SECOND // 20):
        parts = {part.role: part.data for part in frame.parts}
        if frame.index not in wanted or not set(needs) <= set(parts):
            continue
        begun = [n for n, task in enumerate(tasks) if task.at_ns <= frame.at_ns]
        episode = begun[-1] if begun else 0
        text = asked.instruction or tasks[episode].text
        if not text:  # the instruction to wait
            continue
        roles = [role for role in ("image", "wrist_image") if role in parts]
        images = {role: _image(bag, picked, role, parts[role]) for role in roles}
        state = None
        if used.state:  # the joints as they come
            joints = _message(bag, picked, "joint_states", parts["joint_states"])
            state = np.asarray(joints.position, dtype=np.float64)
        found.append(ProbeFrame(episode, text, Observation(
            frame.stamp_ns, frame.at_ns, frame.at_ns, images["image"], images.get("wrist_image"),
            state,
        )))  # fmt: skip
    return found


def _message(bag: Any, picked: Any, role: str, data: bytes) -> Any:
    from vla_ros.data.bags import BagMessage

    topic = picked.topics[role]
    return bag.decode(BagMessage(topic.name, topic.kind, 0, data))


def _image(bag: Any, picked: Any, role: str, data: bytes) -> Image:
    from vla_ros.core.pixels import BadMessage, decompressed, image_of
    from vla_ros.data.bag_frames import COMPRESSED

    message = _message(bag, picked, role, data)
    decode = decompressed if picked.topics[role].kind == COMPRESSED else image_of
    try:
        return decode(message, _PIXELS)
    except BadMessage as error:
        raise UserError(f"{picked.topics[role].name}: {error}") from None
