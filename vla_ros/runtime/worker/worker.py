"""The worker process: owns the device, answers the newest request, ends with its parent. Linux.

It is started by :mod:`vla_ros.runtime.worker.process` with four inherited descriptors: the
channel (a stream socket: the task comes in, reports go out, its end means that the parent
is gone), the mailbox's memory, its doorbell, and a pipe that the parent alone holds open. SIGINT
and SIGTERM are ignored: the parent decides. One daemon thread does nothing but listen to the
channel: its end ends the worker, and one that stands by begins when it is asked there.

Native code may hold Python's lock for ever, so no thread of the worker can be relied on to end it.
The kernel is: it kills the worker with its parent's thread. What a policy started in turn, such as
compilers and loaders, is in the worker's process group; a small process of that group waits for
the pipe's end, and kills the group.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import pickle
import select
import signal
import socket
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from vla_ros.core.clock import MS, Clock, SystemClock
from vla_ros.core.console import show_traceback
from vla_ros.core.types import Image, Inference, Instruction, Observation, PolicyInfo, Timeline
from vla_ros.policies.base import (
    InvalidAction,
    Policy,
    PolicyRefused,
    PolicySpec,
    Unreachable,
    is_out_of_memory,
)
from vla_ros.runtime.worker.mailbox import Doorbell, MailboxReader
from vla_ros.runtime.worker.memory import device_bytes, refuse_unless_free
from vla_ros.runtime.worker.wire import (
    ErrorKind,
    FrameRequest,
    LoadRefused,
    PolicyLoaded,
    WorkerFailed,
    WorkerReport,
    WorkerResult,
    decode_request,
    encode_report,
)

Loader = Callable[[PolicySpec], Policy]
REMEMBERED = 256  # observations whose receipt is remembered; more than any pipeline is deep
WARM_UP = Instruction("pick up the red block and place it on the plate", -1)
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """Task of a worker at its start. ``after``: requests up to this number are void.

    ``standby``: it loads, and then leaves the mailbox and its bell alone until the parent asks it
    to begin. ``device_bytes``: how much of the GPU's memory must be free for it.
    """

    spec: PolicySpec
    loader: Loader
    after: int
    head_room: int
    array_room: int
    standby: bool = False
    device_bytes: int = 0


BEGIN = struct.Struct("<Q")  # to one that stands by: requests up to this number are void


def main(channel_fd: int, memory_fd: int, bell_fd: int, life_fd: int, parent: int) -> None:
    """Run until the parent is gone or an exception ends it. Never returns."""
    end_with_parent(parent, life_fd)
    faulthandler.enable()  # a crash in native code says where
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    for fd in (channel_fd, memory_fd, bell_fd):
        os.set_inheritable(fd, False)
    channel = socket.socket(fileno=channel_fd)
    bell = Doorbell(bell_fd)
    code = 1
    try:
        task = _receive_task(channel)
        parent_says = _Parent(channel)
        parent_says.start()
        mailbox = MailboxReader(memory_fd, task.head_room, task.array_room)
        os.close(memory_fd)
        server = _load(task, channel)
        if server is not None:
            after = parent_says.begin() if task.standby else task.after
            _serve(server, after, channel, mailbox, bell)
    except OSError:
        code = 0  # the parent is gone
    except Exception as error:
        show_traceback(error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # no interpreter shutdown: a broken CUDA context would hang in it


def _receive_task(channel: socket.socket) -> WorkerTask:
    """The parent's own pickle, read before anything else can reach the channel."""
    with channel.makefile("rb") as stream:
        (length,) = struct.unpack("<I", stream.read(4))
        task = pickle.loads(stream.read(length))
    assert isinstance(task, WorkerTask)
    return task


class _Parent(threading.Thread):
    """Listener of the channel: ends the process with it, and reads when a spare worker begins."""

    def __init__(self, channel: socket.socket) -> None:
        super().__init__(daemon=True)
        self._channel = channel
        self._heard = b""
        self._told = threading.Event()

    def run(self) -> None:
        try:
            while data := self._channel.recv(4096):
                self._heard += data
                if len(self._heard) >= BEGIN.size:
                    self._told.set()
        except OSError:
            pass
        os._exit(0)

    def begin(self) -> int:
        """Wait for the parent; returns the number up to which requests are void."""
        self._told.wait()
        return int(BEGIN.unpack_from(self._heard)[0])


def _send(channel: socket.socket, report: WorkerReport) -> None:
    channel.sendall(encode_report(report))


def _load(task: WorkerTask, channel: socket.socket) -> Server | None:
    clock = SystemClock()
    try:
        if task.device_bytes:
            refuse_unless_free(task.spec.device, task.device_bytes)
        policy = task.loader(task.spec)
        ready = warm_up(policy, task.spec, os.getpid(), clock)
        ready = replace(ready, device_bytes=device_bytes())
    except PolicyRefused as error:
        _send(channel, LoadRefused(last_line(error)))
        return None
    except Exception as error:
        show_traceback(error)
        _send(
            channel, LoadRefused(f"policy {task.spec.name!r} cannot be loaded: {last_line(error)}")
        )
        return None
    _send(channel, ready)
    return Server(policy, clock)


def _serve(
    server: Server, after: int, channel: socket.socket, mailbox: MailboxReader, bell: Doorbell
) -> None:
    waiting = select.poll()
    waiting.register(bell.fileno(), select.POLLIN)
    while True:
        frame = mailbox.read(after)
        if frame is None:
            waiting.poll()
            bell.answer()
            continue
        after, request = frame.sequence, decode_request(frame)
        try:
            result = server.answer(request)
        except Exception as error:
            show_traceback(error)
            reason = last_line(error)
            _send(channel, server.failed(request, reason))
            _send(channel, WorkerFailed(reason))
            return
        _send(channel, result)


def end_with_parent(parent: int, life_fd: int) -> None:
    """Call it first in a worker that leads its process group and has no thread yet.

    ``parent``: the process that started it. ``life_fd``: the end for reading of a pipe whose
    other end that process alone holds; it is closed here.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent:  # it had ended before the line above
        os._exit(0)
    if os.fork() == 0:
        _kill_group_after(life_fd)
    os.close(life_fd)


def _kill_group_after(life_fd: int) -> None:
    """Holds nothing but the pipe: whoever waits for the worker's end of anything else sees it."""
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nothing, fd)
        os.closerange(3, life_fd)
        os.closerange(life_fd + 1, os.sysconf("SC_OPEN_MAX"))
        while os.read(life_fd, 1):
            pass
    finally:
        os.killpg(0, signal.SIGKILL)


# Answers, apart from processes


class Server:
    """Answering of requests with one policy. One thread."""

    def __init__(self, policy: Policy, clock: Clock) -> None:
        self._policy = policy
        self._clock = clock
        self._instruction: Instruction | None = None
        self._received: deque[tuple[int, int, int]] = deque(maxlen=REMEMBERED)

    def answer(self, request: FrameRequest) -> WorkerResult:
        """The result of one request; an exception other than the expected three passes through."""
        observation = request.observation
        if request.instruction != self._instruction:
            self._instruction = request.instruction
            self._received.clear()
            self._policy.reset(request.instruction)
        self._received.append(
            (observation.stamp_ns, observation.received_ns, observation.received_steady_ns)
        )
        timeline = Timeline(observation.received_steady_ns).mark("queue", self._clock.steady_ns())
        try:
            return self._result(request, self._step(request, timeline))
        except InvalidAction as error:
            return self._result(request, None, ErrorKind.INVALID, last_line(error))
        except Unreachable as error:
            return self._result(request, None, ErrorKind.LINK, last_line(error))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return self._result(request, None, ErrorKind.MEMORY, last_line(error))

    def failed(self, request: FrameRequest, reason: str) -> WorkerResult:
        """The result of a request whose exception ends the worker."""
        return self._result(request, None, ErrorKind.FAILED, reason)

    def _step(self, request: FrameRequest, timeline: Timeline) -> Inference | None:
        try:
            return self._policy.step(request.observation, timeline, self._clock)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        # Outside the except block: the exception's traceback held the tensors alive.
        self._policy.reset(request.instruction)
        release_memory()
        return self._policy.step(request.observation, timeline, self._clock)

    def _result(
        self,
        request: FrameRequest,
        inference: Inference | None,
        error: ErrorKind = ErrorKind.NONE,
        text: str = "",
    ) -> WorkerResult:
        observation = request.observation
        received = (observation.received_ns, observation.received_steady_ns)
        if inference is not None and inference.stamp_ns != observation.stamp_ns:
            received = next(
                ((r, s) for t, r, s in reversed(self._received) if t == inference.stamp_ns),
                (inference.timeline.start_ns, inference.timeline.start_ns),
            )
        return WorkerResult(
            sequence=request.sequence,
            request_stamp_ns=observation.stamp_ns,
            epoch=request.instruction.epoch,
            instruction_digest=request.instruction.digest,
            received_ns=received[0],
            received_steady_ns=received[1],
            inference=inference,
            error=error,
            error_text=text,
        )


def warm_up(policy: Policy, spec: PolicySpec, pid: int, clock: Clock) -> PolicyLoaded:
    """Time ``spec.warmup_count`` inferences, after one and a filled pipeline that are not timed.

    A policy without a model (dtype ``none``) is ready at once. Raises PolicyRefused where the
    policy cannot even answer the synthetic observation.
    """
    info = policy.info
    if info.dtype == "none" or spec.warmup_count == 0:
        return PolicyLoaded(info, pid)
    policy.reset(WARM_UP)
    synthetic = warm_up_observation(info, spec)
    times = []
    for i in range(spec.warmup_count + info.pipeline_depth):
        began = clock.steady_ns()
        observation = replace(
            synthetic, stamp_ns=began, received_ns=began, received_steady_ns=began
        )
        try:
            policy.step(observation, Timeline(began).mark("queue", began), clock)
        except (InvalidAction, Unreachable) as error:
            raise PolicyRefused(f"the policy cannot act after loading: {error}") from error
        if i >= info.pipeline_depth:
            times.append((clock.steady_ns() - began) / MS)
    p50, p99 = np.percentile(times, (50, 99))
    return PolicyLoaded(info, pid, float(p50), float(p99))


def warm_up_observation(info: PolicyInfo, spec: PolicySpec) -> Observation:
    """An image of noise from every camera of the policy, in the size that it wants, and a robot at
    0."""
    random, sizes = np.random.default_rng(0), info.image_sizes

    def noise(camera: int) -> Image:
        size = sizes[2 * camera : 2 * camera + 2]
        return random.integers(0, 256, (*(size if any(size) else spec.warmup_size), 3), np.uint8)

    state = np.zeros(info.state_dim) if info.state_dim else None
    main, wrist, *others = (noise(camera) for camera in range(2 + len(info.camera_roles)))
    more = dict(zip(info.camera_roles, others, strict=True))
    return Observation(1, 0, 0, main, wrist, state, more_images=more)


def last_line(error: BaseException) -> str:
    """The one line that ends a traceback, at most 1000 characters."""
    text = str(error).strip()
    line = text.splitlines()[0] if text else ""
    name = type(error).__name__
    plain = isinstance(error, (InvalidAction, PolicyRefused, Unreachable))
    return (line if plain and line else f"{name}: {line}" if line else name)[:1000]


def release_memory() -> None:
    """Give cached device memory back, if torch is in use at all."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
