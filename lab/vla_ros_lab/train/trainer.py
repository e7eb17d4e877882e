"""Behavior cloning: the loop, what it reports, and how it stops and goes on.

One thread, one process. Killed at any moment it goes on from the last saved state and, on the
same machine with the same number of threads, repeats the same losses.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from vla_ros.core.errors import UserError
from vla_ros.engine.families.openvla import PRESETS, load_checkpoint, save_checkpoint
from vla_ros.engine.families.random import write_tokenizer
from vla_ros.engine.families.registry import family_of
from vla_ros.engine.io.config import ModelConfig, TextConfig, TowerConfig
from vla_ros.engine.io.hub import resolve
from vla_ros.engine.layers.devices import multiplies_bfloat16
from vla_ros.engine.options import TOKENS
from vla_ros_lab.train.batches import held_out, only, weighted
from vla_ros_lab.train.flow import (
    FLOW_ARCHITECTURES,
    FlowBatches,
    FlowNetwork,
    FlowObjective,
    begin_from,
    go_on_from,
    scaling_of,
    tokenizer_for,
    write_flow,
)
from vla_ros_lab.train.frames import DataSummary, FrameTable, load_parts
from vla_ros_lab.train.lora import LoraKind
from vla_ros_lab.train.network import Alternating, Network, Objective, make_objective
from vla_ros_lab.train.options import PARENT, TrainOptions, options_json, parent_of

# The models that can be trained, by name.


_SMALL = PRESETS["small"]

#: text tokens 0 to 726, then the actions: other tokens than the target's for the same bins
_DRAFT_VOCAB = 983
_DRAFT_TEXT = TextConfig(
    "qwen2", vocab_size=1024, hidden_size=192, intermediate_size=512, layers=2, heads=3,
    kv_heads=1, head_dim=64, rope_theta=1e6, tied=True,
)  # fmt: skip
_TINY_TOWER = TowerConfig(32, 3, 2, 64, image_size=32, patch=8)
_TINY_TEXT = TextConfig(
    vocab_size=1024, hidden_size=32, intermediate_size=64, layers=2, heads=2, kv_heads=1,
    head_dim=16,
)  # fmt: skip

ARCHITECTURES: dict[str, ModelConfig] = {
    "small": _SMALL,
    # OpenVLA-OFT's: a chunk of 8 actions from one pass; begin it from a trained small one
    "small-oft": PRESETS["small-oft"],
    # the same chunk said token by token: begin it likewise
    "small-chunk": PRESETS["small-chunk"],
    "qwen2-draft": ModelConfig(_DRAFT_TEXT, _SMALL.towers, _DRAFT_VOCAB, prompt_style="qwen"),
    "tiny": ModelConfig(_TINY_TEXT, (_TINY_TOWER,), _SMALL.action_vocab),
    "tiny-oft": ModelConfig(
        _TINY_TEXT, (_TINY_TOWER,), _SMALL.action_vocab, chunk=4, parallel=True
    ),
    "tiny-chunk": ModelConfig(_TINY_TEXT, (_TINY_TOWER,), _SMALL.action_vocab, chunk=3),
    "tiny-draft": ModelConfig(
        TextConfig(
            "qwen2", vocab_size=1024, hidden_size=32, intermediate_size=64, layers=1, heads=2,
            kv_heads=1, head_dim=16, rope_theta=1e6, tied=True,
        ),
        (_TINY_TOWER,),
        _DRAFT_VOCAB,
        prompt_style="qwen",
    ),
}  # fmt: skip


# From a network in training to a checkpoint directory that the engine loads.


RECORD_FILE = "training.json"


def export(
    write: Callable[[Path], None], learned: DataSummary, record: dict[str, Any], directory: Path
) -> None:
    """Let ``write`` fill a directory, with ``record`` (recipe, step, data) beside it.

    The directory is written aside and then put in place of an older one.
    """
    scratch = directory.with_name(f"{directory.name}.{os.getpid()}.tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    write(scratch)
    whole = {**record, "data_sha256": learned.digest, "frames": learned.frames}
    whole["demonstrations"] = learned.demonstrations
    (scratch / RECORD_FILE).write_text(json.dumps(whole, indent=1) + "\n")
    if directory.exists():
        old = directory.with_name(f"{directory.name}.{os.getpid()}.old")
        directory.rename(old)
        scratch.rename(directory)
        shutil.rmtree(old)
    else:
        scratch.rename(directory)


def write_tokens(network: Network, learned: DataSummary, directory: Path) -> None:
    """OpenVLA's layout in bf16."""
    tensors = {n: t.detach().cpu().to(torch.bfloat16) for n, t in network.tensors().items()}
    save_checkpoint(directory, network.config, tensors, learned.norm_stats(), write_tokenizer)


# The two kinds of policy that are trained, and what is different about them: everything but
# the loop.


CPU = torch.device("cpu")


class Kind(Protocol):
    """``image_size`` and ``images`` are what the model sees, ``chunk`` how many of the actions
    that followed a frame are read with it, ``delays`` how many of the images before it."""

    image_size: int
    images: int
    chunk: int
    delays: int

    def build(self, objects: int) -> nn.Module:
        """The network, on the CPU; ``objects``: how many things the patch loss names."""
        ...

    def begin(self, options: TrainOptions, frames: FrameTable) -> None:
        """Take over what the options name of other checkpoints. UserError: it does not fit."""
        ...

    def objective(
        self, options: TrainOptions, frames: FrameTable, device: torch.device, compiled: bool
    ) -> Objective:
        """What the network is to learn. UserError: unfit data."""
        ...

    def write(self, learned: DataSummary, directory: Path) -> None:
        """A checkpoint of the engine, in a directory that is there."""
        ...


class TokenKind:
    """Policies of OpenVLA's architecture."""

    def __init__(self, options: TrainOptions) -> None:
        config = replace(ARCHITECTURES[options.arch], images=2 if options.wrist else 1)
        if options.delays and config.chunk > 1:
            raise UserError(f"arch {options.arch} gives chunks: delays are for single actions")
        self.config, self.delays = replace(config, max_delay=options.delays), options.delays
        self.image_size, self.images = self.config.image_size, self.config.images
        # Of chunks that are said token by token, what lies ahead is worked out.
        self.chunk, self._seed = self.config.chunk if config.parallel else 1, options.seed

    def build(self, objects: int) -> nn.Module:
        """See Kind."""
        self.network = Network(self.config, objects, self._seed)
        return self.network

    def begin(self, options: TrainOptions, frames: FrameTable) -> None:
        """See Kind."""
        if options.init_from:
            source = load_checkpoint(options.init_from, CPU, torch.float32)
            if (source.config.towers, source.config.text) != (self.config.towers, self.config.text):
                raise UserError(f"{options.init_from} has other sizes than this model")
            self.network.load_tensors(source.tensors)
        if options.vision_from:
            self._borrow_vision(options.vision_from)

    def _borrow_vision(self, name: str) -> None:
        source = load_checkpoint(name, CPU, torch.float32)
        if source.config.towers != self.config.towers:
            raise UserError(f"{name} has other vision towers than this model")
        backbone = self.network.vision.vision_backbone
        prefix = "vision_backbone."
        backbone.load_state_dict({n: source.tensors[prefix + n] for n in backbone.state_dict()})
        backbone.requires_grad_(False)

    def objective(
        self, options: TrainOptions, frames: FrameTable, device: torch.device, compiled: bool
    ) -> Objective:
        """See Kind."""
        return make_objective(frames, self.network, options, device, compiled=compiled)

    def write(self, learned: DataSummary, directory: Path) -> None:
        """See Kind."""
        write_tokens(self.network, learned, directory)


class FlowKind:
    """Policies of pi0's architecture."""

    chunk = 1  # what lies ahead is worked out
    delays = 0

    def __init__(self, options: TrainOptions) -> None:
        if options.wrist:
            raise UserError(f"--wrist: {options.arch} has one camera")
        if options.delays:
            raise UserError(f"arch {options.arch} gives chunks: delays are for single actions")
        if options.vision_from:
            raise UserError(f"--vision-from: {options.arch} begins with --init-from, eyes included")
        self.config = FLOW_ARCHITECTURES[options.arch]
        self.image_size, self.images = self.config.image_size, len(self.config.cameras)
        self._seed = options.seed

    def build(self, objects: int) -> nn.Module:
        """See Kind."""
        self.network = FlowNetwork(self.config, objects, self._seed)
        return self.network

    def begin(self, options: TrainOptions, frames: FrameTable) -> None:
        """See Kind."""
        self.network.scales.copy_(scaling_of(frames).tensor())
        if not options.init_from:
            return
        directory = resolve(options.init_from)
        if family_of(directory).group != TOKENS:
            go_on_from(self.network, directory)
        else:
            source = load_checkpoint(options.init_from, CPU, torch.float32)
            begin_from(self.network, source, frames, options.seed)

    def objective(
        self, options: TrainOptions, frames: FrameTable, device: torch.device, compiled: bool
    ) -> Objective:
        """See Kind."""
        network = self.network
        batches = FlowBatches(
            frames, network.config, tokenizer_for(network.config), network.scaling, options.batch,
            options.branches, options.samples, options.seed, options.shift, device,
        )  # fmt: skip
        return FlowObjective(network, batches.batch, options.dtype, device, compiled)

    def write(self, learned: DataSummary, directory: Path) -> None:
        """See Kind."""
        write_flow(self.network, directory)


def kind_of(options: TrainOptions) -> Kind:
    """The kind that ``options.arch`` names.

    UserError: there is no such architecture, or an option is not for it.
    """
    if options.lora:
        if options.rounds or options.wrist or options.delays or options.vision_from:
            raise UserError("--lora: what the checkpoint sees and is told stays as it is, and it"
                            " learns from --data alone")  # fmt: skip
        return LoraKind(options)
    if options.arch in FLOW_ARCHITECTURES:
        if options.rounds:
            raise UserError("--dagger is for token policies: correct a flow policy with its own"
                            " episodes (vla-ros collect --policy)")  # fmt: skip
        return FlowKind(options)
    if options.arch not in ARCHITECTURES:
        known = ", ".join((*ARCHITECTURES, *FLOW_ARCHITECTURES))
        raise UserError(f"arch is {options.arch!r}: give one of {known}")
    return TokenKind(options)


# The state of a run on disk: there is always a whole one, whenever the process is killed.
#
# Batches and noise are functions of (seed, step), so the step is the state of all random numbers.


STATE_FILE = "state.pt"


@dataclass(frozen=True, slots=True)
class TrainState:
    """After ``step`` steps. ``seconds``: training time so far, over all sittings; ``average``:
    the moving average of the weights, which is what a checkpoint gets."""

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


# The loss curve of a run: one line of JSON a step, in step with the saved state.


JOURNAL_FILE, VALIDATION_FILE = "log.jsonl", "validation.jsonl"


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


class Journal:
    """Appends entries. Opened at a step, it forgets whatever came after the saved state."""

    def __init__(self, directory: Path, step: int) -> None:
        path = directory / JOURNAL_FILE
        kept = [entry for entry in read_journal(directory) if entry.step < step]
        scratch = path.with_suffix(".tmp")
        scratch.write_text("".join(_line(entry) for entry in kept))
        scratch.replace(path)
        self._stream = path.open("a", buffering=1)

    def add(self, entry: Entry) -> None:
        self._stream.write(_line(entry))

    def close(self) -> None:
        self._stream.close()


def read_journal(directory: Path) -> list[Entry]:
    """Every whole line of a run's journal."""
    path = directory / JOURNAL_FILE
    if not path.exists():
        return []
    lines = path.read_text().split("\n")[:-1]  # without its end a line is not whole
    return [Entry(**json.loads(line)) for line in lines]


def _line(entry: Entry) -> str:
    return json.dumps(asdict(entry)) + "\n"


# The optimizer: Muon for the matrices, AdamW for all other parameters.
#
# Source: Jordan et al. 2024 and Liu et al. 2025 ("Muon is scalable for LLM training"), whose
# scaling lets both share one learning rate. Against AdamW alone (7e-4) the small model came as far
# in 125 steps as it did in 225.


_TABLES = (
    "embed_tokens",
    "lm_head",
    "patch_head",
    "lora_",
)  # matrices whose rows have nothing in common
_UNDECAYED = ("norm", "bias", "pos_embed", "positions")


class Muon(torch.optim.Muon):
    """torch's, its products in float32. torch has them in bf16, in which a CPU without such
    instructions spent 14 of the 15 s of a step of the small model; float32 takes a sixteenth."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """As torch's with Nesterov's momentum; no ``closure``."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if (grad := parameter.grad) is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(grad)
                average = state["momentum_buffer"].lerp_(grad, 1 - group["momentum"])
                update = orthogonal(grad.lerp(average, group["momentum"]), group)
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(update, alpha=-0.2 * group["lr"] * math.sqrt(max(grad.shape)))


def orthogonal(update: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
    """``update`` [A, B] with singular values near 1, by Newton and Schulz's iteration."""
    wide = update if update.shape[0] <= update.shape[1] else update.T
    wide = wide / wide.norm().clamp(min=group["eps"])
    a, b, c = group["ns_coefficients"]
    for _ in range(group["ns_steps"]):
        gram = wide @ wide.T
        wide = a * wide + (b * gram + c * gram @ gram) @ wide
    return wide if update.shape[0] <= update.shape[1] else wide.T


def muon_for(device: torch.device) -> type[torch.optim.Muon]:
    """The quicker one."""
    return torch.optim.Muon if multiplies_bfloat16(device) else Muon


class Optimizer:
    """Of every parameter of ``network`` that requires a gradient."""

    def __init__(self, network: nn.Module, rate: float, weight_decay: float) -> None:
        matrices: list[nn.Parameter] = []
        decayed: list[nn.Parameter] = []
        plain: list[nn.Parameter] = []
        for name, parameter in network.named_parameters():
            if not parameter.requires_grad:
                continue
            if any(part in name for part in _UNDECAYED):
                plain.append(parameter)
            elif parameter.ndim == 2 and not any(part in name for part in _TABLES):
                matrices.append(parameter)
            else:
                decayed.append(parameter)
        groups = [
            {"params": decayed, "weight_decay": weight_decay},
            {"params": plain, "weight_decay": 0.0},
        ]
        muon = muon_for(next(network.parameters()).device)
        self._parts: tuple[torch.optim.Optimizer, ...] = (
            muon(matrices, rate, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(groups, rate, betas=(0.9, 0.95), fused=True),
        )

    def step(self, rate: float) -> None:
        """Change the parameters along their gradients, then forget those."""
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = rate
            part.step()
            part.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """Of all parts, by their numbers."""
        return {str(number): part.state_dict() for number, part in enumerate(self._parts)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What :meth:`state_dict` gave."""
        for number, part in enumerate(self._parts):
            part.load_state_dict(state[str(number)])


_MEMORY = 0.999  # of the moving average of the weights
_JUDGED = 8  # batches of held-out frames that a judgement is the mean of


@dataclass(frozen=True, slots=True)
class Validation:
    """Of the averaged weights after ``step`` steps, on ``episodes`` that are not trained on: see
    Entry."""

    step: int
    episodes: int
    loss: float
    error: float


@dataclass(frozen=True, slots=True)
class Progress:
    """After a step: losses of its batch (see Entry), and samples a second of this sitting;
    ``validation``: the last, None without one."""

    step: int
    steps: int
    loss: float
    patch_loss: float
    place_loss: float
    error: float
    samples_per_s: float
    validation: Validation | None = None


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
        self.parts = self._load()
        # Of the data that the run began with: what a round adds is all learned from.
        self._held = [
            held_out(part.demonstrations, options.validation, options.seed) for part in self.parts
        ]
        self.validation: Validation | None = None
        self.network = self.kind.build(len(self.frames.info.objects))
        self.kind.begin(options, self.frames)
        self.network.to(device)
        self._average = {n: p.detach().clone() for n, p in self._trained()}
        self._optimizer = Optimizer(self.network, options.learning_rate, options.weight_decay)
        self.step, self._seconds = 0, 0.0
        self._resume()
        self._objective = self._make_objective()

    @property
    def frames(self) -> FrameTable:
        """The data; of two parts the one that has labels for every instruction."""
        return self.parts[0]

    @property
    def learned(self) -> DataSummary:
        """All of it together."""
        return DataSummary.of(self.parts)

    def add_data(self, directories: list[Path]) -> None:
        """Train on these data sets too, from the next step on."""
        new = [path for path in directories if path not in self._sets]
        if new:
            self._sets += new
            self.parts = self._load()
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
                    self.validation,
                )
            )
            if now - saved >= save_every_s:
                self.save()
                saved = time.monotonic()
        journal.close()
        self.save()

    def train_step(self) -> Entry:
        """One step of the optimizer."""
        rate = self.options.rate(self.step)
        losses = self._objective.losses(self.step)
        whole = losses.action + self.options.patch_weight * losses.patch
        (whole + self.options.place_weight * losses.place).backward()  # type: ignore[no-untyped-call]
        parameters = [p for p in self.network.parameters() if p.requires_grad]
        torch.nn.utils.clip_grad_norm_(parameters, self.options.clip)
        self._optimizer.step(rate)
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
            new = [p.detach() for _, p in self._trained()]
            torch._foreach_lerp_(list(self._average.values()), new, 1.0 - memory)

    def save(self) -> None:
        """Make the present step the one to go on from, and judge it by what is held out."""
        frozen = {n for n, p in self.network.named_parameters() if not p.requires_grad}
        model = {n: t for n, t in self.network.state_dict().items() if n not in frozen}
        state = TrainState(
            self.step, self._seconds, model, self._average, self._optimizer.state_dict()
        )
        save_state(self.directory, state)
        if self._judges:
            self.validation = self._judge(self._judges)
            with (self.directory / VALIDATION_FILE).open("a") as stream:
                stream.write(json.dumps(asdict(self.validation)) + "\n")

    def _judge(self, judges: Sequence[Objective]) -> Validation:
        present = {n: p.detach().clone() for n, p in self._trained()}
        self._set_weights(self._average)
        with torch.no_grad():
            found = [one.losses(number) for one in judges for number in range(_JUDGED)]
        self._set_weights(present)
        loss, error = (
            sum(getattr(one, name).item() for one in found) / len(found)
            for name in ("action", "error")
        )
        return Validation(self.step, sum(map(len, self._held)), loss, error)

    def export(self, directory: Path) -> None:
        """Write the averaged weights as a checkpoint of the engine."""
        record = {
            "step": self.step,
            "seconds": round(self._seconds),
            "device": self.device.type,
            "options": options_json(self.options),
            PARENT: parent_of(self.directory),
            "corrections": sum(int(part.person.sum()) for part in self.parts),
        }
        if self._judges:
            found = self.validation or self._judge(self._judges)
            held = [part.tolist() for part in self._held]
            record["validation"] = {
                **asdict(found),
                "held_out": held[0] if len(held) == 1 else held,
            }
        present = {n: p.detach().clone() for n, p in self._trained()}
        self._set_weights(self._average)
        learned = self.learned
        export(lambda path: self.kind.write(learned, path), learned, record, directory)
        self._set_weights(present)

    def _set_weights(self, weights: dict[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self._trained():
                parameter.copy_(weights[name])

    def _trained(self) -> list[tuple[str, nn.Parameter]]:
        """What changes; what is frozen came from the checkpoint that the run begins with."""
        return [(n, p) for n, p in self.network.named_parameters() if p.requires_grad]

    def _load(self) -> tuple[FrameTable, ...]:
        kind = self.kind
        return load_parts(self._sets, kind.image_size, kind.images, kind.chunk, kind.delays)

    def _make_objective(self) -> Objective:
        self._judges: list[Objective] = []
        objectives = []
        for part, held in zip(self.parts, self._held, strict=True):
            frames, options = part.to(self.device), self.options
            if part.info.own_sentence and len(self.parts) > 1:
                options = replace(options, branches=1)  # of the others' there are several
            if len(held):
                plain, judged = replace(options, shift=0), only(frames, held)
                self._judges.append(self.kind.objective(plain, judged, self.device, False))
            frames = weighted(frames, options.corrections, held)
            made = self.kind.objective(options, frames, self.device, self._compiled)
            objectives.append(made)
        return objectives[0] if len(objectives) == 1 else Alternating(objectives)

    def _resume(self) -> None:
        state = load_state(self.directory, self.device)
        if state is None:
            return
        self.network.load_state_dict(state.model, strict=False)  # what is frozen is not in it
        self._average = {name: state.average[name] for name in self._average}
        self._optimizer.load_state_dict(state.optimizer)
        self.step, self._seconds = state.step, state.seconds


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
