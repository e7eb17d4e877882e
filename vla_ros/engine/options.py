"""What a caller may choose about an engine. Validated once, here."""

from __future__ import annotations

from dataclasses import dataclass

DTYPES = ("float32", "bfloat16", "float16")
SCHEDULES = (
    "autoregressive",
    "actionflow",
    "speculative",
    "parallel",
    "generate",
    "naive_pipe",
    "vanilla_speculative",
)
DRAFTERS = ("temporal", "model")
ACCEPTANCES = ("exact", "sampling", "relaxed")
EXTRAPOLATIONS = ("repeat", "linear")
BACKENDS = ("own", "transformers")
ATTENTIONS = ("sdpa", "varlen")
PREPROCESSINGS = ("default", "libero")


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of :func:`vla_ros.engine.load_engine`.

    ``checkpoint`` is a directory in OpenVLA's layout, a hub id, or ``random:<preset>``.
    ``unnorm_key`` names the data set whose statistics scale the actions; ``None`` takes the
    only one there is. ``action_dim`` is the size of one action, ``None`` accepts any.
    ``center_crop`` and ``preprocessing`` (default, libero) say how an image becomes a tower's
    square, see :mod:`vla_ros.engine.vision.images`.
    ``draft_checkpoint``, ``draft_extrapolation``, ``adaptive_draft`` belong to the drafters,
    ``relax_bins`` to ``relaxed`` acceptance, ``temperature`` to ``sampling``; ``gamma`` is the
    longest draft (``None``: the rest of the action). ``fixed_shapes`` gives every pass of
    speculation the shape of the longest draft, so that the tokens of an episode depend on nothing
    before it in bf16 too (in fp32 they never do). ``seed`` seeds random weights and sampling.
    ``attention`` "varlen" is one variable-length call for a whole pack (flash-attn, or torch's).
    ``cuda_graphs`` has no effect on a CPU. ``compile`` names components for torch.compile:
    "vision", "decoder". ``threads`` sets torch's intra-op threads.
    Flow policies alone: ``tokenizer`` is the folder of the language model's tokenizer where the
    checkpoint has none, ``flow_steps`` the solver's steps (``None``: the checkpoint's).
    """

    checkpoint: str
    device: str = "cpu"
    dtype: str = "float32"
    schedule: str = "autoregressive"
    unnorm_key: str | None = None
    seed: int = 0
    action_dim: int | None = 7
    center_crop: bool = False
    preprocessing: str = "default"
    backend: str = "own"
    attention: str = "sdpa"
    drafter: str = "temporal"
    draft_checkpoint: str | None = None
    draft_extrapolation: str = "repeat"
    adaptive_draft: bool = True
    acceptance: str = "exact"
    relax_bins: int = 0
    temperature: float = 1.0
    gamma: int | None = None
    fixed_shapes: bool = False
    cuda_graphs: bool = True
    compile: tuple[str, ...] = ()
    threads: int | None = None
    tokenizer: str | None = None
    flow_steps: int | None = None

    def __post_init__(self) -> None:
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("schedule", self.schedule, SCHEDULES)
        _one_of("drafter", self.drafter, DRAFTERS)
        _one_of("acceptance", self.acceptance, ACCEPTANCES)
        _one_of("draft_extrapolation", self.draft_extrapolation, EXTRAPOLATIONS)
        _one_of("backend", self.backend, BACKENDS)
        _one_of("preprocessing", self.preprocessing, PREPROCESSINGS)
        _one_of("attention", self.attention, ATTENTIONS)
        for component in self.compile:
            _one_of("compile", component, ("vision", "decoder"))
        if not self.checkpoint:
            raise ValueError("checkpoint is empty: give a directory, a hub id or random:small")
        if self.gamma is not None and self.gamma < 1:
            raise ValueError(f"gamma is {self.gamma}: give at least 1")
        if self.relax_bins < 0:
            raise ValueError(f"relax_bins is {self.relax_bins}: give 0 or more")
        if self.flow_steps is not None and self.flow_steps < 1:
            raise ValueError(f"flow_steps is {self.flow_steps}: give at least 1")
        if self.temperature <= 0:
            raise ValueError(f"temperature is {self.temperature}: give more than 0")


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} is {value!r}: give one of {', '.join(known)}")
