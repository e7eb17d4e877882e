"""What there is to say about an episode, and where the runner says it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Protocol

from vla_ros.sim.commands import CommandCounts
from vla_ros.sim.env import SimObservation


class Mode(str, Enum):
    LOCKSTEP = "lockstep"
    REALTIME = "realtime"


class EpisodeState(IntEnum):
    """The values are those of EpisodeStatus.msg."""

    RESETTING = 0
    RUNNING = 1
    SUCCESS = 2
    FAILURE = 3


@dataclass(frozen=True, slots=True)
class EpisodeRequest:
    """What to begin. ``max_steps`` 0 means the task's own limit, ``instruction`` "" the task's
    own sentence; a blank one tells the policy nothing at all, which means stop."""

    task: str
    initial_state: int = 0
    seed: int = 0
    max_steps: int = 0
    instruction: str = ""

    def told(self, own: str) -> str:
        """What the policy is told, where ``own`` is the task's sentence."""
        return self.instruction.strip() if self.instruction else own


@dataclass(frozen=True, slots=True)
class EpisodeView:
    """The episode as it stands. ``reason`` is one line, empty while all is well.

    ``next_s``: after the end, seconds from it until the next begins by itself; None: on request.
    """

    state: EpisodeState
    request: EpisodeRequest
    instruction: str
    episode: int
    step: int
    max_steps: int
    achieved_rate_hz: float
    counters: CommandCounts
    reason: str = ""
    next_s: float | None = None


@dataclass(frozen=True, slots=True)
class EpisodeOptions:
    """How episodes are run. ``camera_rate_hz`` 0 renders every step (lock-step always does).

    With ``auto_reset`` the next initial state follows an episode, in real time after
    ``reset_pause_s``. ``answer_timeout_s`` is the least time before an unanswered frame is shown
    again; twice the slowest of the last answers counts where that is longer.
    """

    mode: Mode = Mode.LOCKSTEP
    auto_reset: bool = False
    reset_pause_s: float = 0.0
    camera_rate_hz: float = 0.0
    answer_timeout_s: float = 1.0


class Outlet(Protocol):
    """Where the runner's world becomes visible. All calls come from the runner's thread."""

    def clock(self, stamp_ns: int) -> None:
        """Lock-step: simulated time is now ``stamp_ns``."""

    def observation(self, stamp_ns: int, observation: SimObservation) -> None:
        """Show what is seen; every part carries the one stamp."""

    def begin(self, instruction: str, interrupted: Callable[[], bool]) -> None:
        """Wait for the policy, reset it and tell it the task. Returns early when
        ``interrupted``; what cannot be had in reasonable time is left out with a warning."""

    def changed(self, view: EpisodeView) -> None:
        """The state of the episode is another one."""

    def rejected(self, reason: str) -> None:
        """A command was not executed. Called by whoever offered it."""
