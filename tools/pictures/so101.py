"""The film of docs/how-to/so101.md: the scripted teacher puts a cube in a box, by both cameras.

cd tools && PYTHONPATH=.. ../.venv/bin/python -m pictures.so101 ../docs/images/so101.gif
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from vla_ros.core.types import Image
from vla_ros.ros.listeners.demo_log import write_gif
from vla_ros.sim.env import ACTION_RATE_HZ, AGENTVIEW, WRIST, SimObservation
from vla_ros.sim.gl import choose_renderer

TASK, SIZE = "cube_in_box", 200  # pixels a side of each camera
EVERY = 2  # steps from one image to the next
LAST_MS = 1000  # that the end is shown


def both(seen: SimObservation) -> Image:
    """The cameras side by side, uint8 [SIZE, 2 SIZE, 3]."""
    return np.hstack((seen.images[AGENTVIEW], seen.images[WRIST]))


def played() -> list[Image]:
    """Images of an episode, from its begin to its end."""
    choose_renderer()  # mujoco reads MUJOCO_GL when it is imported
    from vla_ros.sim.so101.environment import So101
    from vla_ros.sim.so101.expert import So101Expert

    environment = So101(SIZE)
    task = next(task for task in environment.spec.tasks if task.name == TASK)
    expert = So101Expert(task.instruction)
    seen = environment.reset(TASK, 0)
    images = [both(seen)]
    for number in range(1, task.max_steps + 1):
        step = environment.step(expert.act(seen.poses), render=True)
        seen = step.observation
        if number % EVERY == 0 or step.done:
            images.append(both(seen))
        if step.done:
            break
    environment.close()
    return images


def main() -> int:
    images = played()
    shown_ms = [round(1000 * EVERY / ACTION_RATE_HZ)] * (len(images) - 1)
    write_gif(Path(sys.argv[1]), images, [*shown_ms, LAST_MS])
    print(f"{len(images)} images written to {sys.argv[1]}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
