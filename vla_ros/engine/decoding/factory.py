"""Options -> schedule, drafter and acceptance. The one place that knows them all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from vla_ros.engine.checkpoints.config import TextConfig
from vla_ros.engine.checkpoints.draft_head import FOLDER, DraftHead, find_head, load_head
from vla_ros.engine.checkpoints.files import read_json
from vla_ros.engine.checkpoints.openvla import Checkpoint
from vla_ros.engine.drafters.acceptance import Acceptance, make_acceptance
from vla_ros.engine.drafters.base import Drafter
from vla_ros.engine.drafters.head import HeadDrafter
from vla_ros.engine.drafters.model import ModelDrafter
from vla_ros.engine.drafters.recursive import RecursiveDrafter
from vla_ros.engine.drafters.temporal import Costs, TemporalDrafter, costs_on
from vla_ros.engine.drafters.temporal_tree import TemporalTreeDrafter
from vla_ros.engine.drafters.uncertain import UncertainDrafter
from vla_ros.engine.drafters.uncertain_head import UncertainHeadDrafter
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.model import VLAModel
from vla_ros.engine.options import EngineOptions
from vla_ros.engine.recursive_head import RecursiveHead
from vla_ros.engine.schedules.actionflow import ActionFlow
from vla_ros.engine.schedules.autoregressive import Autoregressive
from vla_ros.engine.schedules.base import Schedule
from vla_ros.engine.schedules.heterospec import HeteroSpec
from vla_ros.engine.schedules.parallel import Parallel
from vla_ros.engine.schedules.reference.generate import Generate
from vla_ros.engine.schedules.reference.naive_pipe import NaivePipe
from vla_ros.engine.schedules.reference.vanilla_speculative import VanillaSpeculative
from vla_ros.engine.schedules.speculative import Speculative
from vla_ros.engine.schedules.tree import TreeSpeculative
from vla_ros.engine.tokens import MAX_TEXT, Normaliser, PromptTokenizer
from vla_ros.engine.trees.calibration import FILE, Calibration, from_json, plan_bins
from vla_ros.engine.trees.expected import STEP, Budget

LoadDraft = Callable[[str], Checkpoint]


@dataclass(frozen=True, slots=True)
class ScheduleParts:
    """What every schedule is made from. ``tokens`` = actions of a chunk * their dimensions.

    ``head``: a draft head in place of the one that the options name."""

    model: VLAModel
    options: EngineOptions
    action_dim: int
    tokens: int
    max_prompt: int
    load_draft: LoadDraft
    proprio: Normaliser | None = None
    head: DraftHead | None = None


def make_schedule(parts: ScheduleParts) -> Schedule:
    """The schedule that the options name."""
    name, options = parts.options.schedule, parts.options
    model, tokens, longest = parts.model, parts.tokens, parts.max_prompt
    if model.config.parallel != (name == "parallel"):
        kind = "an OFT checkpoint" if model.config.parallel else "no OFT checkpoint"
        raise ValueError(f"schedule {name!r} does not fit: this is {kind}, made for parallel")
    if name == "parallel":
        return Parallel(model, tokens, longest, parts.proprio)
    simple: dict[str, Callable[[VLAModel, int, int], Schedule]] = {
        "autoregressive": Autoregressive,
        "actionflow": ActionFlow,
        "generate": Generate,
        "naive_pipe": NaivePipe,
    }
    if name in ("actionflow", "naive_pipe") and model.config.chunk > 1:
        raise ValueError(
            f"{name} says a token a frame: a chunk of {tokens} tokens would be {tokens} frames old;"
            " give autoregressive or speculative"
        )
    if name in simple:
        return simple[name](model, tokens, longest)
    if name == "vanilla_speculative":
        separate = _model_drafter(parts, share=False)
        return VanillaSpeculative(model, tokens, longest, separate, options.gamma or 6)
    unordered = "relaxed", "linear", "temporal_tree", "heterospec"
    asked = options.acceptance, options.draft_extrapolation, options.drafter, name
    if any(name in unordered for name in asked) and not model.actions.ordered:
        raise ValueError(
            "relaxed acceptance, linear drafts, temporal_tree and heterospec need bins that lie"
            " beside each other: this checkpoint's tokens are codes of a VQ-VAE"
        )
    acceptance = make_acceptance(options, model.actions, parts.action_dim, model.device)
    if name == "heterospec":
        return _heterospec(parts, acceptance)
    if options.drafter in ("temporal_tree", "head"):
        return _tree(parts, acceptance)
    drafter = make_drafter(parts, acceptance)
    return Speculative(
        model, tokens, longest, drafter, acceptance, options.gamma, options.fixed_shapes
    )


def make_drafter(parts: ScheduleParts, acceptance: Acceptance) -> Drafter:
    """The drafter that the options name."""
    options = parts.options
    if options.drafter == "model":
        return _model_drafter(parts, share=True)
    return TemporalDrafter(
        parts.model.actions,
        parts.tokens,
        parts.model.device,
        acceptance.close,
        options.draft_extrapolation,
        # In fixed shapes a longer draft costs nothing, and no length may rest on the past.
        options.adaptive_draft and not options.fixed_shapes,
        parts.model.dtype,
        parts.model.config.chunk,
    )


def _tree(parts: ScheduleParts, acceptance: Acceptance) -> TreeSpeculative:
    """Speculation over trees of alternatives to the last action."""
    model, options = parts.model, parts.options
    # A captured pass belongs to its number of nodes: few of them, then.
    budget = Budget(step=1 if model.capture is None else STEP)
    adaptive = options.adaptive_draft and not options.fixed_shapes
    costs = costs_on(model.device, model.dtype) if adaptive else None
    drafter: Drafter
    if options.drafter == "head":
        drafter = _head_drafter(parts, acceptance, budget, costs)
    else:
        drafter = TemporalTreeDrafter(
            model.actions, parts.tokens, model.device, acceptance.reach, budget, costs,
            model.config.chunk,
        )  # fmt: skip
    return TreeSpeculative(
        model, parts.tokens, parts.max_prompt, drafter, acceptance, budget, options.gamma,
        options.fixed_shapes,
    )  # fmt: skip


def _heterospec(parts: ScheduleParts, acceptance: Acceptance) -> HeteroSpec:
    """Speculation over trees that follow the uncertainty of what the drafter offers."""
    model, options = parts.model, parts.options
    if options.drafter == "model":
        raise ValueError(
            "heterospec draws its trees from alternatives with chances, and a draft model names one"
            " token a place: give drafter temporal_tree or head"
        )
    step = 1 if model.capture is None else STEP
    adaptive = options.adaptive_draft and not options.fixed_shapes
    costs = costs_on(model.device, model.dtype) if adaptive else None
    drafter: UncertainDrafter
    if options.drafter == "head":
        head = _head_drafter(parts, acceptance, Budget(0, 0), costs)
        if not isinstance(head, RecursiveDrafter):
            raise ValueError(
                "heterospec over a head needs a recursive one: `vla-ros train --head --recursive`"
            )
        folder = _calibration_folder(parts)
        calibration = _calibration(parts, folder, "head")
        prompt, alone = costs.prompt if costs else None, head.costs_alone
        plan = plan_bins(calibration, prompt, alone, step)
        drafter = UncertainHeadDrafter(head, calibration, plan, model.device)
    else:
        calibration = _calibration(parts, model.directory, "temporal_tree")
        prompt, alone = (costs.prompt, costs.alone) if costs else (None, None)
        source = TemporalTreeDrafter(
            model.actions, parts.tokens, model.device, acceptance.reach, Budget(0, 0), costs,
            model.config.chunk,
        )  # fmt: skip
        drafter = UncertainDrafter(
            source, calibration, plan_bins(calibration, prompt, alone, step), model.device
        )
    return HeteroSpec(
        model, parts.tokens, parts.max_prompt, drafter, acceptance, options.gamma,
        options.fixed_shapes, step,
    )  # fmt: skip


def _calibration_folder(parts: ScheduleParts) -> Path:
    """Where a head's calibration lies: beside the head."""
    if parts.head is not None:
        return parts.model.directory / FOLDER
    return find_head(parts.model.directory, parts.options.draft_checkpoint)


def _calibration(parts: ScheduleParts, folder: Path, drafter: str) -> Calibration:
    """ValueError in one line where it is not of these actions, or of another drafter."""
    found = read_calibration(parts.options.calibration, folder)
    if found.tokens != parts.tokens:
        raise ValueError(
            f"the calibration of heterospec is for actions of {found.tokens} tokens, these"
            f" have {parts.tokens}: run `vla-ros calibrate` for this checkpoint"
        )
    made = found.about.get("drafter", "temporal_tree")
    if made != drafter:
        raise ValueError(
            f"the calibration of heterospec is of drafter {made}, not {drafter}:"
            f" run `vla-ros calibrate --drafter {drafter}`"
        )
    return found


def read_calibration(file: str | None, directory: Path) -> Calibration:
    """The file that is named, or that of the checkpoint's directory. ValueError in one line."""
    path = directory / FILE if file is None else Path(file)
    if file is None and not path.is_file():
        raise ValueError(
            f"heterospec: {directory} has no {FILE}: make one with `vla-ros calibrate`"
        )
    try:
        return from_json(read_json(path))
    except CheckpointError:
        raise
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _head_drafter(
    parts: ScheduleParts, acceptance: Acceptance, budget: Budget, costs: Costs | None
) -> HeadDrafter | RecursiveDrafter:
    """The draft head that was trained for this checkpoint, or ``parts.head``."""
    model, head = parts.model, _head(parts)
    share = sum(p.numel() for p in head.parameters()) / _parameters(model.config.text)
    if isinstance(head, RecursiveHead):
        if costs is not None:  # the head's pass for every level
            costs = replace(costs, alone=replace(costs.alone, level=share))
        return RecursiveDrafter(
            model.actions, model.device, acceptance.reach, budget, head, model.decoder.embed,
            costs, model.config.chunk, model.capture,
        )  # fmt: skip
    if costs is not None:
        costs = replace(costs, alone=replace(costs.alone, draft=costs.alone.draft + share))
    return HeadDrafter(
        model.actions, model.device, acceptance.reach, budget, head, model.decoder.embed, costs,
        model.capture,
    )  # fmt: skip


def _head(parts: ScheduleParts) -> DraftHead:
    """ValueError or CheckpointError where there is none for this checkpoint."""
    model, head = parts.model, parts.head
    if parts.tokens < 3:
        raise ValueError(f"actions of {parts.tokens} tokens leave a draft head nothing to guess")
    if head is None:
        folder = find_head(model.directory, parts.options.draft_checkpoint)
        head = load_head(folder, model.config, parts.tokens, model.device, model.dtype)
    if model.config.chunk > 1 and not isinstance(head, RecursiveHead):
        raise ValueError(
            "a one-shot draft head guesses single actions: for chunks train a recursive one"
            " (`vla-ros train --head`), or give temporal_tree"
        )
    return head


def _parameters(text: TextConfig) -> int:
    """That a pass of one token reads: all layers, and the head."""
    heads = (2 * text.heads + 2 * text.kv_heads) * text.head_dim
    layer = text.hidden_size * (heads + 3 * text.intermediate_size)
    return text.layers * layer + text.vocab_size * text.hidden_size


def _model_drafter(parts: ScheduleParts, *, share: bool) -> ModelDrafter:
    options, target = parts.options, parts.model
    if options.draft_checkpoint is None:
        raise ValueError("a draft model is asked for: give draft_checkpoint")
    checkpoint = parts.load_draft(options.draft_checkpoint)
    # The target's graphs and the draft's share one pool and one count.
    asked = replace(target.options, capture=target.capture)
    draft = VLAModel(checkpoint, target.device, target.dtype, asked)
    sampling = options.schedule == "speculative" and options.acceptance == "sampling"
    return ModelDrafter(
        target,
        draft,
        PromptTokenizer(checkpoint.directory, draft.config),
        parts.tokens,
        MAX_TEXT,
        temperature=options.temperature if sampling else None,
        seed=options.seed + 1,
        share=share,
        center_crop=options.center_crop,
        preprocessing=options.preprocessing,
        image_steps=options.image_steps,
    )
