"""The engine: observation in, de-normalised actions out. ROS-free; used by one thread.

``engine = load_engine(EngineOptions(checkpoint="random:small"))``, then
``engine.reset("pick up the red cube")`` and ``engine.step(observation, timeline, clock)``.
"""

from __future__ import annotations

import numpy as np
import torch

from vla_ros.core import Inference, Observation, PolicyInfo, Timeline
from vla_ros.engine.ahead import Ahead, Coming, Sight
from vla_ros.engine.cameras import camera_pixels
from vla_ros.engine.checkpoints.openvla import Checkpoint, load_checkpoint, quantised
from vla_ros.engine.checkpoints.random import PREFIX, load_random
from vla_ros.engine.errors import CheckpointError, InvalidAction
from vla_ros.engine.factory import ScheduleParts, make_schedule
from vla_ros.engine.flow.engine import FlowEngine, load_flow
from vla_ros.engine.inspection import refuse_weights
from vla_ros.engine.layout import action_space_of
from vla_ros.engine.model import Capture, ModelOptions, Prompt, VLAModel
from vla_ros.engine.options import FLOW_OPTIONS, EngineOptions
from vla_ros.engine.quantised.formats import parse_formats
from vla_ros.engine.request import Decoded, Request
from vla_ros.engine.schedules.auto import resolve
from vla_ros.engine.schedules.base import Schedule
from vla_ros.engine.tokens import MAX_TEXT, Normaliser, PromptTokenizer, read_normaliser
from vla_ros.engine.vision.images import Preprocessor
from vla_ros.timing import Clock


class Engine:
    """A loaded policy: one model, one schedule, one instruction at a time.

    ``options`` and ``info`` name the schedule that runs, where the given options said "auto".
    ``capture`` is how graphs are captured, where not as CUDA graphs on CUDA (tests).
    """

    def __init__(
        self, checkpoint: Checkpoint, options: EngineOptions, capture: Capture | None = None
    ) -> None:
        device, dtype = torch.device(options.device), getattr(torch, options.dtype)
        self.options = options = resolve(options, checkpoint.config)
        formats = parse_formats(options.weights)
        if formats:
            checkpoint = quantised(checkpoint, formats)
        self.model = VLAModel(
            checkpoint,
            device,
            dtype,
            ModelOptions(
                options.backend, options.cuda_graphs, options.compile, options.attention, capture,
                options.schedule != "generate",  # which is transformers' and takes them plain
                options.vision_streams, gemm=options.gemm,
            ),
        )  # fmt: skip
        config = self.model.config
        self.normaliser = _normaliser(checkpoint, options)
        self.tokenizer = PromptTokenizer(checkpoint.directory, config)
        self._preprocess = Preprocessor(
            config, device, dtype, options.center_crop, options.preprocessing, options.image_steps
        )
        # Only a schedule that reads its answer later has the time.
        beside = device.type == "cuda" and options.look_ahead and options.schedule == "actionflow"
        self.sight = Sight(self.model, self.pixels, beside)
        self._ahead = Ahead(self.sight)
        self._tokens = self.normaliser.dim * config.chunk
        longest = config.patches + MAX_TEXT
        parts = ScheduleParts(
            self.model, options, self.normaliser.dim, self._tokens, longest,
            lambda name: open_checkpoint(name, options.seed, device, dtype),
            _proprio(checkpoint, options),
        )  # fmt: skip
        self.schedule: Schedule = make_schedule(parts)
        self._longest = longest
        self._text: str | None = None
        self._prompts: list[Prompt] = []  # by the delay that they name
        self._prepared: int | None = None  # graphs that there were when all were prepared
        self.info = PolicyInfo(
            name="vla",
            schedule=options.schedule,
            checkpoint=options.checkpoint,
            checkpoint_sha256=checkpoint.sha256,
            device=str(device),
            dtype=options.dtype,
            pipeline_depth=self.schedule.depth,
            chunk_length=config.chunk,
            max_tokens=self._tokens,
            state_dim=config.proprio_dim,
            action_space=action_space_of(self.normaliser.dim),
            max_delay=config.max_delay,
        )

    @property
    def cameras(self) -> int:
        """How many images an observation must have."""
        return self.model.config.images

    @property
    def captures_in_service(self) -> int:
        """Graphs captured since all were prepared, while a robot waited: 0 if all is well."""
        return 0 if self._prepared is None else self.model.captures - self._prepared

    def reset(self, text: str) -> None:
        """Begin a new instruction or episode: tokenise once, forget pipeline, KV and drafts.

        Raises ValueError for an empty or an overlong instruction.
        """
        if not text.strip():
            raise ValueError("the instruction is empty")
        if text != self._text:
            config = self.model.config
            every = [self.tokenizer(text, delay) for delay in range(config.max_delay + 1)]
            longest = max(map(len, every))
            if longest + config.patches > self._longest:
                raise ValueError(f"the instruction has {longest} tokens, the most is {MAX_TEXT}")
            self.schedule.instruct(text)
            front = self.tokenizer.front
            self._prompts, self._text = [self.model.prompt(ids, front) for ids in every], text
        self.schedule.forget()
        self.sight.drop()

    def step(self, observation: Observation, timeline: Timeline, clock: Clock) -> Inference | None:
        """Answer an observation; None while a pipelined schedule fills.

        Marks preprocess, vision, prefill and decode. Raises InvalidAction when the output is
        no action, and forgets then whatever could carry the fault on.
        """
        request = self.request(observation, timeline, clock)
        if self.model.capture is not None and self._prepared is None:
            self.schedule.prepare(request, every=True)
            self._prepared = self.model.captures
        pending = self.schedule.submit(request)
        self._ahead.meanwhile(pending, clock)
        decoded = pending.read()
        if decoded is None:
            return None
        self._ahead.learn(decoded.timeline)
        return self.inference(decoded)

    def watch(self, coming: Coming) -> None:
        """``coming`` names the newest frame that waits: it may be seen before it is given."""
        self._ahead.watch(coming)

    def request(self, observation: Observation, timeline: Timeline, clock: Clock) -> Request:
        """Preprocess and see: everything before the language model."""
        if not self._prompts:
            raise RuntimeError("no instruction yet: call reset(text) before step()")
        seen = self.sight.see(observation, timeline, clock)
        named = self._prompts[self._told(observation.delay_steps)]
        prompt = self.model.sequence(named, seen.patches)
        return Request(
            observation.stamp_ns, prompt, seen.stages, seen.pixels, seen.features, observation,
            len(named.first),
        )  # fmt: skip

    def _told(self, delay_steps: int) -> int:
        """The delay that the prompt names: as near as the policy was trained for."""
        return min(max(delay_steps, 0), self.info.max_delay)

    def pixels(self, observation: Observation) -> tuple[torch.Tensor, ...]:
        """Preprocess: pixels [images, 3, s, s] per vision tower."""
        return camera_pixels(self._preprocess, observation, self.model.config.images)

    def inference(self, decoded: Decoded) -> Inference:
        """Check and de-normalise what a schedule decoded."""
        if not decoded.finite:
            self.schedule.forget(damaged=True)
            self.sight.drop()
            raise InvalidAction("a logit is not finite: the weights or the image are damaged")
        if decoded.actions is None:
            if len(decoded.tokens) != self._tokens:
                raise InvalidAction(
                    f"the model gave {len(decoded.tokens)} tokens, an action has {self._tokens}"
                )
            values = self.model.actions.decode(decoded.tokens)
        else:
            values = decoded.actions.double().cpu().numpy()
        values = values.reshape(self.model.config.chunk, self.normaliser.dim)
        actions = np.ascontiguousarray(self.normaliser.restore(values), dtype=np.float64)
        if not np.isfinite(actions).all():
            raise InvalidAction("an action is not finite: check the checkpoint's norm_stats")
        return Inference(
            stamp_ns=decoded.stamp_ns,
            actions=actions,
            timeline=decoded.timeline,
            tokens=decoded.tokens,
            target_passes=decoded.target_passes,
            draft_passes=decoded.draft_passes,
            drafted=decoded.drafted,
            accepted=decoded.accepted,
            told_delay=self._told(decoded.delay_steps),
            captures=self.captures_in_service,
        )


def _normaliser(checkpoint: Checkpoint, options: EngineOptions) -> Normaliser:
    slack = 1e-8 if checkpoint.config.parallel else 0.0
    minmax = checkpoint.config.minmax
    found = read_normaliser(
        checkpoint.norm_stats, options.unnorm_key, minmax=minmax, slack=slack,
        source=str(checkpoint.directory),
    )  # fmt: skip
    if options.action_dim is not None and found.dim != options.action_dim:
        raise CheckpointError(
            f"the checkpoint's actions have {found.dim} dimensions, wanted {options.action_dim}"
        )
    if checkpoint.config.parallel and found.dim != checkpoint.config.action_dim:
        raise CheckpointError(
            f"{checkpoint.directory}: the head gives {checkpoint.config.action_dim} values an"
            f" action, the statistics have {found.dim}"
        )
    return found


def _proprio(checkpoint: Checkpoint, options: EngineOptions) -> Normaliser | None:
    wanted, where = checkpoint.config.proprio_dim, str(checkpoint.directory)
    if wanted == 0:
        return None
    found = read_normaliser(
        checkpoint.norm_stats, options.unnorm_key, part="proprio",
        minmax=checkpoint.config.minmax, source=where,
    )  # fmt: skip
    if found.dim != wanted:
        raise CheckpointError(
            f"{where}: the model takes {wanted} values of robot state, its statistics have"
            f" {found.dim}"
        )
    return found


def open_checkpoint(name: str, seed: int, device: torch.device, dtype: torch.dtype) -> Checkpoint:
    """A directory, a hub id or ``random:<preset>``, read and checked."""
    if name.startswith(PREFIX):
        return load_random(name, seed, device, dtype)
    return load_checkpoint(name, device, dtype)


def load_engine(options: EngineOptions) -> Engine | FlowEngine:
    """Load a checkpoint and make its engine ready; both kinds have info, reset and step.

    Raises CheckpointError when the checkpoint does not fit, with a list of what is there.
    """
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is cuda, but torch finds no GPU here")
    if options.weights:
        refuse_weights(
            options.checkpoint, options.weights, options.device, options.dtype, options.rtc
        )
    flow = load_flow(options)
    if flow is not None:
        return flow
    asked = [name for name in FLOW_OPTIONS if getattr(options, name) is not None]
    if asked:
        raise ValueError(f"{', '.join(asked)}: these options are for flow policies, not for tokens")
    return Engine(open_checkpoint(options.checkpoint, options.seed, device, dtype), options)
