"""Run the commands that the documentation shows, as far as they run on a CPU without a robot.

    make test-docs                 # or: cd test && python -m docs_run demo roofline

Each chain of plan.py has a folder of its own, where its commands run in the order of their page,
made small where they would take hours. At the end a line a command; exit status 1 where one failed.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if (ROOT / "vla_ros" / "msg").is_dir():
    sys.path.insert(0, str(ROOT))  # a checkout with messages; else the installed package

from docs_run.plan import CHAINS, Step
from support.domain import leased_domain
from support.nodes import ros_environment

LAST = 30  # lines of a failed command's output that are shown


def run(step: Step, folder: Path, env: dict[str, str]) -> tuple[bool, str]:
    """Whether the command did its work, and its output. One that is ended by Ctrl-C (the status
    is then 0 or 130) has done so when it was still running."""
    process = subprocess.Popen(
        ["bash", "-c", f"exec {step.line}"], cwd=folder, env=env, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=step.seconds or step.limit_s)
        good = process.returncode == 0 or bool(step.shows and step.shows in output)
        return good and not step.seconds, output
    except subprocess.TimeoutExpired:
        output = end(process)
        return bool(step.seconds) and process.returncode in (0, 130), output
    finally:
        end(process)


def end(process: subprocess.Popen[str]) -> str:
    """Ctrl-C, and SIGKILL half a minute later; returns what was printed."""
    for number in (signal.SIGINT, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
        try:
            return process.communicate(timeout=30)[0] or ""
        except subprocess.TimeoutExpired:
            continue
        except ValueError:  # it has been read to its end
            return ""
    return ""


def programs(folder: Path) -> Path:
    """A folder with `vla-ros`: this checkout's, with this Python."""
    folder.mkdir()
    program = folder / "vla-ros"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m vla_ros "$@"\n')
    program.chmod(0o755)
    return folder


def chain(name: str, steps: tuple[Step, ...], env: dict[str, str]) -> list[tuple[bool, Step]]:
    """Run a chain in a folder of its own; each command is told before and after."""
    results: list[tuple[bool, Step]] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"docs-{name}-")))
        bin_folder = programs(folder / ".bin")
        (folder / ".venv").mkdir()
        (folder / ".venv/bin").symlink_to(bin_folder)
        env = {**env, "PATH": f"{bin_folder}:{os.environ['PATH']}"}
        beside: subprocess.Popen[str] | None = None
        for step in steps:
            print(f"==> {name}: {step.line}", flush=True)
            if step.beside:
                beside = subprocess.Popen(
                    shlex.split(step.line), cwd=folder, env=env, stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True,
                    start_new_session=True,
                )  # fmt: skip
                stack.callback(end, beside)
                time.sleep(15)  # its policy is loaded by then
                continue
            begun = time.monotonic()
            good, output = run(step, folder, env)
            print(f"    {'ok' if good else 'FAILED'}, {time.monotonic() - begun:.0f} s", flush=True)
            if not good:
                print("\n".join(line[:200] for line in output.splitlines()[-LAST:]), flush=True)
            results.append((good, step))
            if beside is not None:
                end(beside)
                beside = None
    return results


def main() -> int:
    parser = argparse.ArgumentParser(prog="make test-docs", description=__doc__.splitlines()[0])
    parser.add_argument("chains", nargs="*", metavar="CHAIN", help=", ".join(CHAINS))
    chosen = parser.parse_args().chains or list(CHAINS)
    if unknown := [name for name in chosen if name not in CHAINS]:
        parser.error(f"no chain {unknown[0]}; there are {', '.join(CHAINS)}")
    results: list[tuple[bool, Step]] = []
    with leased_domain() as domain:
        env = ros_environment(domain)
        if str(ROOT) in sys.path:
            env["PYTHONPATH"] = f"{ROOT}:{env['PYTHONPATH']}"
        for name in chosen:
            results += chain(name, CHAINS[name], env)
    documented = [(good, step) for good, step in results if step.page]
    print(f"\n{len(documented)} documented commands were run:")
    for good, step in documented:
        print(f"  {'ok    ' if good else 'FAILED'} {step.page}: {step.command}")
    return 0 if all(good for good, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())
