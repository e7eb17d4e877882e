"""Behaviour cloning: the loop, what it reports, and how it stops and goes on.

One thread, one process. Killed at any moment it goes on from the last saved state and, on the
same machine with the same number of threads, repeats the same losses.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from vla_ros.errors import UserError
from vla_ros.train.data.frames import Frames, load_frames
from vla_ros.train.export import export
from vla_ros.train.journal import Entry, Journal
from vla_ros.train.kinds import kind_of
from vla_ros.train.objectives import Objective
from vla_ros.train.optimiser import Optimiser
from vla_ros.train.options import TrainOptions, options_json
from vla_ros.train.state import State, load_state, save_state

_MEMORY = 0.999  # of the moving average of the weights


@dataclass(frozen=True, slots=True)
class Progress:
    """After a step: losses of its batch (see Entry), and samples a second of this sitting."""

    step: int
    steps: int
    loss: float
    patch_loss: float
    place_loss: float
    error: float
    samples_per_s: float


class Trainer:
    """A run in ``directory``; begins where the last sitting's saved state ends.

    UserError: the data does not fit the model.
    """

    def __init__(
        self,
        options: TrainOptions,
        directory: Path,
        device: torch.device,
        compiled: bool = False,
    ) -> None:
        self.options, self.directory, self.device = options, directory, device
        self.kind = kind_of(options)
        self._compiled = compiled
        self._sets: list[Path] = [Path(path) for path in options.data]
        self.frames = self._load()
        self.network = self.kind.build(len(self.frames.info.objects))
        self.kind.begin(options, self.frames)
        self.network.to(device)
        self._average = {n: p.detach().clone() for n, p in self.network.named_parameters()}
        self._optimiser = Optimiser(self.network, options.learning_rate, options.weight_decay)
        self.step, self._seconds = 0, 0.0
        self._resume()
        self._objective = self._make_objective()

    def add_data(self, directories: list[Path]) -> None:
        """Train on these data sets too, from the next step on."""
        new = [path for path in directories if path not in self._sets]
        if new:
            self._sets += new
            self.frames = self._load()
            self._objective = self._make_objective()

    def train(
        self,
        until: int,
        report: Callable[[Progress], None],
        save_every_s: float = 120.0,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Go to step ``until``, or to where ``stop`` says so; then save."""
        journal = Journal(self.directory, self.step)
        start, first, saved = time.monotonic(), self.step, time.monotonic()
        before = self._seconds
        while self.step < until and not stop():
            entry = self.train_step()
            journal.add(entry)
            now = time.monotonic()
            self._seconds = before + now - start
            speed = (self.step - first) * self.options.batch / max(now - start, 1e-9)
            report(
                Progress(
                    self.step,
                    self.options.steps,
                    entry.loss,
                    entry.patch_loss,
                    entry.place_loss,
                    entry.error,
                    speed,
                )
            )
            if now - saved >= save_every_s:
                self.save()
                saved = time.monotonic()
        journal.close()
        self.save()

    def train_step(self) -> Entry:
        """One step of the optimiser."""
        rate = self.options.rate(self.step)
        losses = self._objective.losses(self.step)
        whole = losses.action + self.options.patch_weight * losses.patch
        (whole + self.options.place_weight * losses.place).backward()  # type: ignore[no-untyped-call]
        parameters = [p for p in self.network.parameters() if p.requires_grad]
        torch.nn.utils.clip_grad_norm_(parameters, self.options.clip)
        self._optimiser.step(rate)
        self._remember()
        action, patch, place, error = (
            part.item() for part in (losses.action, losses.patch, losses.place, losses.error)
        )
        entry = Entry(self.step, action, patch, place, error, rate)
        if entry.loss != entry.loss:
            raise UserError(f"the loss of step {self.step} is no number: lower --learning-rate")
        self.step += 1
        return entry

    def _remember(self) -> None:
        """Move the average on; in the first steps it follows more closely."""
        memory = min(_MEMORY, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            new = [p.detach() for p in self.network.parameters()]
            torch._foreach_lerp_(list(self._average.values()), new, 1.0 - memory)

    def save(self) -> None:
        """Make the present step the one to go on from."""
        model = self.network.state_dict()
        state = State(self.step, self._seconds, model, self._average, self._optimiser.state_dict())
        save_state(self.directory, state)

    def export(self, directory: Path) -> None:
        """Write the averaged weights as a checkpoint of the engine."""
        record = {
            "step": self.step,
            "seconds": round(self._seconds),
            "device": self.device.type,
            "options": options_json(self.options),
        }
        present = {n: p.detach().clone() for n, p in self.network.named_parameters()}
        self._set_weights(self._average)
        export(lambda path: self.kind.write(self.frames, path), self.frames, record, directory)
        self._set_weights(present)

    def _set_weights(self, weights: dict[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self.network.named_parameters():
                parameter.copy_(weights[name])

    def _load(self) -> Frames:
        kind = self.kind
        return load_frames(self._sets, kind.image_size, kind.images, kind.chunk, kind.delays)

    def _make_objective(self) -> Objective:
        return self.kind.objective(self.options, self.frames, self.device, self._compiled)

    def _resume(self) -> None:
        state = load_state(self.directory, self.device)
        if state is None:
            return
        self.network.load_state_dict(state.model)
        self._average = state.average
        self._optimiser.load_state_dict(state.optimiser)
        self.step, self._seconds = state.step, state.seconds
