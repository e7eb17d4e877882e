"""How often does the first command of the README solve its task? Runs it again and again.

    python benchmarks/demo.py benchmarks/demo/quiet --runs 200
    python benchmarks/demo.py benchmarks/demo/loaded --runs 100 --busy 2

Each run is `vla-ros demo --json`, in real time, processes and ROS graph of its own, and a line of
OUT/runs.jsonl; OUT/summary.json counts them. The same command goes on where it was stopped.
``--busy`` loops that do nothing but compute run beside it. Words after ``--`` go to the demo.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from vla_ros.data.episodes.rows import wilson

KEPT = (
    *("success", "graph_ok", "ended", "reason", "steps", "episode_s", "action_rate_hz"),
    *("observation_age_ms", "staleness_ms", "inference_ms", "missed_deadlines", "stale_published"),
    *("worker_restarts", "task", "initial_state", "decoding", "checkpoint", "mode", "machine"),
)


def main() -> int:
    """0 where every run ended with a line, whatever became of its task."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("out", type=Path)
    words.add_argument("--runs", type=int, default=200)
    words.add_argument("--busy", type=int, default=0)
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    given = words.parse_args(sys.argv[1:end])
    given.rest = sys.argv[end + 1 :]
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "runs.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    with busy(given.busy), path.open("a") as file:
        while len(lines) < given.runs:
            lines.append(once(given.rest))
            file.write(lines[-1] + "\n")
            file.flush()
            runs = [json.loads(line) for line in lines]
            solved = sum(run["success"] for run in runs)
            print(
                f"{len(runs)}/{given.runs}: solved {solved}, this one {ending_of(runs[-1])}",
                flush=True,
            )
    summary = summarized([json.loads(line) for line in lines], given)
    (given.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(json.dumps(summary))
    return int(any("broken" in json.loads(line) for line in lines))


def once(words: list[str]) -> str:
    """One demo; the line of JSON that is kept of it."""
    # the installed program: `python -m vla_ros` would take the checkout that it is run in
    command = [str(Path(sys.executable).with_name("vla-ros")), "demo", "--json", *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found = json.loads(ended.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        why = (ended.stderr.strip() or "no word").splitlines()[-1]
        return json.dumps({"success": False, "broken": f"exit status {ended.returncode}: {why}"})
    return json.dumps({name: found[name] for name in KEPT})


def ending_of(run: dict[str, Any]) -> str:
    if "broken" in run:
        return str(run["broken"])
    age = run["observation_age_ms"]["p50"]
    return f"{run['ended']} after {run['steps']} steps, age {age:.0f} ms"


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes beside it that compute all the time."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def summarized(runs: list[dict[str, Any]], given: argparse.Namespace) -> dict[str, Any]:
    """What is tracked of a study."""
    whole = [run for run in runs if "broken" not in run]
    solved = [run for run in whole if run["success"]]
    low, high = wilson(len(solved), len(runs))

    def spread(values: list[float]) -> dict[str, float]:
        shares = {"p50": 50, "p95": 95, "max": 100} if values else {}
        return {
            name: round(float(np.percentile(values, share)), 1) for name, share in shares.items()
        }

    return {
        "command": f"python benchmarks/demo.py {given.out} --runs {given.runs} --busy {given.busy}",
        "demo": ["vla-ros", "demo", "--json", *given.rest],
        "runs": len(runs),
        "solved": len(solved),
        "wilson95": [round(low, 4), round(high, 4)],
        "broken": [run["broken"] for run in runs if "broken" in run],
        "not_solved": [ending_of(run) for run in whole if not run["success"]],
        "steps_of_solved": spread([run["steps"] for run in solved]),
        "age_p50_ms": spread([run["observation_age_ms"]["p50"] for run in whole]),
        "age_max_ms": spread([run["observation_age_ms"]["max"] for run in whole]),
        "stale_published": sum(run["stale_published"] for run in whole),
        "worker_restarts": sum(run["worker_restarts"] for run in whole),
        "machine": whole[-1]["machine"] if whole else "",
    }


if __name__ == "__main__":
    raise SystemExit(main())
