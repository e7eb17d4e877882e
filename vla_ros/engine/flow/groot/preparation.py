"""Between a robot's units and a GR00T's, for one instruction at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from vla_ros.core import Image
from vla_ros.engine.errors import CheckpointError, InvalidAction
from vla_ros.engine.flow.family import Inputs
from vla_ros.engine.flow.groot.config import GrootConfig
from vla_ros.engine.flow.groot.embodiment import Embodiment
from vla_ros.engine.flow.groot.pictures import framed
from vla_ros.engine.flow.groot.prompt import formal
from vla_ros.engine.flow.groot.units import actions_to_robot, state_to_model


class GrootPreparation:
    """See :class:`vla_ros.engine.flow.family.Preparation`."""

    def __init__(
        self,
        config: GrootConfig,
        robot: Embodiment,
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
            pixels.append(framed(image, self._robot.framing))
        shown = state_to_model(self._robot.state, state.numpy(), self._robot.clip)
        padded = torch.zeros(config.head.state_width)
        padded[: len(shown)] = torch.from_numpy(shown)
        return Inputs(torch.stack(pixels), self._ids, padded)

    def actions(self, chunk: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """In units, and absolute where the model gives them relative to the state."""
        values = np.asarray(chunk[:, : self._config.action_dim].numpy(), dtype=np.float32)
        made = actions_to_robot(self._robot.actions, values, state.numpy())
        return torch.from_numpy(made).float()
