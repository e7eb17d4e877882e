"""All that this machine can measure, stage by stage, in a few minutes; called by run.sh.

Every stage is a process of its own (one engine each) with a time limit. A stage that is done is
skipped the next time, one that failed or had no time left is tried again. At the end, whatever
happened, the report is written of what there is: table.md, report.json and plot.png.
Standard library only; the plot wants matplotlib.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from summary import DONE, plot, report, status

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 600.0  # of one visit
LEAST = 10.0  # a stage is not begun with less


@dataclass(frozen=True)
class Stage:
    """A command that writes into the folder of its name; ``seconds`` at most."""

    name: str
    command: tuple[str, ...]
    seconds: float


def bench(name: str, seconds: float, *words: str) -> Stage:
    """A run of `vla-ros bench`."""
    return Stage(name, ("-m", "vla_ros", "bench", *words), seconds)


def tests(seconds: float, *words: str) -> Stage:
    """test/gpu; what a stage prints is kept in its log."""
    return Stage("tests", ("-m", "pytest", "-q", "-ra", "gpu", *words), seconds)


def on_gpu() -> list[Stage]:
    """In the order of worth: what a short visit must bring home comes first."""
    seven, few = ("--preset", "openvla-7b"), ("--timed", "30")
    main = ("--rows", "generate,autoregressive,actionflow,speculative_hit")
    return [
        tests(120, "-m", "gpu"),
        bench("passes", 90, *seven, "--passes", "--timed", "50"),
        bench("openvla-7b", 240, *seven, "--timed", "40"),
        bench("passes-eager", 60, *seven, "--passes", "--timed", "20", "--no-cuda-graphs"),
        bench("passes-torch", 60, *seven, "--passes", *few, "--attention", "torch"),
        bench("openvla-7b-torch", 90, *seven, *few, *main, "--attention", "torch"),
        bench("openvla-7b-eager", 90, *seven, *few, *main, "--no-cuda-graphs"),
        bench("passes-minivla", 60, "--checkpoint", "random:minivla", "--device", "cuda",
              "--passes", "--timed", "50"),
        *(
            bench(name, 60, "--checkpoint", f"random:{name}", "--device", "cuda")
            for name in ("smolvla", "pi0", "pi05")
        ),
        bench("openvla-7b-32-tokens", 120, *seven, *main, "--tokens", "32", "--timed", "64",
              "--warm-up", "32"),
        bench("openvla-7b-compile", 600, *seven, *few, "--compile-ablation"),
    ]  # fmt: skip


def on_cpu() -> list[Stage]:
    """The same questions of a small model."""
    return [
        tests(120, "-m", "not gpu"),
        bench("passes", 60, "--preset", "cpu", "--passes", "--timed", "30"),
        bench("cpu-bf16", 240, "--preset", "cpu", "--timed", "30"),
        bench("cpu-smolvla", 120, "--checkpoint", "random:smolvla"),
    ]


def smoke() -> list[Stage]:
    """That all of this works, on the smallest model: no figure of it is worth anything."""
    small = ("--checkpoint", "random:small", "--dtype", "float32", "--timed", "2", "--warm-up", "1")
    rows = ("--rows", "generate,autoregressive,actionflow")
    return [
        tests(120, "-m", "not gpu", "-k", "rope_and_kv_write"),
        bench("passes", 120, *small, "--passes"),
        bench("small", 120, *small, *rows),
        bench("no-such-row", 120, *small, "--rows", "magic"),
    ]


def main() -> int:
    """Run what is not done. Status 1 where a stage failed, so that it is looked at."""
    parser = argparse.ArgumentParser(prog="benchmarks/run.sh", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="a try of everything, on a CPU")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of this visit (600)")
    parser.add_argument("--output", type=Path, help="folder (benchmarks/<the machine's name>)")
    parser.add_argument("--only", default="", metavar="STAGE,...", help="these stages")
    parser.add_argument("--again", action="store_true", help="stages that are done too")
    args = parser.parse_args()
    gpu = "" if args.smoke else gpu_name()
    stages = smoke() if args.smoke else on_gpu() if gpu else on_cpu()
    known = [stage.name for stage in stages]
    if unknown := sorted(set(filter(None, args.only.split(","))) - set(known)):
        parser.error(f"no stage {', '.join(unknown)}: there are {', '.join(known)}")
    chosen = [s for s in stages if not args.only or s.name in args.only.split(",")]
    name = gpu.lower().replace(" ", "-") or ("smoke" if args.smoke else "cpu")
    out: Path = (args.output or ROOT / "benchmarks" / name).resolve()
    out.mkdir(parents=True, exist_ok=True)
    try:
        failed = run_all(chosen, out, args.seconds, args.again)
    except KeyboardInterrupt:  # what there is by now is worth a report too
        failed = 1
    report(out, known)
    print(f"written: {out}/table.md, report.json" + (", plot.png" * plot(out)))
    return 1 if failed else 0


def run_all(stages: list[Stage], out: Path, seconds: float, again: bool) -> int:
    """Those that are not done, while there is time; how many failed."""
    end, failed = time.monotonic() + seconds, 0
    for stage in stages:
        if not again and done(out / stage.name):
            say(stage.name, "is done: skipped (--again does it again)")
            continue
        left = end - time.monotonic()
        if left < LEAST:
            say(stage.name, "no time left: run this again to go on")
            continue
        failed += not run(stage, out / stage.name, min(stage.seconds, left))
    return failed


def gpu_name() -> str:
    """What torch calls the GPU; "" where it finds none."""
    code = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    if found.returncode:
        sys.exit(f"{sys.executable} has no torch: give PYTHON=..., or leave it to run.sh")
    return found.stdout.strip()


def say(stage: str, what: str) -> None:
    print(f"== {stage}: {what}", flush=True)


def done(folder: Path) -> bool:
    return status(folder).get("status") == 0


def run(stage: Stage, folder: Path, seconds: float) -> bool:
    """Run it in a session of its own, which ends with it. Whether it went well."""
    folder.mkdir(exist_ok=True)
    (folder / DONE).unlink(missing_ok=True)
    command = [sys.executable, *stage.command]
    if stage.command[1] != "pytest":
        command += ["--output", str(folder)]
    say(stage.name, f"at most {seconds:.0f} s")
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    began, code = time.monotonic(), None
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen(
            command, cwd=ROOT / "test" if stage.name == "tests" else ROOT, env=environment,
            stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    spent = time.monotonic() - began
    last = last_line(folder / "log.txt")
    found = {"status": code, "seconds": round(spent, 1), "last": last, "command": command[1:]}
    (folder / DONE).write_text(json.dumps(found, indent=1) + "\n")
    how = "done" if code == 0 else "out of time" if code is None else f"status {code}: {last}"
    say(stage.name, f"{how}, {spent:.0f} s")
    return code == 0


def last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("{")] or [""]
    return lines[-1].strip()[:200]


if __name__ == "__main__":
    sys.exit(main())
