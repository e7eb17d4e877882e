"""Stage marks of one request, without stopping the device.

On a CPU a mark reads the steady clock. On CUDA, where work runs behind the caller, a mark is
an event; the events become steady times when the result has been read and the device is idle.
"""

from __future__ import annotations

import torch

from vla_ros.core import Timeline
from vla_ros.engine.packed.devices import on_device
from vla_ros.timing import MS, Clock


class StageTimer:
    """Marks of one request. ``resolve`` is called once, after the result has been read."""

    def __init__(self, timeline: Timeline, clock: Clock, device: torch.device) -> None:
        self._timeline, self._clock = timeline, clock
        self._device, self._cuda = device, device.type == "cuda"
        self._events: list[tuple[str, torch.cuda.Event]] = []

    def mark(self, stage: str) -> None:
        """The stage ends here."""
        if not self._cuda:
            self._timeline = self._timeline.mark(stage, self._clock.steady_ns())
            return
        with on_device(self._device):
            event = torch.cuda.Event(enable_timing=True)
            event.record()
        self._events.append((stage, event))

    def resolve(self) -> Timeline:
        """The finished timeline."""
        if not self._events:
            return self._timeline
        last = self._events[-1][1]
        last.synchronize()
        end = self._clock.steady_ns()
        timeline = self._timeline
        for stage, event in self._events:
            at = end - round(event.elapsed_time(last) * MS)
            timeline = timeline.mark(stage, max(at, timeline.end_ns))
        return timeline
