"""What a family of flow policies is to the rest of the engine: one class and a few protocols.

A *family* knows its folders and its presets of random weights, and loads them. What it loads has
three parts: a ``config`` that says what a robot must offer, a ``model`` that works on tensors, and
a ``preparation`` between the robot's units and the model's. The engine, the benchmark and the
precision gate know nothing else, so a new family is a folder beside this file and a row in
:mod:`vla_ros.engine.flow.families`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch

from vla_ros.action_space import ActionSpace
from vla_ros.core import Image
from vla_ros.engine.flow.buffers import Captured
from vla_ros.engine.flow.matrices import Formatting, Record
from vla_ros.engine.flow.primitive import Continuing, Guidance, Prefix
from vla_ros.engine.flow.solver import Euler
from vla_ros.engine.flow.weights import Expected, Weights, sha256_of
from vla_ros.engine.packed.graphs import Capture
from vla_ros.engine.quantised.formats import Formats


@dataclass(frozen=True, slots=True)
class Choice:
    """What somebody chose about a checkpoint; None leaves it to the checkpoint.

    ``tokenizer``: the folder of the language model's; ``steps`` of the solver; ``embodiment``: the
    robot among those that a checkpoint was trained for; ``unnorm_key``: the data set whose
    statistics scale the actions. A family says which of them it :attr:`Family.takes`.
    """

    tokenizer: str | None = None
    steps: int | None = None
    embodiment: str | None = None
    unnorm_key: str | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a model is to live, and how. ``capture`` makes graphs of functions; None runs them.
    ``formats`` of its weights; ``record`` notes what a directory in these formats holds."""

    device: torch.device
    dtype: torch.dtype
    capture: Capture | None = None
    formats: Formats = Formats()
    record: Record | None = None

    @property
    def like(self) -> torch.Tensor:
        """An empty tensor of that dtype, there."""
        return torch.empty(0, device=self.device, dtype=self.dtype)

    def formatted(self, weights: Weights) -> Weights:
        """The weights, whose matrices come in their formats."""
        return Formatting(weights, self.formats, self.record) if self.formats else weights


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """An observation as the network takes it: pixels [V, ...], prompt ids int64 [n], state."""

    pixels: torch.Tensor
    ids: torch.Tensor
    state: torch.Tensor


class Config(Protocol):
    """What every family's config says. A frozen dataclass; it may say more."""

    @property
    def kind(self) -> str:
        """One of :data:`vla_ros.engine.flow.names.FLOW_KINDS`."""
        ...

    @property
    def horizon(self) -> int:
        """Actions of a chunk."""
        ...

    @property
    def steps(self) -> int:
        """Of the solver; 0: a single pass, which starts from no noise."""
        ...

    @property
    def action_width(self) -> int:
        """Values of an action in model space, padding included."""
        ...

    @property
    def action_dim(self) -> int:
        """Values of an action of the robot."""
        ...

    @property
    def state_dim(self) -> int:
        """Values of the robot's state; 0: it takes none."""
        ...

    @property
    def cameras(self) -> tuple[str, ...]:
        """The checkpoint's names of its cameras, in order."""
        ...

    @property
    def continues(self) -> tuple[str, ...]:
        """How a chunk can continue an earlier one: of "rtc" and "rtc_trained"."""
        ...


class Network(Protocol):
    """A loaded model on one device, used by one thread. Inference only.

    ``padded``: it has graphs by length, which :meth:`prepare` captures before the first answer.
    """

    config: Any
    horizon: int
    width: int
    device: torch.device
    dtype: torch.dtype
    captured: Captured

    @property
    def padded(self) -> bool: ...

    def see(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels of the cameras that are there [V, ...] -> rows of the prefix [n, C]."""
        ...

    def prefill(self, features: torch.Tensor, ids: torch.Tensor, state: torch.Tensor) -> Prefix:
        """What :meth:`see` gave, prompt ids, state in model space -> the prefix."""
        ...

    def prepare(self, features: int, ways: Sequence[Continuing | None]) -> None:
        """Capture what may come behind so many rows of images."""
        ...

    def integrate(
        self,
        prefix: Prefix,
        state: torch.Tensor | None,
        noise: torch.Tensor | None,
        guidance: Guidance | None = None,
    ) -> torch.Tensor:
        """A chunk [H, D] float32 in model space; see :class:`~.primitive.PrefixHead`."""
        ...

    def noise(self, generator: torch.Generator) -> torch.Tensor | None:
        """Where a chunk starts [H, D], drawn on the CPU; None for a single pass."""
        ...

    def example(self, words: int, generator: torch.Generator) -> Inputs:
        """Inputs of the right shapes, with random pixels and so many words of prompt at most."""
        ...


class Stepping(Network, Protocol):
    """A network whose chunk is a solver's: one velocity a step."""

    solver: Euler

    def velocity(
        self, prefix: Prefix, x: torch.Tensor, step: int, begin: bool = True
    ) -> torch.Tensor:
        """The velocity [H, D] at x and one of the solver's steps, alone. ``begin`` False leaves
        out what is done once a chunk; another velocity must have done it."""
        ...


class Preparation(Protocol):
    """Between the robot's units and the model's, for one instruction at a time."""

    def instruct(self, text: str) -> None:
        """Take on an instruction. ValueError where it is too long for the model."""
        ...

    def inputs(self, images: Sequence[Image | None], state: torch.Tensor) -> Inputs:
        """Of one image for each of the config's cameras (None: said to be absent) and the robot's
        state float32 [state_dim], finite. InvalidAction where these cannot be used."""
        ...

    def actions(self, chunk: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """A chunk [H, D] on the CPU -> actions [H, action_dim] in the robot's units."""
        ...


class Loaded(Protocol):
    """A policy, read and checked."""

    @property
    def config(self) -> Any:
        """A :class:`Config`, whole."""
        ...

    @property
    def model(self) -> Any:
        """A :class:`Network`, a :class:`Stepping` one where ``config.steps`` is not 0."""
        ...

    @property
    def sha256(self) -> str:
        """Over everything that decides what it says."""
        ...

    @property
    def action_space(self) -> ActionSpace:
        """What the numbers of an action are."""
        ...

    def preparation(self) -> Preparation:
        """A new one, without an instruction."""
        ...


C = TypeVar("C", bound=Config)


class Family(ABC, Generic[C]):
    """Policies that are read and run in the same way.

    ``kinds`` of its configs, ``presets`` of random weights by name (``NAME-small`` goes through
    a folder and the real loader, ``NAME`` has the published size and is drawn as it is loaded),
    ``takes``: the fields of :class:`Choice` that mean something to it.
    A *source* is a folder, or ``random:<preset>``.
    """

    kinds: tuple[str, ...]
    presets: Mapping[str, C]
    takes: frozenset[str] = frozenset({"tokenizer", "steps"})

    @abstractmethod
    def owns(self, directory: Path) -> bool:
        """Whether the folder holds a policy of this family. Quick, and never raises: a folder
        that is damaged, or of another size, is still its own."""

    @abstractmethod
    def config(self, source: Path | str, choice: Choice) -> C:
        """Read no weights. CheckpointError in one line for what cannot be used."""

    @abstractmethod
    def load(self, source: Path | str, choice: Choice, place: Place, seed: int = 0) -> Loaded:
        """Read everything, cheap checks first; ``seed`` of random weights. CheckpointError."""

    @abstractmethod
    def write(self, directory: Path, preset: str, seed: int) -> None:
        """A folder in the authors' own layout with the random weights of a small preset."""

    @abstractmethod
    def inspect(self, directory: Path, choice: Choice) -> tuple[C, int]:
        """All that loading would find wrong, in the memory of one tensor: the config and the
        number of parameters. CheckpointError as of :meth:`load`."""

    @abstractmethod
    def expected(self, config: C) -> Expected:
        """The tensors of a checkpoint of ``config``."""

    def parameters(self, config: C) -> int:
        """Of a checkpoint of ``config``."""
        return sum(math.prod(shape) for shape in self.expected(config).must.values())

    def weight_bytes(self, config: C, dtype: torch.dtype) -> int:
        """What its weights take in memory."""
        return self.parameters(config) * dtype.itemsize

    def action_ends(self, directory: Path, choice: Choice) -> tuple[torch.Tensor, ...]:
        """Where nearly all actions of the data lie, in units: from and to [action_dim]; () where
        nothing says."""
        return ()

    def sha256(self, directory: Path) -> str:
        """What :attr:`Loaded.sha256` will be, without loading."""
        return sha256_of(directory)

    def refuse(self, choice: Choice) -> None:
        """ValueError where something was chosen that means nothing here."""
        made = [f.name for f in fields(choice) if getattr(choice, f.name) is not None]
        if idle := [name for name in made if name not in self.takes]:
            raise ValueError(
                f"{', '.join(idle)}: this means nothing to a policy of {', '.join(self.kinds)}"
            )
