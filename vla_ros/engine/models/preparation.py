"""Preparation of a flow policy's inputs and actions: between a robot's units and the network's, and
as LeRobot does it for pi0, pi0.5 and SmolVLA.

Sources: lerobot 0.6.1 ``vla_utils.py`` (``resize_with_pad_torch``, openpi's, and
``resize_with_pad``), ``processor_pi0.py`` (a new line ends the task), ``processor_pi05.py`` and
``processor_pi0_fast.py`` (the state in 256 bins is part of the prompt), ``processor_smolvla.py``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from vla_ros.core.types import Image
from vla_ros.engine.errors import InvalidAction
from vla_ros.engine.io.flow_config import FAST, FlowConfig
from vla_ros.engine.io.images.preprocessor import uploaded
from vla_ros.engine.io.images.steps import refuse_unless_image
from vla_ros.engine.io.processors import Processors, TextTokenizer
from vla_ros.engine.layers.devices import upload
from vla_ros.engine.models.base import Inputs

CPU = torch.device("cpu")
BINS = 256
Ints = npt.NDArray[np.int64]


class Preparation(ABC):
    """Observations -> the network's inputs, chunks -> actions; an instruction at a time."""

    @abstractmethod
    def instruct(self, text: str) -> None:
        """Take on an instruction. ValueError where it is too long for the model."""

    @abstractmethod
    def inputs(self, images: Sequence[Image | None], state: torch.Tensor) -> Inputs:
        """The network's inputs of one image for each of the config's cameras (None: declared
        absent) and the robot's state float32 [state_dim], finite. InvalidAction where these cannot
        be used."""

    @abstractmethod
    def actions(self, chunk: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """A chunk [H, D] on the CPU -> actions [H, action_dim] in the robot's units."""

    def reanchored(
        self, rows: torch.Tensor, first: int, then: torch.Tensor, now: torch.Tensor
    ) -> torch.Tensor:
        """Rows [n, D] of a chunk from its row ``first`` on, made for the state ``then`` -> the same
        actions as the first rows of a chunk that is made for the state ``now``."""
        return rows


class LerobotPreparation(Preparation):
    """The preparation of pi0, pi0.5 and SmolVLA. Cameras that are absent have no pixels: LeRobot
    masks them, here they are left out."""

    def __init__(
        self,
        config: FlowConfig,
        processors: Processors,
        tokenizer: TextTokenizer,
        device: torch.device,
    ) -> None:
        self._config, self._processors = config, processors
        self._tokenizer, self._device = tokenizer, device
        self._task = ""
        self._ids = torch.empty(0, dtype=torch.int64)

    def instruct(self, text: str) -> None:
        """Tokenize once. Where the prompt has the state in it, the longest that can come is held to
        the limit."""
        config = self._config
        worst = np.full(config.prompt_state if config.speaks_state else 0, BINS - 1)
        ids = self._tokenizer(prompt_text(config.kind, text, worst))
        if len(ids) > config.max_text:
            raise ValueError(
                f"the instruction makes a prompt of {len(ids)} tokens, the most is"
                f" {config.max_text}"
            )
        self._task, self._ids = text, torch.tensor(ids, device=self._device)

    def inputs(self, images: Sequence[Image | None], state: torch.Tensor) -> Inputs:
        config = self._config
        centered = config.kind != "smolvla"
        pixels = stacked(
            images, lambda one: padded_square(one, config.image_size, centered, self._device)
        )
        scaled = self._processors.state.normalize(state)
        return Inputs(pixels, self._prompt(scaled), padded_to(config.state_width, scaled))

    def actions(self, chunk: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Actions in units, added to the state where the model gives them relative to it."""
        dim, processors = self._config.action_dim, self._processors
        values = processors.action.restore(chunk[:, :dim])
        if processors.relative:
            values = values + state[:dim] * torch.tensor(processors.relative)
        return values

    def reanchored(
        self, rows: torch.Tensor, first: int, then: torch.Tensor, now: torch.Tensor
    ) -> torch.Tensor:
        """Values that are relative to the state are moved by as much as that has moved since. Those
        that pad an action are zeros: LeRobot keeps what is left of a chunk without them."""
        processors, dim = self._processors, self._config.action_dim
        rows = F.pad(rows[:, :dim], (0, rows.shape[1] - dim))
        if not processors.relative:
            return rows
        moved = (then - now)[:dim] * torch.tensor(processors.relative)
        moved = processors.action.difference(moved)
        return rows + padded_to(rows.shape[1], moved).to(rows.device)

    def _prompt(self, state: torch.Tensor) -> torch.Tensor:
        config = self._config
        if not config.speaks_state:
            return self._ids
        bins = state_bins(padded_to(config.prompt_state, state).numpy())
        ids = self._tokenizer(prompt_text(config.kind, self._task, bins))
        if len(ids) > config.max_text:
            raise InvalidAction(
                f"with this state the prompt has {len(ids)} tokens, the most is {config.max_text}"
            )
        return upload(ids, self._device)


def state_bins(state: npt.NDArray[np.float32]) -> Ints:
    """Bins of a normalized state [n]: 0 to 255 in [-1, 1], -1 below it; float32 against float64
    edges, as the reference compares them."""
    edges = np.linspace(-1, 1, BINS + 1)[:-1]
    return np.asarray(np.digitize(state, bins=edges) - 1, dtype=np.int64)


def prompt_text(kind: str, task: str, bins: Ints | None = None) -> str:
    """The text that is tokenized; ``bins`` are pi0.5's and pi0-FAST's, which itself says "Action:
    "."""
    if kind not in ("pi05", FAST):
        return task if task.endswith("\n") else f"{task}\n"
    assert bins is not None
    cleaned = task.strip().replace("_", " ").replace("\n", " ")
    text = f"Task: {cleaned}, State: {' '.join(map(str, bins))};\n"
    return text if kind == FAST else f"{text}Action: "


def stacked(images: Sequence[Image | None], make: Callable[[Image], torch.Tensor]) -> torch.Tensor:
    """Pixels [V, 3, s, s] of the images that are there."""
    return torch.stack([make(image) for image in images if image is not None])


def padded_to(width: int, values: torch.Tensor) -> torch.Tensor:
    """Values [n] with zeros behind them [width]."""
    return F.pad(values, (0, width - len(values)))


def padded_square(
    image: Image, size: int, centered: bool, device: torch.device = CPU
) -> torch.Tensor:
    """uint8 [h, w, 3] -> float32 [3, size, size] in [-1, 1], made on the device and there.

    Bilinear without antialiasing, aspect kept. pi0 and pi0.5 center the image, SmolVLA puts it
    to the lower right; the rest is black.
    """
    refuse_unless_image(image)
    pixels = uploaded(image, device).permute(2, 0, 1)[None].float() / 255.0
    height, width = image.shape[:2]
    if (height, width) != (size, size):
        ratio = max(width / size, height / size)
        rows, columns = int(height / ratio), int(width / ratio)
        if 0 in (rows, columns):
            raise ValueError(f"an image of {height} x {width} pixels leaves nothing to see")
        pixels = F.interpolate(pixels, (rows, columns), mode="bilinear", align_corners=False)
        top, left = size - rows, size - columns
        if centered:
            pixels = pixels.clamp(0.0, 1.0)
            top, left = top // 2, left // 2
        pixels = F.pad(pixels, (left, size - columns - left, top, size - rows - top))
    return pixels[0] * 2.0 - 1.0
