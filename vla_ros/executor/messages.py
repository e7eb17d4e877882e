"""What the executor tells its owner, and the limits it keeps. Frozen values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from vla_ros.core import Inference, Instruction, Observation, PolicyInfo


class FrameRefused(ValueError):
    """The frame cannot be handed to the worker: too large, or not uint8 [H, W, 3]."""


class WorkerGone(RuntimeError):
    """There is no worker, and none can be started any more."""


class ErrorKind(str, Enum):
    """Why a result carries no inference."""

    NONE = ""
    INVALID = "invalid"  # the output was no action; the worker goes on
    MEMORY = "memory"  # out of memory, also after a flush and a second attempt; it goes on
    FAILED = "failed"  # any other exception; the worker ends and is replaced


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """How long and how often.

    ``hang_timeout_s``: a request unanswered for longer means that the worker hangs.
    ``max_respawns`` in ``respawn_window_s``; a replacement must load in ``load_timeout_s``.
    ``max_image_bytes`` is the room for all images of one frame together. ``spare``: a second
    worker is kept loaded where memory allows, see :mod:`vla_ros.executor.spare`.
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
    """One frame as the worker finds it: complete in itself."""

    sequence: int
    observation: Observation
    instruction: Instruction


@dataclass(frozen=True, slots=True)
class Ready:
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
class Result:
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

    ready: Ready
    load_s: float = 0.0


@dataclass(frozen=True, slots=True)
class WorkerSwitched:
    """The worker was lost for ``reason``, and the spare one has taken its place already."""

    reason: str
    ready: Ready


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
