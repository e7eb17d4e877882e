"""Messages of one episode, and its figures; its film. Free of ROS; not thread-safe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from vla_ros.core.clock import SECOND, ManualClock, Moment
from vla_ros.core.errors import UserError
from vla_ros.core.types import CommandKind, Image, Inference
from vla_ros.runtime.monitor.monitor import Monitor
from vla_ros.runtime.monitor.seen import (
    CommandSeen,
    GraphReport,
    MonitorConfig,
    PublisherSeen,
    StatusSeen,
)


@dataclass(frozen=True, slots=True)
class EpisodeChange:
    """An EpisodeStatus. ``ended``: "success", "failure", or empty while it goes on.

    ``step`` and ``max_steps`` count actions. ``achieved_rate_hz``: control steps per second of wall
    time, to be ``control_rate_hz``. ``applied`` of the ``control_steps`` executed a new command of
    the policy.
    """

    number: int
    stamp_ns: int
    running: bool
    ended: str
    reason: str
    task: str
    instruction: str
    initial_state: int
    step: int
    max_steps: int
    control_steps: int
    action_rate_hz: float = 0.0
    control_rate_hz: float = 0.0
    achieved_rate_hz: float = 0.0
    applied: int = 0

    @property
    def actions_a_step(self) -> float:
        """Share of an action that a control step makes."""
        same = self.action_rate_hz == self.control_rate_hz
        return 1.0 if same else self.action_rate_hz / self.control_rate_hz


def policy_in_words(status: StatusSeen | None) -> str:
    """State of the policy, with its reason, in words."""
    return f"policy {status.state.name}: {status.reason}" if status else "no policy was heard"


LONGEST_EPISODE_S = 3600.0


@dataclass(frozen=True, slots=True)
class EpisodeFigures:
    """Figures of an episode, from its first action (without one: its first frame) to its end, or to
    now while it goes on. None: not measured; in ``report`` that is a count of 0.

    ``wall_s`` is its length by the steady clock. ``worker_restarts`` and ``blocked``, the actions
    that the gate stopped, are those within it, ``last_block`` why the last one was. ``passes`` of
    the target model an action: one that serves several frames or a chunk is shared by them.
    """

    episode: EpisodeChange | None
    status: StatusSeen | None
    report: GraphReport = GraphReport()
    wall_s: float | None = None
    worker_restarts: int | None = None
    blocked: int | None = None
    last_block: str = ""
    passes: float | None = None


class EpisodeLog:
    """Log of messages, added in any order across topics; then :meth:`measure`."""

    def __init__(self, lockstep: bool) -> None:
        self._config = MonitorConfig(window_s=LONGEST_EPISODE_S, sim_time=lockstep)
        self._commands: list[tuple[CommandSeen, Moment]] = []
        self._frames: list[tuple[int, Moment]] = []
        self._statuses: list[tuple[StatusSeen, Moment]] = []
        self._all_statuses: list[tuple[StatusSeen, Moment]] = []  # those between episodes too
        self._inferences: list[Inference] = []
        self._begin_ns = 0  # stamp from which the newest episode runs
        self._begun = False
        self._end: Moment | None = None
        self.episode: EpisodeChange | None = None

    @property
    def status(self) -> StatusSeen | None:
        """Newest status of the policy."""
        return self._statuses[-1][0] if self._statuses else None

    @property
    def counted(self) -> bool:
        """True once the policy has reported its counts since the end of the episode."""
        end = self._end
        return end is not None and any(a.steady_ns >= end.steady_ns for _, a in self._all_statuses)

    def add_episode(self, episode: EpisodeChange, arrival: Moment) -> None:
        """Add a status of the bridge; another number begins another episode."""
        if self.episode is None or self.episode.number != episode.number:
            self._begin_ns, self._begun, self._end = 0, False, None
        if episode.running and not self._begun:
            self._begin_ns, self._begun = episode.stamp_ns, True
        if episode.ended and self._end is None:
            self._end = Moment(episode.stamp_ns, arrival.steady_ns)
        self.episode = episode

    def add_status(self, status: StatusSeen, arrival: Moment) -> None:
        """Add a status of the policy. That it rests once the episode is over is no part of the
        episode; its counts by then are."""
        self._all_statuses.append((status, arrival))
        if not status.between_episodes:
            self._statuses.append((status, arrival))

    def add_command(self, command: CommandSeen, arrival: Moment) -> None:
        self._commands.append((command, arrival))

    def add_frame(self, stamp_ns: int, arrival: Moment) -> None:
        """Add a camera image, by its stamp."""
        self._frames.append((stamp_ns, arrival))

    def add_inference(self, inference: Inference) -> None:
        self._inferences.append(inference)

    def measure(self, publishers: tuple[PublisherSeen, ...], now: Moment) -> EpisodeFigures:
        """Figures of the episode. ``publishers``: writers of the action topic."""
        end = self._end or now
        commands, frames = self._commands_until(end), self._frames_until(end)
        if not (commands or frames):
            return EpisodeFigures(self.episode, self.status)
        begin = (commands or frames)[0][1].steady_ns
        last = max([end.steady_ns, *(arrival.steady_ns for _, arrival in commands[-1:])])
        clock = ManualClock(steady=begin, now=end.now_ns)
        monitor = Monitor(self._config, clock)
        monitor.publishers(publishers)
        before = [s for s in self._statuses if s[1].steady_ns <= begin] or self._statuses[:1]
        during = [s for s in self._statuses if begin < s[1].steady_ns <= last]
        events: list[tuple[int, Callable[[], None]]] = []
        events += [(a.steady_ns, partial(monitor.status, s, a)) for s, a in before[-1:] + during]
        events += [(a.steady_ns, partial(monitor.command, c, a)) for c, a in commands]
        during_frames = [f for f in frames if begin <= f[1].steady_ns <= last]
        events += [(a.steady_ns, partial(monitor.camera, f, a)) for f, a in during_frames]
        for _, take in sorted(events, key=lambda event: event[0]):
            take()
        clock.steady = last
        measured = EpisodeFigures(
            self.episode,
            self.status,
            monitor.judge().report,
            (last - begin) / SECOND,
            passes=self._passes(end),
        )
        return self._counted(measured, before[-1:], last)

    def _counted(
        self, measured: EpisodeFigures, before: list[tuple[StatusSeen, Moment]], last_ns: int
    ) -> EpisodeFigures:
        """Figures with the policy's own counts, from before the begin to its first status after the
        end."""
        if not before:
            return measured
        after = [s for s, a in self._all_statuses if a.steady_ns >= last_ns]
        first, newest = before[0][0], (after or [self._all_statuses[-1][0]])[0]
        return replace(
            measured,
            worker_restarts=newest.worker_restarts - first.worker_restarts,
            blocked=newest.actions_blocked - first.actions_blocked,
            last_block=newest.last_block,
        )

    def _passes(self, end: Moment) -> float | None:
        within = [one for one in self._inferences if self._begin_ns <= one.stamp_ns <= end.now_ns]
        passes = sum(one.target_passes for one in within)
        actions = sum(len(one.actions) for one in within)
        depth = self.status.pipeline_depth if self.status else 1
        return passes / actions / max(depth, 1) if passes and actions else None

    def _frames_until(self, end: Moment) -> list[tuple[int, Moment]]:
        """Images of the episode, by their stamps."""
        if not self._begun:
            return []
        return [f for f in self._frames if self._begin_ns <= f[0] <= end.now_ns]

    def _commands_until(self, end: Moment) -> list[tuple[CommandSeen, Moment]]:
        """Commands of the episode, from its first action on, by their stamps."""
        within = [c for c in self._commands if self._begin_ns <= c[0].published_ns <= end.now_ns]
        kinds = [command.kind for command, _ in within]
        if not self._begun or CommandKind.POLICY not in kinds:
            return []
        return within[kinds.index(CommandKind.POLICY) :]


SUFFIXES = (".gif", ".png")
MAX_FRAMES = 300  # when there are more, every second one goes
_COLORS, _SAMPLED = 255, 12  # of a palette; images that it is made from


def write_gif(path: Path, images: Sequence[Image], durations_ms: Sequence[int]) -> None:
    """An animated GIF of uint8 [height, width, 3] images that are shown for so long. OSError: it
    cannot be written.

    One palette for all, so that nothing flickers; of the widest coverage, so that a small red cube
    keeps its color beside much wood; and of images from begin to end, since a cube that one image
    hides is in another.
    """
    from PIL import Image as Pillow

    some = images[:: max(1, len(images) // _SAMPLED)]
    strip = Pillow.fromarray(np.concatenate(some))
    palette = strip.quantize(_COLORS, method=Pillow.Quantize.MAXCOVERAGE)
    small = [
        Pillow.fromarray(image).quantize(_COLORS, palette=palette, dither=Pillow.Dither.NONE)
        for image in images
    ]
    small[0].save(path, save_all=True, append_images=small[1:], duration=list(durations_ms), loop=0)


class Film:
    """Film of the camera: an animated GIF of images at even distances, or the last one as PNG.

    Raises UserError for a file name of another kind or in a folder that does not exist.
    """

    def __init__(self, path: Path) -> None:
        if path.suffix.lower() not in SUFFIXES:
            raise UserError(f"--gif {path}: the name must end in {' or '.join(SUFFIXES)}")
        if not path.absolute().parent.is_dir():
            raise UserError(f"--gif {path}: there is no folder {path.absolute().parent}")
        self.path = path
        self._animated = path.suffix.lower() == ".gif"
        self._frames: list[tuple[int, Image]] = []
        self._stride = 1
        self._seen = 0

    def wants(self) -> bool:
        """True where the next image would be kept; call it once an image, before decoding it."""
        self._seen += 1
        return not self._animated or (self._seen - 1) % self._stride == 0

    def add(self, stamp_ns: int, image: Image) -> None:
        """Keep uint8 [height, width, 3]."""
        if not self._animated:
            self._frames = [(stamp_ns, image)]
            return
        self._frames.append((stamp_ns, image))
        if len(self._frames) > MAX_FRAMES:
            self._frames = self._frames[::2]
            self._stride *= 2

    def clear(self) -> None:
        """Begin anew."""
        self._frames, self._stride, self._seen = [], 1, 0

    def save(self) -> str:
        """Write the file; returns the line that reports it, or that there was no image.

        Raises UserError when the file cannot be written.
        """
        if not self._frames:
            return f"no image was seen, {self.path} is not written"
        from PIL import Image as Pillow

        images = [image for _, image in self._frames]
        try:
            if not self._animated:
                Pillow.fromarray(images[-1]).save(self.path)
                return f"last image written to {self.path}"
            write_gif(self.path, images, self._durations_ms())
        except OSError as error:
            raise UserError(f"--gif: cannot write {self.path}: {error}") from None
        return f"{len(images)} images written to {self.path}"

    def _durations_ms(self) -> list[int]:
        """Duration of each image in real time, ms; GIF counts in hundredths of a second."""
        stamps = [stamp for stamp, _ in self._frames]
        gaps = [(b - a) / 1e6 for a, b in pairwise(stamps)]
        return [max(20, round(gap / 10) * 10) for gap in [*gaps, 1000.0]]
