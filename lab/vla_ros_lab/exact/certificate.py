"""A certificate: every lossless way that a node may take, on the same frames, against the plain
reference in the same precision; signed by its hash, and repeated by whoever doubts it.

Tokens differ or do not. Where they first do, the reference's own logits say whether that is a tie:
the reference is computed a second time, all tokens at once, and what it does not tell apart itself
no other way can be blamed for. Numbers of a chunk are held to a limit of the same kind.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vla_ros.core.console import Report
from vla_ros.core.errors import UserError
from vla_ros.core.types import Executing, Inference, Observation
from vla_ros.engine.engine import Engine
from vla_ros.engine.families.openvla import load_checkpoint, policy_of
from vla_ros.engine.families.registry import group_of
from vla_ros.engine.layers.flow_matching import Guidance
from vla_ros.engine.load import load_engine
from vla_ros.engine.options import FAST, TOKENS, EngineOptions
from vla_ros.policies.base import PolicySpec
from vla_ros.policies.conventions import settle
from vla_ros.policies.sessions import SessionRequest, step_together
from vla_ros.policies.vla import engine_options
from vla_ros_lab.bench.fast import GENERATE
from vla_ros_lab.bench.fast import ROWS as FAST_WAYS
from vla_ros_lab.bench.report import machine
from vla_ros_lab.bench.suite import BenchSetting, decoding_of
from vla_ros_lab.exact.plain import CLOCK, ReferenceAnswer, began, plain_of
from vla_ros_lab.hugging_face import transformers_model
from vla_ros_lab.precision.frames import FrameSource, frames_of
from vla_ros_lab.precision.watch import ProbeFrame

KIND = "vla_ros certificate 1"
#: of the largest value of an action: what a chunk may be off in float32
FLOAT32 = 1e-4

#: What the lossless ways of decoding tokens change of the options.
WAYS: Mapping[str, Mapping[str, Any]] = {
    "autoregressive": {"decoding": "autoregressive"},
    "actionflow": {"decoding": "actionflow"},
    "speculative (auto)": {"decoding": "speculative"},
    "speculative, a draft always": {"decoding": "speculative", "adaptive_draft": False},
    "speculative, linear drafts": {
        "decoding": "speculative", "draft_extrapolation": "linear", "adaptive_draft": False,
    },
    "speculative, fixed shapes": {"decoding": "speculative", "fixed_shapes": True},
    "temporal tree": {"decoding": "speculative", "drafter": "temporal_tree"},
    "temporal tree, always": {
        "decoding": "speculative", "drafter": "temporal_tree", "adaptive_draft": False,
    },
    "draft head": {"decoding": "speculative", "drafter": "head", "adaptive_draft": False},
    "draft model": {"decoding": "speculative", "drafter": "model"},
    "heterospec": {"decoding": "heterospec", "adaptive_draft": False},
    "heterospec over the head": {
        "decoding": "heterospec", "drafter": "head", "adaptive_draft": False,
    },
}  # fmt: skip
TRANSFORMERS = "transformers' layers"
#: Options of the engine that change no answer: everywhere, and on CUDA alone.
ENGINES: Mapping[str, Mapping[str, Any]] = {"": {}, TRANSFORMERS: {}}
CUDA_ENGINES: Mapping[str, Mapping[str, Any]] = {
    "without graphs": {"cuda_graphs": False},
    "torch's attention": {"attention": "torch"},
    "timed products": {"gemm": "auto"},
}
#: With other engines these stand for all: single tokens, drafts and trees.
_SHORT = ("autoregressive", "speculative, a draft always", "temporal tree, always")
#: Robots whose frames are answered in one batch with the one that is judged.
_OTHERS = 3
_BESIDE = f"beside {_OTHERS} other robots"
#: what `PolicyInfo.continues` calls them, and the option of each
_RTC = {"rtc": ("guided", "guided_vjp"), "rtc_trained": ("trained",)}


@dataclass(frozen=True, slots=True, eq=False)
class WayAnswer:
    """A way's answer to a frame; ``guidance``: the chunk that it was to continue."""

    answer: ReferenceAnswer
    guidance: Guidance | None = None


@dataclass(frozen=True, slots=True)
class Way:
    """One way, held to the reference. ``different``: answers that are not the reference's, of them
    ``ties``; ``first``: the first of them, or the first that is no tie. ``apart``: the largest
    difference of an action, of its dimension's largest value; ``limit`` of it."""

    name: str
    answers: int
    tokens: int
    different: int
    ties: int
    first: Mapping[str, Any] | None
    apart: float
    limit: float
    verdict: str
    answers_sha256: str


# Asking.


def certify(spec: PolicySpec, source: FrameSource, report: Report) -> dict[str, Any]:
    """The certificate, signed. UserError where there is nothing to compare."""
    used, _ = settle(spec)
    options, draft = engine_options(spec, used), spec.engine.draft_checkpoint
    options = replace(options, decoding="auto", drafter="temporal", draft_checkpoint="")
    frames, frames_from = frames_of(source, used, report)
    left_out: dict[str, str] = {}
    said: dict[str, list[WayAnswer]] = {}
    digest = ""
    for name, engine in _engines(options, draft, left_out):
        report(name, len(said), 0)
        digest = engine.info.checkpoint_sha256
        said[name] = play(engine, frames)
    for name, changed in _batches(options, said):
        report(name, len(said), 0)
        first = load_engine(replace(options, **changed))
        others = [first.session() for _ in range(_OTHERS)]
        said[name] = play(first.session(), frames, Batched(others, frames))
    wanted, covers = _references(options, frames, said, report)
    exact = None if options.dtype == "float32" else (
        _references(replace(options, dtype="float32"), frames, said, report)[0]
    )  # fmt: skip
    noise = max(each.noise for answers in wanted.values() for each in answers)
    ways = []
    for name, each in said.items():
        limit = limit_of(wanted[name], None if exact is None else exact[name])
        ways.append(compare(name, [s.answer for s in each], wanted[name], noise, limit))
    return signed({
        "kind": KIND,
        "passed": all(way.verdict != "different" for way in ways),
        "checkpoint": options.checkpoint,
        "checkpoint_sha256": digest,
        "precision": f"{options.dtype} on {options.device}",
        "reference": covers,
        "guaranteed": _guaranteed(next(iter(wanted.values())), noise, ways, options.dtype),
        "ways": [asdict(way) for way in ways],
        "left_out": left_out,
        "frames": {"from": frames_from, "count": len(frames), "sha256": _digest_of(frames)},
        "asked": {"engine": spec.engine.changed(), "frames": _plainly(source)},
        "machine": _machine(torch.device(options.device)),
    })  # fmt: skip


def _engines(
    options: EngineOptions, draft: str, left_out: dict[str, str]
) -> Iterator[tuple[str, Engine]]:
    """Every way as an engine that goes it, one after the other. ``left_out``: why others are not
    among them."""
    cuda = options.device != "cpu"
    if not cuda:
        left_out["graphs, tuned products"] = "there are none on a CPU"
    engines = {**ENGINES, **(CUDA_ENGINES if cuda else {})}
    for group, changed in engines.items():
        try:
            engine = _loaded(group, replace(options, **changed))
        except ValueError as error:  # CheckpointError is one
            if not group:
                raise
            left_out[group] = str(error)
            continue
        if engine.policy.group == TOKENS:
            yield from _decodings(engine, group, options, draft, left_out)
        elif engine.policy.group == FAST:
            for name, way in FAST_WAYS.items():
                if name == GENERATE:
                    continue
                try:
                    found = Engine(engine.policy, replace(options, **way))
                except ValueError as error:  # it has no draft head
                    left_out[_named(name, group)] = str(error)
                    continue
                yield _named(name, group), found
        else:
            yield _named("a chunk by itself", group), engine
            for kind in engine.info.continues:
                for mode in _RTC[kind]:
                    again = replace(options, rtc_mode=mode, **changed)
                    yield _named(f"rtc {mode}", group), load_engine(again)


def _loaded(group: str, options: EngineOptions) -> Engine:
    """The engine of a group. ValueError: this policy has none."""
    if group != TRANSFORMERS:
        return load_engine(options)
    if group_of(options.checkpoint) != TOKENS:
        raise ValueError("transformers' Llama and Qwen2 are of OpenVLA and its kin alone")
    place = torch.device(options.device), getattr(torch, options.dtype)
    checkpoint = load_checkpoint(options.checkpoint, *place, options.seed)
    return Engine(policy_of(checkpoint, options, make_model=transformers_model), options)


def _decodings(
    engine: Engine,
    group: str,
    options: EngineOptions,
    draft: str,
    left_out: dict[str, str],
) -> Iterator[tuple[str, Engine]]:
    """One model, each way of decoding in its turn."""
    if engine.info.decoding == "parallel":
        yield _named("parallel", group), engine
        return
    place = torch.device(options.device), getattr(torch, options.dtype)
    setting = BenchSetting(
        engine, load_checkpoint(draft, *place, options.seed) if draft else None, {}
    )
    for name, changed in WAYS.items():
        if group and name not in _SHORT:
            continue
        try:
            named = draft if changed.get("drafter") == "model" else ""
            engine.decoder.decoding = decoding_of({**changed, "draft_checkpoint": named}, setting)
        except ValueError as error:  # CheckpointError is one
            said = str(error).replace(str(engine.model.directory), "this checkpoint")
            left_out[_named(name, group)] = said
            continue
        assert engine.decoder.decoding.lossless, f"{name} is among the lossless"
        yield _named(name, group), engine


def _batches(
    options: EngineOptions, said: Mapping[str, Any]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The ways that are gone in a batch of sessions too, of those that were gone alone, and the
    options of each."""
    alone: dict[str, Mapping[str, Any]] = {name: WAYS[name] for name in _SHORT}
    alone |= {name: way for name, way in FAST_WAYS.items() if name != GENERATE}
    alone |= {"parallel": {}, "a chunk by itself": {}}
    alone |= {f"rtc {mode}": {"rtc_mode": mode} for modes in _RTC.values() for mode in modes}
    for name, changed in alone.items():
        if name in said:
            yield _named(name, _BESIDE), changed


def _named(way: str, group: str) -> str:
    return f"{way}, {group}" if group else way


class Batched:
    """Steps a session among ``others``, which are shown other frames than it, as several robots on
    one policy: what can be one pass is one. Its place among them is another one every time."""

    def __init__(self, others: Sequence[Engine], frames: Sequence[ProbeFrame]) -> None:
        self._others, self._frames = others, frames
        self._texts = [""] * len(others)
        self._count = 0

    def __call__(self, judged: Engine, observation: Observation) -> Inference | None:
        batch: list[tuple[Engine, Observation]] = []
        for number, other in enumerate(self._others):
            shown = self._frames[(self._count + 1 + number) % len(self._frames)]
            if shown.instruction != self._texts[number]:
                self._texts[number] = shown.instruction
                other.reset(shown.instruction)
            stamp = observation.stamp_ns + 1 + number  # frames come round again: time does not
            batch.append((other, replace(shown.observation, stamp_ns=stamp)))
        mine = len(batch) - self._count % (len(batch) + 1)
        batch.insert(mine, (judged, observation))
        self._count += 1
        asked = [SessionRequest(engine, seen, began()) for engine, seen in batch]
        found = step_together(asked, CLOCK)[mine]
        if isinstance(found, Exception):
            raise found
        return found


def play(
    engine: Engine, frames: Sequence[ProbeFrame], batched: Batched | None = None
) -> list[WayAnswer]:
    """The answers by frame. A frame continues the chunk of the one before it; behind an episode the
    last frame comes again until a pipeline has answered. ``batched``: among those of others."""
    out: dict[int, WayAnswer] = {}
    numbers: dict[int, int] = {}  # of an episode, by stamp
    guided: dict[int, Guidance | None] = {}

    def show(shown: ProbeFrame, executing: Executing | None) -> None:
        observation = replace(shown.observation, executing=executing)
        guided[observation.stamp_ns] = engine.decoder.guidance(observation)
        if batched is None:
            found = engine.step(observation, began(), CLOCK)
        else:
            found = batched(engine, observation)
        if found is not None and found.stamp_ns in numbers:
            out[numbers[found.stamp_ns]] = WayAnswer(
                ReferenceAnswer(found.tokens, found.actions), guided.get(found.stamp_ns)
            )

    chunk = engine.info.chunk_length
    for number, shown in enumerate(frames):
        last = frames[number - 1] if number else None
        executing = None
        if last is None or (last.episode, last.instruction) != (shown.episode, shown.instruction):
            numbers = {}
            engine.reset(shown.instruction)
            if engine.policy.group == TOKENS:  # a decoding that came behind the last reset
                engine.decoder.decoding.instruct(shown.instruction)
        else:
            delay = min(2, getattr(engine.info, "max_delay", 0) or 2, chunk - 1)
            executing = Executing(last.observation.stamp_ns, min(chunk - 1, 1 + chunk // 5), delay)
        numbers[shown.observation.stamp_ns] = number
        show(shown, executing)
        after = frames[number + 1] if number + 1 < len(frames) else None
        if after is None or (after.episode, after.instruction) != (
            shown.episode,
            shown.instruction,
        ):
            for more in range(1, engine.decoder.depth):
                stamp = shown.observation.stamp_ns + more * 10**15
                show(replace(shown, observation=replace(shown.observation, stamp_ns=stamp)), None)
    return [out[number] for number in range(len(frames))]


def _references(
    options: EngineOptions,
    frames: Sequence[ProbeFrame],
    said: Mapping[str, Sequence[WayAnswer]],
    report: Report,
) -> tuple[dict[str, list[ReferenceAnswer]], str]:
    """What the reference says to each way's frames, and what it is. Asked once for every frame, and
    once more where a way was to continue a chunk of its own."""
    report("load reference", 0, 0)
    plain, alone = plain_of(options), dict[int, ReferenceAnswer]()
    out: dict[str, list[ReferenceAnswer]] = {name: [] for name in said}
    instruction = None
    for number, shown in enumerate(frames):
        report("reference", number, len(frames))
        if shown.instruction != instruction:
            plain.reset(shown.instruction)
            instruction = shown.instruction
        for name, each in said.items():
            guidance = each[number].guidance
            if guidance is not None:
                out[name].append(plain.answer(shown.observation, guidance))
                continue
            if number not in alone:
                alone[number] = plain.answer(shown.observation, None)
            out[name].append(alone[number])
    return out, plain.covers


# Comparing.


def compare(
    name: str,
    said: Sequence[ReferenceAnswer],
    wanted: Sequence[ReferenceAnswer],
    noise: float,
    limit: float,
) -> Way:
    """One way's answers against the reference's. ``noise``: of the reference's logits."""
    misses = [
        miss
        for number, (one, other) in enumerate(zip(said, wanted, strict=True))
        if (miss := _first_miss(number, one, other)) is not None
    ]
    clear = [miss for miss in misses if not miss["gap"] <= 2 * noise]
    same = [n for n in range(len(said)) if said[n].tokens == wanted[n].tokens]
    far = apart([said[n] for n in same], [wanted[n] for n in same])
    tokens = sum(len(one.tokens) for one in wanted)
    if clear or not far <= (0.0 if tokens else limit):  # the same tokens are the same action
        verdict = "different"
    elif misses:
        verdict = "ties"
    else:
        verdict = "exact" if far == 0 else "within rounding"
    first = next(iter(clear or misses), None)
    return Way(
        name, len(said), tokens, len(misses), len(misses) - len(clear),
        first, far, 0.0 if tokens else limit, verdict, _digest(said),
    )  # fmt: skip


def _first_miss(
    frame: int, said: ReferenceAnswer, wanted: ReferenceAnswer
) -> dict[str, Any] | None:
    """Where an answer first is another, and how much surer the reference was, in logits."""
    if said.tokens == wanted.tokens:
        return None
    pairs = list(zip(said.tokens, wanted.tokens, strict=False))
    place = next((n for n, (a, b) in enumerate(pairs) if a != b), len(pairs))
    gap = float("inf")
    if place < len(pairs) and wanted.logits is not None:
        row = wanted.logits[place]
        gap = float(row[wanted.tokens[place]] - row[said.tokens[place]])
    return {
        "frame": frame, "token": place, "gap": gap,
        "reference": [*wanted.tokens[place : place + 1]], "said": [*said.tokens[place : place + 1]],
    }  # fmt: skip


def apart(said: Sequence[ReferenceAnswer], wanted: Sequence[ReferenceAnswer]) -> float:
    """The largest difference of an action, as a share of the largest value of its dimension; inf
    where one is no number."""
    if not said:
        return 0.0
    one, other = (np.stack([each.actions for each in all_]) for all_ in (said, wanted))
    largest = np.abs(other).max((0, 1))
    largest = np.where(largest > 0, largest, max(float(largest.max()), 1e-12))
    found = float((np.abs(one - other) / largest).max())
    return found if np.isfinite(found) else float("inf")


def limit_of(wanted: Sequence[ReferenceAnswer], exact: Sequence[ReferenceAnswer] | None) -> float:
    """What a chunk may be off: twice as far as rounding moves the reference itself, since both
    sides round. ``exact``: the reference in float32, where this is another precision."""
    twice = [(each, replace(each, actions=each.again)) for each in wanted if each.again is not None]
    own = apart([again for _, again in twice], [first for first, _ in twice])
    return max(FLOAT32, 2 * own, 0.0 if exact is None else 2 * apart(wanted, exact))


def _guaranteed(
    wanted: Sequence[ReferenceAnswer], noise: float, ways: Sequence[Way], dtype: str
) -> str:
    """In one instruction or two: what holds in this precision, and what is a tie."""
    rows = [each.logits for each in wanted if each.logits is not None]
    if rows:
        best = torch.cat(rows).topk(2, -1).values
        clear = int((best[:, 0] - best[:, 1] > 2 * noise).sum())
        return (
            f"{clear} of {len(best)} tokens: there the reference is surer by more than"
            f" {2 * noise:.2g} logits, twice what its own move when it computes a whole sequence at"
            " once. The others are ties: either token is greedy decoding in this precision."
        )
    most = max(way.limit for way in ways)
    why = "" if most == FLOAT32 else (
        f", twice as far as rounding moves the reference itself"
        f"{'' if dtype == 'float32' else f' ({dtype} against float32)'}"
    )  # fmt: skip
    return f"every value within {most:.2g} of its dimension's largest{why}; no bit."


# Signing, keeping and repeating.


def signed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The same with the hash of all else behind it."""
    return {**content, "sha256": _hash(content)}


def _hash(content: Mapping[str, Any]) -> str:
    bare = {key: value for key, value in content.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(bare, sort_keys=True).encode()).hexdigest()


def read(path: Path) -> dict[str, Any]:
    """A certificate's file. UserError: it is none, or was changed."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["kind"] != KIND:
            raise ValueError(f"its kind is {content['kind']!r}, wanted {KIND!r}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is no certificate: {error}") from error
    if content.get("sha256") != _hash(content):
        raise UserError(f"{path} was changed after it was signed: its hash is another")
    return dict(content)


def spec_of(content: Mapping[str, Any]) -> tuple[PolicySpec, FrameSource]:
    """What a certificate was asked. UserError: this version has no such options."""
    asked = content["asked"]
    try:
        options: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in asked["engine"].items()
        }
        given = {**asked["frames"]}
        for name in ("bag", "images"):
            given[name] = Path(given[name]) if given[name] else None
        return PolicySpec(name="vla", engine=EngineOptions(**options)), FrameSource(**given)
    except (TypeError, KeyError, ValueError) as error:
        raise UserError(f"its options are not this version's: {error}") from error


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """What a repetition says otherwise, and which ways say the same with other bits."""
    wrong = [
        f"{what}: {a} then, {b} now"
        for what, a, b in (
            ("hash of the checkpoint", before["checkpoint_sha256"], now["checkpoint_sha256"]),
            ("hash of the frames", before["frames"]["sha256"], now["frames"]["sha256"]),
        )
        if a != b
    ]
    then, again = ({way["name"]: way for way in each["ways"]} for each in (before, now))
    wrong += [f"{name}: only {'then' if name in then else 'now'}" for name in then.keys() ^ again]
    both = [name for name in then if name in again]
    for name in both:
        a, b = then[name]["verdict"], again[name]["verdict"]
        if (a == "different") != (b == "different"):
            wrong.append(f"{name}: {a} then, {b} now")
    key = "answers_sha256"
    return wrong, [name for name in both if then[name][key] != again[name][key]]


def page(content: Mapping[str, Any]) -> str:
    """A certificate for people, in Markdown."""
    ways = content["ways"]
    lines = [
        f"# {content['checkpoint']}, {content['precision']}:"
        f" {'passed' if content['passed'] else 'FAILED'}",
        "",
        f"{len(ways)} ways on {content['frames']['count']} frames of {content['frames']['from']}.",
        "",
        f"Reference: {content['reference']}.",
        "",
        f"Guaranteed: {content['guaranteed']}",
        "",
        "| way | answers | tokens | others | of them ties | first difference | actions apart |"
        " verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for way in ways:
        first = "–"
        if way["first"]:
            first = "frame {frame}, token {token}: {said} for {reference}, {gap:.2g} logits".format(
                **way["first"]
            )
        lines.append(
            f"| {way['name']} | {way['answers']} | {way['tokens'] or '–'} | {way['different']} |"
            f" {way['ties']} | {first} | {way['apart']:.2g} | {way['verdict']} |"
        )
    if content["left_out"]:
        lines += [
            "",
            "Left out: " + "; ".join(f"{n} ({w})" for n, w in content["left_out"].items()),
        ]
    about = ", ".join(f"{key} {value}" for key, value in content["machine"].items())
    lines += [
        "",
        f"Made on: {about}. Options: {content['asked']['engine']}.",
        f"SHA-256 of the checkpoint {content['checkpoint_sha256']}, of the frames"
        f" {content['frames']['sha256']}, of this certificate {content['sha256']}.",
        "",
        "Repeat it: `vla-ros verify --recheck certificate.json`",
    ]
    return "\n".join(lines) + "\n"


def _digest(answers: Sequence[ReferenceAnswer]) -> str:
    found = hashlib.sha256()
    for each in answers:
        found.update(json.dumps(each.tokens).encode())
        found.update(np.ascontiguousarray(each.actions, dtype="<f8").tobytes())
    return found.hexdigest()


def _digest_of(frames: Sequence[ProbeFrame]) -> str:
    found = hashlib.sha256()
    for shown in frames:
        seen = shown.observation
        found.update(json.dumps([shown.episode, shown.instruction, seen.stamp_ns]).encode())
        for array in (seen.image, seen.wrist_image, seen.proprio):
            found.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def _plainly(source: FrameSource) -> dict[str, Any]:
    return {k: str(v) if isinstance(v, Path) else v for k, v in asdict(source).items()}


def _machine(device: torch.device) -> dict[str, Any]:
    found = machine(device)
    found.pop("peak_rss_mb", None)
    return {
        **found,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "architecture": platform.machine(),
        **{name: version(name) for name in ("vla_ros", "transformers", "numpy")},
    }
