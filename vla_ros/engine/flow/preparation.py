"""Between a robot's units and those of pi0, pi0.5 and SmolVLA, as LeRobot's processors go."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from vla_ros.core import Image
from vla_ros.engine.errors import InvalidAction
from vla_ros.engine.flow.config import FlowConfig
from vla_ros.engine.flow.family import Inputs
from vla_ros.engine.flow.images import padded_square
from vla_ros.engine.flow.processors import Processors
from vla_ros.engine.flow.text import BINS, PromptTokenizer, prompt_text, state_bins


class LerobotPreparation:
    """See :class:`vla_ros.engine.flow.family.Preparation`."""

    def __init__(
        self,
        config: FlowConfig,
        processors: Processors,
        tokenizer: PromptTokenizer,
        device: torch.device,
    ) -> None:
        self._config, self._processors = config, processors
        self._tokenizer, self._device = tokenizer, device
        self._task = ""
        self._ids = torch.empty(0, dtype=torch.int64)

    def instruct(self, text: str) -> None:
        """Tokenise once. For pi0.5, whose prompt has the state in it, the longest that can come."""
        config = self._config
        worst = np.full(config.state_dim, BINS - 1)
        ids = self._tokenizer(prompt_text(config.kind, text, worst))
        if len(ids) > config.max_text:
            raise ValueError(
                f"the instruction makes a prompt of {len(ids)} tokens, the most is"
                f" {config.max_text}"
            )
        self._task, self._ids = text, torch.tensor(ids, device=self._device)

    def inputs(self, images: Sequence[Image | None], state: torch.Tensor) -> Inputs:
        """Cameras that are absent have no pixels: LeRobot masks them, here they are left out."""
        config = self._config
        centred = config.kind != "smolvla"
        pixels = torch.stack(
            [
                padded_square(image, config.image_size, centred, self._device)
                for image in images
                if image is not None
            ]
        )
        scaled = self._processors.state.normalise(state)
        padded = torch.zeros(config.state_width)
        padded[: len(scaled)] = scaled
        return Inputs(pixels, self._prompt(scaled), padded)

    def actions(self, chunk: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """In units, and added to the state where the model gives them relative to it."""
        dim, processors = self._config.action_dim, self._processors
        values = processors.action.restore(chunk[:, :dim])
        if processors.relative:
            values = values + state[:dim] * torch.tensor(processors.relative)
        return values

    def _prompt(self, state: torch.Tensor) -> torch.Tensor:
        config = self._config
        if config.kind != "pi05":
            return self._ids
        ids = self._tokenizer(prompt_text(config.kind, self._task, state_bins(state.numpy())))
        if len(ids) > config.max_text:
            raise InvalidAction(
                f"with this state the prompt has {len(ids)} tokens, the most is {config.max_text}"
            )
        return torch.tensor(ids, device=self._device)
