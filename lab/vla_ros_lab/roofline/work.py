"""Counting: the arithmetic and the traffic of one operator, and the number formats.

Sources: the roofline model, Williams, Waterman and Patterson, "Roofline: an insightful visual
performance model", CACM 52(4), 2009. Counting by operator as in GenZ (Bambhaniya et al.,
"Demystifying AI platform design for distributed inference of next-generation LLM models",
2024; github.com/abhibambhaniya/GenZ-LLM-Analyzer, operators.py).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

#: Bytes of one weight. int4 is weight-only in groups of 32 with an fp16 scale: 4.5 bits. ternary is
#: BitNet's -1, 0 and 1 in two bits, one scale a matrix. int8w and int4w are this engine's own
#: (``vla_ros.engine.layers.quantized``): weights alone, int4 with a scale and a middle of 16 bits
#: each.
WEIGHT_BYTES = {
    "fp32": 4.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5625, "ternary": 0.25,
    "int8w": 1.0, "int4w": 0.625,
}  # fmt: skip
#: In which format a product with such weights is computed. int4 weights are widened first, ternary
#: ones meet int8 inputs; int8w is bf16 but where a device has a rate for it (a CPU with VNNI, which
#: multiplies integers).
COMPUTE = {
    "fp32": "fp32", "bf16": "bf16", "fp8": "fp8", "int8": "int8", "int4": "bf16", "ternary": "int8",
    "int8w": "int8w", "int4w": "bf16",
}  # fmt: skip
PARTS = ("vision", "decoder", "head", "expert", "kv")


@dataclass(frozen=True, slots=True)
class Op:
    """One operator. ``flops`` count a multiplication and an addition as two; the rest are
    elements (not bytes): weights read, key/value entries read and written, activations."""

    name: str
    part: str
    flops: float
    weights: float = 0.0
    kv: float = 0.0
    activations: float = 0.0


@dataclass(frozen=True, slots=True)
class Precision:
    """The number format of each part; ``kv`` is the cache. Attention itself, and activations,
    are bf16, or fp32 where the decoder is."""

    vision: str = "bf16"
    decoder: str = "bf16"
    head: str = "bf16"
    expert: str = "bf16"
    kv: str = "bf16"

    def __post_init__(self) -> None:
        for part in fields(self):
            value = getattr(self, part.name)
            known = tuple(WEIGHT_BYTES) if part.name != "kv" else ("fp32", "bf16", "fp8", "int8")
            if value not in known:
                raise ValueError(f"{part.name} cannot be {value!r}: give {', '.join(known)}")

    @property
    def activation(self) -> str:
        return "fp32" if self.decoder == "fp32" else "bf16"

    @property
    def table(self) -> str:
        """Format of the word embeddings, which this engine keeps as they are."""
        return "bf16" if self.head in ("int8w", "int4w") else self.head

    def compute(self, op: Op) -> str:
        """The format the operator is computed in; attention has no weights."""
        return COMPUTE[getattr(self, op.part)] if op.weights else self.activation

    def traffic(self, op: Op, activations: bool) -> float:
        """Bytes to and from memory, with or without the activations between operators."""
        total = op.weights * WEIGHT_BYTES[getattr(self, op.part)]
        total += op.kv * WEIGHT_BYTES[self.kv]
        if activations:
            total += op.activations * WEIGHT_BYTES[self.activation]
        return total


def parse_precision(text: str) -> Precision:
    """``int4`` or ``decoder=int4,vision=fp8``. A name alone is for the language model and the
    action head; vision and cache stay bf16 (but fp32 is for everything).

    Raises:
        ValueError: an unknown part or format.
    """
    if "=" not in text:
        if text == "fp32":
            return Precision(*[text] * len(PARTS))
        return Precision(decoder=text, head=text, expert=text)
    chosen: dict[str, str] = {}
    for item in text.split(","):
        part, _, value = item.partition("=")
        if part not in PARTS:
            raise ValueError(f"{part!r} is no part: there are {', '.join(PARTS)}")
        chosen[part] = value
    return Precision(**chosen)


def precision_of_weights(text: str) -> Precision:
    """Formats of the engine's option ``weights``, such as ``decoder=int4,head=int8``, as it stores
    and computes them. The action expert of a flow policy goes with the head.

    Raises:
        ValueError: an unknown part or format.
    """
    from vla_ros.engine.formats import parse_formats

    own = {"int8": "int8w", "int4": "int4w"}
    formats = parse_formats(text)
    vision, decoder, head = (own.get(k, k) for k in (formats.vision, formats.decoder, formats.head))
    return Precision(vision, decoder, head, expert=head)


def linear(name: str, part: str, rows: float, inputs: int, outputs: int) -> Op:
    """A matrix product [rows, inputs] x [inputs, outputs].

    2 m n k operations (Golub and Van Loan, "Matrix Computations", table 1.1.2); it reads its
    weights once and moves m (k + n) activations, as GenZ's GEMM does.
    """
    return Op(
        name,
        part,
        flops=2.0 * rows * inputs * outputs,
        weights=float(inputs * outputs),
        activations=rows * (inputs + outputs),
    )


@dataclass(frozen=True, slots=True)
class Segment:
    """Some tokens of one request in a pass: ``new`` ones behind ``past`` cached ones."""

    new: int
    past: int = 0
    causal: bool = True

    @property
    def pairs(self) -> float:
        """Query-key pairs: new x past, and new (new + 1) / 2 or new^2 among themselves."""
        own = self.new * (self.new + 1) / 2 if self.causal else self.new**2
        return self.new * self.past + own


def attention(part: str, segments: tuple[Segment, ...], queries: int, keys: int) -> Op:
    """Scores and weighted values of one layer, fused: scores never leave the chip.

    ``queries`` and ``keys`` are the widths of all heads. 4 d operations a query-key pair and head
    (Dao et al., "FlashAttention", 2022, section 3); the cache is read for the past tokens and
    written for the new ones. Without a cache (vision) keys and values count as activations.
    """
    pairs = sum(s.pairs for s in segments)
    entries = 2.0 * sum(s.new + s.past for s in segments) * keys
    rows = 2.0 * sum(s.new for s in segments) * queries  # queries read, results written
    cached = part != "vision"
    return Op(
        "attention",
        part,
        flops=4.0 * pairs * queries,
        kv=entries if cached else 0.0,
        activations=rows + (0.0 if cached else entries),
    )
