"""What may come in: frames, instructions, inferences; refused with one line that says why."""

from __future__ import annotations

import unicodedata
import zlib

from vla_ros.action_space import ActionSpace
from vla_ros.core import Inference, Observation
from vla_ros.safety import ActionRefused, Limits, refuse_unless_numbers
from vla_ros.timing import MS, SECOND

MAX_INSTRUCTION = 1000  # characters; the longest of the LIBERO benchmark has 130
_FROZEN_FRAMES = 3
_FROZEN_NS = SECOND


def check_instruction(text: str) -> str:
    """Return the instruction stripped of surrounding white space.

    Raises ValueError for text that no person would mean: too long, control characters
    (NUL, newlines, escape sequences) or bidirectional overrides, which show one sentence to
    a person and another to the policy.
    """
    text = text.strip()
    if len(text) > MAX_INSTRUCTION:
        raise ValueError(f"instruction has {len(text)} characters, at most {MAX_INSTRUCTION}")
    for character in text:
        # Cc: control, Cf: format (bidi marks, zero-width), Cs: lone surrogates
        if unicodedata.category(character) in ("Cc", "Cf", "Cs"):
            raise ValueError(f"instruction has the control character U+{ord(character):04X}")
    return text


def check_inference(inference: Inference, space: ActionSpace) -> None:
    """Raise :class:`ActionRefused` unless there are actions, finite numbers of this space."""
    if len(inference.actions) == 0:
        raise ActionRefused("the policy returned no action")
    for action in inference.actions:
        refuse_unless_numbers(action, space)


class FrameCheck:
    """Judges the stamps and pixels of the frames of one camera, in the order they come."""

    def __init__(self, sim_time: bool, detect_frozen: bool) -> None:
        self._sim_time = sim_time
        self._detect_frozen = detect_frozen
        self.forget()

    def forget(self) -> None:
        """Start anew: after a reset or a jump of the clock."""
        self.last_stamp_ns = 0
        self._checksum: int | None = None
        self._same = 0
        self._same_since_ns = 0

    def refuse(self, observation: Observation, limits: Limits) -> str | None:
        """Why this frame must be dropped, or None if it may be used (and is remembered)."""
        stamp, received = observation.stamp_ns, observation.received_ns
        # /clock and the image travel on different topics and may overtake each other, so in
        # simulated time a frame may be one control period ahead.
        tolerance = limits.period_ns if self._sim_time else limits.clock_tolerance_ns
        if stamp <= 0:
            return "stamp is zero: the camera driver must fill header.stamp"
        if stamp - received > tolerance:
            ahead = (stamp - received) / MS
            return f"stamp lies {ahead:.1f} ms in the future: synchronise the clocks"
        if received - stamp > limits.max_age_ns:
            return f"older than max_age: {(received - stamp) / MS:.0f} ms"
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
        checksum = zlib.adler32(observation.image[::4, ::4].tobytes())
        if checksum == self._checksum:
            self._same += 1
        else:
            self._checksum, self._same = checksum, 0
            self._same_since_ns = observation.received_steady_ns

    @property
    def looks_frozen(self) -> bool:
        """At least three frames in a row had the same pixels."""
        return self._same + 1 >= _FROZEN_FRAMES

    def frozen_for(self, steady_ns: int) -> bool:
        """The pixels have not changed for a second although new frames came."""
        return self.looks_frozen and steady_ns - self._same_since_ns >= _FROZEN_NS
