"""The decoder of flow policies: a prefix of the observation, and a chunk integrated from noise."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vla_ros.core.types import Observation
from vla_ros.engine.decoding.base import ActionDecoder
from vla_ros.engine.errors import InvalidAction
from vla_ros.engine.layers.flow_matching import (
    REMEMBERED,
    Guidance,
    RtcMode,
    generator_for,
    guidance_of,
)
from vla_ros.engine.layers.pieces import Pieces
from vla_ros.engine.layers.request import Chunk, StageTimer
from vla_ros.engine.models.base import FlowPolicy, Inputs, Prefix
from vla_ros.engine.models.robot_side import ChunkSide, RobotSide
from vla_ros.engine.options import EngineOptions


@dataclass(frozen=True, slots=True, eq=False)
class FlowRequest:
    """An observation as a flow policy's prefix."""

    observation: Observation
    stages: StageTimer
    prefix: Prefix


class FlowDecoder(ActionDecoder):
    """Chunks of pi0, pi0.5, SmolVLA, Evo-1, GR00T, TurboVLA.

    With the option ``rtc_mode`` a chunk continues the one that the observation says is executed, if
    that is among the last few.
    """

    name = "flow"
    model: FlowPolicy  # type: ignore[type-arg]

    def __init__(self, model: FlowPolicy, robot: ChunkSide, options: EngineOptions) -> None:  # type: ignore[type-arg]
        super().__init__(options)
        self.model, self.robot = model, robot
        self.continues = robot.config.continues
        #: the newest in model space and the states that they are of, by stamp
        self._chunks: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    @property
    def captures(self) -> int:
        """Graphs captured so far."""
        return self.model.captured.count

    def begin(self, robot: RobotSide) -> None:
        """Chunks of its own, and buffers where observations can be one pass. Other networks' hold
        one observation at a time, and sessions take turns."""
        assert isinstance(robot, ChunkSide)
        self.robot, self._chunks = robot, {}
        if self.model.joins:
            self.model = self.model.session()

    @property
    def last_chunk(self) -> torch.Tensor | None:
        """The newest chunk in model space [H, D], for the guidance of the next one."""
        return next(reversed(self._chunks.values()), (None, None))[0]

    def forget(self) -> None:
        """No chunk is continued."""
        self._chunks.clear()

    def encode(
        self, inputs: Inputs, observation: Observation, stages: StageTimer
    ) -> Pieces[FlowRequest]:
        """The prefix: what the action head reads of the observation. Marks vision and prefill."""
        if self.prepared is None:
            self._capture(inputs)
        prefix = yield from self.model.encoding(inputs, stages)
        return FlowRequest(observation, stages, prefix)

    def decode(self, request: FlowRequest, guidance: Guidance | None = None) -> Pieces[Chunk]:
        """Integrate a chunk from noise, which belongs to the observation's stamp and the engine's
        seed, so a replay says the same. ``guidance`` in place of the options'."""
        observation = request.observation
        noise = self.model.noise(generator_for(self.options.seed, observation.stamp_ns))
        guidance = guidance or self.guidance(observation)
        chunk = yield from self.model.sampling(request.prefix, noise, guidance)
        request.stages.mark("decode")
        return Chunk(observation, request.stages, chunk, guidance is not None)

    def keep(self, decoded: Chunk) -> None:
        """Memory of the last few chunks."""
        observation = decoded.observation
        self._chunks[observation.stamp_ns] = decoded.values, self.robot.state(observation)
        while len(self._chunks) > REMEMBERED:
            del self._chunks[next(iter(self._chunks))]

    def guidance(self, observation: Observation) -> Guidance | None:
        """Chunk that one of this observation continues by the options; None: it begins anew."""
        executing = observation.executing
        if not self.options.rtc_mode or executing is None:
            return None
        chunk, then = self._chunks.get(executing.stamp_ns, (None, None))
        if chunk is None or then is None:  # a new worker, or long ago
            return None
        begin, robot = executing.index, self.robot
        if begin < len(chunk):
            now, left = robot.state(observation), chunk[begin:]
            left = robot.preparation.reanchored(left, begin, then, now)
            chunk = torch.cat((chunk[:begin], left))
        mode = RtcMode(self.options.rtc_mode)
        most = getattr(robot.config, "max_delay", 0)
        if mode is RtcMode.TRAINED and most and executing.delay_steps > most:
            raise InvalidAction(
                f"answers are {executing.delay_steps} steps late, and this checkpoint was trained"
                f" for {most} (rtc_training_max_delay): choose execution rtc"
            )
        return guidance_of(chunk, executing, self.options.rtc_guidance_limit, mode)

    def _capture(self, inputs: Inputs) -> None:
        """Capture what may come: pi0.5's prompt changes its length with the robot's state."""
        if self.model.padded:
            features = self.model.image_features(inputs.pixels)
            mode = self.options.rtc_mode
            modes = (None, RtcMode(mode)) if mode else (None,)
            self.model.capture_graphs(len(features), modes)
        self.prepared = self.captures
