"""Recipes of trainings and collections: the options that change what comes out, and their flags.

Light: the parsers of the verbs import it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
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
#: values of sim.tasks.Family, whose import takes a tenth of a second
FAMILIES = ("reach", "push", "pick", "stack")
#: share of the steps after which the first round of on-policy correction begins
_FIRST_ROUND = 0.4


def _flag(default: Any, text: str, **more: Any) -> Any:
    """A field that has a flag, see :func:`vla_ros.cli.arguments.add_fields`."""
    return field(default=default, metadata={"text": text, **more})


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """Recipe of a policy. ``data``: directories of shards. ``vision_from`` gives a draft model its
    target's features; ``init_from`` has the same sizes. ``rounds`` are spread over the later part;
    their episodes are of ``round_families`` in turn, of which one may be named twice (none: all
    that are trained). ``delays``: the policy learns what is right when its action is executed so
    many action periods later, and its on-policy rounds are played that late; 0: it is trained for
    fresh images, and no prompt states a delay."""

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
    carry_weight: float = _flag(1.0, "of the fingers' token where a cube is carried: 4 lets go of"
                                " it less often by mistake (1)")  # fmt: skip
    shift: int = _flag(3, "augmentation: largest shift, pixels; 0: off")
    dtype: str = _flag("bfloat16", "of the products (bfloat16, where the processor has instructions"
                       " for it)", choices=("bfloat16", "float32"))  # fmt: skip
    seed: int = _flag(0, "weights and batches (0)")
    wrist: bool = _flag(False, "a model of two images; data collected with --wrist")
    vision_from: str = _flag("", "take and keep this vision tower", metavar="DIR")
    init_from: str = _flag("", "begin with the weights of this checkpoint", metavar="DIR")
    rounds: int = _flag(0, "on-policy correction (0)", flag="dagger", metavar="ROUNDS")
    round_episodes: int = _flag(100, "of a round", flag="dagger-episodes")
    round_unsteady: bool = _flag(False, "rounds as collect --unsteady", flag="dagger-unsteady")
    round_crowded: bool = _flag(False, "rounds as collect --crowded", flag="dagger-crowded")
    round_families: tuple[str, ...] = ()  # --dagger-families
    delays: int = _flag(0, "learn to act on images that are 0 to N action periods old, told how"
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
    """Options of a sitting, which may differ from the last: torch.compile takes a minute at first
    and then halves a step on a CPU."""

    device: torch.device
    workers: int = _flag(1, "processes for simulated episodes")
    save_every_s: float = _flag(120.0, "(120)", flag="save-every", metavar="SECONDS")
    ray: str = _flag("", "simulated episodes on a Ray cluster (auto, HOST:PORT, ray://...)",
                     metavar="ADDRESS")  # fmt: skip
    compiled: bool = _flag(False, "torch.compile: a slow start, then faster", flag="compile")


@dataclass(frozen=True, slots=True)
class HeadRun:
    """Rollouts of a draft head's ``target``, a checkpoint of token actions: ``learn`` and ``judge``
    episodes of every task, in which ``executed`` actions of a chunk are carried out (0: half of
    it). ``data``: of pi0-FAST, the bags and LeRobotDatasets whose frames it answers instead, as
    many actions apart. They are in float32 on a CPU, in ``dtype`` elsewhere."""

    target: str = _flag("", "head, corrector: the checkpoint it is for", metavar="DIR")
    learn: int = _flag(4, "head: to learn from, a task", flag="episodes")
    judge: int = _flag(1, "head: to judge by, a task", flag="held-out")
    device: str = "cpu"
    dtype: str = "float32"
    unnorm_key: str = _flag("", "head: the target's statistics, if it has several", metavar="NAME")
    executed: int = _flag(0, "head: actions of a chunk that are executed in the rollouts (half of"
                          " it)", metavar="S")  # fmt: skip
    data: tuple[Path, ...] = ()
    state_in_prompt: str = _flag("", "head of pi0-FAST: as the policy node's parameter",
                                 choices=("robot", "padded"))  # fmt: skip


@dataclass(frozen=True, slots=True)
class LeRobotRun:
    """Recipe of LeRobot's own trainer. ``policy``: a family (act, smolvla, ...), begun anew, or a
    checkpoint to go on from. ``more``: its own options, NAME=VALUE. ``validation``: share of the
    episodes held out. ``gpus``: processes, started by accelerate where there are several."""

    policy: str = _flag("", "LeRobot's own trainer on --data, in its environment: a family (act,"
                        " smolvla, ...) or a checkpoint", flag="lerobot",
                        metavar="POLICY")  # fmt: skip
    data: str = ""
    steps: int = 20_000
    batch: int = 8
    seed: int = 0
    validation: float = 0.1
    device: str = "cpu"
    more: tuple[str, ...] = ()
    gpus: int = _flag(1, "of --lerobot: processes, a GPU each, by accelerate")


@dataclass(frozen=True, slots=True)
class CollectOptions:
    """Recipe of a collection. ``policy``: a checkpoint that acts while the expert labels.

    ``demonstrations`` episodes are spread evenly over ``tasks``, each a task or a family, whose
    tasks take turns. ``seed`` is the number of the collection, or of the on-policy round.
    ``expert_share`` of a policy's steps are the expert's own, so that late stages are seen.
    ``unsteady``: an answer may also take more than a period, and in one episode of three the cube
    is moved. ``two_ways``: each episode anew. ``suite``: LIBERO's, whose shards
    :mod:`vla_ros_lab.train.collect_libero` makes.
    """

    demonstrations: int = _flag(1000, "episodes, spread over tasks", flag="demos")
    tasks: tuple[str, ...] = FAMILIES
    seed: int = _flag(0, "number of the collection, 0 to 4 (0)")
    image_size: int = _flag(128, "pixels a side")
    wrist: bool = _flag(False, "the wrist camera too, for models of two images")
    policy: str = _flag("", "a checkpoint that acts, the expert labels", metavar="DIR")
    expert_share: float = 0.3
    interpolation: str = _flag("bicubic", "how images are made smaller; box: as flow policies see"
                               " them", choices=("bicubic", "box"))  # fmt: skip
    per_shard: int = 20
    delays: int = _flag(0, "whoever acts does so on images that are 0 to N action periods old,"
                        " each episode another (0)")  # fmt: skip
    two_ways: bool = _flag(False, "the expert swings out to the left or to the right: chunks that"
                           " can disagree")  # fmt: skip
    suite: str = _flag("", "of LIBERO, instead of the tabletop", metavar="S")
    unsteady: bool = _flag(False, "--policy: as in real time, images sooner or later than it is"
                           " told, actions lost or not in time, a cube moved on the"
                           " way")  # fmt: skip
    crowded: bool = _flag(False, "in one episode of three one or two others stand right beside the"
                          " cube that is to be grasped")  # fmt: skip

    @property
    def shard_count(self) -> int:
        """Shards of the whole collection."""
        return -(-self.demonstrations // self.per_shard)


def flags(options: type) -> tuple[str, ...]:
    """Names of the fields that have a flag."""
    return tuple(one.name for one in fields(options) if one.metadata)


#: flags of a recipe that are None where nothing is given: the default depends on what is trained
UNSET = ("steps", "batch", "branches", "learning_rate", "dtype", "delays", "validation")


def recipe_json(options: Any) -> dict[str, Any]:
    """The options as JSON gives them back."""
    out: dict[str, Any] = json.loads(json.dumps(asdict(options)))
    return out


def differences(path: Path, recipe: Mapping[str, Any]) -> str:
    """Values in the JSON file ``path`` that are not the recipe's, in words; "": none, no file."""
    if not path.exists():
        return ""
    there = json.loads(path.read_text())
    changed = sorted(n for n in recipe if n not in there or there[n] != recipe[n])
    return ", ".join(f"{n} {there[n]}" if n in there else f"no {n}" for n in changed)


def verify(recipe: Mapping[str, Any], directory: Path) -> None:
    """Check that the recipe is that of the run in ``directory``, where there is one.

    UserError names what differs: half a run with one recipe and half with another is neither.
    """
    if found := differences(directory / OPTIONS_FILE, recipe):
        raise UserError(f"the run in {directory} has {found}: keep that, or take another --out")


def claim(recipe: Mapping[str, Any], directory: Path, init_from: str) -> None:
    """Write the recipe into a new run's directory, with the SHA-256 of the checkpoint that it goes
    on from: where ``init_from`` is a link it will be another one some day."""
    from vla_ros.engine.load import sha256_on_disk

    path = directory / OPTIONS_FILE
    if path.exists():
        return
    directory.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".tmp")
    content = {**recipe, PARENT: sha256_on_disk(init_from) if init_from else ""}
    scratch.write_text(json.dumps(content, indent=1) + "\n")
    scratch.replace(path)


def _claimed(directory: Path) -> dict[str, Any]:
    path = directory / OPTIONS_FILE
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def parent_of(directory: Path) -> str:
    """SHA-256 of the checkpoint that the run in ``directory`` went on from; "": none, unknown."""
    return str(_claimed(directory).get(PARENT, ""))


def dtype_of(directory: Path, bfloat16: bool) -> str:
    """Dtype of the products where no flag names one: that of the run in ``directory``, which
    another machine may go on with, or ``bfloat16`` where that is worth it."""
    return str(_claimed(directory).get("dtype", "bfloat16" if bfloat16 else "float32"))
