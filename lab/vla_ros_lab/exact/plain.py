"""The plain references: the same weights in the same precision, without anything that makes the
engine fast. No KV cache of the engine's, no packs, no drafts, no graphs, no prepacked matrices.

Where transformers has the architecture, its code runs: ``generate`` of OpenVLA and MiniVLA, its
Llama under a mask that hides nothing of OFT, its pi0. Elsewhere the layers are the engine's own
and all around them is written out here; ``covers`` names which.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from vla_ros.core.clock import SystemClock
from vla_ros.core.types import Floats, Observation, Timeline
from vla_ros.engine.decoding.parallel import Parallel
from vla_ros.engine.engine import Engine
from vla_ros.engine.families.lerobot import expected_tensors
from vla_ros.engine.io.flow_config import FlowConfig
from vla_ros.engine.layers.attention import Attention, prefill
from vla_ros.engine.layers.flow_matching import (
    Guidance,
    RtcMode,
    generator_for,
    guidance_gain,
)
from vla_ros.engine.layers.linear import linear
from vla_ros.engine.layers.request import Chunk
from vla_ros.engine.load import load_engine
from vla_ros.engine.models.base import FlowPolicy, Prefix
from vla_ros.engine.options import FAST, FLOW, EngineOptions
from vla_ros_lab.bench.flow import weights_of
from vla_ros_lab.bench.flow_rivals import Inputs as RivalInputs
from vla_ros_lab.bench.flow_rivals import TransformersRow, transformers_pi0
from vla_ros_lab.hugging_face import build_causal_lm
from vla_ros_lab.reference import Generate

CLOCK = SystemClock()
#: of a number, relative: what other orders of float32 sums may have moved it by before the solver
LAST_BITS = 4 * torch.finfo(torch.float32).eps
#: Times that a chunk begins so far beside. Of ``random:smolvla-small``, five frames, the engine was
#: 1.14 times as far off as the limit of 3, and 0.45 times that of 8.
REPEATED = 8


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceAnswer:
    """Answer of a reference, or of a way, to a frame: ``tokens`` and ``actions`` float64 [C, D].

    Of a reference that decodes tokens, ``logits`` [n, V] behind each of them, ``noise``: how far
    these move when the same program computes the whole sequence at once, which is as right. Of one
    that rounds activations to integers, so that a last bit moves them by a step, ``again``: the
    actions with attention computed in another order, which are as right. Of a chunk that is pulled
    back through the network, which makes last bits large: the furthest of some begun beside it.
    """

    tokens: tuple[int, ...]
    actions: Floats
    logits: torch.Tensor | None = None
    noise: float = 0.0
    again: Floats | None = None


class Plain(Protocol):
    """A plain reference; ``covers``: one line about what it is and what it is not."""

    covers: str

    def reset(self, instruction: str) -> None:
        """Take on an instruction."""
        ...

    def answer(self, observation: Observation, guidance: Guidance | None) -> ReferenceAnswer:
        """``guidance``: the chunk that a flow policy should continue."""
        ...


def plain_of(options: EngineOptions) -> Plain:
    """The reference of these options' policy, in their precision.

    CheckpointError or ValueError where it cannot be loaded.
    """
    plain = replace(
        options, decoding="auto", drafter="temporal", draft_checkpoint="", rtc_mode="",
        cuda_graphs=False, gemm="torch", attention="auto",
    )  # fmt: skip
    engine = load_engine(plain, packed=frozenset())
    if engine.policy.group == FLOW:
        return PlainFlow(engine)
    if engine.policy.group == FAST:
        return PlainFast(engine)
    return PlainPass(engine) if engine.info.decoding == "parallel" else PlainTokens(engine)


def began() -> Timeline:
    """Timeline of a frame that came just now."""
    return Timeline(CLOCK.steady_ns())


class _OfEngine:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def reset(self, instruction: str) -> None:
        self._engine.reset(instruction)


class PlainTokens(_OfEngine):
    """transformers' ``generate``, behind the engine's vision."""

    covers = (
        "transformers' generate, greedy, with its own KV cache, on the same weights; pixels, vision"
        " and prompt are the engine's, without graphs"
    )

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._generate = Generate(engine.model, engine.info.max_tokens, 0)

    def answer(self, observation: Observation, guidance: Guidance | None = None) -> ReferenceAnswer:
        request = self._engine.encode(observation, began(), CLOCK)
        tokens, logits = self._generate.tokens(request.prompt)
        lm, prompt = self._generate.causal_lm, request.prompt
        fed = torch.tensor(tokens[:-1], dtype=torch.long, device=prompt.device)
        with torch.inference_mode():
            whole = torch.cat((prompt, lm.get_input_embeddings()(fed)))[None]
            again = lm(inputs_embeds=whole, use_cache=False).logits[0, -len(tokens) :]
        found = self._engine.finish(request.answer(tokens, len(tokens)))
        return _answer(tokens, found.actions, logits, again)


class WholeAttention(Attention):
    """Every token with every one that it may see, written out: the first ``prefix`` tokens all see
    each other, one behind them those before it."""

    def __init__(self, prefix: int) -> None:
        self._prefix = prefix

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        place = torch.arange(len(q), device=q.device)
        seen = (place <= place[:, None]) | (place < self._prefix)
        group = q.shape[1] // k.shape[1]
        k, v = (each.repeat_interleave(group, 1) for each in (k, v))
        scores = torch.einsum("thd,shd->hts", q, k) * scale
        chances = scores.float().masked_fill(~seen, float("-inf")).softmax(-1).to(q.dtype)
        return torch.einsum("hts,shd->thd", chances, v)


class FusedAttention(Attention):
    """Every token with every one, by torch's function for it."""

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        return prefill(q, k, v, scale, causal=False)


class PlainFast(_OfEngine):
    """pi0-FAST without a KV cache: the whole sequence anew for every token."""

    covers = (
        "the engine's layers over the whole sequence anew for every token, attention written out,"
        " no KV cache, no drafts"
    )

    def answer(self, observation: Observation, guidance: Guidance | None = None) -> ReferenceAnswer:
        engine, model = self._engine, self._engine.model
        request = engine.encode(observation, began(), CLOCK)
        x, tokens, logits = request.prompt, list[int](), list[torch.Tensor]()
        with torch.inference_mode():
            while len(tokens) < model.config.max_tokens and model.ends not in tokens:
                logits.append(self._logits(x, len(request.prompt), 1)[0])
                tokens.append(int(logits[-1].argmax()))
                x = torch.cat((x, model.decoder.embed(torch.tensor(tokens[-1:], device=x.device))))
            again = self._logits(x[:-1], len(request.prompt), len(tokens))
        found = engine.finish(request.answer(tokens, len(tokens)))
        return _answer(tuple(tokens), found.actions, torch.stack(logits), again)

    def _logits(self, x: torch.Tensor, prompt: int, last: int) -> torch.Tensor:
        """Logits behind the last tokens [last, V]."""
        decoder, positions = self._engine.model.decoder, torch.arange(len(x), device=x.device)
        states = decoder.hidden(x, positions, WholeAttention(prompt), positions[-last:])
        return linear(states, decoder.head)


def _answer(
    tokens: tuple[int, ...], actions: Floats, logits: torch.Tensor, again: torch.Tensor
) -> ReferenceAnswer:
    logits, again = logits.float().cpu(), again.float().cpu()
    return ReferenceAnswer(tokens, actions, logits, float((logits - again).abs().max()))


class PlainPass(_OfEngine):
    """A chunk in one bidirectional pass: OFT through transformers' Llama, BitVLA, which it has not
    in this form, through the engine's layers."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        model = engine.model
        self._lm = None
        if not model.config.text.ternary:
            self._lm = build_causal_lm(model.config.text, model.unpacked()).model
        self.covers = (
            "transformers' Llama under a mask that hides nothing"
            if self._lm is not None
            else "the engine's layers, attention written out"
        ) + "; pixels, vision, prompt and action head are the engine's, without graphs"

    def answer(self, observation: Observation, guidance: Guidance | None = None) -> ReferenceAnswer:
        engine, decoding = self._engine, self._engine.decoder.decoding
        assert isinstance(decoding, Parallel)
        request = engine.encode(observation, began(), CLOCK)
        x = decoding.sequence(request)
        rows = torch.tensor(decoding.rows(len(x)), device=x.device)
        with torch.inference_mode():
            if self._lm is None:
                ways = (WholeAttention(len(x)), FusedAttention())
                states = [self._states(x, rows, attention) for attention in ways]
            else:
                nothing = x.new_zeros(1, 1, len(x), len(x))
                out = self._lm(inputs_embeds=x[None], attention_mask=nothing, use_cache=False)
                states = [out.last_hidden_state[0][rows]]
            read = [decoding.read(each) for each in states]
        found = [replace(request.answer((), 1), actions=actions) for actions in read]
        first, *again = [engine.finish(decoded).actions for decoded in found]
        return ReferenceAnswer((), first, again=again[0] if again else None)

    def _states(self, x: torch.Tensor, rows: torch.Tensor, attention: Attention) -> torch.Tensor:
        positions = torch.arange(len(x), device=x.device)
        return self._engine.model.decoder.hidden(x, positions, attention, rows)


class PlainFlow(_OfEngine):
    """The solver and its guidance written out; every step does again what is the same in all."""

    covers = (
        "the engine's layers without graphs and prepacked matrices; solver and guidance written"
        " out, and all that is the same in every step done in every step"
    )

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._theirs: TransformersRow | None = None
        config, options = engine.policy.config, engine.options
        if isinstance(config, FlowConfig) and config.kind == "pi0":
            weights = weights_of(options, config)
            names, model = list(expected_tensors(config).must), engine.model
            theirs = transformers_pi0(config, weights.take, names, model.dtype)
            self._theirs = TransformersRow(config, theirs, model.device)
            self.covers = (
                "transformers' PI0ForConditionalGeneration behind the engine's pixels and prompt;"
                " a chunk that continues another: " + self.covers
            )

    def answer(self, observation: Observation, guidance: Guidance | None = None) -> ReferenceAnswer:
        engine, model = self._engine, self._engine.model
        given = engine.robot.prepare(observation)
        request = engine.encode(observation, began(), CLOCK)
        noise = model.noise(generator_for(engine.options.seed, observation.stamp_ns))
        again = list[torch.Tensor]()
        if self._theirs is not None and guidance is None:
            chunk = self._theirs.chunk(RivalInputs(given.pixels, given.ids, given.state, noise))[0]
        elif noise is None:
            with torch.inference_mode():
                span = model.open(request.prefix, None)
                model.redo_chunk(span)
                chunk = model.step(span, model.sample.x, 0, True).clone()
        else:
            start = model.masked_noise(noise.to(model.device))
            chunk = integrate(model, request.prefix, start, guidance)
            if guidance is not None and guidance.mode is RtcMode.GUIDED_VJP:
                again = [
                    integrate(model, request.prefix, beside(start, seed), guidance)
                    for seed in range(REPEATED)
                ]
        chunks = [
            Chunk(observation, request.stages, each.float(), guidance is not None)
            for each in (chunk, *again)
        ]
        first, *others = [engine.finish(each).actions for each in chunks]
        others.sort(key=lambda each: float(abs(each - first).max()))
        return ReferenceAnswer((), first, again=others[-1] if others else None)


def beside(x: torch.Tensor, seed: int) -> torch.Tensor:
    """Numbers beside ``x``, by LAST_BITS, some more and some less."""
    signs = torch.randint(0, 2, x.shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return x * (1 + LAST_BITS * signs).to(x)


def integrate(
    model: FlowPolicy[Any], prefix: Prefix, x: torch.Tensor, guidance: Guidance | None
) -> torch.Tensor:
    """Euler's steps from the noise x [H, D] to a chunk, guided by arXiv 2506.07339 (equations 2 to
    4) or conditioned by 2512.05964."""
    steps, rising = model.steps, model.solver.rising
    mode = None if guidance is None else guidance.mode
    wanted, weights = torch.zeros_like(x), x.new_zeros(len(x), 1)
    if guidance is not None:
        padded = guidance.padded(len(x))
        wanted, weights = padded.previous.to(x), padded.weights.to(x)[:, None]
    given = weights > 0
    model.given = given if mode is RtcMode.TRAINED else None
    try:
        with torch.no_grad():
            span = model.open(prefix, None)
            for step in range(steps):
                left = 1.0 - step / steps  # of the way from noise to actions
                toward = left if rising else -left
                model.redo_chunk(span)
                if mode is RtcMode.TRAINED:
                    x = torch.where(given, wanted, x)
                v = model.step(span, x, step, True).clone()
                if mode is RtcMode.GUIDED:
                    pull = (wanted - (x + toward * v)) * weights
                elif mode is RtcMode.GUIDED_VJP:
                    v, pull = _pulled(model, span, x, step, toward, wanted, weights)
                else:
                    pull = torch.zeros_like(x)
                gain = guidance_gain(left, 0.0 if guidance is None else guidance.limit)
                v = v + (gain if rising else -gain) * pull
                x = x + (v / steps if rising else -v / steps)
    finally:
        model.given = None
    if mode is RtcMode.TRAINED:
        x = torch.where(given, wanted, x)
    return x[: model.horizon]


def _pulled(
    model: FlowPolicy[Any], span: Any, x: torch.Tensor, step: int, toward: float,
    wanted: torch.Tensor, weights: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The velocity, and the error of the actions it points at, pulled back through the network."""
    with torch.enable_grad():
        x = x.clone().requires_grad_(True)
        v = model.step(span, x, step)
        ahead = x + toward * v
        error = ((wanted - ahead) * weights).detach()
        (pull,) = torch.autograd.grad(ahead, x, error)
    return v.detach(), pull
