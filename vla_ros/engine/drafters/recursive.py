"""A recursive draft head beside the target: trees whose every level is read off the one before.

The first pass of an answer is the prefill with the tree of :mod:`.temporal_tree` behind it. From
then on each round begins at the last accepted token: what the target thought where it and those
before it were chosen is taken into the head's memory, and the tree grows from there
(:mod:`.growth`). Its shape is planned beforehand, for every number of known tokens, from how often
each rank was right on each level on episodes held out: EAGLE-2's reranking, done once. So layouts
outlive frames, and the host reads nothing of the head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from vla_ros.engine.drafters.base import Draft
from vla_ros.engine.drafters.captured_growth import CapturedGrowing, Frame, Segment, laid
from vla_ros.engine.drafters.growth import Expected, Growing, Round, Shape, shape_of
from vla_ros.engine.drafters.temporal import Costs
from vla_ros.engine.drafters.temporal_tree import TemporalTreeDrafter, cut
from vla_ros.engine.packed.graphs import Capture
from vla_ros.engine.recursive_head import LEVELS, Embed, RecursiveHead
from vla_ros.engine.request import Request
from vla_ros.engine.tokens import ActionTokens
from vla_ros.engine.trees.expected import Budget, Cost, plan_first, plan_states
from vla_ros.engine.trees.expecting import Expecting
from vla_ros.engine.trees.shape import DraftTree, Marginals


class RecursiveDrafter(TemporalTreeDrafter):
    """``embed`` gives the target's embeddings [N, C] of tokens int64 [N]; the rest is as of the
    temporal trees, ``costs.alone.level`` being what the head's pass over a level costs. A tree
    that does not pay costs nothing: the head is then not asked. With ``capture`` a tree's levels
    grow within one graph."""

    def __init__(
        self,
        actions: ActionTokens,
        device: torch.device,
        reach: Callable[[int], int],
        budget: Budget,
        head: RecursiveHead,
        embed: Embed,
        costs: Costs | None = None,
        steps: int = 1,
        capture: Capture | None = None,
    ) -> None:
        config = head.config
        super().__init__(actions, config.tokens, device, reach, budget, costs, steps)
        self.layers = config.layers
        self._actions = actions
        self.chances: list[Marginals] = states_of(head.chances.tolist())
        self._head, self._embed, self._reach, self._capture = head, embed, reach, capture
        self.growing = Growing(head, embed, actions.first, reach)
        self._later: tuple[DraftTree, ...] = ()  # the trees behind a token: they never change
        self._trees = self._plan()
        if capture is not None:
            later: tuple[DraftTree, ...] = self._later
            shapes = [shape_of(tree, device) for tree in later if len(tree)]
            deepest = max((len(shape.levels) for shape in shapes), default=-1)
            self.lay_out(shapes, [(0, levels) for levels in range(deepest + 1)])

    @property
    def costs_alone(self) -> Cost | None:
        """Of a tree behind a token."""
        return None if self._costs is None else self._costs.alone

    @property
    def captured(self) -> bool:
        """Whether what grows is to be laid out for graphs."""
        return self._capture is not None

    def lay_out(
        self, shapes: Sequence[Shape], segments: Sequence[Segment], watched: bool = False
    ) -> None:
        """What may grow, where it is captured: memory for it, and one graph for each segment."""
        if self._capture is not None and shapes:
            frame = Frame.around(shapes)
            for shape in shapes:  # reads the device: not in service
                laid(shape, frame, self._device)
            self.growing = CapturedGrowing(
                self._head, self._embed, self._actions.first, self._reach, self._capture, frame,
                segments, watched,
            )  # fmt: skip

    def prepare(self, request: Request, every: bool = False) -> None:
        self.growing.prepare()

    def begin(self, request: Request) -> None:
        super().begin(request)
        self.passes = 0
        self.growing.forget()

    def saw(self, taps: torch.Tensor, rows: Sequence[int]) -> None:
        self.growing.saw(taps[list(rows)])  # a copy: the next pass may write where these are

    def propose(self, prefix: Sequence[int], limit: int) -> Draft:
        known = len(prefix)
        if not known:
            return super().propose(prefix, limit)
        tree = cut(self._trees[known], limit)
        if not len(tree):
            return self._nothing
        shape = shape_of(tree, self._device)
        with torch.inference_mode():
            growth = self.round(prefix, len(shape.levels) + 1)
            if growth is None:
                return self._nothing
            growth.through(shape, len(shape.levels))
            tokens = growth.tokens(shape)
        self.passes += 1 + len(shape.levels)
        return Draft(tokens, parents=tree.parents)

    def round(self, prefix: Sequence[int], levels: int) -> Round | None:
        """What grows behind a prefix, to at most so many levels; None where the target has not
        shown all of it."""
        if self.growing.seen != len(prefix):
            return None
        return self.growing.begin(*self._told(prefix, levels))

    def _told(self, prefix: Sequence[int], levels: int) -> tuple[list[int], Expected, Expected]:
        """What a round begins with: the tokens not taken in yet, what was expected behind each,
        and what is expected of the next ``levels`` places."""
        known, said = len(prefix), list(prefix)
        fresh = range(self.growing.known, known)
        pairs = [expected_bins(self._expecting, said[: p + 1], 1, self._actions) for p in fresh]
        behind = [one for last, _ in pairs for one in last], [one for _, b in pairs for one in b]
        ahead = expected_bins(self._expecting, said, levels, self._actions)
        return said[fresh.start :], behind, ahead

    def forget(self, damaged: bool = False) -> None:
        super().forget(damaged)
        if damaged:
            self.growing.clear()
        self.growing.forget()
        self._trees = self._trees or self._plan()

    def _plan(self) -> tuple[DraftTree, ...]:
        """Behind the prompt as it is learned; behind a token once and for all."""
        prompt = self.marginals.chances[:-1]
        costs = self._costs
        paid = (costs.prompt, costs.alone) if costs else (None, None)
        if not self._later:
            plan = plan_states([prompt, *self.chances], self._budget, *paid)
            self._later, self._expected = plan.trees[1:], plan.expected
        first = plan_first(prompt, self._expected, self._budget, paid[0])
        return (first, *self._later)


def states_of(chances: Sequence[Sequence[Sequence[float]]]) -> list[Marginals]:
    """Of a head's ``chances`` those levels of each state that are of the answer."""
    return [levels[: max(len(chances) - n, 0)][:LEVELS] for n, levels in enumerate(chances)]


def expected_bins(
    expecting: Expecting, prefix: Sequence[int], count: int, actions: ActionTokens
) -> tuple[list[int], list[int]]:
    """Bins expected of the ``count`` places behind a prefix, and what stood a step before each;
    -1 where nobody knows, or beyond the answer, or where it is no bin."""
    known = len(prefix)
    last, before = expecting.look(prefix, known, min(known + count, expecting.positions))

    def bins(tokens: Sequence[int]) -> list[int]:
        found = [t - actions.first if t in actions.window else -1 for t in tokens]
        return found + [-1] * (count - len(found))

    return bins(last), bins(before)
