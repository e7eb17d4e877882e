"""What was heard of one episode of an evaluation, and the record that it makes.

Topics overtake each other, so everything is written down first and judged by its stamps when
:meth:`EvalLog.complete` says that nothing is missing. Free of ROS; not thread-safe.
"""

from __future__ import annotations

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
    """One ActionCommand, and when it came (ROS clock)."""

    command: Command
    received_ns: int


class EvalLog:
    """Episode ``number`` of a bridge. ``status`` is the policy's when the episode began."""

    def __init__(self, setup: Setup, number: int, status: StatusSeen | None) -> None:
        self._lockstep = setup.mode is Mode.LOCKSTEP
        self.number = number
        self.episode: EpisodeChange | None = None
        self.begin_ns = 0  # of the stamps of its frames
        self._before = self._status = self._newest = status
        self._commands: list[ReceivedCommand] = []
        self._said: dict[int, Inference] = {}
        self._frames: list[int] = []
        self._begun = False

    # What is heard

    def add_episode(self, episode: EpisodeChange) -> None:
        """A status of the bridge about this episode."""
        if episode.running and not self._begun:
            self.begin_ns, self._begun = episode.stamp_ns, True
        if self.episode is None or not self.episode.ended:
            self.episode = episode

    def add_status(self, status: StatusSeen) -> None:
        """The policy's. What it does once the episode is over is no part of it; its counters
        are told only then."""
        self._newest = status
        if not self.ended and not status.between_episodes:
            self._status = status

    def add_command(self, heard: ReceivedCommand) -> None:
        self._commands.append(heard)

    def add_inference(self, inference: Inference) -> None:
        self._said[inference.stamp_ns] = inference

    def add_frame(self, stamp_ns: int) -> None:
        """The world was shown: at the begin and after every step."""
        self._frames.append(stamp_ns)

    # How it stands

    @property
    def ended(self) -> bool:
        return self.episode is not None and bool(self.episode.ended)

    @property
    def state(self) -> PolicyState | None:
        """The policy's, while the episode goes on; then the last."""
        return self._status.state if self._status else None

    @property
    def policy(self) -> str:
        """The same for a person."""
        return policy_in_words(self._status)

    @property
    def progress(self) -> tuple[bool, int, int]:
        """Changes while the episode goes on."""
        return self._begun, self.episode.step if self.episode else 0, len(self._frames)

    @property
    def steps(self) -> int:
        """Control steps that were seen."""
        return max(0, len(self._frames_within()) - 1) if self._begun else 0

    def complete(self) -> bool:
        """The episode has ended, and what led there has come."""
        if not self.ended or self.episode is None:
            return False
        if not self._lockstep:
            return len(self._frames_within()) > self.episode.step
        answers = self._answers()
        made = {h.command.stamp_ns for h in answers if h.command.kind is CommandKind.POLICY}
        return len(answers) >= self.episode.step and made <= self._said.keys()

    def step_of(self, stamp_ns: int) -> int | None:
        """After how many control steps a frame of this stamp was seen; None: in no episode."""
        if self.episode is None or not self._begun or not self._within(stamp_ns):
            return None
        return max(0, round((stamp_ns - self.begin_ns) * self.episode.control_rate_hz / SECOND))

    @property
    def _first_ns(self) -> int:
        """No frame of the episode is older. In real time the first one is captured a moment
        before the bridge says that the episode runs."""
        return self.begin_ns - (0 if self._lockstep else _SLACK_NS)

    def _within(self, stamp_ns: int) -> bool:
        """Whether a frame of this stamp was shown during the episode, and not after its end."""
        over = self.ended and self.episode is not None and stamp_ns > self.episode.stamp_ns
        return stamp_ns >= self._first_ns and not over

    # The record

    def record(self, job: Job, wall_s: float, broke: str = "") -> Record:
        """What came of the job.

        ``wall_s``: the episode's time where the bridge did not say. ``broke``: what went wrong
        with the graph, "" where nothing did.
        """
        tally, episode, status = EpisodeTally(), self.episode, self._status
        steps = self._answered_steps() if self._lockstep else self._clocked_steps()
        for inference in self._inferences():
            tally.inference(inference)
            tally.spent(sum(inference.timeline.durations_ms().values()))
        for heard, executed_ns in steps:
            if heard is None:
                tally.idle()
                continue
            tally.command(heard.command, executed_ns)
        success = episode is not None and episode.ended == "success"
        said = broke
        if episode is not None and (self.ended or not broke):
            said = episode.reason
        state, why = (status.state, status.reason) if status else (PolicyState.UNCONFIGURED, "")
        moved = max(tally.moved, 1 if broke else 0)  # what broke is said already
        record = tally.record(
            job,
            success=success,
            reason=reason_of(success, said, state, why, moved),
            max_steps=episode.max_steps if episode else 0,
            wall_s=self._wall_s(wall_s),
            decoding=status.decoding if status else "",
            pipeline_depth=status.pipeline_depth if status else 1,
            clamped=self._counted("actions_clamped"),
            error=broke or self._error(success, said, tally.moved),
        )
        return self._by_the_bridge(record)

    def _answers(self) -> list[ReceivedCommand]:
        """Lock-step: the first answer to every frame that a step followed, in order."""
        end = self.episode.stamp_ns if self.episode and self.episode.ended else None
        first: dict[int, ReceivedCommand] = {}
        for heard in self._commands:
            frame = heard.command.latest_ns
            if frame >= self.begin_ns and (end is None or frame < end):
                first.setdefault(frame, heard)
        return [first[frame] for frame in sorted(first)]

    def _answered_steps(self) -> Iterator[tuple[ReceivedCommand | None, int]]:
        """The command that each step executed, and when: the world waits for it."""
        for heard in self._answers():
            yield heard, heard.command.latest_ns

    def _frames_within(self) -> list[int]:
        return sorted({frame for frame in self._frames if self._within(frame)})

    def _clocked_steps(self) -> Iterator[tuple[ReceivedCommand | None, int]]:
        """Real time: a step takes the newest action that came since the step before it."""
        frames = self._frames_within()
        commands = sorted(self._commands, key=lambda heard: heard.received_ns)
        place = 0
        while place < len(commands) and frames and commands[place].received_ns <= frames[0]:
            place += 1
        for stamp in frames[1:]:
            taken: ReceivedCommand | None = None
            while place < len(commands) and commands[place].received_ns <= stamp:
                new = commands[place]
                place += 1
                # "Nothing new" replaces no action that still waits.
                if taken is None or new.command.kind is not CommandKind.HELD:
                    taken = new
            yield taken, stamp

    def _inferences(self) -> list[Inference]:
        """Of the frames that a step followed. A pipeline says of an old frame what it says when
        a newer one comes; what comes with the frame at the end is of no use."""
        episode, status = self.episode, self._status
        last = max(self._said, default=0)
        if episode is not None and episode.ended and status is not None:
            last = episode.stamp_ns - (status.pipeline_depth - 1) * status.period_ns - 1
        return [self._said[s] for s in sorted(self._said) if self.begin_ns <= s <= last]

    def _wall_s(self, otherwise_s: float) -> float:
        episode = self.episode
        if episode is None or not episode.ended or episode.achieved_rate_hz <= 0:
            return otherwise_s
        return episode.step / episode.achieved_rate_hz

    def _counted(self, counter: str) -> int:
        """How much a counter of the policy grew."""
        before, now = ((getattr(s, counter) if s else 0) for s in (self._before, self._newest))
        return max(0, now - before)

    def _error(self, success: bool, said: str, moved: int) -> str:
        restarts, episode = self._counted("worker_restarts"), self.episode
        if restarts:
            return f"the policy's worker was lost {restarts} times"
        if not success and not is_an_end(said):
            return said
        if self._lockstep and episode is not None and moved != episode.applied:
            return f"{episode.applied} actions were executed, {moved} were heard"
        return ""

    def _by_the_bridge(self, record: Record) -> Record:
        """Real time: the bridge itself knows best which steps had an action, and whether the
        simulation kept up. One that did not made the task easier: the world was slower."""
        episode = self.episode
        if self._lockstep or episode is None or not episode.ended:
            return record
        rate = episode.applied / record.wall_s if record.wall_s > 0 else 0.0
        record = replace(
            record, steps=episode.step, held=episode.step - episode.applied, rate_hz=rate
        )
        wanted, achieved = episode.control_rate_hz, episode.achieved_rate_hz
        if achieved >= SLOW * wanted or not episode.step:
            return record
        slow = f"the simulation ran at {achieved:.1f} of {wanted:g} Hz"
        return replace(record, reason=f"{record.reason}; {slow}")
