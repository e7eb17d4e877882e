"""The ``config.json`` of a LeRobot folder of a pi0, pi05, smolvla or pi0_fast policy.

Sources: lerobot 0.6.1 ``configuration_pi0.py``, ``configuration_pi05.py``,
``configuration_smolvla.py``, ``configuration_pi0_fast.py``, and ``modeling_pi0.py``,
``smolvlm_with_expert.py`` beside them, which fix the sizes of PaliGemma; SmolVLM2-500M's
config.json. Two keys are this project's own:
``shapes``, for checkpoints whose models are of other sizes than the published ones ({"vision",
"text", "expert", "shuffle"}, in the words of TowerConfig and TextConfig), and
``state_in_prompt`` of pi05 and pi0_fast, which LeRobot's versions do differently and none writes
down (lerobot issue 2863).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.io.config import SIGLIP_SO400M, TextConfig, TowerConfig
from vla_ros.engine.io.field_table import Fields
from vla_ros.engine.io.fields import (
    BY_LEROBOT,
    LEROBOT,
    LLAMA,
    PADDED,
    ROBOT,
    SIGLIP,
    SMOLVLM2_500M,
)
from vla_ros.engine.io.files import AGAIN, naming, read_json, tokenizer_folders
from vla_ros.engine.io.foreign import refuse_foreign_flow

V = TypeVar("V")
FAST = "pi0_fast"  # whose actions are tokens
KINDS = ("pi0", "pi05", "smolvla", FAST)
STATE, ACTION, CAMERA = "observation.state", "action", "observation.images."
EMPTY_CAMERA = "empty_camera_"
PALIGEMMA_VOCAB = 257152

PREPROCESSOR, POSTPROCESSOR = "policy_preprocessor.json", "policy_postprocessor.json"
NORMALIZER, UNNORMALIZER = "normalizer_processor", "unnormalizer_processor"
TOKENIZER, RELATIVE = "tokenizer_processor", "relative_actions_processor"
#: LeRobot 0.5's name of a step -> today's, of the same code and settings
_OLD_STEPS = {"delta_actions_processor": RELATIVE}
ABSOLUTE, NEW_LINE = "absolute_actions_processor", "_new_line_processor"
STATE_PROMPT = "pi05_prepare_state_tokenizer_processor_step"
FAST_PROMPT = "pi0_fast_prepare_state_tokenizer_processor_step"
ACTION_TOKENIZER = "action_tokenizer_processor"
FAST_PROCESSOR = "processor_config.json"
IDENTITY = "IDENTITY"
#: Statistics that a mode of normalization needs.
MODES = {
    IDENTITY: (),
    "MEAN_STD": ("mean", "std"),
    "MIN_MAX": ("min", "max"),
    "QUANTILES": ("q01", "q99"),
    "QUANTILE10": ("q10", "q90"),
}
PLUMBING = ("rename_observations_processor", "to_batch_processor", "device_processor")

#: lerobot ``get_gemma_config``: width, layers, mlp.
_GEMMA = {"gemma_300m": (1024, 18, 4096), "gemma_2b": (2048, 18, 16384)}


@dataclass(frozen=True, slots=True)
class Shapes:
    """The three transformers: ``layers`` counts those that are used.

    ``shuffle`` is SmolVLM's pixel shuffle: so many patches on a side become one token.
    """

    vision: TowerConfig
    text: TextConfig
    expert: TextConfig
    shuffle: int = 1


@dataclass(frozen=True, slots=True)
class FlowConfig:
    """A policy of LeRobot's, pi0, pi05, smolvla or pi0_fast.

    ``horizon`` actions a chunk, ``steps`` of the solver. The model sees ``state_dim`` values
    padded to ``state_width`` and gives ``action_width``, of which the first ``action_dim``
    count. ``cameras`` are the features' names without their prefix, in order, without those
    that are always empty. Images become squares of ``image_size``; ``self_every``: every which
    layer of SmolVLA's expert attends to the actions too (0: all). ``vlm`` names SmolVLA's
    language model, ``max_text`` is the longest prompt in tokens. ``rtc_trained``: trained with some
    actions given, each with a time of its own, ``max_delay`` of them at most (0: unknown);
    ``relative``: its actions are relative to the state, and its processors must make them absolute
    (None: not stated). ``state_in_prompt``: ROBOT or PADDED of :mod:`~.fields`, or "" where it is
    unknown. Of pi0_fast, which has no solver and no expert: ``max_tokens`` of an
    answer, ``skip`` tokens at the vocabulary's end that are no actions, whether an answer must
    begin as trained (``strict``), and the name of its FAST tokenizer.
    """

    kind: str
    shapes: Shapes
    horizon: int
    steps: int
    state_width: int
    action_width: int
    state_dim: int
    action_dim: int
    cameras: tuple[str, ...]
    max_text: int
    image_size: int
    min_period: float = 4e-3
    max_period: float = 4.0
    self_every: int = 0
    vlm: str = ""
    rtc_trained: bool = False
    max_delay: int = 0
    relative: bool | None = field(default=None, compare=False)
    state_in_prompt: str = ""
    max_tokens: int = 0
    skip: int = 0
    strict: bool = True
    action_tokenizer: str = ""

    @property
    def speaks_state(self) -> bool:
        """The state is in the prompt."""
        return self.kind in ("pi05", FAST)

    @property
    def adaptive(self) -> bool:
        """Time enters through every norm (pi0.5) and not with the actions."""
        return self.kind == "pi05"

    @property
    def prompt_state(self) -> int:
        """Values of the state in the prompt. CheckpointError: their number is stated nowhere."""
        if self.state_dim == self.state_width or self.state_in_prompt == ROBOT:
            return self.state_dim
        if self.state_in_prompt == PADDED:
            return self.state_width
        raise CheckpointError(
            f"{self.kind} says its state in the prompt, and nothing in this folder tells whether it"
            f" was trained with the robot's {self.state_dim} values (openpi, LeRobot 0.6) or with"
            f" {self.state_width}, zeros behind them (LeRobot 0.4): say so with the option"
            f" state_in_prompt: {ROBOT} or {PADDED}"
        )

    @property
    def continues(self) -> tuple[str, ...]:
        """The ways in which a chunk can continue an earlier one."""
        if self.kind == FAST:
            return ()
        return ("rtc", "rtc_trained") if self.rtc_trained else ("rtc",)

    @property
    def view_tokens(self) -> int:
        """Prefix tokens of one camera."""
        return (self.image_size // self.shapes.vision.patch // self.shapes.shuffle) ** 2

    @property
    def longest(self) -> int:
        """Rows of the longest prefix."""
        more = int(self.kind in ("smolvla", FAST))  # the state, and the BOS behind a prompt
        return len(self.cameras) * self.view_tokens + self.max_text + more


def read_flow_config(directory: Path) -> FlowConfig:
    """Read ``config.json``; CheckpointError in one line where this engine cannot run it."""
    refuse_foreign_flow(directory)
    path = directory / "config.json"
    with naming(path):
        config = parse_flow_config(read_json(path), directory)
    return replace(config, cameras=robots_cameras(directory, config.cameras))


def parse_flow_config(raw: Mapping[str, Any], directory: Path | None = None) -> FlowConfig:
    """Turn a config.json's content into a :class:`FlowConfig`."""
    fields = Fields(raw)
    kind = fields.choice("type", "", KINDS)
    LEROBOT[kind].check(raw)
    small = kind == "smolvla"
    values = {"steps": 0, **LEROBOT[kind].parse(fields, FlowConfig)}
    state_width, action_width = values["state_width"], values["action_width"]
    config = FlowConfig(
        shapes=_shapes(fields, small, directory),
        state_dim=feature_length(fields, "input_features", STATE, state_width),
        action_dim=feature_length(fields, "output_features", ACTION, action_width),
        cameras=camera_names(fields),
        self_every=_self_every(fields) if small else 0,
        rtc_trained=raw.get("row_time") is True or values.get("max_delay", 0) > 0,
        **values,
    )
    _check(config)
    return config


def _check(config: FlowConfig) -> None:
    text, expert, vision = config.shapes.text, config.shapes.expert, config.shapes.vision
    one, other = ((it.layers, it.kv_heads, it.head_dim) for it in (text, expert))
    if one != other:
        raise CheckpointError("the expert's layers, KV heads and head size are not the prefix's")
    unit = vision.patch * config.shapes.shuffle
    if config.image_size % unit:
        raise CheckpointError(f"images of {config.image_size} pixels do not divide by {unit}")
    if config.kind != "smolvla" and config.image_size != vision.image_size:
        raise CheckpointError(
            f"image_resolution is {config.image_size}, the tower was made for {vision.image_size}"
        )
    if config.state_dim > config.state_width or config.action_dim > config.action_width:
        raise CheckpointError(
            f"state {config.state_dim} of {config.state_width} or action {config.action_dim} of"
            f" {config.action_width} is wider than the model"
        )
    if not config.cameras:
        raise CheckpointError(f"input_features has no camera ({CAMERA}...)")
    if expert.hidden_size % 2:
        raise CheckpointError(f"the expert's width {expert.hidden_size} is odd")


def _self_every(fields: Fields) -> int:
    every = fields.whole("self_attn_every_n_layers", 2, least=-1)
    mode = fields.choice("attention_mode", "cross_attn", ("cross_attn", "self_attn"))
    if mode == "self_attn":
        return 0
    if every < 1:
        raise fields.wrong(
            "self_attn_every_n_layers", "1 or more: cross attention alone is not built"
        )
    return every


def flow_config_json(config: FlowConfig) -> dict[str, Any]:
    """The config.json, in LeRobot's words, that :func:`parse_flow_config` reads back."""
    given = {
        **features_json(config.cameras, config.image_size, config.state_dim, config.action_dim),
        "shapes": asdict(config.shapes),
    }
    if config.rtc_trained and not config.max_delay:
        given["row_time"] = True
    if config.kind == "smolvla":
        given |= {
            "attention_mode": "cross_attn" if config.self_every else "self_attn",
            "self_attn_every_n_layers": config.self_every or -1,
            "expert_width_multiplier": _width_share(config.shapes),
        }
    return LEROBOT[config.kind].write(config, given)


def features_json(
    cameras: tuple[str, ...], side: int, state_dim: int, action_dim: int
) -> dict[str, Any]:
    """The features of a policy whose images are squares of ``side`` pixels."""
    seen = {f"{CAMERA}{name}": feature("VISUAL", 3, side, side) for name in cameras}
    return {
        "input_features": {**seen, STATE: feature("STATE", state_dim)},
        "output_features": {ACTION: feature("ACTION", action_dim)},
    }


def _width_share(shapes: Shapes) -> float:
    """The expert's width by the language model's, of which LeRobot takes the whole part again."""
    wide, width = shapes.text.hidden_size, shapes.expert.hidden_size
    share = width / wide
    return share if int(wide * share) == width else (width + 0.5) / wide


def _shapes(fields: Fields, small: bool, directory: Path | None) -> Shapes:
    """``shapes`` of this project's own checkpoints; else of pi0 PaliGemma and its expert by their
    variants' names, of SmolVLA its language model's own."""
    sizes = [
        _GEMMA[fields.choice(name, usual, tuple(_GEMMA))]
        for name, usual in (
            ("paligemma_variant", "gemma_2b"),
            ("action_expert_variant", "gemma_300m"),
        )
    ]
    layers = fields.whole("num_vlm_layers", 16, least=-1)
    if small:
        fields.only("num_expert_layers", -1, 0, fields.raw.get("num_vlm_layers"))
    if fields.raw.get("shapes") is not None:
        own, kind = fields.part("shapes"), "llama" if small else "gemma"
        if "expert" not in own.raw and fields.raw.get("type") == FAST:
            vision, text = own_shapes(own, kind)
            return Shapes(vision, text, text)
        expert = own_text(own, "expert", kind)
        return Shapes(*own_shapes(own, kind), expert, own.whole("shuffle", 1))
    if not small:
        tower = replace(SIGLIP_SO400M, image_size=fields.square("image_resolution", 224))
        text, expert = (
            TextConfig("gemma", vocab, width, mlp, layers, 8, 1, 256, tied=True)
            for (width, layers, mlp), vocab in zip(sizes, (PALIGEMMA_VOCAB, 1), strict=True)
        )
        return Shapes(tower, text, text if fields.raw.get("type") == FAST else expert)
    tower, text, shuffle = _vlm(fields.text("vlm_model_name", SMOLVLM2_500M), directory)
    text = replace(text, layers=layers if layers > 0 else text.layers)
    expert = smolvla_expert(text, fields.number("expert_width_multiplier", 0.75))
    return Shapes(tower, text, expert, shuffle)


def smolvla_expert(text: TextConfig, multiplier: float) -> TextConfig:
    """lerobot ``SmolVLMWithExpertModel``: narrower, its mlp 4 * 2/3 rounded up to 256."""
    width = int(text.hidden_size * multiplier)
    mlp = 256 * -(-int(4 * int(2 * width / 3)) // 256)
    return replace(text, hidden_size=width, intermediate_size=mlp)


def _vlm(name: str, directory: Path | None) -> tuple[TowerConfig, TextConfig, int]:
    """Shapes of SmolVLM2-500M-Video-Instruct's config.json, or of one in a local folder.

    RoPE has base 10000 whatever the VLM says: LeRobot applies its own.
    """
    # A trainer's own copy has the same last name; its tensors tell whether it is the same.
    if Path(name).name == Path(SMOLVLM2_500M).name and not (Path(name) / "config.json").is_file():
        vision = TowerConfig(768, 12, 12, 3072, image_size=512, patch=16)
        return vision, TextConfig("llama", 49280, 960, 2560, 32, 15, 5, 64, 1e4, 1e-5), 4
    folders = [Path(name).expanduser()] + ([directory / name] if directory else [])
    found = next((p for p in folders if (p / "config.json").is_file()), None)
    if found is None:
        raise CheckpointError(
            f"vlm_model_name is {name!r}: its shapes are not known here; put its config.json"
            " into a folder and give that folder's path"
        )
    raw = Fields(read_json(found / "config.json"))
    vision_fields, text_fields = raw.part("vision_config"), raw.part("text_config")
    values = LLAMA.parse(text_fields, TextConfig)
    heads, plain = values["heads"], TowerConfig(1152, 12, 16, 3072, patch=32)
    text = TextConfig(
        "llama",
        kv_heads=text_fields.whole("num_key_value_heads", heads),
        head_dim=text_fields.whole("head_dim", values["hidden_size"] // heads),
        rms_eps=text_fields.number("rms_norm_eps", 1e-6),
        **values,
    )
    return TowerConfig(**SIGLIP.parse(vision_fields, plain)), text, raw.whole("scale_factor", 2)


def own_shapes(own: Fields, kind: str) -> tuple[TowerConfig, TextConfig]:
    """Tower and language model of ``shapes``."""
    return own.part("vision").record(TowerConfig, registers=(0,)), own_text(own, "text", kind)


def own_text(own: Fields, name: str, kind: str) -> TextConfig:
    """A transformer of ``shapes``; ``kind`` is the policy's, whatever is written."""
    raw = {**own.part(name).raw, "kind": kind}
    return Fields(raw, f"shapes.{name}").record(TextConfig)


def camera_names(fields: Fields) -> tuple[str, ...]:
    """The cameras without their prefix, in order, without those that are always empty."""
    features = fields.part("input_features").raw
    names = [n for n, f in features.items() if isinstance(f, Mapping) and f.get("type") == "VISUAL"]
    short = [n.removeprefix(CAMERA) for n in names]
    return tuple(n for n in short if not n.startswith(EMPTY_CAMERA))


def steps_of(path: Path) -> dict[str, Fields]:
    """The steps of a processor by their registered names."""
    if not path.is_file():
        raise CheckpointError(
            f"no {path.name} in {path.parent}, which LeRobot saves since 0.4, and no statistics"
            f" among its weights: {AGAIN}, all of its files"
        )
    steps = [Fields(step, "step") for step in Fields(read_json(path)).items("steps")]
    named = {step.text("registry_name", step.text("class", "?")): step for step in steps}
    return {_OLD_STEPS.get(name, name): step for name, step in named.items()}


def read_steps(
    directory: Path,
    needed: tuple[str, ...],
    known: Set[str] | None = None,
    images: bool = False,
) -> tuple[dict[str, Fields], dict[str, Fields]]:
    """The steps of both processors. CheckpointError: one is not among the ``known``, or one of
    those ``needed`` is missing, or images are scaled, of a family that takes none (``images``)."""
    before, after = (steps_of(directory / name) for name in (PREPROCESSOR, POSTPROCESSOR))
    if known is not None and (strange := sorted({*before, *after} - known)):
        raise CheckpointError(
            f"{directory} has processor steps that are not built: {', '.join(strange)}{BY_LEROBOT}"
        )
    if lost := [n for n in needed if n not in (after if n == UNNORMALIZER else before)]:
        raise CheckpointError(f"{directory} has no processor step {', '.join(lost)}")
    if NORMALIZER in before and not images:
        modes = before[NORMALIZER].part("config").part("norm_map")
        if modes.choice("VISUAL", IDENTITY, tuple(MODES)) != IDENTITY:
            raise modes.wrong("VISUAL", IDENTITY)
    return before, after


def normalization_mode(step: Fields, kind: str, key: str) -> str:
    """The mode, one of :data:`MODES`, in which a step scales the feature ``key`` of a ``kind``,
    "VISUAL", "STATE" or "ACTION". CheckpointError."""
    settings, known = step.part("config"), tuple(MODES)
    modes = settings.part("norm_map")
    mode = modes.choice(kind, IDENTITY, known)
    scaled = settings.items("normalize_observation_keys")
    if kind != "ACTION" and scaled and key not in scaled:
        raise settings.wrong("normalize_observation_keys", f"{key} among them, or null")
    return mode


def no_action_statistics(directory: Path, mode: str) -> CheckpointError:
    """The error for actions that a folder cannot scale."""
    return CheckpointError(
        f"{directory} has no statistics of its actions for {mode}: copy the policy_*.safetensors of"
        " its training run there"
    )


def known_steps(kind: str) -> set[str]:
    """The processors' steps that are built for a policy of this kind."""
    own = {"pi0" + NEW_LINE, "smolvla" + NEW_LINE}
    own = {"pi05": {STATE_PROMPT}, FAST: {FAST_PROMPT, ACTION_TOKENIZER}}.get(kind, own)
    return own | {*PLUMBING, NORMALIZER, UNNORMALIZER, TOKENIZER, RELATIVE, ABSOLUTE}


def fast_folder(directory: Path, given: str | None, name: str) -> Path:
    """The folder of pi0-FAST's action tokenizer: in the checkpoint, where LeRobot 0.6.2 saves it
    under the name that its processor has, by its path, or beside the text's where that was
    ``given``. CheckpointError: nowhere, and the command that brings it."""
    last = Path(name).name
    folders = [directory / last, directory / name, Path(name)]
    if (directory / PREPROCESSOR).is_file():
        step = steps_of(directory / PREPROCESSOR).get(ACTION_TOKENIZER, Fields({}))
        own = step.part("config").text("action_tokenizer_name", "")
        folders += [directory / Path(own).name] * bool(own)
    if given:
        folders = [tokenizer_folders(directory, given)[0] / last, *folders]
    for folder in folders:
        if (folder / FAST_PROCESSOR).is_file() and (folder / "tokenizer.json").is_file():
            return folder
    raise CheckpointError(
        f"no FAST tokenizer in {folders[0]}: `hf download {name} --local-dir {directory / last}`"
    )


def action_names(before: Mapping[str, Fields]) -> tuple[str, ...]:
    """Names of the action's values, where its data set has any."""
    if RELATIVE not in before:
        return ()
    return tuple(str(n) for n in before[RELATIVE].part("config").items("action_names"))


def relative_actions(
    directory: Path, before: Mapping[str, Fields], after: Mapping[str, Fields], config: FlowConfig
) -> tuple[bool, ...]:
    """Which values are relative to the state: all but those whose name has an excluded word.
    CheckpointError where config.json and the processors disagree about there being any."""
    found = _relative(before, after, config)
    if config.relative not in (None, bool(found)):
        raise CheckpointError(
            f"{directory}/config.json says use_relative_actions {config.relative}, and its"
            " processors do otherwise: which is it? Copy the files of one training run there"
        )
    return found


def _relative(
    before: Mapping[str, Fields], after: Mapping[str, Fields], config: FlowConfig
) -> tuple[bool, ...]:
    on = [
        s[n].part("config").flag("enabled", False)
        for s, n in ((before, RELATIVE), (after, ABSOLUTE))
        if n in s
    ]
    if not any(on):
        return ()
    if on != [True, True]:
        raise CheckpointError("actions are made relative on one side of the model only")
    if config.state_dim < config.action_dim:
        raise CheckpointError("relative actions need a state value for every action value")
    settings = before[RELATIVE].part("config")
    excluded = [str(w).lower() for w in settings.items("exclude_joints") if w]
    names = [name.lower() for name in action_names(before)]
    names += [""] * (config.action_dim - len(names))
    return tuple(not any(w in n for w in excluded if n) for n in names[: config.action_dim])


def by_data_set(stored: Mapping[str, V], key: str) -> dict[str, dict[str, V]]:
    """The statistics of one feature by the data set that they are kept by, "" where by none.

    A policy that was trained on several has ``so100.buffer.action.mean`` (lerobot/smolvla_base).
    """
    found: dict[str, dict[str, V]] = {}
    named = re.compile(rf"(?:(.+?)\.(?:buffer\.)?)?{re.escape(key)}\.([a-z0-9_]+)")
    for name, tensor in stored.items():
        if match := named.fullmatch(name):
            found.setdefault(match[1] or "", {})[match[2]] = tensor
    return found


def robots_cameras(directory: Path, cameras: tuple[str, ...]) -> tuple[str, ...]:
    """The checkpoint's cameras by the names that they have on the robot it was trained with: its
    preprocessor may rename them (``rename_map``), so that a wrist becomes ``camera1``."""
    path = directory / PREPROCESSOR
    if not path.is_file():
        return cameras
    steps = [Fields(step, "step") for step in Fields(read_json(path)).items("steps")]
    on_robot: dict[str, str] = {}
    for step in steps:
        if step.text("registry_name", "") != "rename_observations_processor":
            continue
        for name, becomes in step.part("config").part("rename_map").raw.items():
            if becomes in on_robot:
                raise CheckpointError(f"{path}: rename_map makes {becomes} of two observations")
            on_robot[str(becomes)] = str(name)
    names = tuple(on_robot.get(f"{CAMERA}{name}", name) for name in cameras)
    names = tuple(name.removeprefix(CAMERA).rpartition("observation.")[2] for name in names)
    if len(set(names)) < len(names):
        raise CheckpointError(f"{path}: rename_map leaves two cameras with the name of one")
    return names


def feature_length(fields: Fields, group: str, name: str, default: int) -> int:
    """The length of a vector. CheckpointError where it is none."""
    one = fields.part(group).part(name)
    shape = one.items("shape") or [default]
    if len(shape) != 1 or not isinstance(shape[0], int) or shape[0] < 1:
        raise one.wrong("shape", "one whole number")
    return int(shape[0])


def feature(kind: str, *shape: int) -> dict[str, Any]:
    """One as config.json has it; ``kind``: VISUAL, STATE or ACTION."""
    return {"type": kind, "shape": list(shape)}
