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
from vla_ros.engine.decoding.draft_head_folder import find_head, load_head
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
from vla_ros.engine.decoding.parallel import Parallel
from vla_ros.engine.decoding.speculative import Speculative, TreeSpeculative
from vla_ros.engine.io.checkpoint import Checkpoint
from vla_ros.engine.io.config import TextConfig
from vla_ros.engine.io.tokens import Normalizer
from vla_ros.engine.models.openvla import VLAModel
from vla_ros.engine.models.pi0_fast import Pi0Fast
from vla_ros.engine.options import LAB_DECODINGS, Answer, EngineOptions

LoadDraft = Callable[[str], Checkpoint]


@dataclass(frozen=True, slots=True)
class DecodingParts:
    """Parts that every decoding is made from. ``tokens`` = actions of a chunk * their dimensions.

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
    """The decoding that the options name. ValueError: it does not fit the checkpoint, or comes with
    the lab, which is not installed."""
    name, options, model = parts.options.decoding, parts.options, parts.model
    config, common = model.config, (model, parts.tokens, parts.max_prompt)
    options.check_answer(Answer(parts.tokens, config.chunk, config.parallel, model.actions.ordered))
    if name in LAB_DECODINGS:
        made: Decoding = lab_part(f"decoding {name}", name)(parts)
        return made
    if name == "parallel":
        return Parallel(*common, parts.proprio)
    if name == "actionflow":
        return ActionFlow(*common)
    model.prepare_one_row()
    if name == "autoregressive":
        return Autoregressive(*common)
    acceptance = make_acceptance(options, model.actions, parts.action_dim, model.device)
    if options.drafter in ("temporal_tree", "head"):
        make = head_drafter if options.drafter == "head" else tree_drafter
        budget = Budget(step=node_step(model))
        drafter: Drafter = make(parts, acceptance, budget)
        return TreeSpeculative(
            *common, drafter, acceptance, options.gamma or None, options.fixed_shapes, budget
        )
    drafter = make_drafter(parts, acceptance)
    return Speculative(*common, drafter, acceptance, options.gamma or None, options.fixed_shapes)


def lab_part(what: str, name: str) -> Callable[[DecodingParts], Any]:
    """The entry point of `vla_ros.decodings` of this name. ValueError: nothing offers it."""
    make: Callable[[DecodingParts], Any] | None = extension(DECODINGS, name)
    if make is None:
        raise ValueError(f"{what} comes with the lab: {LAB}")
    return make


@dataclass(frozen=True, slots=True)
class FastTarget:
    """Target of a draft head of pi0-FAST."""

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
    tokens = model.config.max_tokens
    options.check_answer(Answer(tokens, fast=True))
    if options.decoding == "autoregressive":
        return Autoregressive(model, tokens, longest)
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
    """The drafter of chains that the options name."""
    options = parts.options
    if options.drafter == "model":
        made: Drafter = lab_part("drafter model", "model")(parts)
        return made
    return TemporalDrafter(
        parts.model.actions,
        parts.tokens,
        parts.model.device,
        acceptance.matches,
        options.drafter == "temporal_linear",
        # In fixed shapes a longer draft costs nothing, and no length may rest on the past.
        options.adaptive_draft and not options.fixed_shapes,
        parts.model.dtype,
        parts.model.config.chunk,
    )


def node_step(model: VLAModel) -> int:
    """Nodes by which trees differ: a captured pass belongs to its number of nodes, so few."""
    return 1 if model.capture is None else STEP


def _costs(parts: DecodingParts) -> Costs | None:
    """Costs of a draft here, where drafts are to pay; None where they need not."""
    options = parts.options
    if not options.adaptive_draft or options.fixed_shapes:
        return None
    return costs_on(parts.model.device, parts.model.dtype)


def tree_drafter(
    parts: DecodingParts, acceptance: Acceptance, budget: Budget
) -> TemporalTreeDrafter:
    """The drafter of trees of alternatives to the last action."""
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


def head_drafter(parts: DecodingParts, acceptance: Acceptance, budget: Budget) -> RecursiveDrafter:
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
