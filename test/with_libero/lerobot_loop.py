"""LeRobot's own LIBERO environment and processing, step by step: a program, run by a test with the
Python of LeRobot's environment, where LIBERO is installed beside it.

    python lerobot_loop.py SUITE TASK ASSETS SIZE ACTIONS.npy OUT.npz

It does what `lerobot-eval` does around a policy (lerobot 0.6.1 scripts/lerobot_eval.py `rollout`):
LiberoEnv, preprocess_observation, LiberoProcessorStep, and actions to ``step`` as they are.
"""

import sys

import libero.libero
import numpy as np


def main(suite: str, task: str, assets: str, size: str, actions: str, out: str) -> None:
    libero.libero._assets_path_cache = assets
    from lerobot.envs.libero import LiberoEnv
    from lerobot.envs.utils import preprocess_observation
    from lerobot.processor.env_processor import LiberoProcessorStep
    from libero.libero import benchmark

    step = LiberoProcessorStep()
    env = LiberoEnv(
        benchmark.get_benchmark_dict()[suite](),
        int(task),
        suite,
        obs_type="pixels_agent_pos",
        observation_width=int(size),
        observation_height=int(size),
    )
    observation, _ = env.reset(seed=0)
    seen: dict[str, list] = {"image": [], "image2": [], "state": [], "sent": []}
    inner = env._env.step

    def watched(action):
        seen["sent"].append(np.array(action, np.float64))
        return inner(action)

    env._env.step = watched

    def look(raw) -> None:
        batch = {
            "pixels": {name: np.array(image)[None] for name, image in raw["pixels"].items()},
            "robot_state": {
                part: {name: np.asarray(value)[None] for name, value in values.items()}
                for part, values in raw["robot_state"].items()
            },
        }
        made = step.observation(preprocess_observation(batch))
        for name in ("image", "image2"):
            seen[name].append(made[f"observation.images.{name}"][0].permute(1, 2, 0).numpy())
        seen["state"].append(made["observation.state"][0].numpy())

    look(observation)
    for action in np.load(actions):
        observation, *_ = env.step(action)
        look(observation)
    env.close()
    np.savez(out, **{name: np.array(values) for name, values in seen.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
