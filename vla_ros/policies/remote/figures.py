"""Ranges of the figures that a server says about its policy and its answers, and of its texts.

Every one passes here before anything is made of it: a buffer, a shape, a time. What is not of its
kind, not finite or out of its range is Malformed, in one line with its name, value and range.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Protocol

from vla_ros.core.action_space import ActionKind
from vla_ros.core.plain import inference_of, info_of
from vla_ros.core.text import printable
from vla_ros.core.types import Inference, PolicyInfo
from vla_ros.policies.remote.codec import MAX_LENGTH, Malformed

MAX_CHUNK = 4096  # actions: what is known has 100
MAX_WIDTH = 1000  # numbers of an action
MAX_STATE = 10_000  # values of a robot's state: a hand's skin has some thousands
MAX_CAMERAS = 16
MAX_HZ = 10_000.0
MAX_MS = 600_000.0  # of a stage: the longest timeout_s
_MAX_NAME = 200  # characters
_MAX_TEXT = 4096
_MAX_STAGES = 32
_MAX_ASSUMPTIONS = 64


class Rule(Protocol):
    """Rule of one value."""

    def of(self, name: str, value: Any) -> Any:
        """The value, of its own type. Malformed: it is not by the rule."""
        ...


class _Brief(reprlib.Repr):
    """A value in few words, however large it is."""

    def repr_bytes(self, value: bytes, _: int) -> str:
        return repr(value[:40])


def brief(value: Any) -> str:
    """A value of a stranger's for an error: short, and in one line."""
    return printable(_Brief().repr(value), 60)


def _refuse(name: str, value: Any, taken: str) -> Malformed:
    return Malformed(f"{name} is {brief(value)}: {taken} is taken")


@dataclass(frozen=True, slots=True)
class Range:
    """Rule of a figure: whole and from ``least`` to ``most``, or ``real`` and finite there."""

    least: float
    most: float
    real: bool = False

    def of(self, name: str, value: Any) -> Any:
        kind: Any = Real if self.real else Integral
        number = isinstance(value, kind) and not isinstance(value, bool)
        if not number or not self.least <= value <= self.most:
            raise _refuse(name, value, str(self))
        return float(value) if self.real else int(value)

    def __str__(self) -> str:
        if self.least == self.most:
            return f"{self.most:.15g}"
        kind = "number" if self.real else "whole number"
        return f"a {kind} from {self.least:.15g} to {self.most:.15g}"


@dataclass(frozen=True, slots=True)
class Text:
    """Rule of a text of at most ``most`` characters."""

    most: int = _MAX_NAME

    def of(self, name: str, value: Any) -> Any:
        if not isinstance(value, str) or len(value) > self.most:
            raise _refuse(name, value, f"a text of at most {self.most} characters")
        return value


@dataclass(frozen=True, slots=True)
class Flag:
    """Rule of a truth value."""

    def of(self, name: str, value: Any) -> Any:
        if not isinstance(value, bool):
            raise _refuse(name, value, "true or false")
        return value


@dataclass(frozen=True, slots=True)
class Many:
    """Rule of a list of at most ``most``, each by ``rule``; a tuple."""

    rule: Rule
    most: int

    def of(self, name: str, value: Any) -> Any:
        if not isinstance(value, list | tuple) or len(value) > self.most:
            raise _refuse(name, value, f"a list of at most {self.most}")
        return tuple(self.rule.of(f"{name}[{i}]", one) for i, one in enumerate(value))


@dataclass(frozen=True, slots=True)
class Fields:
    """Rule of a map: a rule for each of its fields. ``nothing``: it may be none at all; ``given``:
    what a field is that is missing; ``strict``: it has no others."""

    rules: Mapping[str, Rule]
    nothing: bool = False
    strict: bool = False
    given: Mapping[str, Any] = field(default_factory=dict)

    def of(self, name: str, value: Any) -> Any:
        if value is None and self.nothing:
            return None
        if not isinstance(value, Mapping):
            raise _refuse(name, value, "a map")
        if self.strict and (strange := [key for key in value if key not in self.rules]):
            raise Malformed(f"{name} has {brief(strange[0])}, which is not known")
        values = {**self.given, **value}
        if missing := [key for key in self.rules if key not in values]:
            raise Malformed(f"{name} has no {missing[0]}")
        return {key: rule.of(f"{name}.{key}", values[key]) for key, rule in self.rules.items()}


@dataclass(frozen=True, slots=True)
class Named:
    """Rule of a map of at most ``most`` names, each value by ``rule``."""

    rule: Rule
    most: int

    def of(self, name: str, value: Any) -> Any:
        if not isinstance(value, Mapping) or len(value) > self.most:
            raise _refuse(name, value, f"a map of at most {self.most}")
        return {
            Text().of(f"a name in {name}", key): self.rule.of(f"{name}.{printable(key, 40)}", one)
            for key, one in value.items()
        }


_STAMP = Range(0, 2**63 - 1)
_COUNT = Range(0, 2**16 - 1)  # as ActionChunk.msg has it
_PERIODS = Range(0, 10_000)
_ASSUMPTION = Fields(
    {"what": Text(), "value": Text(_MAX_TEXT), "source": Text(), "default": Flag()}, strict=True
)
_SPACE = Fields(
    {
        "kind": Range(min(ActionKind), max(ActionKind)),
        "names": Many(Text(), MAX_WIDTH),
        "units": Many(Text(), MAX_WIDTH),
        "grippers": Many(Range(0, MAX_WIDTH - 1), MAX_WIDTH),
    }
)
#: of a policy, a rule for each field of PolicyInfo
INFO = Fields(
    {
        "name": Text(),
        "decoding": Text(),
        "checkpoint": Text(_MAX_TEXT),
        "checkpoint_sha256": Text(),
        "device": Text(),
        "dtype": Text(),
        "pipeline_depth": Range(1, 1),  # an answer is of the observation that was sent
        "chunk_length": Range(1, MAX_CHUNK),
        "max_tokens": Range(0, 2**31 - 1),
        "cameras": Range(1, 2),
        "conventions": Text(_MAX_TEXT),
        "contradiction": Text(_MAX_TEXT),
        "assumptions": Many(_ASSUMPTION, _MAX_ASSUMPTIONS),
        "state_dim": Range(0, MAX_STATE),
        "action_space": _SPACE,
        "camera_roles": Many(Text(), MAX_CAMERAS),
        "continues": Many(Text(), MAX_CAMERAS),
        "max_delay": _PERIODS,
        "state_middle": Many(Range(-1e9, 1e9, real=True), MAX_STATE),
        "corrects": _PERIODS,
        "action_rate_hz": Range(0.0, MAX_HZ, real=True),
        "moves_grippers": Flag(),
        "image_sizes": Many(Range(0, 2**14), 2 * MAX_CAMERAS + 4),
        "observations": Range(1, MAX_CHUNK),
    },
    given={
        "action_rate_hz": 0.0,
        "moves_grippers": True,
        "assumptions": (),
        "image_sizes": (),
        "observations": 1,
    },
)
_EXECUTING = Fields({"stamp_ns": _STAMP, "index": _PERIODS, "delay_steps": _PERIODS}, nothing=True)
#: of an answer, a rule for each field of Inference but its actions and times
INFERENCE = Fields(
    {
        "stamp_ns": _STAMP,
        "tokens": Many(Range(0, 2**31 - 1), MAX_LENGTH),
        "target_passes": _COUNT,
        "draft_passes": _COUNT,
        "drafted": Many(_COUNT, MAX_LENGTH),
        "accepted": Many(_COUNT, MAX_LENGTH),
        "continues": _EXECUTING,
        "conditioning_delay": _PERIODS,
        "captures": Range(0, 2**32 - 1),
    },
    strict=True,
)
STAGES = Named(Range(0.0, MAX_MS, real=True), _MAX_STAGES)


def info_from(body: Any) -> PolicyInfo:
    """A policy's description, of what a server says. Malformed."""
    values = INFO.of("info", body)
    if len(values["state_middle"]) not in (0, values["state_dim"]):
        raise Malformed(
            f"info.state_middle has {len(values['state_middle'])} values,"
            f" info.state_dim is {values['state_dim']}"
        )
    try:
        return info_of(values)
    except ValueError as error:  # of the action space
        raise Malformed(f"info: {printable(error)}") from error


def inference_from(own: Any) -> tuple[Inference, dict[str, float]]:
    """An inference without actions and times, and the ms of its stages, of an answer's additions.
    Malformed."""
    said = Fields({"inference": INFERENCE, "stages_ms": STAGES}).of("the answer", own)
    made = said["inference"]
    if len(made["drafted"]) != len(made["accepted"]):
        raise Malformed(f"{len(made['accepted'])} of {len(made['drafted'])} drafts are accepted")
    empty = {"actions": (), "timeline": {"start_ns": 0, "marks": ()}}
    inference = inference_of({**made, **empty})
    assert inference is not None
    return inference, said["stages_ms"]
