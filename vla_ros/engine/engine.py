"""The engine: an observation in, actions in units out. ROS-free; used by one thread.

``engine = load_engine(EngineOptions(checkpoint="random:small"))``, then
``engine.reset("pick up the red cube")`` and ``engine.step(observation, timeline, clock)``.

Every step is four stages: *prepare* the pixels and the state, *encode* them (a request: the
embedded prompt of a token policy, the KV prefix of a flow policy), *decode* tokens or integrate a
chunk, *unnormalize* the actions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from vla_ros.core.action_space import action_space_of
from vla_ros.core.clock import Clock
from vla_ros.core.types import Floats, Image, Inference, Observation, PolicyInfo, Timeline
from vla_ros.engine.decoding.base import Decoding
from vla_ros.engine.decoding.base import resolve as resolve_decoding
from vla_ros.engine.decoding.draft_heads import RecursiveHead
from vla_ros.engine.decoding.factory import (
    DecodingParts,
    fast_head,
    make_decoding,
    make_fast_decoding,
)
from vla_ros.engine.errors import CheckpointError, InvalidAction
from vla_ros.engine.families.base import LoadedPolicy
from vla_ros.engine.families.openvla import load_checkpoint, load_random, quantized
from vla_ros.engine.families.random import PREFIX
from vla_ros.engine.families.registry import flow_source
from vla_ros.engine.formats import parse_formats
from vla_ros.engine.io.checkpoint import Checkpoint
from vla_ros.engine.io.images.preprocessor import Preprocessor
from vla_ros.engine.io.processors import Scaler
from vla_ros.engine.io.tokens import MAX_TEXT, Normalizer, PromptTokenizer, read_normalizer
from vla_ros.engine.layers.flow_matching import (
    REMEMBERED,
    Guidance,
    RtcMode,
    generator_for,
    guidance_of,
)
from vla_ros.engine.layers.graphs import Capture
from vla_ros.engine.layers.pieces import Pieces, alone
from vla_ros.engine.layers.request import Decoded, Request, StageTimer
from vla_ros.engine.models.base import Inputs, PolicyConfig, Prefix
from vla_ros.engine.models.cameras import ABSENT, WRIST, images_of, roles_of
from vla_ros.engine.models.corrector import Corrector
from vla_ros.engine.models.openvla import ImageEncoding, Prompt, VLAModel, camera_pixels
from vla_ros.engine.models.pi0_fast import Pi0Fast
from vla_ros.engine.options import AUTO, EngineOptions

SESSIONS = "the model of sessions"
NO_INSTRUCTION = "no instruction yet: call reset(text) before step()"
RequestT = TypeVar("RequestT")
DecodedT = TypeVar("DecodedT")


class Engine(ABC, Generic[RequestT, DecodedT]):
    """A loaded policy: one model, one way of decoding, one instruction at a time.

    ``options`` and ``info`` name the decoding that runs, where the given options said "auto";
    ``cameras`` is how many images an observation must have.
    """

    info: PolicyInfo
    cameras: int

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self._text: str | None = None
        self._prepared: int | None = None  # graphs that there were when all were captured

    def reset(self, text: str) -> None:
        """Begin a new instruction or episode: tokenize once, forget pipeline, KV and drafts.

        Raises ValueError for an instruction that is empty or too long for the model.
        """
        if not text.strip():
            raise ValueError("the instruction is empty")
        if text != self._text:
            self.instruct(text)
            self._text = text
        self.forget()

    def step(self, observation: Observation, timeline: Timeline, clock: Clock) -> Inference | None:
        """Answer an observation; None while a pipeline fills.

        Marks preprocess, vision, prefill and decode. Raises InvalidAction when the observation
        lacks something or the output is no action, and forgets then whatever could carry the
        fault on.
        """
        if self._text is None:
            raise RuntimeError(NO_INSTRUCTION)
        decoded = self.decode(self.encode(observation, timeline, clock), clock)
        if decoded is None:
            return None
        return replace(self.unnormalize(decoded), captures=self.captures_in_service)

    def session(self, seed: int | None = None) -> Engine[RequestT, DecodedT]:
        """Another robot's episode on the same weights: an engine with an instruction, a KV cache,
        drafts, chunks and a ``seed`` (None: this one's) of its own.

        All sessions belong to the same thread. Their passes are not captured.
        """
        other = copy(self)
        other._text, other._prepared = None, None
        if seed is not None:
            other.options = replace(self.options, seed=seed)
        other.begin()
        return other

    @abstractmethod
    def begin(self) -> None:
        """Replace whatever belongs to one episode, in a copy of another session's engine."""

    def pieces(
        self, observation: Observation, timeline: Timeline, clock: Clock
    ) -> Pieces[Inference | None]:
        """The same as :meth:`step`, a piece at a time: so those of several sessions run as one.

        As it is here, in a single one.
        """
        yield from ()
        return self.step(observation, timeline, clock)

    @property
    def captures_in_service(self) -> int:
        """Graphs captured since all were prepared, while a robot waited: 0 if all is well."""
        return 0 if self._prepared is None else self.captures - self._prepared

    @property
    @abstractmethod
    def captures(self) -> int:
        """Graphs captured so far."""

    @abstractmethod
    def instruct(self, text: str) -> None:
        """Take on another instruction. ValueError: too long."""

    @abstractmethod
    def forget(self) -> None:
        """Forget what was computed of earlier observations."""

    @abstractmethod
    def prepare(self, observation: Observation) -> Any:
        """What the network is given of an observation. InvalidAction, ValueError: it lacks it."""

    @abstractmethod
    def encode(self, observation: Observation, timeline: Timeline, clock: Clock) -> RequestT:
        """Everything of an observation before its actions are decoded."""

    @abstractmethod
    def decode(self, request: RequestT, clock: Clock) -> DecodedT | None:
        """The answer that is now complete, perhaps to an earlier request; None: none is."""

    def correction(self, observation: Observation, actions: Floats, index: int) -> Floats:
        """What to add to actions of a chunk; only where :attr:`info` says that it corrects."""
        raise RuntimeError("this engine has no corrector")

    @abstractmethod
    def unnormalize(self, decoded: DecodedT) -> Inference:
        """Check the actions and bring them to units. InvalidAction: they are none."""


class TokenEngine(Engine[Request, Decoded]):
    """A policy whose language model says its actions: OpenVLA, MiniVLA, OFT, BitVLA.

    ``capture`` is how graphs are captured, where not as CUDA graphs on CUDA (tests).
    ``make_model`` builds the network, of the same arguments as :class:`VLAModel`.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        options: EngineOptions,
        capture: Capture | None = None,
        make_model: Callable[..., VLAModel] = VLAModel,
    ) -> None:
        device, dtype = torch.device(options.device), getattr(torch, options.dtype)
        options = resolve_decoding(options, checkpoint.config)
        super().__init__(options)
        formats = parse_formats(options.weights)
        if formats:
            checkpoint = quantized(checkpoint, formats)
        self.model = make_model(checkpoint, device, dtype, options, capture)
        config = self.model.config
        self.cameras = config.images
        self.normalizer = _normalizer(checkpoint, options)
        self.tokenizer = PromptTokenizer(checkpoint.directory, config)
        self._preprocess = Preprocessor(
            config,
            device,
            dtype,
            options.center_crop == "always",
            options.preprocessing,
            options.image_steps,
        )
        self._tokens = self.normalizer.dim * config.chunk
        self._longest = config.patches + MAX_TEXT
        proprio = _proprio(checkpoint, options)
        self._parts = DecodingParts(
            self.model,
            options,
            self.normalizer.dim,
            self._tokens,
            self._longest,
            lambda name: open_checkpoint(name, options.seed, device, dtype),
            proprio,
        )
        self._start()
        self.info = PolicyInfo(
            name="vla",
            decoding=options.decoding,
            checkpoint=options.checkpoint,
            checkpoint_sha256=checkpoint.sha256,
            device=str(device),
            dtype=options.dtype,
            pipeline_depth=self.decoding.depth,
            chunk_length=config.chunk,
            max_tokens=self._tokens,
            state_dim=config.proprio_dim,
            action_space=action_space_of(self.normalizer.dim),
            max_delay=config.max_delay,
            state_middle=() if proprio is None else _between(proprio.low, proprio.high),
        )

    def _start(self) -> None:
        """What belongs to an episode."""
        self.decoding: Decoding = make_decoding(self._parts)
        self._prompts: list[Prompt] = []  # by the delay that they name

    def begin(self) -> None:
        """A decoding of its own; a draft head or a draft model is that of all."""
        shared = self._parts.shared
        if SESSIONS not in shared:
            shared[SESSIONS] = self.model.uncaptured()
        self.model = shared[SESSIONS]
        self._parts = replace(self._parts, model=self.model, options=self.options)
        self._start()

    @property
    def captures(self) -> int:
        """Graphs captured so far, a draft model's too."""
        return self.model.captures

    def instruct(self, text: str) -> None:
        """Tokenize and embed the prompt, of every delay that it can name."""
        config = self.model.config
        every = [self.tokenizer(text, delay) for delay in range(config.max_delay + 1)]
        longest = max(map(len, every))
        if longest + config.patches > self._longest:
            raise ValueError(f"the instruction has {longest} tokens, the most is {MAX_TEXT}")
        self.decoding.instruct(text)
        front = self.tokenizer.front
        self._prompts = [self.model.prompt(ids, front) for ids in every]

    def forget(self) -> None:
        """Forget pipeline, KV and drafts."""
        self.decoding.forget()

    def prepare(self, observation: Observation) -> tuple[torch.Tensor, ...]:
        """Pixels [images, 3, s, s] per vision tower."""
        return camera_pixels(self._preprocess, observation, self.cameras)

    def encode(self, observation: Observation, timeline: Timeline, clock: Clock) -> Request:
        """Preprocess and encode the images: everything before the language model."""
        return alone(self._encoding(observation, timeline, clock))

    def pieces(
        self, observation: Observation, timeline: Timeline, clock: Clock
    ) -> Pieces[Inference | None]:
        """Vision, then the passes of the decoding."""
        if self._text is None:
            raise RuntimeError(NO_INSTRUCTION)
        request = yield from self._encoding(observation, timeline, clock)
        decoded = yield from self.decoding.pieces(request)
        return None if decoded is None else self.unnormalize(decoded)

    def _encoding(
        self, observation: Observation, timeline: Timeline, clock: Clock
    ) -> Pieces[Request]:
        """The request of an observation: its images prepared, encoded, put into the prompt."""
        stages = StageTimer(timeline, clock, self.model.device)
        pixels = self.prepare(observation)
        stages.mark("preprocess")
        features, patches = yield ImageEncoding(self.model, pixels)
        stages.mark("vision")
        named = self._prompts[self._told(observation.delay_steps)]
        prompt = self.model.sequence(named, patches)
        return Request(
            observation.stamp_ns, prompt, stages, pixels, features, observation, len(named.first)
        )

    def decode(self, request: Request, clock: Clock) -> Decoded | None:
        """The tokens (or a head's values) of the request whose passes are done."""
        if self.model.capture is not None and self._prepared is None:
            self.decoding.prepare(request, every=True)
            self._prepared = self.captures
        return self.decoding.step(request)

    def unnormalize(self, decoded: Decoded) -> Inference:
        """Tokens to values in [-1, 1] to units, by the statistics of the checkpoint."""
        if not decoded.finite:
            self.decoding.forget(damaged=True)
            raise InvalidAction("a logit is not finite: the weights or the image are damaged")
        if decoded.actions is None:
            if len(decoded.tokens) != self._tokens:
                raise InvalidAction(
                    f"the model gave {len(decoded.tokens)} tokens, an action has {self._tokens}"
                )
            values = self.model.actions.decode(decoded.tokens)
        else:
            values = decoded.actions.double().cpu().numpy()
        values = values.reshape(self.model.config.chunk, self.normalizer.dim)
        return Inference(
            stamp_ns=decoded.stamp_ns,
            actions=_finite(self.normalizer.restore(values), "check the checkpoint's norm_stats"),
            timeline=decoded.timeline,
            tokens=decoded.tokens,
            target_passes=decoded.target_passes,
            draft_passes=decoded.draft_passes,
            drafted=decoded.drafted,
            accepted=decoded.accepted,
            conditioning_delay=self._told(decoded.delay_steps),
        )

    def _told(self, delay_steps: int) -> int:
        """The delay that the prompt names: as near as the policy was trained for."""
        return min(max(delay_steps, 0), self.info.max_delay)


@dataclass(slots=True)
class FlowRequest:
    """An observation as a flow policy's prefix."""

    observation: Observation
    stages: StageTimer
    prefix: Prefix


@dataclass(slots=True)
class FlowChunk:
    """What a flow policy made of a request: a chunk [H, D] in model space, and whether it
    continues the one that is executed."""

    request: FlowRequest
    chunk: torch.Tensor
    guided: bool


class FlowEngine(Engine[FlowRequest, FlowChunk]):
    """A policy whose action head integrates a chunk: pi0, pi0.5, SmolVLA, Evo-1, GR00T."""

    def __init__(self, policy: LoadedPolicy, options: EngineOptions) -> None:
        super().__init__(options)
        self.policy, self.model = policy, policy.model
        config: PolicyConfig = policy.config
        self.roles = check_layout(config, options)
        _check_rtc(config, options.rtc_mode)
        self.cameras = 2 if WRIST in self.roles else 1
        self._preparation = policy.preparation()
        #: the newest in model space and the states that they are of, by stamp
        self._chunks: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.corrector: Corrector | None = None
        self.info = PolicyInfo(
            name="vla",
            decoding="flow",
            checkpoint=options.checkpoint,
            checkpoint_sha256=policy.sha256,
            device=str(policy.model.device),
            dtype=options.dtype,
            chunk_length=config.horizon,
            state_dim=config.state_dim,
            camera_roles=tuple(role for role in options.camera_roles if role in self.roles),
            action_space=policy.action_space,
            continues=config.continues,
            state_middle=_state_middle(policy),
        )

    @property
    def captures(self) -> int:
        """Graphs captured so far."""
        return int(self.model.captured.count)

    def begin(self) -> None:
        """A prompt and chunks of its own, and buffers where observations can be one pass. Other
        networks' hold one observation at a time, and sessions take turns."""
        self._preparation = copy(self._preparation)
        self._chunks = {}
        if self.model.joins:
            self.model = self.model.session()

    def pieces(
        self, observation: Observation, timeline: Timeline, clock: Clock
    ) -> Pieces[Inference | None]:
        """Images, prefix, and the steps of the solver."""
        if not self.model.joins or self.model.padded:  # or captured: the first engine's
            return self.step(observation, timeline, clock)
        if self._text is None:
            raise RuntimeError(NO_INSTRUCTION)
        stages = StageTimer(timeline, clock, self.model.device)
        inputs = self.prepare(observation)
        stages.mark("preprocess")
        prefix = yield from self.model.encoding(inputs, stages)
        noise = self.model.noise(generator_for(self.options.seed, observation.stamp_ns))
        guidance = self.guidance(observation)
        chunk = yield from self.model.sampling(prefix, noise, guidance)
        stages.mark("decode")
        request = FlowRequest(observation, stages, prefix)
        return self.unnormalize(FlowChunk(request, chunk, guidance is not None))

    @property
    def last_chunk(self) -> torch.Tensor | None:
        """The newest chunk in model space [H, D], for the guidance of the next one."""
        return next(reversed(self._chunks.values()), (None, None))[0]

    def instruct(self, text: str) -> None:
        """Take on an instruction. ValueError: too long for the model."""
        self._preparation.instruct(text)

    def forget(self) -> None:
        """No chunk is continued."""
        self._chunks.clear()

    def prepare(self, observation: Observation) -> Inputs:
        """Pixels, prompt and state. InvalidAction: a camera or the state is missing."""
        return self._preparation.inputs(self._images(observation), self._state(observation))

    def encode(self, observation: Observation, timeline: Timeline, clock: Clock) -> FlowRequest:
        """The prefix: what the action head reads of the observation."""
        if self._prepared is None:
            self._capture(observation)
        stages = StageTimer(timeline, clock, self.model.device)
        inputs = self.prepare(observation)
        stages.mark("preprocess")
        return FlowRequest(observation, stages, self.model.encode(inputs, stages))

    def decode(
        self, request: FlowRequest, clock: Clock, guidance: Guidance | None = None
    ) -> FlowChunk:
        """Integrate a chunk from noise, which belongs to the observation's stamp and the engine's
        seed, so a replay says the same.

        With the option ``rtc_mode`` the chunk continues the one that the observation says is
        executed, if that is among the last few; ``guidance`` overrides it.
        """
        stamp = request.observation.stamp_ns
        noise = self.model.noise(generator_for(self.options.seed, stamp))
        guidance = guidance or self.guidance(request.observation)
        chunk = self.model.sample_actions(request.prefix, None, noise, guidance)
        request.stages.mark("decode")
        return FlowChunk(request, chunk, guidance is not None)

    def unnormalize(self, decoded: FlowChunk) -> Inference:
        """The chunk in the robot's units."""
        observation = decoded.request.observation
        state = self._state(observation)
        values = self._preparation.actions(decoded.chunk.cpu(), state)
        actions = _finite(values.numpy(), "the weights or the input are damaged")
        self._chunks[observation.stamp_ns] = decoded.chunk, state
        while len(self._chunks) > REMEMBERED:
            del self._chunks[next(iter(self._chunks))]
        return Inference(
            stamp_ns=observation.stamp_ns,
            actions=actions,
            timeline=decoded.request.stages.resolve(),
            target_passes=1,
            continues=observation.executing if decoded.guided else None,
        )

    def take_corrector(self, corrector: Corrector) -> None:
        """Let :meth:`correction` say something."""
        self.corrector = corrector
        self.info = replace(self.info, corrects=corrector.config.ahead + 1)

    def correction(self, observation: Observation, actions: Floats, index: int) -> Floats:
        """What to add to the actions of a chunk from ``index`` on, float64 [n, D] in units, now
        that this newer frame is there. ``actions`` [n, D] in units, the first due with this frame,
        ``info.corrects`` at most. InvalidAction as of :meth:`prepare`."""
        assert self.corrector is not None, "ask info.corrects first"
        inputs, scaler = self.prepare(observation), self.policy.processors.action
        rows, count = self.model.read_rows(inputs).float(), len(actions)
        state = inputs.state[None, : self.corrector.config.state].to(rows.device)
        with torch.inference_mode():
            said = self.corrector(
                rows[None].expand(count, -1, -1),
                torch.full((count,), len(rows), device=rows.device),
                state.expand(count, -1),
                scaler.normalize(torch.from_numpy(actions).float()).to(rows.device),
                torch.arange(index, index + count, device=rows.device),
                torch.arange(count, device=rows.device),
            ).cpu()
        # The difference of two values in units: nothing added is exactly nothing.
        added = scaler.restore(said) - scaler.restore(torch.zeros_like(said))
        return _finite(added.numpy(), "the corrector or the input is damaged")

    def _capture(self, observation: Observation) -> None:
        """Capture what may come: pi0.5's prompt changes its length with the robot's state."""
        if self.model.padded:
            features = self.model.image_features(self.prepare(observation).pixels)
            mode = self.options.rtc_mode
            modes = (None, RtcMode(mode)) if mode else (None,)
            self.model.capture_graphs(len(features), modes)
        self._prepared = self.captures

    def guidance(self, observation: Observation) -> Guidance | None:
        """What a chunk of this observation continues by the options; None: it begins anew."""
        executing = observation.executing
        if not self.options.rtc_mode or executing is None:
            return None
        chunk, then = self._chunks.get(executing.stamp_ns, (None, None))
        if chunk is None or then is None:  # a new worker, or long ago
            return None
        begin = executing.index
        if begin < len(chunk):
            now, left = self._state(observation), chunk[begin:]
            left = self._preparation.reanchored(left, begin, then, now)
            chunk = torch.cat((chunk[:begin], left))
        mode = RtcMode(self.options.rtc_mode)
        most = getattr(self.policy.config, "max_delay", 0)
        if mode is RtcMode.TRAINED and most and executing.delay_steps > most:
            raise InvalidAction(
                f"answers are {executing.delay_steps} steps late, and this checkpoint was trained"
                f" for {most} (rtc_training_max_delay): choose execution rtc"
            )
        if mode is RtcMode.TRAINED and most:  # LeRobot gives the actions, padded with zeros
            chunk = chunk.clone()
            chunk[:, self.policy.config.action_dim :] = 0
        return guidance_of(chunk, executing, self.options.rtc_guidance_limit, mode)

    def _images(self, observation: Observation) -> tuple[Image | None, ...]:
        return _images_of(observation, self.roles, self.policy.config)

    def _state(self, observation: Observation) -> torch.Tensor:
        return _state_of(observation, self.policy.config)


class FastEngine(Engine[Request, Decoded]):
    """A policy that says the DCT of a chunk, until its end marker: pi0-FAST. ``head``: a draft head
    in place of the one that the options name."""

    def __init__(
        self, policy: LoadedPolicy, options: EngineOptions, head: RecursiveHead | None = None
    ) -> None:
        if options.decoding == AUTO:
            options = replace(options, decoding="speculative")
        super().__init__(options)
        self.policy, self.model, self._head = policy, policy.model, head
        config = policy.config
        self.roles = check_layout(config, options)
        _check_rtc(config, options.rtc_mode)
        self.cameras = 2 if WRIST in self.roles else 1
        self.model.views = sum(role != ABSENT for role in self.roles)
        self._preparation = policy.preparation()
        self.decoding: Decoding = self._decoding()
        self._asked: Observation | None = None
        self._shared: dict[str, Pi0Fast] = {}
        self.info = PolicyInfo(
            name="vla",
            decoding=options.decoding,
            checkpoint=options.checkpoint,
            checkpoint_sha256=policy.sha256,
            device=str(policy.model.device),
            dtype=options.dtype,
            chunk_length=config.horizon,
            max_tokens=config.max_tokens,
            state_dim=config.state_dim,
            camera_roles=tuple(role for role in options.camera_roles if role in self.roles),
            action_space=policy.action_space,
            state_middle=_state_middle(policy),
        )

    @property
    def captures(self) -> int:
        """Graphs captured so far."""
        return 0 if self.model.capture is None else int(self.model.capture.count)

    def _decoding(self) -> Decoding:
        return make_fast_decoding(
            self.model, self.options, self.policy.config.longest, self._draft_head
        )

    def _draft_head(self) -> RecursiveHead:
        """The one that it was given, or that its options name; all sessions have it."""
        if self._head is None:
            source = Path(flow_source(self.options.checkpoint) or "")
            self._head = fast_head(self.model, source, self.options.draft_checkpoint)
        return self._head

    def begin(self) -> None:
        """A prompt and a decoding of its own; a draft head is that of all."""
        self._preparation = copy(self._preparation)
        self.model = self._shared.setdefault(SESSIONS, self.model.uncaptured())
        self.decoding = self._decoding()

    def pieces(
        self, observation: Observation, timeline: Timeline, clock: Clock
    ) -> Pieces[Inference | None]:
        """The passes of the decoding."""
        if self._text is None:
            raise RuntimeError(NO_INSTRUCTION)
        request = self.encode(observation, timeline, clock)
        self._asked = observation
        decoded = yield from self.decoding.pieces(request)
        return None if decoded is None else self.unnormalize(decoded)

    def instruct(self, text: str) -> None:
        """Take on an instruction. ValueError: too long for the model."""
        self._preparation.instruct(text)
        self.decoding.instruct(text)

    def forget(self) -> None:
        """Forget KV and drafts."""
        self.decoding.forget()

    def prepare(self, observation: Observation) -> Inputs:
        """Pixels, prompt and state. InvalidAction: a camera or the state is missing."""
        images = _images_of(observation, self.roles, self.policy.config)
        return self._preparation.inputs(images, _state_of(observation, self.policy.config))

    def encode(self, observation: Observation, timeline: Timeline, clock: Clock) -> Request:
        """Everything before the language model; the prompt has the state in it."""
        stages = StageTimer(timeline, clock, self.model.device)
        inputs = self.prepare(observation)
        stages.mark("preprocess")
        features = self.model.image_features(inputs.pixels)
        prompt = self.model.sequence(features, inputs.ids)
        stages.mark("vision")
        return Request(observation.stamp_ns, prompt, stages, observation=observation)

    def decode(self, request: Request, clock: Clock) -> Decoded | None:
        """The tokens of the request, to the end marker."""
        if self._prepared is None:
            if self.model.capture is not None:
                self.decoding.prepare(request, every=True)
            self._prepared = self.captures
        self._asked = request.observation
        return self.decoding.step(request)

    def unnormalize(self, decoded: Decoded) -> Inference:
        """Tokens to coefficients to a chunk in the robot's units."""
        if not decoded.finite:
            self.decoding.forget(damaged=True)
            raise InvalidAction("a logit is not finite: the weights or the image are damaged")
        assert self._asked is not None
        chunk = torch.from_numpy(self.model.actions.decode(decoded.tokens)).float()
        values = self._preparation.actions(chunk, _state_of(self._asked, self.policy.config))
        return Inference(
            stamp_ns=decoded.stamp_ns,
            actions=_finite(values.numpy(), "check the checkpoint's statistics"),
            timeline=decoded.timeline,
            tokens=decoded.tokens,
            target_passes=decoded.target_passes,
            drafted=decoded.drafted,
            accepted=decoded.accepted,
        )


def _images_of(
    observation: Observation, roles: tuple[str, ...], config: PolicyConfig
) -> tuple[Image | None, ...]:
    """The image of each of the checkpoint's cameras. InvalidAction: the frame lacks one."""
    given = images_of(observation, roles)
    for role, name, image in zip(roles, config.cameras, given, strict=True):
        if image is None and role != ABSENT:
            raise InvalidAction(
                f"this checkpoint needs a {role} image (its camera {name!r}) and the frame has none"
            )
    return given


def _state_of(observation: Observation, config: PolicyConfig) -> torch.Tensor:
    """The robot's state float32 [state_dim]. InvalidAction: it is none of this length."""
    wanted, given = config.state_dim, observation.proprio
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


def _state_middle(policy: LoadedPolicy) -> tuple[float, ...]:
    """Of each value of the state in its data, in their units; () where none says."""
    scaler = getattr(policy.processors, "state", None)
    ends = scaler.ends() if isinstance(scaler, Scaler) else ()
    middle = _between(*(end.double().numpy() for end in ends)) if ends else ()
    return middle if len(middle) == policy.config.state_dim else ()


def _between(low: Floats, high: Floats) -> tuple[float, ...]:
    return tuple(((low + high) / 2.0).tolist())


def _finite(values: Floats, why: str) -> Floats:
    """Actions [C, A] float64. InvalidAction where one is not finite."""
    actions = np.ascontiguousarray(values, dtype=np.float64)
    if not np.isfinite(actions).all():
        raise InvalidAction(f"an action is not finite: {why}")
    return actions


# ------------------------------------------------------------------------------------------------
# A checkpoint, and whether it fits the robot and the options.


def open_checkpoint(name: str, seed: int, device: torch.device, dtype: torch.dtype) -> Checkpoint:
    """A token policy's directory, hub id or ``random:<preset>``, read and checked."""
    if name.startswith(PREFIX):
        return load_random(name, seed, device, dtype)
    return load_checkpoint(name, device, dtype)


def _check_rtc(config: PolicyConfig, rtc: str) -> None:
    """CheckpointError where the network cannot continue a chunk in the way that was asked for."""
    wanted = "" if not rtc else "rtc_trained" if rtc == RtcMode.TRAINED else "rtc"
    if not wanted or wanted in config.continues:
        return
    ways = ", ".join(("sync", "async", "ensemble", *config.continues))
    why = "a solver to guide, and this network has none"
    if config.steps:
        why = "a network that takes a time for each action, and this one takes one for all"
    raise CheckpointError(f"execution {wanted!r} needs {why}: choose {ways}")


def check_layout(config: PolicyConfig, options: EngineOptions) -> tuple[str, ...]:
    """The roles of its cameras. CheckpointError, wanted against offered, for a checkpoint that
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


def _normalizer(checkpoint: Checkpoint, options: EngineOptions) -> Normalizer:
    slack = 1e-8 if checkpoint.config.parallel else 0.0
    minmax = checkpoint.config.minmax
    found = read_normalizer(
        checkpoint.norm_stats, options.unnorm_key or None, minmax=minmax, slack=slack,
        source=str(checkpoint.directory),
    )  # fmt: skip
    if options.action_dim and found.dim != options.action_dim:
        raise CheckpointError(
            f"the checkpoint's actions have {found.dim} dimensions, wanted {options.action_dim}"
        )
    if checkpoint.config.parallel and found.dim != checkpoint.config.action_dim:
        raise CheckpointError(
            f"{checkpoint.directory}: the head gives {checkpoint.config.action_dim} values an"
            f" action, the statistics have {found.dim}"
        )
    return found


def _proprio(checkpoint: Checkpoint, options: EngineOptions) -> Normalizer | None:
    wanted, where = checkpoint.config.proprio_dim, str(checkpoint.directory)
    if wanted == 0:
        return None
    found = read_normalizer(
        checkpoint.norm_stats, options.unnorm_key or None, part="proprio",
        minmax=checkpoint.config.minmax, source=where,
    )  # fmt: skip
    if found.dim != wanted:
        raise CheckpointError(
            f"{where}: the model takes {wanted} values of robot state, its statistics have"
            f" {found.dim}"
        )
    return found
