"""The engine's face for flow policies: observation in, a chunk of actions in units out."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import torch

from vla_ros.core import Inference, Observation, PolicyInfo, Timeline
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.flow.accepting import refuse_formats
from vla_ros.engine.flow.cameras import WRIST, roles_of
from vla_ros.engine.flow.continuing import REMEMBERED, guidance_of
from vla_ros.engine.flow.families import config_of, family_of, flow_source
from vla_ros.engine.flow.family import Choice, Config, Loaded, Place
from vla_ros.engine.flow.head import FlowHead
from vla_ros.engine.flow.primitive import Continuing, Guidance
from vla_ros.engine.flow.solver import generator_for
from vla_ros.engine.options import AUTO, FLOW_OPTIONS, EngineOptions
from vla_ros.engine.packed.graphs import Capture, CudaCapture
from vla_ros.engine.quantised.formats import parse_formats
from vla_ros.engine.stages import StageTimer
from vla_ros.timing import Clock

#: Options of the engine that mean something here; the others belong to token policies.
_OURS = {
    "checkpoint", "device", "dtype", "seed", "action_dim", "cuda_graphs", "threads", "camera_roles",
    "rtc", "rtc_limit", "unnorm_key", "weights", *FLOW_OPTIONS,
}  # fmt: skip
_ANY_SCHEDULE = (AUTO, "autoregressive")  # what is asked for where nobody chose
#: What "auto" would draft with, should it draft: here it does not.
_IF_IT_DRAFTS = {"adaptive_draft", "draft_extrapolation", "gamma"}


class FlowEngine:
    """A loaded flow policy, one instruction at a time. One thread."""

    def __init__(self, policy: Loaded, options: EngineOptions) -> None:
        self.options, self.policy = options, policy
        self.roles = check_layout(policy.config, options)
        self.head = FlowHead(policy, self.roles)
        self._text: str | None = None
        self._prepared: int | None = None  # graphs that there were when all were prepared
        self._chunks: dict[int, torch.Tensor] = {}  # the newest in model space, by stamp
        config: Config = policy.config
        _check_rtc(config, options.rtc)
        self.info = PolicyInfo(
            name="vla",
            schedule="flow",
            checkpoint=options.checkpoint,
            checkpoint_sha256=policy.sha256,
            device=str(policy.model.device),
            dtype=options.dtype,
            chunk_length=config.horizon,
            state_dim=config.state_dim,
            camera_roles=tuple(role for role in options.camera_roles if role in self.roles),
            action_space=policy.action_space,
            continues=config.continues,
        )

    @property
    def cameras(self) -> int:
        """How many images an observation must have: 2 with the wrist's."""
        return 2 if WRIST in self.roles else 1

    @property
    def last_chunk(self) -> torch.Tensor | None:
        """The newest chunk in model space [H, D], for the guidance of the next one."""
        return next(reversed(self._chunks.values()), None)

    def reset(self, text: str) -> None:
        """Begin a new instruction or episode. ValueError: empty, or too long for the model."""
        if not text.strip():
            raise ValueError("the instruction is empty")
        self._chunks.clear()
        if text != self._text:
            self.head.instruct(text)
            self._text = text

    def step(
        self,
        observation: Observation,
        timeline: Timeline,
        clock: Clock,
        guidance: Guidance | None = None,
    ) -> Inference:
        """Answer an observation with a whole chunk.

        Marks preprocess, vision, prefill (the prefix) and decode (all solver steps). The noise
        belongs to the observation's stamp and the engine's seed, so a replay says the same.
        With the option ``rtc`` the chunk continues the one that the observation says is executed,
        if that is among the last few; ``guidance`` overrides it.
        InvalidAction: the observation lacks something, or an action is not finite.
        """
        if self._text is None:
            raise RuntimeError("no instruction yet: call reset(text) before step()")
        if self._prepared is None:
            self._prepare(observation)
        stages = StageTimer(timeline, clock, self.policy.model.device)
        prefix = self.head.encode(observation, stages)
        random = generator_for(self.options.seed, observation.stamp_ns)
        noise = self.policy.model.noise(random)
        guidance = guidance or self._guidance(observation)
        chunk = self.head.integrate(prefix, None, noise, guidance)
        stages.mark("decode")
        actions = self.head.in_units(chunk.cpu(), observation)  # the one host sync
        self._chunks[observation.stamp_ns] = chunk
        while len(self._chunks) > REMEMBERED:
            del self._chunks[next(iter(self._chunks))]
        return Inference(
            stamp_ns=observation.stamp_ns,
            actions=actions,
            timeline=stages.resolve(),
            target_passes=1,
            continues=observation.executing if guidance is not None else None,
            captures=self.captures_in_service,
        )

    @property
    def captures_in_service(self) -> int:
        """Graphs captured since all were prepared, while a robot waited: 0 if all is well."""
        captured: int = self.policy.model.captured.count
        return 0 if self._prepared is None else captured - self._prepared

    def _prepare(self, observation: Observation) -> None:
        """Capture what may come: pi0.5's prompt changes its length with the robot's state."""
        model, rtc = self.policy.model, self.options.rtc
        if model.padded:
            features = model.see(self.head.inputs(observation).pixels)
            model.prepare(len(features), (None, Continuing(rtc)) if rtc else (None,))
        self._prepared = int(model.captured.count)

    def _guidance(self, observation: Observation) -> Guidance | None:
        executing = observation.executing
        if not self.options.rtc or executing is None:
            return None
        chunk = self._chunks.get(executing.stamp_ns)
        if chunk is None:  # a new worker, or long ago
            return None
        how = Continuing(self.options.rtc)
        return guidance_of(chunk, executing, self.options.rtc_limit, how)


def _check_rtc(config: Config, rtc: str) -> None:
    """CheckpointError where the network cannot continue a chunk in the way that was asked for."""
    wanted = "" if not rtc else "rtc_trained" if rtc == Continuing.TRAINED else "rtc"
    if not wanted or wanted in config.continues:
        return
    ways = ", ".join(("sync", "async", "ensemble", *config.continues))
    why = "a solver to guide, and this network has a single pass"
    if config.steps:
        why = "a network that takes a time for each action, and this one takes one for all"
    raise CheckpointError(f"execution {wanted!r} needs {why}: choose {ways}")


def check_layout(config: Config, options: EngineOptions) -> tuple[str, ...]:
    """The roles of its cameras. CheckpointError, wanted against offered, for a checkpoint that
    this robot cannot feed or obey."""
    wrong = []
    if options.action_dim not in (None, config.action_dim):
        wrong.append(f"action: {options.action_dim} values are wanted, the checkpoint has"
                     f" {config.action_dim}")  # fmt: skip
    roles: tuple[str, ...] = ()
    try:
        roles = roles_of(config.cameras, options.flow_cameras, options.camera_roles)
    except CheckpointError as error:
        wrong.append(str(error))
    if wrong:
        raise CheckpointError("this checkpoint does not fit the robot: " + "; ".join(wrong))
    return roles


def load_flow(options: EngineOptions) -> FlowEngine | None:
    """The dispatch of ``load_engine``: None where the checkpoint is no flow policy."""
    source = flow_source(options.checkpoint)
    return None if source is None else load_flow_engine(source, options)


def load_flow_engine(source: Path | str, options: EngineOptions) -> FlowEngine:
    """The engine of what :func:`flow_source` found. CheckpointError in one line if it cannot."""
    _refuse_token_options(options)
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    capture: Capture | None = None
    if device.type == "cuda" and options.cuda_graphs:
        capture = CudaCapture(device)
    choice = choice_of(options)
    check_layout(config_of(source, choice), options)  # before any weight is read
    formats = parse_formats(options.weights)
    refuse_formats(source, formats, device, dtype, options.rtc)
    place = Place(device, dtype, capture, formats)
    policy = family_of(source).load(source, choice, place, options.seed)
    return FlowEngine(policy, options)


def choice_of(options: EngineOptions) -> Choice:
    """What of the options belongs to the family."""
    return Choice(options.tokenizer, options.flow_steps, options.embodiment, options.unnorm_key)


def _refuse_token_options(options: EngineOptions) -> None:
    chosen = [f.name for f in fields(options)
              if f.name not in _OURS and getattr(options, f.name) != f.default]  # fmt: skip
    if options.schedule in _ANY_SCHEDULE:
        chosen = [name for name in chosen if name != "schedule"]
    if options.schedule == AUTO:
        chosen = [name for name in chosen if name not in _IF_IT_DRAFTS]
    if chosen:
        raise ValueError(f"{', '.join(chosen)}: these options are for token policies, not for flow")
