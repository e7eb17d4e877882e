"""The shadow GPU in every Python process that has this folder on its path: what a command's own
processes see. Where one ends with something found that could not be raised, its status is 3."""

import atexit
import os
import sys
from contextlib import ExitStack

WANTED = "SHADOW_GPU"
FOUND = 3


def begin() -> None:
    from shadow_cuda import shadow

    entered = ExitStack()
    gpu = entered.enter_context(shadow())
    atexit.register(entered.pop_all)  # stays as long as the process

    def judge() -> None:
        if gpu.journal.errors:
            print(*gpu.journal.errors, sep="\n", file=sys.stderr, flush=True)
            os._exit(FOUND)

    atexit.register(judge)
    # The profiler counts what hardware did; a GPU's rates are measured with 8192 x 8192, which a
    # CPU is long at.
    from vla_ros_lab.bench import passes
    from vla_ros_lab.roofline import devices

    drawn = devices._numbers
    passes.kernels = lambda call, device: 7
    devices._numbers = lambda torch_, *shape, **more: drawn(
        torch_, *(min(size, 64) for size in shape), **more
    )


if WANTED in os.environ:
    begin()
