"""The base of flow policies: images once, a prefix once, N solver steps, all over static buffers.

A family gives four hooks, :meth:`FlowPolicy.encode_images`, :meth:`~FlowPolicy.embed_prefix`,
:meth:`~FlowPolicy.embed_suffix` and :meth:`~FlowPolicy.velocity`, and runs its language model in
:meth:`~FlowPolicy.fill_kv_cache`. The base owns everything around them: CUDA graphs, buffers, the
solver with real-time chunking, stage marks, noise.

What depends on the observation is computed once a chunk, straight into buffers that never move and
are never copied, so one graph can hold all solver steps. Rows that a reference masks out (padding
of a prompt, absent cameras) are left out instead: positions count valid rows, so nothing else
changes. With graphs a prefix is padded to a multiple of :data:`BUCKET`, so few lengths need one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import torch

from vla_ros.core.numbers import round_up
from vla_ros.engine.layers.devices import pinned, upload
from vla_ros.engine.layers.flow_matching import Euler, Guidance, RtcMode, SampleBuffers
from vla_ros.engine.layers.graphs import Capture
from vla_ros.engine.layers.pieces import Pieces

if TYPE_CHECKING:
    from vla_ros.engine.layers.request import StageTimer

BUCKET = 16  # rows
MASKED = float("-inf")


class PolicyConfig(Protocol):
    """Fields that every family's config has; each is a frozen dataclass with more of its own."""

    @property
    def kind(self) -> str: ...  # of vla_ros.engine.io.foreign.FLOW_KINDS
    @property
    def horizon(self) -> int: ...  # actions of a chunk
    @property
    def steps(self) -> int: ...  # of the solver; 0: a single pass, which starts from no noise
    @property
    def action_width(self) -> int: ...  # values of an action in model space, padding included
    @property
    def action_dim(self) -> int: ...  # values of an action of the robot
    @property
    def state_dim(self) -> int: ...  # values of the robot's state; 0: it takes none
    @property
    def cameras(self) -> tuple[str, ...]: ...  # the checkpoint's names of them, in order
    @property
    def continues(self) -> tuple[str, ...]: ...  # of "rtc" and "rtc_trained"


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """An observation as the network takes it: pixels [V, ...] of the cameras that are there, prompt
    ids int64 [n], state [state_width] in model space."""

    pixels: torch.Tensor
    ids: torch.Tensor
    state: torch.Tensor


@dataclass(frozen=True, slots=True)
class Prefix:
    """Keys and values that the action head reads of one observation.

    ``keys`` and ``values`` hold one [heads, P, d] per layer that is read, ``mask`` bool [P] is
    False where a row is padding. They are views of the policy's own buffers: the next prefill
    writes over them, and a prefix whose ``serial`` is not the newest is refused.
    """

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]
    mask: torch.Tensor
    serial: int


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """Views of the buffers for one padded length of prefix; making one moves nothing, so a graph
    over it stays valid. A family's own adds what else it reads.

    ``key`` is what graphs are kept by; ``length``, ``keys`` and ``values`` are P and those of
    :class:`Prefix`.
    """

    key: tuple[int, ...]
    length: int
    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]


SpanT = TypeVar("SpanT", bound=Span)


class GraphedFunctions:
    """Functions over static buffers, each captured when its key is first asked for.

    ``capture`` is injected as in :mod:`vla_ros.engine.layers.graphs`; None runs them as they are. A
    function's result is overwritten by the next call of any.
    """

    def __init__(self, capture: Capture | None) -> None:
        self._capture = capture
        self._replays: dict[Hashable, Callable[[], tuple[torch.Tensor, ...]]] = {}

    @property
    def captures(self) -> bool:
        """Whether functions are captured at all."""
        return self._capture is not None

    @property
    def count(self) -> int:
        """Functions that were captured so far."""
        return len(self._replays)

    def __call__(self, key: Hashable, function: Callable[[], torch.Tensor]) -> torch.Tensor:
        if self._capture is None:
            return function()
        replay = self._replays.get(key)
        if replay is None:
            replay = self._replays[key] = self._capture(lambda: (function(),))
        return replay()[0]


class FlowPolicy(ABC, Generic[SpanT]):
    """The networks of one loaded policy on one device, used by one thread. Inference only.

    ``longest``: rows of the longest prefix, without padding. ``rising``: time goes from 0 (noise)
    to 1, not from 1 to 0. ``rows``: actions that start from noise, where the head makes more than
    the robot takes. ``capture`` turns functions into graphs; None runs them.
    """

    joins = False  # observations of several sessions can be one pass: see fill_together
    state_rows = 0  # suffix rows that only the first step of a chunk computes (pi0's state)

    def __init__(
        self,
        config: PolicyConfig,
        like: torch.Tensor,
        capture: Capture | None,
        *,
        longest: int,
        state_width: int,
        rising: bool = False,
        rows: int | None = None,
    ) -> None:
        self.config, self.device, self.dtype = config, like.device, like.dtype
        self.horizon, self.width, self.steps = config.horizon, config.action_width, config.steps
        self.bucket = 1 if capture is None else BUCKET
        self.longest = round_up(longest, self.bucket)
        self.state = torch.zeros(state_width, device=like.device)
        self.solver = Euler(config.steps or 1, rising)
        self.sample = SampleBuffers(rows or self.horizon, self.width, self.steps, like.device)
        self.captured = GraphedFunctions(capture)
        self.rtc_trained = "rtc_trained" in config.continues  # each action may have its own time
        self.given: torch.Tensor | None = None  # [H, 1], while rows are given without noise
        self._pixels: dict[int, torch.Tensor] = {}
        self._span: SpanT | None = None
        self._serial = 0

    # The hooks of a family

    @abstractmethod
    def encode_images(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels of the cameras that are there [V, ...] -> features [n, C]. Captured."""

    @abstractmethod
    def embed_prefix(self, features: torch.Tensor, ids: torch.Tensor) -> tuple[SpanT, int]:
        """Write the prompt's rows and masks into the buffers: the span and its valid rows of
        :attr:`Prefix.mask`. :attr:`state` is the observation's. Not captured.

        ValueError where the prompt has no positions for the images, or is too long.
        """

    @abstractmethod
    def fill_kv_cache(self, span: SpanT) -> torch.Tensor:
        """Run the language model over the prefix: the K and V that the head reads. Captured."""

    @abstractmethod
    def embed_suffix(self, x: torch.Tensor, step: int, with_state: bool = False) -> torch.Tensor:
        """Noisy actions [H, D] float32 and their time, one of the solver's, -> rows [n, w];
        ``with_state``: behind :attr:`state_rows` others."""

    @abstractmethod
    def velocity(self, span: SpanT, rows: torch.Tensor, step: int) -> torch.Tensor:
        """The rows of :meth:`embed_suffix` through the action expert -> velocity [H, D] float32."""

    @abstractmethod
    def example(self, words: int, generator: torch.Generator) -> Inputs:
        """Random pixels of all cameras, a prompt of so many words at most, a state of zeros."""

    @abstractmethod
    def blank_span(self, image_rows: int, length: int) -> SpanT:
        """A span of this padded length, laid out without padding for capture."""

    def fill_together(self, spans: Sequence[tuple[Any, Any]]) -> torch.Tensor:
        """:meth:`fill_kv_cache` of several sessions' models and their spans, as one pass. Of a
        family that :attr:`joins`."""
        raise NotImplementedError

    def velocities(
        self, suffixes: Sequence[tuple[Any, Any, torch.Tensor]], step: int
    ) -> Sequence[torch.Tensor]:
        """:meth:`velocity` of several sessions' models, their spans and rows, as one pass. Of a
        family that :attr:`joins`."""
        raise NotImplementedError

    def session(self) -> FlowPolicy[SpanT]:
        """Another observation's policy over the same weights, with buffers of its own; nothing is
        captured."""
        other = copy(self)
        other.bucket, other.captured = 1, GraphedFunctions(None)
        other.state = torch.zeros_like(self.state)
        rows, width = self.sample.x.shape
        other.sample = SampleBuffers(rows, width, self.steps, self.device)
        other._pixels, other._span, other._serial = {}, None, 0
        return other

    def begin_chunk(self, span: SpanT) -> None:
        """Compute whatever is the same for all steps of a chunk, before the first. Captured."""

    def redo_chunk(self, span: SpanT) -> None:
        """Compute again what a plain program does in every step (:meth:`denoise_step`)."""
        self.begin_chunk(span)

    def replace_state(self, span: SpanT, state: torch.Tensor) -> None:
        """Let the head read another state than the prefix's; ValueError where it cannot."""
        raise ValueError("the state is in this model's prefix: encode it again")

    def longest_behind(self, image_rows: int) -> int:
        """Rows of the longest prefix with so many rows of images."""
        return self.longest

    def noise(self, generator: torch.Generator) -> torch.Tensor | None:
        """Start of a chunk [H, D]: normal, drawn on the CPU. None: a single pass makes it."""
        if not self.steps:
            return None
        return torch.randn(len(self.sample.x), self.width, generator=generator)

    def masked_noise(self, noise: torch.Tensor) -> torch.Tensor:
        """Noise, zero in values that no action has."""
        return noise

    # One observation

    @property
    def padded(self) -> bool:
        """Whether prefixes have padding behind them, which masks must hide."""
        return self.bucket > 1

    @property
    def times(self) -> tuple[float, ...]:
        """Times that tables are made for: the solver's, and that of actions without noise."""
        return (*self.solver.times, 0.0) if self.rtc_trained else self.solver.times

    def encoding(self, given: Inputs, stages: StageTimer) -> Pieces[Prefix]:
        """The prefix of an observation, a piece at a time where observations can be one pass; marks
        vision and prefill."""
        if not self.joins or self.captured.captures:  # captured: the first engine's
            features = self.image_features(given.pixels)
            stages.mark("vision")
            prefix = self.prefill(features, given.ids, given.state)
            stages.mark("prefill")
            return prefix
        pixels = upload(given.pixels, self.device).to(self.dtype)
        features = yield FlowPiece(self, ("images", pixels.shape), pixels)
        stages.mark("vision")
        with torch.inference_mode():
            self.state.copy_(pinned(given.state, self.device), non_blocking=True)
            self._span, count = self.embed_prefix(features, given.ids)
        yield FlowPiece(self, ("prefix",))
        self._serial += 1
        stages.mark("prefill")
        span = self._span
        mask = torch.arange(span.length, device=self.device) < count
        return Prefix(span.keys, span.values, mask, self._serial)

    def sampling(
        self, prefix: Prefix, noise: torch.Tensor | None, guidance: Guidance | None
    ) -> Pieces[torch.Tensor]:
        """The result of :meth:`sample_actions`, a step at a time where observations can be one
        pass."""
        mode = None if guidance is None else guidance.mode
        together = self.joins and not self.captured.captures and mode is not RtcMode.GUIDED_VJP
        if not together or (noise is None and self.steps):  # GUIDED_VJP: a gradient for each
            return self.sample_actions(prefix, None, noise, guidance)
        if noise is None:
            self.open(prefix, None)
            made = yield FlowPiece(self, ("step", 0), self.sample.x)
            return made.clone()
        with torch.inference_mode():
            span = self.open(prefix, None)
            padded = None if guidance is None else guidance.padded(len(self.sample.x))
            self.solver.load(self.sample, self.masked_noise(upload(noise, self.device)), padded)
            self.begin_chunk(span)
        self.given = self.sample.weights > 0 if mode is RtcMode.TRAINED else None
        steps, velocity = self.solver.stepwise(self.sample, mode), None
        try:
            while True:
                x, step = steps.send(velocity)  # type: ignore[arg-type]
                velocity = yield FlowPiece(self, ("step", step), x)
        except StopIteration as done:
            chunk: torch.Tensor = done.value
            return chunk[: self.horizon].clone()
        finally:
            self.given = None

    def image_features(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels [V, ...] -> features [n, C], in memory that the next call of any graph may use."""
        views = len(pixels)
        if views not in self._pixels:
            self._pixels[views] = torch.zeros(pixels.shape, device=self.device, dtype=self.dtype)
        buffer = self._pixels[views]
        buffer.copy_(upload(pixels, self.device))
        with torch.inference_mode():
            return self.captured(("images", views), lambda: self.encode_images(buffer))

    def prefill(self, features: torch.Tensor, ids: torch.Tensor, state: torch.Tensor) -> Prefix:
        """The prefix of image features, prompt ids int64 [n] and state [state_width].

        ValueError as of :meth:`embed_prefix`.
        """
        with torch.inference_mode():
            self.state.copy_(pinned(state, self.device), non_blocking=True)
            span, count = self.embed_prefix(features, ids)
            self.captured(("prefill", *span.key), lambda: self.fill_kv_cache(span))
            mask = torch.arange(span.length, device=self.device) < count
        self._serial += 1
        self._span = span
        return Prefix(span.keys, span.values, mask, self._serial)

    def sample_actions(
        self,
        prefix: Prefix,
        state: torch.Tensor | None,
        noise: torch.Tensor | None,
        guidance: Guidance | None = None,
    ) -> torch.Tensor:
        """All solver steps: noise [H, D] -> chunk [H, D] float32, in model space.

        ``state`` replaces the prefix's, such as one that was rolled ahead. ValueError where the
        network cannot.
        """
        if not self.steps:
            with torch.inference_mode():
                span = self.open(prefix, state)
                return self.captured(
                    ("steps", *span.key, None), lambda: self.single_pass(span)
                ).clone()
        if noise is None:
            raise ValueError("this head starts from noise: give noise [H, D]")
        mode = None if guidance is None else guidance.mode
        if mode is RtcMode.TRAINED and not self.rtc_trained:
            raise ValueError("this network takes one time for all actions: it cannot be given some")
        with torch.inference_mode():
            span = self.open(prefix, state)
            padded = None if guidance is None else guidance.padded(len(self.sample.x))
            self.solver.load(self.sample, self.masked_noise(upload(noise, self.device)), padded)
            if mode is not RtcMode.GUIDED_VJP:
                run = self.captured(("steps", *span.key, mode), lambda: self._steps(span, mode))
                return run[: self.horizon].clone()
        with torch.no_grad():  # inference tensors could not be differentiated
            return self._steps(span, mode)[: self.horizon].clone()

    def denoise_step(
        self, prefix: Prefix, x: torch.Tensor, step: int, begin: bool = True
    ) -> torch.Tensor:
        """The velocity [H, D] at x and one of the solver's steps, alone (tests, measurements).

        ``begin`` False leaves out what is done once a chunk; another step must have done it.
        """
        with torch.inference_mode():
            span = self.open(prefix, None)
            if begin:
                self.redo_chunk(span)
            return self.step(span, x, step, with_state=begin)

    def capture_graphs(self, image_rows: int, modes: Sequence[RtcMode | None]) -> None:
        """Capture prefix and steps of every length that a text behind so many rows of images may
        give, for chunks that continue others in these modes; nothing without graphs.

        Earlier prefixes are written over.
        """
        if not self.padded:
            return
        with torch.inference_mode():
            for span in self._blank_spans(image_rows):
                self.captured(("prefill", *span.key), partial(self.fill_kv_cache, span))
                if not self.steps:
                    run = partial(self.single_pass, span)
                    self.captured(("steps", *span.key, None), run)
                    continue
                for mode in modes:
                    if mode is not RtcMode.GUIDED_VJP:  # which needs gradients, and no graph
                        self.captured(("steps", *span.key, mode), partial(self._steps, span, mode))
        self._serial += 1
        self._span = None

    def _blank_spans(self, image_rows: int) -> Iterable[SpanT]:
        first = round_up(image_rows + 1, self.bucket)
        last = round_up(self.longest_behind(image_rows), self.bucket)
        return (self.blank_span(image_rows, n) for n in range(first, last + 1, self.bucket))

    def open(self, prefix: Prefix, state: torch.Tensor | None) -> SpanT:
        """The span of a prefix. ValueError: a later one was written over it."""
        if prefix.serial != self._serial or self._span is None:
            raise ValueError("this prefix was written over by a later one: encode it again")
        if state is not None:
            self.replace_state(self._span, state)
        return self._span

    def step(
        self, span: SpanT, x: torch.Tensor, step: int, with_state: bool = False
    ) -> torch.Tensor:
        """The velocity at x; ``with_state`` computes :attr:`state_rows` along with it."""
        return self.velocity(span, self.embed_suffix(x, step, with_state), step)

    def single_pass(self, span: SpanT) -> torch.Tensor:
        """The chunk [H, D] of a network that starts from no noise, whose velocity is the chunk."""
        return self.step(span, self.sample.x, 0)

    def _steps(self, span: SpanT, mode: RtcMode | None) -> torch.Tensor:
        self.begin_chunk(span)
        state_comes = True
        if mode is RtcMode.GUIDED_VJP and self.state_rows:  # its keys and values are no gradient's
            self.step(span, self.sample.noise, 0, with_state=True)
            state_comes = False
        self.given = self.sample.weights > 0 if mode is RtcMode.TRAINED else None
        try:
            return self.solver.run(
                self.sample,
                lambda x, step: self.step(span, x, step, state_comes and step == 0),
                mode,
            )
        finally:
            self.given = None


@dataclass(frozen=True, slots=True, eq=False)
class FlowPiece:
    """Images, a prefix, or a step of the solver of one session's model; a
    :class:`~vla_ros.engine.layers.pieces.Piece`."""

    model: FlowPolicy[Any]
    what: tuple[Any, ...]
    x: torch.Tensor | None = None

    @property
    def kin(self) -> Hashable:
        return id(self.model.solver), self.what  # sessions of the same weights share the solver

    def run(self) -> torch.Tensor | None:
        return self.together(())[0]

    def together(self, others: Sequence[FlowPiece]) -> list[torch.Tensor | None]:
        every = (self, *others)
        with torch.inference_mode():
            if self.what[0] == "prefix":
                self.model.fill_together([(one.model, one.model._span) for one in every])
                return [None] * len(every)
            xs = [one.x for one in every if one.x is not None]
            if self.what[0] == "images":
                return list(self.model.encode_images(torch.cat(xs)).chunk(len(every)))
            step = self.what[1]
            rows = [
                one.model.embed_suffix(x, step, with_state=not step)
                for one, x in zip(every, xs, strict=True)
            ]
            suffixes = [(o.model, o.model._span, r) for o, r in zip(every, rows, strict=True)]
            return list(self.model.velocities(suffixes, step))


def joined(parts: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
    """Tensors one behind the other; a single one as it is."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim)
