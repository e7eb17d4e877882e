"""Ask a server of `vla-ros serve` as OpenVLA's clients do: one image, an instruction, an action.

python post_act.py http://127.0.0.1:8000
"""

import sys

import json_numpy
import numpy as np
import requests  # pip install json-numpy requests


def main(server: str) -> None:
    """Print the action [D] for a gray image, or a list of them for a chunk."""
    image = np.full((224, 224, 3), 128, np.uint8)
    json_numpy.patch()
    action = requests.post(
        f"{server}/act", json={"image": image, "instruction": "stack the cubes"}, timeout=20
    ).json()
    print(np.array(action).tolist())


if __name__ == "__main__":
    main(sys.argv[1])
