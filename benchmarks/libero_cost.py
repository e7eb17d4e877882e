"""What an episode of LIBERO costs here without a policy: renderers, image sizes, processes.

Every figure is of processes that do nothing else: a task is built, then episodes of STEPS control
steps with images are begun one after the other. CPU time is counted beside wall time: on a machine
that does other work only the first is what an episode needs, and episodes an hour follow from the
second. Needs LIBERO and its assets (`make libero`); exit status 2 without them.

    benchmarks/libero_cost.py                         as renderers are chosen here, 2 cameras
    benchmarks/libero_cost.py --renderers osmesa --sizes 128,256 --workers 1,2,3
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

TASK, SUITE = "libero_object/0", "libero_object"
STEPS = 120  # of an episode: what the scripted expert takes in libero_object
SOME = 20  # of them are measured after each reset
STILL = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0)


@dataclass(frozen=True)
class Cost:
    """Seconds of wall and of CPU: of a step with images, of one without, of a reset; GB held."""

    step: tuple[float, float]
    physics: tuple[float, float]
    reset: tuple[float, float]
    memory_gb: float

    @property
    def episode(self) -> tuple[float, float]:
        """All of an episode."""
        wall, cpu = (
            reset + STEPS * step for reset, step in zip(self.reset, self.step, strict=True)
        )
        return wall, cpu


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/libero_cost.py", description=__doc__)
    words = {"type": lambda text: text.split(",")}
    parser.add_argument("--renderers", default=[""], **words, help="egl, osmesa (as chosen here)")
    parser.add_argument("--sizes", default=["256"], **words, help="of the images, px (256)")
    parser.add_argument("--cameras", default=["2"], **words, help="1, or 2: the wrist's too (2)")
    parser.add_argument("--workers", default=["1", "2"], **words, help="processes at once (1,2)")
    parser.add_argument("--episodes", type=int, default=3, help="begun by each (3)")
    parser.add_argument("--one", nargs=2, type=int, metavar=("PX", "CAMERAS"), help="a process's")
    args = parser.parse_args()
    if args.one:
        return one(*args.one, args.episodes)
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}", flush=True)
    for renderer in args.renderers:
        for size in args.sizes:
            for cameras in args.cameras:
                for workers in args.workers:
                    found = together(renderer, size, cameras, int(workers), args.episodes)
                    if isinstance(found, str):
                        print(found, file=sys.stderr)
                        return 2
                    print_costs(renderer or "chosen", size, cameras, found)
    return 0


def together(
    renderer: str, size: str, cameras: str, workers: int, episodes: int
) -> list[Cost] | str:
    """So many processes, which begin to measure when all are ready; or why there are none."""
    command = [sys.executable, __file__, "--one", size, cameras, "--episodes", str(episodes)]
    given = {"MUJOCO_GL": renderer} if renderer else {}
    processes = [
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, env={**os.environ, **given},
        )
        for _ in range(workers)
    ]  # fmt: skip
    try:
        for process in processes:
            assert process.stdin and process.stdout and process.stderr
            if process.stdout.readline().strip() != "ready":
                lines = process.stderr.read().strip().splitlines() or ["a process ended"]
                return lines[-1]
        for process in processes:
            assert process.stdin
            process.stdin.write("go\n")
            process.stdin.flush()
        return [Cost(**json.loads(process.communicate()[0])) for process in processes]
    finally:
        for process in processes:
            process.kill()


def print_costs(renderer: str, size: str, cameras: str, found: list[Cost]) -> None:
    hourly = sum(3600 / one.episode[0] for one in found)
    of_cpu = sum(one.episode[1] for one in found) / len(found)
    step, physics, reset = (
        tuple(1e3 * sum(getattr(one, name)[k] for one in found) / len(found) for k in (0, 1))
        for name in ("step", "physics", "reset")
    )
    print(
        f"{renderer}, {size} px, {cameras} cameras, {len(found)} at once: step {step[0]:.0f} ms"
        f" ({step[1]:.0f} of CPU, {physics[1]:.0f} without images), reset {reset[0]:.0f} ms,"
        f" {max(one.memory_gb for one in found):.1f} GB each;"
        f" {of_cpu:.1f} CPU seconds an episode, {hourly:.0f} episodes an hour",
        flush=True,
    )


def one(size: int, cameras: int, episodes: int) -> int:
    """In a process of its own: ready, wait, measure, and one line of JSON."""
    from vla_ros.sim.env import SimError
    from vla_ros.sim.factory import EnvConfig

    try:
        env = EnvConfig("libero", size, cameras == 2, SUITE)()
        env.reset(TASK, 0)
    except SimError as error:
        print(error, file=sys.stderr)
        return 2
    print("ready", flush=True)
    sys.stdin.readline()
    spent = {"reset": Spent(), "step": Spent(), "physics": Spent()}
    for episode in range(1, episodes + 1):
        with spent["reset"]:
            env.reset(TASK, episode)
        for name, render in (("step", True), ("physics", False)):
            with spent[name]:
                for _ in range(SOME):
                    env.step(STILL, render)
    env.close()
    counts = {"reset": episodes, "step": SOME * episodes, "physics": SOME * episodes}
    costs = {name: tuple(own.mean(counts[name])) for name, own in spent.items()}
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(json.dumps({**costs, "memory_gb": memory}), flush=True)
    os._exit(0)  # OpenGL complains when the interpreter takes it down


class Spent:
    """Wall and CPU seconds of what is done with it."""

    def __init__(self) -> None:
        self._wall = self._cpu = 0.0

    def __enter__(self) -> None:
        self._wall -= time.perf_counter()
        self._cpu -= time.process_time()

    def __exit__(self, *_: object) -> None:
        self._wall += time.perf_counter()
        self._cpu += time.process_time()

    def mean(self, count: int) -> Iterator[float]:
        """Of each of ``count``."""
        yield self._wall / count
        yield self._cpu / count


if __name__ == "__main__":
    sys.exit(main())
