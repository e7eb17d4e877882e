"""HeteroSpec (Liu et al.): draft trees whose depth and width follow the drafter's uncertainty.

Before a round Phi, the entropy along the drafter's likeliest path, names a bin of the calibration
(:mod:`.calibration`), and that the tree. The engine finds :func:`heterospec` by the entry point of
this name. Verification is that of any draft tree, so no token
differs from decoding without drafts. Every tree that may come is known when the decoding is made,
so their plans and graphs are made before service.

An action's last token needs no draft, so with K = 7 no tree is deeper than 6: there the base tree
is as deep already, and what is extended elsewhere are nodes here, not levels.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from vla_ros.engine.decoding.acceptance import Acceptance, make_acceptance
from vla_ros.engine.decoding.draft_head_folder import FOLDER, find_head
from vla_ros.engine.decoding.draft_tree import ROOT, Budget, DraftTree
from vla_ros.engine.decoding.drafters import Draft, Drafter, TemporalTreeDrafter, cut, drafted
from vla_ros.engine.decoding.factory import (
    DecodingParts,
    head_drafter,
    node_step,
    tree_drafter,
)
from vla_ros.engine.decoding.head_drafters import RecursiveDrafter
from vla_ros.engine.decoding.speculative import TreeSpeculative
from vla_ros.engine.decoding.tree_growth import Shape, merged, shape_of
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.io.files import read_json
from vla_ros.engine.layers.pieces import alone
from vla_ros.engine.layers.request import Request
from vla_ros.engine.models.openvla import VLAModel
from vla_ros.engine.options import parse_extra
from vla_ros_lab.decodings.calibration import FILE, BinPlan, Calibration, from_json, plan_bins
from vla_ros_lab.decodings.options import HeteroSpecOptions


class EntropyTreeDrafter(Drafter):
    """Trees of ``plan``, chosen by the entropy of the candidates that ``source`` offers.

    The candidates are there before the round, so the bin is named on the host and nothing is read
    from the device for it.
    """

    def __init__(
        self,
        source: TemporalTreeDrafter,
        calibration: Calibration,
        plan: BinPlan,
        device: torch.device,
    ) -> None:
        self._source, self._calibration, self.plan = source, calibration, plan
        self._device, self.layers = device, source.layers
        self._nothing = Draft(torch.zeros(0, dtype=torch.long, device=device))

    @property
    def passes(self) -> int:  # type: ignore[override]
        return self._source.passes

    def begin(self, request: Request) -> None:
        self._source.begin(request)

    def propose(self, prefix: Sequence[int], limit: int) -> Draft:
        offer = self._source.candidates(prefix)
        if offer is None:
            return self._nothing
        known = len(prefix)
        chosen = self._calibration.bin(known, offer.chances)
        tree = cut(self.plan.trees[known][chosen], limit)
        return drafted(tree, offer.tokens, self._device) if len(tree) else self._nothing

    def observe(self, tokens: Sequence[int], own: Sequence[int]) -> None:
        self._source.observe(tokens, own)

    def forget(self, damaged: bool = False) -> None:
        self._source.forget(damaged)


@dataclass(frozen=True, slots=True, eq=False)
class BinTrees:
    """The trees of one number of known tokens, one a bin: ``common`` levels grow whatever the bin
    is, and each of ``shapes`` those and its own."""

    trees: tuple[DraftTree, ...]
    shapes: tuple[Shape, ...]
    common: int

    @property
    def deepest(self) -> int:
        """Levels of the shape that has the most."""
        return max(len(shape.levels) for shape in self.shapes)


class EntropyHeadDrafter(EntropyTreeDrafter):
    """Trees of ``plan``, chosen by the entropy of the head's candidates along its likeliest path.

    As the paper has it: a round grows the base tree's levels first, of all bins' trees at once;
    then Phi names the bin; then the levels that this bin adds. What is drafted are the nodes of the
    bin's tree alone. Behind the prompt, before there is anything to read, it is as
    :class:`EntropyTreeDrafter`. The host reads one number a round, Phi.
    """

    def __init__(
        self,
        source: RecursiveDrafter,
        calibration: Calibration,
        plan: BinPlan,
        device: torch.device,
    ) -> None:
        super().__init__(source, calibration, plan, device)
        self._head = source
        last = calibration.tokens - 1
        binned = [self._bunch(known, last - known) for known in range(1, len(plan.trees))]
        binned = [bins for bins in binned if any(map(len, bins.trees))]
        # One segment up to where Phi is read, and from there one to every depth.
        segments = {(-1, bins.common) for bins in binned}
        for bins in binned:
            ends = range(bins.common, bins.deepest + 1)
            segments |= {(bins.common, end) for end in ends}
        source.head_trees.lay_out([s for bins in binned for s in bins.shapes], sorted(segments))

    def prepare(self, request: Request, every: bool = False) -> None:
        self._head.prepare(request, every)

    def observe_taps(self, taps: torch.Tensor, rows: Sequence[int]) -> None:
        self._head.observe_taps(taps, rows)

    def propose(self, prefix: Sequence[int], limit: int) -> Draft:
        known, trees = len(prefix), self._head.head_trees
        if not known:
            return super().propose(prefix, limit)
        bins = self._bunch(known, limit)
        if not any(map(len, bins.trees)):
            return self._nothing
        with torch.inference_mode():
            levels = max(bins.deepest, bins.common) + 1
            if not trees.begin_round(prefix, levels, self._head.expected):
                return self._nothing
            grower = trees.grower
            grower.through(bins.shapes[0], bins.common)
            thresholds = self._calibration.states[known].thresholds
            chosen = bisect_left(thresholds, grower.entropy()) if thresholds else 0
            shape, tree = bins.shapes[chosen], bins.trees[chosen]
            if not len(tree):
                self._head.passes += 1 + bins.common
                return self._nothing
            grower.through(shape, len(shape.levels))
            self._head.passes += 1 + len(shape.levels)
            return Draft(grower.tokens(), parents=tree.parents)

    def _bunch(self, known: int, limit: int) -> BinTrees:
        open_ = self._calibration.tokens - 1 - known
        return bin_trees(self.plan.trees[known], limit, min(self._calibration.levels, open_))


@lru_cache(1024)
def bin_trees(trees: tuple[DraftTree, ...], limit: int, levels: int) -> BinTrees:
    """Trees of at most ``limit`` levels; the base tree has ``levels``, whose likeliest path is
    always grown, since Phi is read off it."""
    kept = tuple(cut(tree, limit) for tree in trees)
    path = DraftTree(tuple(range(ROOT, levels - 1)), (0,) * levels)
    common = merged([path, *(cut(tree, levels) for tree in kept)])
    shapes = tuple(shape_of(tree, merged([common, tree])) for tree in kept)
    return BinTrees(kept, shapes, levels - 1)


class HeteroSpec(TreeSpeculative):
    """``step``: passes are filled up to a multiple of so many nodes."""

    def __init__(
        self,
        model: VLAModel,
        tokens: int,
        max_prompt: int,
        drafter: EntropyTreeDrafter,
        acceptance: Acceptance,
        gamma: int | None = None,
        fixed_shapes: bool = False,
        step: int = 1,
    ) -> None:
        self.plan = drafter.plan
        prompt, alone = (-(-most // step) * step for most in self.plan.most)
        budget = Budget(prompt, alone, step)
        super().__init__(
            model, tokens, max_prompt, drafter, acceptance, gamma, fixed_shapes, budget
        )

    def warm_up(self, request: Request) -> None:
        """Every tree that may come, so that neither a plan nor a shape is new in service."""
        length, last = len(request.prompt), self._blank(1).tokens
        self.runner.fit(length + self._entries)
        for known, trees in enumerate(self.plan.trees):
            for tree in {DraftTree(), *(t.cut(self.gamma) for t in trees)}:
                draft = self._blank(len(tree), tree.parents)
                if not known:
                    alone(self._first_pass(request, draft))
                else:
                    alone(self._next_pass(last, draft, length + known - 1))
        alone(self._next_pass(last, self._blank(0, ()), length + self.count - 2))
        self._warm_up_move()


def heterospec(parts: DecodingParts) -> HeteroSpec:
    """The decoding as the options name its drafter and its calibration. ValueError: there is no
    calibration for this checkpoint and drafter, or no head."""
    model, options, step = parts.model, parts.options, node_step(parts.model)
    if options.drafter == "model":
        raise ValueError(
            "heterospec draws its trees from alternatives with chances, and a draft model names one"
            " token a position: give drafter temporal_tree or head"
        )
    model.prepare_one_row()
    acceptance = make_acceptance(options, model.actions, parts.action_dim, model.device)
    drafter: EntropyTreeDrafter
    if options.drafter == "head":
        head = head_drafter(parts, acceptance, Budget(0, 0))
        calibration = _calibration(parts, _head_folder(parts), "head")
        plan = plan_bins(calibration, *head.paid, step)
        drafter = EntropyHeadDrafter(head, calibration, plan, model.device)
    else:
        calibration = _calibration(parts, model.directory, "temporal_tree")
        source = tree_drafter(parts, acceptance, Budget(0, 0))
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


def _head_folder(parts: DecodingParts) -> Path:
    """Folder of the head, where its calibration lies too."""
    if parts.head is not None:
        return parts.model.directory / FOLDER
    return find_head(parts.model.directory, parts.options.draft_checkpoint or None)


def _calibration(parts: DecodingParts, folder: Path, drafter: str) -> Calibration:
    """The calibration for these actions and this drafter. ValueError: it is of others."""
    named = parse_extra(parts.options.extra, HeteroSpecOptions).calibration
    found = read_calibration(named or None, folder)
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
    """The calibration in a file that is named, or beside a checkpoint. ValueError: it is none."""
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
