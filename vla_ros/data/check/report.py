"""The report of a check: findings, diagnosis, sensitivity, and the plain figures below them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vla_ros.core.adaptation import Adaptation, adaptation_of
from vla_ros.core.types import Floats, PolicyInfo
from vla_ros.data.check.asking import Asker
from vla_ros.data.check.diagnosis import FITS, Diagnosis
from vla_ros.data.check.recording import Recording
from vla_ros.data.check.sensitivity import Sensitivity
from vla_ros.data.check.static import WRONG, Finding

_SHOWN = 6  # repairs in the table
_WORST = 3


@dataclass(frozen=True, slots=True)
class Figures:
    """Predicted and recorded actions [F, K, D] of all frames as they are. ``rmse`` [K, D]."""

    predicted: Floats
    recorded: Floats

    @property
    def rmse(self) -> Floats:
        """Root of the mean squared error of each step and number, of what was recorded."""
        away = (self.predicted - self.recorded) ** 2
        there = np.isfinite(away)
        out: Floats = np.sqrt(np.where(there, away, 0.0).sum(0) / np.maximum(there.sum(0), 1))
        return out


def figures(asker: Asker, diagnosis: Diagnosis, most: int = 8) -> Figures:
    """Figures of the frames as they are; ``most`` steps of the chunk."""
    rows = asker.recording.chosen
    predicted = asker.ask((), rows)[:, :most]
    count = predicted.shape[1]
    labels = np.stack([asker.recording.labels(row, 0, count) for row in rows])
    return Figures(predicted, labels)


@dataclass(frozen=True, slots=True)
class CheckReport:
    """All of a check. ``robot``: what its parameters have set already. ``status``: 0 fits, 1
    something is wrong, 2 cannot tell."""

    checkpoint: str
    recording: Recording
    info: PolicyInfo
    findings: tuple[Finding, ...]
    diagnosis: Diagnosis
    sensitivities: tuple[Sensitivity, ...]
    figures: Figures
    robot: Adaptation = Adaptation()

    @property
    def status(self) -> int:
        """The exit status."""
        if self.diagnosis.named or any(one.level == WRONG for one in self.findings):
            return 1
        return self.diagnosis.status

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of the policy node that repair what was named."""
        return self.diagnosis.parameters_of(self.robot)

    def rows(self) -> list[tuple[str, str]]:
        """Repairs and what they leave, the best first."""
        tried = self.diagnosis
        best = [(one.name, f"{one.error:.3f}") for one in tried.rivals[:_SHOWN]]
        return [("as it is", f"{tried.before.error:.3f}"), *best]

    def lines(self) -> list[str]:
        """What was found, in lines; the last is the verdict."""
        found = [*self._sensitive(), *self._where()]
        tried = self.diagnosis
        if tried.untried:
            found.append(f"the budget was too short for {len(tried.untried)} of the list: the"
                         " verdict is without them; give --budget")  # fmt: skip
        return [*found, *self._verdict()]

    def _sensitive(self) -> list[str]:
        found = []
        for one in self.sensitivities:
            ignored = "   IGNORED: the answer does not depend on it" if one.ignored else ""
            found.append(f"{one.what} changes the answer by {one.change:.2f}{ignored}")
        return found

    def _where(self) -> list[str]:
        rows, errors = self.recording.chosen, self.diagnosis.before.errors
        worst = np.argsort(-errors)[:_WORST]
        places = [
            f"row {rows[i]} of episode {int(self.recording.episodes[rows[i]])} ({errors[i]:.2f})"
            for i in worst
        ]
        return [f"worst at {', '.join(places)}"]

    def _verdict(self) -> list[str]:
        tried = self.diagnosis
        if tried.named is None:
            if tried.status == 0:
                line = f"the policy does what the data do (error {tried.before.error:.2f})"
                wrong = any(one.level == WRONG for one in self.findings)
                return [f"{'BUT SEE ABOVE' if wrong else 'FITS'}: {line}"]
            best = tried.rivals[0] if tried.rivals else tried.before
            more = (
                f"  {best.name} leaves {best.error:.2f}: more frames may be sure of it, --frames"
                f" {4 * tried.frames}"
            )
            return [
                f"CANNOT TELL: the policy does not do what the data do (error"
                f" {tried.before.error:.2f}), and no repair on the list halves that: another robot,"
                " camera position or task than it was trained on?",
                *([more] if best.chain and best.error <= FITS else []),
            ]
        out = []
        for one in tried.named.chain:
            out.append(f"WRONG: {one.text}")
            out += [f"  {one.advice}"] if one.advice else []
        out += [f"  set {name}: {_yaml(value)}" for name, value in self.parameters.items()]
        if words := self._flags():
            out.append(f"  or, of vla-ros serve and eval: {words}")
        out.append(
            f"The error goes from {tried.before.error:.2f} to {tried.named.error:.2f}; the next"
            f" repair leaves {tried.margin:.1f} times that"
        )
        if tried.ties:
            out.append(f"  as good: {', '.join(tried.ties[:3])}")
        return out

    def _flags(self) -> str:
        """The repairs that flags can say; "": there are none."""
        roles = self.recording.roles
        found = adaptation_of(self.parameters, roles) if self.parameters else Adaptation()
        return " ".join(f"--adapt {word}" for word in found.words())

    def json(self) -> dict[str, Any]:
        """The report as plain values."""
        tried = self.diagnosis
        return {
            "checkpoint": self.checkpoint,
            "data": self.recording.name,
            "frames": tried.frames,
            "status": self.status,
            "error": round(tried.before.error, 4),
            "named": [one.key for one in tried.named.chain] if tried.named else [],
            "error_after": round(tried.named.error, 4) if tried.named else None,
            "margin": round(tried.margin, 2),
            "ties": list(tried.ties),
            "parameters": self.parameters,
            "findings": [{"level": one.level, "line": one.line} for one in self.findings],
            "ignores": [one.what for one in self.sensitivities if one.ignored],
            "sensitivity": {one.what: round(one.change, 3) for one in self.sensitivities},
            "rmse": dict(zip(self.recording.names, _rounded(self.figures.rmse[0]), strict=True)),
            "calls": tried.calls,
            "untried": len(tried.untried),
            "seconds": round(tried.seconds, 1),
        }


def _rounded(values: Floats) -> list[float]:
    return [round(float(x), 5) for x in values]


def _yaml(value: Any) -> str:
    """A value as a parameter file has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(_yaml(one) for one in value)}]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
