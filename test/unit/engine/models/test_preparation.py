"""Images, prompts and states before the model sees them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vla_ros.engine.models.preparation import padded_square, prompt_text


def grey(height: int, width: int, value: int = 255) -> np.ndarray:
    return np.full((height, width, 3), value, np.uint8)


def test_a_square_of_the_right_size_is_only_scaled() -> None:
    image = np.random.default_rng(0).integers(0, 256, (20, 20, 3), np.uint8)
    square = padded_square(image, 20, centered=True)
    assert square.shape == (3, 20, 20)
    assert torch.allclose(square, torch.from_numpy(image).permute(2, 0, 1) / 127.5 - 1, atol=1e-6)
    image[:] = 0  # the camera's buffer is used again
    assert square.max() > 0.5


@pytest.mark.parametrize(("height", "width"), [(10, 40), (40, 10), (13, 29)])
def test_the_rest_is_black_around_pi_and_before_smolvla(height: int, width: int) -> None:
    for centered in (True, False):
        square = padded_square(grey(height, width), 20, centered)
        seen = square[0] > 0
        rows, columns = (torch.nonzero(seen.any(axis)).flatten() for axis in (1, 0))
        ratio = max(height, width) / 20
        assert (len(rows), len(columns)) == (int(height / ratio), int(width / ratio))
        assert (square[0][~seen] == -1).all()
        first = [(20 - len(r)) // 2 if centered else 20 - len(r) for r in (rows, columns)]
        assert [int(rows[0]), int(columns[0])] == first


def test_what_is_no_image_is_named() -> None:
    for bad in (grey(4, 4).astype(np.float32), grey(4, 4)[..., :2], grey(0, 4)):
        with pytest.raises(ValueError, match="give uint8"):
            padded_square(bad, 20, centered=True)
    with pytest.raises(ValueError, match="leaves nothing to see"):
        padded_square(grey(1, 400), 20, centered=True)


def test_prompts() -> None:
    assert prompt_text("pi0", "pick it up") == "pick it up\n"
    assert prompt_text("smolvla", "pick it up\n") == "pick it up\n"
    bins = np.array([0, 255, -1])
    wanted = "Task: pick it up, State: 0 255 -1;\nAction: "
    assert prompt_text("pi05", " pick_it\nup ", bins) == wanted
