"""Reasons for which frames do not complete, in one line with the remedy, for the status. Apart,
since each input may see a cause and the loop reports it.
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
    """Watch of the streams that frames are made of, by steady times.

    ``topic`` is that of the main camera and ``writers`` how many publish it, None: not counted yet.
    Not thread-safe but for :meth:`received`, which is called for every message.
    """

    def __init__(self) -> None:
        self.topic = _MAIN
        self.writers: int | None = None
        self._received_ns: dict[str, int] = {}  # stream -> its newest message
        self._refused: dict[str, tuple[int, str]] = {}  # stream -> when, why
        self._lost: tuple[int, LostImage] | None = None
        self._unmeasured = (-PATIENCE_NS, "")
        self._complete_ns: int | None = None

    def received(self, stream: str, steady_ns: int) -> None:
        """Note a message of any content; the main camera is "image"."""
        self._received_ns[stream] = steady_ns

    def refused(self, stream: str, reason: str, steady_ns: int) -> None:
        """Note a message that was refused."""
        self._refused[stream] = steady_ns, reason

    def lost(self, lost: LostImage, steady_ns: int) -> None:
        """Note an image that was given up since another stream lacks."""
        self._lost = steady_ns, lost

    def unmeasured(self, reason: str, steady_ns: int) -> None:
        """Note why the robot's position, which a target needs, is unknown."""
        self._unmeasured = steady_ns, reason

    def complete(self, steady_ns: int) -> None:
        """Note a frame that may be used."""
        self._complete_ns = steady_ns

    def lacks(self, since_ns: int, steady_ns: int) -> str:
        """Reason for which no frame has completed for a while (those before ``since_ns`` do not
        count), or the robot's position is unknown; "": none is missed."""
        complete_ns = self._complete_ns or 0
        if steady_ns - max(since_ns, complete_ns) <= PATIENCE_NS:
            unmeasured_ns, reason = self._unmeasured
            return reason if steady_ns - unmeasured_ns <= PATIENCE_NS else ""
        if not self.shows(since_ns, steady_ns):
            return self._no_image(steady_ns)
        refused_ns, refused = self._refused.get(_MAIN, (0, ""))
        lost_ns, lost = self._lost or (0, None)
        if lost is not None and lost_ns > max(refused_ns, complete_ns):
            return self._reason(lost, steady_ns)
        return f"the image is refused: {refused}" if refused_ns > complete_ns else ""

    def shows(self, since_ns: int, steady_ns: int) -> bool:
        """True if images of the main camera come at all."""
        return steady_ns - max(since_ns, self._image_ns) <= PATIENCE_NS

    @property
    def _image_ns(self) -> int:
        """Receipt of the newest image, readable or not; 0: none."""
        return max(self._received_ns.get(_MAIN, 0), self._refused.get(_MAIN, (0, ""))[0])

    def _no_image(self, steady_ns: int) -> str:
        received_ns = self._image_ns
        if not received_ns:
            text = f"no image on {self.topic} yet"
        else:
            text = f"no image on {self.topic} for {(steady_ns - received_ns) / SECOND:.0f} s"
        if self.writers == 0:
            return f"{text}, nobody publishes it: start the driver, or set cameras.main.topic"
        if self.writers and not received_ns:
            return (
                f"{text}, though its publisher is found: look at the camera's driver, and whether"
                " it runs as another user or in a container (docs/how-to/docker.md)"
            )
        return f"{text}: look at the camera's driver"

    def _reason(self, lost: LostImage, steady_ns: int) -> str:
        """The stream's own fault where it has one: a refused message is no partner either."""
        refused_ns, refused = self._refused.get(lost.stream, (0, ""))
        if steady_ns - refused_ns <= PATIENCE_NS:
            return f"{lost.stream} is refused: {refused}"
        received_ns = self._received_ns.get(lost.stream)
        silent_ns = 0 if received_ns is None else steady_ns - received_ns
        if lost.kind == "apart" and silent_ns > PATIENCE_NS:
            silent_s = silent_ns / SECOND
            return f"{lost.stream} has been silent for {silent_s:.0f} s: look at its publisher"
        remedy = _REMEDIES.get(lost.kind)
        return f"{lost.reason}; {remedy}" if remedy else lost.reason
