"""The two kinds of policy that are trained, and what is different about them: everything but
the loop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from vla_ros.engine.checkpoints.openvla import load_checkpoint, resolve
from vla_ros.engine.flow.families import is_flow
from vla_ros.errors import UserError
from vla_ros.train.arch import ARCHITECTURES
from vla_ros.train.data.frames import Frames
from vla_ros.train.export import write_tokens
from vla_ros.train.flow.arch import FLOW_ARCHITECTURES
from vla_ros.train.flow.begin import begin_from, go_on_from
from vla_ros.train.flow.export import write_flow
from vla_ros.train.flow.network import FlowNetwork
from vla_ros.train.flow.objective import FlowObjective
from vla_ros.train.flow.scaling import scaling_of
from vla_ros.train.network import Network
from vla_ros.train.objectives import Objective, make_objective
from vla_ros.train.options import TrainOptions

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

    def begin(self, options: TrainOptions, frames: Frames) -> None:
        """Take over what the options name of other checkpoints. UserError: it does not fit."""
        ...

    def objective(
        self, options: TrainOptions, frames: Frames, device: torch.device, compiled: bool
    ) -> Objective:
        """What the network is to learn. UserError: unfit data."""
        ...

    def write(self, frames: Frames, directory: Path) -> None:
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

    def begin(self, options: TrainOptions, frames: Frames) -> None:
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
        self, options: TrainOptions, frames: Frames, device: torch.device, compiled: bool
    ) -> Objective:
        """See Kind."""
        return make_objective(frames, self.network, options, device, compiled=compiled)

    def write(self, frames: Frames, directory: Path) -> None:
        """See Kind."""
        write_tokens(self.network, frames, directory)


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

    def begin(self, options: TrainOptions, frames: Frames) -> None:
        """See Kind."""
        self.network.scales.copy_(scaling_of(frames).tensor())
        if not options.init_from:
            return
        directory = resolve(options.init_from)
        if is_flow(directory):
            go_on_from(self.network, directory)
        else:
            source = load_checkpoint(options.init_from, CPU, torch.float32)
            begin_from(self.network, source, frames, options.seed)

    def objective(
        self, options: TrainOptions, frames: Frames, device: torch.device, compiled: bool
    ) -> Objective:
        """See Kind."""
        return FlowObjective(frames, self.network, options, device, compiled)

    def write(self, frames: Frames, directory: Path) -> None:
        """See Kind."""
        write_flow(self.network, directory)


def kind_of(options: TrainOptions) -> Kind:
    """The kind that ``options.arch`` names.

    UserError: there is no such architecture, or an option is not for it.
    """
    if options.arch in FLOW_ARCHITECTURES:
        if options.rounds:
            raise UserError("--dagger is for token policies: correct a flow policy with data that"
                            " one of them has collected (vla-ros collect --policy)")  # fmt: skip
        return FlowKind(options)
    if options.arch not in ARCHITECTURES:
        known = ", ".join((*ARCHITECTURES, *FLOW_ARCHITECTURES))
        raise UserError(f"arch is {options.arch!r}: give one of {known}")
    return TokenKind(options)
