"""The variants that lists of options ask for: every combination, each with a name. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from vla_ros.core.errors import UserError, user_errors
from vla_ros.data.episodes.records import Variant
from vla_ros.engine.options import ACCEPTANCES, DECODINGS, DRAFTERS, REFERENCES
from vla_ros.runtime.control.queue import Execution

DRAFTING = ("speculative", "heterospec", "vanilla_speculative")
GUIDED, GUIDED_VJP = "guided", "guided_vjp"
MODEL_DRAFTED = "vanilla_speculative"  # by definition with a draft model
HETEROSPEC = "heterospec"  # by definition with a drafter that names alternatives
UNCERTAIN = ("temporal_tree", "head")


def _values(each: type, default: tuple[Any, ...], letter: str, text: str) -> Any:
    """A field of :class:`Choices` that lists values; its flag joins them by commas."""
    flag = {"each": each, "text": text, "metavar": f"{letter},.."}
    return field(default=default, metadata=flag)


@dataclass(frozen=True, slots=True)
class Choices:
    """Values of each option of a variant: all of them, or one for every variant.

    ``draft`` drafts where a model shall and no ``draft_checkpoint`` is named; "": none.
    """

    decoding: tuple[str, ...] = _values(str, (), "D", "vla: how tokens are decoded (auto)")
    drafter: tuple[str, ...] = _values(
        str, ("temporal",), "D", "temporal, temporal_linear, temporal_tree, head, model"
    )
    draft_checkpoint: str = ""
    acceptance: tuple[str, ...] = _values(str, ("exact",), "A", "exact, sampling")
    relaxed_distance: tuple[int, ...] = _values(int, (), "R", "and relaxed by r bins")
    replan_interval: tuple[int, ...] = _values(
        int, (0,), "S", "actions of a chunk that are executed; 0: all (0)"
    )
    execution: tuple[str, ...] = _values(
        str, ("async",), "E", "of chunks: sync, async, ensemble, rtc, rtc_trained, corrected"
    )
    rtc_mode: tuple[str, ...] = _values(str, (GUIDED,), "M", "of rtc: guided, guided_vjp")
    delay_frames: tuple[int, ...] = _values(
        int, (0,), "D", "lock-step: act on the observation of so many actions ago; chunks"
        " come so late (0)"
    )  # fmt: skip
    image_delay_ms: tuple[float, ...] = _values(
        float, (0.0,), "MS", "realtime: images come so much later, their stamp unchanged (0)"
    )
    draft: str = ""

    def variants(self, policy: str, *, adaptive: bool, references: bool) -> tuple[Variant, ...]:
        """Every combination. ``adaptive``: drafts stop where they do not pay; ``references``:
        reference decodings can be played. UserError."""
        decodings = self._decodings(references) if policy == "vla" else iter([(policy, {})])
        with user_errors(ValueError):
            return tuple(
                Variant(
                    label=label + _suffix(execution, mode, replan, frames, delay_ms),
                    adaptive_draft=adaptive,
                    replan_interval=replan,
                    delay_frames=frames,
                    image_delay_ms=delay_ms,
                    execution=execution,
                    rtc_mode=mode,
                    **options,
                )
                for label, options in decodings
                for execution, mode in self._executions()
                for replan in self.replan_interval
                for frames in self.delay_frames
                for delay_ms in self.image_delay_ms
            )

    def _executions(self) -> Iterator[tuple[str, str]]:
        """Every way to execute chunks; how they are guided is a matter of rtc alone."""
        for mode in self.rtc_mode:
            _known("rtc-mode", mode, (GUIDED, GUIDED_VJP))
        for execution in self.execution:
            for mode in self.rtc_mode if execution == Execution.RTC else [GUIDED]:
                yield execution, mode

    def _decodings(self, references: bool) -> Iterator[tuple[str, dict[str, Any]]]:
        """Label and fields of every way to decode."""
        for decoding in self.decoding or ("auto",):
            if decoding not in REFERENCES:
                _known("decoding", decoding, DECODINGS)
            elif not references:
                raise UserError(f"{decoding} is a reference: vla-ros bench, or eval --no-ros")
            if decoding not in DRAFTING:
                yield decoding, {"decoding": decoding}
                continue
            accepted = [(name, 0) for name in self.acceptance]
            accepted += [("relaxed", distance) for distance in self.relaxed_distance]
            for drafter in self._drafters(decoding):
                _known("drafter", drafter, DRAFTERS)
                for acceptance, distance in accepted:
                    _known("acceptance", acceptance, ACCEPTANCES)
                    yield self._drafting(decoding, drafter, acceptance, distance)

    def _drafters(self, decoding: str) -> tuple[str, ...]:
        """The chosen drafters that belong to a decoding; one of its own where none does."""
        if decoding == MODEL_DRAFTED:
            return ("model",)
        if decoding == HETEROSPEC:
            return tuple(one for one in self.drafter if one in UNCERTAIN) or ("temporal_tree",)
        return self.drafter

    def _drafting(
        self, decoding: str, drafter: str, acceptance: str, distance: int
    ) -> tuple[str, dict[str, Any]]:
        plain = {MODEL_DRAFTED: "model", HETEROSPEC: "temporal_tree"}.get(decoding, "temporal")
        parts = [decoding]
        parts += [drafter] if drafter != plain else []
        parts += [acceptance] if acceptance != "exact" else []
        parts += [f"r={distance}"] if distance else []
        return ",".join(parts), {
            "decoding": decoding,
            "drafter": drafter,
            "draft_checkpoint": self._draft_of(decoding, drafter),
            "acceptance": acceptance,
            "relaxed_distance": distance,
        }

    def _draft_of(self, decoding: str, drafter: str) -> str:
        """The draft_checkpoint of a drafter: a head's is named where no model drafts as well."""
        if drafter == "model":
            if not (self.draft_checkpoint or self.draft):
                raise UserError(f"--decoding {decoding} drafted by a model: --draft-checkpoint")
            return self.draft_checkpoint or self.draft
        return self.draft_checkpoint if drafter == "head" and "model" not in self.drafter else ""


def _suffix(execution: str, mode: str, replan: int, frames: int, delay_ms: float) -> str:
    executed = "" if execution == Execution.ASYNC else f",{execution}"
    executed += "" if mode == GUIDED else f",{mode}"
    replans = executed + (f",S={replan}" if replan else "")
    delayed = f",d={frames}" if frames else ""
    return replans + delayed + (f",delay={delay_ms:g}ms" if delay_ms else "")


def _known(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UserError(f"--{option} {value}: give {', '.join(known)}")
