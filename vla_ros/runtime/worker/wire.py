"""How requests and reports look between the processes: JSON heads, raw images, no pickles.

Requests go through the mailbox, reports of the worker through a stream socket, each report
a 4-byte length and a JSON object. Floats survive exactly (shortest repr); so does NaN.
``decode_*`` raises ValueError for anything that is not what ``encode_*`` makes.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, astuple, dataclass
from typing import Any

import numpy as np

from vla_ros.action_space import ActionKind, ActionSpace
from vla_ros.core import Executing, Inference, Instruction, Observation, PolicyInfo, Pose, Timeline
from vla_ros.executor.mailbox import Bytes, Letter
from vla_ros.executor.messages import ErrorKind, FrameRefused, FrameRequest, Ready, Result

HEAD_ROOM = 256 * 1024  # bytes for text, poses and joint values of one request
_MAIN, _WRIST = "main", "wrist"  # no further camera may be called so
REPORT_LIMIT = 16 * 1024 * 1024  # bytes of one report; more is garbage


@dataclass(frozen=True, slots=True)
class LoadRefused:
    """The worker could not load the policy."""

    reason: str


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """The worker is about to end because of an exception."""

    reason: str


WorkerReport = Ready | LoadRefused | WorkerFailed | Result


def encode_request(
    observation: Observation, instruction: Instruction
) -> tuple[bytes, tuple[Bytes, ...]]:
    """Head and images for the mailbox; the images are not copied. Raises FrameRefused."""
    images = {_MAIN: observation.image}
    if observation.wrist_image is not None:
        images[_WRIST] = observation.wrist_image
    images |= observation.more_images
    for image in images.values():
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
            raise FrameRefused(f"image is {image.dtype} {image.shape}: it must be uint8 [H, W, 3]")
    proprio = observation.proprio
    head = {
        "stamp": observation.stamp_ns,
        "received": observation.received_ns,
        "steady": observation.received_steady_ns,
        "shapes": {role: image.shape for role, image in images.items()},
        "proprio": None if proprio is None else np.asarray(proprio, np.float64).tolist(),
        "delay": observation.delay_steps,
        "executing": None if observation.executing is None else astuple(observation.executing),
        "poses": {k: [*p.position, *p.quaternion] for k, p in observation.poses.items()},
        "text": instruction.text,
        "epoch": instruction.epoch,
    }
    try:
        return json.dumps(head, ensure_ascii=False).encode(), tuple(images.values())
    except UnicodeEncodeError as error:
        raise FrameRefused(f"the instruction is not valid Unicode: {error}") from error


def decode_request(letter: Letter) -> FrameRequest:
    """What ``encode_request`` was given, from the reader's own copies."""
    head = json.loads(letter.head)
    shapes = head["shapes"].items()
    images = {r: a.reshape(s) for a, (r, s) in zip(letter.arrays, shapes, strict=True)}
    proprio = head["proprio"]
    observation = Observation(
        stamp_ns=head["stamp"],
        received_ns=head["received"],
        received_steady_ns=head["steady"],
        image=images.pop(_MAIN),
        wrist_image=images.pop(_WRIST, None),
        proprio=None if proprio is None else np.array(proprio, np.float64),
        poses={
            k: Pose((v[0], v[1], v[2]), (v[3], v[4], v[5], v[6])) for k, v in head["poses"].items()
        },
        more_images=images,
        executing=_executing(head["executing"]),
        delay_steps=int(head["delay"]),
    )
    return FrameRequest(letter.sequence, observation, Instruction(head["text"], head["epoch"]))


def _executing(values: list[int] | None) -> Executing | None:
    if values is None:
        return None
    stamp_ns, index, delay_steps = map(int, values)
    return Executing(stamp_ns, index, delay_steps)


def encode_report(report: WorkerReport) -> bytes:
    """One report, length first."""
    body: dict[str, Any] = {"kind": type(report).__name__}
    if isinstance(report, Result):
        inference = report.inference
        body["inference"] = None if inference is None else _inference_to_json(inference)
        for name in _RESULT_FIELDS:
            body[name] = getattr(report, name)
        body["error"] = report.error.value
    else:
        body |= asdict(report)
    data = json.dumps(body).encode()
    return struct.pack("<I", len(data)) + data


_RESULT_FIELDS = (
    "sequence",
    "request_stamp_ns",
    "epoch",
    "instruction_digest",
    "received_ns",
    "received_steady_ns",
    "error_text",
)


def _inference_to_json(inference: Inference) -> dict[str, Any]:
    return {
        "stamp_ns": inference.stamp_ns,
        "actions": np.asarray(inference.actions, np.float64).tolist(),
        "start": inference.timeline.start_ns,
        "marks": inference.timeline.marks,
        "tokens": [int(t) for t in inference.tokens],
        "target_passes": inference.target_passes,
        "draft_passes": inference.draft_passes,
        "drafted": [int(n) for n in inference.drafted],
        "accepted": [int(n) for n in inference.accepted],
        "continues": None if inference.continues is None else astuple(inference.continues),
        "told_delay": inference.told_delay,
        "captures": inference.captures,
    }


def _inference_from_json(body: dict[str, Any]) -> Inference:
    return Inference(
        stamp_ns=int(body["stamp_ns"]),
        actions=np.array(body["actions"], np.float64),
        timeline=Timeline(
            int(body["start"]), tuple((str(stage), int(end)) for stage, end in body["marks"])
        ),
        tokens=tuple(map(int, body["tokens"])),
        target_passes=int(body["target_passes"]),
        draft_passes=int(body["draft_passes"]),
        drafted=tuple(map(int, body["drafted"])),
        accepted=tuple(map(int, body["accepted"])),
        continues=_executing(body["continues"]),
        told_delay=int(body["told_delay"]),
        captures=int(body["captures"]),
    )


def decode_report(data: bytes, returned_steady_ns: int) -> WorkerReport:
    """One report without its length."""
    try:
        return _report(json.loads(data), returned_steady_ns)
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"not a report: {error!r}") from error


def _report(body: dict[str, Any], returned_steady_ns: int) -> WorkerReport:
    match body.pop("kind"):
        case "Result":
            inference = body.pop("inference")
            error = ErrorKind(body.pop("error"))
            result = Result(
                **body,
                inference=None if inference is None else _inference_from_json(inference),
                error=error,
                returned_steady_ns=returned_steady_ns,
            )
            if not isinstance(result.sequence, int):
                raise ValueError("not a report: its sequence is no number")
            return result
        case "Ready":
            return Ready(**(body | {"info": _info_from_json(body["info"])}))
        case "LoadRefused":
            return LoadRefused(str(body["reason"]))
        case "WorkerFailed":
            return WorkerFailed(str(body["reason"]))
    raise ValueError("not a report: unknown kind")


def _info_from_json(body: dict[str, Any]) -> PolicyInfo:
    space = body["action_space"]
    return PolicyInfo(
        **body
        | {
            "camera_roles": tuple(map(str, body["camera_roles"])),
            "continues": tuple(map(str, body["continues"])),
            "action_space": ActionSpace(
                ActionKind(space["kind"]),
                tuple(map(str, space["names"])),
                tuple(map(str, space["units"])),
                tuple(map(int, space["grippers"])),
            ),
        }
    )


class ReportStream:
    """Cuts a stream of bytes into reports. Raises ValueError at the first byte of garbage."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes, steady_ns: int) -> list[WorkerReport]:
        """Every report that is complete once ``data`` has come at ``steady_ns``."""
        self._pending += data
        reports = []
        while len(self._pending) >= 4:
            (length,) = struct.unpack_from("<I", self._pending)
            if length > REPORT_LIMIT:
                raise ValueError(f"not a report: {length} bytes")
            if len(self._pending) < 4 + length:
                break
            reports.append(decode_report(bytes(self._pending[4 : 4 + length]), steady_ns))
            del self._pending[: 4 + length]
        return reports
