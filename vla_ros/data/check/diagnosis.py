"""Which hypothesis explains what a policy does with recorded frames: diagnosis by repair.

The policy is asked the frames under each hypothesis; the one whose repair restores the error is
named. A name needs three things: it leaves less than half of the error, it takes away more than
chance, and no simpler one does as well. Where nothing does so, nothing is named.

Of the error counts what a convention can explain: labels of an unsteady hand have a floor that no
repair takes away, and where the repaired policy does what the data do it is left out of the half.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vla_ros.core.adaptation import Adaptation, adaptation_of, changed
from vla_ros.core.types import Floats
from vla_ros.data.check.asking import STEPS, Asker, Judge, NoAnswer, mean
from vla_ros.data.check.hypotheses import NONE, Answer, Hypothesis, Inputs

HALF = 0.5  # of the error that a named repair leaves at most
LEAST = 0.03  # error that it takes away at least
SURE = 2.5  # standard errors that this is above 0
BEYOND = 0.01  # floor that it takes away at least, where it leaves half: no scale does so
RESTORED = 0.25  # of the error: a repair that leaves less ends the search
ENOUGH = 0.12  # where a repair leaves more, a second fault is looked for
FITS = 0.4  # largest error of a policy that does what the data do
_UNANSWERED = 2.0  # error of a repair that makes frames of which the policy has no answer
_TIE = (1.15, 0.01)  # two repairs are as good: factor and sum
_SEMIFINALISTS, _FINALISTS = 12, 4
_REFINED = ((0.5, 0.75, 1.3), (0.75, 0.87, 1.15), (0.93, 1.07))
_BASES = 2
_NOTHING = Adaptation()
#: Error in some frames, the hypothesis, and the change of the answers that goes with it.
Screened = tuple[float, Hypothesis, tuple[Hypothesis, ...]]


@dataclass(frozen=True, slots=True)
class Tried:
    """A chain of hypotheses that was tried on all frames: the error that it leaves, of each
    frame [F], and ``floor``, what of their mean no convention explains."""

    chain: tuple[Hypothesis, ...]
    errors: Floats
    floor: float = 0.0

    @property
    def error(self) -> float:
        """Mean error."""
        return mean(self.errors)

    @property
    def name(self) -> str:
        """Names of the hypotheses."""
        return " + ".join(one.key for one in self.chain) or NONE.key


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is wrong, by the frames.

    ``before``: as it is. ``named``: the repair, None: nothing or unknown. ``rivals``: others that
    were tried on all frames, the best first. ``ties``: as good as the named one. ``untried``:
    hypotheses that the budget had no time for. ``seconds`` and ``calls`` of the policy.
    """

    before: Tried
    named: Tried | None
    rivals: tuple[Tried, ...]
    ties: tuple[str, ...]
    untried: tuple[str, ...]
    seconds: float
    calls: int
    frames: int

    @property
    def status(self) -> int:
        """0 it fits, 1 something is wrong, 2 cannot tell."""
        if self.named is not None:
            return 1
        return 0 if self.before.error <= FITS else 2

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of the policy node that repair it, of a robot that has set none."""
        return self.parameters_of(_NOTHING)

    def parameters_of(self, robot: Adaptation) -> dict[str, Any]:
        """The same of a robot that has set some."""
        return combined(self.named.chain, robot) if self.named else {}

    @property
    def margin(self) -> float:
        """How many times the next repair's error is the named one's; 0: nothing is named."""
        if self.named is None:
            return 0.0
        keys = {*self.ties, self.named.name}
        others = [
            one.error for one in self.rivals if one.name not in keys and not _more(one, self.named)
        ]
        return min(others, default=self.before.error) / max(self.named.error, 1e-3)


def _more(tried: Tried, named: Tried) -> bool:
    """Whether it is the named one with more repairs, or itself: no other explanation."""
    return {one.key for one in named.chain} <= {one.key for one in tried.chain}


def _noise(tried: Tried) -> float:
    """What of a repair's error is the labels' own: its floor, where the repaired policy does what
    the data do. Of one that does not, the floor may as well be another fault."""
    return min(tried.floor, tried.error) if tried.error <= FITS else 0.0


def combined(chain: Sequence[Hypothesis], robot: Adaptation = _NOTHING) -> dict[str, Any]:
    """Parameters of the policy node that make several repairs, one after the other, of a robot
    whose own parameters say ``robot``. Where none say them all, as many of the first as some do."""
    made, whole = _NOTHING, robot
    others: dict[str, Any] = {}
    for one in chain:
        roles = [name.split(".")[1] for name in one.parameters if name.startswith("cameras.")]
        mine = adaptation_of(one.parameters, roles)
        try:
            made = made.then(mine)
            whole = made.around(robot)
        except ValueError:
            break
        others |= {n: v for n, v in one.parameters.items() if n not in mine.parameters()}
    return changed(robot, whole) | others


@dataclass
class Search:
    """A search over hypotheses within ``budget_s`` seconds. ``shown``: told what is tried, done and
    to do."""

    asker: Asker
    hypotheses: Sequence[Hypothesis]
    budget_s: float = 120.0
    shown: Callable[[str, int, int], None] = lambda *_: None
    steps: int = STEPS
    _tried: dict[str, Tried] = field(default_factory=dict)
    _untried: list[str] = field(default_factory=list)

    def run(self) -> Diagnosis:
        """The diagnosis. UserError: the policy has no answer to a frame."""
        self._begun = time.monotonic()
        self._judge = Judge(self.asker.recording, self.asker.space)
        self._rows = self.asker.recording.chosen
        third = max(min(8, len(self._rows)), len(self._rows) // 3)
        self._few = self._spread(self._rows, third)
        self._fewest = self._spread(self._few, min(5, len(self._few)))
        before = self._try(())
        if before.error < LEAST:  # nothing that is left could be named
            return self._diagnosis(before, None)
        self._level((), self.hypotheses)
        best = self._best(before)
        if best is None or self._left(best, before) > HALF or best.error - _noise(best) > ENOUGH:
            for base in self._bases(before):
                self._level(base.chain, self._others(base.chain))
            best = self._best(before)
            if before.error > FITS and (best is None or self._left(best, before) > HALF):
                self._images_twice()
                best = self._best(before)
        if best is not None and not self._named(best, before):
            best = None
        return self._diagnosis(before, best)

    def _diagnosis(self, before: Tried, best: Tried | None) -> Diagnosis:
        rivals = sorted((t for t in self._tried.values() if t.chain), key=lambda t: t.error)
        ties: tuple[str, ...] = ()
        if best is not None:
            others = [t for t in rivals if not _more(t, best)]
            ties = tuple(t.name for t in others if self._tied(t, best, before))
        return Diagnosis(
            before,
            best,
            tuple(rivals),
            ties,
            tuple(self._untried),
            time.monotonic() - self._begun,
            self.asker.calls,
            len(self._rows),
        )

    @staticmethod
    def _spread(rows: Sequence[int], count: int) -> tuple[int, ...]:
        at = np.linspace(0, len(rows) - 1, count).round().astype(int)
        return tuple(rows[i] for i in at)

    # One level: every hypothesis on top of a chain.

    def _level(self, base: tuple[Hypothesis, ...], hypotheses: Sequence[Hypothesis]) -> None:
        free = [one for one in hypotheses if one.inputs is None]
        for one in free:
            self._try((*base, one))
        asked = [one for one in hypotheses if one.inputs is not None]
        for about in dict.fromkeys(one.about for one in asked):
            if self._restored(base):
                break
            self._ask_all(base, [one for one in asked if one.about == about])

    def _images_twice(self) -> None:
        """Two faults of one camera, of which a policy that is lost with either shows neither alone:
        colors or exposure with every other step of the same camera."""
        images = [one for one in self.hypotheses if one.about == "image" and one.parameters]
        for first in images:
            (name, *_) = first.parameters
            if name.endswith((".colors", ".gamma")):
                role = name.rpartition(".")[0]
                others = [one for one in images if {*one.parameters} - {*first.parameters}
                          and all(n.startswith(f"{role}.") for n in one.parameters)]  # fmt: skip
                self._ask_all((first,), others)

    def _restored(self, base: tuple[Hypothesis, ...]) -> bool:
        """Whether one repair leaves so little that no other need be asked for."""
        before = self._tried[Tried(base, np.zeros(1)).name].error
        simple = [t.error for t in self._tried.values() if len(t.chain) <= len(base) + 1]
        return min(simple) < min(RESTORED * before, ENOUGH)

    def _ask_all(self, base: tuple[Hypothesis, ...], asked: Sequence[Hypothesis]) -> None:
        """Try those on all frames that help in some, alone or with a change of the answers. What
        restores the fewest is tried, too: of a few more frames the policy may be lost in one."""
        first = self._helpful(base, asked, self._fewest, 0.9)[:_SEMIFINALISTS]
        least = RESTORED * mean(self._errors(base, self._fewest))
        restoring = [item for item in first[:1] if item[0] < least]
        second = self._helpful(base, [one for _, one, _ in first], self._few, 0.85)
        finalists = {item[1].key: item for item in second[:_FINALISTS] + restoring}
        for error, one, more in finalists.values():
            refined = (*base, one if more else self._refined(base, one, error))
            self._try(refined)
            if more:
                self._try((*refined, *more))

    def _helpful(
        self, base: tuple[Hypothesis, ...], asked: Sequence[Hypothesis], rows: Sequence[int],
        share: float,
    ) -> list[Screened]:  # fmt: skip
        """The hypotheses that leave less than a share of a chain's error in some frames, or of what
        a change of the answers leaves of it. Lags of the actions are compared with its error."""
        screened = self._screened(base, asked, rows)
        few, change = self._with_free(base, rows)
        if change and asked and change[0].about == asked[0].about:
            few = mean(self._errors(base, rows))
        return [item for item in screened if item[0] < share * few]

    def _with_free(
        self, chain: tuple[Hypothesis, ...], rows: Sequence[int]
    ) -> tuple[float, tuple[Hypothesis, ...]]:
        """The least error of a chain, alone or with one change of the answers, which costs no
        question; and that change, where it halves the error."""
        alone = mean(self._errors(chain, rows))
        free = [one for one in self._others(chain) if one.inputs is None]
        error, best = min(
            ((mean(self._errors((*chain, one), rows)), one) for one in free),
            key=lambda item: item[0],
            default=(alone, NONE),
        )
        return (error, (best,)) if error < HALF * alone else (alone, ())

    def _screened(
        self, base: tuple[Hypothesis, ...], asked: Sequence[Hypothesis], rows: Sequence[int]
    ) -> list[Screened]:
        """The hypotheses by the error that they leave in some frames, the best first, each with the
        change of the answers that goes with it."""
        found: list[Screened] = []
        for number, one in enumerate(asked):
            if self._spent():
                self._untried += [other.key for other in asked[number:]]
                break
            self.shown(one.text, number, len(asked))
            error, more = self._with_free((*base, one), rows)
            found.append((error, one, more))
        return sorted(found, key=lambda item: item[0])

    def _refined(self, base: tuple[Hypothesis, ...], one: Hypothesis, error: float) -> Hypothesis:
        """The hypothesis with the best number near its own."""
        if one.refine is None:
            return one
        found, make = one.refine
        best = one
        for factors in _REFINED:
            others = [make(found * factor) for factor in factors]
            for other in () if self._spent() else others:
                now = mean(self._errors((*base, other), self._few))
                if now < error:
                    best, error = other, now
            assert best.refine is not None
            found = best.refine[0]
        return best

    def _others(self, chain: Sequence[Hypothesis]) -> list[Hypothesis]:
        """What may be tried on top of a chain: nothing and no lag twice. Without a state images
        that are late and actions that are early are one thing."""
        keys = {one.key for one in chain}
        late = {one.key.split()[0] for one in chain if one.about == "time"}
        if late & {"image", "actions"} and self.asker.recording.state is None:
            late |= {"image", "actions"}
        return [
            one
            for one in self.hypotheses
            if one.key not in keys and not (one.about == "time" and one.key.split()[0] in late)
        ]

    def _bases(self, before: Tried) -> list[Tried]:
        """The single repairs that help most, one of each kind."""
        singles = sorted(
            (t for t in self._tried.values() if len(t.chain) == 1), key=lambda t: t.error
        )
        found: list[Tried] = []
        for one in singles:
            if one.error < 0.9 * before.error and self._sure(one, before, 1.5):
                found.append(one)
        return found[:_BASES]

    def _try(self, chain: tuple[Hypothesis, ...]) -> Tried:
        made = Tried(chain, self._errors(chain, self._rows), self._floor(chain))
        known = self._tried.get(made.name)
        if known is None or made.error < known.error:
            self._tried[made.name] = made
        return made

    def _errors(self, chain: Sequence[Hypothesis], rows: Sequence[int]) -> Floats:
        try:
            return self._judge.errors(*self._answered(chain, rows), rows, self.steps)
        except NoAnswer:
            if not chain:
                raise
            return np.full(len(rows), _UNANSWERED)

    def _floor(self, chain: Sequence[Hypothesis]) -> float:
        try:
            return mean(
                self._judge.floors(*self._answered(chain, self._rows), self._rows, self.steps)
            )
        except NoAnswer:
            return _UNANSWERED

    def _answered(self, chain: Sequence[Hypothesis], rows: Sequence[int]) -> tuple[Floats, Answer]:
        """The policy's actions under a chain, and how they are compared. NoAnswer."""
        inputs: list[Inputs] = [one.inputs for one in chain if one.inputs is not None]
        predicted = self.asker.ask(inputs, rows)
        lag, rate = 0, 1.0
        for one in chain:
            if one.answer is None:
                continue
            if one.answer.change is not None:
                predicted = one.answer.change(predicted, self.asker.states(rows))
            lag, rate = lag + one.answer.lag, rate * one.answer.rate
        return predicted, Answer(None, lag, rate)

    def _spent(self) -> bool:
        return time.monotonic() - self._begun > self.budget_s

    # Names

    def _best(self, before: Tried) -> Tried | None:
        """The repair that restores the most; of those as good the simplest."""
        fit = [t for t in self._tried.values() if t.chain]
        if not fit:
            return None
        least = min(fit, key=lambda t: t.error)
        shorter = [t for t in fit if len(t.chain) < len(least.chain)]
        single = min(shorter, key=lambda t: t.error, default=None)
        # A second repair must halve what the first one leaves, or the first one is enough.
        enough = single is not None and self._left(single, before) <= HALF
        if single is not None and enough and not self._better(least, single):
            least = single
        order = {one.key: number for number, one in enumerate(self.hypotheses)}
        ties = [t for t in fit if len(t.chain) <= len(least.chain) and self._tied(t, least, before)]
        if least.error >= HALF * before.error:  # beside noise all are near: the order tells nothing
            return min((least, *ties), key=lambda t: (len(t.chain), t.error))
        return min(
            (least, *ties), key=lambda t: (len(t.chain), [order.get(h.key, 0) for h in t.chain])
        )

    def _named(self, best: Tried, before: Tried) -> bool:
        if before.error - best.error <= LEAST or self._left(best, before) >= HALF:
            return False
        if not self._sure(best, before):
            return False
        if best.error < HALF * before.error:
            return True
        # Most of what is left is the labels' own. Beside noise a smaller scale always helps, and so
        # does another rate, which averages it: neither is named there.
        averaged = any(one.answer is not None and one.answer.rate != 1.0 for one in best.chain)
        return before.floor - best.floor > BEYOND and not averaged and self._alone(best, before)

    def _alone(self, best: Tried, before: Tried) -> bool:
        """Whether none does as well but another lag of the same."""
        (first, *_) = best.chain
        ties = [
            t
            for t in self._tried.values()
            if len(t.chain) == len(best.chain) and t is not best and self._tied(t, best, before)
        ]
        of_lags = first.about == "time" and len(best.chain) == 1
        word = first.key.split()[0]
        return all(of_lags and t.name.split()[0] == word for t in ties)

    @staticmethod
    def _better(tried: Tried, single: Tried) -> bool:
        return Search._left(tried, single) < HALF and Search._sure(tried, single)

    @staticmethod
    def _left(tried: Tried, before: Tried) -> float:
        """What a repair leaves, of the error that a convention can explain."""
        noise = _noise(tried)
        return (tried.error - noise) / max(before.error - noise, 1e-9)

    @staticmethod
    def _tied(tried: Tried, best: Tried, before: Tried) -> bool:
        factor, more = _TIE
        noise = _noise(best) if best.error >= HALF * before.error else 0.0
        return tried.error - noise <= factor * (best.error - noise) + more

    @staticmethod
    def _sure(tried: Tried, before: Tried, sure: float = SURE) -> bool:
        """Whether it is better in so many frames that chance does not explain it."""
        gain = before.errors - tried.errors
        error = float(np.std(gain, ddof=1)) / np.sqrt(len(gain)) if len(gain) > 1 else np.inf
        return bool(mean(gain) > sure * error)
