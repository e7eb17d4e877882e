"""Drafters with a head beside the target: candidates read off its hidden states.

The first pass of an answer is the prefill with the tree of the temporal drafter behind it, since
before the prefill there is nothing to read. From then on the head is asked level by level, from the
last accepted token on (:mod:`.tree_growth`).

The shape of the trees is planned beforehand, for every number of known tokens, from how often each
rank was right on episodes held out: EAGLE-2's reranking, done once. So layouts and graphs outlive
frames, and the host reads nothing of the head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from vla_ros.engine.decoding.draft_heads import LEVELS, Embed, RecursiveHead
from vla_ros.engine.decoding.draft_tree import Budget, DraftTree, Marginals, plan_first, plan_states
from vla_ros.engine.decoding.drafters import Costs, Draft, TemporalTreeDrafter, cut
from vla_ros.engine.decoding.fast_drafter import FastDrafter
from vla_ros.engine.decoding.temporal_prediction import TemporalPredictor
from vla_ros.engine.decoding.tree_growth import (
    ExpectedBins,
    Segment,
    Shape,
    TreeFrame,
    TreeGrower,
    layout_of,
    shape_of,
)
from vla_ros.engine.io.fast_tokens import FastTokens
from vla_ros.engine.io.tokens import ActionTokens
from vla_ros.engine.layers.devices import upload
from vla_ros.engine.layers.graphs import Capture
from vla_ros.engine.layers.request import Request


class HeadTrees:
    """Trees that grow behind a token out of a recursive head: what its drafters have in common.

    ``embed`` gives the target's embeddings [N, C] of tokens int64 [N]; ``first`` is the token of
    bin 0. With ``capture`` a tree's levels grow within one graph. What drafts behind a prompt, and
    says what to expect, is the drafter that this is a part of.
    """

    grower: TreeGrower
    trees: tuple[DraftTree, ...]  # by how many tokens are known; none of 0

    def __init__(
        self,
        head: RecursiveHead,
        embed: Embed,
        first: int,
        tolerance: Callable[[int], int],
        device: torch.device,
        capture: Capture | None,
    ) -> None:
        self.head, self.embed, self.first, self.device = head, embed, first, device
        self._tolerance, self._capture = tolerance, capture
        self.chances: list[Marginals] = states_of(head.chances.tolist())

    def plan(self, trees: tuple[DraftTree, ...]) -> None:
        """Take on the trees that may come; each grows at once."""
        self.trees = trees
        shapes = [shape_of(tree) for tree in trees[1:] if len(tree)]
        deepest = max((len(shape.levels) for shape in shapes), default=-1)
        self.lay_out(shapes, [(-1, levels) for levels in range(deepest + 1)])

    def lay_out(self, shapes: Sequence[Shape], segments: Sequence[Segment]) -> None:
        """Memory for what may grow, and the segments in which it does."""
        frame, self._segments = TreeFrame.around(shapes), tuple(segments)
        for shape in shapes:  # waits for the device: not in service
            layout_of(shape, frame, self.device)
        self.grower = TreeGrower(
            self.head, self.embed, self.first, self._tolerance, frame, self._capture
        )

    def prepare(self) -> None:
        """Capture what may grow."""
        self.grower.prepare(self._segments)

    def observe_taps(self, taps: torch.Tensor, rows: Sequence[int]) -> None:
        """Take in the taps of accepted rows, as ``Drafter.observe_taps``."""
        # A copy: the next pass may write where these are.
        self.grower.add_taps(taps.index_select(0, upload(list(rows), taps.device)))

    def forget(self, damaged: bool = False) -> None:
        """Forget an answer, as ``Drafter.forget``; also before every answer."""
        if damaged:
            self.grower.clear()
        self.grower.forget()

    def grown(
        self, prefix: Sequence[int], limit: int, expect: Callable[[list[int], int], ExpectedBins]
    ) -> tuple[Draft, int]:
        """A tree of at most ``limit`` levels behind a prefix, and the passes of the head; without
        nodes where none pays, or where the target has not shown all of the prefix. ``expect`` as of
        :meth:`begin_round`."""
        tree = cut(self.trees[len(prefix)], limit)
        if not len(tree):
            return self._nothing(), 0
        shape = shape_of(tree)
        with torch.inference_mode():
            if not self.begin_round(prefix, len(shape.levels) + 1, expect):
                return self._nothing(), 0
            self.grower.through(shape, len(shape.levels))
            return Draft(self.grower.tokens(), parents=tree.parents), 1 + len(shape.levels)

    def begin_round(
        self, prefix: Sequence[int], levels: int, expect: Callable[[list[int], int], ExpectedBins]
    ) -> bool:
        """Begin what grows behind a prefix, to at most so many levels; False where the target has
        not shown all of it. ``expect`` gives what is expected of so many places behind a prefix."""
        known, grower = len(prefix), self.grower
        if grower.seen != known:
            return False
        tokens, fresh = list(prefix), range(grower.known, known)
        pairs = [expect(tokens[: p + 1], 1) for p in fresh]
        behind = [one for last, _ in pairs for one in last], [one for _, b in pairs for one in b]
        grower.begin(tokens[fresh.start :], behind, expect(tokens, levels))
        return True

    def _nothing(self) -> Draft:
        return Draft(torch.zeros(0, dtype=torch.long, device=self.device))


class RecursiveDrafter(TemporalTreeDrafter):
    """Drafts with a recursive head; of the rest as the temporal trees, ``costs.alone.level`` being
    what the head's pass over a level costs. A tree that does not pay costs nothing: the head is
    then not asked.
    """

    def __init__(
        self,
        actions: ActionTokens,
        device: torch.device,
        tolerance: Callable[[int], int],
        budget: Budget,
        head: RecursiveHead,
        embed: Embed,
        costs: Costs | None = None,
        steps: int = 1,
        capture: Capture | None = None,
    ) -> None:
        super().__init__(actions, head.config.tokens, device, tolerance, budget, costs, steps)
        self.layers = head.config.layers
        self._actions = actions
        self.head_trees = HeadTrees(head, embed, actions.first, tolerance, device, capture)
        self._later: tuple[DraftTree, ...] = ()  # the trees behind a token: they never change
        self._trees = self._plan()
        self.head_trees.plan(self._trees)

    def prepare(self, request: Request, every: bool = False) -> None:
        self.head_trees.prepare()

    def begin(self, request: Request) -> None:
        super().begin(request)
        self.passes = 0
        self.head_trees.forget()

    def observe_taps(self, taps: torch.Tensor, rows: Sequence[int]) -> None:
        self.head_trees.observe_taps(taps, rows)

    def propose(self, prefix: Sequence[int], limit: int) -> Draft:
        if not len(prefix):
            return super().propose(prefix, limit)
        draft, passes = self.head_trees.grown(prefix, limit, self.expected)
        self.passes += passes
        return draft

    def expected(self, tokens: Sequence[int], count: int) -> ExpectedBins:
        """Bins expected of this frame, as :func:`expected_bins`."""
        return expected_bins(self._predictor, tokens, count, self._actions)

    def forget(self, damaged: bool = False) -> None:
        super().forget(damaged)
        self.head_trees.forget(damaged)
        self._trees = self._trees or self._plan()

    def _plan(self) -> tuple[DraftTree, ...]:
        """Behind the prompt as it is learned; behind a token once and for all."""
        prompt, (paid, alone) = self.marginals.chances[:-1], self.paid
        if not self._later:
            plan = plan_states([prompt, *self.head_trees.chances], self._budget, paid, alone)
            self._later, self._expected = plan.trees[1:], plan.expected
        return (plan_first(prompt, self._expected, self._budget, paid), *self._later)


class FastHeadDrafter(FastDrafter):
    """Drafts FAST tokens with a recursive head: behind the prompt the spellings of the last chunk,
    as ``temporal_tree``; from the first action token on the head's trees, the head being given how
    the last chunk would be spelled on.

    A head knows answers as long as those it was trained on; what lies behind is spelled, and so it
    is where the head's trees do not pay. An end marker is not among its tokens.
    """

    def __init__(
        self,
        actions: FastTokens,
        device: torch.device,
        budget: Budget,
        head: RecursiveHead,
        embed: Embed,
        costs: Costs | None = None,
        capture: Capture | None = None,
    ) -> None:
        super().__init__(actions, device, budget, costs, wide=True)
        self.layers = head.config.layers
        self._head = HeadTrees(head, embed, actions.first, lambda place: 0, device, capture)
        paid = (None, None) if costs is None else (costs.prompt, costs.alone)
        self._head.plan(plan_states([[], *self._head.chances], budget, *paid).trees)

    def prepare(self, request: Request, every: bool = False) -> None:
        self._head.prepare()

    def begin(self, request: Request) -> None:
        super().begin(request)
        self.passes = 0
        self._head.forget()

    def observe_taps(self, taps: torch.Tensor, rows: Sequence[int]) -> None:
        self._head.observe_taps(taps, rows)

    def propose(self, prefix: Sequence[int], limit: int) -> Draft:
        known, trees = len(prefix), self._head.trees
        if not len(self._actions.prefix) <= known < len(trees) or not len(trees[known]):
            return super().propose(prefix, limit)
        draft, passes = self._head.grown(prefix, limit, self.expected)
        self.passes += passes
        return draft

    def expected(self, tokens: Sequence[int], count: int) -> ExpectedBins:
        """Spelling expected of this frame, as :func:`expected_spelling`."""
        return expected_spelling(self, self._actions, tokens, count)

    def forget(self, damaged: bool = False) -> None:
        super().forget(damaged)
        self._head.forget(damaged)


def expected_spelling(
    expecting: FastDrafter, actions: FastTokens, prefix: Sequence[int], count: int
) -> ExpectedBins:
    """Bins expected of FAST tokens, by the likeliest spelling; of a step before nothing is
    known."""
    bins = [t - actions.first for t in expecting.ahead(prefix, count) if t in actions.window]
    return bins + [-1] * (count - len(bins)), [-1] * count


def states_of(chances: Sequence[Sequence[Sequence[float]]]) -> list[Marginals]:
    """Marginals of each state: those levels of a head's ``chances`` that the answer has."""
    return [levels[: max(len(chances) - n, 0)][:LEVELS] for n, levels in enumerate(chances)]


def expected_bins(
    expecting: TemporalPredictor, prefix: Sequence[int], count: int, actions: ActionTokens
) -> ExpectedBins:
    """Bins expected of the ``count`` places behind a prefix, and the bins a step before each;
    -1 where unknown, beyond the answer, or where it is no bin."""
    known = len(prefix)
    last, before = expecting.predict(prefix, known, min(known + count, expecting.positions))

    def bins(tokens: Sequence[int]) -> list[int]:
        found = [t - actions.first if t in actions.window else -1 for t in tokens]
        return found + [-1] * (count - len(found))

    return bins(last), bins(before)
