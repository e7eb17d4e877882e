"""Families of policies, as the rest of the engine sees them.

A *family* knows its folders and its presets of random weights, and how one is loaded. Where the
networks are built of weights that are taken one by one (:class:`FlowFamily`: all but OpenVLA's)
loading and inspecting are the same for all. A new family is a model file on
:mod:`~vla_ros.engine.models.base`, a config reader with a :class:`FlowFamily` and a row in
:mod:`~vla_ros.engine.families.registry`.
"""

from __future__ import annotations

import hashlib
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from safetensors.torch import save_file

from vla_ros.core.action_space import ActionSpace
from vla_ros.engine.families.random import (
    PREFIX,
    VERSION,
    DrawnWeights,
    digest_of,
    fingerprint_of,
    write_tokenizer,
)
from vla_ros.engine.formats import STORED, Formats
from vla_ros.engine.io.action_data import ActionData
from vla_ros.engine.io.files import cached, memory_returned, text_in
from vla_ros.engine.io.quantize import (
    PreparedWeights,
    QuantizingWeights,
    Record,
    quantized_weights,
    read_origin,
    refuse_flow_formats,
)
from vla_ros.engine.io.streamed import stored_bytes
from vla_ros.engine.io.weights import WEIGHTS, Expected, FileWeights, Weights, sha256_of_folder
from vla_ros.engine.layers.graphs import Capture
from vla_ros.engine.layers.prepacked import Prepacked
from vla_ros.engine.layers.tuner import Tuner
from vla_ros.engine.models.corrector import FOLDER as CORRECTOR
from vla_ros.engine.models.preparation import Preparation
from vla_ros.engine.options import AUTO, FLOW, EngineOptions


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Choices about a checkpoint; None leaves one to the checkpoint.

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

    @staticmethod
    def of(options: EngineOptions) -> LoadOptions:
        """Those of an engine's options."""
        normalization = options.state_normalization
        return LoadOptions(
            options.tokenizer or None,
            options.flow_steps or None,
            options.embodiment or None,
            options.unnorm_key or None,
            None if normalization == AUTO else normalization,
            options.state_in_prompt or None,
        )


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of weights in memory: of all, of the ``largest`` piece, which is there twice while it
    is made, and of a ``head`` that is the word embeddings too, 0 where there is none."""

    weights: int
    largest: int
    head: int = 0


@dataclass(frozen=True, slots=True)
class Placement:
    """Device, dtype and formats of a model. ``capture`` makes graphs of functions; None runs them.
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
        """``weights``, whose matrices come in their formats."""
        if self.formats:
            weights = QuantizingWeights(weights, self.formats, self.record)
        if not self.packed:
            return weights
        prepare = Prepacked.of if self.tuner is None else self.tuner.of
        return PreparedWeights(weights, self.packed, prepare)


@dataclass(frozen=True, slots=True)
class Opened:
    """Parts of a policy, all checked; of the weights only the headers were read.

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
    its actions; ``group``: as of its :class:`Family`, ``preparation`` is a flow policy's."""

    config: Any
    model: Any
    processors: Any
    tokenizer: Any
    action_space: ActionSpace
    sha256: str
    preparation: Callable[[], Any] = object  # a Preparation
    group: str = FLOW


#: names of the part that sees: its towers, and what leads from them into the decoder
_SEEING = re.compile("vision|visual|projector|connector")
C = TypeVar("C")


class Family(ABC, Generic[C]):
    """Policies that are read and run in the same way.

    ``kinds`` of its configs, ``presets`` of random weights by name, ``presets_version`` of their
    folders; ``takes``: the fields of :class:`LoadOptions` that mean something to it; ``group``:
    TOKENS, FLOW or FAST of :mod:`~vla_ros.engine.options`, whose options it takes and whose decoder
    it has. Its folders have one of ``names`` for ``name_key`` in their config.json. A *source* is a
    folder, or ``random:<preset>``.
    """

    group = FLOW
    kinds: tuple[str, ...]
    name_key = "type"
    names: tuple[str, ...] = ()
    presets: Mapping[str, C]
    presets_version = 1
    takes: frozenset[str] = frozenset({"tokenizer", "steps"})

    def owns(self, directory: Path) -> bool:
        """The folder holds a policy of this family: one that is damaged, or of another size, too.
        Quick, and never raises."""
        return text_in(directory / "config.json", self.name_key) in (self.names or self.kinds)

    @abstractmethod
    def config(self, source: Path | str, options: LoadOptions) -> C:
        """The config of a policy, with somebody's choices; reads no weights. CheckpointError in one
        line for what cannot be used."""

    @abstractmethod
    def expected(self, config: C) -> Expected:
        """The tensors of a checkpoint of ``config``."""

    @abstractmethod
    def load(
        self, source: Path | str, options: LoadOptions, placement: Placement, seed: int = 0
    ) -> LoadedPolicy:
        """The policy, cheap checks first; ``seed`` of random weights. CheckpointError."""

    @abstractmethod
    def inspect(self, directory: Path, options: LoadOptions) -> tuple[C, int]:
        """The config and the number of parameters, after every check of :meth:`load`, in the memory
        of one tensor. CheckpointError as there."""

    @abstractmethod
    def write(self, directory: Path, config: C, seed: int) -> None:
        """Write a folder in the authors' own layout with random float32 weights."""

    def check(self, directory: Path, options: LoadOptions) -> None:
        """CheckpointError in one line for what cannot be used; reads no weights."""
        self.config(directory, options)

    def action_data(self, directory: Path, options: LoadOptions) -> ActionData:
        """What the folder says about the actions of its data. CheckpointError."""
        return ActionData()

    def data_sets(self, directory: Path) -> Mapping[str, bool]:
        """Values of ``unnorm_key``, each with whether it has statistics of the state."""
        return {}

    def choices(self, directory: Path, options: LoadOptions) -> list[LoadOptions]:
        """``options`` with each of the data sets that may be chosen, for a look at a folder before
        somebody chose; as they are where none need be or one is."""
        sets = {} if options.unnorm_key is not None else self.data_sets(directory)
        every = [
            replace(options, unnorm_key=key, state_normalization=None if state else "identity")
            for key, state in sets.items()
        ]
        return every or [options]

    def sha256(self, directory: Path) -> str:
        """The :attr:`LoadedPolicy.sha256` of a folder, without loading. A corrector changes what
        the robot does, so it counts."""
        found = sha256_of_folder(directory)
        if (beside := directory / CORRECTOR).is_dir():
            return hashlib.sha256((found + sha256_of_folder(beside)).encode()).hexdigest()
        return found

    def parameters(self, config: C) -> int:
        """Number of parameters of a checkpoint of ``config``."""
        return sum(math.prod(shape) for shape in self.expected(config).must.values())

    def weight_bytes(self, config: C, dtype: torch.dtype) -> int:
        """Bytes of its weights in memory."""
        return self.parameters(config) * dtype.itemsize

    def sizes(self, source: Path | str, options: LoadOptions, place: Placement) -> Sizes:
        """Bytes of its weights there; reads no weights. In formats of fewer bits nearly: which
        matrix belongs to which part is known when it is read, here its name says so, and between
        the decoder and the head the smaller format is taken."""
        config = self.config(source, options)
        origin = read_origin(source) if isinstance(source, Path) else None
        formats = place.formats if origin is None else origin.formats
        shapes, width = self.expected(config).must, place.dtype.itemsize
        each = {name: math.prod(shape) * width for name, shape in shapes.items()}
        total = self.weight_bytes(config, place.dtype)
        seeing, others = {formats.vision} - {STORED}, {formats.decoder, formats.head} - {STORED}
        for name, shape in shapes.items():
            kinds = seeing if _SEEING.search(name) else others
            if kinds and len(shape) == 2 and "embed" not in name:
                few = min(stored_bytes(*shape, kind) for kind in kinds)
                total -= max(each[name] - few, 0)
                each[name] = few
        return Sizes(total, max(each.values()))

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

    def cached(self, preset: str, seed: int) -> Path:
        """The folder of a small preset, written once."""
        described: Any = self.presets[preset]
        label = f"{preset}-{seed}-{fingerprint_of([self.presets_version, asdict(described)])}"
        return cached(label, lambda scratch: self.write(scratch, self.presets[preset], seed))


class FlowFamily(Family[C]):
    """A family whose networks are built of weights that are taken one by one: the flow policies,
    and pi0-FAST.

    Of its ``presets`` ``NAME-small`` goes through a folder and the real loader, ``NAME`` has the
    published size and is drawn as it is loaded. Its own are: the config of a folder, its *units*
    (what is between a robot's units and the model's: scalers, or a robot), its tokenizer (*words*),
    and what is opened of these; the same for random weights, and how a folder of them is written.
    ``weights_file`` in the folder, "" for its shards; ``special``: the tokens that its small
    tokenizer has besides.
    """

    weights_file = WEIGHTS
    special: tuple[str, ...] = ()

    def config(self, source: Path | str, options: LoadOptions) -> C:
        if isinstance(source, Path):
            return self.chosen(self.read_config(source), options)
        return self.chosen(self.presets[source.removeprefix(PREFIX)], options)

    @abstractmethod
    def read_config(self, directory: Path) -> C:
        """The config of a folder. CheckpointError names the file and what is wrong."""

    def chosen(self, config: C, options: LoadOptions) -> C:
        """``config`` with somebody's choices. CheckpointError: there is none such."""
        given: Any = config
        return config if options.steps is None else replace(given, steps=options.steps)

    @abstractmethod
    def units(self, directory: Path, config: C, options: LoadOptions) -> Any:
        """The units of a folder. CheckpointError in one line."""

    @abstractmethod
    def words(self, directory: Path, config: C, options: LoadOptions, units: Any) -> Any:
        """The tokenizer of a folder, or of the path that was chosen. CheckpointError."""

    @abstractmethod
    def opened(
        self,
        config: C,
        weights: Any,
        units: Any,
        words: Any,
        directory: Path,
        options: LoadOptions,
    ) -> Opened:
        """A policy of its parts, read of the files in ``directory``."""

    def open(self, directory: Path, options: LoadOptions) -> Opened:
        """Everything but the weights. CheckpointError in one line for what cannot be used."""
        config = self.config(directory, options)
        units = self.units(directory, config, options)
        words = self.words(directory, config, options, units)
        weights = self.weights(directory, config)
        return self.opened(config, weights, units, words, directory, options)

    def weights(self, directory: Path, config: C) -> Any:
        """The weights of a folder, as they are stored. CheckpointError."""
        expected = self.expected(config)
        return quantized_weights(directory, expected) or FileWeights(
            directory / self.weights_file, expected
        )

    def random(self, config: C, seed: int, device: torch.device) -> Opened:
        """A policy of random weights that are drawn as they are taken."""
        label = f"{self.kinds[0]}-tokenizer-{VERSION}-{self.presets_version}"
        directory, options = cached(label, self.write_tokenizer), LoadOptions()
        units = self.random_units(config)
        words = self.words(directory, config, options, units)
        weights = self.drawn(config, seed, device)
        return self.opened(config, weights, units, words, directory, options)

    @abstractmethod
    def random_units(self, config: C) -> Any:
        """Units for random weights."""

    def drawn(self, config: C, seed: int, device: torch.device) -> DrawnWeights:
        """The random weights of a checkpoint of ``config``."""
        return DrawnWeights(self.expected(config).must, seed, device)

    def write(self, directory: Path, config: C, seed: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.write_config(directory, config, self.random_units(config))
        self.write_tokenizer(directory)
        drawn = self.drawn(config, seed, torch.device("cpu"))
        self.save(directory, {name: drawn.take(name) for name in drawn.shapes})

    @abstractmethod
    def write_config(self, directory: Path, config: C, units: Any) -> None:
        """Write config.json and the files of the units, which are read back."""

    def write_tokenizer(self, directory: Path) -> None:
        """Write the small tokenizer."""
        write_tokenizer(directory / "tokenizer.json", more=self.special)

    def save(self, directory: Path, tensors: dict[str, torch.Tensor]) -> None:
        """Write the weights under the authors' names."""
        save_file(tensors, str(directory / WEIGHTS))

    def check(self, directory: Path, options: LoadOptions) -> None:
        self.open(directory, options)

    def check_weight(self, name: str, tensor: torch.Tensor) -> None:
        """Refuse a stored table that is not what it should be. CheckpointError."""

    def load(
        self, source: Path | str, options: LoadOptions, placement: Placement, seed: int = 0
    ) -> LoadedPolicy:
        if isinstance(source, Path):
            opened, sha256 = self.open(source, options), None
        else:
            name, config = source.removeprefix(PREFIX), self.config(source, options)
            if name.endswith("-small"):
                return self.load(self.cached(name, seed), options, placement)
            opened = self.random(config, seed, placement.device)
            sha256 = digest_of(config, seed, placement.dtype)
        with memory_returned():
            model = opened.build(placement.formatted(opened.weights), placement)
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
