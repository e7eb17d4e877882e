"""Between a robot's units and Evo-1's, as LeRobot's processors and its embedder go.

Sources: lerobot 0.6.1 ``internvl3_embedder.py`` (images, prompt), ``modeling_evo1.py`` (padding)
and ``processor_evo1.py`` (statistics, gripper).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from vla_ros.core import Image
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.flow.evo1.config import Evo1Config
from vla_ros.engine.flow.family import Inputs
from vla_ros.engine.flow.features import ACTION, STATE
from vla_ros.engine.flow.processors import (
    NORMALIZER,
    PLUMBING,
    POSTPROCESSOR,
    PREPROCESSOR,
    UNNORMALIZER,
    Scaler,
    scaler_of,
    steps_of,
)
from vla_ros.engine.flow.text import PromptTokenizer
from vla_ros.engine.vision.upload import uploaded

CPU = torch.device("cpu")
IMAGE_START, IMAGE_TOKEN, IMAGE_END = "<img>", "<IMG_CONTEXT>", "</img>"
PAD_STATE, PAD_ACTION = "evo1_pad_state_processor", "evo1_pad_action_processor"
ACTION_STEP = "evo1_action_processor"


@dataclass(frozen=True, slots=True)
class Scalers:
    """Units <-> model space of state and actions."""

    state: Scaler
    action: Scaler


def read_scalers(directory: Path, config: Evo1Config) -> Scalers:
    """Both processors' JSON and statistics; CheckpointError in one line where they do not fit."""
    before, after = (steps_of(directory / name) for name in (PREPROCESSOR, POSTPROCESSOR))
    known = {*PLUMBING, NORMALIZER, UNNORMALIZER, PAD_STATE, PAD_ACTION, ACTION_STEP}
    if strange := sorted({*before, *after} - known):
        raise CheckpointError(
            f"{directory} has processor steps that are not built: {', '.join(strange)}"
        )
    for name, steps in ((NORMALIZER, before), (UNNORMALIZER, after)):
        if name not in steps:
            raise CheckpointError(f"{directory} has no processor step {name}")
    state, action = config.state_dim, config.action_dim
    return Scalers(
        scaler_of(directory, before[NORMALIZER], "STATE", STATE, state, config.state_width),
        scaler_of(directory, after[UNNORMALIZER], "ACTION", ACTION, action, config.action_width),
    )


def prompt_of(config: Evo1Config, task: str) -> str:
    """What is tokenised: the places of all images, those of absent cameras too, and the task."""
    image = IMAGE_START + IMAGE_TOKEN * config.view_tokens + IMAGE_END
    places = "".join(f"Image-{i + 1}: {image}\n" for i in range(config.slots))
    return places + task.strip()


class Evo1Preparation:
    """See :class:`vla_ros.engine.flow.family.Preparation`."""

    def __init__(
        self,
        config: Evo1Config,
        scalers: Scalers,
        tokenizer: PromptTokenizer,
        device: torch.device = CPU,
    ) -> None:
        self._config, self._scalers, self._tokenizer = config, scalers, tokenizer
        vision, self._device = config.vision, device
        self._mean, self._std = (
            torch.tensor(values, device=device).view(3, 1, 1)
            for values in (vision.mean, vision.std)
        )
        self._image_token = tokenizer.id_of(IMAGE_TOKEN)
        self._ids = torch.empty(0, dtype=torch.int64)

    def instruct(self, text: str) -> None:
        """Tokenise once. The reference cuts a prompt that is too long; here it is refused."""
        config = self._config
        ids = self._tokenizer(prompt_of(config, text))
        if len(ids) > config.max_text:
            raise ValueError(
                f"the instruction makes a prompt of {len(ids)} tokens, images included, the most"
                f" is {config.max_text}"
            )
        wanted, found = config.slots * config.view_tokens, ids.count(self._image_token)
        if found != wanted:
            raise ValueError(
                f"the tokenizer makes {found} places of images of the prompt, wanted {wanted}"
            )
        self._ids = torch.tensor(ids)

    def inputs(self, images: Sequence[Image | None], state: torch.Tensor) -> Inputs:
        """Cameras that are there take the first places, whichever are absent."""
        vision = self._config.vision
        pixels = torch.stack(
            [
                square_of(image, vision.image_size, self._device)
                for image in images
                if image is not None
            ]
        )
        scaled = self._scalers.state.normalise(state)
        padded = torch.zeros(self._config.state_width)
        padded[: len(scaled)] = scaled
        return Inputs((pixels - self._mean) / self._std, self._ids, padded)

    def actions(self, chunk: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """In units; a gripper that is only open or closed says one of its two values."""
        values = self._scalers.action.restore(chunk[:, : self._config.action_dim])
        gripper = self._config.gripper
        if gripper is not None:
            closed = values[:, gripper.index] > gripper.threshold
            ends = torch.tensor([gripper.below, gripper.above])
            # What is not finite stays so: it is not made an end of the gripper.
            found = torch.where(values[:, gripper.index].isfinite(), ends[closed.long()], torch.nan)
            values = values.index_copy(1, torch.tensor([gripper.index]), found[:, None])
        return values


def square_of(image: Image, size: int, device: torch.device = CPU) -> torch.Tensor:
    """uint8 [h, w, 3] -> float32 [3, size, size] in [0, 1], made on the device and there:
    stretched, bicubic with antialiasing, rounded to 256 values, as PIL does it."""
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or 0 in image.shape:
        raise ValueError(f"image is {image.dtype} {image.shape}: give uint8 [h, w, 3]")
    pixels = uploaded(image, device).permute(2, 0, 1)[None]
    pixels = _levels(device)[pixels.int()]
    if image.shape[:2] != (size, size):
        pixels = F.interpolate(
            pixels, (size, size), mode="bicubic", align_corners=False, antialias=True
        )
        pixels = pixels.clamp(0, 255).round()
    return pixels[0] / 255.0


@lru_cache(maxsize=4)
def _levels(device: torch.device) -> torch.Tensor:
    """LeRobot divides by 255, multiplies by it again and cuts: some of the 256 values become one
    less. Which ones is a CPU's arithmetic; a GPU's division by a number is another one."""
    values = torch.arange(256, dtype=torch.float32)
    return (values / 255.0 * 255.0).clamp(0, 255).to(torch.uint8).float().to(device)
