"""The rows of the table: every schedule and reference on one shared model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace

import torch

from vla_ros.benchmark.oracle import Answers, HitDrafter, MissDrafter
from vla_ros.engine.checkpoints.openvla import Checkpoint
from vla_ros.engine.drafters.acceptance import Exact, Relaxed
from vla_ros.engine.drafters.model import ModelDrafter
from vla_ros.engine.drafters.temporal import TemporalDrafter
from vla_ros.engine.engine import Engine
from vla_ros.engine.heads import head_shapes
from vla_ros.engine.model import VLAModel
from vla_ros.engine.schedules.actionflow import ActionFlow
from vla_ros.engine.schedules.autoregressive import Autoregressive
from vla_ros.engine.schedules.base import Schedule
from vla_ros.engine.schedules.parallel import Parallel
from vla_ros.engine.schedules.reference.generate import Generate
from vla_ros.engine.schedules.reference.naive_pipe import NaivePipe
from vla_ros.engine.schedules.reference.vanilla_speculative import VanillaSpeculative
from vla_ros.engine.schedules.speculative import Speculative
from vla_ros.engine.tokens import MAX_TEXT, PromptTokenizer

#: what to compare with, and what a user would choose; in the order of the table
ROWS = (
    "generate",
    "autoregressive",
    "naive_pipe",
    "actionflow",
    "vanilla_speculative",
    "speculative_model",
    "speculative_temporal",
    "speculative_relaxed",
    "speculative_hit",
    "speculative_miss",
    "speculative_miss_always",
    "parallel",
)
RELAX_BINS = 2
CHUNK = 8  # actions of the OFT row, as its LIBERO checkpoints


@dataclass(frozen=True, slots=True)
class Setting:
    """What all rows share. ``answers`` are the model's own tokens, by stamp."""

    engine: Engine
    checkpoint: Checkpoint
    draft: Checkpoint
    answers: Answers

    @property
    def shape(self) -> tuple[VLAModel, int, int]:
        """Model, tokens of an action, longest prompt."""
        model = self.engine.model
        return model, self.engine.info.max_tokens, model.config.patches + MAX_TEXT


def make_row(name: str, setting: Setting) -> Schedule:
    """The schedule of a row."""
    simple: Mapping[str, Callable[[VLAModel, int, int], Schedule]] = {
        "generate": Generate,
        "autoregressive": Autoregressive,
        "naive_pipe": NaivePipe,
        "actionflow": ActionFlow,
    }
    model, tokens, longest = setting.shape
    if name in simple:
        return simple[name](model, tokens, longest)
    if name == "parallel":
        return _parallel(setting)
    if name == "vanilla_speculative":
        return VanillaSpeculative(model, tokens, longest, _draft_model(setting, share=False))
    return _speculative(name, setting)


def _speculative(name: str, setting: Setting) -> Speculative:
    model, tokens, longest = setting.shape
    device, exact = model.device, Exact()
    if name == "speculative_hit":
        return Speculative(model, tokens, longest, HitDrafter(setting.answers, device), exact)
    if name == "speculative_model":
        drafter = _draft_model(setting, share=True)
        return Speculative(model, tokens, longest, drafter, exact)
    if name == "speculative_temporal":
        temporal = TemporalDrafter(model.actions, tokens, device, exact.close, dtype=model.dtype)
        return Speculative(model, tokens, longest, temporal, exact)
    if name == "speculative_relaxed":
        relaxed = Relaxed(model.actions, RELAX_BINS, setting.engine.normaliser.dim)
        temporal = TemporalDrafter(model.actions, tokens, device, relaxed.close, dtype=model.dtype)
        return Speculative(model, tokens, longest, temporal, relaxed)
    if name in ("speculative_miss", "speculative_miss_always"):
        adaptive = name == "speculative_miss"
        miss = MissDrafter(
            model.actions, tokens, device, exact.close, "repeat", adaptive, model.dtype
        )
        miss.answers = setting.answers
        return Speculative(model, tokens, longest, miss, exact)
    raise ValueError(f"row {name!r} is unknown: there are {', '.join(ROWS)}")


def _draft_model(setting: Setting, *, share: bool) -> ModelDrafter:
    model, tokens, _ = setting.shape
    draft = VLAModel(setting.draft, model.device, model.dtype)
    tokenizer = PromptTokenizer(setting.draft.directory, draft.config)
    return ModelDrafter(model, draft, tokenizer, tokens, MAX_TEXT, share=share)


def _parallel(setting: Setting) -> Parallel:
    """The same language model with an untrained OFT head: another policy, the same size."""
    model, _, longest = setting.shape
    dim = setting.engine.normaliser.dim
    config = replace(model.config, parallel=True, chunk=CHUNK, action_dim=dim)
    tensors = dict(model.tensors)
    for name, shape in head_shapes(config).items():
        tensors[name] = torch.full(shape, 0.01, device=model.device, dtype=model.dtype)
    twin = copy(model)
    twin.config, twin.tensors = config, tensors
    return Parallel(twin, CHUNK * dim, longest, None)
