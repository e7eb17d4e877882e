"""A parent that is to be killed: its worker spins in C code that never gives Python's lock back."""

from __future__ import annotations

import collections
import itertools
import subprocess
import sys
import time

from unit.runtime.worker.bench import Bench
from unit.runtime.worker.faulty_policies import Obedient
from vla_ros.policies import Policy, PolicySpec
from vla_ros.runtime.worker.wire import WorkerLimits


class Spinning(Obedient):
    """Has a process of its own, as compilers and data loaders do; its first step never ends."""

    def __init__(self, note: str) -> None:
        super().__init__()
        helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        with open(note, "w", encoding="utf-8") as file:
            file.write(str(helper.pid))

    def step(self, *_: object) -> None:  # type: ignore[override]
        collections.deque(itertools.repeat(0), maxlen=0)  # in C, with the lock, for ever


def load_spinning(spec: PolicySpec) -> Policy:
    return Spinning(spec.replay_file)


if __name__ == "__main__":
    from unit.runtime.worker import orphan  # a worker cannot import from here by this module's name

    bench = Bench(
        PolicySpec("replay", replay_file=sys.argv[1]),
        WorkerLimits(hang_timeout_s=600.0),
        orphan.load_spinning,
    )
    ready = bench.executor.start(20)
    bench.ask()
    time.sleep(0.5)
    print(ready.pid, flush=True)
    time.sleep(600)
