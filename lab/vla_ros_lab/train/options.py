"""The recipe of a training run: everything that changes what comes out."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_ros.core.errors import UserError
from vla_ros.engine.io.config import MOST_DELAY

if TYPE_CHECKING:
    import torch

OPTIONS_FILE = "train.json"
PARENT = "init_from_sha256"
DECAYS = ("sqrt", "cosine")
#: share of the steps after which the first round of on-policy correction begins
_FIRST_ROUND = 0.4


def _flag(default: Any, text: str, **more: Any) -> Any:
    """A field that `vla-ros train` has a flag of, see :func:`vla_ros.cli.arguments.add_fields`."""
    return field(default=default, metadata={"text": text, **more})


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """``data``: directories of shards. ``vision_from`` gives a draft model its target's features;
    ``init_from`` has the same sizes. ``rounds`` are spread over the later part. ``delays``: the
    policy learns what is right when its action is executed so many control periods later, and its
    on-policy rounds are played that late; 0: it is trained for fresh images and told nothing."""

    data: tuple[str, ...]
    arch: str = _flag("small", "small, qwen2-draft, small-oft, small-chunk, small-flow",
                      metavar="ARCH")  # fmt: skip
    steps: int = _flag(6_000, "in all (6000; at most 1000 of a head)")
    batch: int = _flag(32, "frames a step (32; 256 of a head)")
    branches: int = _flag(
        4, "instructions an image is trained with (4; of other people's data sets 1)"
    )
    samples: int = _flag(2, "flow: noise drawn for an instruction")
    learning_rate: float = _flag(1.5e-3, "at its highest (1.5e-3; 1e-3 of a head)")
    warmup: int = _flag(50, "until it is reached", metavar="STEPS")
    decay: str = _flag("sqrt", "of the rate, to zero", choices=DECAYS)
    weight_decay: float = 0.01
    clip: float = 1.0
    sigma_bins: float = _flag(4.0, "width of the soft bins; 0: hard (4)")
    patch_weight: float = _flag(1.0, "of naming objects in patches (1)")
    place_weight: float = _flag(0.5, "of pointing at what is meant")
    shift: int = _flag(3, "augmentation: largest shift, pixels; 0: off")
    dtype: str = _flag("bfloat16", "of the products (bfloat16, where the processor has instructions"
                       " for it)", choices=("bfloat16", "float32"))  # fmt: skip
    seed: int = _flag(0, "weights and batches (0)")
    wrist: bool = _flag(False, "a model of two images; data collected with --wrist")
    vision_from: str = _flag("", "take and keep this vision tower", metavar="DIR")
    init_from: str = _flag("", "begin with the weights of this checkpoint", metavar="DIR")
    rounds: int = _flag(0, "on-policy correction (0)", flag="dagger", metavar="ROUNDS")
    round_episodes: int = _flag(100, "of a round", flag="dagger-episodes")
    delays: int = _flag(0, "learn to act on images that are 0 to N control periods old, told how"
                        " old; 0: on fresh ones (as --init-from, else 0)")  # fmt: skip
    lora: int = _flag(0, "train adapters of this rank to --init-from, a token policy of any size,"
                      " and merge them (0: all weights)", metavar="RANK")  # fmt: skip
    corrections: float = _flag(0.5, "of the frames drawn: at least so many in which a person had"
                               " taken over, where there are such", metavar="SHARE")  # fmt: skip
    validation: float = _flag(0.0, "of the episodes, not trained on and judged by (0.1 of"
                              " recordings and other people's sets; else 0)",
                              metavar="SHARE")  # fmt: skip

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


@dataclass(frozen=True, slots=True)
class Machine:
    """What may differ from sitting to sitting: torch.compile takes a minute at first and then
    halves a step on a CPU."""

    device: torch.device
    workers: int = _flag(1, "processes for simulated episodes")
    save_every_s: float = _flag(120.0, "(120)", flag="save-every", metavar="SECONDS")
    compiled: bool = _flag(False, "torch.compile: a slow start, then faster", flag="compile")


#: the flags of each: those of a recipe that are None where nothing is said, and the others
UNSAID = ("steps", "batch", "branches", "learning_rate", "dtype", "delays", "validation")
RECIPE = tuple(one.name for one in fields(TrainOptions) if one.metadata)


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
