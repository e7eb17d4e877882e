"""How close a call it was where a schedule and ``generate`` chose different tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from vla_ros.core import Image, Observation, Timeline
from vla_ros.engine.engine import Engine
from vla_ros.engine.packed.pack import PackLayout
from vla_ros.engine.request import Decoded
from vla_ros.engine.tokens import MAX_TEXT
from vla_ros.timing import SystemClock

Reference = Mapping[int, tuple[int, ...]]  # generate's tokens, by stamp


class Matches:
    """Compares answers with a reference; explains differences by the model's own logits."""

    def __init__(self, engine: Engine, images: Sequence[Image], reference: Reference) -> None:
        self._engine, self._images, self._reference = engine, images, reference
        self._prompts: dict[int, torch.Tensor] = {}
        longest = engine.model.config.patches + MAX_TEXT + engine.info.max_tokens
        self._lane = engine.model.lane(1, longest)

    def rates(self, answers: Sequence[Decoded]) -> tuple[float | None, float | None, float | None]:
        """Rate of equal tokens, of equal actions, and the largest logit margin at a first miss."""
        known = self._reference
        pairs = [(d, known[d.stamp_ns]) for d in answers if d.tokens and d.stamp_ns in known]
        if not pairs:
            return None, None, None
        same = sum(sum(a == b for a, b in zip(d.tokens, r, strict=True)) for d, r in pairs)
        total = sum(len(r) for _, r in pairs)
        whole = sum(d.tokens == r for d, r in pairs) / len(pairs)
        margins = [self._margin(d, r) for d, r in pairs if d.tokens != r]
        return same / total, whole, max(margins, default=None)

    def _margin(self, decoded: Decoded, reference: tuple[int, ...]) -> float:
        """How far apart the two choices were, in logits, where they first differ."""
        where = next(i for i, r in enumerate(reference) if r != decoded.tokens[i])
        prompt, model = self._prompt(decoded.stamp_ns), self._engine.model
        behind = torch.tensor(reference[:where], device=model.device) if where else None
        total = len(prompt) + where
        logits = self._lane.logits(PackLayout((total - 1,), total), prompt, behind)[0].float()
        return float((logits[reference[where]] - logits[decoded.tokens[where]]).abs())

    def _prompt(self, stamp: int) -> torch.Tensor:
        if stamp not in self._prompts:
            seen = self._images[stamp]
            observation = Observation(stamp, stamp, 0, seen, wrist_image=seen)
            request = self._engine.request(observation, Timeline(0), SystemClock())
            self._prompts[stamp] = request.prompt
        return self._prompts[stamp]
