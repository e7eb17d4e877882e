"""What keeps frames from completing, in one line with the remedy: the status says it as long as it
lasts. Apart, since a cause may be seen by each input and is told by the loop.
"""

from __future__ import annotations

from vla_ros.core.clock import SECOND
from vla_ros.runtime.control.observation import LostImage

PATIENCE_NS = SECOND  # frames that come later than that are missed
_MAIN = "image"
_REMEDIES = {
    "silent": "start what publishes it, or remap it",
    "apart": "synchronize the clocks, or raise pairing_slop_s",
    "names": "correct joint_names",
    "size": "name the joints that it was taught in joint_names",
}


class FrameSupply:
    """Follows what comes in, by steady times.

    ``topic`` is that of the main camera and ``writers`` how many publish it, None where nobody has
    looked. Not thread-safe but for :meth:`heard`, as of every message.
    """

    def __init__(self) -> None:
        self.topic = _MAIN
        self.writers: int | None = None
        self._heard_ns: dict[str, int] = {}  # stream -> its newest message
        self._refused: dict[str, tuple[int, str]] = {}  # stream -> when, why
        self._lost: tuple[int, LostImage] | None = None
        self._unmeasured = (-PATIENCE_NS, "")
        self._complete_ns: int | None = None

    def heard(self, stream: str, steady_ns: int) -> None:
        """A message of any content; the main camera is "image"."""
        self._heard_ns[stream] = steady_ns

    def refused(self, stream: str, reason: str, steady_ns: int) -> None:
        """Nothing can be made of what a stream says."""
        self._refused[stream] = steady_ns, reason

    def lost(self, lost: LostImage, steady_ns: int) -> None:
        """An image was given up since another stream lacks."""
        self._lost = steady_ns, lost

    def unmeasured(self, reason: str, steady_ns: int) -> None:
        """Where the robot is, which a place to go to needs, is not known for this reason."""
        self._unmeasured = steady_ns, reason

    def complete(self, steady_ns: int) -> None:
        """A frame that may be used."""
        self._complete_ns = steady_ns

    def lacks(self, since_ns: int, steady_ns: int) -> str:
        """Why no frame has completed for a while, of which those before ``since_ns`` do not count,
        or why the robot's place is not known; "": none is missed."""
        complete_ns = self._complete_ns or 0
        if steady_ns - max(since_ns, complete_ns) <= PATIENCE_NS:
            unmeasured_ns, reason = self._unmeasured
            return reason if steady_ns - unmeasured_ns <= PATIENCE_NS else ""
        if not self.shows(since_ns, steady_ns):
            return self._no_picture(steady_ns)
        refused_ns, refused = self._refused.get(_MAIN, (0, ""))
        lost_ns, lost = self._lost or (0, None)
        if lost is not None and lost_ns > max(refused_ns, complete_ns):
            return self._says(lost, steady_ns)
        return f"the image is refused: {refused}" if refused_ns > complete_ns else ""

    def shows(self, since_ns: int, steady_ns: int) -> bool:
        """Whether images of the main camera come at all."""
        return steady_ns - max(since_ns, self._shown_ns) <= PATIENCE_NS

    @property
    def _shown_ns(self) -> int:
        """When the newest came, readable or not; 0: none."""
        return max(self._heard_ns.get(_MAIN, 0), self._refused.get(_MAIN, (0, ""))[0])

    def _no_picture(self, steady_ns: int) -> str:
        heard_ns = self._shown_ns
        if not heard_ns:
            said = f"no image on {self.topic} yet"
        else:
            said = f"no image on {self.topic} for {(steady_ns - heard_ns) / SECOND:.0f} s"
        if self.writers == 0:
            return f"{said}, nobody publishes it: start the driver, or set cameras.main.topic"
        return f"{said}: look at the camera's driver"

    def _says(self, lost: LostImage, steady_ns: int) -> str:
        """The stream's own trouble where it has one: what is refused is no partner either."""
        refused_ns, refused = self._refused.get(lost.stream, (0, ""))
        if steady_ns - refused_ns <= PATIENCE_NS:
            return f"{lost.stream} is refused: {refused}"
        heard_ns = self._heard_ns.get(lost.stream)
        if lost.kind == "apart" and heard_ns is not None and steady_ns - heard_ns > PATIENCE_NS:
            silent_s = (steady_ns - heard_ns) / SECOND
            return f"{lost.stream} has been silent for {silent_s:.0f} s: look at its publisher"
        remedy = _REMEDIES.get(lost.kind)
        return f"{lost.reason}; {remedy}" if remedy else lost.reason
