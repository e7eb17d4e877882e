"""Rivals of draft trees: a chain that ends where it is unsure, and what no drafter can beat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vla_ros.engine.drafters.base import Draft, Drafter
from vla_ros.engine.drafters.temporal import costs_on
from vla_ros.engine.drafters.temporal_tree import TemporalTreeDrafter
from vla_ros.engine.model import VLAModel
from vla_ros.engine.request import Request
from vla_ros.engine.trees.entropy import least_acceptance
from vla_ros.engine.trees.expected import Budget
from vla_ros.engine.trees.rounds import Episode, hindsight, shown

BOUND = 0.45  # AdaEDL's lower bound on acceptance where a draft ends


class EntropyChainDrafter(Drafter):
    """AdaEDL (Agrawal et al.): the likeliest token of every place, while 1 - sqrt(slope * H), H
    the entropy of the alternatives, is at least ``bound``."""

    def __init__(self, model: VLAModel, tokens: int, bound: float = BOUND) -> None:
        self._device, self._bound = model.device, bound
        costs = costs_on(model.device, model.dtype)  # given, what was learned outlives episodes
        self._source = TemporalTreeDrafter(
            model.actions, tokens, model.device, lambda position: 0, Budget(0, 0), costs,
            model.config.chunk,
        )  # fmt: skip

    def begin(self, request: Request) -> None:
        self._source.begin(request)

    def propose(self, prefix: Sequence[int], limit: int) -> Draft:
        offer, chosen = self._source.offer(prefix), list[int]()
        if offer is not None:
            for tokens, chances in zip(offer.tokens[:limit], offer.chances, strict=False):
                if least_acceptance(chances) < self._bound:
                    break
                chosen.append(tokens[0])
        return Draft(torch.tensor(chosen, dtype=torch.long, device=self._device))

    def observe(self, tokens: Sequence[int], own: Sequence[int]) -> None:
        self._source.observe(tokens, own)

    def forget(self, damaged: bool = False) -> None:
        self._source.forget(damaged)


@dataclass(frozen=True, slots=True)
class Hindsight:
    """Per action: passes and verified tokens of drafts that hold only what stands, made of the
    alternatives to the last action; and tokens accepted in a pass with a draft. Not run."""

    passes: float
    verified: float
    accepted: float


def best_in_hindsight(
    answers: Episode, window: range, warm_up: int = 0, steps: int = 1
) -> Hindsight | None:
    """Of answers in the order of their frames, the first ``warm_up`` only learned from, as the rows
    do; None for fewer than two. An answer has ``steps`` actions."""
    there = shown([answers], window, steps=steps)[warm_up:]
    frames = [frame for frame in there if frame.offer is not None]
    if not frames:
        return None
    played = list(hindsight(frames))
    drafted = sum(len(one.tree) > 0 for one in played)
    verified = sum(len(one.tree) for one in played)
    return Hindsight(len(played) / len(frames), verified / len(frames), verified / max(drafted, 1))
