"""One benchmark run from options to a result, and its two variations: sweep and ablation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vla_ros.benchmark import measure
from vla_ros.benchmark.apart import run_apart
from vla_ros.benchmark.frames import drifting_frames, load_frames, repeat_to
from vla_ros.benchmark.margins import Matches
from vla_ros.benchmark.measure import Report, RowResult, run_rows, silent, summarise
from vla_ros.benchmark.oracle import HitDrafter
from vla_ros.benchmark.passes import PassTime, time_passes
from vla_ros.benchmark.rivals import Hindsight, best_in_hindsight
from vla_ros.benchmark.rows import CALIBRATED, ORACLES, ROWS, Setting, make_row
from vla_ros.engine.checkpoints.openvla import Checkpoint
from vla_ros.engine.checkpoints.random import PREFIX, PRESETS, in_memory
from vla_ros.engine.drafters.acceptance import Exact
from vla_ros.engine.engine import Engine, open_checkpoint
from vla_ros.engine.gemm.tuner import Choice
from vla_ros.engine.options import EngineOptions
from vla_ros.engine.schedules.speculative import Speculative
from vla_ros.engine.tokens import MAX_TEXT
from vla_ros.errors import UserError

INSTRUCTION = "pick up the red cube and place it on the plate"
SWEEP_TOKENS = (7, 16, 24, 32)
SWEEP_WORDS = (10, 60, 120)
SWEEP_ROWS = ("generate", "autoregressive", "actionflow", "speculative_hit")
ABLATION = ((), ("vision",), ("decoder",), ("vision", "decoder"))
ABLATION_ROWS = ("generate", "autoregressive", "actionflow", "speculative_hit")


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What to measure. ``tokens`` is the length of an action of random weights; ``head`` the folder
    of a draft head (the checkpoint's own)."""

    checkpoint: str = "random:cpu"
    draft: str = "random:small"
    device: str = "cpu"
    dtype: str = "bfloat16"
    weights: str = ""
    rows: tuple[str, ...] = ROWS
    warm_up: int = 10
    timed: int = 100
    tokens: int = 7
    threads: int | None = 1
    cpu_clock: bool = True
    frames: Path | None = None
    instruction: str = INSTRUCTION
    unnorm_key: str | None = None
    calibration: str | None = None
    head: str | None = None
    compile: tuple[str, ...] = ()
    cuda_graphs: bool = True
    attention: str = "auto"
    image_steps: str = "auto"
    vision_streams: bool = True
    gemm: str = "auto"
    seed: int = 0


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
            "schedules": {name: asdict(row) for name, row in self.rows.items()},
            "hindsight": None if self.hindsight is None else asdict(self.hindsight),
            "captures": asdict(self.captures),
            "attention": self.attention,
        }


def open_for(name: str, options: BenchOptions) -> Checkpoint:
    """A checkpoint; random weights are made in memory, with actions of the wanted length."""
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    preset = name.removeprefix(PREFIX)
    if name.startswith(PREFIX) and preset in PRESETS:
        return in_memory(PRESETS[preset], options.seed, device, dtype, options.tokens)
    return open_checkpoint(name, options.seed, device, dtype)


def run_bench(options: BenchOptions, report: Report = silent) -> BenchResult:
    """Measure the rows on one model. ``report`` is called between frames, when no clock runs.

    UserError: unusable frames, or a checkpoint and options that do not go together.
    """
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    there = (*ROWS, *CALIBRATED)
    unknown = sorted(set(options.rows) - set(there))
    if unknown:
        raise UserError(f"rows {', '.join(unknown)} are unknown: there are {', '.join(there)}")
    recorded = load_frames(options.frames) if options.frames else drifting_frames(options.timed)
    images = repeat_to(recorded, options.warm_up + options.timed)
    report(f"loading {options.checkpoint}", 0, 0)
    with _refused():
        checkpoint = open_for(options.checkpoint, options)
        needs_draft = {"vanilla_speculative", "speculative_model"} & set(options.rows)
        draft = open_for(options.draft, options) if needs_draft else checkpoint
        engine = Engine(checkpoint, _engine_options(options))
    engine.reset(options.instruction)
    answers = _answers(engine, images, report) if _asks_first(options) else {}
    setting = Setting(engine, draft, answers, options.head)
    with _refused():
        rows = {name: make_row(name, setting) for name in options.rows}
    request = engine.request(measure.observe(0, images[0]), measure.Timeline(0), measure.CLOCK)
    for number, schedule in enumerate(rows.values()):
        report("preparing", number, len(rows))
        schedule.instruct(options.instruction)
        if engine.model.capture is not None:
            schedule.prepare(request)
    prepared = engine.model.captures
    samples = run_rows(engine, rows, images, options.warm_up, options.cpu_clock, report)
    captures = Captures(prepared, engine.model.captures - prepared)
    reference = samples["generate"].tokens if "generate" in samples else {}
    matches = Matches(engine, images, reference)
    results = {name: summarise(name, schedule, samples, matches) for name, schedule in rows.items()}
    bound = _bound(engine, options, answers)
    return BenchResult(
        results, _shapes(engine, options), bound, captures, engine.model.attention.name
    )


@dataclass(frozen=True, slots=True)
class PassesResult:
    """Passes by name, behind a prompt of so many tokens, of actions of so many; ``gemm``: which
    products were taken, none where all are torch's."""

    passes: dict[str, PassTime]
    prompt: int
    tokens: int
    attention: str
    gemm: tuple[Choice, ...] = ()


def measure_passes(options: BenchOptions, report: Report = silent) -> PassesResult:
    """Each pass by itself, ``timed`` times. UserError as of :func:`run_bench`."""
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    report(f"loading {options.checkpoint}", 0, 0)
    with _refused():
        engine = Engine(open_for(options.checkpoint, options), _engine_options(options))
        found, prompt = time_passes(engine, options.instruction, options.timed, report)
    tuner = engine.model.tuner
    chosen = () if tuner is None else tuple(tuner.choices)
    return PassesResult(found, prompt, engine.info.max_tokens, engine.model.attention.name, chosen)


@contextlib.contextmanager
def _refused() -> Iterator[None]:
    """The engine says by a ValueError what does not fit; while measuring that would be a bug."""
    try:
        yield
    except ValueError as error:
        raise UserError(str(error)) from error


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
        plain = measure.answer(engine, engine.schedule, stamp, image)
        assert plain is not None
        answers[stamp] = plain.tokens
        for _ in range(tokens):
            judged = measure.answer(engine, speculative, stamp, image)
            assert judged is not None
            answers[stamp] = judged.tokens
            if judged.target_passes == 1:
                break
    return answers


def _engine_options(options: BenchOptions) -> EngineOptions:
    return EngineOptions(
        checkpoint=options.checkpoint,
        device=options.device,
        dtype=options.dtype,
        weights=options.weights,
        schedule="autoregressive",  # what the rows are drafted and compared with
        unnorm_key=options.unnorm_key,
        calibration=options.calibration,
        seed=options.seed,
        cuda_graphs=options.cuda_graphs,
        attention=options.attention,
        image_steps=options.image_steps,
        vision_streams=options.vision_streams,
        gemm=options.gemm,
        compile=options.compile,
    )


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
        "prompt_tokens": config.patches + len(engine.tokenizer(options.instruction)),
        "action_tokens": engine.info.max_tokens,
        "views": config.images,
        "warm_up": options.warm_up,
        "timed": options.timed,
    }


def run_engine(options: BenchOptions, report: Report = silent) -> BenchResult:
    """One of several runs: on a GPU in a process of its own, where no other engine's graphs,
    memory or compiled code are about."""
    if options.device == "cpu":
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
        step = replace(options, compile=parts, rows=rows)
        out[name] = run_engine(step, _about(name, report))
    return out


def _about(run: str, report: Report) -> Report:
    return lambda text, done, total: report(f"{run}: {text}", done, total)
