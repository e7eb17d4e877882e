"""How unsure a drafter is of a whole path: the cumulative top-K entropy of HeteroSpec.

    Phi(P*) = - sum over t of sum over i <= K of q ln q,  q = the K greatest chances, normalised

(Liu et al., HeteroSpec, eq. 1), in nats. t runs over the levels of the best path P*. The paper
takes for P* the path whose last token is drafted with the greatest chance of its own; where levels
are drafted independently all paths of a level agree in that, and we take the likeliest one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log, sqrt

SLOPE = 0.2  # of AdaEDL's bound


def top_entropy(chances: Sequence[float]) -> float:
    """Of the top-K chances of one token, in nats: 0 where one is certain, ln K where all are alike.

    They need not add up to one: what the K miss is left out. 0 where there is no mass at all.
    """
    mass = sum(chances)
    if mass <= 0.0:
        return 0.0
    shares = [chance / mass for chance in chances]
    return -sum(share * log(share) for share in shares if share > 0.0)


def path_entropy(levels: Sequence[Sequence[float]]) -> float:
    """Phi of a path: ``levels`` are the top-K chances from which each of its tokens was taken."""
    return sum(top_entropy(level) for level in levels)


def least_acceptance(chances: Sequence[float]) -> float:
    """How likely a draft of one token stands at least, by the entropy of its top-K chances.

    AdaEDL's lower bound (Agrawal et al.), 1 - sqrt(slope * H); below 0 it says nothing.
    """
    return 1.0 - sqrt(SLOPE * top_entropy(chances))
