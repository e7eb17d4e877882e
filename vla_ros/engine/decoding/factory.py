"""From options to a decoding, its drafter and its acceptance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vla_ros.core.extensions import DECODINGS, LAB, extension
from vla_ros.engine.decoding.acceptance import Acceptance, Exact, make_acceptance
from vla_ros.engine.decoding.actionflow import ActionFlow
from vla_ros.engine.decoding.autoregressive import Autoregressive
from vla_ros.engine.decoding.base import Decoding
from vla_ros.engine.decoding.calibration import FILE, Calibration, from_json, plan_bins
from vla_ros.engine.decoding.draft_head_folder import FOLDER, find_head, load_head
from vla_ros.engine.decoding.draft_heads import RecursiveHead
from vla_ros.engine.decoding.draft_tree import STEP, Budget
from vla_ros.engine.decoding.drafters import (
    Costs,
    Drafter,
    TemporalDrafter,
    TemporalTreeDrafter,
    costs_on,
)
from vla_ros.engine.decoding.fast_drafter import FastDrafter
from vla_ros.engine.decoding.head_drafters import FastHeadDrafter, RecursiveDrafter
from vla_ros.engine.decoding.heterospec import EntropyHeadDrafter, EntropyTreeDrafter, HeteroSpec
from vla_ros.engine.decoding.parallel import Parallel
from vla_ros.engine.decoding.speculative import Speculative, TreeSpeculative
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.io.checkpoint import Checkpoint
from vla_ros.engine.io.config import TextConfig
from vla_ros.engine.io.files import read_json
from vla_ros.engine.io.tokens import Normalizer
from vla_ros.engine.models.openvla import VLAModel
from vla_ros.engine.models.pi0_fast import Pi0Fast
from vla_ros.engine.options import REFERENCES, EngineOptions

LoadDraft = Callable[[str], Checkpoint]


@dataclass(frozen=True, slots=True)
class DecodingParts:
    """What every decoding is made from. ``tokens`` = actions of a chunk * their dimensions.

    ``head``: a draft head in place of the one that the options name. ``shared``: what the decodings
    of several sessions have in common, a draft head or a draft model, by where it came from."""

    model: VLAModel
    options: EngineOptions
    action_dim: int
    tokens: int
    max_prompt: int
    load_draft: LoadDraft
    proprio: Normalizer | None = None
    head: RecursiveHead | None = None
    shared: dict[object, Any] = field(default_factory=dict)


def make_decoding(parts: DecodingParts) -> Decoding:
    """The decoding that the options name."""
    name, options = parts.options.decoding, parts.options
    model, tokens, longest = parts.model, parts.tokens, parts.max_prompt
    if model.config.parallel != (name == "parallel"):
        kind = "an OFT checkpoint" if model.config.parallel else "no OFT checkpoint"
        raise ValueError(f"decoding {name!r} does not fit: this is {kind}, made for parallel")
    if name == "parallel":
        return Parallel(model, tokens, longest, parts.proprio)
    if name in ("actionflow", "naive_pipe") and model.config.chunk > 1:
        raise ValueError(
            f"{name} says a token a frame: a chunk of {tokens} tokens would be {tokens} frames old;"
            " give autoregressive or speculative"
        )
    if name in REFERENCES:
        return _reference(name, parts)
    if name == "actionflow":
        return ActionFlow(model, tokens, longest)
    model.prepare_one_row()
    if name == "autoregressive":
        return Autoregressive(model, tokens, longest)
    unordered = "relaxed", "linear", "temporal_tree", "heterospec"
    asked = options.acceptance, options.draft_extrapolation, options.drafter, name
    if any(name in unordered for name in asked) and not model.actions.ordered:
        raise ValueError(
            "relaxed acceptance, linear drafts, temporal_tree and heterospec need bins that lie"
            " beside each other: this checkpoint's tokens are codes of a VQ-VAE"
        )
    acceptance = make_acceptance(options, model.actions, parts.action_dim, model.device)
    if name == "heterospec":
        return _heterospec(parts, acceptance)
    if options.drafter in ("temporal_tree", "head"):
        return _tree(parts, acceptance)
    drafter = make_drafter(parts, acceptance)
    return Speculative(
        model, tokens, longest, drafter, acceptance, options.gamma or None, options.fixed_shapes
    )


def _reference(name: str, parts: DecodingParts) -> Decoding:
    """A decoding that ours are measured against; ValueError where the lab is not installed."""
    make = extension(DECODINGS, name)
    if make is None:
        raise ValueError(f"decoding {name} is a reference, which comes with the lab: {LAB}")
    made: Decoding = make(parts)
    return made


@dataclass(frozen=True, slots=True)
class FastTarget:
    """What a draft head of pi0-FAST was made for."""

    text: TextConfig
    bins: int


def fast_head(model: Pi0Fast, directory: Path, named: str) -> RecursiveHead:
    """The draft head of a pi0-FAST: in the folder that is ``named``, or in the checkpoint's
    ``directory``. ValueError or CheckpointError where there is none for it."""
    target = FastTarget(model.config.shapes.text, model.actions.bins)
    folder = find_head(directory, named or None)
    place, most = (model.device, model.dtype), model.config.max_tokens
    return load_head(folder, target, most, *place, shorter=True)


def make_fast_decoding(
    model: Pi0Fast,
    options: EngineOptions,
    longest: int,
    draft_head: Callable[[], RecursiveHead],
) -> Decoding:
    """The decoding of pi0-FAST that the options name; ``draft_head`` is asked where they name
    that drafter."""
    name, tokens = options.decoding, model.config.max_tokens
    if name == "autoregressive":
        return Autoregressive(model, tokens, longest)
    if name != "speculative" or options.drafter == "model" or options.acceptance != "exact":
        raise ValueError(
            f"decoding {name}, drafter {options.drafter}, acceptance {options.acceptance}: of"
            " pi0_fast there are autoregressive, and speculative with drafter temporal,"
            " temporal_tree or head and acceptance exact"
        )
    budget = Budget(step=1 if model.capture is None else STEP)
    costs = costs_on(model.device, model.dtype) if options.adaptive_draft else None
    common = model.actions, model.device, budget
    drafter: FastDrafter
    if options.drafter == "head":
        head = draft_head()
        if costs is not None:  # the head's pass for every level
            share = sum(p.numel() for p in head.parameters()) / _parameters(
                model.config.shapes.text
            )
            costs = replace(costs, alone=replace(costs.alone, level=share))
        embed, capture = model.decoder.embed, model.capture
        drafter = FastHeadDrafter(*common, head, embed, costs, capture)
    else:
        drafter = FastDrafter(*common, costs, options.drafter == "temporal_tree")
    # A chain that lies behind a prefix is a tree of one branch.
    return TreeSpeculative(
        model, tokens, longest, drafter, Exact(), options.gamma or None, budget=budget
    )


def make_drafter(parts: DecodingParts, acceptance: Acceptance) -> Drafter:
    """The drafter that the options name."""
    options = parts.options
    if options.drafter == "model":
        make = extension(DECODINGS, "model")
        if make is None:
            raise ValueError(f"drafter model comes with the lab: {LAB}")
        made: Drafter = make(parts)
        return made
    return TemporalDrafter(
        parts.model.actions,
        parts.tokens,
        parts.model.device,
        acceptance.matches,
        options.draft_extrapolation,
        # In fixed shapes a longer draft costs nothing, and no length may rest on the past.
        options.adaptive_draft and not options.fixed_shapes,
        parts.model.dtype,
        parts.model.config.chunk,
    )


def _tree(parts: DecodingParts, acceptance: Acceptance) -> TreeSpeculative:
    """Speculation over trees of alternatives to the last action, or of a draft head."""
    model, options = parts.model, parts.options
    make = _head_drafter if options.drafter == "head" else _temporal_tree
    budget = Budget(step=_step(model))
    return TreeSpeculative(
        model,
        parts.tokens,
        parts.max_prompt,
        make(parts, acceptance, budget),
        acceptance,
        options.gamma or None,
        options.fixed_shapes,
        budget,
    )


def _heterospec(parts: DecodingParts, acceptance: Acceptance) -> HeteroSpec:
    """Speculation over trees that follow the drafter's uncertainty."""
    model, options, step = parts.model, parts.options, _step(parts.model)
    if options.drafter == "model":
        raise ValueError(
            "heterospec draws its trees from alternatives with chances, and a draft model names one"
            " token a place: give drafter temporal_tree or head"
        )
    drafter: EntropyTreeDrafter
    if options.drafter == "head":
        head = _head_drafter(parts, acceptance, Budget(0, 0))
        calibration = _calibration(parts, _calibration_folder(parts), "head")
        plan = plan_bins(calibration, *head.paid, step)
        drafter = EntropyHeadDrafter(head, calibration, plan, model.device)
    else:
        calibration = _calibration(parts, model.directory, "temporal_tree")
        source = _temporal_tree(parts, acceptance, Budget(0, 0))
        plan = plan_bins(calibration, *source.paid, step)
        drafter = EntropyTreeDrafter(source, calibration, plan, model.device)
    return HeteroSpec(
        model,
        parts.tokens,
        parts.max_prompt,
        drafter,
        acceptance,
        options.gamma or None,
        options.fixed_shapes,
        step,
    )


def _step(model: VLAModel) -> int:
    """Nodes by which trees differ: a captured pass belongs to its number of nodes, so few."""
    return 1 if model.capture is None else STEP


def _costs(parts: DecodingParts) -> Costs | None:
    """What a draft costs here, where drafts are to pay."""
    options = parts.options
    if not options.adaptive_draft or options.fixed_shapes:
        return None
    return costs_on(parts.model.device, parts.model.dtype)


def _temporal_tree(
    parts: DecodingParts, acceptance: Acceptance, budget: Budget
) -> TemporalTreeDrafter:
    model = parts.model
    return TemporalTreeDrafter(
        model.actions,
        parts.tokens,
        model.device,
        acceptance.tolerance,
        budget,
        _costs(parts),
        model.config.chunk,
    )


def _calibration_folder(parts: DecodingParts) -> Path:
    """Where a head's calibration lies: beside the head."""
    if parts.head is not None:
        return parts.model.directory / FOLDER
    return find_head(parts.model.directory, parts.options.draft_checkpoint or None)


def _calibration(parts: DecodingParts, folder: Path, drafter: str) -> Calibration:
    """ValueError in one line where it is not of these actions, or of another drafter."""
    found = read_calibration(parts.options.calibration or None, folder)
    if found.tokens != parts.tokens:
        raise ValueError(
            f"the calibration of heterospec is for actions of {found.tokens} tokens, these"
            f" have {parts.tokens}: run `vla-ros calibrate` for this checkpoint"
        )
    made = found.about.get("drafter", "temporal_tree")
    if made != drafter:
        raise ValueError(
            f"the calibration of heterospec is of drafter {made}, not {drafter}:"
            f" run `vla-ros calibrate --drafter {drafter}`"
        )
    return found


def read_calibration(file: str | None, directory: Path) -> Calibration:
    """The file that is named, or that of the checkpoint's directory. ValueError in one line."""
    path = directory / FILE if file is None else Path(file)
    if file is None and not path.is_file():
        raise ValueError(
            f"heterospec: {directory} has no {FILE}: make one with `vla-ros calibrate`"
        )
    try:
        return from_json(read_json(path))
    except CheckpointError:
        raise
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _head_drafter(parts: DecodingParts, acceptance: Acceptance, budget: Budget) -> RecursiveDrafter:
    """The draft head that was trained for this checkpoint, or ``parts.head``."""
    model, head, costs = parts.model, _head(parts), _costs(parts)
    share = sum(p.numel() for p in head.parameters()) / _parameters(model.config.text)
    if costs is not None:  # the head's pass for every level
        costs = replace(costs, alone=replace(costs.alone, level=share))
    return RecursiveDrafter(
        model.actions,
        model.device,
        acceptance.tolerance,
        budget,
        head,
        model.decoder.embed,
        costs,
        model.config.chunk,
        model.capture,
    )


def _head(parts: DecodingParts) -> RecursiveHead:
    """ValueError or CheckpointError where there is none for this checkpoint."""
    model, head = parts.model, parts.head
    if parts.tokens < 3:
        raise ValueError(f"actions of {parts.tokens} tokens leave a draft head nothing to guess")
    if head is None:
        folder = find_head(model.directory, parts.options.draft_checkpoint or None)
        if folder not in parts.shared:
            place = model.device, model.dtype
            parts.shared[folder] = load_head(folder, model.config, parts.tokens, *place)
        head = parts.shared[folder]
    return head


def _parameters(text: TextConfig) -> int:
    """That a pass of one token reads: all layers, and the head."""
    heads = (2 * text.heads + 2 * text.kv_heads) * text.head_dim
    layer = text.hidden_size * (heads + 3 * text.intermediate_size)
    return text.layers * layer + text.vocab_size * text.hidden_size
