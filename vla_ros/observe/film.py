"""Keeps what the camera saw and writes it as an animated GIF, or its last image as PNG."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from vla_ros.core import Image
from vla_ros.errors import UserError

SUFFIXES = (".gif", ".png")
MAX_FRAMES = 300  # when there are more, every second one goes
_COLOURS = 255


class Film:
    """Images with their stamps, at even distances. Not thread-safe.

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
        """Whether the next image would be kept; ask once for each image, before decoding it."""
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
        """Write the file; returns one line that says so, or that nothing was seen.

        Raises UserError when the file cannot be written.
        """
        if not self._frames:
            return f"no image was seen, {self.path} is not written"
        from PIL import Image as Pillow

        pictures = [Pillow.fromarray(image) for _, image in self._frames]
        try:
            if not self._animated:
                pictures[-1].save(self.path)
                return f"last image written to {self.path}"
            # One palette for all, so that nothing flickers; of the widest coverage, so that a
            # small red cube keeps its colour beside much wood.
            middle = pictures[len(pictures) // 2]
            palette = middle.quantize(_COLOURS, method=Pillow.Quantize.MAXCOVERAGE)
            small = [
                p.quantize(_COLOURS, palette=palette, dither=Pillow.Dither.NONE) for p in pictures
            ]
            small[0].save(
                self.path,
                save_all=True,
                append_images=small[1:],
                duration=self._durations_ms(),
                loop=0,
            )
        except OSError as error:
            raise UserError(f"--gif: cannot write {self.path}: {error}") from None
        return f"{len(pictures)} images written to {self.path}"

    def _durations_ms(self) -> list[int]:
        """How long each image stays, in real time; GIF counts in hundredths of a second."""
        stamps = [stamp for stamp, _ in self._frames]
        gaps = [(b - a) / 1e6 for a, b in pairwise(stamps)]
        return [max(20, round(gap / 10) * 10) for gap in [*gaps, 1000.0]]
