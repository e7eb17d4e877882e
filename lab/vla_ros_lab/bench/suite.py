"""Token policies: every decoding and reference on one shared model, as rows."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch

from vla_ros.core.console import Report
from vla_ros.core.errors import user_errors
from vla_ros.core.types import Image, Timeline
from vla_ros.engine.decoding.acceptance import Exact
from vla_ros.engine.decoding.base import Decoding, resolve
from vla_ros.engine.decoding.draft_head_folder import FOLDER
from vla_ros.engine.decoding.draft_heads import (
    RecursiveConfig,
    RecursiveHead,
    heads_for,
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
from vla_ros.engine.layers.pack import PackLayout
from vla_ros.engine.layers.request import Decoded
from vla_ros.engine.models.language.base import tap_layers
from vla_ros.engine.models.oft import head_shapes
from vla_ros.engine.models.openvla import VLAModel
from vla_ros_lab.bench.apart import run_apart
from vla_ros_lab.bench.compiled import DECODER, VISION, compiled_model
from vla_ros_lab.bench.drafters import (
    Answers,
    EntropyChainDrafter,
    HitDrafter,
    MissDrafter,
    SplitClock,
    best_in_hindsight,
    split_clock,
    split_of,
)
from vla_ros_lab.bench.measure import (
    CLOCK,
    BenchResult,
    Figures,
    Row,
    Stopwatch,
    as_floats,
    begin,
    drifting_frames,
    load_frames,
    observe,
    run_rows,
    silent,
)
from vla_ros_lab.bench.options import INSTRUCTION, BenchOptions
from vla_ros_lab.decodings.calibration import FILE

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
#: rows whose drafter knows the model's own tokens
ORACLES = frozenset({"speculative_hit", "speculative_miss", "speculative_miss_always"})
#: rows that decode a token a frame: a chunk would be answered many frames late
LATE = ("naive_pipe", "actionflow")
_ALWAYS = {"adaptive_draft": False}
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
    "speculative_tree_full": {"decoding": "speculative", "drafter": "temporal_tree", **_ALWAYS},
    HETEROSPEC: {"decoding": "heterospec"},
    "speculative_head": {"decoding": "speculative", "drafter": "head", **_ALWAYS},
    "speculative_head_paying": {"decoding": "speculative", "drafter": "head"},
    "heterospec_head": {"decoding": "heterospec", "drafter": "head", "extra": ()},
    "heterospec_head_full": {
        "decoding": "heterospec", "drafter": "head", "extra": (), **_ALWAYS,
    },
    "speculative_relaxed": {
        "decoding": "speculative", "acceptance": "relaxed", "relaxed_distance": 2,
    },
}  # fmt: skip
CHUNK = 8  # actions of the OFT row, as its LIBERO checkpoints


@dataclass(frozen=True, slots=True)
class BenchSetting:
    """Parts that all rows share. ``answers`` are the model's own tokens, by stamp; ``head`` the
    folder of a draft head that is not the checkpoint's own."""

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
    (model, tokens, longest), answers = setting.shape, setting.answers
    drafters: Mapping[str, Callable[[], Drafter]] = {
        "speculative_entropy": lambda: EntropyChainDrafter(model, tokens),
        "speculative_hit": lambda: HitDrafter(answers, model.device),
        "speculative_miss": lambda: MissDrafter(model, tokens, answers, adaptive=True),
        "speculative_miss_always": lambda: MissDrafter(model, tokens, answers, adaptive=False),
    }
    if name not in drafters:
        raise ValueError(f"row {name!r} is unknown: there are {', '.join((*ROWS, *CALIBRATED))}")
    return Speculative(model, tokens, longest, drafters[name](), Exact())


def decoding_of(options: Mapping[str, Any], setting: BenchSetting) -> Decoding:
    """The engine's decoding of these options, on the shared model."""
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


def _untrained(model: VLAModel, tokens: int) -> RecursiveHead | None:
    """A head that costs what one costs, for a checkpoint that has none."""
    if (model.directory / FOLDER).is_dir():
        return None
    dim = tokens // model.config.chunk
    head = untrained_recursive(model.config.text, tokens, dim, model.actions)
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
    """Another policy of the same size: the shared language model with an untrained OFT head."""
    model, _, longest = setting.shape
    dim = setting.engine.policy.processors.action.dim
    config = replace(model.config, parallel=True, chunk=CHUNK, action_dim=dim)
    tensors = dict(model.tensors)
    for name, shape in head_shapes(config).items():
        tensors[name] = torch.full(shape, 0.01, device=model.device, dtype=model.dtype)
    twin = copy(model)
    twin.config, twin.tensors = config, tensors
    return Parallel(twin, CHUNK * dim, longest, None)


SWEEP_TOKENS = (7, 16, 24, 32)
SWEEP_WORDS = (10, 60, 120)
ABLATION = ((), (VISION,), (DECODER,), (VISION, DECODER))
MAIN_ROWS = ("generate", "autoregressive", "actionflow", "speculative_hit")  # of several runs


def open_for(name: str, options: BenchOptions) -> Checkpoint:
    """A checkpoint; random weights are made in memory, with actions of the wanted length."""
    device, dtype = torch.device(options.engine.device), getattr(torch, options.engine.dtype)
    preset = name.removeprefix(PREFIX)
    if name.startswith(PREFIX) and preset in PRESETS:
        return in_memory(PRESETS[preset], options.engine.seed, device, dtype, options.tokens)
    return load_checkpoint(name, device, dtype, options.engine.seed)


def rows_for(options: BenchOptions, checkpoint: Checkpoint) -> tuple[str, ...]:
    """The rows that are asked for, or every one that fits the checkpoint; heterospec where there is
    a calibration for it."""
    if options.rows:
        return options.rows
    folder, rows = checkpoint.directory, list(ROWS)
    if options.engine.extra or (folder / FILE).is_file():
        rows.append(HETEROSPEC)
    if ((Path(options.head) if options.head else folder / FOLDER) / FILE).is_file():
        rows += HEAD_HETEROSPEC
    left_out = set(LATE) if checkpoint.config.chunk > 1 else set()
    if not as_floats(options.engine):
        left_out.add("generate")
    return tuple(row for row in rows if row not in left_out)


def run_bench(options: BenchOptions, report: Report = silent) -> BenchResult:
    """Measure the rows on one model.

    UserError: unusable frames, or a checkpoint and options that do not go together.
    """
    options.refuse_unknown((*ROWS, *CALIBRATED))
    count = options.warm_up + options.timed
    recorded = load_frames(Path(options.frames)) if options.frames else None
    images = recorded or drifting_frames(options.timed)
    images = [images[i % len(images)] for i in range(count)]
    begin(options, report)
    with user_errors(ValueError):  # what does not fit; while measuring it would be a bug
        checkpoint = open_for(options.engine.checkpoint, options)
        names = rows_for(options, checkpoint)
        needs_draft = {"vanilla_speculative", "speculative_model"} & set(names)
        draft = open_for(options.draft, options) if needs_draft else checkpoint
        make_model = compiled_model(options.compiled) if options.compiled else VLAModel
        policy = policy_of(checkpoint, options.engine, make_model=make_model)
        engine = Engine(policy, options.engine)
    engine.reset(options.instruction)
    # a row alone needs none beforehand, and in its process nothing else should run
    asked_first = len(names) > 1 or ORACLES & set(names)
    answers = _answers(engine, images, report) if asked_first else {}
    setting = BenchSetting(engine, draft, answers, options.head)
    with user_errors(ValueError):
        decodings = {name: make_row(name, setting) for name in names}
    request = engine.encode(observe(0, images[0]), Timeline(0), CLOCK)
    for number, decoding in enumerate(decodings.values()):
        report("preparing", number, len(decodings))
        decoding.instruct(options.instruction)
        if engine.model.capture is not None:
            decoding.prepare(request)
    prepared = engine.model.captures
    rows = {n: TokenRow(engine, each, images, options.cpu_clock) for n, each in decodings.items()}
    run_rows(
        {name: each.row for name, each in rows.items()}, options.warm_up, options.timed, report
    )
    captured = engine.model.captures - prepared
    reference = rows["generate"].tokens if "generate" in rows else {}
    matches = Matches(engine, images, reference)
    config = engine.model.config
    return BenchResult(
        {name: each.figures(rows, matches) for name, each in rows.items()},
        {
            "parameters": engine.model.parameters,
            "vision_tokens": config.patches,
            "prompt_tokens": config.patches + len(policy.tokenizer(options.instruction)),
            "action_tokens": engine.info.max_tokens,
            "views": config.images,
            "warm_up": options.warm_up,
            "timed": options.timed,
        },
        {
            "hindsight": _bound(engine, options, answers),
            "captures": {"prepared": prepared, "in_service": captured},
            "attention": engine.model.attention.name,  # what ran, where not what was asked for
        },
    )


def answer(engine: Engine, decoding: Decoding, stamp: int, image: Image) -> Decoded | None:
    """One observation through preprocessing, vision and a decoding."""
    timeline = Timeline(CLOCK.steady_ns())
    return decoding.step(engine.encode(observe(stamp, image), timeline, CLOCK))


class TokenRow:
    """A decoding as a row: each call shows it a frame, from preprocessing on."""

    def __init__(
        self, engine: Engine, decoding: Decoding, images: Sequence[Image], cpu_clock: bool
    ) -> None:
        self._engine, self._decoding, self._images = engine, decoding, images
        self._cpu = cpu_clock
        self._split: SplitClock | None = split_clock(decoding, cpu_clock)
        self.row = Row(self._call, decoding.lossless, decoding.depth)

    def _call(self, number: int) -> tuple[Decoded | None, Any]:
        watch = Stopwatch(self._engine.model.device)
        image = self._images[number]
        found = watch.time("call", lambda: answer(self._engine, self._decoding, number, image))
        if self._split is not None:
            self._split.take()
        return found, watch.spent

    @property
    def tokens(self) -> dict[int, tuple[int, ...]]:
        """The tokens of every frame that was answered, by stamp, of the warm-up too."""
        return {one.stamp_ns: one.tokens for one in self.row.answers if one is not None}

    def figures(self, rows: Mapping[str, TokenRow], matches: Matches) -> Figures:
        """The row's figures. ``latency_ms``: a frame's own call and those it waits for. ``passes``:
        one that serves K frames counts 1/K for each. ``said``: eight hexadecimal digits of the
        tokens of every frame from the first, "-" where it has none, so that rows of different
        processes can be compared."""
        row, counted = self.row, self.row.counted
        spent, known, half = row.spent(self._cpu), self.tokens, median(row.spent(self._cpu))
        windows = [sum(spent[i : i + row.depth]) for i in range(len(spent) - row.depth + 1)]
        drafted, accepted = (
            sum(sum(getattr(d, n)) for d in counted) for n in ("drafted", "accepted")
        )
        tokens, actions, margin = matches.rates(counted)
        frames = range(max(known, default=-1) + 1)

        def times(other: str) -> float | None:
            return median(rows[other].row.spent(self._cpu)) / half if other in rows else None

        return {
            **row.figures(self._cpu),
            "latency_ms": median(windows) * 1e3 if windows else float("nan"),
            "passes_per_action": _mean([d.target_passes for d in counted]) / row.depth,
            "draft_passes_per_action": _mean([d.draft_passes for d in counted]),
            "acceptance": accepted / drafted if drafted else None,
            "speedup_vs_generate": times("generate"),
            "speedup_vs_autoregressive": times("autoregressive"),
            "token_match": tokens,
            "action_match": actions,
            "mismatch_margin": margin,  # in logits
            "lossless": row.lossless,
            "actions_per_call": len(counted[0].actions) if _has_chunk(counted) else 1,
            "peak_memory_mb": self._peak_mb(),
            "split": split_of(self._split.taken[-len(spent) :], spent) if self._split else None,
            "said": " ".join(
                f"{zlib.crc32(repr(known[n]).encode()):08x}" if known.get(n) else "-"
                for n in frames
            ),
        }

    def _peak_mb(self) -> float | None:
        """The most that torch had taken from the device, for the whole process: replayed graphs
        allocate nothing, so what is allocated would leave out what they work in."""
        device = self._engine.model.device
        if device.type != "cuda":
            return None
        torch.cuda.reset_peak_memory_stats(device)
        for stamp, image in enumerate(self._images[: self.row.depth + 1]):
            answer(self._engine, self._decoding, stamp, image)
        return torch.cuda.max_memory_reserved(device) / 2**20


def _has_chunk(answers: Sequence[Decoded]) -> bool:
    return bool(answers) and answers[0].actions is not None


def _mean(values: Sequence[int]) -> float:
    return fmean(values) if values else 0.0


class Matches:
    """Comparison with a reference; differences are explained by the model's own logits."""

    def __init__(self, engine: Engine, images: Sequence[Image], reference: Answers) -> None:
        self._engine, self._images, self._reference = engine, images, reference
        self._prompts: dict[int, torch.Tensor] = {}
        longest = engine.model.config.patches + MAX_TEXT + engine.info.max_tokens
        self._runner = engine.model.runner(1, longest)

    def rates(self, answers: Sequence[Decoded]) -> tuple[float | None, float | None, float | None]:
        """Rate of equal tokens, of equal actions, and the largest logit margin at a first miss."""
        known = self._reference
        pairs = [(d, known[d.stamp_ns]) for d in answers if d.tokens and d.stamp_ns in known]
        if not pairs:
            return None, None, None
        same = sum(sum(a == b for a, b in zip(d.tokens, r, strict=True)) for d, r in pairs)
        total = sum(len(r) for _, r in pairs)
        whole = sum(d.tokens == r for d, r in pairs) / len(pairs)
        margins = [self._margin(d, r) for d, r in pairs if d.tokens != r]
        return same / total, whole, max(margins, default=None)

    def _margin(self, decoded: Decoded, reference: tuple[int, ...]) -> float:
        """How far apart the two choices were, in logits, where they first differ."""
        first = next(i for i, r in enumerate(reference) if r != decoded.tokens[i])
        prompt, model = self._prompt(decoded.stamp_ns), self._engine.model
        behind = torch.tensor(reference[:first], device=model.device) if first else None
        total = len(prompt) + first
        logits = self._runner.logits(PackLayout((total - 1,), total), prompt, behind)[0].float()
        return float((logits[reference[first]] - logits[decoded.tokens[first]]).abs())

    def _prompt(self, stamp: int) -> torch.Tensor:
        if stamp not in self._prompts:
            frame = observe(stamp, self._images[stamp])
            self._prompts[stamp] = self._engine.encode(frame, Timeline(0), CLOCK).prompt
        return self._prompts[stamp]


def _answers(engine: Engine, images: Sequence[Image], report: Report) -> dict[int, tuple[int, ...]]:
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
        plain = answer(engine, engine.decoder.decoding, stamp, image)
        assert plain is not None
        answers[stamp] = plain.tokens
        for _ in range(tokens):
            judged = answer(engine, speculative, stamp, image)
            assert judged is not None
            answers[stamp] = judged.tokens
            if judged.target_passes == 1:
                break
    return answers


def _bound(engine: Engine, options: BenchOptions, answers: Answers) -> Figures | None:
    """The bound on drafts, where there are rows to hold against it, and alternatives."""
    actions, config = engine.model.actions, engine.model.config
    if not answers or config.parallel or not actions.ordered:
        return None
    tokens = [answers[stamp] for stamp in sorted(answers)]
    found = best_in_hindsight(tokens, actions.window, options.warm_up, config.chunk)
    return None if found is None else asdict(found)


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
            # Before the clock runs a pipeline is full, and it lasts for more than one action.
            step = replace(
                options, tokens=tokens, instruction=text, rows=_main_rows(options),
                warm_up=max(options.warm_up, tokens), timed=max(options.timed, 2 * tokens),
            )  # fmt: skip
            out.append(run_engine(step, _about(f"{tokens} tokens, {words} words", report)))
    return out


def run_ablation(options: BenchOptions, report: Report = silent) -> dict[str, BenchResult]:
    """The main rows with torch.compile on nothing, vision, decoder and both."""
    out = {}
    for parts in ABLATION:
        name = "+".join(parts) or "eager"
        step = replace(options, compiled=parts, rows=_main_rows(options))
        out[name] = run_engine(step, _about(name, report))
    return out


def _main_rows(options: BenchOptions) -> tuple[str, ...]:
    with user_errors(ValueError):
        fitting = MAIN_ROWS if as_floats(options.engine) else MAIN_ROWS[1:]
    return tuple(row for row in fitting if not options.rows or row in options.rows)


def _about(run: str, report: Report) -> Report:
    return lambda text, done, total: report(f"{run}: {text}", done, total)
