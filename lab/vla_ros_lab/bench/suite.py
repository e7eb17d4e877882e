"""One benchmark run from options to a result, and its two variations: sweep and ablation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vla_ros.core.console import Report
from vla_ros.core.errors import UserError, user_errors
from vla_ros.engine.decoding.acceptance import Exact
from vla_ros.engine.decoding.base import Decoding, resolve
from vla_ros.engine.decoding.draft_head_folder import FOLDER, DraftHead
from vla_ros.engine.decoding.draft_heads import (
    HeadConfig,
    OneShotHead,
    RecursiveConfig,
    RecursiveHead,
    heads_for,
    one_shot_width,
    recursive_width,
)
from vla_ros.engine.decoding.drafters import Drafter
from vla_ros.engine.decoding.factory import DecodingParts, make_decoding
from vla_ros.engine.decoding.parallel import Parallel
from vla_ros.engine.decoding.speculative import Speculative
from vla_ros.engine.engine import Engine
from vla_ros.engine.families.openvla import PRESETS, in_memory, load_checkpoint, policy_of
from vla_ros.engine.families.random import PREFIX
from vla_ros.engine.io.checkpoint import Checkpoint
from vla_ros.engine.io.config import TextConfig
from vla_ros.engine.io.fast_tokens import FastTokens
from vla_ros.engine.io.tokens import MAX_TEXT, ActionTokens
from vla_ros.engine.layers.tuner import KernelChoice
from vla_ros.engine.models.language.base import tap_layers
from vla_ros.engine.models.oft import head_shapes
from vla_ros.engine.models.openvla import VLAModel
from vla_ros.engine.options import EngineOptions
from vla_ros_lab.bench import measure
from vla_ros_lab.bench.apart import run_apart
from vla_ros_lab.bench.compiled import DECODER, VISION, compiled_model
from vla_ros_lab.bench.measure import (
    Answers,
    EntropyChainDrafter,
    Hindsight,
    HitDrafter,
    Matches,
    MissDrafter,
    RowResult,
    best_in_hindsight,
    drifting_frames,
    load_frames,
    repeat_to,
    run_rows,
    silent,
    summarize,
)
from vla_ros_lab.bench.passes import PassTime, time_passes

# The rows of the table: every decoding and reference on one shared model.


#: what to compare with, and what a user would choose; in the order of the table
ROWS = (
    "generate",
    "autoregressive",
    "auto",
    "naive_pipe",
    "actionflow",
    "vanilla_speculative",
    "speculative_model",
    "speculative_temporal",
    "speculative_entropy",
    "speculative_tree",
    "speculative_tree_full",
    "speculative_head",
    "speculative_head_paying",
    "speculative_relaxed",
    "speculative_hit",
    "speculative_miss",
    "speculative_miss_always",
    "parallel",
)
#: a row that needs a calibration, and those that need one of a recursive head
HETEROSPEC = "heterospec"
HEAD_HETEROSPEC = ("heterospec_head", "heterospec_head_full")
CALIBRATED = (HETEROSPEC, *HEAD_HETEROSPEC)
#: rows whose drafter knows what the model will say
ORACLES = frozenset({"speculative_hit", "speculative_miss", "speculative_miss_always"})
#: rows that say a token a frame: a chunk would be answered many frames late
LATE = ("naive_pipe", "actionflow")
#: rows that are the engine's own decodings, with these options
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "generate": {"decoding": "generate"},
    "autoregressive": {"decoding": "autoregressive"},
    "auto": {"decoding": "auto"},
    "naive_pipe": {"decoding": "naive_pipe"},
    "actionflow": {"decoding": "actionflow"},
    "vanilla_speculative": {"decoding": "vanilla_speculative", "draft_checkpoint": "the draft"},
    "speculative_model": {
        "decoding": "speculative", "drafter": "model", "draft_checkpoint": "the draft",
    },
    "speculative_temporal": {"decoding": "speculative"},
    "speculative_tree": {"decoding": "speculative", "drafter": "temporal_tree"},
    "speculative_tree_full": {
        "decoding": "speculative", "drafter": "temporal_tree", "adaptive_draft": False,
    },
    HETEROSPEC: {"decoding": "heterospec"},
    "speculative_head": {
        "decoding": "speculative", "drafter": "head", "adaptive_draft": False,
    },
    "speculative_head_paying": {"decoding": "speculative", "drafter": "head"},
    "heterospec_head": {"decoding": "heterospec", "drafter": "head", "calibration": ""},
    "heterospec_head_full": {
        "decoding": "heterospec", "drafter": "head", "calibration": "", "adaptive_draft": False,
    },
    "speculative_relaxed": {
        "decoding": "speculative", "acceptance": "relaxed", "relaxed_distance": 2,
    },
}  # fmt: skip
CHUNK = 8  # actions of the OFT row, as its LIBERO checkpoints


@dataclass(frozen=True, slots=True)
class BenchSetting:
    """What all rows share. ``answers`` are the model's own tokens, by stamp; ``head`` the folder of
    a draft head that is not the checkpoint's own."""

    engine: Engine
    draft: Checkpoint | None
    answers: Answers
    head: str = ""

    @property
    def shape(self) -> tuple[VLAModel, int, int]:
        """Model, tokens of an action, longest prompt."""
        model = self.engine.model
        return model, self.engine.info.max_tokens, model.config.patches + MAX_TEXT


def make_row(name: str, setting: BenchSetting) -> Decoding:
    """The decoding of a row."""
    if name in OPTIONS:
        return decoding_of(OPTIONS[name], setting)
    if name == "parallel":
        return _parallel(setting)
    model, tokens, longest = setting.shape
    drafters: Mapping[str, Callable[[], Drafter]] = {
        "speculative_entropy": lambda: EntropyChainDrafter(model, tokens),
        "speculative_hit": lambda: HitDrafter(setting.answers, model.device),
        "speculative_miss": lambda: MissDrafter(model, tokens, setting.answers, adaptive=True),
        "speculative_miss_always": lambda: MissDrafter(
            model, tokens, setting.answers, adaptive=False
        ),
    }
    if name not in drafters:
        raise ValueError(f"row {name!r} is unknown: there are {', '.join((*ROWS, *CALIBRATED))}")
    return Speculative(model, tokens, longest, drafters[name](), Exact())


def decoding_of(options: Mapping[str, Any], setting: BenchSetting) -> Decoding:
    """What the engine makes of these options, on the shared model."""
    model, tokens, longest = setting.shape
    asked = resolve(replace(setting.engine.options, **options), model.config)
    if asked.drafter == "head":
        asked = replace(asked, draft_checkpoint=setting.head)
    dim = setting.engine.policy.processors.action.dim

    def draft(_: str) -> Checkpoint:
        assert setting.draft is not None, "a draft model is asked for where one was given"
        return setting.draft

    needs_head = asked.drafter == "head" and not asked.draft_checkpoint
    return make_decoding(
        DecodingParts(
            model, asked, dim, tokens, longest, draft,
            head=_untrained(model, tokens) if needs_head else None,
        )
    )  # fmt: skip


def _untrained(model: VLAModel, tokens: int) -> DraftHead | None:
    """A head that costs what one costs, for a checkpoint that has none."""
    if (model.directory / FOLDER).is_dir():
        return None
    text, actions = model.config.text, model.actions
    head: DraftHead
    if model.config.chunk > 1:
        head = untrained_recursive(text, tokens, tokens // model.config.chunk, actions)
    else:
        config = HeadConfig(
            tap_layers(text.layers), text.hidden_size, tokens, actions.bins,
            one_shot_width(text.hidden_size), ordered=actions.ordered,
        )  # fmt: skip
        head = OneShotHead(config).requires_grad_(False).eval()
    return head.to(model.device, model.dtype)


def untrained_recursive(
    text: TextConfig, tokens: int, dim: int, actions: ActionTokens | FastTokens
) -> RecursiveHead:
    """A recursive head of random weights, for answers of so many tokens, an action ``dim``."""
    width = recursive_width(text.hidden_size)
    config = RecursiveConfig(
        tap_layers(text.layers), text.hidden_size, tokens, dim, actions.bins, width,
        heads_for(width), actions.ordered,
    )  # fmt: skip
    return RecursiveHead(config).requires_grad_(False).eval()


def _parallel(setting: BenchSetting) -> Parallel:
    """The same language model with an untrained OFT head: another policy, the same size."""
    model, _, longest = setting.shape
    dim = setting.engine.policy.processors.action.dim
    config = replace(model.config, parallel=True, chunk=CHUNK, action_dim=dim)
    tensors = dict(model.tensors)
    for name, shape in head_shapes(config).items():
        tensors[name] = torch.full(shape, 0.01, device=model.device, dtype=model.dtype)
    twin = copy(model)
    twin.config, twin.tensors = config, tensors
    return Parallel(twin, CHUNK * dim, longest, None)


INSTRUCTION = "pick up the red cube and place it on the plate"
SWEEP_TOKENS = (7, 16, 24, 32)
SWEEP_WORDS = (10, 60, 120)
SWEEP_ROWS = ("generate", "autoregressive", "actionflow", "speculative_hit")
ABLATION = ((), (VISION,), (DECODER,), (VISION, DECODER))
ABLATION_ROWS = ("generate", "autoregressive", "actionflow", "speculative_hit")


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What to measure. ``engine``: of the model, whose decoding is what the rows are drafted and
    compared with. ``tokens`` is the length of an action of random weights; ``head`` the folder
    of a draft head (the checkpoint's own); ``compiled`` the parts that torch.compile makes."""

    engine: EngineOptions = EngineOptions(
        "random:cpu", dtype="bfloat16", decoding="autoregressive", num_threads=1
    )
    draft: str = "random:small"
    head: str = ""
    rows: tuple[str, ...] = ROWS
    warm_up: int = 10
    timed: int = 100
    tokens: int = 7
    cpu_clock: bool = True
    frames: Path | None = None
    instruction: str = INSTRUCTION
    compiled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Captures:
    """CUDA graphs captured before the first frame, and while frames were answered (should be 0)."""

    prepared: int = 0
    in_service: int = 0


@dataclass(frozen=True, slots=True)
class BenchResult:
    """Rows by name, the shapes they were measured with, and a bound on all drafts of the last
    action's alternatives on the same frames; ``attention`` is what ran, where not what was asked.
    """

    rows: dict[str, RowResult]
    shapes: dict[str, int]
    hindsight: Hindsight | None = None
    captures: Captures = Captures()
    attention: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "shapes": self.shapes,
            "decodings": {name: asdict(row) for name, row in self.rows.items()},
            "hindsight": None if self.hindsight is None else asdict(self.hindsight),
            "captures": asdict(self.captures),
            "attention": self.attention,
        }


def open_for(name: str, options: BenchOptions) -> Checkpoint:
    """A checkpoint; random weights are made in memory, with actions of the wanted length."""
    device, dtype = torch.device(options.engine.device), getattr(torch, options.engine.dtype)
    preset = name.removeprefix(PREFIX)
    if name.startswith(PREFIX) and preset in PRESETS:
        return in_memory(PRESETS[preset], options.engine.seed, device, dtype, options.tokens)
    return load_checkpoint(name, device, dtype, options.engine.seed)


def run_bench(options: BenchOptions, report: Report = silent) -> BenchResult:
    """Measure the rows on one model. ``report`` is called between frames, when no clock runs.

    UserError: unusable frames, or a checkpoint and options that do not go together.
    """
    if options.engine.num_threads:
        torch.set_num_threads(options.engine.num_threads)
    there = (*ROWS, *CALIBRATED)
    unknown = sorted(set(options.rows) - set(there))
    if unknown:
        raise UserError(f"rows {', '.join(unknown)} are unknown: there are {', '.join(there)}")
    recorded = load_frames(options.frames) if options.frames else drifting_frames(options.timed)
    images = repeat_to(recorded, options.warm_up + options.timed)
    report(f"loading {options.engine.checkpoint}", 0, 0)
    with _refused():
        checkpoint = open_for(options.engine.checkpoint, options)
        needs_draft = {"vanilla_speculative", "speculative_model"} & set(options.rows)
        draft = open_for(options.draft, options) if needs_draft else checkpoint
        make_model = compiled_model(options.compiled) if options.compiled else VLAModel
        policy = policy_of(checkpoint, options.engine, make_model=make_model)
        engine = Engine(policy, options.engine)
    engine.reset(options.instruction)
    answers = _answers(engine, images, report) if _asks_first(options) else {}
    setting = BenchSetting(engine, draft, answers, options.head)
    with _refused():
        rows = {name: make_row(name, setting) for name in options.rows}
    request = engine.encode(measure.observe(0, images[0]), measure.Timeline(0), measure.CLOCK)
    for number, decoding in enumerate(rows.values()):
        report("preparing", number, len(rows))
        decoding.instruct(options.instruction)
        if engine.model.capture is not None:
            decoding.prepare(request)
    prepared = engine.model.captures
    samples = run_rows(engine, rows, images, options.warm_up, options.cpu_clock, report)
    captures = Captures(prepared, engine.model.captures - prepared)
    reference = samples["generate"].tokens if "generate" in samples else {}
    matches = Matches(engine, images, reference)
    results = {name: summarize(name, decoding, samples, matches) for name, decoding in rows.items()}
    bound = _bound(engine, options, answers)
    return BenchResult(
        results, _shapes(engine, options), bound, captures, engine.model.attention.name
    )


@dataclass(frozen=True, slots=True)
class PassesResult:
    """Passes by name, behind a prompt of so many tokens, of actions of so many (of a chunk, where a
    policy says no tokens); ``gemm``: which products were taken, none where all are torch's."""

    passes: dict[str, PassTime]
    prompt: int
    tokens: int
    attention: str
    gemm: tuple[KernelChoice, ...] = ()


def measure_passes(options: BenchOptions, report: Report = silent) -> PassesResult:
    """Each pass by itself, ``timed`` times. UserError as of :func:`run_bench`."""
    if options.engine.num_threads:
        torch.set_num_threads(options.engine.num_threads)
    report(f"loading {options.engine.checkpoint}", 0, 0)
    with _refused():
        checkpoint = open_for(options.engine.checkpoint, options)
        engine = Engine(policy_of(checkpoint, options.engine), options.engine)
        found, prompt = time_passes(
            engine, options.instruction, options.timed, report, options.cpu_clock
        )
    tuner = engine.model.tuner
    chosen = () if tuner is None else tuple(tuner.choices)
    return PassesResult(found, prompt, engine.info.max_tokens, engine.model.attention.name, chosen)


@contextlib.contextmanager
def _refused() -> Iterator[None]:
    """The engine says by a ValueError what does not fit; while measuring that would be a bug."""
    with user_errors(ValueError):
        yield


def _asks_first(options: BenchOptions) -> bool:
    """Whether anything needs the model's own tokens beforehand: a row alone, as a rule, does not,
    and in its process nothing else should run."""
    return len(options.rows) > 1 or bool(ORACLES & set(options.rows))


def _answers(engine: Engine, images: Sequence[Any], report: Report) -> dict[int, tuple[int, ...]]:
    """Tokens by stamp that a draft of just these tokens confirms in one pass.

    In bf16 the tokens of single passes are not always those of a verified draft (another
    shape of product rounds otherwise), so the draft follows the verdict until it stands.
    """
    model, tokens = engine.model, engine.info.max_tokens
    answers: dict[int, tuple[int, ...]] = {}
    longest = model.config.patches + MAX_TEXT
    drafter = HitDrafter(answers, model.device)
    speculative = Speculative(model, tokens, longest, drafter, Exact())
    for stamp, image in enumerate(images):
        report("asking the model", stamp, len(images))
        plain = measure.answer(engine, engine.decoder.decoding, stamp, image)
        assert plain is not None
        answers[stamp] = plain.tokens
        for _ in range(tokens):
            judged = measure.answer(engine, speculative, stamp, image)
            assert judged is not None
            answers[stamp] = judged.tokens
            if judged.target_passes == 1:
                break
    return answers


def _bound(
    engine: Engine, options: BenchOptions, answers: Mapping[int, tuple[int, ...]]
) -> Hindsight | None:
    """Where there are rows to hold against it, and alternatives."""
    actions = engine.model.actions
    if not answers or engine.model.config.parallel or not actions.ordered:
        return None
    said = [answers[stamp] for stamp in sorted(answers)]
    return best_in_hindsight(said, actions.window, options.warm_up, engine.model.config.chunk)


def _shapes(engine: Engine, options: BenchOptions) -> dict[str, int]:
    config = engine.model.config
    return {
        "parameters": engine.model.parameters,
        "vision_tokens": config.patches,
        "prompt_tokens": config.patches + len(engine.policy.tokenizer(options.instruction)),
        "action_tokens": engine.info.max_tokens,
        "views": config.images,
        "warm_up": options.warm_up,
        "timed": options.timed,
    }


def run_engine(options: BenchOptions, report: Report = silent) -> BenchResult:
    """One of several runs: on a GPU in a process of its own, where no other engine's graphs,
    memory or compiled code are about."""
    if options.engine.device == "cpu":
        return run_bench(options, report)
    return run_apart(run_bench, options, report)


def run_sweep(options: BenchOptions, report: Report = silent) -> list[BenchResult]:
    """The main rows over action lengths and prompt lengths (random weights only)."""
    out = []
    for tokens in SWEEP_TOKENS:
        for words in SWEEP_WORDS:
            text = " ".join((INSTRUCTION + " ").split() * (words // 10))
            rows = tuple(r for r in SWEEP_ROWS if r in options.rows)
            # Before the clock runs a pipeline is full, and it lasts for more than one action.
            step = replace(
                options, tokens=tokens, instruction=text, rows=rows,
                warm_up=max(options.warm_up, tokens), timed=max(options.timed, 2 * tokens),
            )  # fmt: skip
            out.append(run_engine(step, _about(f"{tokens} tokens, {words} words", report)))
    return out


def run_ablation(options: BenchOptions, report: Report = silent) -> dict[str, BenchResult]:
    """The main rows with torch.compile on nothing, vision, decoder and both."""
    rows = tuple(r for r in ABLATION_ROWS if r in options.rows)
    out = {}
    for parts in ABLATION:
        name = "+".join(parts) or "eager"
        step = replace(options, compiled=parts, rows=rows)
        out[name] = run_engine(step, _about(name, report))
    return out


def _about(run: str, report: Report) -> Report:
    return lambda text, done, total: report(f"{run}: {text}", done, total)
