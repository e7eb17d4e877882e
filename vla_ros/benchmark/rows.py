"""The rows of the table: every schedule and reference on one shared model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch

from vla_ros.benchmark.oracle import Answers, HitDrafter, MissDrafter
from vla_ros.benchmark.rivals import EntropyChainDrafter
from vla_ros.engine import recursive_head
from vla_ros.engine.checkpoints.draft_head import FOLDER, DraftHead
from vla_ros.engine.checkpoints.openvla import Checkpoint
from vla_ros.engine.decoders.base import tap_layers
from vla_ros.engine.draft_heads import HeadConfig, OneShotHead, width_for
from vla_ros.engine.drafters.acceptance import Exact
from vla_ros.engine.drafters.base import Drafter
from vla_ros.engine.engine import Engine
from vla_ros.engine.factory import ScheduleParts, make_schedule
from vla_ros.engine.heads import head_shapes
from vla_ros.engine.model import VLAModel
from vla_ros.engine.schedules.auto import resolve
from vla_ros.engine.schedules.base import Schedule
from vla_ros.engine.schedules.parallel import Parallel
from vla_ros.engine.schedules.speculative import Speculative
from vla_ros.engine.tokens import MAX_TEXT

#: what to compare with, and what a user would choose; in the order of the table
ROWS = (
    "generate",
    "autoregressive",
    "auto",
    "naive_pipe",
    "actionflow",
    "vanilla_speculative",
    "speculative_model",
    "speculative_temporal",
    "speculative_entropy",
    "speculative_tree",
    "speculative_tree_full",
    "speculative_head",
    "speculative_head_paying",
    "speculative_relaxed",
    "speculative_hit",
    "speculative_miss",
    "speculative_miss_always",
    "parallel",
)
#: a row that needs a calibration, and those that need one of a recursive head
HETEROSPEC = "heterospec"
HEAD_HETEROSPEC = ("heterospec_head", "heterospec_head_full")
CALIBRATED = (HETEROSPEC, *HEAD_HETEROSPEC)
#: rows whose drafter knows what the model will say
ORACLES = frozenset({"speculative_hit", "speculative_miss", "speculative_miss_always"})
#: rows that say a token a frame: a chunk would be answered many frames late
LATE = ("naive_pipe", "actionflow")
#: rows that are the engine's own schedules, with these options
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "generate": {"schedule": "generate"},
    "autoregressive": {"schedule": "autoregressive"},
    "auto": {"schedule": "auto"},
    "naive_pipe": {"schedule": "naive_pipe"},
    "actionflow": {"schedule": "actionflow"},
    "vanilla_speculative": {"schedule": "vanilla_speculative", "draft_checkpoint": "the draft"},
    "speculative_model": {
        "schedule": "speculative", "drafter": "model", "draft_checkpoint": "the draft",
    },
    "speculative_temporal": {"schedule": "speculative"},
    "speculative_tree": {"schedule": "speculative", "drafter": "temporal_tree"},
    "speculative_tree_full": {
        "schedule": "speculative", "drafter": "temporal_tree", "adaptive_draft": False,
    },
    HETEROSPEC: {"schedule": "heterospec"},
    "speculative_head": {
        "schedule": "speculative", "drafter": "head", "adaptive_draft": False,
    },
    "speculative_head_paying": {"schedule": "speculative", "drafter": "head"},
    "heterospec_head": {"schedule": "heterospec", "drafter": "head", "calibration": None},
    "heterospec_head_full": {
        "schedule": "heterospec", "drafter": "head", "calibration": None, "adaptive_draft": False,
    },
    "speculative_relaxed": {"schedule": "speculative", "acceptance": "relaxed", "relax_bins": 2},
}  # fmt: skip
CHUNK = 8  # actions of the OFT row, as its LIBERO checkpoints


@dataclass(frozen=True, slots=True)
class Setting:
    """What all rows share. ``answers`` are the model's own tokens, by stamp; ``head`` the folder of
    a draft head that is not the checkpoint's own."""

    engine: Engine
    draft: Checkpoint
    answers: Answers
    head: str | None = None

    @property
    def shape(self) -> tuple[VLAModel, int, int]:
        """Model, tokens of an action, longest prompt."""
        model = self.engine.model
        return model, self.engine.info.max_tokens, model.config.patches + MAX_TEXT


def make_row(name: str, setting: Setting) -> Schedule:
    """The schedule of a row."""
    if name in OPTIONS:
        return _engines_own(OPTIONS[name], setting)
    if name == "parallel":
        return _parallel(setting)
    model, tokens, longest = setting.shape
    drafters: Mapping[str, Callable[[], Drafter]] = {
        "speculative_entropy": lambda: EntropyChainDrafter(model, tokens),
        "speculative_hit": lambda: HitDrafter(setting.answers, model.device),
        "speculative_miss": lambda: MissDrafter(model, tokens, setting.answers, adaptive=True),
        "speculative_miss_always": lambda: MissDrafter(
            model, tokens, setting.answers, adaptive=False
        ),
    }
    if name not in drafters:
        raise ValueError(f"row {name!r} is unknown: there are {', '.join((*ROWS, *CALIBRATED))}")
    return Speculative(model, tokens, longest, drafters[name](), Exact())


def _engines_own(options: Mapping[str, Any], setting: Setting) -> Schedule:
    """What the engine makes of these options, on the shared model."""
    model, tokens, longest = setting.shape
    asked = resolve(replace(setting.engine.options, **options), model.config)
    if asked.drafter == "head":
        asked = replace(asked, draft_checkpoint=setting.head)
    dim = setting.engine.normaliser.dim
    needs_head = asked.drafter == "head" and asked.draft_checkpoint is None
    return make_schedule(
        ScheduleParts(
            model, asked, dim, tokens, longest, lambda name: setting.draft,
            head=_untrained(model, tokens) if needs_head else None,
        )
    )  # fmt: skip


def _untrained(model: VLAModel, tokens: int) -> DraftHead | None:
    """A head that costs what one costs, for a checkpoint that has none."""
    if (model.directory / FOLDER).is_dir():
        return None
    text, layers = model.config.text, tap_layers(model.config.text.layers)
    head: DraftHead
    if model.config.chunk > 1:
        width = recursive_head.width_for(text.hidden_size)
        head = recursive_head.RecursiveHead(
            recursive_head.RecursiveConfig(
                layers, text.hidden_size, tokens, tokens // model.config.chunk,
                model.actions.bins, width, recursive_head.heads_for(width), model.actions.ordered,
            )
        )  # fmt: skip
    else:
        config = HeadConfig(
            layers, text.hidden_size, tokens, model.actions.bins, width_for(text.hidden_size),
            ordered=model.actions.ordered,
        )  # fmt: skip
        head = OneShotHead(config)
    return head.to(model.device, model.dtype).requires_grad_(False).eval()


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
