"""Decoders of an engine, of tokens or of a chunk, and the base of all decodings of tokens.

A :class:`Decoding` packs requests into passes of the language model and turns logits into tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import copy
from dataclasses import replace
from typing import Any, Protocol

import torch

from vla_ros.core.types import Observation
from vla_ros.engine.io.config import ModelConfig
from vla_ros.engine.layers.flow_matching import Guidance
from vla_ros.engine.layers.graphs import CountedCapture
from vla_ros.engine.layers.pieces import Pieces, alone
from vla_ros.engine.layers.request import Decoded, Request, StageTimer
from vla_ros.engine.layers.runner import DecoderRunner, prompt_lengths, resized
from vla_ros.engine.models.robot_side import RobotSide
from vla_ros.engine.options import AUTO, EngineOptions


class ActionDecoder(ABC):
    """The part of an engine that makes actions of inputs, tokens or a chunk, for one session.

    ``model`` is the network; ``name`` the decoding, ``max_tokens`` of an answer, ``max_delay`` the
    action periods of delay that it was trained for, ``continues`` the executions of chunks that it
    takes part in; ``prepared``: graphs that there were when all were captured, None before. Of
    tokens there is a ``decoding``.
    """

    model: Any
    name: str
    max_tokens = 0
    max_delay = 0
    continues: tuple[str, ...] = ()
    prepared: int | None = None
    decoding: Decoding

    def __init__(self, options: EngineOptions) -> None:
        self.options = options

    def session(self, options: EngineOptions, robot: RobotSide) -> ActionDecoder:
        """Decoder over the same weights for another robot's episode; nothing is captured."""
        other = copy(self)
        other.options, other.prepared = options, None
        other.begin(robot)
        return other

    @abstractmethod
    def begin(self, robot: RobotSide) -> None:
        """Replace whatever belongs to one episode, in a copy of another session's decoder."""

    @property
    def depth(self) -> int:
        """Steps from an observation to its actions."""
        return 1

    @property
    @abstractmethod
    def captures(self) -> int:
        """Graphs captured so far."""

    def instruct(self, text: str) -> None:
        """Take on another instruction. ValueError: too long."""

    @abstractmethod
    def forget(self) -> None:
        """Forget what was computed of earlier observations."""

    @abstractmethod
    def encode(self, inputs: Any, observation: Observation, stages: StageTimer) -> Pieces[Any]:
        """Everything of an observation before its actions are decoded. Marks vision."""

    @abstractmethod
    def decode(self, request: Any) -> Pieces[Any]:
        """The answer that is now complete, perhaps to an earlier request; None: none is.

        Marks prefill, where :meth:`encode` has not, and decode. InvalidAction: it is damaged."""

    @property
    def last_chunk(self) -> torch.Tensor | None:
        """The newest chunk in model space [H, D]; None of tokens."""
        return None

    def guidance(self, observation: Observation) -> Guidance | None:
        """Chunk that one of this observation continues by the options; None: it begins anew."""
        return None

    def keep(self, decoded: Any) -> None:
        """Remember an answer that went out, for those that continue it."""


class TokenModel(Protocol):
    """Interface of a model whose language model gives the action tokens, for its decodings.

    ``causal``: a token of the prompt sees only those before it; else the prompt is a prefix whose
    tokens all see each other. ``ends``: the token behind which an answer has ended, None where
    every answer is equally long. ``patches``: tokens of a frame's images.
    """

    config: Any
    device: torch.device
    dtype: torch.dtype
    capture: CountedCapture | None
    causal: bool
    ends: int | None

    @property
    def patches(self) -> int: ...

    def runner(
        self,
        slots: int,
        slot_length: int,
        window: range | None = None,
        taps: tuple[int, ...] = (),
    ) -> DecoderRunner:
        """A KV cache of its own, and the passes over it."""
        ...


class Decoding:
    """One way of filling packs. Called by one thread. It gives :meth:`step` or :meth:`pieces`."""

    #: whether its tokens are those of greedy decoding, whatever the input (in fp32: in bf16 a
    #: product of another shape rounds otherwise, and a close call may go the other way)
    lossless: bool = True

    def __init__(self, model: TokenModel, tokens: int, max_prompt: int) -> None:
        self.model, self.count, self.max_prompt = model, tokens, max_prompt

    @property
    def depth(self) -> int:
        """Calls of step() from a request to its answer."""
        return 1

    def step(self, request: Request) -> Decoded | None:
        """Take one request in; give the answer that is ready, or None while a pipeline fills."""
        return alone(self.pieces(request))

    def pieces(self, request: Request) -> Pieces[Decoded | None]:
        """The step a pass at a time, so that passes of several robots can be one.

        As it is here, in a single one: the decoding runs its passes itself.
        """
        yield from ()
        return self.step(request)

    def instruct(self, text: str) -> None:
        """A new instruction; ``forget`` follows."""

    def prepare(self, request: Request, every: bool = False) -> None:
        """Run every pack shape that may come once, so that no graph is captured in service.

        Shapes of prompts as long as the request's; ``every``: of all that an instruction may give.
        """
        own = len(request.prompt)
        lengths = prompt_lengths(self.model.patches, self.max_prompt) if every else ()
        for length in (*lengths, own):  # its own last, so that its plans are remembered
            self.warm_up(replace(request, prompt=resized(request.prompt, length)))

    def warm_up(self, request: Request) -> None:
        """Run every shape of prompts of this length. Nothing where no pass is captured."""

    def forget(self, damaged: bool = False) -> None:
        """Forget earlier requests: a new episode or instruction begins.

        ``damaged``: a value was not finite. Then all memory that it may have touched, a drafter's
        too, is zeroed: 0 * NaN is NaN even behind a mask.
        """


def resolve(options: EngineOptions, config: ModelConfig) -> EngineOptions:
    """The options with a decoding in place of ``auto``: the fastest that changes nothing.

    * A checkpoint made for parallel decoding (OpenVLA-OFT) has only that.
    * A token policy: speculation whose draft is the previous action, every token verified. It is
      autoregressive decoding where drafts do not pay, which the temporal drafter finds out by
      itself: it drafts nothing before its guess has once been right, and then only what saves more
      than it costs. ``actionflow`` gives more actions a second, each from an older image.
    """
    if options.decoding != AUTO:
        return options
    return replace(options, decoding="parallel" if config.parallel else "speculative")


LOOK_EVERY = 8  # tokens on a GPU, where looking waits for the device


def look_every(model: TokenModel) -> int:
    """Tokens after which the host looks whether an answer has ended."""
    return 1 if model.device.type == "cpu" and model.capture is None else LOOK_EVERY


def up_to(tokens: list[int], ends: int | None) -> list[int]:
    """The answer to its end marker, which belongs to it."""
    return tokens[: tokens.index(ends) + 1] if ends is not None and ends in tokens else tokens
