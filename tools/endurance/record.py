"""What a soak has seen so far, as a file: a run that was cut off goes on from it."""

from __future__ import annotations

import dataclasses
import json
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from endurance.growth import MemorySample
from endurance.judge import Hold, Violation
from vla_ros.core.types import CommandKind, PolicyState

FILE = "soak.json"


@dataclass(frozen=True, slots=True)
class Done:
    """A trouble that was done: when (s since the soak began), and how long after its end the policy
    acted again; None: not within the patience."""

    kind: str
    what: str
    at_s: float
    length_s: float
    back_s: float | None


@dataclass
class Record:
    """Sums over all sittings. Times in s of running graph, ages in whole ms."""

    seed: int
    policy: str
    machine: str = ""
    sittings: int = 0
    ran_s: float = 0.0
    drawn: int = 0  # troubles, those that were left out among them
    calm_s: float = 0.0  # without a trouble, RUNNING: when a HOLD would be a false one
    troubles: list[Done] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    kinds: Counter[CommandKind] = field(default_factory=Counter)
    states: Counter[PolicyState] = field(default_factory=Counter)  # ns
    ages: Counter[int] = field(default_factory=Counter)
    gaps: int = 0
    motion: Counter[str] = field(default_factory=Counter)  # messages judged, by topic and kind
    samples: dict[str, list[MemorySample]] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Write it whole, or leave the one before."""
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / (FILE + ".part")
        raw = {one.name: _plain(getattr(self, one.name)) for one in dataclasses.fields(self)}
        part.write_text(json.dumps(raw, separators=(",", ":")))
        os.replace(part, folder / FILE)

    @classmethod
    def load(cls, folder: Path) -> Record | None:
        """The one in this folder, or None."""
        path = folder / FILE
        if not path.exists():
            return None
        raw: dict[str, Any] = json.loads(path.read_text())
        raw["troubles"] = [Done(**one) for one in raw["troubles"]]
        raw.setdefault("drawn", sum(1 for one in raw["troubles"] if one.kind != "start"))
        raw["violations"] = [Violation(**one) for one in raw["violations"]]
        raw["holds"] = [Hold(**{**one, "state": PolicyState(one["state"])}) for one in raw["holds"]]
        raw["kinds"] = Counter({CommandKind(int(k)): n for k, n in raw["kinds"].items()})
        raw["states"] = Counter({PolicyState(int(k)): n for k, n in raw["states"].items()})
        raw["ages"] = Counter({int(k): n for k, n in raw["ages"].items()})
        raw["motion"] = Counter(raw.get("motion", {}))
        raw["samples"] = {
            name: [MemorySample(**one) for one in series] for name, series in raw["samples"].items()
        }
        return cls(**raw)


def _plain(value: Any) -> Any:
    """Of what JSON knows; dataclasses.asdict() would count a Counter's items."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: _plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {
            key if isinstance(key, str) else int(key): _plain(one) for key, one in value.items()
        }
    return [_plain(one) for one in value] if isinstance(value, list) else value
