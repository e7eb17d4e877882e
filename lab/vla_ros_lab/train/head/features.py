"""Features that a draft head learns from: a target's own answers, frame by frame.

A frame has the target's tokens, its hidden states where each of them was chosen, and its chances of
the action bins there. Not the whole prompt: K rows a frame, so that 10,000 frames of a
7B model are 2 GB and not 400. One file an episode, whole or not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

from vla_ros.core.clock import Clock
from vla_ros.core.errors import UserError
from vla_ros.core.types import Inference, Observation, Timeline
from vla_ros.engine.decoding.draft_tree import ROOT
from vla_ros.engine.decoding.speculative import behind_prompt
from vla_ros.engine.engine import Engine
from vla_ros.engine.io.tokens import MAX_TEXT
from vla_ros.engine.layers.pack import prefill_layout
from vla_ros.engine.layers.pieces import alone
from vla_ros.engine.layers.request import Decoded, Request
from vla_ros.engine.models.language.base import tap_layers
from vla_ros.engine.options import FAST


@dataclass(frozen=True, slots=True)
class HeadEpisode:
    """Features of F frames with K tokens each: ``tokens`` int64 [F, K]; ``taps`` [F, K, layers *
    C], row j being where token j was chosen; ``targets`` [F, K, bins], the target's chances there.
    Answers that end earlier go on with their end marker, whose taps and targets are zeros."""

    tokens: torch.Tensor
    taps: torch.Tensor
    targets: torch.Tensor

    def __len__(self) -> int:
        return len(self.tokens)


class TargetReader:
    """Reader of a frozen target's features while it acts: its answer, and one pass more."""

    def __init__(self, engine: Engine) -> None:
        if engine.info.decoding == "parallel":
            raise UserError("an OFT checkpoint says no tokens: a draft head would have no use")
        model: Any = engine.model
        prompt = model.patches + MAX_TEXT
        if engine.policy.group == FAST:
            # every answer has another length: a graph of each would be for one frame
            model = engine.model if model.capture is None else engine.model.uncaptured()
            prompt = engine.policy.config.longest
        self._engine, self._causal, self._ends = engine, model.causal, model.ends
        longest = prompt + engine.info.max_tokens
        taps = tap_layers(model.text.layers)
        self._runner = model.runner(1, longest, model.actions.window, taps)
        self._frames: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def step(self, observation: Observation, timeline: Timeline, clock: Clock) -> Inference:
        """The target's answer to a frame, which is kept; InvalidAction as ``Engine.step``."""
        request = self._engine.encode(observation, timeline, clock)
        decoded = alone(self._engine.decoder.decode(request))
        assert decoded is not None  # the decoding of the rollouts answers every frame
        answer = self._engine.finish(decoded)
        self._keep(request, decoded)
        return answer

    def _keep(self, request: Request, decoded: Decoded) -> None:
        """All tokens but the last behind the prompt in one pass, as they were said."""
        length, tokens = len(request.prompt), torch.tensor(decoded.tokens)
        total = length + len(tokens) - 1
        self._runner.fit(total)
        behind = tokens[:-1].to(request.prompt.device)
        rows = tuple(range(length - 1, total))
        if self._causal:
            layout = prefill_layout(total, rows)
        else:  # a prefix whose tokens all see each other, and a chain behind it
            place = self._runner.behind(length)
            layout = behind_prompt(
                length, place, tuple(range(ROOT, total - length - 1)), total - length, False
            )
        logits = self._runner.logits(layout, request.prompt, behind if len(behind) else None)
        assert self._runner.tapped is not None
        taps = self._runner.tapped.to("cpu", torch.bfloat16)
        self._frames.append((tokens, taps, logits.float().softmax(-1).to("cpu", torch.bfloat16)))

    def take(self) -> HeadEpisode:
        """Features of the frames since the last call."""
        filler = 0 if self._ends is None else self._ends
        tokens, taps, targets = (list(part) for part in zip(*self._frames, strict=True))
        self._frames.clear()
        return HeadEpisode(
            pad_sequence(tokens, True, filler),
            pad_sequence(taps, True),
            pad_sequence(targets, True),
        )

    def __len__(self) -> int:
        return len(self._frames)


def padded(episodes: Sequence[HeadEpisode], filler: int) -> list[HeadEpisode]:
    """All with as many tokens a frame as the longest."""
    most = max((episode.tokens.shape[1] for episode in episodes), default=0)

    def longer(episode: HeadEpisode) -> HeadEpisode:
        missing = most - episode.tokens.shape[1]
        rows = (0, 0, 0, missing)
        return HeadEpisode(
            F.pad(episode.tokens, (0, missing), value=filler),
            F.pad(episode.taps, rows),
            F.pad(episode.targets, rows),
        )

    return [longer(episode) for episode in episodes]


def write_episode(path: Path, episode: HeadEpisode) -> None:
    """Whole or not at all."""
    from safetensors.torch import save_file

    scratch = path.with_suffix(".tmp")
    parts = {name: getattr(episode, name).contiguous() for name in HeadEpisode.__dataclass_fields__}
    save_file(parts, str(scratch))
    scratch.replace(path)


def read_episode(path: Path) -> HeadEpisode:
    """Episode that :func:`write_episode` wrote."""
    from safetensors.torch import load_file

    return HeadEpisode(**load_file(str(path)))
