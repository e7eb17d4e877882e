"""``policy_preprocessor.json`` and ``policy_postprocessor.json`` of a LeRobot folder.

They name the steps between a robot and the model, and the safetensors files with the data
set's statistics. Steps that this engine does not know are refused: leaving one out would
change what the policy says. Source: lerobot 0.6.1 ``normalize_processor.py``,
``relative_action_processor.py`` and ``processor_pi0.py``, ``processor_pi05.py``,
``processor_smolvla.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from vla_ros.engine.checkpoints.fields import Fields
from vla_ros.engine.checkpoints.files import read_json
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.flow.config import ACTION, STATE, FlowConfig

PREPROCESSOR, POSTPROCESSOR = "policy_preprocessor.json", "policy_postprocessor.json"
NORMALIZER, UNNORMALIZER = "normalizer_processor", "unnormalizer_processor"
TOKENIZER, RELATIVE = "tokenizer_processor", "relative_actions_processor"
ABSOLUTE, NEW_LINE = "absolute_actions_processor", "_new_line_processor"
STATE_PROMPT = "pi05_prepare_state_tokenizer_processor_step"
PLUMBING = ("rename_observations_processor", "to_batch_processor", "device_processor")

#: Statistics that a mode of normalisation needs.
MODES = {
    "IDENTITY": (),
    "MEAN_STD": ("mean", "std"),
    "MIN_MAX": ("min", "max"),
    "QUANTILES": ("q01", "q99"),
    "QUANTILE10": ("q10", "q90"),
}


@dataclass(frozen=True, slots=True)
class Scaler:
    """Units <-> model space of one feature, float32 as LeRobot does it, value for value."""

    mode: str
    low: torch.Tensor  # mean, min or the lower quantile [n]
    high: torch.Tensor  # std, max or the upper quantile [n]
    eps: float = 1e-8

    def normalise(self, values: torch.Tensor) -> torch.Tensor:
        """Units [..., n] -> model space."""
        if self.mode == "IDENTITY":
            return values
        if self.mode == "MEAN_STD":
            return (values - self.low) / (self.high + self.eps)
        return 2.0 * (values - self.low) / self._range() - 1.0

    def restore(self, values: torch.Tensor) -> torch.Tensor:
        """Model space [..., n] -> units."""
        if self.mode == "IDENTITY":
            return values
        if self.mode == "MEAN_STD":
            return values * self.high + self.low
        if self.mode == "MIN_MAX":
            return (values + 1) / 2 * self._range() + self.low
        return (values + 1.0) * self._range() / 2.0 + self.low

    def ends(self) -> tuple[torch.Tensor, ...]:
        """Where nearly all of the data lie, in units: from [n] and to [n]; () where none says."""
        if self.mode == "IDENTITY":
            return ()
        if self.mode == "MEAN_STD":
            return self.low - 2 * self.high, self.low + 2 * self.high
        return self.low, self.high

    def _range(self) -> torch.Tensor:
        width = self.high - self.low
        return torch.where(width == 0, torch.tensor(self.eps), width)


@dataclass(frozen=True, slots=True)
class Processors:
    """Everything between the robot's units and the model's.

    ``relative`` marks the values that the model gives relative to the state (one bool each, or
    empty); ``tokenizer`` is the name that the folder knows its tokenizer by. ``action_names``
    are those of the action's values where the folder has any: the data set keeps them.
    """

    state: Scaler
    action: Scaler
    tokenizer: str
    relative: tuple[bool, ...] = ()
    action_names: tuple[str, ...] = ()


def read_processors(directory: Path, config: FlowConfig) -> Processors:
    """Read both files; CheckpointError in one line where they do not fit ``config``."""
    before, after = (steps_of(directory / name) for name in (PREPROCESSOR, POSTPROCESSOR))
    known = {*PLUMBING, NORMALIZER, UNNORMALIZER, TOKENIZER, RELATIVE, ABSOLUTE}
    known |= {STATE_PROMPT} if config.kind == "pi05" else {"pi0" + NEW_LINE, "smolvla" + NEW_LINE}
    strange = sorted({*before, *after} - known)
    if strange:
        raise CheckpointError(
            f"{directory} has processor steps that are not built: {', '.join(strange)}"
        )
    lost = [n for n, steps in ((NORMALIZER, before), (TOKENIZER, before), (UNNORMALIZER, after))
            if n not in steps]  # fmt: skip
    if lost:
        raise CheckpointError(f"{directory} has no processor step {', '.join(lost)}")
    tokenizer = Fields(before[TOKENIZER].raw.get("config"), TOKENIZER)
    _check_tokenizer(tokenizer, config)
    return Processors(
        state=scaler_of(directory, before[NORMALIZER], "STATE", STATE, config.state_dim),
        action=scaler_of(directory, after[UNNORMALIZER], "ACTION", ACTION, config.action_dim),
        tokenizer=tokenizer.text("tokenizer_name", ""),
        relative=_relative(before, after, config),
        action_names=_action_names(before),
    )


def steps_of(path: Path) -> dict[str, Fields]:
    """The steps of a processor by their registered names."""
    if not path.is_file():
        raise CheckpointError(
            f"no {path.name} in {path.parent}: save the policy with LeRobot 0.4 or later"
        )
    steps = [Fields(step, "step") for step in Fields(read_json(path)).items("steps")]
    return {step.text("registry_name", step.text("class", "?")): step for step in steps}


def _check_tokenizer(fields: Fields, config: FlowConfig) -> None:
    fields.only("padding_side", "right")
    fields.only("truncation", True)
    longest = fields.whole("max_length", 512)
    if longest != config.max_text:
        raise CheckpointError(
            f"the preprocessor cuts prompts at {longest} tokens, config.json at {config.max_text}"
        )


def scaler_of(
    directory: Path, step: Fields, kind: str, key: str, dim: int, width: int = 0
) -> Scaler:
    """The scaling of one feature by a step and its statistics. ``width``: the model's, where
    statistics may be padded to it (Evo-1)."""
    settings = step.part("config")
    modes = settings.part("norm_map")
    modes_known = tuple(MODES)
    if kind == "STATE" and modes.choice("VISUAL", "IDENTITY", modes_known) != "IDENTITY":
        raise modes.wrong("VISUAL", "IDENTITY")
    mode = modes.choice(kind, "IDENTITY", modes_known)
    stored = _statistics(directory, step)
    values = []
    for name in MODES[mode]:
        tensor = stored.get(f"{key}.{name}")
        if tensor is None:
            present = ", ".join(sorted(stored)) or "nothing"
            raise CheckpointError(f"{directory} has no {key}.{name} for {mode}: there is {present}")
        flat = tensor.float().flatten()
        if len(flat) == width:
            flat = flat[:dim]
        if len(flat) != dim or not bool(flat.isfinite().all()):
            raise CheckpointError(f"{key}.{name} is {flat.tolist()}: wanted {dim} finite numbers")
        values.append(flat)
    low, high = values or [torch.zeros(dim), torch.ones(dim)]
    if mode == "MEAN_STD" and bool((high < 0).any()):
        raise CheckpointError(f"{key}.std is {high.tolist()}: wanted nothing below 0")
    return Scaler(mode, low, high, settings.number("eps", 1e-8))


def _statistics(directory: Path, step: Fields) -> Mapping[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    name = step.text("state_file", "")
    if not name:
        return {}
    path = directory / Path(name).name  # never out of the folder
    try:
        return load_file(str(path))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"the statistics {path} cannot be read: {error}") from error


def _action_names(before: Mapping[str, Fields]) -> tuple[str, ...]:
    if RELATIVE not in before:
        return ()
    return tuple(str(n) for n in before[RELATIVE].part("config").items("action_names"))


def _relative(
    before: Mapping[str, Fields], after: Mapping[str, Fields], config: FlowConfig
) -> tuple[bool, ...]:
    """Which values are relative to the state: all but those whose name has an excluded word."""
    on = [s[n].part("config").flag("enabled", False)
          for s, n in ((before, RELATIVE), (after, ABSOLUTE)) if n in s]  # fmt: skip
    if not any(on):
        return ()
    if on != [True, True]:
        raise CheckpointError("actions are made relative on one side of the model only")
    if config.state_dim < config.action_dim:
        raise CheckpointError("relative actions need a state value for every action value")
    settings = before[RELATIVE].part("config")
    words = [str(w).lower() for w in settings.items("exclude_joints") if w]
    names = [name.lower() for name in _action_names(before)]
    names += [""] * (config.action_dim - len(names))
    return tuple(not any(w in n for w in words if n) for n in names[: config.action_dim])
