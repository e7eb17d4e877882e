"""The engine: an observation in, actions in units out. ROS-free; used by one thread.

``engine = load_engine(EngineOptions(checkpoint="random:small"))``, then
``engine.reset("pick up the red cube")`` and ``engine.step(observation, timeline, clock)``.

Every step is four stages: *prepare* the pixels and the state, *encode* them (a request: the
embedded prompt of a token policy, the KV prefix of a flow policy), *decode* tokens or integrate a
chunk, *finish* the actions in units. The robot's side of the policy does the first and the last,
its decoder the two between them.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from vla_ros.core.clock import Clock
from vla_ros.core.types import Floats, Inference, Observation, PolicyInfo, Timeline
from vla_ros.engine.decoding.base import ActionDecoder
from vla_ros.engine.decoding.draft_heads import RecursiveHead
from vla_ros.engine.decoding.factory import fast_head
from vla_ros.engine.decoding.flow import FlowDecoder
from vla_ros.engine.decoding.tokens import FastDecoder, PromptDecoder
from vla_ros.engine.families.base import LoadedPolicy
from vla_ros.engine.families.openvla import load_checkpoint
from vla_ros.engine.families.registry import source_of
from vla_ros.engine.io.images.preprocessor import Preprocessor
from vla_ros.engine.layers.pieces import Pieces, alone
from vla_ros.engine.layers.request import StageTimer
from vla_ros.engine.models.corrector import Corrector
from vla_ros.engine.models.robot_side import ChunkSide, FastSide, RobotSide, TokenSide, finite
from vla_ros.engine.options import FAST, TOKENS, EngineOptions

NO_INSTRUCTION = "no instruction yet: call reset(text) before step()"


class Engine:
    """A loaded policy between its robot's side and a decoder, with one instruction at a time.

    ``options`` and ``info`` name the decoding that runs, where the given options said "auto";
    ``head`` is a draft head of pi0-FAST in place of the one that the options name, ``corrector``
    one that was trained beside a flow policy.
    """

    def __init__(
        self,
        policy: LoadedPolicy,
        options: EngineOptions,
        *,
        head: RecursiveHead | None = None,
        corrector: Corrector | None = None,
    ) -> None:
        self.policy, self.corrector = policy, corrector
        self.robot, self.decoder = _parts(policy, options, head)
        self.options = self.decoder.options
        self._text: str | None = None
        config = policy.config
        self.info = PolicyInfo(
            name="vla",
            decoding=self.decoder.name,
            checkpoint=options.checkpoint,
            checkpoint_sha256=policy.sha256,
            device=str(self.model.device),
            dtype=options.dtype,
            pipeline_depth=self.decoder.depth,
            chunk_length=config.horizon,
            max_tokens=self.decoder.max_tokens,
            state_dim=config.state_dim,
            camera_roles=self.robot.camera_roles,
            action_space=policy.action_space,
            continues=self.decoder.continues,
            max_delay=self.decoder.max_delay,
            state_middle=self.robot.state_middle,
            contradiction=self.robot.doubt,
            corrects=0 if corrector is None else corrector.config.ahead + 1,
        )

    @property
    def model(self) -> Any:
        """The network of this session."""
        return self.decoder.model

    @property
    def cameras(self) -> int:
        """Number of images that an observation must have."""
        return self.robot.cameras

    @property
    def captures(self) -> int:
        """Graphs captured so far, a draft model's too."""
        return self.decoder.captures

    @property
    def captures_in_service(self) -> int:
        """Graphs captured since all were prepared, while a robot waited: 0 if all is well."""
        prepared = self.decoder.prepared
        return 0 if prepared is None else self.captures - prepared

    def reset(self, text: str) -> None:
        """Begin a new instruction or episode: tokenize once, forget pipeline, KV and drafts.

        Raises ValueError for an instruction that is empty or too long for the model.
        """
        if not text.strip():
            raise ValueError("the instruction is empty")
        if text != self._text:
            self.robot.instruct(text)
            self.decoder.instruct(text)
            self._text = text
        self.decoder.forget()

    def session(self, seed: int | None = None) -> Engine:
        """Another robot's episode on the same weights: an engine with an instruction, a KV cache,
        drafts, chunks and a ``seed`` (None: this one's) of its own.

        All sessions belong to the same thread. Their passes are not captured.
        """
        other = copy(self)
        other._text = None
        if seed is not None:
            other.options = replace(self.options, seed=seed)
        other.robot = self.robot.session()
        other.decoder = self.decoder.session(other.options, other.robot)
        return other

    def step(self, observation: Observation, timeline: Timeline, clock: Clock) -> Inference | None:
        """Answer an observation; None while a pipeline fills.

        Marks preprocess, vision, prefill and decode. Raises InvalidAction when the observation
        lacks something or the output is no action, and forgets then whatever could carry the
        fault on.
        """
        return alone(self.pieces(observation, timeline, clock))

    def pieces(
        self, observation: Observation, timeline: Timeline, clock: Clock
    ) -> Pieces[Inference | None]:
        """The answer of :meth:`step`, a piece at a time: so those of several sessions run as
        one."""
        request = yield from self._encoding(observation, timeline, clock)
        decoded = yield from self.decoder.decode(request)
        return None if decoded is None else self.finish(decoded)

    def encode(self, observation: Observation, timeline: Timeline, clock: Clock) -> Any:
        """The request of an observation: everything before its actions are decoded."""
        return alone(self._encoding(observation, timeline, clock))

    def _encoding(self, observation: Observation, timeline: Timeline, clock: Clock) -> Pieces[Any]:
        if self._text is None:
            raise RuntimeError(NO_INSTRUCTION)
        stages = StageTimer(timeline, clock, self.model.device)
        inputs = self.robot.prepare(observation)
        stages.mark("preprocess")
        return (yield from self.decoder.encode(inputs, observation, stages))

    def finish(self, decoded: Any) -> Inference:
        """The actions in units of what was decoded. InvalidAction: they are none."""
        inference = self.robot.finish(decoded)
        self.decoder.keep(decoded)
        return replace(inference, captures=self.captures_in_service)

    def correction(self, observation: Observation, actions: Floats, index: int) -> Floats:
        """Addends to the actions of a chunk from ``index`` on, float64 [n, D] in units, now that
        this newer observation is there. ``actions`` [n, D] in units, the first due with this
        observation, ``info.corrects`` at most. InvalidAction as of :meth:`step`."""
        if self.corrector is None:
            raise RuntimeError("this engine has no corrector")
        inputs, scaler = self.robot.prepare(observation), self.policy.processors.action
        added = self.corrector.added(self.model, scaler, inputs, actions, index)
        return finite(added, "the corrector or the input is damaged")


def _parts(
    policy: LoadedPolicy, options: EngineOptions, head: RecursiveHead | None
) -> tuple[RobotSide, ActionDecoder]:
    """The robot's side of a policy, and its decoder. ValueError: the options fit no such policy."""
    config, model, processors = policy.config, policy.model, policy.processors
    if policy.group == TOKENS:
        place = model.device, model.dtype
        action, state = processors.action, processors.state
        preprocess = Preprocessor(
            config,
            *place,
            options.center_crop == "always",
            options.preprocessing,
            options.image_steps,
        )
        more = options.camera_roles
        return TokenSide(config, model.actions, action, state, preprocess, more), PromptDecoder(
            model,
            policy.tokenizer,
            action,
            state,
            options,
            lambda name: load_checkpoint(name, *place, options.seed),
        )
    scaler = getattr(processors, "state", None)
    if policy.group != FAST:
        chunks = ChunkSide(config, policy.preparation(), scaler, options)
        return chunks, FlowDecoder(model, chunks, options)

    def draft_head() -> RecursiveHead:
        source = Path(source_of(options.checkpoint))
        return head or fast_head(model, source, options.draft_checkpoint)

    fast = FastSide(config, policy.preparation(), scaler, options, model.actions)
    model.views = fast.views
    return fast, FastDecoder(model, config.longest, options, draft_head)
