"""The family of Evo-1: LeRobot's folders of type evo1."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from vla_ros.action_space import ActionSpace
from vla_ros.engine.checkpoints.cache import cached
from vla_ros.engine.checkpoints.freed import give_back_freed
from vla_ros.engine.checkpoints.random import PREFIX
from vla_ros.engine.flow.evo1.config import KIND, Evo1Config, chosen, read_evo1_config
from vla_ros.engine.flow.evo1.gate import check_table, check_time_index
from vla_ros.engine.flow.evo1.head import TIMES
from vla_ros.engine.flow.evo1.model import Evo1Model, evo1_expected
from vla_ros.engine.flow.evo1.preparation import (
    IMAGE_TOKEN,
    Evo1Preparation,
    Scalers,
    read_scalers,
)
from vla_ros.engine.flow.evo1.random import (
    PRESETS,
    VERSION,
    drawn_evo1,
    random_scalers,
    write_evo1,
    write_evo1_tokenizer,
)
from vla_ros.engine.flow.family import Choice, Family, Place
from vla_ros.engine.flow.lerobot import lerobot_type
from vla_ros.engine.flow.load import WEIGHTS
from vla_ros.engine.flow.stored import StoredWeights, stored_weights
from vla_ros.engine.flow.text import PromptTokenizer
from vla_ros.engine.flow.weights import Expected, FileWeights, Weights, sha256_of
from vla_ros.engine.layout import action_space_of


@dataclass(frozen=True, slots=True)
class Evo1Policy:
    """See :class:`vla_ros.engine.flow.family.Loaded`."""

    config: Evo1Config
    model: Evo1Model
    scalers: Scalers
    tokenizer: PromptTokenizer
    sha256: str

    @property
    def action_space(self) -> ActionSpace:
        """By their number."""
        return action_space_of(self.config.action_dim)

    def preparation(self) -> Evo1Preparation:
        """What stands between the robot's units and the model's."""
        return Evo1Preparation(self.config, self.scalers, self.tokenizer, self.model.device)


@dataclass(frozen=True, slots=True)
class _Parts:
    """A folder's parts; of the weights only the header was read."""

    config: Evo1Config
    scalers: Scalers
    words: PromptTokenizer
    weights: FileWeights | StoredWeights


class Evo1Family(Family[Evo1Config]):
    """See Family."""

    kinds = (KIND,)
    presets = PRESETS
    takes = frozenset({"tokenizer", "steps", "embodiment"})

    def owns(self, directory: Path) -> bool:
        """See Family."""
        return lerobot_type(directory) == KIND

    def config(self, source: Path | str, choice: Choice) -> Evo1Config:
        """See Family."""
        if isinstance(source, Path):
            return read_evo1_config(source, choice)
        return chosen(self.presets[source.removeprefix(PREFIX)], choice)

    def load(self, source: Path | str, choice: Choice, place: Place, seed: int = 0) -> Evo1Policy:
        """See Family."""
        if isinstance(source, str):
            name = source.removeprefix(PREFIX)
            preset = self.presets[name]
            if not name.endswith("-small"):
                return _drawn(chosen(preset, choice), place, seed)
            label = f"{name}-{seed}-{_fingerprint(preset)}"
            source = cached(label, lambda scratch: write_evo1(scratch, preset, seed))
        parts = _open(source, choice)
        return _policy(
            parts.config, parts.weights, parts.scalers, parts.words, sha256_of(source), place
        )

    def write(self, directory: Path, preset: str, seed: int) -> None:
        """See Family."""
        write_evo1(directory, self.presets[preset], seed)

    def inspect(self, directory: Path, choice: Choice) -> tuple[Evo1Config, int]:
        """See Family."""
        parts = _open(directory, choice)
        check_time_index()
        for name in parts.weights.read_all(evo1_expected(parts.config).must):
            tensor = parts.weights.take(name)
            if name == TIMES:
                check_table(name, tensor)
        return parts.config, self.parameters(parts.config)

    def expected(self, config: Evo1Config) -> Expected:
        """See Family."""
        return evo1_expected(config)

    def action_ends(self, directory: Path, choice: Choice) -> tuple[torch.Tensor, ...]:
        """See Family."""
        return read_scalers(directory, self.config(directory, choice)).action.ends()


def _open(directory: Path, choice: Choice) -> _Parts:
    config = read_evo1_config(directory, choice)
    scalers = read_scalers(directory, config)
    words = PromptTokenizer(directory, choice.tokenizer, config.vlm, config.text.vocab_size)
    words.id_of(IMAGE_TOKEN)
    expected = evo1_expected(config)
    weights = stored_weights(directory, expected) or FileWeights(directory / WEIGHTS, expected)
    return _Parts(config, scalers, words, weights)


def _drawn(config: Evo1Config, place: Place, seed: int) -> Evo1Policy:
    """The weights drawn as they are read; only the tokenizer goes to disk."""
    directory = cached(f"evo1-tokenizer-{VERSION}", _write_tokenizer)
    words = PromptTokenizer(directory, None, "", config.text.vocab_size)
    weights = drawn_evo1(config, seed, place.device)
    digest = hashlib.sha256(f"random {config!r} {seed} {place.dtype}".encode()).hexdigest()
    return _policy(config, weights, random_scalers(config), words, digest, place)


def _write_tokenizer(directory: Path) -> None:
    write_evo1_tokenizer(directory / "tokenizer.json")


def _policy(
    config: Evo1Config,
    weights: Weights,
    scalers: Scalers,
    words: PromptTokenizer,
    sha256: str,
    place: Place,
) -> Evo1Policy:
    weights = place.formatted(weights)
    model = Evo1Model(config, weights, words.id_of(IMAGE_TOKEN), place.like, place.capture)
    give_back_freed()
    return Evo1Policy(config, model, scalers, words, sha256)


def _fingerprint(config: Evo1Config) -> str:
    text = json.dumps([VERSION, asdict(config)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
