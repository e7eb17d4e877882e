"""One worker process as its parent sees it: start, read, kill, reap. Never blocks.

It leads a process group of its own, and the group ends with it. A fresh interpreter is started
rather than a ``multiprocessing`` child: that would import the parent's main module (and with it
ROS) again. It is this program's interpreter, with the same path, or another: then it sees the
packages of its own and, of ours, ``vla_ros`` alone. Used by the executor's thread; ``kill`` may
be called from any thread.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

from vla_ros.policies.base import POLICIES, PolicySpec
from vla_ros.policies.lerobot.environment import seen_variables
from vla_ros.policies.load import worker_python
from vla_ros.runtime.worker.mailbox import Doorbell, MailboxWriter
from vla_ros.runtime.worker.wire import ReportStream, WorkerReport
from vla_ros.runtime.worker.worker import BEGIN, Loader, WorkerTask

_MAIN = "from vla_ros.runtime.worker.worker import main; main(*map(int, sys.argv[1:]))"
_BOOT = (
    "import os, sys; sys.path[:] = os.environ.pop('VLA_ROS_WORKER_PATH').split(os.pathsep); "
    + _MAIN
)
#: Our site-packages hold binaries of another Python: only the one folder may be seen.
_BOOT_OF_ANOTHER = (
    """
import os, sys
if sys.version_info < (3, 10):
    sys.exit("worker_python is Python %d.%d, vla_ros needs 3.10 or later" % sys.version_info[:2])
from importlib.util import module_from_spec, spec_from_file_location
folder = os.environ.pop("VLA_ROS_WORKER_PATH")
init = os.path.join(folder, "__init__.py")
spec = spec_from_file_location("vla_ros", init, submodule_search_locations=[folder])
sys.modules["vla_ros"] = module_from_spec(spec)
spec.loader.exec_module(sys.modules["vla_ros"])
"""
    + _MAIN
)
_PACKAGE = Path(__file__).resolve().parents[2]
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class WorkerProcess:
    """A running worker. Construction starts it and returns before it has loaded anything.

    PolicyRefused: the interpreter that the policy needs is not there.
    """

    def __init__(
        self,
        spec: PolicySpec,
        loader: Loader,
        mailbox: MailboxWriter,
        bell: Doorbell,
        after: int,
        *,
        standby: bool = False,
        device_bytes: int = 0,
    ) -> None:
        rooms = mailbox.head_room, mailbox.array_room
        task = WorkerTask(spec, loader, after, *rooms, standby, device_bytes)
        boot = pickle.dumps(task)
        command, path = _command(worker_python(spec))
        self._reports = ReportStream()
        self._reaping = threading.Lock()
        self.channel, theirs = socket.socketpair()
        life, self._life = os.pipe()  # this process alone holds this end: it closes with it
        try:
            inherited = (theirs.fileno(), mailbox.fileno(), bell.fileno(), life)
            self._process = subprocess.Popen(
                [*command, *map(str, (*inherited, os.getpid()))],
                pass_fds=inherited,
                env=_environment(spec, path),
                stdin=subprocess.DEVNULL,
                # Ctrl-C in a terminal reaches the parent only, and what it starts is a group.
                start_new_session=True,
            )
        except BaseException:
            self.channel.close()
            os.close(self._life)
            raise
        finally:
            theirs.close()
            os.close(life)
        self.channel.setblocking(False)
        with contextlib.suppress(OSError):  # it ended already: the next read says so
            self.channel.sendall(struct.pack("<I", len(boot)) + boot)

    @property
    def pid(self) -> int:
        return self._process.pid

    def step_back(self, cpus: int) -> None:
        """It is a spare one: until :meth:`begin` it leaves CPUs to the others, and is the first to
        go where the machine runs out of memory. ``cpus``: how many it may use; 0: all."""
        ours = sorted(os.sched_getaffinity(0))
        _use(self.pid, ours[-cpus:] if cpus else ours)
        _offer_to_oom_killer(self.pid, 1000)

    def begin(self, after: int) -> None:
        """Take the mailbox over: requests up to ``after`` are void. Of one that stands by."""
        with contextlib.suppress(OSError):  # it has ended: the next read says so
            self.channel.sendall(BEGIN.pack(after))
        _use(self.pid, sorted(os.sched_getaffinity(0)))
        _offer_to_oom_killer(self.pid, int(Path("/proc/self/oom_score_adj").read_text()))

    def read(self, steady_ns: int) -> list[WorkerReport] | None:
        """Reports that have come, maybe none; None once the worker has closed its end.

        Raises ValueError when it sent something that is no report.
        """
        try:
            data = self.channel.recv(1 << 16)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:
            return None
        return self._reports.feed(data, steady_ns) if data else None

    def kill(self) -> None:
        """SIGKILL to it and all it started; does nothing if it has ended."""
        with self._reaping:
            self._kill_group()

    def ended(self) -> bool:
        """True once it is gone for good (and reaped); its children are killed then."""
        with self._reaping:
            if self._process.returncode is not None:
                return True
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            with contextlib.suppress(ChildProcessError):  # reaped by somebody else
                if os.waitid(os.P_PID, self.pid, flags) is None:
                    return False
            self._kill_group()
            self._process.wait()
            os.close(self._life)
            return True

    def _kill_group(self) -> None:
        """Kill its children before it is reaped: until then its number is not used again."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def exit_reason(self, patience_s: float = 0.05) -> str:
        """How it ended, in words; waits a moment to learn it."""
        self._wait(patience_s)
        how = self.how()
        return f"the worker {how}" if how else "the worker closed its channel"

    def how(self) -> str:
        """How it ended, in words; "" as long as that is not known."""
        code = self._process.returncode
        if code is None:
            return ""
        return (
            f"was killed by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        )

    def ended_unasked(self) -> bool:
        """True if it ended otherwise than by the SIGKILL that we send."""
        return self._process.returncode not in (None, -signal.SIGKILL)

    def crashed(self) -> str:
        """How it is ending, in words, while the kernel still writes its core file: seconds for a
        large model, with its channel open all that time. "" where it is not."""
        try:
            if "CoreDumping:\t1" not in Path(f"/proc/{self.pid}/status").read_text():
                return ""
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:  # it is gone
            return ""
        number = int(stat.split()[-1]) & 0x7F  # proc(5): exit_code, as waitpid gives it
        return f"was killed by {_signal_name(number)}" if number else "crashed"

    def close(self, timeout_s: float) -> bool:
        """Ask it to end by closing the channel, kill it after a while; True once it is gone."""
        self.channel.close()
        patience = min(0.2, timeout_s / 2)
        if self._wait(patience):
            return True
        self.kill()
        return self._wait(timeout_s - patience)

    def _wait(self, timeout_s: float) -> bool:
        until = time.monotonic() + timeout_s
        while not self.ended():
            if time.monotonic() >= until:
                return False
            time.sleep(0.002)
        return True


def _use(pid: int, cpus: list[int]) -> None:
    """Let every thread of the process run on these CPUs."""
    with contextlib.suppress(OSError):  # it has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                os.sched_setaffinity(int(thread), cpus)


def _offer_to_oom_killer(pid: int, score: int) -> None:
    with contextlib.suppress(OSError):  # it has ended, or the kernel does not let us
        Path(f"/proc/{pid}/oom_score_adj").write_text(str(score))


def _command(python: str | None) -> tuple[list[str], str]:
    """Command that starts a worker, and its import path. None: as this process."""
    if python is not None:  # isolated: neither PYTHONPATH nor the working directory are its own
        return [python, "-I", "-c", _BOOT_OF_ANOTHER], str(_PACKAGE)
    # An empty entry means the working directory, which must not become something else.
    return [sys.executable, "-c", _BOOT], os.pathsep.join(e or os.getcwd() for e in sys.path)


_TOKEN = "VLA_ROS_TOKEN"  # of a server's clients


def _environment(spec: PolicySpec, path: str) -> dict[str, str]:
    environment = os.environ | {"VLA_ROS_WORKER_PATH": path}
    if spec.name == "lerobot":
        environment = seen_variables(environment, hub=_asks_hub(spec))
    elif spec.name in POLICIES and spec.name != "remote":
        environment.pop(_TOKEN, None)
    if spec.num_threads:
        environment |= dict.fromkeys(_THREAD_VARIABLES, str(spec.num_threads))
    return environment


def _asks_hub(spec: PolicySpec) -> bool:
    """True where the operator named a repository: the checkpoint, or another part of it."""
    named = (spec.checkpoint, spec.engine.tokenizer, *spec.options.values())
    return any("/" in name and not Path(name).expanduser().exists() for name in named)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
