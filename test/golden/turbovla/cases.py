"""The cases of TurboVLA's golden files: small sizes, other ones than any preset has. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from golden.flow.seeded import draw

#: of DINOv3, in transformers' words
VISION: dict[str, Any] = {
    "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 72,
    "patch_size": 16, "image_size": 80, "num_register_tokens": 3,
}  # fmt: skip
#: of BERT; the vocabulary is that of VOCAB
TEXT: dict[str, Any] = {
    "hidden_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 56,
    "max_position_embeddings": 64,
}  # fmt: skip
VOCAB = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "?", ",", "pick", "up", "the", "red"),
    *("block", "##s", "open", "drawer", "put", "it", "in", "place", "and", "on", "plate"),
]
ACTION, STATE = 7, 8


@dataclass(frozen=True)
class Case:
    """``config`` are fields of the authors' parts; each of ``tasks`` is said to one observation."""

    config: dict[str, dict[str, Any]]
    tasks: tuple[str, ...]


CASES = {
    # Padded as LIBERO's is; sentences, capitals, an accent, a word that is not known.
    "padded": Case(
        {
            "text": {"max_length": 32, "padding_length": 13},
            "vision": {"image_size": 80, "num_views": 2},
            "interaction": {"hidden_dim": 32, "nheads": 4, "num_layers": 3,
                            "dim_feedforward": 44, "enhancer_inner_dim": 24},
            "action": {"horizon": 5, "num_layers": 2, "mlp_hidden_dim": 28, "state_hidden_dim": 20},
        },
        ("Pick up the réd blocks", "open the drawer. put it in? on", "place the cup on the plate"),
    ),
    # One instruction is padded to fewer; one fills its length, so that no padding ends it.
    "lengths": Case(
        {
            "text": {"max_length": 32, "padding_length": 9,
                     "padding_length_by_instruction": {"pick up the block": 7}},
            "vision": {"image_size": 48, "num_views": 1},
            "interaction": {"hidden_dim": 24, "nheads": 6, "num_layers": 2,
                            "dim_feedforward": 40, "enhancer_inner_dim": 36},
            "action": {"horizon": 3, "num_state_tokens": 1, "num_layers": 1,
                       "mlp_hidden_dim": 16, "state_hidden_dim": 12},
        },
        ("pick up the block", "open the drawer. put it"),
    ),
    # No length at all: every prompt has its own.
    "own": Case(
        {
            "text": {"max_length": 20, "padding_length": None},
            "vision": {"image_size": 32, "num_views": 2},
            "interaction": {"hidden_dim": 16, "nheads": 2, "num_layers": 1,
                            "dim_feedforward": 20, "enhancer_inner_dim": 16},
            "action": {"horizon": 4, "num_layers": 2, "mlp_hidden_dim": 20, "state_hidden_dim": 10},
        },
        ("pick up the block.", "open the drawer? put it in place"),
    ),
}  # fmt: skip


def weight(name: str, shape: tuple[int, ...]) -> Any:
    """A tensor that moves what the model says."""
    plain = draw(f"turbovla/{name}", *shape)
    if ("norm" in name.lower() and name.endswith("weight")) or ".net.0.weight" in name:
        return 1 + 0.2 * plain
    if "gamma_" in name or "lambda1" in name:
        return 0.5 + 0.2 * plain
    if len(shape) == 1:
        return 0.1 * plain
    if "embedding" in name or "tokens" in name or "queries" in name or name.endswith("position"):
        return 0.5 * plain if "patch_embeddings" not in name else plain * 768**-0.5
    gain = 0.3 if "action_projection.layers.2" in name else 1.5  # within what tanh tells apart
    return (plain * gain * int(np.prod(shape[1:])) ** -0.5).astype(np.float32)


def statistics() -> dict[str, Any]:
    """As the authors' libero_all4_stats.json has them, of one data set."""
    spread = np.abs(draw("turbovla/spread", ACTION)) + 0.2
    middle = 0.3 * draw("turbovla/middle", ACTION)
    state = {"mean": draw("turbovla/state/mean", STATE).tolist(),
             "std": (np.abs(draw("turbovla/state/std", STATE)) + 0.1).tolist()}  # fmt: skip
    action = {"min": (middle - spread).tolist(), "max": (middle + spread).tolist()}
    action["min"][-1], action["max"][-1] = -1.0, 1.0
    return {"libero_all4_no_noops": {"action": action, "proprio": state, "state": state},
            "metadata": {"stats_key": "libero_all4_no_noops"}}  # fmt: skip
