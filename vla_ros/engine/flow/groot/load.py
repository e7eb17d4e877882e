"""From NVIDIA's folder to a GR00T that is ready to run; cheap checks first."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from vla_ros.action_space import ActionKind, ActionSpace, joints
from vla_ros.engine.checkpoints.fields import Fields
from vla_ros.engine.checkpoints.files import read_json
from vla_ros.engine.checkpoints.freed import give_back_freed
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.flow.family import Choice, Place
from vla_ros.engine.flow.gate import FILE, same_integers
from vla_ros.engine.flow.groot.config import GrootConfig
from vla_ros.engine.flow.groot.encoders import RowWeights
from vla_ros.engine.flow.groot.head import ActionHead
from vla_ros.engine.flow.groot.model import GrootModel, longest_of
from vla_ros.engine.flow.groot.preparation import GrootPreparation
from vla_ros.engine.flow.groot.robot import Robot
from vla_ros.engine.flow.groot.shards import ShardWeights
from vla_ros.engine.flow.groot.version import Version, Words
from vla_ros.engine.flow.stored import StoredWeights, stored_weights
from vla_ros.engine.flow.weights import sha256_of
from vla_ros.engine.layout import action_space_of


@dataclass(frozen=True, slots=True)
class GrootPolicy:
    """See :class:`vla_ros.engine.flow.family.Loaded`."""

    version: Version
    config: GrootConfig
    model: GrootModel
    robot: Robot
    tokenizer: Words
    sha256: str

    @property
    def action_space(self) -> ActionSpace:
        """Places of joints where the folder says that they are relative to these, or else what
        their number says."""
        names = self.robot.action_names
        if self.robot.relative:
            return joints(ActionKind.JOINT_POSITION, names)
        return action_space_of(self.robot.action_dim, names)

    def preparation(self) -> GrootPreparation:
        """A new one, without an instruction."""
        return GrootPreparation(self.config, self.robot, self.version.prompt, self.tokenizer)


@dataclass(frozen=True, slots=True)
class Opened:
    """A folder's parts; of the weights only the headers were read."""

    config: GrootConfig
    robot: Robot
    tokenizer: Words
    weights: ShardWeights | StoredWeights


def open_folder(version: Version, directory: Path, choice: Choice) -> Opened:
    """Everything but weights. CheckpointError in one line for what cannot be used."""
    config, robot = version.read(directory, choice)
    tokenizer = version.words(directory, choice, config)
    check_discrete(version, config, directory)
    expected = version.expected(config)
    weights = stored_weights(directory, expected) or ShardWeights(directory, expected)
    return Opened(config, robot, tokenizer, weights)


def load_folder(version: Version, directory: Path, choice: Choice, place: Place) -> GrootPolicy:
    """Read everything. CheckpointError as of :func:`open_folder`."""
    parts = open_folder(version, directory, choice)
    model = build(version, parts.config, parts.weights, place)
    return GrootPolicy(
        version, parts.config, model, parts.robot, parts.tokenizer, folder_sha256(directory)
    )


def build(version: Version, config: GrootConfig, weights: RowWeights, place: Place) -> GrootModel:
    """The model of ``config`` with these weights."""
    like, longest = place.like, longest_of(config, place.capture)
    weights = cast(RowWeights, place.formatted(weights))  # what gives rows still does
    backbone = version.backbone(config, weights, like, longest)
    head = ActionHead(
        config.head, weights, config.row, like, longest, padded=place.capture is not None
    )
    give_back_freed()
    return GrootModel(config, backbone, head, like, place.capture)


def inspect_folder(version: Version, directory: Path, choice: Choice) -> tuple[GrootConfig, int]:
    """All that loading would find wrong, one tensor at a time: the config and the number of
    parameters, those of all robots."""
    parts = open_folder(version, directory, choice)
    shapes = version.expected(parts.config).must
    for name in parts.weights.read_all(shapes):
        parts.weights.take(name)
    return parts.config, sum(math.prod(shape) for shape in shapes.values())


def check_discrete(version: Version, config: GrootConfig, directory: Path) -> None:
    """The gate: integers of ``discrete.json``, where there is one, against those computed here."""
    path, computed = directory / FILE, version.discrete(config)
    if not path.is_file():
        return
    fields = Fields(read_json(path), FILE)
    strange = sorted(set(fields.raw) - set(computed))
    if strange:
        raise CheckpointError(f"{path} has {', '.join(strange)}: known are {', '.join(computed)}")
    for name, values in computed.items():
        stored = fields.items(name)
        if stored and (name != "times" or len(stored) == config.steps):  # others may be asked for
            same_integers(str(path), name.replace("_", " "), stored, values)


def folder_sha256(directory: Path) -> str:
    """Over all of a folder that decides what it says, in its root or in ``processor/``."""
    inner = directory / "processor"
    root = sha256_of(directory)
    if not inner.is_dir():
        return root
    return hashlib.sha256(f"{root} {sha256_of(inner)}".encode()).hexdigest()
