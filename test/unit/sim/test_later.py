"""Images that are rendered when they are looked at."""

import numpy as np
import pytest

pytest.importorskip("mujoco")

from vla_ros.sim.env import AGENTVIEW, WRIST, SimError
from vla_ros.sim.factory import EnvConfig

STEP = [0.5, 0.0, -0.5, 0.0, 0.0, 0.0, 1.0]


@pytest.fixture
def worlds():
    pair = [EnvConfig("tabletop", 64, later=later)() for later in (False, True)]
    yield pair
    for world in pair:
        world.close()


def test_they_are_the_images_that_are_rendered_at_once(worlds):
    at_once, later = (world.reset("reach_red_cube", 1) for world in worlds)
    for _ in range(3):
        assert set(later.images) == set(at_once.images) == {AGENTVIEW, WRIST}
        for name, image in at_once.images.items():
            assert np.array_equal(later.images[name], image)
        at_once, later = (world.step(STEP).observation for world in worlds)


def test_whoever_looks_too_late_is_told(worlds):
    _, world = worlds
    first = world.reset("reach_red_cube", 1)
    kept = first.images[AGENTVIEW].copy()
    second = world.step(STEP).observation
    assert np.array_equal(first.images[AGENTVIEW], kept)  # looked at in time, still there
    with pytest.raises(SimError, match=f"{WRIST} was not looked at"):
        first.images[WRIST]
    world.reset("reach_red_cube", 2)
    with pytest.raises(SimError):
        second.images[AGENTVIEW]
    assert first.images.get("no such camera") is None
    assert len(world.step(STEP, render=False).observation.images) == 0
