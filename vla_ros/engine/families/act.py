"""LeRobot's folders of type act: loaded, checked, written, drawn at random.

Source: lerobot 0.6.1 ``configuration_act.py``, ``processor_act.py`` and ``normalize_processor.py``
(images by mean and deviation, at the size of their data).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from vla_ros.core.action_space import action_space_of
from vla_ros.core.types import Image
from vla_ros.engine.errors import CheckpointError, InvalidAction
from vla_ros.engine.families.base import FlowFamily, LoadOptions, Opened
from vla_ros.engine.families.lerobot import save_weights, write_steps
from vla_ros.engine.families.random import DrawnWeights
from vla_ros.engine.io.action_data import (
    ActionData,
    action_names_in,
    executed_in,
    libero_in,
    reach_of,
)
from vla_ros.engine.io.config import IMAGENET_MEAN, IMAGENET_STD
from vla_ros.engine.io.field_table import Fields
from vla_ros.engine.io.fields import ACT
from vla_ros.engine.io.files import naming, read_json, write_json
from vla_ros.engine.io.flow_config import (
    ACTION,
    CAMERA,
    MODES,
    NORMALIZER,
    PLUMBING,
    STATE,
    UNNORMALIZER,
    feature,
    feature_length,
    read_steps,
    robots_cameras,
)
from vla_ros.engine.io.foreign import refuse_foreign_flow
from vla_ros.engine.io.images.preprocessor import uploaded
from vla_ros.engine.io.images.steps import refuse_unless_image
from vla_ros.engine.io.processors import (
    Scaler,
    StatisticsChoice,
    action_statistics,
    data_sets_in,
    scaler_of,
)
from vla_ros.engine.io.weights import WEIGHTS, Expected, Weights
from vla_ros.engine.models.act import Act, ActConfig, View, act_expected
from vla_ros.engine.models.base import Inputs
from vla_ros.engine.models.preparation import Preparation

KIND = "act"
LARGEST = 1 << 14  # pixels of a side; more is a damaged file


@dataclass(frozen=True, slots=True)
class ActUnits:
    """The scaling of the state, the actions and each view's three colors (from 0 to 1)."""

    state: Scaler
    action: Scaler
    views: tuple[Scaler, ...]


def parse_act_config(raw: Mapping[str, Any]) -> ActConfig:
    """Turn a config.json's content into an :class:`ActConfig`. CheckpointError in one line."""
    fields = Fields(raw)
    ACT.check(raw)
    inputs = fields.part("input_features")
    kinds = {name: inputs.part(name).text("type", "") for name in inputs.raw}
    if strange := sorted(n for n, k in kinds.items() if k != "VISUAL" and n != STATE):
        raise CheckpointError(
            f"input_features has {', '.join(strange)}: an ACT here reads cameras and {STATE}"
            f"{ACT.instead}"
        )
    views = tuple(_view(inputs.part(name), name) for name, k in kinds.items() if k == "VISUAL")
    if not views:
        raise CheckpointError("input_features has no camera, and an ACT here needs one")
    config = ActConfig(
        action_dim=feature_length(fields, "output_features", ACTION, 0),
        state_dim=feature_length(fields, "input_features", STATE, 0) if STATE in kinds else 0,
        cameras=tuple(view.feature.removeprefix(CAMERA) for view in views),
        views=views,
        **{"horizon": 100, **ACT.parse(fields, ActConfig)},
    )
    if config.width % config.heads or config.width % 4:
        raise CheckpointError(
            f"dim_model {config.width} does not divide by {config.heads} heads, 4"
        )
    return config


def _view(one: Fields, name: str) -> View:
    shape = one.items("shape")
    sides = [n for n in shape[1:] if isinstance(n, int) and 0 < n <= LARGEST]
    if len(shape) != 3 or shape[0] != 3 or len(sides) != 2:
        raise one.wrong("shape", "3, height, width")
    return View(name, *sides)


def act_config_json(config: ActConfig) -> dict[str, Any]:
    """The config.json, in LeRobot's words, that :func:`parse_act_config` reads back."""
    inputs = {v.feature: feature("VISUAL", 3, v.height, v.width) for v in config.views}
    if config.state_dim:
        inputs[STATE] = feature("STATE", config.state_dim)
    outputs = {ACTION: feature("ACTION", config.action_dim)}
    return ACT.write(config, {"input_features": inputs, "output_features": outputs})


def read_units(directory: Path, config: ActConfig, options: LoadOptions) -> ActUnits:
    """The scaling of a folder's processors and their statistics. CheckpointError in one line."""
    whose = StatisticsChoice(options.unnorm_key, options.state_normalization)
    needed = (NORMALIZER, UNNORMALIZER)
    before, after = read_steps(directory, needed, {*PLUMBING, *needed}, images=True)
    own, size = before[NORMALIZER], config.state_dim
    state = Scaler("IDENTITY", torch.zeros(0), torch.ones(0))
    if size:
        state = scaler_of(directory, own, "STATE", STATE, size, whose=whose)
    return ActUnits(
        state,
        scaler_of(directory, after[UNNORMALIZER], "ACTION", ACTION, config.action_dim, whose=whose),
        tuple(
            scaler_of(directory, own, "VISUAL", view.feature, 3, whose=whose)
            for view in config.views
        ),
    )


class ActPreparation(Preparation):
    """Between units and an ACT, as LeRobot's processors do it. Images of another size than the
    data's are resized where their shape is the same, and refused where it is not: LeRobot's policy
    would take them as they are, at a scale that it was not trained for."""

    def __init__(self, config: ActConfig, units: ActUnits, device: torch.device) -> None:
        self._config, self._units, self._device = config, units, device
        self._views = [
            replace(one, low=one.low.to(device), high=one.high.to(device)) for one in units.views
        ]

    def instruct(self, text: str) -> None:
        """Nothing: an ACT does the one thing that it was trained for."""

    def inputs(self, images: Sequence[Image | None], state: torch.Tensor) -> Inputs:
        pixels = [
            self._pixels(view, scaler, image)
            for view, scaler, image in zip(self._config.views, self._views, images, strict=True)
        ]
        return Inputs(
            torch.cat(pixels)[None],
            torch.empty(0, dtype=torch.int64, device=self._device),
            self._units.state.normalize(state),
        )

    def actions(self, chunk: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return self._units.action.restore(chunk)

    def _pixels(self, view: View, scaler: Scaler, image: Image | None) -> torch.Tensor:
        """The numbers of [3, h, w], one behind the other."""
        if image is None:
            raise InvalidAction("ACT needs all of its cameras: none can be left out")
        refuse_unless_image(image)
        pixels, (height, width) = uploaded(image, self._device).float() / 255.0, image.shape[:2]
        if height * view.width != width * view.height:
            raise InvalidAction(
                f"an image of {view.feature} is {height} x {width} pixels, this checkpoint was"
                f" trained with {view.height} x {view.width}: set the camera to that, or to a"
                " multiple of it"
            )
        channels = scaler.normalize(pixels).permute(2, 0, 1)
        if height != view.height:
            channels = F.interpolate(
                channels[None], (view.height, view.width), mode="bilinear", antialias=True
            )[0]
        return channels.flatten()


# The family, and random weights.

SMALL = ActConfig(
    horizon=10,
    action_dim=7,
    state_dim=9,  # the tabletop's joints
    cameras=("front", "wrist"),
    views=tuple(View(f"{CAMERA}{name}", 96, 96) for name in ("front", "wrist")),
    width=48,
    heads=4,
    mlp=72,
    layers=3,
    decoder_layers=2,
    vae=False,
)
PRESETS: dict[str, ActConfig] = {
    f"{KIND}-small": SMALL,
    KIND: ActConfig(
        horizon=100,
        action_dim=7,
        state_dim=9,
        cameras=SMALL.cameras,
        views=tuple(replace(view, height=480, width=640) for view in SMALL.views),
    ),
}


class ActFamily(FlowFamily[ActConfig]):
    """LeRobot's folders of type act."""

    kinds = (KIND,)
    presets = PRESETS
    takes = frozenset({"unnorm_key", "state_normalization"})

    def read_config(self, directory: Path) -> ActConfig:
        refuse_foreign_flow(directory)
        path = directory / "config.json"
        with naming(path):
            config = parse_act_config(read_json(path))
        return replace(config, cameras=robots_cameras(directory, config.cameras))

    def expected(self, config: ActConfig) -> Expected:
        return act_expected(config)

    def units(self, directory: Path, config: ActConfig, options: LoadOptions) -> ActUnits:
        return read_units(directory, config, options)

    def words(
        self, directory: Path, config: ActConfig, options: LoadOptions, units: ActUnits
    ) -> None:
        """None: no instruction goes in."""

    def opened(
        self,
        config: ActConfig,
        weights: Weights,
        units: ActUnits,
        words: None,
        directory: Path,
        options: LoadOptions,
    ) -> Opened:
        return Opened(
            config,
            weights,
            units,
            words,
            action_space_of(config.action_dim),
            lambda device: ActPreparation(config, units, device),
            lambda taken, to: Act(config, taken, to.like, to.capture),
        )

    def random_units(self, config: ActConfig) -> ActUnits:
        """Actions of a tenth of LIBERO's units, the last one a gripper about 0.5."""
        middle, spread = torch.zeros(config.action_dim), torch.full((config.action_dim,), 0.1)
        middle[-1], spread[-1] = 0.5, 0.25
        state = torch.zeros(config.state_dim), torch.ones(config.state_dim)
        image = Scaler("MEAN_STD", torch.tensor(IMAGENET_MEAN), torch.tensor(IMAGENET_STD))
        views = (image,) * len(config.views)
        return ActUnits(Scaler("MEAN_STD", *state), Scaler("MEAN_STD", middle, spread), views)

    def drawn(self, config: ActConfig, seed: int, device: torch.device) -> DrawnWeights:
        norm = r"(bn\d|downsample\.1)\."
        fills = {rf"{norm}(weight|running_var)": 1.0, rf"{norm}(bias|running_mean)": 0.0}
        gains = {r"pos_embed": 5.0, r"^backbone.*conv2": 0.5}
        return DrawnWeights(act_expected(config).must, seed, device, fills, gains)

    def write_config(self, directory: Path, config: ActConfig, units: ActUnits) -> None:
        names = [(STATE, units.state)] * (config.state_dim > 0) + [(ACTION, units.action)]
        names += [(v.feature, s) for v, s in zip(config.views, units.views, strict=True)]
        modes = {
            kind: scaler.mode
            for kind, scaler in (
                ("VISUAL", units.views[0]), ("STATE", units.state), ("ACTION", units.action),
            )
        }  # fmt: skip
        stored = {
            f"{key}.{name}": value.clone().view(-1, *[1] * (2 if key.startswith(CAMERA) else 0))
            for key, scaler in names
            for name, value in zip(MODES[scaler.mode], (scaler.low, scaler.high), strict=False)
        }
        write_json(
            directory / "config.json", act_config_json(config) | {"normalization_mapping": modes}
        )
        write_steps(directory, KIND, modes, stored)

    def write_tokenizer(self, directory: Path) -> None:
        """None."""

    def save(self, directory: Path, tensors: dict[str, torch.Tensor]) -> None:
        save_weights(directory / WEIGHTS, tensors)

    def action_data(self, directory: Path, options: LoadOptions) -> ActionData:
        config = self.config(directory, options)
        read_units(directory, config, options)  # refuses what cannot be used
        whose = StatisticsChoice(options.unnorm_key, options.state_normalization)
        low, high = reach_of(action_statistics(directory, config.action_dim, whose))
        names, named_by = action_names_in(directory, config.action_dim)
        return ActionData(
            names,
            named_by,
            low,
            high,
            libero=libero_in(directory),
            executed=executed_in(directory),
        )

    def data_sets(self, directory: Path) -> Mapping[str, bool]:
        return data_sets_in(directory)


FAMILY = ActFamily()
