"""The decoders of token policies: a prompt with the observation's images in it, and a way of
decoding the tokens behind it.

OpenVLA's and its kin's, whose instruction is embedded once, and pi0-FAST's, whose prompt has the
robot's state in it: a new one for every observation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from vla_ros.core.types import Observation
from vla_ros.engine.decoding.base import ActionDecoder, Decoding
from vla_ros.engine.decoding.base import resolve as resolve_decoding
from vla_ros.engine.decoding.draft_heads import RecursiveHead
from vla_ros.engine.decoding.factory import (
    DecodingParts,
    LoadDraft,
    make_decoding,
    make_fast_decoding,
)
from vla_ros.engine.errors import InvalidAction
from vla_ros.engine.io.tokens import MAX_TEXT, Normalizer, PromptTokenizer
from vla_ros.engine.layers.pieces import Pieces
from vla_ros.engine.layers.request import Decoded, Request, StageTimer
from vla_ros.engine.models.base import Inputs
from vla_ros.engine.models.openvla import ImageEncoding, Prompt, VLAModel
from vla_ros.engine.models.pi0_fast import Pi0Fast
from vla_ros.engine.models.robot_side import RobotSide
from vla_ros.engine.options import AUTO, EngineOptions

SESSIONS = "the model of sessions"


class TokenDecoder(ActionDecoder):
    """Tokens by one way of decoding, :attr:`decoding`; what sessions share is in ``shared``."""

    def __init__(self, model: Any, options: EngineOptions, shared: dict[object, Any]) -> None:
        super().__init__(options)
        self.model, self.name, self._shared = model, options.decoding, shared
        self.decoding: Decoding = self.make_decoding()

    def make_decoding(self) -> Decoding:
        """A new one, as the options name it. ValueError: this model has none such."""
        raise NotImplementedError

    def begin(self, robot: RobotSide) -> None:
        """A decoding of its own; a draft head or a draft model is that of all."""
        if SESSIONS not in self._shared:
            self._shared[SESSIONS] = self.model.uncaptured()
        self.model = self._shared[SESSIONS]
        self.decoding = self.make_decoding()

    @property
    def depth(self) -> int:
        """Steps from an observation to its actions."""
        return self.decoding.depth

    @property
    def captures(self) -> int:
        """Graphs captured so far, a draft model's too."""
        return int(self.model.captures)

    def instruct(self, text: str) -> None:
        """Let the drafts have another instruction."""
        self.decoding.instruct(text)

    def forget(self) -> None:
        """Forget pipeline, KV and drafts."""
        self.decoding.forget()

    def decode(self, request: Request) -> Pieces[Decoded | None]:
        """The tokens (or a head's values) of the request whose passes are done."""
        if self.model.capture is not None and self.prepared is None:
            self.decoding.prepare(request, every=True)
            self.prepared = self.captures
        decoded = yield from self.decoding.pieces(request)
        if decoded is not None and not decoded.finite:
            self.decoding.forget(damaged=True)
            raise InvalidAction("a logit is not finite: the weights or the image are damaged")
        return decoded


class PromptDecoder(TokenDecoder):
    """Tokens of OpenVLA, MiniVLA and BitVLA, or OFT's chunk from one pass.

    ``action`` and ``state`` are the checkpoint's statistics; ``load_draft`` reads a draft model.
    """

    model: VLAModel

    def __init__(
        self,
        model: VLAModel,
        tokenizer: PromptTokenizer,
        action: Normalizer,
        state: Normalizer | None,
        options: EngineOptions,
        load_draft: LoadDraft,
    ) -> None:
        config, self.tokenizer = model.config, tokenizer
        options = resolve_decoding(options, config)
        self.max_tokens, self.max_delay = action.dim * config.chunk, config.max_delay
        self._longest = config.patches + MAX_TEXT
        self._parts = DecodingParts(
            model, options, action.dim, self.max_tokens, self._longest, load_draft, state
        )
        self._prompts: list[Prompt] = []  # by the delay that they name
        super().__init__(model, options, self._parts.shared)

    def make_decoding(self) -> Decoding:
        """A new one, as the options name it."""
        return make_decoding(replace(self._parts, model=self.model, options=self.options))

    def begin(self, robot: RobotSide) -> None:
        """A decoding and prompts of its own."""
        super().begin(robot)
        self._prompts = []

    def instruct(self, text: str) -> None:
        """Tokenize and embed the prompt, of every delay that it can name."""
        config = self.model.config
        every = [self.tokenizer(text, delay) for delay in range(config.max_delay + 1)]
        longest = max(map(len, every))
        if longest + config.patches > self._longest:
            raise ValueError(f"the instruction has {longest} tokens, the most is {MAX_TEXT}")
        super().instruct(text)
        front = self.tokenizer.front
        self._prompts = [self.model.prompt(ids, front) for ids in every]

    def encode(
        self, inputs: tuple[torch.Tensor, ...], observation: Observation, stages: StageTimer
    ) -> Pieces[Request]:
        """The images, encoded and put into the prompt: everything before the language model."""
        features, patches = yield ImageEncoding(self.model, inputs)
        stages.mark("vision")
        named = self._prompts[min(max(observation.delay_steps, 0), len(self._prompts) - 1)]
        prompt = self.model.sequence(named, patches)
        return Request(
            observation.stamp_ns, prompt, stages, inputs, features, observation, len(named.first)
        )


class FastDecoder(TokenDecoder):
    """Tokens of pi0-FAST, to their end marker; ``draft_head`` gives that of drafter head, once."""

    model: Pi0Fast

    def __init__(
        self,
        model: Pi0Fast,
        longest: int,
        options: EngineOptions,
        draft_head: Callable[[], RecursiveHead],
    ) -> None:
        if options.decoding == AUTO:
            options = replace(options, decoding="speculative")
        self.max_tokens, self._longest = model.config.max_tokens, longest
        self._load_head = draft_head
        super().__init__(model, options, {})

    def make_decoding(self) -> Decoding:
        """A new one, as the options name it."""
        return make_fast_decoding(self.model, self.options, self._longest, self._draft_head)

    def _draft_head(self) -> RecursiveHead:
        if "head" not in self._shared:
            self._shared["head"] = self._load_head()
        head: RecursiveHead = self._shared["head"]
        return head

    def encode(
        self, inputs: Inputs, observation: Observation, stages: StageTimer
    ) -> Pieces[Request]:
        """Everything before the language model; the prompt has the state in it."""
        yield from ()
        features = self.model.image_features(inputs.pixels)
        prompt = self.model.sequence(features, inputs.ids)
        stages.mark("vision")
        return Request(observation.stamp_ns, prompt, stages, observation=observation)
