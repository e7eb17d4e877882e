"""NVIDIA's GR00T folders: config.json, prompts, units, and presets of random weights.

Source: NVIDIA/Isaac-GR00T, branches n1.5 to n1.7, and its layout of folders. The versions differ in
their backbone (:mod:`~vla_ros.engine.models.eagle`, :mod:`~vla_ros.engine.models.qwen3_vl`), their
prompt and the files that describe a robot (:mod:`vla_ros.engine.io.groot`): :data:`VERSIONS`.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors.torch import save_file

from vla_ros.core.action_space import ActionKind, action_space_of, joints
from vla_ros.core.types import Image
from vla_ros.engine.errors import CheckpointError, InvalidAction
from vla_ros.engine.families.base import FlowFamily, LoadOptions, Opened, Placement
from vla_ros.engine.families.random import TEXT_VOCAB, DrawnWeights
from vla_ros.engine.io.action_data import ActionData
from vla_ros.engine.io.config import TextConfig, TowerConfig
from vla_ros.engine.io.embodiment import Embodiment, Group
from vla_ros.engine.io.field_table import Fields
from vla_ros.engine.io.fields import (
    GROOT_N15,
    GROOT_N15_BACKBONE,
    GROOT_N15_HEAD,
    GROOT_N16,
    GROOT_N17,
)
from vla_ros.engine.io.files import naming, read_json, write_json
from vla_ros.engine.io.groot import (
    CROP,
    N15_ROWS,
    N16_ROWS,
    N17_ROWS,
    choose,
    read_metadata,
    read_processor,
    write_metadata,
    write_processor,
)
from vla_ros.engine.io.images.framing import Framing, framed
from vla_ros.engine.io.processors import TextTokenizer
from vla_ros.engine.io.weights import INDEX, Expected, Weights, sha256_of_folder
from vla_ros.engine.models.base import Inputs
from vla_ros.engine.models.eagle import (
    EAGLE_N15,
    EAGLE_N16,
    EagleConfig,
    EagleTokenizer,
    images_first,
    parse_eagle,
    smart_side,
    task_first,
)
from vla_ros.engine.models.golden_ints import FILE, same_integers
from vla_ros.engine.models.groot import N15, N16, N17, GrootConfig, GrootModel
from vla_ros.engine.models.groot_head import HeadConfig, RowWeights, head_json, parse_head
from vla_ros.engine.models.preparation import Preparation, padded_to
from vla_ros.engine.models.qwen3_vl import (
    IMAGE_PAD,
    QWENS,
    Qwen3VLConfig,
    Qwen3VLVisionConfig,
    parse_qwen3_vl,
    qwen_prompt,
)

EAGLE = "nvidia/Eagle-Block2A-2B-v2"


def _parse_n17(fields: Fields, robot: Embodiment) -> tuple[Qwen3VLConfig, HeadConfig]:
    GROOT_N17.check(fields.raw)
    head = parse_head(fields)
    return parse_qwen3_vl(fields, robot.image_size), head


#: Where NVIDIA's N1.6 differs from its N1.7 in what a config.json that leaves it out means.
_LEFT_OUT = {"action_horizon": 16, "max_action_dim": 29, "max_state_dim": 29}


def _parse_n16(fields: Fields, robot: Embodiment) -> tuple[EagleConfig, HeadConfig]:
    """Source: ``configs/model/gr00t_n1d6.py``, ``eagle_backbone.py``."""
    GROOT_N16.check(fields.raw)
    fields.only("model_name", EAGLE)
    head = parse_head(Fields({**_LEFT_OUT, **fields.raw}))
    vision = replace(EAGLE_N16.vision, image_size=robot.image_size)
    known, layers = replace(EAGLE_N16, vision=vision), fields.whole("select_layer", 16)
    return parse_eagle(fields, known, layers, head.backbone_embedding_dim, fields), head


def _parse_n15(fields: Fields, robot: Embodiment) -> tuple[EagleConfig, HeadConfig]:
    """Source: ``gr00t_n1.py``, ``eagle_backbone.py``, ``flow_matching_action_head.py``."""
    front, back = fields.part("backbone_cfg"), fields.part("action_head_cfg")
    GROOT_N15.check(fields.raw)
    GROOT_N15_BACKBONE.check(front.raw, "backbone_cfg.")
    GROOT_N15_HEAD.check(back.raw, "action_head_cfg.")
    written: dict[str, Any] = {"max_state_dim": 64, "max_num_embodiments": 32, **back.raw}
    written["action_horizon"] = fields.whole("action_horizon", back.whole("action_horizon", 16))
    written |= {"max_action_dim": back.whole("action_dim", 32), "use_alternate_vl_dit": False}
    whole = Fields(written, "action_head_cfg")
    head = parse_head(whole, whole.whole("num_target_vision_tokens", 32, least=0))
    blocks, wide = back.part("diffusion_model_cfg"), head.backbone_embedding_dim
    if blocks.whole("cross_attention_dim", wide) != wide:
        raise blocks.wrong("cross_attention_dim", f"{wide}")
    if not head.use_vlln:
        head = replace(head, vl_layers=0)
    layers = front.whole("select_layer", 12)
    return parse_eagle(fields, EAGLE_N15, layers, wide, whole), head


@dataclass(frozen=True, slots=True)
class Version:
    """A version of GR00T: ``model_type`` of config.json, ``rows`` of robots that no file has,
    ``parse`` of config.json (CheckpointError), and the ``prompt`` for an instruction and so many
    images of so many tokens. ``executed``: actions of a chunk that NVIDIA's own evaluation on
    LIBERO executes (``gr00t/eval/rollout_policy.py``; N1.5's ``examples/Libero/eval`` asks anew
    before every action)."""

    kind: str
    model_type: str
    rows: Mapping[str, int]
    executed: int
    parse: Callable[[Fields, Embodiment], tuple[Qwen3VLConfig | EagleConfig, HeadConfig]]
    prompt: Callable[[str, int, int], str]


VERSIONS = (
    Version(N17, "Gr00tN1d7", N17_ROWS, 8, _parse_n17, qwen_prompt),
    Version(N16, "Gr00tN1d6", N16_ROWS, 8, _parse_n16, task_first),
    Version(N15, "gr00t_n1_5", N15_ROWS, 1, _parse_n15, images_first),
)
#: Special tokens of the small tokenizer; an image's has the vocabulary's own length as its id.
_SPECIAL = (IMAGE_PAD, "<|vision_start|>", "<|vision_end|>", "<IMG_CONTEXT>", "<img>", "</img>")
_IMAGE_PAD, _IMG_CONTEXT = 577, 577 + 3  # the ids of the first and of <IMG_CONTEXT>
_TEXT = TextConfig("qwen3", TEXT_VOCAB + 8, 64, 152, 4, 4, 2, 16, rope_theta=1e6, tied=True)
_VISION = Qwen3VLVisionConfig(48, 4, 4, 104, 64, 96, 16, 2, 10, (0, 2))
_QWEN = Qwen3VLConfig(_VISION, replace(_TEXT, rope_theta=5e6), (3, 3, 2), _IMAGE_PAD)
_TOWER = TowerConfig(48, 4, 4, 104, image_size=84, patch=14)
_EAGLE_N16 = EagleConfig("backbone.model.", _TOWER, _TEXT, 5, 2, _IMG_CONTEXT)
_EAGLE_N15 = EagleConfig(
    "backbone.eagle_model.",
    replace(_TOWER, image_size=56),
    _TEXT,
    table=4,
    image_token=_IMG_CONTEXT,
)
_HEAD = HeadConfig(
    12, 13, 14, 6, 4, 18, 64, 44, vl_layers=2, vl_heads=4, max_seq_len=32, max_num_embodiments=4
)
_HEAD_N15 = replace(
    _HEAD,
    action_horizon=10,
    attend_text_every_n_blocks=0,
    num_target_vision_tokens=5,
    max_num_embodiments=32,
)


def _preset(
    kind: str, backbone: Qwen3VLConfig | EagleConfig, head: HeadConfig, horizon: int
) -> GrootConfig:
    tag, row = ("new_embodiment", 31) if kind == N15 else ("tabletop", 2)
    cameras = ("front", "wrist_image")
    return GrootConfig(kind, backbone, head, tag, row, horizon, 9, 7, cameras)


PRESETS = {
    "groot-n1.7-small": _preset(N17, _QWEN, _HEAD, 10),
    "groot-n1.7": _preset(N17, Qwen3VLConfig(image_token=_IMAGE_PAD), HeadConfig(), 16),
    "groot-n1.6-small": _preset(
        N16, _EAGLE_N16, replace(_HEAD, num_layers=8, vl_layers=0, vl_heads=32), 10
    ),
    "groot-n1.6": _preset(
        N16, replace(EAGLE_N16, image_token=_IMG_CONTEXT), HeadConfig(50, 128, 128, vl_layers=0), 16
    ),
    "groot-n1.5-small": _preset(N15, _EAGLE_N15, _HEAD_N15, 10),
    "groot-n1.5": _preset(
        N15,
        replace(EAGLE_N15, image_token=_IMG_CONTEXT),
        HeadConfig(16, 32, 64, 16, attend_text_every_n_blocks=0, num_target_vision_tokens=32),
        16,
    ),
}


def read_config(
    version: Version, directory: Path, embodiment: str | None
) -> tuple[GrootConfig, Embodiment]:
    """Config and robot of a folder. CheckpointError, also where the robot does not fit the
    model."""
    path = directory / "config.json"
    read = read_metadata if version.kind == N15 else read_processor
    robot = read(directory, embodiment, version.rows)
    if version.kind == N16:
        framing = replace(robot.framing, final=smart_side(robot.framing.side))
        robot = replace(robot, framing=framing)
    with naming(path):
        backbone, head = version.parse(Fields(read_json(path)), robot)
        if version.kind == N15:  # whose metadata does not say them
            framing = replace(robot.framing, side=backbone.vision.image_size)
            robot = replace(robot, framing=framing, horizon=head.action_horizon)
        fits = (
            ("row", robot.row + 1, head.max_num_embodiments),
            ("state", robot.state_wide, head.max_state_dim),
            ("action", robot.action_dim, head.max_action_dim),
            ("horizon", robot.horizon, head.action_horizon),
        )
        wrong = [f"{name} {has} of {most}" for name, has, most in fits if has > most]
        if wrong:
            raise CheckpointError(f"{robot.tag} is wider than the model: {', '.join(wrong)}")
    sizes = (robot.horizon, robot.state_dim, robot.action_dim)
    config = GrootConfig(version.kind, backbone, head, robot.tag, robot.row, *sizes, robot.cameras)
    return config, robot


Tokenizer = Callable[[str], list[int]]


def formalize(text: str) -> str:
    """Without capitals and punctuation, as N1.6 and N1.7 were trained (``formalize_language``)."""
    return re.sub(r"[^\w\s]", "", text.lower())


class GrootPreparation(Preparation):
    """Between a robot's units and a GR00T's, for one instruction at a time."""

    def __init__(
        self,
        config: GrootConfig,
        robot: Embodiment,
        prompt: Callable[[str, int, int], str],
        tokenizer: Tokenizer,
    ) -> None:
        self._config, self._robot = config, robot
        self._prompt, self._tokenizer = prompt, tokenizer
        self._ids = torch.empty(0, dtype=torch.int64)

    def instruct(self, text: str) -> None:
        """Tokenize once. CheckpointError where the tokenizer does not know images."""
        config = self._config
        views, token = len(config.cameras), config.backbone.image_token
        task = formalize(text) if self._robot.formal else text
        ids = self._tokenizer(self._prompt(task, views, config.view_tokens))
        found, wanted = ids.count(token), views * config.view_tokens
        if found != wanted:
            raise CheckpointError(
                f"the tokenizer gives {found} positions of {wanted} for images (id {token}): it"
                " does not belong to this model"
            )
        if len(ids) > config.longest:
            raise ValueError(
                f"the instruction makes a prompt of {len(ids) - wanted} tokens, the most is"
                f" {config.max_text}"
            )
        self._ids = torch.tensor(ids)

    def inputs(self, images: Sequence[Image | None], state: torch.Tensor) -> Inputs:
        """Inputs of all cameras. InvalidAction: one is absent, which these models do not know."""
        pixels = []
        for name, image in zip(self._config.cameras, images, strict=True):
            if image is None:
                raise InvalidAction(f"this checkpoint needs its camera {name!r}: it cannot be none")
            pixels.append(framed(image, self._robot.framing))
        shown = padded_to(self._config.head.max_state_dim, self._robot.normalize(state))
        return Inputs(torch.stack(pixels), self._ids, shown)

    def actions(self, chunk: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Actions in units, absolute where the model gives them relative to the state."""
        return self._robot.unnormalize(chunk, state)

    def reanchored(
        self, rows: torch.Tensor, first: int, then: torch.Tensor, now: torch.Tensor
    ) -> torch.Tensor:
        """Rows of the old chunk for the new one, in which every row may have other statistics."""
        return self._robot.reanchored(rows, first, then, now)


def check_discrete(config: GrootConfig, directory: Path) -> None:
    """Compare the integers of ``discrete.json``, where there is one, with those computed here."""
    path, computed = directory / FILE, config.discrete()
    if not path.is_file():
        return
    fields = Fields(read_json(path), FILE)
    strange = sorted(set(fields.raw) - set(computed))
    if strange:
        raise CheckpointError(f"{path} has {', '.join(strange)}: known are {', '.join(computed)}")
    for name, values in computed.items():
        stored = fields.items(name)
        if stored and (name != "times" or len(stored) == config.steps):  # others may be asked for
            same_integers(str(path), name.replace("_", " "), stored, values)


_SHARDS = 2


class GrootFamily(FlowFamily[GrootConfig]):
    """One version of GR00T in NVIDIA's folders: ``model_type`` in config.json says which."""

    name_key = "model_type"
    takes = frozenset({"tokenizer", "steps", "embodiment"})
    weights_file = ""
    special = _SPECIAL

    def __init__(self, version: Version) -> None:
        self.version, self.kinds, self.names = version, (version.kind,), (version.model_type,)
        self.presets = {n: config for n, config in PRESETS.items() if config.kind == version.kind}

    def config(self, source: Path | str, options: LoadOptions) -> GrootConfig:
        if isinstance(source, Path):
            return self.chosen(read_config(self.version, source, options.embodiment)[0], options)
        config = super().config(source, options)
        choose(options.embodiment, [config.embodiment], Path(source))
        return config

    def read_config(self, directory: Path) -> GrootConfig:
        return read_config(self.version, directory, None)[0]

    def chosen(self, config: GrootConfig, options: LoadOptions) -> GrootConfig:
        if options.steps is None:
            return config
        return replace(config, head=replace(config.head, num_inference_timesteps=options.steps))

    def expected(self, config: GrootConfig) -> Expected:
        return config.expected()

    def units(self, directory: Path, config: GrootConfig, options: LoadOptions) -> Embodiment:
        return read_config(self.version, directory, options.embodiment)[1]

    def words(
        self, directory: Path, config: GrootConfig, options: LoadOptions, units: Embodiment
    ) -> Tokenizer:
        backbone = config.backbone
        if isinstance(backbone, EagleConfig):
            return EagleTokenizer(
                directory, options.tokenizer, backbone.text.vocab_size, backbone.image_token
            )
        return TextTokenizer(directory, options.tokenizer, "", backbone.text.vocab_size)

    def weights(self, directory: Path, config: GrootConfig) -> Any:
        check_discrete(config, directory)
        return super().weights(directory, config)

    def opened(
        self,
        config: GrootConfig,
        weights: Weights,
        units: Embodiment,
        words: Tokenizer,
        directory: Path,
        options: LoadOptions,
    ) -> Opened:
        """A policy of joint positions where its actions are relative to these, else of the space
        that their number stands for."""
        names = units.action_names
        space = action_space_of(units.action_dim, names)
        if units.relative:
            space = joints(ActionKind.JOINT_POSITION, names)

        def preparation(_: torch.device) -> GrootPreparation:
            return GrootPreparation(config, units, self.version.prompt, words)

        def build(taken: Weights, to: Placement) -> GrootModel:
            rows = cast(RowWeights, taken)  # weights in their formats still give rows
            return GrootModel(config, rows, to.like, to.capture)

        return Opened(config, weights, units, words, space, preparation, build)

    def random_units(self, config: GrootConfig) -> Embodiment:
        """A robot of the preset's sizes: joints of some radians, actions of a tenth of LIBERO's
        units, the last one a gripper about 0.5."""
        of_n15, side = config.kind == N15, config.image_size
        low, high, joint = (
            np.array(values, np.float32 if of_n15 else np.float64)
            for values in (
                [-0.1] * (config.action_dim - 1) + [0.25],
                [0.1] * (config.action_dim - 1) + [0.75],
                [3.0] * config.state_dim,
            )
        )
        framing = {
            N15: Framing(side, CROP, letterbox=False),
            N16: Framing(side - 4, 0.95, side),  # as 256 is brought to 252: another one in between
            N17: Framing(side, 230 / 256),
        }
        group = partial(Group, clip=not of_n15)
        return Embodiment(
            tag=config.embodiment,
            row=config.row,
            cameras=config.cameras,
            state=(group("joints", -joint, joint),),
            actions=(group("motion", low[:-1], high[:-1]), group("gripper", low[-1:], high[-1:])),
            horizon=config.horizon,
            framing=framing[config.kind],
            formal=not of_n15,
        )

    def drawn(self, config: GrootConfig, seed: int, device: torch.device) -> DrawnRows:
        return DrawnRows(config, seed, device)

    def write_config(self, directory: Path, config: GrootConfig, units: Embodiment) -> None:
        write_json(directory / "config.json", config_json(self.version, config))
        (write_metadata if config.kind == N15 else write_processor)(directory, units)
        discrete = json.dumps(config.discrete())
        (directory / FILE).write_text(discrete + "\n", encoding="utf-8")

    def save(self, directory: Path, tensors: dict[str, torch.Tensor]) -> None:
        """Write the weights in shards, as transformers' ``save_pretrained`` does."""
        names, files = list(tensors), dict[str, str]()
        for number in range(_SHARDS):
            file = f"model-{number + 1:05d}-of-{_SHARDS:05d}.safetensors"
            part = names[number::_SHARDS]
            metadata = {"format": "pt"}
            save_file({n: tensors[n].contiguous() for n in part}, str(directory / file), metadata)
            files |= dict.fromkeys(part, file)
        total = sum(tensor.nbytes for tensor in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": files}
        write_json(directory / INDEX, index)

    def weight_bytes(self, config: GrootConfig, dtype: torch.dtype) -> int:
        """Bytes of its weights; of stacks with a row for each robot one row is held, in float32."""
        held = 0
        for name, shape in config.expected().must.items():
            stack = name.endswith((".W", ".b"))
            size = math.prod(shape[1:] if stack else shape)
            held += size * (4 if stack else dtype.itemsize)
        return held

    def action_data(self, directory: Path, options: LoadOptions) -> ActionData:
        robot = read_config(self.version, directory, options.embodiment)[1]
        low, high = (tuple(end.tolist()) for end in robot.ends() or (torch.empty(0),) * 2)
        return ActionData(
            robot.action_names,
            "the embodiment's modalities",
            low,
            high,
            positions=robot.relative,
            libero="its embodiment" if "libero" in robot.tag.lower() else "",
            executed=self.version.executed,
        )

    def sha256(self, directory: Path) -> str:
        """Over all of a folder that decides what it says, in its root or in ``processor/``."""
        inner, root = directory / "processor", sha256_of_folder(directory)
        if not inner.is_dir():
            return root
        return hashlib.sha256(f"{root} {sha256_of_folder(inner)}".encode()).hexdigest()


FAMILIES = N17_FAMILY, N16_FAMILY, N15_FAMILY = tuple(map(GrootFamily, VERSIONS))


class DrawnRows(DrawnWeights):
    """Draws what is asked for: each tensor from the seed and its name, of a stack each row."""

    def __init__(self, config: GrootConfig, seed: int, device: torch.device) -> None:
        gains = {"[qk]_proj": 0.5, r"to_[qk]\.weight": 2.0}  # as loud as the others, and louder
        super().__init__(config.expected().must, seed, device, {r"vlln\.weight": 1.0}, gains)

    def take(self, name: str) -> torch.Tensor:
        """All of it."""
        shape = self.shapes[name]
        if name.endswith((".W", ".b")):
            return torch.stack([self.take_row(name, row) for row in range(shape[0])])
        if len(shape) > 1 and "embed" in name.rsplit(".", 2)[-2]:
            return self.normal(name, shape, 0.5)
        return super().take(name)

    def take_row(self, name: str, row: int) -> torch.Tensor:
        """One embodiment's."""
        shape = self.shapes[name][1:]
        if len(shape) == 1:
            return torch.zeros(shape, device=self._device)
        gain = 0.3 if "action_decoder.layer2" in name else 1.0
        return self.normal(f"{name} {row}", shape, gain * shape[0] ** -0.5)


def config_json(version: Version, config: GrootConfig) -> dict[str, Any]:
    """A config.json that is read back."""
    head, layers = head_json(config.head), config.backbone.text.layers
    written: dict[str, Any] = {
        "architectures": [version.model_type],
        "model_type": version.model_type,
    }
    if config.kind == N15:
        wide = config.head.backbone_embedding_dim
        more = {
            "action_dim": config.action_width,
            "num_target_vision_tokens": config.head.num_target_vision_tokens,
            "diffusion_model_cfg": {**head["diffusion_model_cfg"], "cross_attention_dim": wide},
        }
        written |= {
            "architectures": ["GR00T_N1_5"],
            "action_dim": config.action_width,
            "action_horizon": config.head.action_horizon,
            "hidden_size": wide,
            "backbone_cfg": {
                "project_to_dim": None,
                "reproject_vision": False,
                "select_layer": layers,
            },
            "action_head_cfg": {**head, **more},
        }
    else:
        if config.kind == N16:
            del head["vl_self_attention_cfg"]  # which N1.6 has not
        model = EAGLE if config.kind == N16 else QWENS[0]
        written |= {"model_name": model, "select_layer": layers, **head}
    return {**written, "shapes": config.backbone.shapes_json()}
