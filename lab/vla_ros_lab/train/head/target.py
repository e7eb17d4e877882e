"""The frozen target as a draft head sees it, and a head as it will be served."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn

from vla_ros.engine.decoding.head_drafters import Embed
from vla_ros.engine.io.fast_tokens import FastTokens
from vla_ros.engine.io.tokens import ActionTokens

Head = TypeVar("Head", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class Target:
    """``embed`` gives its embeddings of tokens; of ``layers`` the outputs are read, of ``hidden``
    numbers each; an answer is ``steps`` actions, ``executed`` of which are carried out before the
    next frame (FAST tokens: what is expected follows it). ``rows`` [bins, hidden] of its product
    for words are those of the action tokens; None where they are not at hand as numbers."""

    actions: ActionTokens | FastTokens
    embed: Embed
    layers: tuple[int, ...]
    hidden: int
    steps: int = 1
    rows: torch.Tensor | None = None
    executed: int = 1


def rounded(head: Head) -> Head:
    """A copy as it will be read back: in bf16, on the CPU."""
    served = copy.deepcopy(head).cpu().requires_grad_(False).eval()
    for parameter in served.parameters():
        parameter.copy_(parameter.bfloat16())
    return served
