"""The flow models as :class:`PrefixHead`: from an observation in the robot's units to a chunk."""

from __future__ import annotations

import numpy as np
import torch

from vla_ros.core import Floats, Image, Observation
from vla_ros.engine.errors import InvalidAction
from vla_ros.engine.flow.cameras import ABSENT, images_of
from vla_ros.engine.flow.family import Config, Inputs, Loaded, Network
from vla_ros.engine.flow.primitive import Guidance, Prefix, PrefixHead
from vla_ros.engine.stages import StageTimer


class FlowHead(PrefixHead[Prefix]):
    """A policy of any family. ``roles`` are those of its cameras, see
    :mod:`vla_ros.engine.flow.cameras`."""

    def __init__(self, policy: Loaded, roles: tuple[str, ...]) -> None:
        self._config: Config = policy.config
        self._model: Network = policy.model
        self._preparation = policy.preparation()
        self._roles = roles
        self.horizon, self.width = self._model.horizon, self._model.width

    def instruct(self, text: str) -> None:
        self._preparation.instruct(text)

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
        images = self._images(observation)
        return self._preparation.inputs(images, self._state(observation))

    def integrate(
        self,
        prefix: Prefix,
        state: torch.Tensor | None = None,
        noise: torch.Tensor | None = None,
        guidance: Guidance | None = None,
    ) -> torch.Tensor:
        return self._model.integrate(prefix, state, noise, guidance)

    def in_units(self, chunk: torch.Tensor, observation: Observation) -> Floats:
        """A chunk [H, D] on the CPU -> actions [H, action_dim], float64.

        InvalidAction where one is not finite.
        """
        values = self._preparation.actions(chunk, self._state(observation))
        actions = np.ascontiguousarray(values.numpy(), dtype=np.float64)
        if not np.isfinite(actions).all():
            raise InvalidAction("an action is not finite: the weights or the input are damaged")
        return actions

    def _images(self, observation: Observation) -> tuple[Image | None, ...]:
        given = images_of(observation, self._roles)
        for role, name, image in zip(self._roles, self._config.cameras, given, strict=True):
            if image is None and role != ABSENT:
                raise InvalidAction(
                    f"this checkpoint needs a {role} image (its camera {name!r}) and the frame has"
                    " none"
                )
        return given

    def _state(self, observation: Observation) -> torch.Tensor:
        wanted, given = self._config.state_dim, observation.proprio
        if not wanted:
            return torch.empty(0)
        if given is None or len(given) != wanted:
            size = "none" if given is None else str(len(given))
            raise InvalidAction(
                f"this checkpoint needs {wanted} values of robot state, the frame has {size}"
            )
        values = torch.from_numpy(np.asarray(given, dtype=np.float32).copy())
        if not bool(values.isfinite().all()):
            raise InvalidAction(f"the robot's state is not finite: {values.tolist()}")
        return values
