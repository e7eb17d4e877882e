"""Behavior cloning of a policy: the data, the network of its kind, and the checkpoint."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
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
from vla_ros.engine.io.rates import write_action_rate
from vla_ros.engine.options import TOKENS
from vla_ros_lab.train.batches import held_out, only, weighted
from vla_ros_lab.train.flow import (
    FLOW_ARCHITECTURES,
    FlowBatches,
    FlowNetwork,
    FlowObjective,
    begin_from,
    go_on_from,
    stored,
    tokenizer_for,
    units_of,
    write_flow,
)
from vla_ros_lab.train.frames import DataSummary, FrameTable, load_parts
from vla_ros_lab.train.loop import Entry, Loop, Losses, Objective, Validation
from vla_ros_lab.train.lora import LoraKind
from vla_ros_lab.train.network import Alternating, Network, make_objective
from vla_ros_lab.train.optimizer import muon_and_adamw
from vla_ros_lab.train.options import PARENT, TrainOptions, parent_of, recipe_json

CPU = torch.device("cpu")
RECORD_FILE = "training.json"

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
    # the same chunk token by token: begin it likewise
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


# The kinds of policy that are trained, and what is different about them: everything but the loop.


class Kind(Protocol):
    """A kind of policy in training. ``image_size`` and ``images`` are what the model sees,
    ``chunk`` how many of the actions that followed a frame are read with it, ``delays`` how many of
    the images before it."""

    image_size: int
    images: int
    chunk: int
    delays: int

    def build(self, frames: FrameTable) -> nn.Module:
        """The network, on the CPU, with the weights that the options name of other checkpoints.
        UserError: they do not fit."""
        ...

    def objective(
        self, options: TrainOptions, frames: FrameTable, device: torch.device, compiled: bool
    ) -> Objective:
        """The objective of the network. UserError: unfit data."""
        ...

    def write(self, learned: DataSummary, directory: Path) -> None:
        """Write a checkpoint of the engine into a directory that is there."""
        ...


class TokenKind:
    """Policies of OpenVLA's architecture."""

    def __init__(self, options: TrainOptions) -> None:
        config = replace(ARCHITECTURES[options.arch], images=2 if options.wrist else 1)
        if options.delays and config.chunk > 1:
            raise UserError(f"arch {options.arch} gives chunks: delays are for single actions")
        self.config, self.delays = replace(config, max_delay=options.delays), options.delays
        self.image_size, self.images = self.config.image_size, self.config.images
        # Of chunks that are decoded token by token, what lies ahead is worked out.
        self.chunk, self._options = self.config.chunk if config.parallel else 1, options

    def build(self, frames: FrameTable) -> nn.Module:
        options = self._options
        network = self.network = Network(self.config, len(frames.info.objects), options.seed)
        if name := options.init_from:
            source = load_checkpoint(name, CPU, torch.float32)
            if (source.config.towers, source.config.text) != (self.config.towers, self.config.text):
                raise UserError(f"{name} has other sizes than this model")
            network.load_tensors(dict(source.tensors))
        if name := options.vision_from:
            source = load_checkpoint(name, CPU, torch.float32)
            if source.config.towers != self.config.towers:
                raise UserError(f"{name} has other vision towers than this model")
            backbone, prefix = network.vision.vision_backbone, "vision_backbone."
            backbone.load_state_dict({n: source.tensors[prefix + n] for n in backbone.state_dict()})
            backbone.requires_grad_(False)
        return network

    def objective(
        self, options: TrainOptions, frames: FrameTable, device: torch.device, compiled: bool
    ) -> Objective:
        return make_objective(frames, self.network, options, device, compiled=compiled)

    def write(self, learned: DataSummary, directory: Path) -> None:
        """OpenVLA's layout in bf16."""
        tensors = {n: t.detach().cpu().bfloat16() for n, t in self.network.tensors().items()}
        save_checkpoint(directory, self.config, tensors, learned.norm_stats(), write_tokenizer)


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
            raise UserError(
                f"--vision-from: {options.arch} begins with --init-from, vision included"
            )
        self.config = FLOW_ARCHITECTURES[options.arch]
        self.image_size, self.images = self.config.image_size, len(self.config.cameras)
        self._options = options

    def build(self, frames: FrameTable) -> nn.Module:
        name, seed = self._options.init_from, self._options.seed
        network = self.network = FlowNetwork(self.config, len(frames.info.objects), seed)
        network.scales.copy_(stored(units_of(frames)))
        if name and family_of(directory := resolve(name)).group != TOKENS:
            go_on_from(network, directory)
        elif name:
            begin_from(network, load_checkpoint(name, CPU, torch.float32), frames, seed)
        return network

    def objective(
        self, options: TrainOptions, frames: FrameTable, device: torch.device, compiled: bool
    ) -> Objective:
        network = self.network
        batches = FlowBatches(
            frames, network.config, tokenizer_for(network.config), network.units, options, device
        )
        return FlowObjective(network, batches.batch, options.dtype, device, compiled)

    def write(self, learned: DataSummary, directory: Path) -> None:
        write_flow(self.network, directory)


def kind_of(options: TrainOptions) -> Kind:
    """The kind that ``options.arch`` names.

    UserError: there is no such architecture, or an option is not for it.
    """
    if options.lora:
        if options.rounds or options.wrist or options.delays or options.vision_from:
            raise UserError("--lora: what the checkpoint sees and its prompts stay as they are,"
                            " and it learns from --data alone")  # fmt: skip
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


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress after a step of so many: its losses, samples a second of this sitting, and the last
    ``validation``, None without one."""

    entry: Entry
    steps: int
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
        self.network = self.kind.build(self.frames).to(device)
        self.loop = Loop(
            self.network,
            muon_and_adamw(self.network, options.learning_rate, options.weight_decay),
            options,
            self.losses,
            (options.patch_weight, options.place_weight),
            directory,
        )
        self._objective = self._make_objective()  # behind the state, whose units it takes

    @property
    def frames(self) -> FrameTable:
        """The data; of two parts the one that has labels for every instruction."""
        return self.parts[0]

    @property
    def learned(self) -> DataSummary:
        """Summary of all data sets."""
        return DataSummary.of(self.parts)

    def losses(self, step: int) -> Losses:
        """Losses of the batch of ``step``."""
        return self._objective.losses(step)

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
        """Go to step ``until``, or to where ``stop`` ends it; then save."""
        loop, options = self.loop, self.options

        def stepped(entry: Entry) -> None:
            speed = loop.pace * options.batch
            report(Progress(entry, options.steps, speed, loop.validation))

        loop.run(until, stepped, stop, save_every_s)

    def export(self, directory: Path) -> None:
        """Write the averaged weights as a checkpoint of the engine, with a record of recipe, step
        and data. The directory is written aside and then replaces an older one."""
        loop, learned = self.loop, self.learned
        record: dict[str, Any] = {
            "step": loop.step,
            "seconds": round(loop.seconds),
            "device": self.device.type,
            "options": recipe_json(self.options),
            PARENT: parent_of(self.directory),
            "corrections": sum(int(part.person.sum()) for part in self.parts),
        }
        if loop.judges:
            found = loop.validation or loop.validate()
            held = [part.tolist() for part in self._held]
            record["validation"] = {
                **asdict(found),
                "held_out": held[0] if len(held) == 1 else held,
            }
        record |= {"data_sha256": learned.digest, "frames": learned.frames}
        record["demonstrations"] = learned.demonstrations
        scratch = directory.with_name(f"{directory.name}.{os.getpid()}.tmp")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        with loop.averaged():
            self.kind.write(learned, scratch)
        write_action_rate(scratch, learned.info.action_rate_hz)
        (scratch / RECORD_FILE).write_text(json.dumps(record, indent=1) + "\n")
        old = directory.with_name(f"{directory.name}.{os.getpid()}.old")
        if directory.exists():
            directory.rename(old)
        scratch.rename(directory)
        shutil.rmtree(old, ignore_errors=True)

    def _load(self) -> tuple[FrameTable, ...]:
        kind = self.kind
        return load_parts(self._sets, kind.image_size, kind.images, kind.chunk, kind.delays)

    def _make_objective(self) -> Objective:
        judges: list[Objective] = []
        objectives = []
        for part, held in zip(self.parts, self._held, strict=True):
            frames, options = part.to(self.device), self.options
            if part.info.own_sentence and len(self.parts) > 1:
                options = replace(options, branches=1)  # of the others' there are several
            if len(held):
                plain, judged = replace(options, shift=0), only(frames, held)
                judges.append(self.kind.objective(plain, judged, self.device, False))
            frames = weighted(frames, options.corrections, held)
            made = self.kind.objective(options, frames, self.device, self._compiled)
            objectives.append(made)
        self.loop.judges, self.loop.held_out = judges, sum(map(len, self._held))
        return objectives[0] if len(objectives) == 1 else Alternating(objectives)
