"""All that this machine can measure, stage by stage, in a few minutes; called by run.sh.

Every stage is a process of its own (one engine each) with a time limit, so that a crash loses that
stage alone, and a visit ends in the time it was given. A stage that is done is skipped the next
time; one that failed or had no time left is tried again, after those that were never tried. After
each stage, whatever happened, the report is written of what there is: table.md and report.json, at
the end plot.png.
Standard library only; the plot wants matplotlib.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from stages import Stage, on_cpu, on_gpu, smoke
from summary import DONE, plot, report, status

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 600.0  # of one visit
LAST = 8.0  # of them for the report
REFUSED = 2  # exit status of a command that was asked for what is not possible


def main() -> int:
    """Run what is not done. Status 1 where a stage failed, so that it is looked at."""
    begun = time.monotonic()
    parser = argparse.ArgumentParser(prog="benchmarks/run.sh", description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="a try of everything, on a CPU")
    parser.add_argument("--small", action="store_true", help="a GPU's stages, smallest models")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of this visit (600)")
    parser.add_argument("--output", type=Path, help="folder (benchmarks/<the machine's name>)")
    parser.add_argument("--only", default="", metavar="STAGE,...", help="these stages, or groups")
    parser.add_argument("--again", action="store_true", help="stages that are done too")
    parser.add_argument("--list", action="store_true", help="print what there is to do, and end")
    args = parser.parse_args()
    gpu = Gpu() if args.smoke else find_gpu()
    stages = smoke() if args.smoke else on_gpu(args.small) if gpu.name else on_cpu()
    known = {stage.name: stage.group for stage in stages}
    asked = set(filter(None, args.only.split(",")))
    if unknown := sorted(asked - known.keys() - set(known.values())):
        parser.error(f"no stage {', '.join(unknown)}: there are {', '.join(known)}")
    chosen = [s for s in stages if not asked or asked & {s.name, s.group}]
    if args.small and not gpu.name:
        parser.error("--small: torch finds no GPU here; --smoke tries a CPU's")
    name = gpu.name.lower().replace(" ", "-") or ("smoke" if args.smoke else "cpu")
    name += "-small" * args.small
    out: Path = (args.output or ROOT / "benchmarks" / name).resolve()
    if args.list:
        for stage in chosen:
            print(f"{stage.name:<32} {stage.seconds:>4.0f} s at most  {' '.join(stage.command)}")
        return 0
    out.mkdir(parents=True, exist_ok=True)
    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: end what runs, and report
        signal.signal(number, interrupted)
    try:
        failed = run_all(chosen, out, Visit(begun + args.seconds - LAST, gpu, args.again), known)
    except KeyboardInterrupt:  # what there is by now is worth a report too
        failed = 1
    report(out, known)
    print(f"written: {out}/table.md, report.json" + (", plot.png" * plot(out)))
    return 1 if failed else 0


def interrupted(number: int, frame: object) -> None:
    raise KeyboardInterrupt


@dataclass(frozen=True)
class Gpu:
    """What torch calls it, and the memory that is free; "" where there is none."""

    name: str = ""
    free_gb: float = 0.0


@dataclass(frozen=True)
class Visit:
    """Until when (of the steady clock), where, and whether what is done is done again."""

    end: float
    gpu: Gpu
    again: bool = False

    @property
    def left(self) -> float:
        return self.end - time.monotonic()


def run_all(stages: list[Stage], out: Path, visit: Visit, known: dict[str, str]) -> int:
    """Those that are not done, while there is time, first those that were never tried; how many
    failed. The report is written after each, so that a visit cut off has one too."""
    failed, waiting = 0, []
    for stage in sorted(stages, key=lambda stage: tried(stage, out / stage.name)):
        if not visit.again and done(stage, out / stage.name):
            announce(stage.name, "is done: skipped (--again does it again)")
        elif visit.gpu.name and stage.memory_gb > visit.gpu.free_gb:
            lacking = f"needs {stage.memory_gb:.0f} GB, the GPU has {visit.gpu.free_gb:.0f} free"
            leave(stage, out / stage.name, lacking)
        elif visit.left < needed(stage, out / stage.name):
            announce(stage.name, "no time left: run this again to go on")
            waiting.append(stage.name)
        else:
            failed += not run(stage, out / stage.name, min(stage.seconds, visit.left))
            report(out, known)
    if waiting:
        print(f"not done for want of time: {', '.join(waiting)}", flush=True)
    return failed


def tried(stage: Stage, folder: Path) -> bool:
    """Whether it was run to no good: others come first then."""
    return bool(status(folder)) and not done(stage, folder)


def needed(stage: Stage, folder: Path) -> float:
    """Seconds that it must have: more than those in which it did not come to its end."""
    found = status(folder)
    ran_out = found.get("status", 0) is None and not found.get("skipped")
    limit = found.get("limit", 0.0) if ran_out else 0.0
    return min(max(stage.least, limit + 1.0), stage.seconds)


def find_gpu() -> Gpu:
    """By torch, in a process of its own: a GPU that is looked at is held."""
    code = (
        "import torch\nif torch.cuda.is_available():\n"
        " print(torch.cuda.mem_get_info()[0] / 1e9, torch.cuda.get_device_name())"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    if found.returncode:
        sys.exit(f"{sys.executable} has no torch: give PYTHON=..., or leave it to run.sh")
    free, _, name = found.stdout.strip().partition(" ")
    return Gpu(name, float(free)) if name else Gpu()


def announce(stage: str, what: str) -> None:
    print(f"== {stage}: {what}", flush=True)


def done(stage: Stage, folder: Path) -> bool:
    """Ended well, or was refused where that may be; and by this command."""
    found = status(folder)
    good = (0, REFUSED) if stage.may_refuse else (0,)
    return found.get("status") in good and found.get("command") == list(stage.command)


def leave(stage: Stage, folder: Path, why: str) -> None:
    """Not run, and why."""
    announce(stage.name, f"skipped: {why}")
    folder.mkdir(exist_ok=True)
    found = {"status": None, "skipped": why, "command": list(stage.command)}
    (folder / DONE).write_text(json.dumps(found, indent=1) + "\n")


def run(stage: Stage, folder: Path, seconds: float) -> bool:
    """Run it in a session of its own, which ends with it. Whether it went well."""
    folder.mkdir(exist_ok=True)
    for file in folder.iterdir():  # figures of an earlier try are none of this one
        if file.is_file():
            file.unlink()
    command = [sys.executable, *stage.command]
    if stage.command[:2] == ("-m", "vla_ros"):
        command += ["--output", str(folder)]
    elif stage.command[0] == "-c":
        command.append(str(folder))
    announce(stage.name, f"at most {seconds:.0f} s")
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    began, code = time.monotonic(), None
    with (folder / "log.txt").open("w") as log:
        process = subprocess.Popen(
            command, cwd=ROOT / "test" if stage.name == "tests" else ROOT, env=environment,
            stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
            preexec_fn=die_with_parent,
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
    last, refused = last_line(folder / "log.txt"), stage.may_refuse and code == REFUSED
    found = {
        "status": code, "seconds": round(spent, 1), "limit": round(seconds, 1), "last": last,
        "command": list(stage.command), "refused": refused,
    }  # fmt: skip
    (folder / DONE).write_text(json.dumps(found, indent=1) + "\n")
    how = "done" if code == 0 else "out of time" if code is None else f"status {code}: {last}"
    announce(stage.name, f"{f'refused: {last}' if refused else how}, {spent:.0f} s")
    return code == 0 or refused


def die_with_parent() -> None:
    """In the stage's process: however this program ends, the GPU is left to others (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def last_line(path: Path) -> str:
    """Last line of a log, without a program's JSON, and of a crash without the stacks."""
    text = path.read_text(errors="replace").partition("Fatal Python error")[0]
    lines = [line for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("{")] or [""]
    return lines[-1].strip()[:200]


if __name__ == "__main__":
    sys.exit(main())
