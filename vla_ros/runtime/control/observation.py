"""From separate streams to one observation: the parts must be of the same instant.

Messages come late, each stream by another time, and some not at all. So images wait, shortly, for
the parts they lack, and parts are kept, shortly, for the images that are still under way. Images
and ground truth are taken as they are, the nearest one; numbers between two samples are
interpolated linearly, poses linearly and along the shorter arc.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from vla_ros.core.clock import MS, SECOND, Moment
from vla_ros.core.types import Floats, Image, Observation, Pose
from vla_ros.runtime.safety import Limits

T = TypeVar("T")

WRIST_IMAGE = "wrist_image"  # the part that is the wrist camera
WAITING = 32  # images that wait at most
IMAGES = 64  # kept while images wait for them
IMAGE_BYTES = 48 << 20  # of one camera: eight of 1080p
STATES = 4096  # 20 s at 200 Hz
LIBERO_STATE = 8  # values of libero_oft
_SHARED_NS = 1000  # observations that may share their oldest image
_QUARTER_TURN = (float(np.sqrt(0.5)), 0.0, 0.0, float(np.sqrt(0.5)))  # about x, as x y z w
_FROZEN_FRAMES = 3
_FROZEN_NS = SECOND
_STEP_NS = 5 * MS  # two clocks that are read on a busy machine differ by less
_SLEW = 0.1  # of the time that passes; chrony's default allows 0.083

# One stream


@dataclass(frozen=True, slots=True)
class StampedValue(Generic[T]):
    """A value and the stamp it is of, in nanoseconds."""

    stamp_ns: int
    value: T


class History(Generic[T]):
    """The newest ``limit`` samples of one stream, in the order of their stamps, so that late
    messages still find each other.

    A sample of a stamp that is there already replaces it. A stamp that lies more than ``back_ns``
    before the newest one is a clock that was set back: what was there is void. ``most_bytes``: of
    arrays, all together; the newest two stay. Not thread-safe.
    """

    def __init__(self, limit: int, back_ns: int = 10_000_000_000, most_bytes: int = 0) -> None:
        self._limit, self._most_bytes = limit, most_bytes
        self._back_ns = back_ns
        self._stamps: list[int] = []
        self._values: list[T] = []

    def __len__(self) -> int:
        return len(self._stamps)

    def add(self, stamp_ns: int, value: T) -> None:
        """Take in a sample; samples may come in any order."""
        if self._stamps and stamp_ns < self._stamps[-1] - self._back_ns:
            self.clear()
        at = bisect_left(self._stamps, stamp_ns)
        if at < len(self._stamps) and self._stamps[at] == stamp_ns:
            self._values[at] = value
            return
        self._stamps.insert(at, stamp_ns)
        self._values.insert(at, value)
        self._cut(len(self._stamps) - self._limit)
        while self._most_bytes and len(self._values) > 2 and self._bytes > self._most_bytes:
            self._cut(1)

    @property
    def _bytes(self) -> int:
        return sum(map(_size, self._values))

    @property
    def newest(self) -> StampedValue[T] | None:
        """The last one by its stamp."""
        return self._sample(-1) if self._stamps else None

    def around(self, stamp_ns: int) -> tuple[StampedValue[T] | None, StampedValue[T] | None]:
        """The last sample up to this stamp and the first one from it on: twice the same where
        there is one of exactly this stamp."""
        at = bisect_left(self._stamps, stamp_ns)
        after = self._sample(at) if at < len(self._stamps) else None
        if after is not None and after.stamp_ns == stamp_ns:
            return after, after
        return (self._sample(at - 1) if at else None), after

    def nearest(self, stamp_ns: int) -> StampedValue[T] | None:
        """The sample closest to this stamp, the later one of two; None before the first."""
        before, after = self.around(stamp_ns)
        if before is None or after is None:
            return before or after
        return after if after.stamp_ns - stamp_ns <= stamp_ns - before.stamp_ns else before

    def clear(self) -> None:
        """Forget every sample."""
        self._stamps.clear()
        self._values.clear()

    def forget(self, before_ns: int) -> None:
        """Forget older samples, but for the newest of them: it may be a neighbor yet."""
        self._cut(bisect_left(self._stamps, before_ns) - 1)

    def _sample(self, at: int) -> StampedValue[T]:
        return StampedValue(self._stamps[at], self._values[at])

    def _cut(self, count: int) -> None:
        if count > 0:
            del self._stamps[:count]
            del self._values[:count]


def _size(value: object) -> int:
    """Bytes of an image; anything else takes little."""
    return int(getattr(value, "nbytes", 0))


class MissingReason(NamedTuple):
    """Reason for which a stream has nothing for an image: silent, apart, quiet, names or size, and
    the end of a line that begins with the stream's name."""

    kind: str
    text: str


class JoinedStream(Protocol):
    """A stream that images are joined with. It is *there* for an image where one of its samples
    lies within the slop of the image's stamp. Not thread-safe."""

    def add(self, stamp_ns: int, value: Any) -> None:
        """Take in a message."""
        ...

    def at(self, stamp_ns: int, slop_ns: int) -> StampedValue[Any] | None:
        """The value for an image of this stamp and the stamp of the nearest sample it rests on;
        None where there is none."""
        ...

    def lacks(self, stamp_ns: int) -> MissingReason:
        """The reason for which there is none."""
        ...

    def forget(self, before_ns: int) -> None:
        """Forget samples that only older images could need."""
        ...

    def clear(self) -> None:
        """Forget everything: a clock was set back."""
        ...


class Nearest(Generic[T]):
    """Stream of values that cannot be interpolated: the nearest one. ``most_bytes``: of images."""

    def __init__(self, limit: int, most_bytes: int = 0) -> None:
        self._history: History[T] = History(limit, most_bytes=most_bytes)

    def add(self, stamp_ns: int, value: T) -> None:
        self._history.add(stamp_ns, value)

    def at(self, stamp_ns: int, slop_ns: int) -> StampedValue[T] | None:
        return within(self._history.nearest(stamp_ns), stamp_ns, slop_ns)

    def lacks(self, stamp_ns: int) -> MissingReason:
        return gap(self._history.nearest(stamp_ns), stamp_ns)

    def forget(self, before_ns: int) -> None:
        self._history.forget(before_ns)

    def clear(self) -> None:
        self._history.clear()


class Poses(Nearest[Pose]):
    """Stream of a moving frame's poses, interpolated between two samples.

    Of a rotation's two quaternions, q and -q, it gives the one nearer to the one before, whichever
    the driver has, so that a vector made of it does not flip from frame to frame. ``task``: the
    number of the task. The first of each is on the side of a quarter turn about x, which lies
    between no turn (w = 1) and the half turn of LIBERO's hand at its start (x = 1): MuJoCo's
    quaternions, from joint to joint, are continuous from there on.
    """

    def __init__(self, task: Callable[[], int] = lambda: 0) -> None:
        super().__init__(STATES)
        self._task, self._of = task, task()
        self._last = _QUARTER_TURN

    def at(self, stamp_ns: int, slop_ns: int) -> StampedValue[Pose] | None:
        found = super().at(stamp_ns, slop_ns)
        if found is None:
            return None
        before, after = self._history.around(stamp_ns)
        if before is None or after is None:
            return self._continued(found.stamp_ns, found.value)
        share = share_of(before.stamp_ns, after.stamp_ns, stamp_ns)
        return self._continued(found.stamp_ns, between(before.value, after.value, share))

    def clear(self) -> None:
        super().clear()
        self._last = _QUARTER_TURN

    def _continued(self, stamp_ns: int, pose: Pose) -> StampedValue[Pose]:
        if (task := self._task()) != self._of:
            self._of, self._last = task, _QUARTER_TURN
        x, y, z, w = pose.quaternion
        if np.dot(pose.quaternion, self._last) < 0.0:
            x, y, z, w = -x, -y, -z, -w
        self._last = (x, y, z, w)
        return StampedValue(stamp_ns, Pose(pose.position, self._last))


def between(low: Pose, high: Pose, share: float) -> Pose:
    """The pose at ``share`` of the way: positions linearly, rotations by slerp on the shorter
    arc (Shoemake 1985). Quaternions of length 1."""
    position = np.array(low.position) * (1.0 - share) + np.array(high.position) * share
    first, second = np.array(low.quaternion), np.array(high.quaternion)
    cosine = float(first @ second)
    if cosine < 0.0:
        second, cosine = -second, -cosine
    angle = float(np.arccos(min(cosine, 1.0)))
    if angle < 1e-6:
        mixed = first + share * (second - first)
    else:
        mixed = np.sin((1.0 - share) * angle) * first + np.sin(share * angle) * second
    mixed = mixed / np.linalg.norm(mixed)
    x, y, z = position.tolist()
    qx, qy, qz, qw = mixed.tolist()
    return Pose((x, y, z), (qx, qy, qz, qw))


def gap(nearest: StampedValue[Any] | None, stamp_ns: int) -> MissingReason:
    """Distance of a stream's nearest sample from an image, as a reason."""
    if nearest is None:
        return MissingReason("silent", "has said nothing yet")
    apart = nearest.stamp_ns - stamp_ns
    side = "newer" if apart > 0 else "older"
    return MissingReason(
        "apart", f"is {abs(apart) / MS:.1f} ms {side} than the image at its nearest"
    )


def within(sample: StampedValue[T] | None, stamp_ns: int, slop_ns: int) -> StampedValue[T] | None:
    return sample if sample is not None and abs(sample.stamp_ns - stamp_ns) <= slop_ns else None


def share_of(before_ns: int, after_ns: int, stamp_ns: int) -> float:
    """Share of the way between two stamps at which a third lies, from 0 to 1."""
    return (stamp_ns - before_ns) / (after_ns - before_ns) if after_ns > before_ns else 0.0


# The robot's state

#: The values of an observation's streams by name -> the policy's proprio.
Layout = Callable[[Mapping[str, Any]], Floats | None]


def as_joints(values: Mapping[str, Any]) -> Floats | None:
    """Proprio of joints in their order; None where none are asked for."""
    joints: Floats | None = values.get("joint_states")
    return joints


def libero_oft(values: Mapping[str, Any]) -> Floats:
    """Proprio of LIBERO's OFT checkpoints, float64 [8]: the end effector's position [3] in m, its
    rotation as axis-angle [3] in rad, two fingers [2] in m. A single finger joint stands for both
    of a parallel gripper: q, -q.

    Source: openvla-oft ``run_libero_eval.py`` (``prepare_observation``): ``robot0_eef_pos``,
    ``quat2axisangle(robot0_eef_quat)``, ``robot0_gripper_qpos``.
    """
    pose: Pose = values["end_effector_pose"]
    fingers: Floats = values["joint_states"]
    if len(fingers) == 1:
        fingers = np.array([fingers[0], -fingers[0]])
    return np.concatenate((pose.position, axis_angle(pose.quaternion), fingers))


def axis_angle(quaternion: tuple[float, float, float, float]) -> Floats:
    """Rotation vector [3] in rad of a quaternion x, y, z, w, as robosuite's ``quat2axisangle``
    has it: the angle is 2 acos(w), from 0 to 2 pi. The sign of the quaternion counts, as there:
    see :class:`Poses`."""
    x, y, z, w = quaternion
    w = min(1.0, max(-1.0, w))
    sine = float(np.sqrt(1.0 - w * w))
    if sine < 1e-9:
        return np.zeros(3)
    return np.array([x, y, z]) * (2.0 * float(np.arccos(w)) / sine)


@dataclass(frozen=True, slots=True)
class ProprioLayout:
    """A layout of proprio. ``size``: values that it has; 0: as many as there are joints.
    ``joints``: numbers of joints that it takes; empty: any. ``pose``: it takes the end effector's
    pose."""

    make: Layout
    size: int = 0
    joints: tuple[int, ...] = ()
    pose: bool = False


LAYOUTS = {
    "joints": ProprioLayout(as_joints),
    "libero_oft": ProprioLayout(libero_oft, size=LIBERO_STATE, joints=(1, 2), pose=True),
}


# Joining them


@dataclass(frozen=True, slots=True)
class StreamMessage(Generic[T]):
    """A message of a stream: its stamp, its receipt, its content."""

    stamp_ns: int
    received: Moment
    value: T


@dataclass(frozen=True, slots=True)
class PairingWindow:
    """Tolerance of pairing. ``slop_ns``: how far the stamps of one observation may lie apart.
    ``wait_ns``: images of an older stamp than this wait no longer."""

    slop_ns: int
    wait_ns: int


@dataclass(frozen=True, slots=True)
class LostImage:
    """An image that found no partner: the stream it lacked, the reason in a line, and its kind:
    that of the :class:`MissingReason`, "order" where it came too late itself, or "clock"."""

    stream: str
    reason: str
    kind: str


_SET_BACK = LostImage("image", "stamped before the clock was set back", "clock")


class Assembler:
    """Join of camera images with the other streams of a policy; the newest complete set wins.

    An image is complete as soon as every part has a sample within the slop of its stamp,
    whichever message came last. It waits for that until it is too old or a newer image is
    complete. The stamp of an observation is that of its oldest image; where two in a row rest
    on the same one the second is stamped a nanosecond later, as no two may have one name. Equal
    stamps, as a simulation gives them, join exactly one way. ``more_cameras``: which parts are
    further cameras, and their roles. Not thread-safe.

    Of a clock that was set back everything from before is void, or an image that waits would
    meet, seconds later, parts that only bear its stamp.
    """

    def __init__(
        self,
        window: Callable[[], PairingWindow],
        parts: Mapping[str, JoinedStream],
        layout: Layout = as_joints,
        more_cameras: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._window = window
        self._parts = dict(parts)
        self._layout = layout
        self._more = dict(more_cameras)
        self._image_parts = [name for name in self._parts if name in (WRIST_IMAGE, *self._more)]
        self._waiting: dict[int, StreamMessage[Image]] = {}  # by stamp
        self._lost: list[LostImage] = []
        self._last = (0, 0)  # stamps of the newest observation and of its main image
        self._newest = (0, 0)  # stamp of the newest image that was answered, and when it came
        self._newest_receipt: Moment | None = None  # of all messages

    def image(self, part: StreamMessage[Image]) -> Observation | None:
        """Take in a main camera image; returns the observation if nothing is missing.

        One that comes after a newer one was answered is lost: its parts may be of other stamps, so
        that its observation would look newer. A clock that is set back overtakes nothing.
        """
        if self._is_void(part.received):
            self._lost.append(_SET_BACK)
            return None
        newest_ns, came_ns = self._newest
        late_ns = newest_ns - part.stamp_ns
        if late_ns > 0 and part.stamp_ns > 0 and part.received.now_ns >= came_ns:
            self._lost.append(LostImage("image", f"out of order by {late_ns / MS:.1f} ms", "order"))
            return None
        self._waiting[part.stamp_ns] = part
        while len(self._waiting) > max(2, min(WAITING, IMAGE_BYTES // max(1, _size(part.value)))):
            self._give_up(min(self._waiting), self._window().slop_ns)
        return self._complete(part.received)

    def add(self, name: str, part: StreamMessage[Any]) -> Observation | None:
        """Take in a message of another stream; returns the observation that it completes."""
        if self._is_void(part.received):
            return None
        self._parts[name].add(part.stamp_ns, part.value)
        return self._complete(part.received)

    def lost(self) -> list[LostImage]:
        """Images that were given up since this was asked last."""
        lost, self._lost = self._lost, []
        return lost

    def _is_void(self, received: Moment) -> bool:
        """True of a message from before the clock was set back. The first one from after that makes
        void what was there. Threads deliver out of turn; the steady clock decides."""
        newest = self._newest_receipt
        if newest is None:
            self._newest_receipt = received
            return False
        if received.steady_ns < newest.steady_ns:
            return received.now_ns > newest.now_ns + _STEP_NS
        if received.now_ns < newest.now_ns - _STEP_NS:
            self._lost += [_SET_BACK] * len(self._waiting)
            self._waiting.clear()
            for part in self._parts.values():
                part.clear()
        self._newest_receipt = received
        return False

    def _complete(self, now: Moment) -> Observation | None:
        """The newest observation that can be made; images up to it are used up."""
        window = self._window()
        for stamp, image in sorted(self._waiting.items()):
            if image.received.now_ns < now.now_ns and now.now_ns - stamp > window.wait_ns:
                self._give_up(stamp, window.slop_ns)
        if not self._waiting:  # an image that comes now is of now: older parts fit none
            for name in self._image_parts:
                self._parts[name].forget(now.now_ns - window.wait_ns - window.slop_ns)
        for stamp in sorted(self._waiting, reverse=True):
            found = self._find(stamp, window.slop_ns)
            if found is None:
                continue
            image = self._waiting.pop(stamp)
            for older in [s for s in self._waiting if s < stamp]:
                self._give_up(older, window.slop_ns)
            for part in self._parts.values():
                part.forget(stamp - window.slop_ns)
            return self._observation(image, found)
        return None

    def _find(self, stamp_ns: int, slop_ns: int) -> dict[str, StampedValue[Any]] | None:
        found = {}
        for name, part in self._parts.items():
            sample = part.at(stamp_ns, slop_ns)
            if sample is None:
                return None
            found[name] = sample
        return found

    def _give_up(self, stamp_ns: int, slop_ns: int) -> None:
        """Give up an image; one that lacks nothing but was overtaken by a newer one is not lost."""
        del self._waiting[stamp_ns]
        for name, part in self._parts.items():
            if part.at(stamp_ns, slop_ns) is None:
                kind, text = part.lacks(stamp_ns)
                late = kind not in ("size", "names")  # a message that came is not late too
                within = f"no {name} within {slop_ns / MS:.1f} ms of the image: " if late else ""
                self._lost.append(LostImage(name, f"{within}{name} {text}", kind))
                return

    def _observation(
        self, image: StreamMessage[Image], found: Mapping[str, StampedValue[Any]]
    ) -> Observation:
        values = {name: sample.value for name, sample in found.items()}
        more = [found[name].stamp_ns for name in (WRIST_IMAGE, *self._more) if name in found]
        stamp = min([image.stamp_ns, *more])
        last, last_image = self._last
        if image.stamp_ns > last_image and 0 <= last - stamp < _SHARED_NS:
            stamp = last + 1
        self._last = (stamp, image.stamp_ns)
        if image.stamp_ns <= image.received.now_ns:  # a stamp of the future is refused later on
            self._newest = (image.stamp_ns, image.received.now_ns)
        return Observation(
            stamp_ns=stamp,
            received_ns=image.received.now_ns,
            received_steady_ns=image.received.steady_ns,
            image=image.value,
            wrist_image=values.get(WRIST_IMAGE),
            proprio=self._layout(values),
            poses=values.get("ground_truth", {}),
            more_images={role: values[name] for name, role in self._more.items()},
        )


# Checks of stamps, pixels, clocks


class FrameCheck:
    """Check of the stamps and pixels of frames, in the order they come."""

    def __init__(self, sim_time: bool, detect_frozen: bool) -> None:
        self._sim_time = sim_time
        self._detect_frozen = detect_frozen
        self.forget()

    def forget(self) -> None:
        """Start anew: after a reset or a jump of the clock."""
        self.last_stamp_ns = 0
        self._pixels: dict[str, _CameraPixels] = {}

    def refuse(self, observation: Observation, limits: Limits) -> str | None:
        """Reason to drop this frame, or None if it may be used (and is remembered)."""
        stamp, received = observation.stamp_ns, observation.received_ns
        # /clock and the image travel on different topics and may overtake each other, so in
        # simulated time a frame may be one control period ahead.
        tolerance = limits.period_ns if self._sim_time else limits.clock_tolerance_ns
        if stamp <= 0:
            return "stamp is zero: the camera driver must fill header.stamp"
        if stamp - received > tolerance:
            ahead = (stamp - received) / MS
            cause = other_clock(stamp, received, self._sim_time)
            return f"stamp lies {ahead:.1f} ms in the future: {cause or 'synchronize the clocks'}"
        if received - stamp > limits.max_age_ns:
            cause = other_clock(stamp, received, self._sim_time)
            older = f"older than max_age: {(received - stamp) / MS:.0f} ms"
            return f"{older}: {cause}" if cause else older
        if stamp == self.last_stamp_ns:
            return "stamp repeated"
        if stamp < self.last_stamp_ns:
            return f"out of order by {(self.last_stamp_ns - stamp) / MS:.1f} ms"
        self.last_stamp_ns = stamp
        if self._detect_frozen:
            self._compare(observation)
        return None

    def _compare(self, observation: Observation) -> None:
        """Count frames in a row with the same pixels. Sensor noise makes that impossible for a
        real camera, so every fourth pixel is enough to look at."""
        images = {"main": observation.image, **observation.more_images}
        if observation.wrist_image is not None:
            images["wrist"] = observation.wrist_image
        for camera, pixels in images.items():
            last = self._pixels.get(camera)
            if camera != "main" and last is not None and last.pixels is pixels:
                continue  # of a camera slower than the main one: the same image once more
            checksum = zlib.adler32(pixels[::4, ::4].tobytes())
            if last is not None and last.checksum == checksum:
                last.pixels, last.same = pixels, last.same + 1
            else:
                self._pixels[camera] = _CameraPixels(
                    pixels, checksum, observation.received_steady_ns
                )

    @property
    def frozen(self) -> str:
        """The camera of which at least three frames in a row had the same pixels, or ""."""
        same = (name for name, one in self._pixels.items() if one.same + 1 >= _FROZEN_FRAMES)
        return next(same, "")

    def frozen_for(self, steady_ns: int) -> str:
        """The camera whose pixels have not changed for a second although new frames came."""
        for name, one in self._pixels.items():
            if one.same + 1 >= _FROZEN_FRAMES and steady_ns - one.since_ns >= _FROZEN_NS:
                return name
        return ""


def other_clock(stamp_ns: int, now_ns: int, sim_time: bool) -> str:
    """Which clock a stamp is of that is no time of this one's, and the remedy; "": it may be late
    or early."""
    if sim_time and now_ns <= 0:
        return "no /clock has come yet: start what publishes it, or set use_sim_time false"
    if abs(stamp_ns - now_ns) < _ANOTHER_CLOCK_NS:
        return ""
    since = f"the stamp counts {stamp_ns / SECOND:.0f} s"
    if sim_time:
        return f"{since}, /clock {now_ns / SECOND:.0f} s: the stamps must be of /clock's time"
    if stamp_ns < _ANOTHER_CLOCK_NS:
        return (
            f"{since}, as of simulated time or since a machine's start: set use_sim_time where"
            " /clock comes (ros2 bag play --clock), else let the driver stamp ROS time"
        )
    return (
        f"{since}, this machine's clock {now_ns / SECOND:.0f} s: an old bag's, which needs"
        " use_sim_time and ros2 bag play --clock, or a clock that is not set"
    )


_ANOTHER_CLOCK_NS = 30 * 24 * 3600 * SECOND  # no delay


@dataclass(slots=True)
class _CameraPixels:
    """Pixels of one camera, since when, and in how many frames more."""

    pixels: Image
    checksum: int
    since_ns: int
    same: int = 0


class ClockWatch:
    """Watch of the stamps' clock by the steady one, tick by tick: a clock that jumps,
    stands still or runs backwards makes every age a guess. Not thread-safe.

    In simulated time (``sim_time``) the clock may run at any rate, but not backwards.
    """

    def __init__(self, sim_time: bool, steady_ns: int) -> None:
        self.sim_time = sim_time
        self._last: Moment | None = None
        self._moved_ns = steady_ns

    def jumped(self, now: Moment, limits: Limits) -> str | None:
        """Reason for which everything in flight is void, or None. Call it once a tick."""
        last, self._last = self._last, now
        if last is None:
            return None
        moved = now.now_ns - last.now_ns
        if moved != 0:
            self._moved_ns = now.steady_ns
        drift = moved - (now.steady_ns - last.steady_ns)
        if moved < 0:
            return f"the clock went back by {-moved / MS:.0f} ms"
        # A clock that is being slewed is a little fast or slow all the time: that is no jump.
        slewed = int(_SLEW * (now.steady_ns - last.steady_ns))
        if not self.sim_time and abs(drift) > slewed + min(5 * MS, limits.action_period_ns // 4):
            return f"the clock jumped by {drift / MS:.1f} ms"
        return None

    def stands_still(self, now: Moment, limits: Limits) -> str | None:
        """Reason to hold the robot, or None. Not to be asked in lock-step, where the world
        waits."""
        still_ns = now.steady_ns - self._moved_ns
        if self.sim_time and still_ns > limits.max_age_ns:
            return f"/clock has stood still for {still_ns / SECOND:.1f} s"
        return None
