"""The robot's side of a policy: an observation -> inputs, what was decoded -> actions in units.

The images and the state of a robot are checked here, and its actions have its units.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import copy
from typing import Any

import numpy as np
import torch

from vla_ros.core.types import Floats, Image, Inference, Observation
from vla_ros.engine.errors import CheckpointError, InvalidAction
from vla_ros.engine.io.config import ModelConfig
from vla_ros.engine.io.fast_tokens import FastTokens
from vla_ros.engine.io.images.preprocessor import Preprocessor
from vla_ros.engine.io.processors import Scaler
from vla_ros.engine.io.tokens import Normalizer
from vla_ros.engine.layers.devices import downloaded
from vla_ros.engine.layers.flow_matching import RtcMode
from vla_ros.engine.layers.request import Chunk, Decoded
from vla_ros.engine.models.base import Inputs, PolicyConfig
from vla_ros.engine.models.cameras import ABSENT, WRIST, images_of, roles_of
from vla_ros.engine.models.minivla import ActionTokens
from vla_ros.engine.models.openvla import camera_pixels
from vla_ros.engine.models.preparation import Preparation
from vla_ros.engine.options import EngineOptions


class RobotSide(ABC):
    """The robot's side of one session: observations into inputs, decoded values into actions.

    ``cameras``: images that an observation must have; ``camera_roles``: further ones;
    ``state_middle``: of each value of the state in its data, in their units, () where nothing
    states it; ``doubt``: one line about what may go wrong with this data, or "".
    """

    cameras: int
    camera_roles: tuple[str, ...] = ()
    state_middle: tuple[float, ...] = ()
    doubt: str = ""

    def session(self) -> RobotSide:
        """The side of another robot, with an instruction of its own."""
        return copy(self)

    def instruct(self, text: str) -> None:
        """Take on an instruction. ValueError: too long for the model."""

    @abstractmethod
    def prepare(self, observation: Observation) -> Any:
        """The network's inputs of an observation. InvalidAction, ValueError: it lacks some."""

    @abstractmethod
    def finish(self, decoded: Any) -> Inference:
        """The actions in units of what was decoded, checked. InvalidAction: they are none."""


class TokenSide(RobotSide):
    """The side of OpenVLA and its kin: pixels in, values in [-1, 1] by the checkpoint's statistics.

    ``action`` and ``state`` (None: it takes none) are these statistics; ``more``: the robot's
    roles beside main and wrist, of which the first are the checkpoint's further cameras.
    """

    def __init__(
        self,
        config: ModelConfig,
        tokens: ActionTokens,
        action: Normalizer,
        state: Normalizer | None,
        preprocess: Preprocessor,
        more: tuple[str, ...] = (),
    ) -> None:
        self.config, self.normalizer, self.cameras = config, action, min(2, config.images)
        self.camera_roles = more[: max(0, config.images - 2)]
        if self.cameras + len(self.camera_roles) < config.images:
            raise CheckpointError(
                f"this checkpoint looks at {config.images} cameras: main, wrist and"
                f" {config.images - 2} more, whose roles camera_roles gives in their order"
            )
        self._tokens, self._preprocess = tokens, preprocess
        if state is not None:
            self.state_middle = middle_of(state.low, state.high)

    def prepare(self, observation: Observation) -> tuple[torch.Tensor, ...]:
        """Pixels [images, 3, s, s] per vision tower."""
        count = self.config.images
        return camera_pixels(self._preprocess, observation, count, self.camera_roles)

    def finish(self, decoded: Decoded) -> Inference:
        """The actions in units, by the checkpoint's statistics, of tokens or of a head's values in
        [-1, 1]."""
        chunk, dim = self.config.chunk, self.normalizer.dim
        if decoded.actions is None:
            if len(decoded.tokens) != chunk * dim:
                raise InvalidAction(
                    f"the model gave {len(decoded.tokens)} tokens, an action has {chunk * dim}"
                )
            values = self._tokens.decode(decoded.tokens)
        else:
            values = decoded.actions.numpy()
        values = self.normalizer.restore(values.reshape(chunk, dim))
        return decoded.inference(
            finite(values, "check the checkpoint's norm_stats"),
            min(max(decoded.delay_steps, 0), self.config.max_delay),
        )


class ChunkSide(RobotSide):
    """The side of a flow policy: images by the roles of the cameras and the state in, chunks out.

    ``preparation`` is its family's, for a session; ``scaler`` of the state where it has one. With
    ``preprocessing`` libero the network sees the mirror image, as it was trained: LeRobot's
    ``LiberoProcessorStep`` turns the simulator's image, which stands on its head, by 180 degrees.
    """

    def __init__(
        self, config: PolicyConfig, preparation: Preparation, scaler: Any, options: EngineOptions
    ) -> None:
        self.config, self.preparation = config, preparation
        self.roles = check_layout(config, options)
        _check_rtc(config, options.rtc_mode)
        self.cameras = 2 if WRIST in self.roles else 1
        self._mirrored = options.preprocessing == "libero"
        self.camera_roles = tuple(role for role in options.camera_roles if role in self.roles)
        ends = scaler.ends() if isinstance(scaler, Scaler) else ()
        middle = middle_of(*(end.double().numpy() for end in ends)) if ends else ()
        self.state_middle = middle if len(middle) == config.state_dim else ()
        still = scaler.still() if isinstance(scaler, Scaler) else torch.zeros(0)
        self._still: Scaler | None = None  # of values that are taken to be as in the data
        if still.any() and options.still_state == "clamp":
            self._still = scaler
        elif still.any():
            places = ", ".join(map(str, still.nonzero().flatten().tolist()))
            self.doubt = (
                f"state value {places} (counted from 0) never moved in the data, so what the robot"
                f" is off there is divided by {scaler.eps:g}: unless it stands exactly there, give"
                " engine_options [still_state=clamp]"
            )

    def session(self) -> ChunkSide:
        """The side of another robot, with a prompt of its own."""
        other = copy(self)
        other.preparation = copy(self.preparation)
        return other

    def instruct(self, text: str) -> None:
        """Take on an instruction. ValueError: too long for the model."""
        self.preparation.instruct(text)

    def prepare(self, observation: Observation) -> Inputs:
        """Pixels, prompt and state. InvalidAction: a camera or the state is missing."""
        images, state = self._images(observation), self.state(observation)
        if self._still is not None:
            state = torch.where(self._still.still(), self._still.low, state)
        return self.preparation.inputs(images, state)

    def finish(self, decoded: Chunk) -> Inference:
        """The chunk in the robot's units."""
        observation = decoded.observation
        return Inference(
            stamp_ns=observation.stamp_ns,
            actions=self.actions(
                downloaded(decoded.values), observation, "the weights or the input are damaged"
            ),
            timeline=decoded.stages.resolve(),
            target_passes=1,
            continues=observation.executing if decoded.guided else None,
        )

    def actions(self, chunk: torch.Tensor, observation: Observation, why: str) -> Floats:
        """A chunk [H, D] on the CPU -> actions [H, A] in units, of this observation's state;
        InvalidAction with ``why`` where one is not finite."""
        return finite(self.preparation.actions(chunk, self.state(observation)).numpy(), why)

    def state(self, observation: Observation) -> torch.Tensor:
        """The robot's state float32 [state_dim]. InvalidAction: it is none of this length."""
        wanted, given = self.config.state_dim, observation.proprio
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

    def _images(self, observation: Observation) -> tuple[Image | None, ...]:
        """The image of each of the checkpoint's cameras. InvalidAction: the frame lacks one."""
        given = images_of(observation, self.roles)
        for role, name, image in zip(self.roles, self.config.cameras, given, strict=True):
            if image is None and role != ABSENT:
                raise InvalidAction(
                    f"this checkpoint needs a {role} image (its camera {name!r}) and the frame"
                    " has none"
                )
        if not self._mirrored:
            return given
        return tuple(None if one is None else np.ascontiguousarray(one[:, ::-1]) for one in given)


class FastSide(ChunkSide):
    """The side of pi0-FAST: a flow policy's, of chunks that come as tokens of their DCT."""

    def __init__(
        self,
        config: PolicyConfig,
        preparation: Preparation,
        scaler: Any,
        options: EngineOptions,
        tokens: FastTokens,
    ) -> None:
        super().__init__(config, preparation, scaler, options)
        self._tokens = tokens
        self.views = sum(role != ABSENT for role in self.roles)

    def finish(self, decoded: Decoded) -> Inference:  # type: ignore[override]
        """The chunk in the robot's units: tokens to coefficients of the DCT to values."""
        assert decoded.observation is not None
        chunk = torch.from_numpy(self._tokens.decode(decoded.tokens)).float()
        why = "check the checkpoint's statistics"
        return decoded.inference(self.actions(chunk, decoded.observation, why))


def check_layout(config: PolicyConfig, options: EngineOptions) -> tuple[str, ...]:
    """The roles of a checkpoint's cameras. CheckpointError, wanted against offered, for one that
    this robot cannot feed or obey."""
    wrong = []
    if options.action_dim not in (0, config.action_dim):
        wrong.append(f"action: {options.action_dim} values are wanted, the checkpoint has"
                     f" {config.action_dim}")  # fmt: skip
    roles: tuple[str, ...] = ()
    try:
        roles = roles_of(config.cameras, options.camera_map or None, options.camera_roles)
    except CheckpointError as error:
        wrong.append(str(error))
    if wrong:
        raise CheckpointError("this checkpoint does not fit the robot: " + "; ".join(wrong))
    return roles


def _check_rtc(config: PolicyConfig, rtc: str) -> None:
    """CheckpointError where the network cannot continue a chunk in the way that was chosen."""
    wanted = "" if not rtc else "rtc_trained" if rtc == RtcMode.TRAINED else "rtc"
    if not wanted or wanted in config.continues:
        return
    ways = ", ".join(("sync", "async", "ensemble", *config.continues))
    why = "a solver to guide, and this network has none"
    if config.steps:
        why = "a network that takes a time for each action, and this one takes one for all"
    raise CheckpointError(f"execution {wanted!r} needs {why}: choose {ways}")


def middle_of(low: Floats, high: Floats) -> tuple[float, ...]:
    """The middle of each value between its two ends."""
    return tuple(((low + high) / 2.0).tolist())


def finite(values: Floats, why: str) -> Floats:
    """Actions [C, A] as float64. InvalidAction where one is not finite."""
    actions = np.ascontiguousarray(values, dtype=np.float64)
    if not np.isfinite(actions).all():
        raise InvalidAction(f"an action is not finite: {why}")
    return actions
