"""Between a robot's units and a GR00T's, for one instruction at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from vla_ros.core import Image
from vla_ros.engine.errors import CheckpointError, InvalidAction
from vla_ros.engine.flow.family import Inputs
from vla_ros.engine.flow.groot.config import GrootConfig
from vla_ros.engine.flow.groot.prompt import formal
from vla_ros.engine.flow.groot.robot import Robot


class GrootPreparation:
    """See :class:`vla_ros.engine.flow.family.Preparation`."""

    def __init__(
        self,
        config: GrootConfig,
        robot: Robot,
        prompt: Callable[[GrootConfig, str, int], str],
        tokenizer: Callable[[str], list[int]],
    ) -> None:
        self._config, self._robot = config, robot
        self._prompt, self._tokenizer = prompt, tokenizer
        self._ids = torch.empty(0, dtype=torch.int64)

    def instruct(self, text: str) -> None:
        """Tokenise once. CheckpointError where the tokenizer does not know pictures."""
        config = self._config
        views = len(config.cameras)
        said = formal(text) if self._robot.formal else text
        ids = self._tokenizer(self._prompt(config, said, views))
        places, wanted = ids.count(config.backbone.image_token), views * config.view_tokens
        if places != wanted:
            raise CheckpointError(
                f"the tokenizer gives {places} places of {wanted} for pictures (id"
                f" {config.backbone.image_token}): it does not belong to this model"
            )
        if len(ids) > config.longest:
            raise ValueError(
                f"the instruction makes a prompt of {len(ids) - wanted} tokens, the most is"
                f" {config.max_text}"
            )
        self._ids = torch.tensor(ids)

    def inputs(self, images: Sequence[Image | None], state: torch.Tensor) -> Inputs:
        """InvalidAction where a camera is said to be absent: these models know no such thing."""
        config = self._config
        pixels = []
        for name, image in zip(config.cameras, images, strict=True):
            if image is None:
                raise InvalidAction(f"this checkpoint needs its camera {name!r}: it cannot be none")
            pixels.append(self._robot.picture(image))
        shown = self._robot.shown(state)
        padded = torch.zeros(config.head.state_width)
        padded[: len(shown)] = shown
        return Inputs(torch.stack(pixels), self._ids, padded)

    def actions(self, chunk: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """In units, and absolute where the model gives them relative to the state."""
        return self._robot.restored(chunk, state)
