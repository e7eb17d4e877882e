"""What the expert would do in one state for every sentence there is.

One image with many sentences teaches a policy to read: from demonstrations alone the place of
the arm tells what will come next, and the sentence is learned last.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from vla_ros.core import Floats, Pose
from vla_ros.sim.expert import advise
from vla_ros.sim.goals import instruction_of
from vla_ros.sim.tasks import GOALS
from vla_ros.train.data.units import to_environment

#: the sentences of the G columns of a data set's labels
INSTRUCTIONS: tuple[str, ...] = tuple(instruction_of(goal) for goal in GOALS.values())


def labels(poses: Mapping[str, Pose], scale: Floats, side: float = 0.0) -> Floats:
    """Environment actions [G, 7], one for each of INSTRUCTIONS; ``side`` as of the expert."""
    actions = [advise(goal, poses, side) for goal in GOALS.values()]
    return to_environment(np.stack(actions), scale)
