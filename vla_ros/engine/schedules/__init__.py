"""Decoding schedules: each is one way of filling packed passes."""

from __future__ import annotations

from vla_ros.engine.model import VLAModel
from vla_ros.engine.options import EngineOptions
from vla_ros.engine.schedules.autoregressive import Autoregressive
from vla_ros.engine.schedules.base import Decoded, Request, Schedule

__all__ = ["Decoded", "Request", "Schedule", "make_schedule"]


def make_schedule(
    model: VLAModel, options: EngineOptions, tokens: int, max_prompt: int
) -> Schedule:
    """The schedule that the options name, for actions of ``tokens`` tokens."""
    if options.schedule == "autoregressive":
        return Autoregressive(model, tokens, max_prompt)
    raise ValueError(f"schedule {options.schedule!r} is not available")
