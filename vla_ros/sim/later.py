"""Images of a simulation that are rendered when somebody looks at them.

Rendering is most of a simulated step's time (6 of 8 ms on one core of a CPU), and a policy that
executes four actions of a chunk looks at one frame in four.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from vla_ros.core import Image
from vla_ros.sim.env import SimError


class LaterImages(Mapping[str, Image]):
    """Camera name -> image, rendered at the first look, until the world moves on.

    ``render`` gives the image of a camera as the world stands: uint8 [size, size, 3], RGB,
    upright. SimError: first looked at after :meth:`moved_on`, when it would show another moment.
    """

    def __init__(self, cameras: tuple[str, ...], render: Callable[[str], Image]) -> None:
        self._cameras = cameras
        self._render = render
        self._rendered: dict[str, Image] = {}
        self._past = False

    def moved_on(self) -> None:
        """What was not looked at by now cannot be any more."""
        self._past = True

    def __getitem__(self, camera: str) -> Image:
        if camera not in self._cameras:
            raise KeyError(camera)
        if camera not in self._rendered:
            if self._past:
                raise SimError(f"the image of {camera} was not looked at before the next step")
            self._rendered[camera] = self._render(camera)
        return self._rendered[camera]

    def __iter__(self) -> Iterator[str]:
        return iter(self._cameras)

    def __len__(self) -> int:
        return len(self._cameras)
