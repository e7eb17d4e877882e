"""Calibrations of heterospec for tests: fitted on walks that rest, creep and jump by turns."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import numpy as np

from vla_ros.engine.decoding.draft_tree import Budget
from vla_ros_lab.heterospec import Episode, shown, to_json
from vla_ros_lab.roofline.calibration import FittedCalibration, fit

WINDOW = range(100, 356)
MOODS: tuple[tuple[int, ...], ...] = ((0,), (0, 0, 1, -1), (-9, -5, 0, 4, 8))


def moods(tokens: int, episodes: int = 6, frames: int = 90, seed: int = 0) -> list[Episode]:
    """Every 15 frames all tokens change their mood, so how sure a draft is comes and goes."""
    rng = np.random.default_rng(seed)
    found: list[Episode] = []
    for _ in range(episodes):
        steps = [
            rng.choice(MOODS[rng.integers(len(MOODS))], (15, tokens)) for _ in range(frames // 15)
        ]
        walk = 220 + np.concatenate(steps).cumsum(0)
        found.append(np.clip(walk, WINDOW.start, WINDOW.stop - 1).tolist())
    return found


@lru_cache(8)
def fitted(tokens: int, prompt: int = 24, alone: int = 64) -> FittedCalibration:
    """A fit whose first state has bins."""
    found = fit(shown(moods(tokens), WINDOW, anew=True), Budget(prompt, alone))
    assert len(found.calibration.states[0].rounds) > 3
    return found


def write_calibration(folder: Path, tokens: int = 7) -> tuple[str, ...]:
    """The option ``calibration`` with the file of a fit, for ``EngineOptions.extra``."""
    path = folder / f"heterospec-{tokens}.json"
    path.write_text(json.dumps(to_json(fitted(tokens).calibration)))
    return (f"calibration={path}",)
