"""The published evaluation's loop on the unwrapped benchmark: a program, run by a test.

    python plain_loop.py TASK.bddl TASK.pruned_init ASSETS SIZE EPISODES ACTIONS.npy OUT.npz

It follows OpenVLA's run_libero_eval.py: make the environment, env.seed(0), and for each
episode reset(), set_init_state(), ten waiting steps, then the actions. Nothing of vla_ros is
used but the reader of initial states.
"""

import sys
from pathlib import Path

import libero.libero
import numpy as np

from vla_ros.sim.libero.environment import load_states

KEYS = (
    "agentview_image",
    "robot0_eye_in_hand_image",
    "robot0_eef_pos",
    "robot0_eef_quat",
    "robot0_gripper_qpos",
    "robot0_joint_pos",
)


def main(bddl: str, states: str, assets: str, size: str, episodes: str, actions: str, out: str):
    libero.libero._assets_path_cache = assets
    from libero.libero.envs import OffScreenRenderEnv

    env = OffScreenRenderEnv(bddl_file_name=bddl, camera_heights=int(size), camera_widths=int(size))
    env.seed(0)
    initial = load_states(Path(states))
    seen = {key: [] for key in KEYS}
    for episode in range(int(episodes)):
        env.reset()
        env.set_init_state(initial[episode])
        for _ in range(10):
            observation, _, _, _ = env.step([0, 0, 0, 0, 0, 0, -1])
        frames = [observation]
        for action in np.load(actions)[episode]:
            frames.append(env.step(action.tolist())[0])
        for key in KEYS:
            seen[key].append([frame[key] for frame in frames])
    np.savez(out, **{key: np.array(values) for key, values in seen.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
