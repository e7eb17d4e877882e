"""Behaviour cloning: the loop, what it reports, and how it stops and goes on.

One thread, one process. Killed at any moment it goes on from the last saved state and, on the
same machine with the same number of threads, repeats the same losses.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from vla_ros.engine.checkpoint import load_checkpoint
from vla_ros.engine.config import ModelConfig
from vla_ros.engine.small_tokenizer import build_tokenizer
from vla_ros.engine.tokens import ActionTokens, prompt_text
from vla_ros.train import TrainError
from vla_ros.train.arch import ARCHITECTURES
from vla_ros.train.batches import Batch, Batches
from vla_ros.train.export import export
from vla_ros.train.frames import Frames, load_frames
from vla_ros.train.journal import Entry, Journal
from vla_ros.train.loss import SoftBins, patch_loss, token_error
from vla_ros.train.network import Network
from vla_ros.train.optimiser import Optimiser
from vla_ros.train.options import TrainOptions, options_json
from vla_ros.train.state import State, load_state, save_state

_OWN = 2.0  # weight of the sentence that was pursued, against each of the others
_MEMORY = 0.999  # of the moving average of the weights


@dataclass(frozen=True, slots=True)
class Progress:
    """After a step: losses of its batch (see Entry), and samples a second of this sitting."""

    step: int
    steps: int
    loss: float
    patch_loss: float
    error: float
    samples_per_s: float


class Trainer:
    """A run in ``directory``; begins where the last sitting's saved state ends.

    TrainError: the data does not fit the model.
    """

    def __init__(
        self,
        options: TrainOptions,
        directory: Path,
        device: torch.device,
        compiled: bool = False,
    ) -> None:
        self.options, self.directory, self.device = options, directory, device
        self.config = model_config(options)
        self._autocast = options.dtype == "bfloat16"
        self._sets: list[Path] = [Path(path) for path in options.data]
        self.frames = self._load()
        self.network = Network(self.config, len(self.frames.info.objects), options.seed)
        self._borrow_vision()
        self.network.to(device)
        self._average = {n: p.detach().clone() for n, p in self.network.named_parameters()}
        self._forward = torch.compile(self.network, dynamic=False) if compiled else self.network
        self._optimiser = Optimiser(self.network, options.learning_rate, options.weight_decay)
        self._actions = ActionTokens(self.config.action_vocab, self.config.bins)
        self._soft = SoftBins(self._actions, options.sigma_bins, device)
        self.step, self._seconds = 0, 0.0
        self._resume()
        self._batches = self._make_batches()

    def add_data(self, directories: list[Path]) -> None:
        """Train on these data sets too, from the next step on."""
        new = [path for path in directories if path not in self._sets]
        if new:
            self._sets += new
            self.frames = self._load()
            self._batches = self._make_batches()

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
                    self.step, self.options.steps, entry.loss, entry.patch_loss, entry.error, speed
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
        loss, patches, error = self.losses(self._batches.batch(self.step))
        (loss + self.options.patch_weight * patches).backward()  # type: ignore[no-untyped-call]
        parameters = [p for p in self.network.parameters() if p.requires_grad]
        torch.nn.utils.clip_grad_norm_(parameters, self.options.clip)
        self._optimiser.step(rate)
        self._remember()
        entry = Entry(self.step, loss.item(), patches.item(), error.item(), rate)
        if entry.loss != entry.loss:
            raise TrainError(f"the loss of step {self.step} is no number: lower --learning-rate")
        self.step += 1
        return entry

    def losses(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Loss of the action tokens, of the patches, and the error (see Entry)."""
        autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=self._autocast)
        with autocast:
            rows = batch.rows.flatten(1)
            logits, features = self._forward(batch.pixels, batch.ids, rows, batch.layout)
            patches = self.network.patch_head(features)
        logits = logits.view(*batch.rows.shape, -1)
        weights = torch.ones(batch.rows.shape, device=self.device)
        weights[:, 0] = _OWN
        error = token_error(logits[:, 0], batch.tokens[:, 0], self._actions)
        loss = self._soft(logits, batch.tokens, weights)
        return loss, patch_loss(patches, batch.patches), error

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
        export(self.network, self.frames, record, directory)
        self._set_weights(present)

    def _set_weights(self, weights: dict[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self.network.named_parameters():
                parameter.copy_(weights[name])

    def _load(self) -> Frames:
        size = self.config.image_size
        return load_frames(self._sets, size, self.config.images)

    def _make_batches(self) -> Batches:
        tokenizer = build_tokenizer()
        style = self.config.prompt_style
        return Batches(
            self.frames,
            self.config,
            lambda text: list(tokenizer.encode(prompt_text(style, text)).ids),
            self.options.batch,
            self.options.branches,
            self.options.seed,
            self.options.shift,
            self.device,
        )

    def _borrow_vision(self) -> None:
        if not self.options.vision_from:
            return
        source = load_checkpoint(self.options.vision_from, torch.device("cpu"), torch.float32)
        if source.config.towers != self.config.towers:
            raise TrainError(f"{self.options.vision_from} has other vision towers than this model")
        backbone = self.network.vision.vision_backbone
        prefix = "vision_backbone."
        backbone.load_state_dict({n: source.tensors[prefix + n] for n in backbone.state_dict()})
        backbone.requires_grad_(False)

    def _resume(self) -> None:
        state = load_state(self.directory, self.device)
        if state is None:
            return
        self.network.load_state_dict(state.model)
        self._average = state.average
        self._optimiser.load_state_dict(state.optimiser)
        self.step, self._seconds = state.step, state.seconds


def model_config(options: TrainOptions) -> ModelConfig:
    """The model that the options name, with one or two cameras."""
    if options.arch not in ARCHITECTURES:
        raise TrainError(f"arch is {options.arch!r}: give one of {', '.join(ARCHITECTURES)}")
    return replace(ARCHITECTURES[options.arch], images=2 if options.wrist else 1)
