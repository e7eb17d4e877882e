"""A certificate: every lossless way that a node may take, on the same frames, against the plain
reference in the same precision; signed by its hash, and repeated by whoever doubts it.

Tokens differ or do not. Where they first do, the reference's own logits decide whether that is a
tie: the reference is computed a second time, all tokens at once, and no other way can be blamed for
what it does not separate itself. Numbers of a chunk are held to a limit of the same kind.
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

_ALWAYS = {"adaptive_draft": False}
#: Options that the lossless ways of decoding tokens change.
WAYS: Mapping[str, Mapping[str, Any]] = {
    "autoregressive": {"decoding": "autoregressive"},
    "actionflow": {"decoding": "actionflow"},
    "speculative (auto)": {"decoding": "speculative"},
    "speculative, a draft always": {"decoding": "speculative", **_ALWAYS},
    "speculative, linear drafts": {
        "decoding": "speculative", "drafter": "temporal_linear", **_ALWAYS,
    },
    "speculative, fixed shapes": {"decoding": "speculative", "fixed_shapes": True},
    "temporal tree": {"decoding": "speculative", "drafter": "temporal_tree"},
    "temporal tree, always": {"decoding": "speculative", "drafter": "temporal_tree", **_ALWAYS},
    "draft head": {"decoding": "speculative", "drafter": "head", **_ALWAYS},
    "draft model": {"decoding": "speculative", "drafter": "model"},
    "heterospec": {"decoding": "heterospec", **_ALWAYS},
    "heterospec over the head": {"decoding": "heterospec", "drafter": "head", **_ALWAYS},
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
#: `PolicyInfo.continues` -> values of the option rtc_mode
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
    difference of an action, as a share of its dimension's largest value; ``limit`` of it."""

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


def certify(spec: PolicySpec, source: FrameSource, report: Report) -> dict[str, Any]:
    """The certificate, signed. UserError where there is nothing to compare."""
    used, _ = settle(spec)
    options, draft = engine_options(spec, used), spec.engine.draft_checkpoint
    options = replace(options, decoding="auto", drafter="temporal", draft_checkpoint="")
    frames, frames_from = frames_of(source, used, report)
    left_out: dict[str, str] = {}
    found: dict[str, list[WayAnswer]] = {}
    digest = ""
    for name, engine in _engines(options, draft, left_out):
        report(name, len(found), 0)
        digest = engine.info.checkpoint_sha256
        found[name] = play(engine, frames)
    for name, changed in _batches(found):
        report(name, len(found), 0)
        first = load_engine(replace(options, **changed))
        others = [first.session() for _ in range(_OTHERS)]
        found[name] = play(first.session(), frames, Batched(others, frames))
    wanted, covers = _references(options, frames, found, report)
    exact = None
    if options.dtype != "float32":
        exact, _ = _references(replace(options, dtype="float32"), frames, found, report)
    noise = max(each.noise for answers in wanted.values() for each in answers)
    ways = []
    for name, each in found.items():
        limit = limit_of(wanted[name], None if exact is None else exact[name])
        ways.append(compare(name, [one.answer for one in each], wanted[name], noise, limit))
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
        "asked": {"engine": spec.engine.changed(), "frames": asdict(source)},
        "machine": _machine(torch.device(options.device)),
    })  # fmt: skip


def _engines(
    options: EngineOptions, draft: str, left_out: dict[str, str]
) -> Iterator[tuple[str, Engine]]:
    """Engines of all ways, one after the other. ``left_out``: why others are not among them."""
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
    kind = torch.device(options.device), getattr(torch, options.dtype)
    checkpoint = load_checkpoint(options.checkpoint, *kind, options.seed)
    return Engine(policy_of(checkpoint, options, make_model=transformers_model), options)


def _decodings(
    engine: Engine, group: str, options: EngineOptions, draft: str, left_out: dict[str, str]
) -> Iterator[tuple[str, Engine]]:
    """Ways of decoding over one model, each in its turn."""
    if engine.info.decoding == "parallel":
        yield _named("parallel", group), engine
        return
    kind = torch.device(options.device), getattr(torch, options.dtype)
    setting = BenchSetting(
        engine, load_checkpoint(draft, *kind, options.seed) if draft else None, {}
    )
    for name, changed in WAYS.items():
        if group and name not in _SHORT:
            continue
        try:
            named = draft if changed.get("drafter") == "model" else ""
            engine.decoder.decoding = decoding_of({**changed, "draft_checkpoint": named}, setting)
        except ValueError as error:  # CheckpointError is one
            reason = str(error).replace(str(engine.model.directory), "this checkpoint")
            left_out[_named(name, group)] = reason
            continue
        assert engine.decoder.decoding.lossless, f"{name} is among the lossless"
        yield _named(name, group), engine


def _batches(found: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Ways that a batch of sessions goes too, of those that were ``found`` alone, with the options
    of each."""
    alone: dict[str, Mapping[str, Any]] = {name: WAYS[name] for name in _SHORT}
    alone |= {name: way for name, way in FAST_WAYS.items() if name != GENERATE}
    alone |= {"parallel": {}, "a chunk by itself": {}}
    alone |= {f"rtc {mode}": {"rtc_mode": mode} for modes in _RTC.values() for mode in modes}
    for name, changed in alone.items():
        if name in found:
            yield _named(name, _BESIDE), changed


def _named(way: str, group: str) -> str:
    return f"{way}, {group}" if group else way


class Batched:
    """A batch of a session and ``others``, which are shown other frames, as several robots on one
    policy: what can be one pass is one. The session's index among them is another every time."""

    def __init__(self, others: Sequence[Engine], frames: Sequence[ProbeFrame]) -> None:
        self._others, self._frames = others, frames
        self._texts = [""] * len(others)
        self._count = 0

    def __call__(self, judged: Engine, observation: Observation) -> Inference | None:
        batch: list[tuple[Engine, Observation]] = []
        for number, other in enumerate(self._others):
            frame = self._frames[(self._count + 1 + number) % len(self._frames)]
            if frame.instruction != self._texts[number]:
                self._texts[number] = frame.instruction
                other.reset(frame.instruction)
            stamp = observation.stamp_ns + 1 + number  # frames come round again: time does not
            batch.append((other, replace(frame.observation, stamp_ns=stamp)))
        mine = len(batch) - self._count % (len(batch) + 1)
        batch.insert(mine, (judged, observation))
        self._count += 1
        requests = [SessionRequest(engine, frame, began()) for engine, frame in batch]
        found = step_together(requests, CLOCK)[mine]
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

    def show(observation: Observation) -> None:
        guided[observation.stamp_ns] = engine.decoder.guidance(observation)
        if batched is None:
            found = engine.step(observation, began(), CLOCK)
        else:
            found = batched(engine, observation)
        if found is not None and found.stamp_ns in numbers:
            out[numbers[found.stamp_ns]] = WayAnswer(
                ReferenceAnswer(found.tokens, found.actions), guided.get(found.stamp_ns)
            )

    chunk, episodes = engine.info.chunk_length, [(f.episode, f.instruction) for f in frames]
    for number, frame in enumerate(frames):
        observation = frame.observation
        if number == 0 or episodes[number - 1] != episodes[number]:
            numbers = {}
            engine.reset(frame.instruction)
            if engine.policy.group == TOKENS:  # a decoding that came behind the last reset
                engine.decoder.decoding.instruct(frame.instruction)
        else:
            last = frames[number - 1].observation.stamp_ns
            delay = min(2, getattr(engine.info, "max_delay", 0) or 2, chunk - 1)
            executing = Executing(last, min(chunk - 1, 1 + chunk // 5), delay)
            observation = replace(observation, executing=executing)
        numbers[observation.stamp_ns] = number
        show(observation)
        if number + 1 == len(frames) or episodes[number + 1] != episodes[number]:
            for more in range(1, engine.decoder.depth):
                stamp = observation.stamp_ns + more * 10**15
                show(replace(frame.observation, stamp_ns=stamp))
    return [out[number] for number in range(len(frames))]


def _references(
    options: EngineOptions,
    frames: Sequence[ProbeFrame],
    found: Mapping[str, Sequence[WayAnswer]],
    report: Report,
) -> tuple[dict[str, list[ReferenceAnswer]], str]:
    """The reference's answers to each way's frames, and what it is. It answers every frame once,
    and once more where a way was to continue a chunk of its own."""
    report("load reference", 0, 0)
    plain, alone = plain_of(options), dict[int, ReferenceAnswer]()
    out: dict[str, list[ReferenceAnswer]] = {name: [] for name in found}
    instruction = None
    for number, frame in enumerate(frames):
        report("reference", number, len(frames))
        if frame.instruction != instruction:
            plain.reset(frame.instruction)
            instruction = frame.instruction
        for name, each in found.items():
            guidance = each[number].guidance
            if guidance is not None:
                out[name].append(plain.answer(frame.observation, guidance))
                continue
            if number not in alone:
                alone[number] = plain.answer(frame.observation, None)
            out[name].append(alone[number])
    return out, plain.covers


def compare(
    name: str,
    found: Sequence[ReferenceAnswer],
    wanted: Sequence[ReferenceAnswer],
    noise: float,
    limit: float,
) -> Way:
    """One way's answers against the reference's. ``noise``: of the reference's logits."""
    pairs = list(zip(found, wanted, strict=True))
    misses = [_first_miss(n, *pair) for n, pair in enumerate(pairs) if not _same_tokens(pair)]
    clear = [miss for miss in misses if not miss["gap"] <= 2 * noise]
    same = [pair for pair in pairs if _same_tokens(pair)]
    far = apart([one for one, _ in same], [other for _, other in same])
    tokens = sum(len(one.tokens) for one in wanted)
    if clear or not far <= (0.0 if tokens else limit):  # the same tokens are the same action
        verdict = "different"
    elif misses:
        verdict = "ties"
    else:
        verdict = "exact" if far == 0 else "within rounding"
    first = next(iter(clear or misses), None)
    return Way(
        name, len(found), tokens, len(misses), len(misses) - len(clear),
        first, far, 0.0 if tokens else limit, verdict, _digest(found),
    )  # fmt: skip


def _same_tokens(pair: tuple[ReferenceAnswer, ReferenceAnswer]) -> bool:
    return pair[0].tokens == pair[1].tokens


def _first_miss(frame: int, found: ReferenceAnswer, wanted: ReferenceAnswer) -> dict[str, Any]:
    """The first token that is another, and how much surer the reference was, in logits."""
    pairs = list(zip(found.tokens, wanted.tokens, strict=False))
    first = next((n for n, (a, b) in enumerate(pairs) if a != b), len(pairs))
    gap = float("inf")
    if first < len(pairs) and wanted.logits is not None:
        row = wanted.logits[first]
        gap = float(row[wanted.tokens[first]] - row[found.tokens[first]])
    reference, own = (list(one.tokens[first : first + 1]) for one in (wanted, found))
    return {"frame": frame, "token": first, "gap": gap, "reference": reference, "said": own}


def apart(found: Sequence[ReferenceAnswer], wanted: Sequence[ReferenceAnswer]) -> float:
    """The largest difference of an action, as a share of the largest value of its dimension; inf
    where one is no number."""
    if not found:
        return 0.0
    one, other = (np.stack([each.actions for each in all_]) for all_ in (found, wanted))
    largest = np.abs(other).max((0, 1))
    largest = np.where(largest > 0, largest, max(float(largest.max()), 1e-12))
    share = float((np.abs(one - other) / largest).max())
    return share if np.isfinite(share) else float("inf")


def limit_of(wanted: Sequence[ReferenceAnswer], exact: Sequence[ReferenceAnswer] | None) -> float:
    """Limit of what a chunk may be off: twice as far as rounding moves the reference itself, since
    both sides round. ``exact``: the reference in float32, where this is another precision."""
    twice = [(each, replace(each, actions=each.again)) for each in wanted if each.again is not None]
    own = apart([again for _, again in twice], [first for first, _ in twice])
    return max(FLOAT32, 2 * own, 0.0 if exact is None else 2 * apart(wanted, exact))


def _guaranteed(
    wanted: Sequence[ReferenceAnswer], noise: float, ways: Sequence[Way], dtype: str
) -> str:
    """One or two sentences: what holds in this precision, and what is a tie."""
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


def signed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content with the hash of all else behind it."""
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
    """Policy and frames of a certificate. UserError: this version has no such options."""
    asked = content["asked"]
    try:
        options: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in asked["engine"].items()
        }
        given: dict[str, Any] = {k: "" if v is None else v for k, v in asked["frames"].items()}
        return PolicySpec(name="vla", engine=EngineOptions(**options)), FrameSource(**given)
    except (TypeError, KeyError, ValueError) as error:
        raise UserError(f"its options are not this version's: {error}") from error


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Lines of what is different in a repetition, and which ways have other bits."""
    hashes = {
        "hash of the checkpoint": (before["checkpoint_sha256"], now["checkpoint_sha256"]),
        "hash of the frames": (before["frames"]["sha256"], now["frames"]["sha256"]),
    }
    wrong = [f"{what}: {a} then, {b} now" for what, (a, b) in hashes.items() if a != b]
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
        reasons = "; ".join(f"{name} ({why})" for name, why in content["left_out"].items())
        lines += ["", f"Left out: {reasons}"]
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
    for frame in frames:
        one = frame.observation
        found.update(json.dumps([frame.episode, frame.instruction, one.stamp_ns]).encode())
        for array in (one.image, one.wrist_image, one.proprio):
            found.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


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
