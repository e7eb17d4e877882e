"""The flow models as :class:`PrefixHead`: from an observation in the robot's units to a chunk."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from vla_ros.core import Image, Observation
from vla_ros.engine.errors import InvalidAction
from vla_ros.engine.flow.cameras import ABSENT, images_of
from vla_ros.engine.flow.images import padded_square
from vla_ros.engine.flow.load import FlowPolicy
from vla_ros.engine.flow.primitive import Guidance, Prefix, PrefixHead
from vla_ros.engine.flow.text import BINS, prompt_text, state_bins
from vla_ros.engine.stages import StageTimer


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """An observation as the network takes it: pixels [V, 3, s, s], prompt ids int64 [n], state."""

    pixels: torch.Tensor
    ids: torch.Tensor
    state: torch.Tensor


class FlowHead(PrefixHead[Prefix]):
    """pi0, pi0.5 or SmolVLA. ``roles`` are those of its cameras, see
    :mod:`vla_ros.engine.flow.cameras`."""

    def __init__(self, policy: FlowPolicy, roles: tuple[str, ...]) -> None:
        self._policy, self._model = policy, policy.model
        self._roles = tuple(role for role in roles if role != ABSENT)
        self._names = tuple(
            name for name, role in zip(policy.config.cameras, roles, strict=True) if role != ABSENT
        )
        self.horizon, self.width = policy.model.horizon, policy.model.width
        self._task = ""
        self._ids = torch.empty(0, dtype=torch.int64)

    def instruct(self, text: str) -> None:
        """Tokenise once. For pi0.5, whose prompt has the state in it, the longest that can come."""
        config = self._policy.config
        worst = np.full(config.state_dim, BINS - 1)
        ids = self._policy.tokenizer(prompt_text(config.kind, text, worst))
        if len(ids) > config.max_text:
            raise ValueError(
                f"the instruction makes a prompt of {len(ids)} tokens, the most is"
                f" {config.max_text}"
            )
        self._task, self._ids = text, torch.tensor(ids, device=self._model.device)

    def encode(self, observation: Observation, stages: StageTimer) -> Prefix:
        """InvalidAction where the observation lacks a camera or the state."""
        given = self.inputs(observation)
        stages.mark("preprocess")
        features = self._model.see(given.pixels)
        stages.mark("vision")
        prefix = self._model.prefill(features, given.ids, given.state)
        stages.mark("prefill")
        return prefix

    def inputs(self, observation: Observation) -> Inputs:
        """What the network is given; InvalidAction as of :meth:`encode`."""
        pixels = torch.stack([self._square(image) for image in self._images(observation)])
        state = self._state(observation)
        padded = torch.zeros(self._policy.config.state_width)
        padded[: len(state)] = state
        return Inputs(pixels, self._prompt(state), padded)

    def integrate(
        self,
        prefix: Prefix,
        state: torch.Tensor | None = None,
        noise: torch.Tensor | None = None,
        guidance: Guidance | None = None,
    ) -> torch.Tensor:
        if noise is None:
            raise ValueError("this head starts from noise: give noise [H, D]")
        return self._model.integrate(prefix, state, noise, guidance)

    def _images(self, observation: Observation) -> list[Image]:
        given = images_of(observation, self._roles)
        for role, name, image in zip(self._roles, self._names, given, strict=True):
            if image is None:
                raise InvalidAction(
                    f"this checkpoint needs a {role} image (its camera {name!r}) and the frame has"
                    " none"
                )
        return [image for image in given if image is not None]

    def _square(self, image: Image) -> torch.Tensor:
        config = self._policy.config
        return padded_square(image, config.image_size, centred=config.kind != "smolvla")

    def _state(self, observation: Observation) -> torch.Tensor:
        wanted, given = self._policy.config.state_dim, observation.proprio
        if given is None or len(given) != wanted:
            size = "none" if given is None else str(len(given))
            raise InvalidAction(
                f"this checkpoint needs {wanted} values of robot state, the frame has {size}"
            )
        values = torch.from_numpy(np.asarray(given, dtype=np.float32).copy())
        if not bool(values.isfinite().all()):
            raise InvalidAction(f"the robot's state is not finite: {values.tolist()}")
        return self._policy.processors.state.normalise(values)

    def _prompt(self, state: torch.Tensor) -> torch.Tensor:
        config = self._policy.config
        if config.kind != "pi05":
            return self._ids
        ids = self._policy.tokenizer(
            prompt_text(config.kind, self._task, state_bins(state.numpy()))
        )
        if len(ids) > config.max_text:
            raise InvalidAction(
                f"with this state the prompt has {len(ids)} tokens, the most is {config.max_text}"
            )
        return torch.tensor(ids, device=self._model.device)
