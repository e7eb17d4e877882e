"""A sitting of training: when it ends, and the line that says how far it is."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from vla_ros.console.progress import Progress

if TYPE_CHECKING:
    from vla_ros.train.trainer import Progress as Step


class Stop:
    """Whether to end this sitting: its time is over, or Ctrl-C or SIGTERM came."""

    def __init__(self, minutes: float | None) -> None:
        self._end = time.monotonic() + 60 * minutes if minutes else float("inf")
        self.asked = False
        self._before = {
            number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)
        }

    def _ask(self, number: int, frame: object) -> None:
        if self.asked:
            raise KeyboardInterrupt  # twice: at once
        self.asked = True

    def __call__(self) -> bool:
        return self.asked or time.monotonic() >= self._end

    def restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class Show:
    """The line that says how far a run is; losses are smoothed, the speed is in samples."""

    def __init__(self, progress: Progress, steps: int) -> None:
        self._progress, self._steps = progress, steps
        self._began = False
        self._loss = self._patch = self._place = self._error = float("nan")

    def __call__(self, step: Step) -> None:
        if not self._began:
            self._began = True
            self._loss, self._error = step.loss, step.error
            self._patch, self._place = step.patch_loss, step.place_loss
        self._loss += 0.05 * (step.loss - self._loss)
        self._patch += 0.05 * (step.patch_loss - self._patch)
        self._place += 0.05 * (step.place_loss - self._place)
        self._error += 0.05 * (step.error - self._error)
        said = f"loss {self._loss:.3f} error {self._error:.3f} {step.samples_per_s:.0f}/s"
        said += f" patch {self._patch:.3f} place {self._place:.3f}"
        self._progress.update("train", said, step.step, self._steps)
