"""The training loop of everything that is trained here: steps down a loss, their curve, the moving
average of the weights, the state on disk and the stop.

One thread, one process. Killed at any moment it goes on from the last saved state and, on the
same machine with the same number of threads, repeats the same losses.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

import torch
from torch import nn

from vla_ros.core.errors import UserError
from vla_ros_lab.train.optimizer import Optimizer

STATE_FILE = "state.pt"
JOURNAL_FILE, VALIDATION_FILE = "log.jsonl", "validation.jsonl"
_MEMORY = 0.999  # of the moving average of the weights
_JUDGED = 8  # batches of held-out frames that a validation is the mean of
_NONE = torch.zeros(())


@dataclass(frozen=True, slots=True)
class Losses:
    """Losses of one batch, scalars: of the actions, of the two auxiliary heads (0 where there is
    none), and the error (see Entry)."""

    action: torch.Tensor
    patch: torch.Tensor = _NONE
    place: torch.Tensor = _NONE
    error: torch.Tensor = _NONE


class Objective(Protocol):
    """Objective of a training: it knows the data and the network."""

    def losses(self, step: int) -> Losses:
        """The losses of the batch of ``step``, with gradients."""
        ...


class Recipe(Protocol):
    """A recipe as the loop reads it: the norm that gradients are clipped to, and the schedule."""

    @property
    def clip(self) -> float: ...

    def rate(self, step: int) -> float:
        """Learning rate of a step."""
        ...


@dataclass(frozen=True, slots=True)
class Entry:
    """Losses of the batch of one step; ``step`` counts from 0.

    ``error``: mean distance of the likeliest action token from the label, in [-1, 1] units,
    the tokens before it given.
    """

    step: int
    loss: float
    patch_loss: float
    place_loss: float
    error: float
    rate: float


@dataclass(frozen=True, slots=True)
class Validation:
    """Losses of the averaged weights after ``step`` steps, on ``episodes`` that are not trained on:
    see Entry."""

    step: int
    episodes: int
    loss: float
    error: float


class Loop:
    """Training of ``network``: step n goes down ``losses(n)``, whose patch and place loss count by
    ``weights``. In a ``directory`` it begins where the last sitting's saved state ends, and keeps
    the average of the weights, which is what a checkpoint gets; without one all is in one sitting.

    ``judges``: objectives of ``held_out`` episodes, by which each saved state is validated.
    ``pace``: steps a second of this sitting.
    """

    judges: Sequence[Objective] = ()
    held_out = 0
    validation: Validation | None = None
    pace = 0.0

    def __init__(
        self,
        network: nn.Module,
        optimizer: Optimizer,
        recipe: Recipe,
        losses: Callable[[int], Losses],
        weights: tuple[float, float] = (0.0, 0.0),
        directory: Path | None = None,
    ) -> None:
        self.network, self._optimizer, self._recipe = network, optimizer, recipe
        self._losses, self._weights, self._directory = losses, weights, directory
        self.step, self.seconds = 0, 0.0
        self.average: dict[str, torch.Tensor] = {}
        if directory is not None:
            self.average = self._present()
            self._resume(directory)

    def run(
        self,
        until: int,
        report: Callable[[Entry], None],
        stop: Callable[[], bool],
        save_every_s: float = 120.0,
    ) -> None:
        """Go to step ``until``, or to where ``stop`` ends it; then save."""
        journal = open_journal(self._directory, self.step) if self._directory else None
        began, first, before = time.monotonic(), self.step, self.seconds
        saved = began
        while self.step < until and not stop():
            entry = self.train_step()
            if journal:
                journal.write(_line(entry))
            now = time.monotonic()
            self.seconds = before + now - began
            self.pace = (self.step - first) / max(now - began, 1e-9)
            report(entry)
            if self._directory and now - saved >= save_every_s:
                self.save()
                saved = now
        if journal:
            journal.close()
            self.save()

    def train_step(self) -> Entry:
        """One step of the optimizer. UserError: the loss is no number."""
        rate = self._recipe.rate(self.step)
        losses = self._losses(self.step)
        patch, place = self._weights
        whole = losses.action + patch * losses.patch + place * losses.place
        whole.backward()  # type: ignore[no-untyped-call]
        trained = [parameter for _, parameter in self._trained()]
        torch.nn.utils.clip_grad_norm_(trained, self._recipe.clip)
        self._optimizer.step(rate)
        self._remember()
        action, patch_loss, place_loss, error = (
            part.item() for part in (losses.action, losses.patch, losses.place, losses.error)
        )
        entry = Entry(self.step, action, patch_loss, place_loss, error, rate)
        if entry.loss != entry.loss:
            raise UserError(f"the loss of step {self.step} is no number: lower --learning-rate")
        self.step += 1
        return entry

    def _remember(self) -> None:
        """Move the average on; in the first steps it follows more closely."""
        if not self.average:
            return
        memory = min(_MEMORY, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            new = [parameter.detach() for _, parameter in self._trained()]
            torch._foreach_lerp_(list(self.average.values()), new, 1.0 - memory)

    def save(self) -> None:
        """Make the present step the one to go on from, and validate it."""
        assert self._directory is not None
        frozen = {n for n, p in self.network.named_parameters() if not p.requires_grad}
        model = {n: t for n, t in self.network.state_dict().items() if n not in frozen}
        optimizer = self._optimizer.state_dict()
        state = TrainState(self.step, self.seconds, model, self.average, optimizer)
        save_state(self._directory, state)
        if self.judges:
            self.validation = self.validate()
            with (self._directory / VALIDATION_FILE).open("a") as stream:
                stream.write(json.dumps(asdict(self.validation)) + "\n")

    def validate(self) -> Validation:
        """Mean losses of the averaged weights on what is held out."""
        with self.averaged(), torch.no_grad():
            found = [judge.losses(number) for judge in self.judges for number in range(_JUDGED)]
        loss, error = (
            sum(getattr(one, name).item() for one in found) / len(found)
            for name in ("action", "error")
        )
        return Validation(self.step, self.held_out, loss, error)

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """The network with its averaged weights."""
        present = self._present()
        self._set_weights(self.average)
        yield
        self._set_weights(present)

    def _set_weights(self, weights: dict[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self._trained():
                parameter.copy_(weights[name])

    def _present(self) -> dict[str, torch.Tensor]:
        return {name: parameter.detach().clone() for name, parameter in self._trained()}

    def _trained(self) -> list[tuple[str, nn.Parameter]]:
        """Parameters that change; the frozen ones are of the checkpoint that the run begins
        with."""
        return [(n, p) for n, p in self.network.named_parameters() if p.requires_grad]

    def _resume(self, directory: Path) -> None:
        state = load_state(directory, next(self.network.parameters()).device)
        if state is None:
            return
        self.network.load_state_dict(state.model, strict=False)  # what is frozen is not in it
        self.average = {name: state.average[name] for name in self.average}
        self._optimizer.load_state_dict(state.optimizer)
        self.step, self.seconds = state.step, state.seconds


# The state of a run on disk: there is always a whole one, whenever the process is killed.
#
# Batches and noise are functions of (seed, step), so the step is the state of all random numbers.


@dataclass(frozen=True, slots=True)
class TrainState:
    """The state after ``step`` steps. ``seconds``: training time so far, over all sittings."""

    step: int
    seconds: float
    model: dict[str, Any]
    average: dict[str, Any]
    optimizer: dict[str, Any]


def save_state(directory: Path, state: TrainState) -> None:
    """Write beside the old state, reach the disk, then replace it."""
    path = directory / STATE_FILE
    scratch = path.with_suffix(".tmp")
    parts = {name: getattr(state, name) for name in TrainState.__dataclass_fields__}
    with scratch.open("wb") as stream:
        torch.save(parts, stream)
        stream.flush()
        os.fsync(stream.fileno())
    scratch.replace(path)


def load_state(directory: Path, device: torch.device) -> TrainState | None:
    """The last whole state; None where there is none yet."""
    path = directory / STATE_FILE
    if not path.exists():
        return None
    return TrainState(**torch.load(path, map_location=device, weights_only=True))


def open_journal(directory: Path, step: int) -> TextIO:
    """The loss curve of a run, one line of JSON a step: opened at a step, without what came after
    the saved state."""
    path = directory / JOURNAL_FILE
    kept = [entry for entry in read_journal(directory) if entry.step < step]
    scratch = path.with_suffix(".tmp")
    scratch.write_text("".join(map(_line, kept)))
    scratch.replace(path)
    return path.open("a", buffering=1)


def read_journal(directory: Path) -> list[Entry]:
    """Every whole line of a run's journal."""
    path = directory / JOURNAL_FILE
    if not path.exists():
        return []
    lines = path.read_text().split("\n")[:-1]  # without its end a line is not whole
    return [Entry(**json.loads(line)) for line in lines]


def _line(entry: Entry) -> str:
    return json.dumps(asdict(entry)) + "\n"


# The C library's allocator, set so that a training step does not fault its memory in anew.


_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # of glibc's malloc.h
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Let freed blocks be used again instead of going back to the kernel; glibc only.

    Every activation is larger than glibc's limit for blocks that are mapped one by one, and the
    kernel clears each page of a fresh mapping: that took a third of a step on two cores.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, _NEVER))
