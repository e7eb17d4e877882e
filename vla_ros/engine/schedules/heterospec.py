"""HeteroSpec: draft trees whose depth and width follow the drafter's uncertainty.

Liu et al., "HeteroSpec". A round is a round of :mod:`vla_ros.engine.schedules.tree`: the tree is
verified behind the prompt, later behind a correction, and no token differs from decoding without
drafts. Which tree it is, is said by the entropy of the draft before the round; every tree that may
come is known when the schedule is made, so their plans and graphs are made before service.

An action's last token needs no draft, so with K = 7 no tree is deeper than 6: there the base tree
is as deep already, and what is extended elsewhere are nodes here, not levels.
"""

from __future__ import annotations

import torch

from vla_ros.engine.drafters.acceptance import Acceptance
from vla_ros.engine.drafters.base import Draft
from vla_ros.engine.drafters.uncertain import UncertainDrafter
from vla_ros.engine.drafters.verdict import Verdict
from vla_ros.engine.model import VLAModel
from vla_ros.engine.request import Request
from vla_ros.engine.schedules.growing_action import GrowingAction
from vla_ros.engine.schedules.speculative import FILLER
from vla_ros.engine.schedules.tree import TreeSpeculative
from vla_ros.engine.trees.expected import Budget
from vla_ros.engine.trees.shape import DraftTree


class HeteroSpec(TreeSpeculative):
    """``step``: passes are filled up to a multiple of so many nodes."""

    def __init__(
        self,
        model: VLAModel,
        tokens: int,
        max_prompt: int,
        drafter: UncertainDrafter,
        acceptance: Acceptance,
        gamma: int | None = None,
        fixed_shapes: bool = False,
        step: int = 1,
    ) -> None:
        self.plan = drafter.plan
        prompt, alone = (-(-most // step) * step for most in self.plan.most)
        budget = Budget(prompt, alone, step)
        super().__init__(
            model, tokens, max_prompt, drafter, acceptance, budget, gamma, fixed_shapes
        )

    def rehearse(self, request: Request) -> None:
        """Every tree that may come, so that neither a plan nor a shape is new in service."""
        length = len(request.prompt)
        self.lane.fit(length + self._entries)
        last = torch.full((1,), FILLER, device=self.model.device)
        for known, trees in enumerate(self.plan.trees):
            for tree in {DraftTree(), *(t.cut(self.gamma) for t in trees)}:
                draft = self._blank(tree)
                if not known:
                    self._first_pass(request, draft)
                else:
                    self._next_pass(last, draft, length + known - 1)
        self._next_pass(last, self._blank(DraftTree()), length + self.count - 2)
        self._keep(Verdict((), (), (), 1, True, (1,)), GrowingAction(self.count))

    def _blank(self, tree: DraftTree) -> Draft:
        tokens = torch.full((len(tree),), FILLER, device=self.model.device)
        return Draft(tokens, parents=tree.parents)
