"""What a draft head learns from: a target's own rollouts, frame by frame.

Of every frame the target's tokens, its hidden states where each of them was chosen, and what it
thought of the action bins there. Not the whole prompt: K rows a frame, so that 10,000 frames of a
7B model are 2 GB and not 400. One file an episode, whole or not there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from vla_ros.core.clock import Clock
from vla_ros.core.errors import UserError
from vla_ros.core.types import Inference, Observation, Timeline
from vla_ros.engine.decoding.request import Decoded, Request
from vla_ros.engine.engine import TokenEngine
from vla_ros.engine.io.tokens import MAX_TEXT
from vla_ros.engine.layers.pack import prefill_layout
from vla_ros.engine.models.language.base import tap_layers


@dataclass(frozen=True, slots=True)
class Episode:
    """Of F frames with K tokens each: ``tokens`` int64 [F, K]; ``taps`` [F, K, layers * C], row j
    being where token j was chosen; ``targets`` [F, K, bins], the target's chances there."""

    tokens: torch.Tensor
    taps: torch.Tensor
    targets: torch.Tensor

    def __len__(self) -> int:
        return len(self.tokens)


class Seer:
    """Looks at a frozen target while it acts: the engine's answer, and one pass more."""

    def __init__(self, engine: TokenEngine) -> None:
        model = engine.model
        if model.config.parallel:
            raise UserError("an OFT checkpoint says no tokens: a draft head would have no use")
        self._engine, self._actions = engine, model.actions
        longest = model.config.patches + MAX_TEXT + engine.info.max_tokens
        layers = tap_layers(model.config.text.layers)
        self._runner = model.runner(1, longest, model.actions.window, layers)
        self._frames: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def step(self, observation: Observation, timeline: Timeline, clock: Clock) -> Inference:
        """The target's answer to a frame, which is kept; InvalidAction as ``TokenEngine.step``."""
        request = self._engine.encode(observation, timeline, clock)
        decoded = self._engine.decoding.step(request)
        assert decoded is not None  # the schedule of the rollouts answers every frame
        answer = self._engine.unnormalize(decoded)
        self._keep(request, decoded)
        return answer

    def _keep(self, request: Request, decoded: Decoded) -> None:
        """All tokens but the last behind the prompt in one pass, as they were said."""
        length, tokens = len(request.prompt), torch.tensor(decoded.tokens)
        total = length + len(tokens) - 1
        self._runner.fit(total)
        behind = tokens[:-1].to(request.prompt.device)
        layout = prefill_layout(total, tuple(range(length - 1, total)))
        logits = self._runner.logits(layout, request.prompt, behind if len(behind) else None)
        assert self._runner.tapped is not None
        taps = self._runner.tapped.to("cpu", torch.bfloat16)
        self._frames.append((tokens, taps, logits.float().softmax(-1).to("cpu", torch.bfloat16)))

    def take(self) -> Episode:
        """What was seen since the last time."""
        tokens, taps, targets = (torch.stack(part) for part in zip(*self._frames, strict=True))
        self._frames.clear()
        return Episode(tokens, taps, targets)


def write_episode(path: Path, episode: Episode) -> None:
    """Whole or not at all."""
    from safetensors.torch import save_file

    scratch = path.with_suffix(".tmp")
    parts = {name: getattr(episode, name).contiguous() for name in Episode.__dataclass_fields__}
    save_file(parts, str(scratch))
    scratch.replace(path)


def read_episode(path: Path) -> Episode:
    """What :func:`write_episode` wrote."""
    from safetensors.torch import load_file

    return Episode(**load_file(str(path)))
