"""How often does the first command of the README solve its task? Runs it again and again.

    python benchmarks/demo.py benchmarks/demo/quiet --runs 200
    python benchmarks/demo.py benchmarks/demo/loaded --runs 100 --busy 2
    python benchmarks/demo.py benchmarks/demo/slow --runs 100 --slow 0.5

Each run is `vla-ros demo --json`, in real time, processes and ROS graph of its own, and a line of
OUT/runs.jsonl; OUT/summary.json counts them. The same command goes on where it was stopped.
``--busy`` loops that do nothing but compute run beside it. ``--slow``: the worker is stopped and
let go on by signals, so that it runs for this share of the time, as on a slower CPU. ``--keep``: a
trace of every run; those that failed are put into classes (:mod:`failures`). Words after ``--`` go
to the demo.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from failures import TraceListener, class_of

from vla_ros.data.episodes.rows import wilson
from vla_ros.ros.bringup.environment import isolate, leased_domain

KEPT = (
    *("success", "graph_ok", "ended", "reason", "steps", "episode_s", "action_rate_hz"),
    *("observation_age_ms", "staleness_ms", "inference_ms", "missed_deadlines", "stale_published"),
    *("worker_restarts", "task", "initial_state", "decoding", "checkpoint", "mode", "machine"),
    "dtype",
)


def main() -> int:
    """0 where every run ended with a line, whatever became of its task."""
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("out", type=Path)
    words.add_argument("--runs", type=int, default=200)
    words.add_argument("--busy", type=int, default=0)
    words.add_argument("--slow", type=float, default=1.0, metavar="SHARE")
    words.add_argument("--keep", type=Path, metavar="DIR")
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    given = words.parse_args(sys.argv[1:end])
    given.rest = sys.argv[end + 1 :]
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "runs.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    with busy(given.busy), path.open("a") as file:
        while len(lines) < given.runs:
            lines.append(once(given, len(lines)))
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


def once(given: argparse.Namespace, number: int) -> str:
    """One demo; the line of JSON that is kept of it."""
    # the installed program: `python -m vla_ros` would take the checkout that it is run in
    command = [str(Path(sys.executable).with_name("vla-ros")), "demo", "--json", *given.rest]
    with contextlib.ExitStack() as stack:
        listener = None
        if given.keep:
            domain = stack.enter_context(leased_domain())
            isolate(domain)
            listener = stack.enter_context(TraceListener(domain))
            command += ["--domain-id", str(domain)]
        demo = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        with slowed(demo.pid, given.slow):
            out, errors = demo.communicate()
        trace = listener.trace() if listener else None
    try:
        found = json.loads(out.splitlines()[-1])
    except (IndexError, ValueError):
        why = (errors.strip() or "no word").splitlines()[-1]
        return json.dumps({"success": False, "broken": f"exit status {demo.returncode}: {why}"})
    kept = {name: found[name] for name in KEPT}
    if trace is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(given.keep / f"{number:04d}-{found['ended']}.npz", **trace)
        if not found["success"]:
            kept["failure"] = class_of(trace)
    return json.dumps(kept)


_TURN_S = 0.012  # of stopping and going on: short beside an inference


@contextlib.contextmanager
def slowed(demo: int, share: float) -> Iterator[None]:
    """The worker of the demo with that process number gets ``share`` of the time, once it is
    there."""
    over = threading.Event()

    def turn() -> None:
        while (worker := _worker(demo)) is None:
            if over.wait(0.2):
                return
        try:
            while not over.wait(_TURN_S * share):
                worker.send_signal(signal.SIGSTOP)
                time.sleep(_TURN_S * (1 - share))
                worker.send_signal(signal.SIGCONT)
        except psutil.NoSuchProcess:
            return  # the demo is over

    thread = threading.Thread(target=turn)
    if share < 1.0:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if share < 1.0:
            thread.join()


def _worker(demo: int) -> psutil.Process | None:
    """The process of the demo that computes: the policy node's own, that runs no module."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for node in psutil.Process(demo).children(recursive=True):
            if "vla_ros.ros.nodes.policy.node" in node.cmdline():
                return next(
                    (p for p in node.children() if "VLA_ROS_WORKER_PATH" in " ".join(p.cmdline())),
                    None,
                )
    return None


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
        "command": f"python benchmarks/demo.py {given.out} --runs {given.runs} --busy {given.busy}"
        f" --slow {given.slow:g}",
        "demo": ["vla-ros", "demo", "--json", *given.rest],
        "runs": len(runs),
        "solved": len(solved),
        "wilson95": [round(low, 4), round(high, 4)],
        "broken": [run["broken"] for run in runs if "broken" in run],
        "not_solved": [ending_of(run) for run in whole if not run["success"]],
        "failures": dict(Counter(run["failure"][0] for run in whole if "failure" in run)),
        "inference_p50_ms": spread([run["inference_ms"]["p50"] for run in whole]),
        "dtype": sorted({run["dtype"] for run in whole}),
        "steps_of_solved": spread([run["steps"] for run in solved]),
        "age_p50_ms": spread([run["observation_age_ms"]["p50"] for run in whole]),
        "age_max_ms": spread([run["observation_age_ms"]["max"] for run in whole]),
        "stale_published": sum(run["stale_published"] for run in whole),
        "worker_restarts": sum(run["worker_restarts"] for run in whole),
        "machine": whole[-1]["machine"] if whole else "",
    }


if __name__ == "__main__":
    raise SystemExit(main())
