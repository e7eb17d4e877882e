"""What may happen to a graph, drawn from a seed: the same seed gives the same troubles in the same
order, whatever the graph makes of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something done to the graph for ``length_s``; ``wait_s``: calm before it."""

    kind: str
    length_s: float
    wait_s: float
    detail: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        words = [f"{key} {value}" for key, value in self.detail.items()]
        length = [f"{self.length_s:.1f} s"] if self.length_s else []
        return f"{self.kind} ({', '.join(words + length)})" if words or length else self.kind


#: kind -> (weight, shortest, longest in s). Three worker losses in ten minutes are a FAULT by
#: design, so those that take a worker are rare.
KINDS: dict[str, tuple[float, float, float]] = {
    "camera drops": (4.0, 0.2, 3.0),
    "camera jitter": (4.0, 1.0, 5.0),
    "camera repeats": (1.0, 0.3, 2.0),
    "camera reversed": (1.0, 0.3, 2.0),
    "camera flood": (2.0, 0.5, 3.0),
    "camera garbage": (2.0, 0.3, 2.0),
    "clock step": (2.0, 0.5, 3.0),
    "worker killed": (0.7, 0.0, 0.0),
    "worker frozen": (0.7, 0.0, 0.0),
    "instruction flips": (3.0, 0.5, 3.0),
    "instruction empty": (1.0, 0.2, 2.0),
    "instruction overlong": (1.0, 0.0, 0.0),
    "parameters": (3.0, 0.5, 2.0),
    "bad parameters": (2.0, 0.0, 0.0),
    "deactivated": (2.0, 0.0, 2.0),
    "cleaned up": (0.7, 0.0, 1.0),
    "stopped": (2.0, 0.2, 3.0),
    "recover": (1.0, 0.0, 0.0),
    "reset": (2.0, 0.0, 0.0),
    "episode reset": (1.0, 0.0, 0.0),
}

#: those after which another worker serves
END_A_WORKER = ("worker killed", "worker frozen", "cleaned up")

#: parameters that may be set while the node acts, and what to; the shipped value comes back after
PARAMETERS: tuple[tuple[str, Any], ...] = (
    ("jump_limit", 0.5),
    ("jerk_limit", 1.0),
    ("bounds_high", [0.02, 0.02, 0.02, 0.2, 0.2, 0.2]),
    ("max_age_s", 0.8),
    ("stale_action", "silence"),
    ("gripper_dwell_s", 0.4),
    ("fresh_needed", 6),
    ("latency_window_s", 2.0),
)
#: what must be refused
BAD_PARAMETERS: tuple[tuple[str, Any], ...] = (
    ("max_age_s", -1.0),
    ("max_age_s", float("nan")),
    ("bounds_high", [0.02]),
    ("bounds_low", [9.0, 9.0, 9.0, 9.0, 9.0, 9.0]),
    ("stale_action", "dance"),
    ("jump_limit", 1e30),
    ("checkpoint", "/dev/null"),
    ("device", "cuda:99"),
)


def draw(seed: int, calm_s: tuple[float, float] = (3.0, 10.0)) -> Iterator[Trouble]:
    """Troubles without end."""
    rng = random.Random(seed)
    kinds, weights = list(KINDS), [weight for weight, *_ in KINDS.values()]
    while True:
        kind = rng.choices(kinds, weights)[0]
        _, low, high = KINDS[kind]
        yield Trouble(
            kind,
            round(rng.uniform(low, high), 2),
            round(rng.uniform(*calm_s), 2),
            _detail(kind, rng),
        )


def _detail(kind: str, rng: random.Random) -> dict[str, Any]:
    if kind == "camera drops":
        return {"share": rng.choice([0.3, 0.7, 1.0])}
    if kind == "camera jitter":
        return {"largest_s": rng.choice([0.05, 0.2, 0.6])}
    if kind == "camera flood":
        return {"rate_hz": rng.choice([100, 300])}
    if kind == "clock step":
        return {"by_s": rng.choice([-10.0, -0.3, -0.05, 0.05, 0.3, 10.0])}
    if kind == "parameters":
        name, value = rng.choice(PARAMETERS)
        return {"name": name, "value": value}
    if kind == "bad parameters":
        name, value = rng.choice(BAD_PARAMETERS)
        return {"name": name, "value": value}
    return {}
