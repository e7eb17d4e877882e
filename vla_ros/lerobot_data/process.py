"""LeRobot's Python as a process: requests go in, answers come out, and it ends with us."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from vla_ros.errors import UserError
from vla_ros.lerobot_data.wire import Array, Message, receive, send
from vla_ros.policies.interpreter import lerobot_python

#: Our site-packages hold binaries of another Python: only the one folder may be seen.
_BOOT = """
import sys
from importlib.util import module_from_spec, spec_from_file_location
folder = sys.argv[1]
spec = spec_from_file_location("vla_ros", folder + "/__init__.py",
                               submodule_search_locations=[folder])
sys.modules["vla_ros"] = module_from_spec(spec)
spec.loader.exec_module(sys.modules["vla_ros"])
from vla_ros.lerobot_data.served import main
sys.exit(main())
"""
_PACKAGE = Path(__file__).resolve().parent.parent
SETUP = (
    "LeRobot is not there: `make lerobot` (or `vla-ros lerobot setup`) installs it beside this"
    " environment, or name a Python that has lerobot[dataset] with --python"
)


def python_of(given: str = "") -> str:
    """The interpreter that LeRobot is in: ``given``, else setup's, else this one. UserError: none
    has it, and what to do."""
    if given:
        path = Path(given).expanduser()
        if not path.is_file():
            raise UserError(f"--python {given}: there is no such program")
        return str(path)
    if (path := lerobot_python()).is_file():
        return str(path)
    if importlib.util.find_spec("lerobot") is not None:
        return sys.executable
    raise UserError(SETUP)


class LeRobot:
    """A conversation with LeRobot's Python. Use it as a context manager."""

    def __init__(self, python: str) -> None:
        self._python = python
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        # The parent's own search path is for another Python; nothing here needs the hub.
        env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
        env |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1", "SVT_LOG": "1"}
        self._process = subprocess.Popen(
            [python, "-I", "-c", _BOOT, str(_PACKAGE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=env,
        )

    def __enter__(self) -> LeRobot:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(30.0 if kind is None else 0.0)

    def close(self, patience_s: float) -> None:
        """Let it end by itself for a while, then kill it."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # it is gone already
                    stream.close()
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def ask(
        self, kind: str, fields: Mapping[str, Any], arrays: Mapping[str, Array] | None = None
    ) -> None:
        """Send one message. UserError: it has failed; its last words."""
        assert self._process.stdin is not None
        try:
            send(self._process.stdin, Message(kind, fields, arrays or {}))
        except OSError:
            self.hear("")  # raises with what it said before it died
            raise UserError(self._obituary()) from None

    def hear(self, *wanted: str) -> Message:
        """The next answer, one of ``wanted``. UserError: it failed, and why."""
        assert self._process.stdout is not None
        try:
            message = receive(self._process.stdout)
        except EOFError:
            message = None
        if message is None:
            raise UserError(self._obituary())
        if message.kind == "missing":
            raise UserError(
                f"{self._python} lacks what LeRobot's data sets need ({message.fields['line']}):"
                " run `vla-ros lerobot setup` again, or pip install 'lerobot[dataset]' there"
            )
        if message.kind == "failed":
            raise UserError(f"LeRobot refused: {message.fields['line']}")
        if message.kind not in wanted:
            return self.hear(*wanted)
        return message

    def _obituary(self) -> str:
        self._process.wait()
        self._log.seek(0)
        words = self._log.read().decode(errors="replace").strip().splitlines()
        last = words[-1] if words else f"exit status {self._process.returncode}"
        return f"LeRobot's Python ended ({self._python}): {last[:300]}"
