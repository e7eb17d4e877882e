"""Small bags written by hand with `rosbags`, as somebody else's recorder might."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image as Pillow
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer
from rosbags.typesys.store import Typestore

from vla_ros.core.action_space import END_EFFECTOR_DELTA, ActionSpace
from vla_ros.core.types import Image, Inference, Instruction, StaleAction, Timeline
from vla_ros.data.bag_writer import typestore
from vla_ros.runtime.control.motion import Motion
from vla_ros.runtime.control.queue import ChunkAction, PolicyAnswer
from vla_ros.runtime.limiter import action_reach_of
from vla_ros.runtime.safety import Limits

STORE = typestore()
SECOND = 1_000_000_000
T = SECOND // 20
START = 1000 * SECOND


@dataclass(frozen=True)
class Entry:
    """A message to write: its topic, when it was recorded, its type and its content."""

    topic: str
    at_ns: int
    kind: str
    content: Any


def _make(name: str, /, **fields: Any) -> Any:
    return STORE.types[name](**fields)


def header(stamp_ns: int, frame: str = "camera") -> Any:
    return _make("std_msgs/msg/Header", stamp=time(stamp_ns), frame_id=frame)


def time(stamp_ns: int) -> Any:
    sec, nanosec = divmod(stamp_ns, SECOND)
    return _make("builtin_interfaces/msg/Time", sec=sec, nanosec=nanosec)


def picture(i: int, size: int = 32) -> Image:
    """An RGB image unlike every other one."""
    return np.random.default_rng(i).integers(0, 256, (size, size, 3), np.uint8)


def image(
    stamp_ns: int, rgb: Image, encoding: str = "rgb8", topic: str = "/image", at_ns: int = 0
) -> Entry:
    pixels = {"bgr8": rgb[..., ::-1], "mono8": rgb[..., 0]}.get(encoding, rgb)
    data = np.ascontiguousarray(pixels).reshape(-1)
    kind = "sensor_msgs/msg/Image"
    content = _make(
        kind,
        header=header(stamp_ns),
        height=rgb.shape[0],
        width=rgb.shape[1],
        encoding=encoding,
        is_bigendian=0,
        step=data.size // rgb.shape[0],
        data=data,
    )
    return Entry(topic, at_ns or stamp_ns, kind, content)


def png(stamp_ns: int, rgb: Image, topic: str = "/image/compressed") -> Entry:
    file = io.BytesIO()
    Pillow.fromarray(rgb).save(file, "PNG")
    data = np.frombuffer(bytearray(file.getvalue()), np.uint8)
    kind = "sensor_msgs/msg/CompressedImage"
    return Entry(
        topic, stamp_ns, kind, _make(kind, header=header(stamp_ns), format="png", data=data)
    )


def joints(stamp_ns: int, position: float = 0.0, topic: str = "/joint_states") -> Entry:
    kind = "sensor_msgs/msg/JointState"
    empty = np.zeros(0)
    content = _make(
        kind,
        header=header(stamp_ns),
        name=["joint"],
        position=np.array([position]),
        velocity=empty,
        effort=empty,
    )
    return Entry(topic, stamp_ns, kind, content)


def status(stamp_ns: int, state: int, rates: tuple[float, float] = (0.0, 0.0)) -> Entry:
    """A PolicyStatus of which only the state and the rates (of actions, of commands) say
    something."""
    name = "vla_ros/msg/PolicyStatus"
    text = ("reason", "policy", "decoding", "checkpoint", "checkpoint_sha256", "device", "dtype",
            "instruction", "last_drop", "last_block")  # fmt: skip
    fields = [field for field, _ in STORE.fielddefs[name][1] if field not in ("header", "state")]
    said: dict[str, Any] = {field: "" if field in text else 0 for field in fields}
    said |= {field: 0.0 for field in fields if field.endswith(("_hz", "_s"))}
    said["acceptance"], said["outputs"] = np.zeros(0), []
    said["action_rate_hz"], said["control_rate_hz"] = rates
    content = _make(name, header=header(stamp_ns), state=state, **said)
    return Entry("/policy/status", stamp_ns, name, content)


def task(at_ns: int, text: str, topic: str = "/instruction") -> Entry:
    kind = "std_msgs/msg/String"
    return Entry(topic, at_ns, kind, _make(kind, data=text))


def action(
    stamp_ns: int,
    numbers: Iterable[float],
    epoch: int = 1,
    kind: int = 0,
    space: ActionSpace = END_EFFECTOR_DELTA,
    index: int = 0,
    phase: float = 0.0,
    at_ns: int = 0,
    text: str = "",
) -> Entry:
    """An ActionCommand that rests on the frame of this stamp, published at ``at_ns`` or a fifth of
    a period later, for the instruction ``text``."""
    at_ns = at_ns or stamp_ns + T // 5
    name = "vla_ros/msg/ActionCommand"
    spent = dict.fromkeys(("transport_s", "queue_s", "preprocess_s", "vision_s"), 0.001)
    spent |= {**dict.fromkeys(("prefill_s", "decode_s", "gate_s"), 0.002), "total_s": 0.010}
    stages = _make("vla_ros/msg/Stages", **spent)
    content = _make(
        name,
        header=header(at_ns, "base"),
        observation_stamp=time(stamp_ns),
        receive_stamp=time(stamp_ns),
        latest_observation_stamp=time(stamp_ns),
        correction_stamp=time(0),
        valid_until=time(stamp_ns + SECOND),
        sequence=0,
        epoch=epoch,
        kind=kind,
        chunk_index=index,
        chunk_length=index + 1,
        action_phase=phase,
        staleness_s=0.0,
        pipeline_depth=1,
        decoding="autoregressive",
        instruction_hash=Instruction(text, 1).digest if text else 0,
        action_space=int(space.kind),
        names=list(space.names),
        units=list(space.units),
        action=np.array(list(numbers), dtype=np.float64),
        stages=stages,
    )
    return Entry("/policy/action", at_ns, name, content)


def chunk(
    stamp_ns: int,
    rows: Iterable[Iterable[float]],
    text: str,
    epoch: int = 1,
    continued: tuple[int, int, int] = (0, 0, 0),
    space: ActionSpace = END_EFFECTOR_DELTA,
    conditioning_delay: int = 0,
    period_s: float = 0.05,
) -> Entry:
    """An ActionChunk of the frame of this stamp. ``continued``: stamp, index, delay_steps."""
    name = "vla_ros/msg/ActionChunk"
    numbers = np.array([list(row) for row in rows], dtype=np.float64)
    content = _make(
        name,
        header=header(stamp_ns + T // 5, "base"),
        observation_stamp=time(stamp_ns),
        receive_stamp=time(stamp_ns),
        epoch=epoch,
        decoding="flow",
        instruction_hash=Instruction(text, epoch).digest,
        length=len(numbers),
        period_s=period_s,
        previous_stamp=time(continued[0]),
        previous_index=continued[1],
        delay_steps=continued[2],
        conditioning_delay=conditioning_delay,
        action_space=int(space.kind),
        width=numbers.shape[1],
        names=list(space.names),
        units=list(space.units),
        actions=numbers.ravel(),
        tokens=np.zeros(0, np.int32),
        target_passes=1,
        draft_passes=0,
        drafted=np.zeros(0, np.uint16),
        accepted=np.zeros(0, np.uint16),
        inference_s=0.01,
    )
    return Entry("/policy/action_chunk", stamp_ns + T // 5, name, content)


def write_bag(
    path: Path,
    entries: Iterable[Entry],
    storage: str = "mcap",
    store: Typestore = STORE,
    compressed: str = "none",
) -> Path:
    """Write entries in the order given, with the definitions of ``store``; returns the path."""
    plugin = {"mcap": StoragePlugin.MCAP, "sqlite3": StoragePlugin.SQLITE3}[storage]
    whole = Writer(path, version=9, storage_plugin=plugin)
    whole.set_compression(CompressionMode[compressed.upper()], CompressionFormat.ZSTD)
    with whole as writer:
        connections: dict[str, Any] = {}
        for entry in entries:
            if entry.topic not in connections:
                connections[entry.topic] = writer.add_connection(
                    entry.topic, entry.kind, typestore=store
                )
            data = store.serialize_cdr(entry.content, entry.kind)
            writer.write(connections[entry.topic], entry.at_ns, data)
    return path


def film(count: int, step: int = T, **options: Any) -> list[Entry]:
    """``count`` frames, one every ``step`` ns."""
    return [image(START + i * step, picture(i), **options) for i in range(count)]


def commanded(
    action_hz: float,
    control_hz: float,
    actions: npt.NDArray[np.float64],
    space: ActionSpace = END_EFFECTOR_DELTA,
) -> tuple[list[Entry], npt.NDArray[np.float64]]:
    """A run of chunks of 5 actions at one rate, commanded at another along the policy node's own
    motion, for the instruction "reach". Returns the entries and the commands [n, D]."""
    period, count = SECOND / action_hz, len(space.motion)
    limits = Limits(
        control_hz, action_hz, space=space, low=(-1.0,) * count, high=(1.0,) * count,
        stale_action=StaleAction.SILENCE,
    )  # fmt: skip
    reach, motion = action_reach_of(limits), Motion(space, limits.action_period_s, exact=True)
    entries = [task(START - T, "reach"), status(START - 1, 3, (action_hz, control_hz))]
    answers = []
    for i in range(len(actions)):
        at_ns = START + round(i * period)
        entries.append(image(at_ns, picture(i)))
        if i % 5 == 0:
            rows = actions[i : i + 5]
            answers.append(PolicyAnswer(Inference(at_ns, rows, Timeline(0)), 0, 0))
            entries.append(chunk(at_ns, rows, "reach", space=space, period_s=1 / action_hz))
    commands, begun = [], 0
    for n in range(round(len(actions) / limits.actions_a_period)):
        motion.open(limits.actions_a_period)
        while motion.wants() and begun < len(actions):
            answer, index = answers[begun // 5], begun % 5
            rows = answer.inference.actions[index:]
            motion.begin(ChunkAction((answer,), index, rows), None, reach)
            begun += 1
        step = motion.close(limits.period_s)
        assert step is not None
        commands.append(step.wish)
        of, at_ns = step.action, START + round(n * limits.period_ns) + 2_000_000
        observed = of.answer.inference.stamp_ns
        one = action(observed, step.wish, 1, 0, space, of.index, step.phase, at_ns, text="reach")
        entries.append(one)
    return sorted(entries, key=lambda e: e.at_ns), np.array(commands)


def film_of_video(packets: Iterable[bytes], transport: str, first: int = 0) -> list[Entry]:
    """A camera's packets of H.264, one every T, as `transport` sends them: "ffmpeg", "foxglove" or
    "compressed"; the first is image ``first``."""
    entries = []
    for i, packet in enumerate(packets, first):
        stamp_ns, data = START + i * T, np.frombuffer(bytearray(packet), np.uint8)
        kind, fields = {
            "ffmpeg": ("ffmpeg_image_transport_msgs/msg/FFMPEGPacket", {
                "header": header(stamp_ns), "width": 160, "height": 120, "encoding": "libx264",
                "pts": i, "flags": 0, "is_bigendian": False,
            }),
            "foxglove": ("foxglove_msgs/msg/CompressedVideo", {
                "timestamp": time(stamp_ns), "frame_id": "camera", "format": "h264",
            }),
            "compressed": ("sensor_msgs/msg/CompressedImage", {
                "header": header(stamp_ns), "format": "h264",
            }),
        }[transport]  # fmt: skip
        content = _make(kind, data=data, **fields)
        entries.append(Entry(f"/image/{transport}", stamp_ns, kind, content))
    return entries
