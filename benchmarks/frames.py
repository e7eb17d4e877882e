"""Images of a task that the scripted expert solves, for `vla-ros bench --frames`.

python benchmarks/frames.py pick_red_cube frames.npz
"""

import sys

import numpy as np

from vla_ros.sim.expert import Expert
from vla_ros.sim.factory import EnvConfig
from vla_ros.sim.tasks import TASKS
from vla_ros_lab.train.units import scales, to_environment

name, path = sys.argv[1:]
world = EnvConfig("tabletop", 256, wrist=False)()
task = next(task for task in TASKS if task.name == name)
expert, seen, done, images = Expert(task.instruction), world.reset(task.name, 0, 0), False, []
while not done:
    images.append(seen.images["agentview"])
    step = world.step(to_environment(expert.act(seen.poses), scales(world.spec)))
    seen, done = step.observation, step.done
np.savez(path, images=np.stack(images))
