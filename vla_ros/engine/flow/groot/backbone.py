"""What is in front of GR00T's head: pictures and words in, the language model's last rows out."""

from __future__ import annotations

from typing import Protocol

import torch


class Backbone(Protocol):
    """A vision-language model over static buffers. One thread, inference only.

    A prompt is ids in which ``image_token`` holds the place of every row of a picture.
    """

    @property
    def image_token(self) -> int: ...

    @property
    def width(self) -> int:
        """C of its rows."""
        ...

    def see(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels [V, 3, s, s] in [-1, 1] -> features [n, W]; the first C values of each are the
        row that stands in the prompt."""
        ...

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Ids int64 [n] -> rows [n, C]."""
        ...

    def lay(self, ids: list[int], length: int) -> None:
        """Take on a new prompt, padded to ``length`` rows: what depends on its places alone."""
        ...

    def read(self, x: torch.Tensor, features: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Rows [length, C], causal, to what the head crosses to [length, C].

        ``features`` [n, W] are those of :meth:`see` and stand at ``places`` int64 [n].
        """
        ...
