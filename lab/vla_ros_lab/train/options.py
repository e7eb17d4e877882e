"""The recipe of a training run: everything that changes what comes out."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vla_ros.core.errors import UserError
from vla_ros.engine.io.config import MOST_DELAY

OPTIONS_FILE = "train.json"
PARENT = "init_from_sha256"
DECAYS = ("sqrt", "cosine")
#: share of the steps after which the first round of on-policy correction begins
_FIRST_ROUND = 0.4


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """``data``: directories of shards. ``vision_from``: a checkpoint whose vision tower is taken
    and kept as it is, so that a draft model shares its target's features.

    ``branches``: instructions an image is trained with at once. ``samples``: noise drawn for each
    of them, of flow policies.

    ``init_from``: a checkpoint of the same sizes whose weights are the beginning.

    ``rounds`` of on-policy correction, ``round_episodes`` each, spread over the later part.

    ``delays``: the policy is told how many control periods later its action will be executed, 0 to
    so many, and learns what is right then; its on-policy rounds are played that late. 0: it is
    trained for fresh images and told nothing.

    ``lora``: rank of the adapters that are trained of ``init_from``, whose own weights stay; 0: all
    weights of ``arch`` are.

    ``corrections``: share of the frames drawn in which a person acted past a policy, where the data
    have such. ``validation``: share of the episodes that are not trained on, only judged by.
    """

    data: tuple[str, ...]
    arch: str = "small"
    steps: int = 6_000
    batch: int = 32
    branches: int = 4
    samples: int = 2
    learning_rate: float = 1.5e-3
    warmup: int = 50
    decay: str = "sqrt"
    weight_decay: float = 0.01
    clip: float = 1.0
    sigma_bins: float = 4.0
    patch_weight: float = 1.0
    place_weight: float = 0.5
    shift: int = 3
    dtype: str = "bfloat16"
    seed: int = 0
    wrist: bool = False
    vision_from: str = ""
    init_from: str = ""
    rounds: int = 0
    round_episodes: int = 100
    delays: int = 0
    lora: int = 0
    corrections: float = 0.5
    validation: float = 0.0

    def __post_init__(self) -> None:
        if min(self.steps, self.batch, self.branches, self.samples) < 1:
            raise UserError("steps, batch, branches and samples must be at least 1")
        if not 0 <= self.delays <= MOST_DELAY:
            raise UserError(f"delays is {self.delays}: give 0 to {MOST_DELAY}")
        if not (0 <= self.corrections < 1 and 0 <= self.validation < 1):
            raise UserError("corrections and validation are shares: give 0 to less than 1")
        if self.decay not in DECAYS:
            raise UserError(f"decay is {self.decay!r}: give one of {', '.join(DECAYS)}")

    def rate(self, step: int) -> float:
        """Learning rate of a step: linear warm-up, then down to nothing at the end."""
        left = 1.0 - step / self.steps
        fall = math.sqrt(left) if self.decay == "sqrt" else 0.5 - 0.5 * math.cos(math.pi * left)
        return self.learning_rate * min(1.0, (step + 1) / self.warmup) * fall

    def round_steps(self) -> tuple[int, ...]:
        """The steps before which the rounds of on-policy correction happen."""
        first = int(self.steps * _FIRST_ROUND)
        return tuple(first + (self.steps - first) * n // self.rounds for n in range(self.rounds))


def claim(options: TrainOptions, directory: Path) -> None:
    """Write the options into a new run's directory, with the SHA-256 of the checkpoint that it goes
    on from: where ``init_from`` is a link it will be another one some day."""
    from vla_ros.engine.load import sha256_on_disk

    path = directory / OPTIONS_FILE
    if path.exists():
        return
    directory.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".tmp")
    parent = sha256_on_disk(options.init_from) if options.init_from else ""
    content = {**options_json(options), PARENT: parent}
    scratch.write_text(json.dumps(content, indent=1) + "\n")
    scratch.replace(path)


def parent_of(directory: Path) -> str:
    """SHA-256 of the checkpoint that the run in ``directory`` went on from; "": none, unknown."""
    path = directory / OPTIONS_FILE
    return str(json.loads(path.read_text()).get(PARENT, "")) if path.exists() else ""


def dtype_of(directory: Path, bfloat16: bool) -> str:
    """Of the products, where nobody says it: as the run in ``directory`` began, which another
    machine may go on with, or ``bfloat16`` where that is worth it."""
    path = directory / OPTIONS_FILE
    known = json.loads(path.read_text()) if path.exists() else {}
    return str(known.get("dtype", "bfloat16" if bfloat16 else "float32"))


def verify(options: TrainOptions, directory: Path) -> None:
    """Check that the options are those of the run in ``directory``, where there is one.

    UserError names what differs: half a run with one recipe and half with another is neither.
    """
    path = directory / OPTIONS_FILE
    if not path.exists():
        return
    wanted = options_json(options)
    there = json.loads(path.read_text())
    differing = sorted(n for n in wanted if n not in there or there[n] != wanted[n])
    if differing:
        said = ", ".join(f"{n} {there[n]}" if n in there else f"no {n}" for n in differing)
        raise UserError(f"the run in {directory} has {said}: keep that, or take another --out")


def options_json(options: TrainOptions) -> dict[str, Any]:
    """The options as JSON gives them back."""
    out: dict[str, Any] = json.loads(json.dumps(asdict(options)))
    return out
