"""What a family of policies is to the rest of the engine.

A *family* knows its folders and its presets of random weights, and how one is loaded. Where the
networks are built of weights that are taken one by one (:class:`FlowFamily`: all but OpenVLA's)
loading and inspecting are the same for all. A new family is a model file on
:mod:`~vla_ros.engine.models.base`, a config reader with a :class:`FlowFamily` and a row in
:mod:`~vla_ros.engine.families.registry`.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from vla_ros.core.action_space import ActionSpace
from vla_ros.engine.families.random import PREFIX, digest_of, fingerprint_of
from vla_ros.engine.formats import Formats
from vla_ros.engine.io.files import cached, give_back_freed
from vla_ros.engine.io.quantize import (
    PreparedWeights,
    QuantizingWeights,
    Record,
    refuse_flow_formats,
)
from vla_ros.engine.io.weights import Expected, Weights, sha256_of_folder
from vla_ros.engine.layers.graphs import Capture
from vla_ros.engine.layers.prepacked import Prepacked
from vla_ros.engine.layers.tuner import Tuner
from vla_ros.engine.models.corrector import FOLDER as CORRECTOR
from vla_ros.engine.models.preparation import Preparation
from vla_ros.engine.options import FLOW, EngineOptions


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What somebody chose about a checkpoint; None leaves it to the checkpoint.

    ``tokenizer``: the folder of the language model's; ``steps`` of the solver; ``embodiment``: the
    robot among those that a checkpoint was trained for; ``unnorm_key``: the data set whose
    statistics scale the actions; ``state_normalization``: "identity" where nothing says how the
    state is scaled; ``state_in_prompt``: how pi0.5's prompt has the state. A family says which of
    them it :attr:`Family.takes`.
    """

    tokenizer: str | None = None
    steps: int | None = None
    embodiment: str | None = None
    unnorm_key: str | None = None
    state_normalization: str | None = None
    state_in_prompt: str | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a model is to live, and how. ``capture`` makes graphs of functions; None runs them.
    ``formats`` of its weights; ``record`` notes what a directory in these formats holds;
    ``packed``: the parts whose other matrices are laid out as a CPU multiplies them, or are the
    ``tuner``'s where there is one; ``options``: the engine's, for networks that choose by them."""

    device: torch.device
    dtype: torch.dtype
    capture: Capture | None = None
    formats: Formats = Formats()
    record: Record | None = None
    packed: frozenset[str] = frozenset()
    tuner: Tuner | None = None
    options: EngineOptions | None = None

    @property
    def like(self) -> torch.Tensor:
        """An empty tensor of that dtype, there."""
        return torch.empty(0, device=self.device, dtype=self.dtype)

    def formatted(self, weights: Weights) -> Weights:
        """The weights, whose matrices come in their formats."""
        if self.formats:
            weights = QuantizingWeights(weights, self.formats, self.record)
        if not self.packed:
            return weights
        prepare = Prepacked.of if self.tuner is None else self.tuner.of
        return PreparedWeights(weights, self.packed, prepare)


@dataclass(frozen=True, slots=True)
class Opened:
    """A policy's parts, all checked; of the weights only the headers were read.

    ``processors`` are the family's units <-> model space, ``tokenizer`` its prompt's;
    ``preparation`` makes a new one for a device, ``build`` the networks of the weights in their
    formats: a :class:`~vla_ros.engine.models.base.FlowPolicy`, or of pi0-FAST a
    :class:`~vla_ros.engine.decoding.base.TokenModel`.
    """

    config: Any
    weights: Any  # Weights, with read_all where they are a folder's
    processors: Any
    tokenizer: Any
    action_space: ActionSpace
    preparation: Callable[[torch.device], Preparation]
    build: Callable[[Any, Placement], Any]


@dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """A policy, read and checked. ``model`` is a :class:`~vla_ros.engine.models.base.FlowPolicy` or
    a :class:`~vla_ros.engine.decoding.base.TokenModel`; ``sha256`` is over everything that decides
    what it says; ``group``: as of its :class:`Family`, ``preparation`` is a flow policy's."""

    config: Any
    model: Any
    processors: Any
    tokenizer: Any
    action_space: ActionSpace
    sha256: str
    preparation: Callable[[], Any] = object  # a Preparation
    group: str = FLOW


C = TypeVar("C")


class Family(ABC, Generic[C]):
    """Policies that are read and run in the same way.

    ``kinds`` of its configs, ``presets`` of random weights by name, ``takes``: the fields of
    :class:`LoadOptions` that mean something to it; ``group``: TOKENS, FLOW or FAST of
    :mod:`~vla_ros.engine.options`, whose options it takes and whose decoder it has. A *source* is a
    folder, or ``random:<preset>``.
    """

    group = FLOW
    kinds: tuple[str, ...]
    presets: Mapping[str, C]
    takes: frozenset[str] = frozenset({"tokenizer", "steps"})

    @abstractmethod
    def owns(self, directory: Path) -> bool:
        """Whether the folder holds a policy of this family. Quick, and never raises: a folder
        that is damaged, or of another size, is still its own."""

    @abstractmethod
    def config(self, source: Path | str, options: LoadOptions) -> C:
        """Read no weights. CheckpointError in one line for what cannot be used."""

    @abstractmethod
    def expected(self, config: C) -> Expected:
        """The tensors of a checkpoint of ``config``."""

    @abstractmethod
    def load(
        self, source: Path | str, options: LoadOptions, placement: Placement, seed: int = 0
    ) -> LoadedPolicy:
        """Read everything, cheap checks first; ``seed`` of random weights. CheckpointError."""

    @abstractmethod
    def inspect(self, directory: Path, options: LoadOptions) -> tuple[C, int]:
        """All that loading would find wrong, in the memory of one tensor: the config and the
        number of parameters. CheckpointError as of :meth:`load`."""

    @abstractmethod
    def write(self, directory: Path, preset: str, seed: int) -> None:
        """A folder in the authors' own layout with the random weights of a small preset."""

    def check(self, directory: Path, options: LoadOptions) -> None:
        """CheckpointError in one line for what cannot be used; reads no weights."""
        self.config(directory, options)

    def action_ends(self, directory: Path, options: LoadOptions) -> tuple[torch.Tensor, ...]:
        """Where nearly all actions of the data lie, in units: from and to [action_dim]; () where
        nothing says."""
        return ()

    def data_sets(self, directory: Path) -> Mapping[str, bool]:
        """What ``unnorm_key`` may be, each with whether it has statistics of the state."""
        return {}

    def choices(self, directory: Path, options: LoadOptions) -> list[LoadOptions]:
        """``options`` with each of the data sets that may be chosen; as they are where none need be
        or one is. For who looks at a folder before somebody chose."""
        sets = {} if options.unnorm_key is not None else self.data_sets(directory)
        every = [
            replace(options, unnorm_key=key, state_normalization=None if state else "identity")
            for key, state in sets.items()
        ]
        return every or [options]

    def sha256(self, directory: Path) -> str:
        """What :attr:`LoadedPolicy.sha256` will be, without loading. A corrector changes what the
        robot does, so it counts."""
        found = sha256_of_folder(directory)
        if (beside := directory / CORRECTOR).is_dir():
            return hashlib.sha256((found + sha256_of_folder(beside)).encode()).hexdigest()
        return found

    def parameters(self, config: C) -> int:
        """Of a checkpoint of ``config``."""
        return sum(math.prod(shape) for shape in self.expected(config).must.values())

    def weight_bytes(self, config: C, dtype: torch.dtype) -> int:
        """What its weights take in memory."""
        return self.parameters(config) * dtype.itemsize

    def refuse_formats(self, source: Path | str, place: Placement, rtc: str = "") -> None:
        """CheckpointError in one line where weights cannot be in these formats there, for chunks
        that continue others as ``rtc`` says; reads no weights."""
        refuse_flow_formats(source, place.formats, place.device, place.dtype, rtc)

    def refuse(self, options: LoadOptions) -> None:
        """ValueError where something was chosen that means nothing here."""
        made = [f.name for f in fields(options) if getattr(options, f.name) is not None]
        if idle := [name for name in made if name not in self.takes]:
            raise ValueError(
                f"{', '.join(idle)}: this means nothing to a policy of {', '.join(self.kinds)}"
            )


class FlowFamily(Family[C]):
    """A family whose networks are built of weights that are taken one by one: the flow policies,
    and pi0-FAST.

    Of its ``presets`` ``NAME-small`` goes through a folder and the real loader, ``NAME`` has the
    published size and is drawn as it is loaded; ``presets_version`` of the folders.
    """

    presets_version = 1

    @abstractmethod
    def open(self, directory: Path, options: LoadOptions) -> Opened:
        """Everything but the weights. CheckpointError in one line for what cannot be used."""

    @abstractmethod
    def random(self, config: C, seed: int, device: torch.device) -> Opened:
        """The same with random weights that are drawn as they are taken."""

    def check(self, directory: Path, options: LoadOptions) -> None:
        self.open(directory, options)

    def check_weight(self, name: str, tensor: torch.Tensor) -> None:
        """CheckpointError where a stored table is not what it should be."""

    def load(
        self, source: Path | str, options: LoadOptions, placement: Placement, seed: int = 0
    ) -> LoadedPolicy:
        if isinstance(source, Path):
            opened, sha256 = self.open(source, options), None
        else:
            name, config = source.removeprefix(PREFIX), self.config(source, options)
            if name.endswith("-small"):
                return self.load(self._cached(name, seed), options, placement)
            opened = self.random(config, seed, placement.device)
            sha256 = digest_of(config, seed, placement.dtype)
        model = opened.build(placement.formatted(opened.weights), placement)
        give_back_freed()
        return LoadedPolicy(
            opened.config,
            model,
            opened.processors,
            opened.tokenizer,
            opened.action_space,
            sha256 or self.sha256(Path(source)),
            partial(opened.preparation, placement.device),
            self.group,
        )

    def inspect(self, directory: Path, options: LoadOptions) -> tuple[C, int]:
        opened = self.open(directory, options)
        config: C = opened.config
        for name in opened.weights.read_all(self.expected(config).must):
            self.check_weight(name, opened.weights.take(name))
        return config, self.parameters(config)

    def _cached(self, preset: str, seed: int) -> Path:
        """The folder of a small preset, written once."""
        described: Any = self.presets[preset]
        label = f"{preset}-{seed}-{fingerprint_of([self.presets_version, asdict(described)])}"
        return cached(label, lambda scratch: self.write(scratch, preset, seed))
