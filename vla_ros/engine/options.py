"""What a caller may choose about an engine. Validated once, here."""

from __future__ import annotations

from dataclasses import dataclass

from vla_ros.engine.quantised.formats import parse_formats

DTYPES = ("float32", "bfloat16", "float16")
AUTO = "auto"
SCHEDULES = (
    AUTO,
    "autoregressive",
    "actionflow",
    "speculative",
    "heterospec",
    "parallel",
    "generate",
    "naive_pipe",
    "vanilla_speculative",
)
DRAFTERS = ("temporal", "temporal_tree", "head", "model")
ACCEPTANCES = ("exact", "sampling", "relaxed")
EXTRAPOLATIONS = ("repeat", "linear")
BACKENDS = ("own", "transformers")
ATTENTIONS = ("auto", "torch")
GEMMS = ("auto", "torch")
PREPROCESSINGS = ("default", "libero")
IMAGE_STEPS = ("auto", "cpu", "device")
RTC = ("", "identity", "true", "trained")
#: Options that mean something to flow policies alone.
FLOW_OPTIONS = ("tokenizer", "flow_steps", "flow_cameras", "embodiment")


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of :func:`vla_ros.engine.load_engine`.

    ``checkpoint`` is a directory in OpenVLA's layout, a hub id, or ``random:<preset>``.
    ``schedule`` "auto" is the fastest one that changes nothing the checkpoint says.
    ``unnorm_key`` names the data set whose statistics scale the actions; ``None`` takes the
    only one there is. ``action_dim`` is the size of one action, ``None`` accepts any.
    ``center_crop`` and ``preprocessing`` (default, libero) say how an image becomes a tower's
    square, see :mod:`vla_ros.engine.vision.images`; ``image_steps`` of token policies where that is
    done: "cpu", "device", or "auto", on a GPU where there is one. The pixels are the same.
    ``drafter`` (temporal, temporal_tree, head, model) guesses for speculation;
    ``draft_checkpoint`` (of model; of head where it is not the checkpoint's own),
    ``draft_extrapolation`` (of temporal), ``adaptive_draft`` belong to the drafters,
    ``calibration`` is the file that ``heterospec`` goes by (``None``: heterospec.json beside the
    checkpoint, with drafter head beside the head), ``relax_bins`` belongs to ``relaxed``
    acceptance, ``temperature`` to ``sampling``; ``gamma`` is the longest draft
    (``None``: the rest of the action). ``fixed_shapes`` gives every pass of
    speculation the shape of the longest draft: to the bit, the tokens of an episode then depend
    on nothing before it, where otherwise a close call in bf16 may. ``seed`` seeds random weights
    and sampling.
    ``attention`` "torch" leaves the tail of a pack to torch's products on every device; "auto" has
    a Triton kernel for it on CUDA, or says in one line why not.
    ``gemm`` "auto": products of a decoder's captured passes are timed on CUDA, in Triton's ways and
    torch's, and each is done in the fastest (:mod:`vla_ros.engine.gemm.tuner`); "torch" leaves
    them to torch, whose sums are the same to the bit from one process to the next.
    ``cuda_graphs`` has no effect on a CPU. ``compile`` names components for torch.compile:
    "vision" (each tower), "decoder". ``vision_streams``: on CUDA two towers run beside each other;
    ``look_ahead``: ``actionflow`` has the next frame seen while a pass runs
    (:mod:`vla_ros.engine.ahead`). ``threads`` sets torch's intra-op threads.
    Flow policies alone: ``tokenizer`` is the folder of the language model's tokenizer where the
    checkpoint has none, ``flow_steps`` the solver's steps (``None``: the checkpoint's),
    ``flow_cameras`` which of its cameras is which of the robot's where their names do not tell
    (:mod:`vla_ros.engine.flow.cameras`), ``camera_roles`` the robot's beside main and wrist,
    ``embodiment`` which of the robots that a checkpoint was trained for it is (GR00T).
    ``rtc`` says how a chunk continues the one that is executed meanwhile: "" not at all, guided
    with the Jacobian "identity" or "true", or "trained" for it; ``rtc_limit`` is the largest gain
    of the guidance.
    ``weights``: their formats, such as "int8" or
    "decoder=int4,head=int8" (:mod:`vla_ros.engine.quantised.formats`); "" as they are stored.
    """

    checkpoint: str
    device: str = "cpu"
    dtype: str = "float32"
    schedule: str = AUTO
    unnorm_key: str | None = None
    seed: int = 0
    action_dim: int | None = None
    center_crop: bool = False
    preprocessing: str = "default"
    image_steps: str = "auto"
    backend: str = "own"
    attention: str = "auto"
    gemm: str = "auto"
    drafter: str = "temporal"
    draft_checkpoint: str | None = None
    draft_extrapolation: str = "repeat"
    calibration: str | None = None
    adaptive_draft: bool = True
    acceptance: str = "exact"
    relax_bins: int = 0
    temperature: float = 1.0
    gamma: int | None = None
    fixed_shapes: bool = False
    cuda_graphs: bool = True
    compile: tuple[str, ...] = ()
    vision_streams: bool = True
    look_ahead: bool = True
    threads: int | None = None
    tokenizer: str | None = None
    flow_steps: int | None = None
    flow_cameras: str | None = None
    embodiment: str | None = None
    camera_roles: tuple[str, ...] = ()
    rtc: str = ""
    rtc_limit: float = 5.0
    weights: str = ""

    def __post_init__(self) -> None:
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("schedule", self.schedule, SCHEDULES)
        _one_of("drafter", self.drafter, DRAFTERS)
        _one_of("acceptance", self.acceptance, ACCEPTANCES)
        _one_of("draft_extrapolation", self.draft_extrapolation, EXTRAPOLATIONS)
        _one_of("backend", self.backend, BACKENDS)
        _one_of("preprocessing", self.preprocessing, PREPROCESSINGS)
        _one_of("image_steps", self.image_steps, IMAGE_STEPS)
        _one_of("attention", self.attention, ATTENTIONS)
        _one_of("gemm", self.gemm, GEMMS)
        if self.schedule == AUTO:
            _changes_nothing(self)
        for component in self.compile:
            _one_of("compile", component, ("vision", "decoder"))
        _one_of("rtc", self.rtc, RTC)
        parse_formats(self.weights)
        if not 0.0 <= self.rtc_limit < float("inf"):
            raise ValueError(f"rtc_limit is {self.rtc_limit}: give 0 or more")
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


def _changes_nothing(options: EngineOptions) -> None:
    asked = {
        f"acceptance {options.acceptance!r}": options.acceptance != "exact",
        f"drafter {options.drafter!r}": options.drafter != "temporal",
        "a draft_checkpoint": options.draft_checkpoint is not None,
    }
    for what, given in asked.items():
        if given:
            raise ValueError(
                f"schedule 'auto' changes nothing and needs no draft model: for {what} name the"
                " schedule, such as speculative"
            )
