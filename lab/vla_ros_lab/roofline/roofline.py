"""Time of a stage on a device: the larger of its arithmetic and its traffic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from vla_ros_lab.roofline.devices import Device
from vla_ros_lab.roofline.shapes import DecoderShape, ModelShape, TowerShape
from vla_ros_lab.roofline.work import PARTS, WEIGHT_BYTES, Op, Precision, Segment, attention, linear

# The operators of each stage of a model: vision, projector, a decoder pass, head, expert.
#
# Norms, activation functions, RoPE and sampling are left out: in a fused engine they move no
# memory of their own and are below one percent of the arithmetic.


Ops = list[Op]


def repeat(ops: Ops, times: int) -> Ops:
    """The operators of so many layers."""
    return [op for _ in range(times) for op in ops]


def vision(model: ModelShape) -> Ops:
    """Every tower on every image: patch embedding and the blocks that are run.

    A block is 4 w^2 + 2 w m weights applied to each token, and full attention (Dosovitskiy et
    al., "An image is worth 16x16 words", 2021, section 3.1).
    """
    ops: Ops = []
    for tower in model.towers:
        width, tokens = tower.width, tower.patches + tower.prefix
        rows = tokens * model.images
        segments = (Segment(tokens, causal=False),) * model.images
        block = [
            linear("qkv", "vision", rows, width, 3 * width),
            attention("vision", segments, width, width),
            linear("output", "vision", rows, width, width),
            linear("mlp up", "vision", rows, width, tower.mlp),
            linear("mlp down", "vision", rows, tower.mlp, width),
        ]
        patch = linear(
            "patch embedding", "vision", tower.patches * model.images, 3 * tower.patch**2, width
        )
        ops += [patch, *repeat(block, tower.blocks)]
    return ops


def projector(model: ModelShape) -> Ops:
    """Vision features into the decoder's width."""
    return [
        linear("projector", "vision", m.rows * model.images, m.inputs, m.outputs)
        for m in model.projector
    ]


def layer(decoder: DecoderShape, segments: tuple[Segment, ...], part: str = "decoder") -> Ops:
    """One decoder layer over a packed pass of segments.

    Touvron et al., "Llama 2", 2023; grouped key/value heads: Ainslie et al., "GQA", 2023.
    """
    rows = sum(s.new for s in segments)
    queries, keys = decoder.queries, decoder.keys
    return [
        linear("qkv", part, rows, decoder.hidden, queries + 2 * keys),
        attention(part, segments, queries, keys),
        linear("output", part, rows, queries, decoder.hidden),
        linear(
            "gate and up" if decoder.gated else "up",
            part,
            rows,
            decoder.hidden,
            (2 if decoder.gated else 1) * decoder.intermediate,
        ),
        linear("down", part, rows, decoder.intermediate, decoder.hidden),
    ]


def head(decoder: DecoderShape, rows: int) -> Ops:
    """The language model's head on ``rows`` tokens: those whose logits are needed."""
    if not decoder.vocab or not rows:
        return []
    return [linear("lm head", "head", rows, decoder.hidden, decoder.vocab)]


def decoder_pass(decoder: DecoderShape, segments: tuple[Segment, ...], logits: int) -> Ops:
    """One packed pass: all layers, then the head on ``logits`` rows. Embeddings are look-ups."""
    return repeat(layer(decoder, segments), decoder.layers) + head(decoder, logits)


def prefill(model: ModelShape, extra: int = 0) -> Ops:
    """The prompt, with ``extra`` draft tokens behind it whose logits are needed too."""
    return decoder_pass(model.decoder, (Segment(model.prompt + extra),), 1 + extra)


def decode(model: ModelShape, tokens: int = 1) -> Ops:
    """A pass of so many new tokens behind the prompt.

    The few action tokens already in the cache are not counted: 7 against 281, of a chunk 28 on
    average, which is a thousandth of the weights.
    """
    return decoder_pass(model.decoder, (Segment(tokens, model.prompt),), tokens)


def packed(model: ModelShape) -> Ops:
    """actionflow's pass: the prefill of a frame and one token of each of K - 1 older frames.

    Source: ActionFlow, arXiv 2512.20276, cross-request pipelining.
    """
    others = (Segment(1, model.prompt),) * (model.action_tokens - 1)
    return decoder_pass(model.decoder, (Segment(model.prompt), *others), model.action_tokens)


def parallel(model: ModelShape) -> Ops:
    """OpenVLA-OFT's only pass: prompt, placeholders and stop token, seen in both directions.

    Source: Kim, Finn and Liang, "Fine-tuning vision-language-action models", 2025.
    """
    length = model.prompt + model.action_tokens + 1
    return decoder_pass(model.decoder, (Segment(length, causal=False),), 0)


def flow_prefix(model: ModelShape, naive: bool = False) -> Ops:
    """The prefix of a flow model: it fills the cache, and its head is never run.

    Of the last layer only keys and values are read (realtime-vla, arXiv 2510.26742);
    ``naive``: the whole of it is run all the same.
    """
    hidden = model.expert is not None and model.expert.reads_hidden
    shape, whole = model.decoder, (Segment(model.prompt, causal=hidden),)
    if naive or hidden:
        return decoder_pass(shape, whole, 0)
    last = linear("k and v", "decoder", model.prompt, shape.hidden, 2 * shape.keys)
    return [*repeat(layer(shape, whole), shape.layers - 1), last]


def expert_step(model: ModelShape, naive: bool = False) -> Ops:
    """One denoising step of the action expert; ``naive``: with all that every step repeats.

    Sources: Black et al., "pi0", 2024; Shukor et al., "SmolVLA", 2025, and what lerobot's
    modeling_pi0.py and smolvlm_with_expert.py run.
    """
    expert = model.expert
    if expert is None:
        return []
    still = expert.still_rows
    rows, behind = expert.rows, model.prompt + still
    if naive:
        rows, behind = rows + still, model.prompt
    behind = 0 if expert.reads_hidden else behind
    shape = expert.decoder
    own = layer(shape, (Segment(rows, behind, causal=False),), "expert")
    ops = repeat(own, shape.layers - expert.cross_layers)
    cross = [
        linear("q", "expert", rows, shape.hidden, shape.queries),
        _cross_attention(shape, rows, _crossed(model)),
        *own[2:],
    ]
    ops += repeat(cross, expert.cross_layers)
    ops += [linear("ends", "expert", rows, i, o) for i, o in expert.ends]
    ops += [linear("flat", "expert", 1, i, o) for i, o in expert.flat]
    return ops + (_remade(model) if naive else [])


def expert_once(model: ModelShape) -> Ops:
    """What this engine does once a chunk: keys and values of the cross attention, and the rows
    that are the same in all steps, which ride in the pass of the first one."""
    expert = model.expert
    if expert is None:
        return []
    ops = [op for op in _remade(model) if op.name != "time"]
    ops += _refine(model)
    if expert.still_rows:
        still = (Segment(expert.still_rows, model.prompt, causal=False),)
        rows = repeat(layer(expert.decoder, still, "expert"), expert.decoder.layers)
        ops += [replace(op, weights=0.0) for op in rows]
    return ops


def _remade(model: ModelShape) -> Ops:
    """Keys and values of the cross attention, and what depends on the time alone."""
    expert = model.expert
    assert expert is not None
    keys = expert.decoder.keys
    made = linear("k and v of the prefix", "expert", _crossed(model), expert.cross_width, 2 * keys)
    time = linear("time", "expert", 1, 1, expert.timed_weights)
    return repeat([made], expert.cross_layers) + ([time] if expert.timed_weights else [])


def _refine(model: ModelShape) -> Ops:
    """Layers of the prompt between the decoder and the expert; their attention is small."""
    pairs = model.expert.refine if model.expert is not None else ()
    return [linear("refine", "expert", model.prompt, i, o) for i, o in pairs]


def _crossed(model: ModelShape) -> int:
    """Rows of the prompt that a crossing layer reads."""
    assert model.expert is not None
    return max(1, round(model.prompt * model.expert.cross_share))


def _cross_attention(shape: DecoderShape, rows: int, prompt: int) -> Op:
    return Op(
        "attention",
        "expert",
        flops=4.0 * rows * prompt * shape.queries,
        kv=2.0 * prompt * shape.keys,
        activations=2.0 * rows * shape.queries,
    )


def action_head(model: ModelShape) -> Ops:
    """A head of its own behind the decoder (OpenVLA-OFT)."""
    return [linear("action head", "head", m.rows, m.inputs, m.outputs) for m in model.action_head]


def weight_bytes(model: ModelShape, widths: dict[str, float]) -> float:
    """Bytes of all weights in memory, given the bytes of one weight of each part, and of the word
    embeddings' table where these are not as the head's."""
    ops = vision(model) + projector(model) + action_head(model)
    ops += expert_step(model, naive=True) + _refine(model)  # every weight of it once
    ops += decode(model) if model.kind == "tokens" else flow_prefix(model, naive=True)
    table = model.decoder.table * model.decoder.hidden * widths.get("table", widths["head"])
    return sum(op.weights * widths[op.part] for op in ops) + table


# Memory of a model: the one count behind `roofline` and `advise`.


LONGEST_TEXT = 192  # prompt tokens besides the images that the engine keeps room for
#: bytes of CUDA's context and libraries, captured graphs and what the allocator wastes: assumed
RUNTIME = 1.0e9


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. ``cache``: keys and values of every frame that is being decoded, at the longest
    prompt. ``activations``: what the largest pass holds at once. ``runtime``: an assumption."""

    weights: float
    cache: float
    activations: float
    runtime: float = RUNTIME

    @property
    def total(self) -> float:
        return self.weights + self.cache + self.activations + self.runtime

    def fits(self, device_bytes: float) -> bool:
        """Whether a device has room for it; True where its size is unknown (0)."""
        return not device_bytes or self.total <= device_bytes


def memory_of(model: ModelShape, precision: Precision, frames: int = 1) -> Memory:
    """Memory of one policy. ``frames`` are decoded at a time: the depth of the pipeline."""
    widths = {part: WEIGHT_BYTES[getattr(precision, part)] for part in PARTS}
    widths["table"] = WEIGHT_BYTES[precision.table]
    longest = model.images * model.vision_tokens + LONGEST_TEXT + model.action_tokens
    entries = 2.0 * model.decoder.layers * model.decoder.keys
    held = [_pass(model.decoder, longest, model.action_tokens)]
    held += [_tower(tower, model.images) for tower in model.towers]
    return Memory(
        weights=weight_bytes(model, widths),
        cache=frames * longest * entries * widths["kv"],
        activations=max(held) * WEIGHT_BYTES[precision.activation],
    )


def _pass(decoder: DecoderShape, rows: int, logits: int) -> float:
    """Elements alive in a layer, at its widest: residual, normed rows, gate and up, the gate's
    SiLU, their product; and the logits of the pass."""
    return rows * (2.0 * decoder.hidden + 4.0 * decoder.intermediate) + logits * decoder.vocab


def _tower(tower: TowerShape, images: int) -> float:
    """Elements alive in a vision block: residual, normed rows, MLP before and after its GELU."""
    return images * (tower.patches + tower.prefix) * (2.0 * tower.width + 2.0 * tower.mlp)


@dataclass(frozen=True, slots=True)
class StageTime:
    """One stage: operations, bytes, seconds, and what bounds it (``compute``, ``memory``)."""

    name: str
    flops: float
    bytes: float
    seconds: float
    bound: str

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.flops / self.bytes if self.bytes else 0.0

    @property
    def ms(self) -> float:
        return self.seconds * 1e3


@dataclass(frozen=True, slots=True)
class Roofline:
    """A model on a device.

    ``accounting`` "stage": a stage is as good as one fused kernel, T = max(FLOP / F, bytes / B)
    over the whole stage, activations stay on the chip: the least time there can be. "operator":
    the sum of that maximum over the operators, each writing its result to memory, as GenZ
    counts; closer to kernels one by one. ``rates`` "achieved" or "peak". ``robots``: of which
    every pass is, in one batch.

    Source: Williams et al., CACM 52(4), 2009: attainable = min(peak, intensity x bandwidth).
    """

    model: ModelShape
    device: Device
    precision: Precision = Precision()
    accounting: str = "stage"
    rates: str = "achieved"
    robots: int = 1

    def time(self, name: str, ops: Iterable[Op]) -> StageTime:
        """The time of some operators run one after the other."""
        each = self.accounting == "operator"
        compute = memory = total = flops = traffic = 0.0
        for op in map(self._batched, ops):
            c = op.flops / self.device.flops(self.precision.compute(op), self.rates)
            moved = self.precision.traffic(op, activations=each)
            m = moved / self.device.bandwidth(self.rates)
            compute, memory, total = compute + c, memory + m, total + max(c, m)
            flops, traffic = flops + op.flops, traffic + moved
        seconds = total if each else max(compute, memory)
        return StageTime(
            name, flops, traffic, seconds, "compute" if compute >= memory else "memory"
        )

    def _batched(self, op: Op) -> Op:
        n = self.robots
        if n == 1:
            return op
        return replace(op, flops=n * op.flops, kv=n * op.kv, activations=n * op.activations)

    def for_model(self, model: ModelShape) -> Roofline:
        """Another model on the same device, in the same formats."""
        return replace(self, model=model)

    def vision(self) -> StageTime:
        return self.time("vision", vision(self.model))

    def projector(self) -> StageTime:
        return self.time("projector", projector(self.model))

    def prefill(self, extra: int = 0) -> StageTime:
        """The prompt's pass, head included, with ``extra`` draft tokens behind the prompt."""
        return self.time("prefill", prefill(self.model, extra))

    def decode(self, tokens: int = 1) -> StageTime:
        """A pass of ``tokens`` tokens behind the prompt, head included."""
        return self.time("decode", decode(self.model, tokens))

    def packed(self) -> StageTime:
        """actionflow's pass."""
        return self.time("packed pass", packed(self.model))

    def parallel(self) -> StageTime:
        return self.time("parallel pass", parallel(self.model))

    def prefix(self, naive: bool = False) -> StageTime:
        return self.time("prefill", flow_prefix(self.model, naive))

    def expert_once(self) -> StageTime:
        """Operators that are the same in all steps, once a chunk."""
        return self.time("expert, once", expert_once(self.model))

    def expert_step(self, naive: bool = False) -> StageTime:
        return self.time("expert step", expert_step(self.model, naive))

    def head(self) -> StageTime:
        """The action head, or the language model's head on one row."""
        own = action_head(self.model)
        return self.time("head", own or head(self.model.decoder, 1))

    def stages(self) -> tuple[StageTime, ...]:
        """Every stage of this kind of model, in order. ``head`` of a token model is part of
        prefill and of each decode; it is listed to be seen, not to be added."""
        front = (self.vision(), self.projector())
        if self.model.kind == "flow":
            once = (self.expert_once(),) if expert_once(self.model) else ()
            return (*front, self.prefix(), *once, self.expert_step())
        if self.model.kind == "parallel":
            return (*front, self.parallel(), self.head())
        packed = (self.packed(),) if self.model.chunk == 1 else ()  # no pipeline takes chunks
        return (*front, self.prefill(), self.decode(), self.head(), *packed)

    def memory(self, frames: int = 1) -> Memory:
        """Memory of a policy, with so many frames decoded at a time."""
        return memory_of(self.model, self.precision, frames)

    def fits(self, frames: int = 1) -> bool:
        """Whether the device has room for it; True where its size is unknown."""
        return self.memory(frames).fits(1e9 * self.device.memory_gb)
