"""torch.compile with room for all shapes that a schedule has.

Dynamo compiles a second shape for sizes that vary, so the 13 shapes of speculation take 4 pieces
of code and not 13. Attentions, trees and taps take some more; past its limit (8) dynamo would run
the rest eagerly, with one warning in its own log. So the limit is raised.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

PIECES = 64

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """The function, compiled when it is called."""
    from torch._dynamo import config

    config.recompile_limit = max(config.recompile_limit, PIECES)
    config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, 4 * PIECES)
    return torch.compile(function)
