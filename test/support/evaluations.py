"""Made-up evaluations with plausible figures, for tests of what shows them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vla_ros.data.episodes.plan import group_of
from vla_ros.data.episodes.records import Job, Record, Spread, Variant

_BASE = {"reach": 0.98, "push": 0.9, "pick": 0.85, "stack": 0.6}
_ACCEPTANCE = (0.55, 0.52, 0.48, 0.9, 0.92, 0.8, 0.97)
_MS = {"autoregressive": 62.0, "actionflow": 34.0, "speculative": 41.0, "heterospec": 44.0}


def evaluation(
    variants: Sequence[Variant],
    tasks: Sequence[str],
    episodes: int,
    realtime: bool = False,
    seed: int = 0,
) -> list[Record]:
    """Records of all of them; the same arguments give the same."""
    found: list[Record] = []
    for variant in variants:
        for episode in range(episodes):
            for task in tasks:
                job = Job(variant.label, task, episode, seed, number=len(found))
                found.append(_record(variant, job, realtime))
    return found


def _record(variant: Variant, job: Job, realtime: bool) -> Record:
    episode = np.random.default_rng([job.initial_state, job.seed, *job.task.encode()])
    noise = np.random.default_rng([len(variant.label), *variant.label.encode(), job.number])
    drafts = variant.decoding in ("speculative", "heterospec")
    relaxed = variant.relaxed_distance if variant.acceptance == "relaxed" else 0
    accepted = 1 - (1 - np.array(_ACCEPTANCE)) * 0.8**relaxed
    inference = _MS.get(variant.decoding, 5.0) * (1 - 0.03 * relaxed)
    age = (inference if realtime else 0.0) + 50.0 * variant.delay_frames + variant.image_delay_ms
    age += 300.0 if variant.decoding == "actionflow" else 0.0
    age += 25.0 * max(0, variant.replan_interval - 1)
    chance = _BASE.get(group_of(job.task), 0.7) - 0.0016 * age - 0.012 * max(0, relaxed - 3)
    success = bool(episode.random() < chance)
    steps = int(episode.integers(50, 110)) if success else 200
    own = noise.random() if realtime else age  # the world of real time never repeats itself
    drafted = (steps,) * 7 if drafts else ()
    return Record(
        job=job,
        success=success,
        reason="success" if success else _reason(noise, chance),
        steps=steps,
        max_steps=200,
        wall_s=steps * max(0.05, inference / 1e3),
        rate_hz=min(20.0, 1e3 / inference) * noise.uniform(0.9, 1.0),
        age_ms=Spread.of(age + (noise.gamma(2.0, 4.0, steps) if realtime else np.zeros(steps))),
        inference_ms=Spread.of(inference * noise.gamma(60.0, 1 / 60.0, steps)),
        drafted=drafted,
        accepted=tuple(int(noise.binomial(steps, a)) for a in accepted) if drafts else (),
        passes=int(steps * (7 if not drafts else 1 + 4.5 * (1 - accepted.mean()))),
        frames=steps,
        served=steps,
        action_digest=f"{job.task}{job.initial_state}{relaxed}{own}",
    )


def _reason(noise: np.random.Generator, chance: float) -> str:
    draw = noise.random()
    if draw < 0.05:
        return f"policy FAULT: the worker gave no answer for {noise.uniform(1, 3):.2f} s"
    if draw < 0.12:
        return "step limit, policy HOLD: observation 0.61 s old, allowed 0.50 s"
    return "out of reach" if draw < 0.35 else "step limit"
