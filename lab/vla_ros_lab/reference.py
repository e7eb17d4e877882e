"""Reference decodings, which the engine's are measured against: exact, and slow on purpose.

The engine finds them by entry points, under their names in ``options.REFERENCES``: ``generate`` is
transformers'; ``naive_pipe`` ActionFlow's pipeline without one shared KV cache;
``vanilla_speculative`` speculative decoding as the ETH report did it. :class:`GenerateFast` is
``generate`` of pi0-FAST.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F

from vla_ros.core.clock import Clock
from vla_ros.core.types import Inference, Observation, Timeline
from vla_ros.engine.decoding.acceptance import Exact, Scores
from vla_ros.engine.decoding.base import Decoding
from vla_ros.engine.decoding.drafters import Drafter
from vla_ros.engine.decoding.factory import DecodingParts
from vla_ros.engine.decoding.speculative import PartialAction, Speculative
from vla_ros.engine.engine import Engine
from vla_ros.engine.families.base import LoadedPolicy
from vla_ros.engine.families.lerobot import expected_tensors
from vla_ros.engine.io.weights import Weights
from vla_ros.engine.layers.attention import Attention, prefill
from vla_ros.engine.layers.linear import linear
from vla_ros.engine.layers.pack import PackLayout, chain, prefill_layout
from vla_ros.engine.layers.pieces import Pieces
from vla_ros.engine.layers.request import Decoded, Request, StageTimer
from vla_ros.engine.models.openvla import VLAModel
from vla_ros.engine.options import EngineOptions
from vla_ros_lab.bench.flow_rivals import transformers_paligemma
from vla_ros_lab.hugging_face import build_causal_lm
from vla_ros_lab.model_drafter import model_drafter


class Generate(Decoding):
    """transformers' ``generate`` on the same weights and prompt embeddings.

    Greedy, no end-of-sequence token, transformers' default cache and SDPA attention.
    """

    def __init__(self, model: VLAModel, tokens: int, max_prompt: int) -> None:
        super().__init__(model, tokens, max_prompt)
        if model.quantized:
            raise ValueError("generate is transformers', which has no quantized weights here")
        self.causal_lm = build_causal_lm(model.config.text, model.unpacked())
        self.causal_lm.generation_config.eos_token_id = None
        self.causal_lm.generation_config.pad_token_id = 0

    def step(self, request: Request) -> Decoded:
        tokens, logits = self.tokens(request.prompt)
        request.stages.mark("prefill")  # generate() does not tell it from decode
        finite = bool(logits.amax(-1).isfinite().all())  # NaN and inf go through
        return request.answer(tokens, self.count, finite=finite)

    def tokens(self, prompt: torch.Tensor) -> tuple[tuple[int, ...], torch.Tensor]:
        """What it says behind a prompt [n, C], and the logits [count, V] behind each token."""
        mask = torch.ones(1, len(prompt), dtype=torch.long, device=prompt.device)
        with torch.inference_mode():
            out = self.causal_lm.generate(
                inputs_embeds=prompt[None],
                attention_mask=mask,
                max_new_tokens=self.count,
                do_sample=False,
                return_dict_in_generate=True,
                output_logits=True,
            )
            return tuple(out.sequences[0].tolist()), torch.cat(out.logits)


class GenerateFast(Engine):
    """pi0-FAST by transformers' ``PaliGemmaForConditionalGeneration.generate``, vision included, on
    the same pixels and prompt. ``weights``: the checkpoint's once more, as floats.

    Greedy, to the end marker, transformers' default cache and SDPA attention. Its masks are the
    policy's: the prompt's tokens see each other, which ``token_type_ids`` of 0 say and since
    PaliGemma's config says ``use_bidirectional_attention`` by default is so without them too; what
    is generated sees what is before it.
    """

    def __init__(self, policy: LoadedPolicy, options: EngineOptions, weights: Weights) -> None:
        super().__init__(policy, replace(options, decoding="autoregressive", drafter="temporal"))
        config, names = policy.config, list(expected_tensors(policy.config).must)
        like = self.model
        theirs = transformers_paligemma(config, weights.take, names, like.dtype)
        self.paligemma = theirs.to(like.device)
        told = self.paligemma.generation_config
        told.eos_token_id, told.pad_token_id = like.ends, 0

    def pieces(
        self, observation: Observation, timeline: Timeline, clock: Clock
    ) -> Pieces[Inference | None]:
        yield from ()  # generate() is one
        model, stages = self.model, StageTimer(timeline, clock, self.model.device)
        inputs = self.robot.prepare(observation)
        stages.mark("preprocess")
        image = inputs.ids.new_full((model.patches,), model.config.shapes.text.vocab_size)
        begin = inputs.ids.new_tensor([model.actions.bos])
        ids = torch.cat((image, inputs.ids, begin))[None]
        with torch.inference_mode():
            out = self.paligemma.generate(
                input_ids=ids,
                pixel_values=inputs.pixels.to(model.device, model.dtype),
                attention_mask=torch.ones_like(ids),
                token_type_ids=torch.zeros_like(ids),
                max_new_tokens=model.config.max_tokens,
                do_sample=False,
            )
        tokens = out[0, ids.shape[1] :].tolist()
        request = Request(observation.stamp_ns, out, stages, observation=observation)
        return self.finish(request.answer(tokens, len(tokens)))


@dataclass(slots=True)
class Growing:
    """A request with its own K/V per layer, [Hkv, length, D]."""

    request: Request
    length: int
    keys: list[torch.Tensor] = field(default_factory=list)
    values: list[torch.Tensor] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    finite: bool = True


class GatheredAttention(Attention):
    """Concatenates and pads every live request's K/V anew, in every layer."""

    def __init__(self, fresh: Growing, older: list[Growing], like: torch.Tensor) -> None:
        """``like``: a tensor of the model's type, on its device."""
        self._fresh, self._older = fresh, older
        # Lengths are the same in every layer: one mask a pass, made where it is used.
        lengths = torch.tensor([r.length + len(r.tokens) for r in older], device=like.device)
        entries = torch.arange(max((r.length + len(r.tokens) for r in older), default=0),
                               device=like.device)  # fmt: skip
        behind = entries >= lengths[:, None]
        blank = like.new_zeros(behind.shape)
        self._mask = blank.masked_fill(behind, float("-inf"))[:, None, None]

    def __call__(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> torch.Tensor:
        n = self._fresh.length
        self._fresh.keys.append(k[:n].transpose(0, 1).contiguous())
        self._fresh.values.append(v[:n].transpose(0, 1).contiguous())
        out = prefill(q[:n], k[:n], v[:n], scale, causal=True)
        if not self._older:
            return out
        for row, request in enumerate(self._older, start=n):
            request.keys[layer] = torch.cat((request.keys[layer], k[row][:, None]), dim=1)
            request.values[layer] = torch.cat((request.values[layer], v[row][:, None]), dim=1)
        keys, values = self._gather(layer)
        behind = F.scaled_dot_product_attention(
            q[n:, :, None], keys, values, attn_mask=self._mask, scale=scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )  # fmt: skip
        return torch.cat((out, behind[:, :, 0]))

    def _gather(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        lengths = [r.keys[layer].shape[1] for r in self._older]
        longest = max(lengths)
        keys = [F.pad(r.keys[layer], (0, 0, 0, longest - n)) for r, n in self._with(lengths)]
        values = [F.pad(r.values[layer], (0, 0, 0, longest - n)) for r, n in self._with(lengths)]
        return torch.stack(keys), torch.stack(values)

    def _with(self, lengths: list[int]) -> list[tuple[Growing, int]]:
        return list(zip(self._older, lengths, strict=True))


class NaivePipe(Decoding):
    """The packs of ActionFlow, one pass a call, without a shared KV cache.

    Every request keeps its own K/V tensors, which grow by concatenation, are gathered into a padded
    batch in every layer of every pass, and the host reads the tokens after every pass.
    """

    def __init__(self, model: VLAModel, tokens: int, max_prompt: int) -> None:
        super().__init__(model, tokens, max_prompt)
        self._decoder = model.decoder
        self._older: list[Growing] = []

    @property
    def depth(self) -> int:
        return self.count

    def step(self, request: Request) -> Decoded | None:
        fresh = Growing(request, len(request.prompt))
        for each in self._older:  # since its last pass it has only waited for this frame
            each.request.stages.mark("queue")
        with torch.inference_mode():
            choices, finite = self._pass(fresh)
        request.stages.mark("prefill")
        for each in self._older:
            each.request.stages.mark("decode")
        for each, token, good in zip((fresh, *self._older), choices, finite, strict=True):
            each.tokens.append(token)
            each.finite &= good
        self._older.append(fresh)
        if len(self._older[0].tokens) < self.count:
            return None
        done = self._older.pop(0)
        return done.request.answer(done.tokens, self.count, finite=done.finite)

    def _pass(self, fresh: Growing) -> tuple[list[int], list[bool]]:
        decoder, device, older = self._decoder, self.model.device, self._older
        tokens = torch.tensor([r.tokens[-1] for r in older], dtype=torch.long, device=device)
        x = torch.cat((fresh.request.prompt, decoder.embed(tokens)))
        ends = [r.length + len(r.tokens) - 1 for r in older]
        positions = torch.tensor([*range(fresh.length), *ends], device=device)
        rows = torch.arange(fresh.length - 1, len(x), device=device)
        states = decoder.hidden(x, positions, GatheredAttention(fresh, older, x), rows)
        logits = linear(states, decoder.head)
        values, choices = logits.max(dim=-1)
        return choices.tolist(), values.isfinite().tolist()

    def forget(self, damaged: bool = False) -> None:
        self._older.clear()


class VanillaSpeculative(Speculative):
    """Verify a draft, then feed the correction alone; repeat (the ETH report's).

    A separate draft model with its own vision tower and its own prefill, a fixed draft length,
    nothing fused into the target's prefill, and a target pass of its own for every correction or
    bonus token.
    """

    def __init__(
        self, model: VLAModel, tokens: int, max_prompt: int, drafter: Drafter, gamma: int = 6
    ) -> None:
        super().__init__(model, tokens, max_prompt, drafter, Exact(), gamma)

    def _decode(self, request: Request, action: PartialAction) -> Pieces[None]:
        yield from ()  # its passes are run here
        length = len(request.prompt)
        known = self._run(prefill_layout(length, (length - 1,)), action, request.prompt, None)
        request.stages.mark("prefill")
        while len(action) < self.count and action.finite:
            known = self._round(known, length, action)

    def _round(self, known: Scores, length: int, action: PartialAction) -> Scores:
        """A draft verified; ``known`` is what the target says behind all tokens so far."""
        draft = self._draft(action)
        count = len(draft.tokens)
        if count:
            tail = chain(0, length + len(action), count)
            behind = self._run(
                PackLayout(tuple(range(count)), tail=tail), action, None, draft.tokens
            )
            known = tuple(torch.cat(rows) for rows in zip(known, behind, strict=True))
        self._accept(known, draft, action)
        if len(action) >= self.count or not action.finite:
            return known
        alone = PackLayout(rows=(0,), tail=chain(0, length + len(action) - 1, 1))
        return self._run(alone, action, None, action.last(self.model.device))

    def _run(
        self,
        layout: PackLayout,
        action: PartialAction,
        prompt: torch.Tensor | None,
        tokens: torch.Tensor | None,
    ) -> Scores:
        action.passes += 1
        return self.acceptance.verify(self.runner, layout, prompt, tokens)

    def warm_up(self, request: Request) -> None:
        length = len(request.prompt)
        self.runner.fit(length + self._entries)
        alone = prefill_layout(length, (length - 1,))
        self.acceptance.verify(self.runner, alone, request.prompt, None)
        for drafted in range(1, self.gamma + 1):
            layout = PackLayout(tuple(range(drafted)), tail=chain(0, length, drafted))
            self.acceptance.verify(self.runner, layout, None, self._blank(drafted).tokens)


def generate(parts: DecodingParts) -> Generate:
    """The entry point of its name, as the two below."""
    return Generate(parts.model, parts.tokens, parts.max_prompt)


def naive_pipe(parts: DecodingParts) -> NaivePipe:
    return NaivePipe(parts.model, parts.tokens, parts.max_prompt)


def vanilla_speculative(parts: DecodingParts) -> VanillaSpeculative:
    drafter = model_drafter(parts, share=False)
    gamma = parts.options.gamma or 6
    return VanillaSpeculative(parts.model, parts.tokens, parts.max_prompt, drafter, gamma)
