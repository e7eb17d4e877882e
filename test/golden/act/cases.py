"""The cases of ACT's golden files: what is small, odd or absent in each. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from golden.flow.seeded import draw

FRAMES = 40  # of a stream whose chunks are joined


@dataclass(frozen=True)
class Case:
    """``cameras``: name of the feature -> (height, width). ``config``: further fields of LeRobot's
    ACTConfig; ``modes`` of VISUAL, STATE and ACTION. ``state`` 0: the policy takes none."""

    cameras: dict[str, tuple[int, int]]
    state: int
    action: int
    modes: tuple[str, str, str] = ("MEAN_STD", "MEAN_STD", "MEAN_STD")
    config: dict[str, object] = field(default_factory=dict)


_SIZES = {
    "chunk_size": 12, "n_action_steps": 1, "dim_model": 24, "n_heads": 3, "dim_feedforward": 40,
    "n_encoder_layers": 2, "latent_dim": 5, "n_vae_encoder_layers": 1,
}  # fmt: skip
_IMAGES = "observation.images."

CASES = {
    # One camera, its feature named as gym-pusht's and gym-aloha's first sets name it.
    "one": Case({"observation.image": (64, 96)}, 6, 6, config={**_SIZES}),
    # Three cameras of two sizes, no multiple of 32 among them; a state and norms of other kinds.
    "three": Case(
        {f"{_IMAGES}top": (70, 100), f"{_IMAGES}left_wrist": (70, 100), f"{_IMAGES}side": (50, 90)},
        14, 14, ("MEAN_STD", "MIN_MAX", "QUANTILES"),
        {**_SIZES, "n_decoder_layers": 3, "pre_norm": True, "feedforward_activation": "gelu"},
    ),
    # No state, no VAE, images that nothing scales, the other ResNet.
    "blind_to_itself": Case(
        {f"{_IMAGES}front": (64, 64)}, 0, 7, ("IDENTITY", "MEAN_STD", "MIN_MAX"),
        {**_SIZES, "use_vae": False, "vision_backbone": "resnet34", "n_decoder_layers": 2},
    ),
}  # fmt: skip


def weight(name: str, shape: tuple[int, ...]) -> Any:
    """A tensor of a model: every part of it must move what the model says."""
    plain = draw(name, *shape)
    if len(shape) == 1:
        if name.endswith("running_var"):
            return np.abs(plain) + np.float32(0.5)
        scale = name.endswith("weight")
        return 0.1 * plain + np.float32(1.0 if scale else 0.0)
    if "embed" in name or "pos_enc" in name:
        return plain
    spread = int(np.prod(shape[1:])) ** -0.5
    return plain * np.float32(spread * (0.6 if "backbone" in name else 1.3))
