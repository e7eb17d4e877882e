"""Messages of one episode of an evaluation, and the record that they make.

Topics overtake each other, so everything is kept first and judged by its stamps once
:meth:`EvalLog.complete` is true. Free of ROS; not thread-safe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from vla_ros.core.clock import MS, SECOND
from vla_ros.core.types import Command, CommandKind, Inference, PolicyState
from vla_ros.data.episodes.records import Job, Record, Setup
from vla_ros.data.episodes.tally import EpisodeTally, is_an_end, reason_of
from vla_ros.ros.listeners.demo_log import EpisodeChange, policy_in_words
from vla_ros.runtime.monitor.seen import StatusSeen
from vla_ros.sim.episode import Mode

SLOW = 0.95  # of the control rate: a simulation below it does not run in real time
_SLACK_NS = 25 * MS


@dataclass(frozen=True, slots=True)
class ReceivedCommand:
    """An ActionCommand, and its receipt (ROS clock)."""

    command: Command
    received_ns: int


class EvalLog:
    """Log of episode ``number`` of a bridge. ``status`` is the policy's at its begin."""

    def __init__(self, setup: Setup, number: int, status: StatusSeen | None) -> None:
        self._lockstep = setup.mode is Mode.LOCKSTEP
        self.number = number
        self.episode: EpisodeChange | None = None
        self.begin_ns = 0  # of the stamps of its frames
        self._before = self._status = self._newest = status
        self._commands: list[ReceivedCommand] = []
        self._answered: dict[int, Inference] = {}
        self._frames: list[int] = []
        self._begun = False

    def add_episode(self, episode: EpisodeChange) -> None:
        """Add a status of the bridge about this episode."""
        if episode.running and not self._begun:
            self.begin_ns, self._begun = episode.stamp_ns, True
        if self.episode is None or not self.episode.ended:
            self.episode = episode

    def add_status(self, status: StatusSeen) -> None:
        """Add a status of the policy. Its state after the episode is no part of it; its counts are
        reported only then."""
        self._newest = status
        if not self.ended and not status.between_episodes:
            self._status = status

    def add_command(self, received: ReceivedCommand) -> None:
        self._commands.append(received)

    def add_inference(self, inference: Inference) -> None:
        self._answered[inference.stamp_ns] = inference

    def add_frame(self, stamp_ns: int) -> None:
        """Add a frame: the bridge publishes one at the begin and after every step."""
        self._frames.append(stamp_ns)

    @property
    def ended(self) -> bool:
        return self.episode is not None and bool(self.episode.ended)

    @property
    def state(self) -> PolicyState | None:
        """State of the policy while the episode goes on; then the last."""
        return self._status.state if self._status else None

    @property
    def policy(self) -> str:
        """State of the policy in words."""
        return policy_in_words(self._status)

    @property
    def progress(self) -> tuple[bool, int, int]:
        """Value that changes while the episode goes on."""
        steps = self.episode.control_steps if self.episode else 0
        return self._begun, steps, len(self._frames)

    @property
    def steps(self) -> int:
        """Control steps that were received."""
        return max(0, len(self._frames_within()) - 1) if self._begun else 0

    def complete(self) -> bool:
        """True once the episode has ended and all messages that led there have come."""
        if not self.ended or self.episode is None:
            return False
        if not self._lockstep:
            return len(self._frames_within()) > self.episode.control_steps
        answers = self._answers()
        made = {h.command.stamp_ns for h in answers if h.command.kind is CommandKind.POLICY}
        return len(answers) >= self.episode.control_steps and made <= self._answered.keys()

    def step_of(self, stamp_ns: int) -> int | None:
        """Number of control steps before a frame of this stamp; None: in no episode."""
        if self.episode is None or not self._begun or not self._within(stamp_ns):
            return None
        return max(0, round((stamp_ns - self.begin_ns) * self.episode.control_rate_hz / SECOND))

    @property
    def _first_ns(self) -> int:
        """Earliest stamp of the episode's frames. In real time the first one is captured a moment
        before the bridge reports that the episode runs."""
        return self.begin_ns - (0 if self._lockstep else _SLACK_NS)

    def _within(self, stamp_ns: int) -> bool:
        """True for a frame of this stamp during the episode, not after its end."""
        over = self.ended and self.episode is not None and stamp_ns > self.episode.stamp_ns
        return stamp_ns >= self._first_ns and not over

    def record(self, job: Job, wall_s: float, broke: str = "") -> Record:
        """Record of the job.

        ``wall_s``: the episode's time where the bridge reported none. ``broke``: a failure of the
        graph, or "".
        """
        tally, episode, status = EpisodeTally(), self.episode, self._status
        steps = self._answered_steps() if self._lockstep else self._clocked_steps()
        for inference in self._inferences():
            tally.inference(inference)
            tally.spent(sum(inference.timeline.durations_ms().values()))
        for received, executed_ns in steps:
            if received is None:
                tally.idle()
                continue
            tally.command(received.command, executed_ns)
        success = episode is not None and episode.ended == "success"
        reason = broke
        if episode is not None and (self.ended or not broke):
            reason = episode.reason
        state, why = (status.state, status.reason) if status else (PolicyState.UNCONFIGURED, "")
        moved = max(tally.moved, 1 if broke else 0)  # the failure is the reason already
        record = tally.record(
            job,
            success=success,
            reason=reason_of(success, reason, state, why, moved),
            max_steps=episode.max_steps if episode else 0,
            actions_a_step=episode.actions_a_step if episode else 1.0,
            wall_s=self._wall_s(wall_s),
            decoding=status.decoding if status else "",
            pipeline_depth=status.pipeline_depth if status else 1,
            clamped=self._counted("actions_clamped"),
            error=broke or self._error(success, reason, tally.moved),
        )
        return self._by_the_bridge(record)

    def _answers(self) -> list[ReceivedCommand]:
        """Lock-step: the first answer to every frame that a step followed, in order."""
        end = self.episode.stamp_ns if self.episode and self.episode.ended else None
        first: dict[int, ReceivedCommand] = {}
        for received in self._commands:
            frame = received.command.latest_ns
            if frame >= self.begin_ns and (end is None or frame < end):
                first.setdefault(frame, received)
        return [first[frame] for frame in sorted(first)]

    def _answered_steps(self) -> Iterator[tuple[ReceivedCommand | None, int]]:
        """Command that each step executed, and when: the world waits for it."""
        for received in self._answers():
            yield received, received.command.latest_ns

    def _frames_within(self) -> list[int]:
        return sorted({frame for frame in self._frames if self._within(frame)})

    def _clocked_steps(self) -> Iterator[tuple[ReceivedCommand | None, int]]:
        """Real time: a step takes the newest action that came since the step before it."""
        frames = self._frames_within()
        commands = deque(sorted(self._commands, key=lambda received: received.received_ns))
        while commands and frames and commands[0].received_ns <= frames[0]:
            commands.popleft()
        for stamp in frames[1:]:
            taken: ReceivedCommand | None = None
            while commands and commands[0].received_ns <= stamp:
                new = commands.popleft()
                # "Nothing new" replaces no action that still waits.
                if taken is None or new.command.kind is not CommandKind.HELD:
                    taken = new
            yield taken, stamp

    def _inferences(self) -> list[Inference]:
        """Inferences of the frames that a step followed. A pipeline answers an old frame when a
        newer one comes; an answer that comes with the frame at the end moved nothing."""
        episode, status = self.episode, self._status
        last = max(self._answered, default=0)
        if episode is not None and episode.ended and status is not None:
            waiting = (status.pipeline_depth - 1) * SECOND / episode.action_rate_hz
            last = episode.stamp_ns - round(waiting) - 1
        return [self._answered[s] for s in sorted(self._answered) if self.begin_ns <= s <= last]

    def _wall_s(self, otherwise_s: float) -> float:
        episode = self.episode
        if episode is None or not episode.ended or episode.achieved_rate_hz <= 0:
            return otherwise_s
        return episode.control_steps / episode.achieved_rate_hz

    def _counted(self, counter: str) -> int:
        """Growth of a counter of the policy."""
        before, now = ((getattr(s, counter) if s else 0) for s in (self._before, self._newest))
        return max(0, now - before)

    def _error(self, success: bool, reason: str, moved: int) -> str:
        restarts, episode = self._counted("worker_restarts"), self.episode
        if restarts:
            return f"the policy's worker was lost {restarts} times"
        if not success and not is_an_end(reason):
            return reason
        if self._lockstep and episode is not None and moved != episode.applied:
            return f"{episode.applied} actions were executed, {moved} were heard"
        return ""

    def _by_the_bridge(self, record: Record) -> Record:
        """Real time: record with the bridge's own counts of steps, and whether the simulation kept
        up. One that did not made the task easier: the world was slower."""
        episode = self.episode
        if self._lockstep or episode is None or not episode.ended:
            return record
        share = episode.actions_a_step
        rate = episode.applied * share / record.wall_s if record.wall_s > 0 else 0.0
        held = round((episode.control_steps - episode.applied) * share)
        record = replace(record, steps=episode.step, held=held, rate_hz=rate)
        wanted, achieved = episode.control_rate_hz, episode.achieved_rate_hz
        if achieved >= SLOW * wanted or not episode.control_steps:
            return record
        slow = f"the simulation ran at {achieved:.1f} of {wanted:g} Hz"
        return replace(record, reason=f"{record.reason}; {slow}")
