"""Messages between the node and its worker: JSON heads and raw images, no pickles.

Requests go through the mailbox, reports of the worker through a stream socket, each report
a 4-byte length and a JSON object. Floats survive exactly (shortest repr); so does NaN.
``decode_*`` raises ValueError for anything that is not what ``encode_*`` makes. Events are what the
executor tells its owner. Frozen values only.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from vla_ros.core.plain import executing_of, inference_of, info_of, uncorrected_of
from vla_ros.core.types import (
    Inference,
    Instruction,
    Observation,
    PolicyInfo,
    Pose,
)
from vla_ros.runtime.worker.mailbox import Bytes, MailboxFrame

HEAD_ROOM = 256 * 1024  # bytes for text, poses and joint values of one request
_MAIN, _WRIST = "main", "wrist"  # no further camera may be called so
REPORT_LIMIT = 16 * 1024 * 1024  # bytes of one report; more is garbage


class FrameRefused(ValueError):
    """The frame cannot be handed to the worker: too large, or not uint8 [H, W, 3]."""


class WorkerGone(RuntimeError):
    """There is no worker, and none can be started any more."""


class ErrorKind(str, Enum):
    """Reason for a result without an inference."""

    NONE = ""
    INVALID = "invalid"  # the output was no action; the worker goes on
    LINK = "link"  # whoever computes the policy was not reached, or has not answered yet
    MEMORY = "memory"  # out of memory, also after a flush and a second attempt; it goes on
    FAILED = "failed"  # any other exception; the worker ends and is replaced


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """Timeouts and limits of an executor.

    ``hang_timeout_s``: a request unanswered for longer means that the worker hangs.
    ``max_respawns`` in ``respawn_window_s``; a replacement must load in ``load_timeout_s``.
    ``max_image_bytes`` is the room for all images of one frame together. ``spare``: a second
    worker is kept loaded where memory allows, which takes over where one is lost.
    """

    hang_timeout_s: float = 2.0
    max_respawns: int = 3
    respawn_window_s: float = 600.0
    load_timeout_s: float = 120.0
    max_image_bytes: int = 2 * 1920 * 1080 * 3
    spare: bool = False

    def __post_init__(self) -> None:
        if min(self.hang_timeout_s, self.respawn_window_s, self.load_timeout_s) <= 0:
            raise ValueError("hang_timeout_s, respawn_window_s, load_timeout_s must be above 0")
        if self.max_respawns < 0 or self.max_image_bytes < 1:
            raise ValueError("max_respawns must be 0 or more, max_image_bytes 1 or more")


@dataclass(frozen=True, slots=True)
class FrameRequest:
    """A frame for the worker, complete in itself."""

    sequence: int
    observation: Observation
    instruction: Instruction


@dataclass(frozen=True, slots=True)
class PolicyLoaded:
    """A worker has loaded its policy, warmed it up and waits for frames.

    The times are those of the timed warm-up inferences, 0 for a policy that made none.
    ``device_bytes``: what it holds of a GPU's memory, at its peak; 0 without a GPU.
    """

    info: PolicyInfo
    pid: int
    inference_p50_ms: float = 0.0
    inference_p99_ms: float = 0.0
    device_bytes: int = 0


@dataclass(frozen=True, slots=True)
class WorkerResult:
    """The answer to one request, sent for every request that the worker took.

    ``request_stamp_ns`` names the observation that was given, ``epoch`` and
    ``instruction_digest`` the task it was given under. ``received_ns`` and
    ``received_steady_ns`` are those of the observation that the *inference* belongs to (an
    older one in a pipeline), or of the given one where there is no inference. No inference
    and no error: the policy has nothing to say yet. ``returned_steady_ns`` is when the
    parent read this result.
    """

    sequence: int
    request_stamp_ns: int
    epoch: int
    instruction_digest: int
    received_ns: int
    received_steady_ns: int
    inference: Inference | None = None
    error: ErrorKind = ErrorKind.NONE
    error_text: str = ""
    returned_steady_ns: int = 0


@dataclass(frozen=True, slots=True)
class LoadRefused:
    """The worker could not load the policy."""

    reason: str


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """The worker is about to end because of an exception."""

    reason: str


WorkerReport = PolicyLoaded | LoadRefused | WorkerFailed | WorkerResult


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """The worker ended or was killed; a replacement is on its way (or WorkerGaveUp follows)."""

    reason: str


@dataclass(frozen=True, slots=True)
class WorkerDied:
    """How the worker ended that was lost before, where that was not known then: "was killed by
    SIGSEGV". Only for the log: it comes when the process is gone, seconds after the loss where it
    wrote a core file, and whatever is done about the loss has not waited for it."""

    pid: int
    how: str


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A replacement is ready, ``load_s`` after it was started."""

    ready: PolicyLoaded
    load_s: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkerSwitched:
    """The worker was lost for ``reason``, and the spare one has taken its place already."""

    reason: str
    ready: PolicyLoaded


@dataclass(frozen=True, slots=True)
class WorkerGaveUp:
    """There is no worker and none will come before ``Executor.restart``."""

    reason: str


@dataclass(frozen=True, slots=True)
class SpareReady:
    """A spare worker stands by, ``load_s`` after it was started."""

    pid: int
    load_s: float


@dataclass(frozen=True, slots=True)
class SpareLost:
    """No spare worker stands by. ``final``: none will come before the worker is another one."""

    reason: str
    final: bool


Event = (
    WorkerLost | WorkerDied | WorkerReady | WorkerSwitched | WorkerGaveUp | SpareReady | SpareLost
)


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
    proprio, uncorrected = observation.proprio, observation.uncorrected
    head = {
        "stamp": observation.stamp_ns,
        "received": observation.received_ns,
        "steady": observation.received_steady_ns,
        "shapes": {role: image.shape for role, image in images.items()},
        "proprio": None if proprio is None else np.asarray(proprio, np.float64).tolist(),
        "delay": observation.delay_steps,
        "executing": observation.executing and asdict(observation.executing),
        "uncorrected": uncorrected
        and asdict(replace(uncorrected, actions=uncorrected.actions.tolist())),
        "poses": {k: [*p.position, *p.quaternion] for k, p in observation.poses.items()},
        "text": instruction.text,
        "epoch": instruction.epoch,
    }
    try:
        return json.dumps(head, ensure_ascii=False).encode(), tuple(images.values())
    except UnicodeEncodeError as error:
        raise FrameRefused(f"the instruction is not valid Unicode: {error}") from error


def decode_request(frame: MailboxFrame) -> FrameRequest:
    """The request of ``encode_request``, from the reader's own copies."""
    head = json.loads(frame.head)
    shapes = head["shapes"].items()
    images = {r: a.reshape(s) for a, (r, s) in zip(frame.arrays, shapes, strict=True)}
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
        executing=executing_of(head["executing"]),
        delay_steps=int(head["delay"]),
        uncorrected=uncorrected_of(head["uncorrected"]),
    )
    return FrameRequest(frame.sequence, observation, Instruction(head["text"], head["epoch"]))


def encode_report(report: WorkerReport) -> bytes:
    """One report, length first."""
    body = {"kind": type(report).__name__, **asdict(report)}
    data = json.dumps(body, default=lambda value: value.tolist()).encode()  # numpy's
    return struct.pack("<I", len(data)) + data


def decode_report(data: bytes, returned_steady_ns: int) -> WorkerReport:
    """One report without its length."""
    try:
        return _report(json.loads(data), returned_steady_ns)
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"not a report: {error!r}") from error


def _report(body: dict[str, Any], returned_steady_ns: int) -> WorkerReport:
    match body.pop("kind"):
        case "WorkerResult":
            body |= {
                "inference": inference_of(body["inference"]),
                "error": ErrorKind(body["error"]),
                "returned_steady_ns": returned_steady_ns,
            }
            result = WorkerResult(**body)
            if not isinstance(result.sequence, int):
                raise ValueError("not a report: its sequence is no number")
            return result
        case "PolicyLoaded":
            return PolicyLoaded(**(body | {"info": info_of(body["info"])}))
        case "LoadRefused":
            return LoadRefused(str(body["reason"]))
        case "WorkerFailed":
            return WorkerFailed(str(body["reason"]))
    raise ValueError("not a report: unknown kind")


class ReportStream:
    """Stream of bytes, cut into reports. Raises ValueError at the first byte of garbage."""

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
