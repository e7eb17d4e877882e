"""A checkpoint's processors: between images, states and actions and the model's numbers.

``preprocessor_config.json`` of a token policy: how it wants its images. Sources: openvla
``prismatic/extern/hf/processing_prismatic.py``, BitVLA ``image_processing_siglip.py``. OpenVLA's
class works out the ``tvf_*`` fields from the others once, when a checkpoint is made, and stores
both; on reload what is stored wins. So it does here. The released files differ from what the
towers' own documentation says: the conversion ran with bfloat16 as the default type, and DINOv2's
mean of 0.485 became 0.484375.

``policy_preprocessor.json`` and ``policy_postprocessor.json`` of a LeRobot folder name the steps
between a robot and the model, and the safetensors files with the data set's statistics. Steps that
this engine does not know are refused: leaving one out would change the policy. Source:
lerobot 0.6.1 ``normalize_processor.py``, ``relative_action_processor.py`` and ``processor_pi0.py``,
``processor_pi05.py``, ``processor_smolvla.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.io.action_data import action_names_in
from vla_ros.engine.io.config import INTERPOLATIONS, ModelConfig, TowerConfig
from vla_ros.engine.io.ends import check_ends
from vla_ros.engine.io.field_table import Fields
from vla_ros.engine.io.fields import STRATEGIES
from vla_ros.engine.io.files import naming, read_json, some, tokenizer_folders
from vla_ros.engine.io.flow_config import (
    ACTION,
    FAST,
    FAST_PROMPT,
    IDENTITY,
    MODES,
    NORMALIZER,
    POSTPROCESSOR,
    PREPROCESSOR,
    STATE,
    STATE_PROMPT,
    TOKENIZER,
    UNNORMALIZER,
    FlowConfig,
    action_names,
    by_data_set,
    known_steps,
    no_action_statistics,
    normalization_mode,
    read_steps,
    relative_actions,
    steps_of,
)
from vla_ros.engine.io.tokenizer_file import open_tokenizer

FILE = "preprocessor_config.json"
PROCESSOR = "PrismaticImageProcessor"
SIGLIP_PROCESSORS = ("SiglipImageProcessor", "SiglipImageProcessorFast")


def read_preprocessor(directory: Path, config: ModelConfig) -> ModelConfig:
    """``config`` with what the directory's preprocessor has; as it is where there is none.

    CheckpointError names the file and the field that this engine cannot follow.
    """
    path = directory / FILE
    if not path.exists():
        return config
    with naming(path):
        return apply_preprocessor(config, read_json(path))


def apply_preprocessor(config: ModelConfig, raw: dict[str, Any]) -> ModelConfig:
    """``config`` with the content of a preprocessor_config.json."""
    if config.text.ternary:
        return _apply_siglip(config, raw)
    fields = Fields(raw)
    kind = fields.text("image_processor_type", PROCESSOR)
    if kind != PROCESSOR:
        raise fields.wrong("image_processor_type", f"{PROCESSOR}, the family's own")
    count = len(config.towers)
    strategy = fields.choice("image_resize_strategy", "letterbox", STRATEGIES)
    towers = tuple(_tower(fields, tower, i, count) for i, tower in enumerate(config.towers))
    boxed = fields.flag("tvf_do_letterbox", strategy == "letterbox")
    resizes = [_resize(fields, tower, i, count) for i, tower in enumerate(towers)]
    if resizes[0] is not None:
        shown = {both for both, _ in filter(None, resizes)}
        if shown == {True, False} or (boxed and True in shown):
            raise fields.wrong("tvf_resize_params", "the same for every tower, as its class writes")
        strategy = "letterbox" if boxed else "resize-naive" if True in shown else "resize-crop"
        towers = tuple(
            replace(tower, interpolation=resize[1]) if resize else tower
            for tower, resize in zip(towers, resizes, strict=True)
        )
    fill = None
    if boxed:  # its class pads all towers with the one color of the last
        mean = fields.triple("means", _list(fields, "means", count)[-1] or [0.5] * 3)
        stored = fields.raw.get("tvf_letterbox_fill")
        grey = [int(x * 255) for x in mean]
        fill = fields.color("tvf_letterbox_fill", grey if stored is None else stored)
    return replace(config, towers=towers, resize=strategy, fill=fill)


def _apply_siglip(config: ModelConfig, raw: Mapping[str, Any]) -> ModelConfig:
    """``config`` with the content of a SiglipImageProcessor's file."""
    fields, (tower,) = Fields(raw), config.towers
    fields.choice("image_processor_type", SIGLIP_PROCESSORS[0], SIGLIP_PROCESSORS)
    for name in ("do_resize", "do_rescale", "do_normalize"):
        fields.only(name, True)
    size = fields.part("size")
    for side in ("height", "width"):
        size.only(side, tower.image_size)
    factor = fields.number("rescale_factor", 1 / 255)
    if abs(factor - 1 / 255) > 1e-6:
        raise fields.wrong("rescale_factor", "1 / 255")
    mean, std = (
        fields.triple(n, fields.raw.get(n) or [0.5] * 3) for n in ("image_mean", "image_std")
    )
    if min(std) <= 0:
        raise fields.wrong("image_std", "numbers above 0")
    number = fields.whole("resample", 3, 0, len(INTERPOLATIONS) - 1)
    tower = replace(tower, mean=mean, std=std, interpolation=INTERPOLATIONS[number])
    return replace(config, towers=(tower,))


def _tower(fields: Fields, tower: TowerConfig, index: int, count: int) -> TowerConfig:
    size = _list(fields, "input_sizes", count)[index] or [3, 224, 224]
    if size != [3, tower.image_size, tower.image_size]:
        wanted = f"3, {tower.image_size}, {tower.image_size} for tower {index}"
        raise fields.wrong("input_sizes", wanted)
    crop = _part(fields, "tvf_crop_params", index, count).raw.get("output_size", size[1:])
    if crop not in (tower.image_size, size[1:]):
        raise fields.wrong("tvf_crop_params", f"{size[1:]} for tower {index}")
    normal = _part(fields, "tvf_normalize_params", index, count)
    mean, std = (
        normal.triple(one, normal.raw.get(one) or _list(fields, many, count)[index] or [0.5] * 3)
        for one, many in (("mean", "means"), ("std", "stds"))
    )
    if min(std) <= 0:
        raise fields.wrong("stds", "numbers above 0")
    interpolation = _list(fields, "interpolations", count)[index] or "bicubic"
    if interpolation not in INTERPOLATIONS:
        raise fields.wrong("interpolations", f"of {', '.join(INTERPOLATIONS)}")
    return replace(tower, mean=mean, std=std, interpolation=str(interpolation))


def _resize(fields: Fields, tower: TowerConfig, index: int, count: int) -> tuple[bool, str] | None:
    """A tower's stored resize: both sides or the shorter one, and the interpolation; None where the
    file has none."""
    part = _part(fields, "tvf_resize_params", index, count)
    if not part.raw:
        return None
    if part.raw.get("max_size") is not None:
        raise part.wrong("max_size", "null")
    size, side = part.raw.get("size"), tower.image_size
    if size not in (side, [side], [side, side]):
        raise part.wrong("size", f"{side} or [{side}, {side}]")
    number = part.whole("interpolation", 3, 0, len(INTERPOLATIONS) - 1)
    return size == [side, side], INTERPOLATIONS[number]


def _list(fields: Fields, name: str, count: int) -> list[Any]:
    """A field with an entry for each of ``count`` towers; Nones where it is absent."""
    listed = fields.items(name) or [None] * count
    if len(listed) != count:
        raise fields.wrong(name, f"one entry for each of the {count} towers")
    return listed


def _part(fields: Fields, name: str, index: int, count: int) -> Fields:
    """Entry ``index`` of a list of objects; empty where it is absent."""
    return Fields(_list(fields, name, count)[index] or {}, f"{name}[{index}]")


@dataclass(frozen=True, slots=True)
class Scaler:
    """Units <-> model space of one feature, float32 as LeRobot does it, value for value."""

    mode: str
    low: torch.Tensor  # mean, min or the lower quantile [n]
    high: torch.Tensor  # std, max or the upper quantile [n]
    eps: float = 1e-8

    def normalize(self, values: torch.Tensor) -> torch.Tensor:
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

    def difference(self, values: torch.Tensor) -> torch.Tensor:
        """A difference in units [..., n] -> in model space; 0 where nothing moves the units."""
        if self.mode == "IDENTITY":
            return values
        spread = self.high if self.mode == "MEAN_STD" else (self.high - self.low) / 2
        return torch.where(spread == 0, 0.0, values / spread)

    def still(self) -> torch.Tensor:
        """bool [n]: values that never moved in the data, of which a difference is divided by eps;
        they all were ``low``."""
        spread = self.high if self.mode == "MEAN_STD" else self.high - self.low
        return (spread == 0) & (self.mode != "IDENTITY")

    def ends(self) -> tuple[torch.Tensor, ...]:
        """Bounds of nearly all of the data, in units: from [n] and to [n]; () where unknown."""
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
    are those of the action's values where the folder or its data set has any, in the file
    ``named_by``.
    """

    state: Scaler
    action: Scaler
    tokenizer: str
    relative: tuple[bool, ...] = ()
    action_names: tuple[str, ...] = ()
    named_by: str = ""


@dataclass(frozen=True, slots=True)
class StatisticsChoice:
    """Somebody's choice where a folder's statistics leave one: ``unnorm_key`` of the data sets that
    they are kept by, ``state`` "identity" where none are of the state."""

    unnorm_key: str | None = None
    state: str | None = None


def read_processors(
    directory: Path, config: FlowConfig, whose: StatisticsChoice = StatisticsChoice()
) -> Processors:
    """Read both files; CheckpointError in one line where they do not fit ``config``."""
    before, after = read_steps(
        directory, (NORMALIZER, TOKENIZER, UNNORMALIZER), known_steps(config.kind)
    )
    tokenizer = Fields(before[TOKENIZER].raw.get("config"), TOKENIZER)
    _check_tokenizer(tokenizer, config)
    if config.kind == FAST and FAST_PROMPT not in before:
        raise CheckpointError(f"{directory} has no processor step {FAST_PROMPT}")
    if STATE_PROMPT in before:
        before[STATE_PROMPT].part("config").only("include_state_in_prompt", True)
    relative = relative_actions(directory, before, after, config)
    action = action_scaler(directory, config, whose)
    step = before[NORMALIZER]
    names, named_by = named_actions(directory, before, config)
    return Processors(
        state=scaler_of(directory, step, "STATE", STATE, config.state_dim, whose=whose),
        action=action,
        tokenizer=tokenizer.text("tokenizer_name", ""),
        relative=relative,
        action_names=names,
        named_by=named_by,
    )


def named_actions(
    directory: Path, before: Mapping[str, Fields], config: FlowConfig
) -> tuple[tuple[str, ...], str]:
    """Names of the action's values and the file that has them; ((), "") where none does."""
    names = action_names(before)
    if len(names) == config.action_dim:
        return names, PREPROCESSOR
    return action_names_in(directory, config.action_dim)


def action_scaler(directory: Path, config: FlowConfig, whose: StatisticsChoice) -> Scaler:
    """The scaling of the actions alone. CheckpointError."""
    after = steps_of(directory / POSTPROCESSOR)
    if UNNORMALIZER not in after:
        raise CheckpointError(f"{directory} has no processor step {UNNORMALIZER}")
    return scaler_of(
        directory, after[UNNORMALIZER], "ACTION", ACTION, config.action_dim, whose=whose
    )


def action_statistics(
    directory: Path, dim: int, whose: StatisticsChoice
) -> Mapping[str, Sequence[float]]:
    """All statistics of the actions that a folder has, by their names: ``dim`` values each.
    CheckpointError."""
    after = steps_of(directory / POSTPROCESSOR)
    stored = by_data_set(_statistics(directory, after[UNNORMALIZER]), ACTION)
    own = _chosen(directory, stored, whose.unnorm_key) if stored else {}
    flat = {name: tensor.double().flatten().tolist()[:dim] for name, tensor in own.items()}
    return {name: values for name, values in flat.items() if len(values) == dim}


def data_sets_in(directory: Path) -> dict[str, bool]:
    """The data sets that a folder's action statistics are kept by, each with whether there are
    some of the state too; none where they are of one data set, or cannot be read."""
    try:
        after, before = (steps_of(directory / name) for name in (POSTPROCESSOR, PREPROCESSOR))
        actions = by_data_set(_statistics(directory, after[UNNORMALIZER]), ACTION)
        states = by_data_set(_statistics(directory, before[NORMALIZER]), STATE)
    except (CheckpointError, KeyError):
        return {}
    plain = "" in actions
    return {} if plain else {name: name in states or "" in states for name in sorted(actions)}


def _check_tokenizer(fields: Fields, config: FlowConfig) -> None:
    fields.only("padding_side", "right")
    fields.only("truncation", True)
    longest = fields.whole("max_length", 512)
    if longest != config.max_text:
        raise CheckpointError(
            f"the preprocessor cuts prompts at {longest} tokens, config.json at {config.max_text}"
        )


def scaler_of(
    directory: Path,
    step: Fields,
    kind: str,
    key: str,
    dim: int,
    width: int = 0,
    whose: StatisticsChoice = StatisticsChoice(),
) -> Scaler:
    """The scaling of one feature by a step and its statistics. ``width``: the model's, where
    statistics may be padded to it (Evo-1)."""
    mode = normalization_mode(step, kind, key)
    stored = _statistics(directory, step)
    own = _chosen(directory, by_data_set(stored, key), whose.unnorm_key) if MODES[mode] else {}
    if kind == "STATE" and whose.state == IDENTITY.lower():
        if own or mode == IDENTITY:
            raise CheckpointError(
                f"state_normalization identity means nothing to {directory}, which says how the"
                " state is scaled"
            )
        mode = IDENTITY
    elif kind == "STATE" and MODES[mode] and not own:
        raise CheckpointError(
            f"{directory} has no statistics of the state for {mode}: LeRobot itself would leave it"
            " as it is without a word; state_normalization identity says so, where that is right"
        )
    elif MODES[mode] and not stored:
        raise no_action_statistics(directory, mode)
    values = []
    for name in MODES[mode]:
        tensor = own.get(name)
        if tensor is None:
            present = some(sorted(stored), 8) or "nothing"
            raise CheckpointError(f"{directory} has no {key}.{name} for {mode}: there is {present}")
        flat = tensor.float().flatten()
        if len(flat) == width:
            flat = flat[:dim]
        if len(flat) != dim or not bool(flat.isfinite().all()):
            raise CheckpointError(f"{key}.{name} is {flat.tolist()}: wanted {dim} finite numbers")
        values.append(flat)
    low, high = values or [torch.zeros(dim), torch.ones(dim)]
    if MODES[mode]:
        check_ends(low, high, MODES[mode], f"{directory}: {key}")
    return Scaler(mode, low, high, step.part("config").number("eps", 1e-8))


def _chosen(
    directory: Path, sets: Mapping[str, dict[str, torch.Tensor]], unnorm_key: str | None
) -> dict[str, torch.Tensor]:
    """Statistics of the data set that was chosen, or of the only one. None is guessed."""
    if "" in sets:
        if unnorm_key is not None:
            raise CheckpointError(
                f"unnorm_key {unnorm_key!r} means nothing to {directory}: its statistics are those"
                " of one data set"
            )
        return sets[""]
    keys = ", ".join(sorted(sets))
    if sets and unnorm_key is None:
        raise CheckpointError(
            f"unnorm_key is needed: {directory} keeps its statistics by data set, as a base model"
            f" does that wants to be fine-tuned first; it has: {keys}"
        )
    if sets and unnorm_key not in sets:
        raise CheckpointError(f"unnorm_key {unnorm_key!r} is unknown; {directory} has: {keys}")
    return sets.get(unnorm_key or "", {})


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


class TextTokenizer:
    """Text -> ids with the tokenizer of a folder, or of the path that was given.

    CheckpointError in one line where there is none or it belongs to another model.
    """

    def __init__(self, directory: Path, given: str | None, name: str, vocab: int) -> None:
        path = _find(directory, given, name)
        self._tokenizer = open_tokenizer(path)
        self._path, self._vocab = path, vocab
        self._bos = _bos(path.parent / "tokenizer_config.json")

    def __call__(self, text: str) -> list[int]:
        ids = list(self._tokenizer.encode(text).ids)
        if self._bos is not None:
            first = self._tokenizer.token_to_id(self._bos)
            if first is not None and ids[:1] != [first]:
                ids.insert(0, first)
        if not ids or max(ids) >= self._vocab:
            raise CheckpointError(
                f"{self._path} gives {len(ids)} ids up to {max(ids, default=-1)}, the model has"
                f" {self._vocab}: they do not belong together"
            )
        return ids

    @property
    def size(self) -> int:
        """Its tokens, without those that were added later."""
        return self._tokenizer.vocab_size(with_added_tokens=False)

    @property
    def opening(self) -> int:
        """The token that opens a prompt."""
        return self("")[0]

    def plain(self, text: str) -> list[int]:
        """Ids of a text that is no prompt: nothing opens it."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def id_of(self, token: str) -> int:
        """The id of a token by its name. CheckpointError: there is none."""
        found = self._tokenizer.token_to_id(token)
        if found is None or found >= self._vocab:
            raise CheckpointError(f"{self._path} has no token {token} below {self._vocab}")
        return int(found)


def _find(directory: Path, given: str | None, name: str) -> Path:
    """``tokenizer.json`` in the first of these folders that has one."""
    folders = tokenizer_folders(directory, given, name)
    for folder in folders:
        if (folder / "tokenizer.json").is_file():
            return folder / "tokenizer.json"
    raise CheckpointError(
        f"no tokenizer.json in {folders[0]}: copy that of {name or 'the language model'} there,"
        " or name its folder with the option 'tokenizer'"
    )


def _bos(path: Path) -> str | None:
    """The token that opens every prompt, where tokenizer_config.json asks for one."""
    if not path.is_file():
        return None
    raw = read_json(path)
    token = raw.get("bos_token")
    token = token.get("content") if isinstance(token, dict) else token
    return token if raw.get("add_bos_token") is True and isinstance(token, str) else None
