"""The worker process: owns the device, answers the newest request, ends with its parent.

It is started by :mod:`vla_ros.executor.process` with four inherited descriptors: the
channel (a stream socket: the task comes in, reports go out, its end means that the parent
is gone), the mailbox's memory, its doorbell, and what :mod:`vla_ros.executor.guard` waits for,
which sees to it that the worker ends even where its own threads cannot run. SIGINT and SIGTERM
are ignored: the parent decides. One daemon thread does nothing but listen to the channel: its
end ends the worker, and one that stands by is told there to begin.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import select
import signal
import socket
import struct
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace

from vla_ros.executor.guard import end_with_parent
from vla_ros.executor.inbox import Inbox
from vla_ros.executor.mailbox import Doorbell, MailboxReader
from vla_ros.executor.memory import device_bytes, refuse_unless_free
from vla_ros.executor.messages import ErrorKind, FrameRequest, Result
from vla_ros.executor.serve import Server, last_line, warm_up
from vla_ros.executor.wire import (
    LoadRefused,
    WorkerFailed,
    WorkerReport,
    encode_report,
)
from vla_ros.policies.base import Policy, PolicyRefused, PolicySpec
from vla_ros.timing import SystemClock

Loader = Callable[[PolicySpec], Policy]


@dataclass(frozen=True, slots=True)
class WorkerTask:
    """What a worker is told at its start. ``after``: requests up to this number are void.

    ``standby``: it loads, and then leaves the mailbox and its bell alone until the parent tells it
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
    except Exception:
        traceback.print_exc()
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
    """Ends the process when the channel ends; hears from it that a spare worker is to begin."""

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
        """Wait for the word; returns the number up to which requests are void."""
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
        traceback.print_exc()
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
    inbox = Inbox(mailbox, after)
    server.watch(inbox.peek)
    while True:
        request = inbox.take()
        if request is None:
            waiting.poll()
            bell.answer()
            continue
        try:
            result = server.answer(request)
        except Exception as error:
            traceback.print_exc()
            reason = last_line(error)
            _send(channel, _failed(request, reason))
            _send(channel, WorkerFailed(reason))
            return
        _send(channel, result)


def _failed(request: FrameRequest, reason: str) -> Result:
    observation = request.observation
    return Result(
        sequence=request.sequence,
        request_stamp_ns=observation.stamp_ns,
        epoch=request.instruction.epoch,
        instruction_digest=request.instruction.digest,
        received_ns=observation.received_ns,
        received_steady_ns=observation.received_steady_ns,
        error=ErrorKind.FAILED,
        error_text=reason,
    )
