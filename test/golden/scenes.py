"""What both sides look at and are told: pictures from a seed, instructions. NumPy only."""

from __future__ import annotations

import numpy as np

#: Wider, higher, square, odd differences, smaller than the towers' square, the square itself.
SIZES = (
    (120, 160),
    (56, 75),
    (75, 56),
    (61, 64),
    (33, 32),
    (97, 97),
    (20, 30),
    (56, 56),
    (200, 57),
)
#: The picture that is so much higher than wide that Pillow 13, with which the files were made,
#: resizes its columns first. No checkpoint was trained so, and the engine does not do it.
TALL = len(SIZES) - 1
INSTRUCTIONS = (
    "pick up the red cube",
    "Put the Blue Bowl on the plate",
    "open the drawer, then close it",
    "push the button twice",
    "stack 3 blocks",
    "turn on the stove (slowly)",
    "move 5 cm to the left",
)
STATE = (0.31, -1.7, 0.02, 2.9, -0.4, 0.0, 1.5, -9.0, 0.6, 0.1, -0.2, 0.3, -0.8, 0.9)


def picture(number: int, height: int, width: int) -> np.ndarray:
    """A uint8 [height, width, 3] of coarse squares, a ramp and grain: the same on every machine."""
    rng = np.random.default_rng([7, number])
    coarse = rng.integers(0, 200, (height // 13 + 1, width // 13 + 1, 3))
    large = np.kron(coarse, np.ones((13, 13, 1), dtype=np.int64))[:height, :width]
    ramp = (np.arange(width) * 40 // width)[None, :, None]
    grain = rng.integers(0, 16, (height, width, 3))
    return (large + ramp + grain).clip(0, 255).astype(np.uint8)


def pictures() -> list[np.ndarray]:
    return [picture(number, *size) for number, size in enumerate(SIZES)]


def of_tall(number: int, cameras: int) -> bool:
    """Whether one of the cameras of a frame shows the tall picture."""
    return TALL in [(number + camera) % len(SIZES) for camera in range(cameras)]


def pairs() -> list[tuple[int, str]]:
    """Number of a picture and what is said with it: all of both."""
    return [(i % len(SIZES), INSTRUCTIONS[i % len(INSTRUCTIONS)]) for i in range(len(SIZES))]
