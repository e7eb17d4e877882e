"""What benchmarks/precision.sh has played and measured, as three files that study.py reads.

``episodes.jsonl``: a line an episode, what a paired comparison needs. ``gate.json``: by precision
the gate's figures, its flips counted instead of listed. ``draws.json``: verdicts on other frames.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vla_ros.data.episodes.store import read_records

#: in the order of the series -> what it is held to
REFERENCES = {
    **dict.fromkeys(("float32", "bfloat16", "int8", "decoder4head8", "int4"), "float32"),
    **dict.fromkeys(("bits3", "bits2", "positions_half", "positions_one_low"), "float32"),
}


def collect(runs: Path, out: Path) -> None:
    """Write them into ``out``, of what there is in ``runs``."""
    lines = [json.dumps(line) for name in REFERENCES for line in episodes(runs, name)]
    (out / "episodes.jsonl").write_text("\n".join(lines) + "\n")
    gates = {}
    for name in REFERENCES:
        path = runs / "gate" / f"{name}.json"
        if path.is_file():
            gates[name] = gate(json.loads(path.read_text()))
    (out / "gate.json").write_text(json.dumps(gates, indent=1) + "\n")
    paths = sorted((runs / "draws").glob("*.json"))
    draws = [json.dumps(draw(path.stem, json.loads(path.read_text()))) for path in paths]
    (out / "draws.json").write_text("[\n" + ",\n".join(draws) + "\n]\n")


def episodes(runs: Path, name: str) -> Iterator[dict[str, Any]]:
    """Of one precision, in the order in which they are planned."""
    if not (runs / name / "episodes.jsonl").is_file():
        return
    found = read_records(runs / name)
    for one in sorted(found, key=lambda r: (r.job.task, r.job.seed, r.job.initial_state)):
        yield {
            "precision": name,
            "task": one.job.task,
            "seed": one.job.seed,
            "initial_state": one.job.initial_state,
            "success": one.success,
            "steps": one.steps,
            "reason": one.reason,
            "actions": one.action_digest[:16],
        }


def gate(found: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of one line of `vla-ros verify --json`."""
    flips = found["flips"]
    tokens = [flip for flip in flips if flip["gap"] is not None]
    return {
        **{key: found[key] for key in ("passed", "reasons", "thresholds", "frames", "agreement")},
        "stages": {s["name"]: [s["worst"], s["mean"]] for s in found["stages"]},
        "checked": found["checked"],
        "flipped": {n: sum(flip["name"] == n for flip in flips) for n in found["checked"]},
        "margin": max((flip["margin"] for flip in tokens), default=0.0),
        "gap": max((flip["gap"] for flip in tokens), default=0.0),
        "indices": sum(flip["exact"] for flip in flips),
        "displacement": found["displacement"],
        "apart": found["apart"],
    }


def draw(name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """Of a verdict what the limits are about. ``clear``: tokens that flipped in no close call."""
    margin = found["thresholds"]["margin"]
    tokens = [flip for flip in found["flips"] if flip["name"].startswith("tokens (")]
    return {
        "draw": name,
        "passed": found["passed"],
        "error": max(stage["worst"] for stage in found["stages"]),
        "margin": max((flip["margin"] for flip in tokens), default=0.0),
        "clear": sum(flip["margin"] > margin for flip in tokens),
        "tokens": found["checked"]["tokens (argmax)"],
    }
