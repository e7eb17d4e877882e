"""Which initial states belong to training, to checks during training, and to the evaluation.

An initial state is drawn from (task, index, seed), so ranges of seeds keep the sets apart: the
evaluation owns the seeds below a million and nothing here ever uses one of them.
"""

from __future__ import annotations

EVALUATION = range(1_000_000)
TRAINING = range(1_000_000, 2_000_000)
VALIDATION = range(2_000_000, 3_000_000)  # success while training: looked at, never trained on

_COLLECTION = 100_000  # demonstrations a collection may have
_COLLECTIONS = range(5)
_ROUND = 10_000  # episodes a round of on-policy correction may have
_ROUNDS = range(50)


def expert_seed(collection: int, number: int) -> int:
    """Seed of demonstration ``number`` of a collection (0 to 4); ValueError outside."""
    _inside("collection seed", collection, _COLLECTIONS)
    _inside("demonstration", number, range(_COLLECTION))
    return TRAINING.start + collection * _COLLECTION + number


def dagger_seed(round_number: int, number: int) -> int:
    """Seed of episode ``number`` of an on-policy round; ValueError outside."""
    _inside("round", round_number, _ROUNDS)
    _inside("episode", number, range(_ROUND))
    first = TRAINING.start + len(_COLLECTIONS) * _COLLECTION
    return first + round_number * _ROUND + number


def validation_seed(number: int) -> int:
    """Seed of held-out episode ``number``."""
    _inside("episode", number, range(len(VALIDATION)))
    return VALIDATION.start + number


def _inside(what: str, value: int, allowed: range) -> None:
    if value not in allowed:
        raise ValueError(f"{what} {value}: give {allowed.start} to {allowed.stop - 1}")
