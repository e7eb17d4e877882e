"""LeRobot as a row: its own interpreter in a process, since its pins exclude this project's."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

from vla_ros.benchmark.flow.row import Inputs, Spent
from vla_ros.errors import UserError

PROGRAM = Path(__file__).with_name("lerobot_program.py")


class LerobotRow:
    """Asks a process for a chunk at a time. Close it. UserError where it cannot be started."""

    def __init__(self, python: str, asked: Mapping[str, Any], inputs: Inputs) -> None:
        assert inputs.noise is not None, "LeRobot's flow policies start from noise"
        self._folder = tempfile.TemporaryDirectory()
        arrays = Path(self._folder.name) / "inputs.npz"
        np.savez(
            arrays,
            pixels=inputs.pixels.cpu().numpy(),
            ids=inputs.ids.cpu().numpy(),
            state=inputs.state.cpu().numpy(),
            noise=inputs.noise.cpu().numpy(),
        )
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed in __exit__)
        try:
            self._process = subprocess.Popen(
                [python, "-P", str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=self._errors, text=True, env=env, cwd=self._folder.name,
            )  # fmt: skip
        except OSError as error:
            raise UserError(f"LeRobot's interpreter {python} cannot be started: {error}") from error
        self.version = str(self._ask({**asked, "inputs": str(arrays)})["version"])

    def chunk(self, inputs: Inputs) -> tuple[torch.Tensor, Spent]:
        """Of the inputs that it was made with."""
        answer = self._ask({})
        return torch.tensor(answer["chunk"]), Spent(answer["cpu"], answer["wall"])

    def __enter__(self) -> LerobotRow:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()
        self._folder.cleanup()

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if line:
            found: dict[str, Any] = json.loads(line)
            return found
        self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().strip().splitlines()[-1:] or ["it said nothing"]
        self.__exit__(None, None, None)
        raise UserError(f"LeRobot's process ended: {said[0]}")
