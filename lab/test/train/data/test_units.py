import numpy as np
import pytest

from vla_ros.core.types import Command, CommandKind
from vla_ros.engine.io.tokens import ActionTokens, read_normalizer
from vla_ros.sim.commands import environment_action
from vla_ros.sim.env import EnvSpec
from vla_ros_lab.train.units import norm_stats, scales, to_environment, to_values

SPEC = EnvSpec("tabletop", (), ("agentview",), 32)
PHYSICAL = [
    [0.05, -0.05, 0.01, 0.4, -0.2, 0.003, 1.0],
    [0.0, 0.02, -0.033, 0.0, 0.0, -0.5, 0.0],
    [0.2, -0.2, 0.0, 2.0, 0.0, 0.0, 1.0],  # beyond what a step can do
]


@pytest.mark.parametrize("action", PHYSICAL)
def test_the_bridge_would_execute_the_same(action):
    command = Command(CommandKind.POLICY, np.array(action), 1, 1, 0, 0)
    expected = environment_action(command, 1.0, SPEC)
    assert to_environment(np.array(action), scales(SPEC)) == pytest.approx(expected)


@pytest.mark.parametrize("action", PHYSICAL[:2])
def test_tokens_of_a_label_decode_to_the_expert_s_action(action):
    scale = scales(SPEC)
    tokens = ActionTokens(960)
    encoded = tokens.encode(to_values(to_environment(np.array(action), scale)))
    normalizer = read_normalizer(norm_stats("tabletop", scale, 1, 1), None)
    back = normalizer.restore(tokens.decode(encoded))
    half_a_bin = np.array([*scale, 0.5]) / 255
    assert np.all(np.abs(back - action) <= half_a_bin + 1e-9)
