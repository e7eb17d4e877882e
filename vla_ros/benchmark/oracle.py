"""Drafters that know the answer: the best and the worst a draft can be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from vla_ros.engine.drafters.acceptance import Exact
from vla_ros.engine.drafters.base import Draft, Drafter
from vla_ros.engine.drafters.temporal import TemporalDrafter
from vla_ros.engine.model import VLAModel
from vla_ros.engine.request import Request

Answers = Mapping[int, tuple[int, ...]]  # by stamp


class HitDrafter(Drafter):
    """Always right: one pass an action."""

    def __init__(self, answers: Answers, device: torch.device) -> None:
        self._answers, self._device = answers, device
        self._now: tuple[int, ...] = ()

    def begin(self, request: Request) -> None:
        self._now = self._answers[request.stamp_ns]

    def propose(self, prefix: Sequence[int], limit: int) -> Draft:
        guess = self._now[len(prefix) : len(prefix) + limit]
        return Draft(torch.tensor(guess, dtype=torch.long, device=self._device))


class MissDrafter(TemporalDrafter):
    """Always wrong, in a drafter that is otherwise the temporal one, statistics and all.

    Adaptive it shows what a bad draft costs in service; not adaptive, the true worst case.
    """

    def __init__(self, model: VLAModel, tokens: int, answers: Answers, *, adaptive: bool) -> None:
        close = Exact().close
        super().__init__(
            model.actions, tokens, model.device, close, adaptive=adaptive, dtype=model.dtype,
            steps=model.config.chunk,
        )  # fmt: skip
        self._answers = answers
        self._wrong: tuple[int, ...] = ()

    def begin(self, request: Request) -> None:
        actions = self._actions
        truth = self._answers[request.stamp_ns]
        self._wrong = tuple(t + 1 if t + 1 < actions.vocab else t - 1 for t in truth)

    def _guess(self, prefix: Sequence[int], start: int, end: int) -> Sequence[int]:
        return self._wrong[start:end]
