"""Whether a policy said the same again: frame by frame, number by number, token by token."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from vla_ros.replay.errors import BagError
from vla_ros.replay.run import Run


@dataclass(frozen=True, slots=True)
class Difference:
    """One number of one action that is another one. ``frame`` counts from 0, ``dimension`` is the
    number's name."""

    frame: int
    stamp_ns: int
    chunk_index: int
    dimension: str
    recorded: float
    replayed: float

    def __str__(self) -> str:
        place = f"frame {self.frame} (stamp {self.stamp_ns / 1e9:.6f}), {self.dimension}"
        return f"{place}: {self.recorded:.9g} before, {self.replayed:.9g} now"


@dataclass(frozen=True, slots=True)
class Comparison:
    """``compared`` actions are in both runs; ``missing`` ones only in the first, although the
    frame was shown; ``extra`` ones only in the second. ``tail``: missing only because a pipeline
    was not yet that far when its episode ended. Differences in m, rad and gripper 0..1, of the
    numbers that ``names`` says.
    """

    compared: int
    missing: int
    extra: int
    tail: int
    names: tuple[str, ...]
    max_abs_diff: tuple[float, ...]  # a name
    first: Difference | None
    tokens: int  # compared
    tokens_equal: int

    @property
    def largest(self) -> float:
        return max(self.max_abs_diff)

    @property
    def identical(self) -> bool:
        """Every action again, to the last bit."""
        same = self.largest == 0.0 and self.tokens == self.tokens_equal
        return self.compared > 0 and self.missing == 0 and same

    @property
    def token_match_rate(self) -> float | None:
        """Share of the tokens that are the same; None for policies without tokens."""
        return self.tokens_equal / self.tokens if self.tokens else None


def compare(
    before: Run,
    now: Run,
    shown: Collection[int],
    ends: Collection[int] = (),
) -> Comparison:
    """Compare by the frame an action rests on, so that pipelined schedules, which answer some
    frames later, can be compared with those that answer at once.

    ``shown``: stamps of the frames that were replayed, in order; ``ends``: those of them that
    were the last of an episode. Raises BagError where the actions are not of the same numbers.
    """
    names = _names(before, now)
    place = {stamp: i for i, stamp in enumerate(shown)}
    first, second = before.actions, now.actions
    expected = {key: said for key, said in first.items() if key[0] in place}
    both = sorted(expected.keys() & second.keys(), key=lambda key: (place[key[0]], key[1]))
    largest = [0.0] * len(names)
    difference: Difference | None = None
    for key in both:
        old, new = expected[key].action, second[key].action
        for i, name in enumerate(names):
            off = abs(new[i] - old[i])
            largest[i] = max(largest[i], off)
            if off and difference is None:
                difference = Difference(place[key[0]], key[0], key[1], name, old[i], new[i])
    lost = expected.keys() - second.keys()
    tail = {key for key in lost if key[0] in _unanswered(place, ends, now.pipeline_depth)}
    tokens, equal = _tokens(before, now)
    return Comparison(
        compared=len(both),
        missing=len(lost) - len(tail),
        extra=len(second.keys() - first.keys()),
        tail=len(tail),
        names=names,
        max_abs_diff=tuple(largest),
        first=difference,
        tokens=tokens,
        tokens_equal=equal,
    )


def _names(before: Run, now: Run) -> tuple[str, ...]:
    if before.actions and now.actions and before.names != now.names:
        first, second = " ".join(before.names), " ".join(now.names)
        raise BagError(
            f"the actions before were of {first}, those of now are of {second}: replay with the"
            " action_space and the names of the recording"
        )
    return before.names


def _unanswered(place: dict[int, int], ends: Collection[int], depth: int) -> set[int]:
    """The frames still in a pipeline of this depth when their episode ends."""
    last = {place[stamp] for stamp in ends if stamp in place} | {len(place) - 1}
    return {stamp for stamp, i in place.items() if any(0 <= end - i < depth - 1 for end in last)}


def _tokens(before: Run, now: Run) -> tuple[int, int]:
    """(tokens of frames that both runs answered, those that are the same)."""
    count = equal = 0
    for stamp in before.tokens.keys() & now.tokens.keys():
        old, new = before.tokens[stamp], now.tokens[stamp]
        count += max(len(old), len(new))
        equal += sum(a == b for a, b in zip(old, new, strict=False))
    return count, equal
