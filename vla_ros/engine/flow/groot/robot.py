"""What a folder says about one of the robots that a GR00T was trained for."""

from __future__ import annotations

from typing import Protocol

import torch

from vla_ros.core import Image


class Robot(Protocol):
    """A robot: its ``tag``, its ``row`` among the head's encoders, what it sees, is and does.

    ``horizon`` actions of a chunk are its own; pictures become squares of ``image_size``.
    ``formal``: instructions lose capitals and punctuation; ``relative``: some of its actions are
    relative to its state, which is positions of joints.
    """

    @property
    def tag(self) -> str: ...

    @property
    def row(self) -> int: ...

    @property
    def cameras(self) -> tuple[str, ...]: ...

    @property
    def horizon(self) -> int: ...

    @property
    def image_size(self) -> int: ...

    @property
    def formal(self) -> bool: ...

    @property
    def relative(self) -> bool: ...

    @property
    def state_dim(self) -> int:
        """Values of its state."""
        ...

    @property
    def state_wide(self) -> int:
        """Values of its state in model space."""
        ...

    @property
    def action_dim(self) -> int:
        """Values of its action."""
        ...

    @property
    def action_names(self) -> tuple[str, ...]:
        """A name for each value of an action."""
        ...

    def picture(self, image: Image) -> torch.Tensor:
        """uint8 [h, w, 3] -> float32 [3, image_size, image_size] in [-1, 1]. ValueError."""
        ...

    def shown(self, state: torch.Tensor) -> torch.Tensor:
        """Its state float32 [state_dim] -> the model's [state_wide]."""
        ...

    def restored(self, chunk: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """A chunk [H, D] of the model -> its actions float32 [H, action_dim]."""
        ...

    def ends(self) -> tuple[torch.Tensor, ...]:
        """Where all actions of its data lie, in units: from and to [action_dim]; () where nothing
        says."""
        ...
