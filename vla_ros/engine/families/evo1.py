"""Evo-1's folders, which are LeRobot's of type evo1: config.json, processors, random weights.

Source: lerobot 0.6.1 ``configuration_evo1.py``; the shapes of InternVL3-1B are those of
OpenGVLab/InternVL3-1B-hf. One key is this project's own: ``shapes``, for checkpoints whose
models are of other sizes ({"vision", "text", "shuffle"}).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from vla_ros.core.action_space import action_space_of
from vla_ros.core.types import Image
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.families.base import FlowFamily, LoadOptions, Opened
from vla_ros.engine.families.lerobot import STATE_DIM, save_weights, step_json
from vla_ros.engine.families.random import TEXT_VOCAB, DrawnWeights
from vla_ros.engine.io.action_data import (
    ActionData,
    action_names_in,
    executed_in,
    libero_in,
    reach_of,
)
from vla_ros.engine.io.config import TextConfig, TowerConfig
from vla_ros.engine.io.field_table import Fields
from vla_ros.engine.io.fields import EVO1, EVO1_GRIPPER
from vla_ros.engine.io.files import naming, read_json, write_json
from vla_ros.engine.io.flow_config import (
    ACTION,
    CAMERA,
    NORMALIZER,
    PLUMBING,
    POSTPROCESSOR,
    PREPROCESSOR,
    STATE,
    UNNORMALIZER,
    camera_names,
    feature_length,
    features_json,
    own_shapes,
    read_steps,
    robots_cameras,
)
from vla_ros.engine.io.foreign import refuse_foreign_flow
from vla_ros.engine.io.images.preprocessor import stretched
from vla_ros.engine.io.processors import (
    Processors,
    Scaler,
    StatisticsChoice,
    TextTokenizer,
    action_statistics,
    scaler_of,
)
from vla_ros.engine.io.weights import WEIGHTS, Expected, Weights
from vla_ros.engine.models.base import Inputs
from vla_ros.engine.models.evo1 import (
    INTERNVL3_1B,
    KIND,
    POSITIONS,
    SHUFFLE,
    TIMES,
    Evo1,
    Evo1Config,
    Gripper,
    check_table,
    check_time_index,
    evo1_expected,
    position_table,
)
from vla_ros.engine.models.preparation import (
    CPU,
    Preparation,
    padded_to,
    stacked,
)

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
#: InternViT-300M and Qwen2.5-0.5B with InternVL's vocabulary, all of its layers.
INTERNVIT = TowerConfig(
    1024,
    24,
    16,
    4096,
    image_size=448,
    patch=14,
    class_token=True,
    layer_scale=True,
    mean=IMAGENET_MEAN,
    std=IMAGENET_STD,
)
QWEN = TextConfig("qwen2", 151674, 896, 4864, 24, 14, 2, 64, 1e6, 1e-6)
IMAGE_START, IMAGE_TOKEN, IMAGE_END = "<img>", "<IMG_CONTEXT>", "</img>"
IMAGE_TOKENS = (IMAGE_START, IMAGE_END, IMAGE_TOKEN)  # in the small tokenizer's order
PAD_STATE, PAD_ACTION = "evo1_pad_state_processor", "evo1_pad_action_processor"
ACTION_STEP = "evo1_action_processor"


def parse_evo1_config(raw: Mapping[str, Any]) -> Evo1Config:
    """Turn a config.json's content into an :class:`Evo1Config`."""
    fields = Fields(raw)
    fields.choice("type", "", (KIND,))
    EVO1.check(raw)
    vision, text, shuffle = _shapes(fields)
    values = EVO1.parse(fields, Evo1Config)
    action_dim = feature_length(fields, "output_features", ACTION, values["action_width"])
    if raw.get("postprocess_action_dim") is not None:
        fields.only("postprocess_action_dim", action_dim)
    config = Evo1Config(
        vision,
        text,
        state_dim=feature_length(fields, "input_features", STATE, values["state_width"]),
        action_dim=action_dim,
        cameras=camera_names(fields),
        shuffle=shuffle,
        embodiment=fields.whole("default_embodiment_id", 0, 0, values["embodiments"] - 1),
        gripper=_gripper(fields, action_dim),
        **values,
    )
    _check(config, fields)
    return config


def _shapes(fields: Fields) -> tuple[TowerConfig, TextConfig, int]:
    """InternVL3-1B, or ``shapes``; of the language model the layers that are used."""
    vision, text, shuffle = INTERNVIT, QWEN, SHUFFLE
    name = fields.text("vlm_model_name", INTERNVL3_1B)
    if fields.raw.get("shapes") is not None:
        own = fields.part("shapes")
        vision, text = own_shapes(own, "qwen2")
        shuffle = own.whole("shuffle", SHUFFLE)
    elif name.removesuffix("-hf") != INTERNVL3_1B.removesuffix("-hf"):
        raise CheckpointError(
            f"vlm_model_name is {name!r}: of InternVL this engine knows the shapes of"
            f" {INTERNVL3_1B} alone"
        )
    # null means all layers, and is no absent key
    wanted = fields.raw.get("vlm_num_layers", 14)
    layers = text.layers if wanted is None else fields.whole("vlm_num_layers", 14)
    return vision, replace(text, layers=min(layers, text.layers)), shuffle


def _gripper(fields: Fields, action_dim: int) -> Gripper | None:
    if not fields.flag("binarize_gripper", False):
        return None
    index = fields.whole("gripper_index", 6, least=0, most=action_dim - 1)
    return Gripper(index, **EVO1_GRIPPER.parse(fields, Gripper))


def _check(config: Evo1Config, fields: Fields) -> None:
    vision, text = config.vision, config.text
    if text.kind != "qwen2" or not (vision.class_token and vision.layer_scale):
        raise CheckpointError("shapes: an InternViT and a qwen2 are wanted")
    if fields.square("image_resolution", vision.image_size) != vision.image_size:
        raise CheckpointError(f"image_resolution: the tower was made for {vision.image_size}")
    if vision.image_size % (vision.patch * config.shuffle):
        raise CheckpointError(
            f"images of {vision.image_size} pixels do not divide by {vision.patch * config.shuffle}"
        )
    if fields.whole("embed_dim", config.width) != config.width:
        raise CheckpointError(f"embed_dim is not the language model's width, {config.width}")
    if config.width % config.heads or config.width % 2:
        raise CheckpointError(f"a width of {config.width} does not divide by {config.heads} heads")
    if config.state_dim > config.state_width or config.action_dim > config.action_width:
        raise CheckpointError(
            f"state {config.state_dim} of {config.state_width} or action {config.action_dim} of"
            f" {config.action_width} is wider than the model"
        )
    if not 0 < len(config.cameras) <= config.slots:
        raise CheckpointError(
            f"input_features has {len(config.cameras)} cameras ({CAMERA}...), wanted 1 to"
            f" {config.slots}"
        )
    if config.slots * config.view_tokens >= config.max_text:
        raise CheckpointError(
            f"{config.slots} images of {config.view_tokens} tokens leave no room in"
            f" max_text_length {config.max_text}"
        )


def evo1_config_json(config: Evo1Config) -> dict[str, Any]:
    """The config.json, in LeRobot's words, that :func:`parse_evo1_config` reads back."""
    side = config.vision.image_size
    shapes = {"vision": asdict(config.vision), "text": asdict(config.text)}
    given = {
        **features_json(config.cameras, side, config.state_dim, config.action_dim),
        "image_resolution": [side] * 2,
        "shapes": {**shapes, "shuffle": config.shuffle},
    }
    gripper = config.gripper
    return EVO1.write(config, given) | (EVO1_GRIPPER.write(gripper) if gripper else {})


# Units, images and prompts.


def read_evo1_processors(directory: Path, config: Evo1Config) -> Processors:
    """The scaling of a folder's processors and their statistics. CheckpointError in one line."""
    known = {*PLUMBING, NORMALIZER, UNNORMALIZER, PAD_STATE, PAD_ACTION, ACTION_STEP}
    before, after = read_steps(directory, (NORMALIZER, UNNORMALIZER), known)
    state, action = config.state_dim, config.action_dim
    return Processors(
        scaler_of(directory, before[NORMALIZER], "STATE", STATE, state, config.state_width),
        scaler_of(directory, after[UNNORMALIZER], "ACTION", ACTION, action, config.action_width),
        config.vlm,
    )


def prompt_of(config: Evo1Config, task: str) -> str:
    """The prompt: positions of all images, those of absent cameras too, and the task."""
    image = IMAGE_START + IMAGE_TOKEN * config.view_tokens + IMAGE_END
    images = "".join(f"Image-{i + 1}: {image}\n" for i in range(config.slots))
    return images + task.strip()


class Evo1Preparation(Preparation):
    """Between units and an Evo-1, as LeRobot's processors and its embedder do it
    (``internvl3_embedder.py``, ``modeling_evo1.py``, ``processor_evo1.py``)."""

    def __init__(
        self,
        config: Evo1Config,
        processors: Processors,
        tokenizer: TextTokenizer,
        device: torch.device,
    ) -> None:
        self._config, self._processors, self._tokenizer = config, processors, tokenizer
        self._device = device
        self._mean, self._std = (
            torch.tensor(values, device=device)[:, None, None]
            for values in (config.vision.mean, config.vision.std)
        )
        self._image_token = tokenizer.id_of(IMAGE_TOKEN)
        self._ids = torch.empty(0, dtype=torch.int64)

    def instruct(self, text: str) -> None:
        """Tokenize once. The reference cuts a prompt that is too long; here it is refused."""
        config = self._config
        ids = self._tokenizer(prompt_of(config, text))
        if len(ids) > config.max_text:
            raise ValueError(
                f"the instruction makes a prompt of {len(ids)} tokens, images included, the most"
                f" is {config.max_text}"
            )
        wanted, found = config.slots * config.view_tokens, ids.count(self._image_token)
        if found != wanted:
            raise ValueError(
                f"the tokenizer makes {found} positions of images of the prompt, wanted {wanted}"
            )
        self._ids = torch.tensor(ids)

    def inputs(self, images: Sequence[Image | None], state: torch.Tensor) -> Inputs:
        """Inputs; cameras that are there take the first slots, whichever are absent."""
        config = self._config
        pixels = stacked(images, lambda one: square_of(one, config.vision.image_size, self._device))
        scaled = self._processors.state.normalize(state)
        padded = padded_to(config.state_width, scaled)
        return Inputs((pixels - self._mean) / self._std, self._ids, padded)

    def actions(self, chunk: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Actions in units; a gripper that is only open or closed has one of its two values."""
        values = self._processors.action.restore(chunk[:, : self._config.action_dim])
        gripper = self._config.gripper
        if gripper is not None:
            over = values[:, gripper.index] > gripper.threshold
            ends = torch.tensor([gripper.below, gripper.above])
            # What is not finite stays so: it is not made an end of the gripper.
            found = torch.where(values[:, gripper.index].isfinite(), ends[over.long()], torch.nan)
            values = values.index_copy(1, torch.tensor([gripper.index]), found[:, None])
        return values


def square_of(image: Image, size: int, device: torch.device = CPU) -> torch.Tensor:
    """uint8 [h, w, 3] -> float32 [3, size, size] in [0, 1], made on the device and there:
    stretched, bicubic with antialiasing, rounded to 256 values, as PIL does it."""
    return stretched(image, size, device, _levels(device)) / 255.0


@lru_cache(maxsize=4)
def _levels(device: torch.device) -> torch.Tensor:
    """LeRobot divides by 255, multiplies by it again and cuts: some of the 256 values become one
    less. Which ones is a CPU's arithmetic; a GPU's division by a number is another one."""
    values = torch.arange(256, dtype=torch.float32)
    return (values / 255.0 * 255.0).clamp(0, 255).to(torch.uint8).float().to(device)


# The family, and random weights.


_TOWER = TowerConfig(
    72,
    3,
    3,
    152,
    image_size=56,
    patch=14,
    class_token=True,
    layer_scale=True,
    mean=IMAGENET_MEAN,
    std=IMAGENET_STD,
)
_TEXT = TextConfig("qwen2", TEXT_VOCAB + len(IMAGE_TOKENS), 84, 216, 3, 6, 2, 14, 1e6, 1e-6)
_CAMERAS = ("front", "wrist")

PRESETS: dict[str, Evo1Config] = {
    "evo1-small": Evo1Config(
        _TOWER,
        _TEXT,
        horizon=10,
        steps=8,
        state_dim=STATE_DIM,
        action_dim=7,
        cameras=_CAMERAS,
        state_width=14,
        action_width=12,
        blocks=3,
        heads=4,
        hidden=48,
        state_hidden=40,
        max_text=96,
        vlm="none",
    ),
    "evo1": Evo1Config(
        INTERNVIT,
        replace(QWEN, layers=14),
        horizon=50,
        steps=32,
        state_dim=STATE_DIM,
        action_dim=7,
        cameras=_CAMERAS,
    ),
}


class Evo1Family(FlowFamily[Evo1Config]):
    """LeRobot's folders of type evo1."""

    kinds = (KIND,)
    presets = PRESETS
    takes = frozenset({"tokenizer", "steps", "embodiment"})
    special = IMAGE_TOKENS

    def read_config(self, directory: Path) -> Evo1Config:
        refuse_foreign_flow(directory)
        path = directory / "config.json"
        with naming(path):
            config = parse_evo1_config(read_json(path))
        return replace(config, cameras=robots_cameras(directory, config.cameras))

    def chosen(self, config: Evo1Config, options: LoadOptions) -> Evo1Config:
        config = super().chosen(config, options)
        if options.embodiment is None:
            return config
        known = [str(n) for n in range(config.embodiments)]
        if options.embodiment not in known:
            raise CheckpointError(
                f"embodiment {options.embodiment!r} is unknown: this checkpoint has"
                f" {', '.join(known)}"
            )
        return replace(config, embodiment=int(options.embodiment))

    def expected(self, config: Evo1Config) -> Expected:
        return evo1_expected(config)

    def units(self, directory: Path, config: Evo1Config, options: LoadOptions) -> Processors:
        return read_evo1_processors(directory, config)

    def words(
        self, directory: Path, config: Evo1Config, options: LoadOptions, units: Processors
    ) -> TextTokenizer:
        return TextTokenizer(directory, options.tokenizer, config.vlm, config.text.vocab_size)

    def opened(
        self,
        config: Evo1Config,
        weights: Weights,
        units: Processors,
        words: TextTokenizer,
        directory: Path,
        options: LoadOptions,
    ) -> Opened:
        check_time_index()
        image_token = words.id_of(IMAGE_TOKEN)
        return Opened(
            config,
            weights,
            units,
            words,
            action_space_of(config.action_dim, action_names_in(directory, config.action_dim)[0]),
            lambda device: Evo1Preparation(config, units, words, device),
            lambda taken, to: Evo1(config, taken, image_token, to.like, to.capture),
        )

    def random_units(self, config: Evo1Config) -> Processors:
        """Actions of a fifth of LIBERO's units, the last one a gripper about 0.5."""
        middle, spread = torch.zeros(config.action_dim), torch.full((config.action_dim,), 0.2)
        middle[-1], spread[-1] = 0.5, 0.5
        wide = 3 * torch.ones(config.state_dim)
        action = Scaler("MIN_MAX", middle - spread, middle + spread)
        return Processors(Scaler("MIN_MAX", -wide, wide), action, config.vlm)

    def drawn(self, config: Evo1Config, seed: int, device: torch.device) -> DrawnWeights:
        must, tables = self.expected(config).must, (TIMES, POSITIONS)
        fills = {name: position_table(*must[name][1:])[None] for name in tables}
        gains = {r"^action_head\.mlp_head\.fc2": 0.3}
        return DrawnWeights(must, seed, device, {**fills, "lambda_": 0.5}, gains)

    def write_config(self, directory: Path, config: Evo1Config, units: Processors) -> None:
        write_json(directory / "config.json", evo1_config_json(config))
        _write_processors(directory, config, units)

    def save(self, directory: Path, tensors: dict[str, torch.Tensor]) -> None:
        save_weights(directory / WEIGHTS, tensors)

    def check_weight(self, name: str, tensor: torch.Tensor) -> None:
        if name == TIMES:
            check_table(name, tensor)

    def action_data(self, directory: Path, options: LoadOptions) -> ActionData:
        config = self.config(directory, options)
        read_evo1_processors(directory, config)  # refuses what cannot be used
        low, high = reach_of(action_statistics(directory, config.action_dim, StatisticsChoice()))
        names, named_by = action_names_in(directory, config.action_dim)
        ends, libero = config.gripper, libero_in(directory)
        return ActionData(
            names,
            named_by,
            low,
            high,
            libero=libero,
            gripper="" if ends is None else f"{ends.below:g}..{ends.above:g}",
            executed=executed_in(directory),
        )


FAMILY = Evo1Family()


def _write_processors(directory: Path, config: Evo1Config, processors: Processors) -> None:
    """Statistics are padded to the model's widths, as LeRobot pads them."""
    stored = {
        f"{key}.{kind}": F.pad(values, (0, width - len(values)), value=pad)
        for key, scaler, width in (
            (STATE, processors.state, config.state_width),
            (ACTION, processors.action, config.action_width),
        )
        for kind, values, pad in (("min", scaler.low, -1.0), ("max", scaler.high, 1.0))
    }
    modes = {"VISUAL": "IDENTITY", "STATE": "MIN_MAX", "ACTION": "MIN_MAX"}
    device, gripper = step_json("device_processor", device="cpu"), config.gripper is not None
    before = [
        step_json("rename_observations_processor", rename_map={}),
        step_json("to_batch_processor"),
        step_json(PAD_STATE, max_state_dim=config.state_width),
        step_json(PAD_ACTION, max_action_dim=config.action_width),
        step_json(NORMALIZER, eps=1e-8, norm_map=modes),
        device,
    ]
    after = [
        step_json(UNNORMALIZER, eps=1e-8, norm_map=modes),
        step_json(ACTION_STEP, action_dim=config.action_dim, binarize_gripper=gripper),
        device,
    ]
    for file, steps in ((PREPROCESSOR, before), (POSTPROCESSOR, after)):
        base = file.removesuffix(".json")
        for number, step in enumerate(steps):
            if step["registry_name"] in (NORMALIZER, UNNORMALIZER):
                step["state_file"] = f"{base}_step_{number}_{step['registry_name']}.safetensors"
                save_file(stored, str(directory / step["state_file"]))
        write_json(directory / file, {"name": base, "steps": steps})
