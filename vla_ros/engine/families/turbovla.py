"""TurboVLA's folders: what `vla-ros convert` makes of a checkpoint of its authors, for LIBERO.

``config.json`` is the authors' own ``model_config``, with the key ``shapes`` for the sizes of the
two encoders, which they take from elsewhere; ``dataset_statistics.json`` their statistics by
data set, ``tokenizer.json`` that of bert-base-uncased.

Source: H-EmbodVis/TurboVLA 2d42436 ``turbovla/models/configuration.py`` and
``turbovla/evaluation/policy.py`` (pixels, state, actions, the gripper's rule).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from vla_ros.core.action_space import action_space_of
from vla_ros.core.types import Image
from vla_ros.engine.errors import CheckpointError, InvalidAction
from vla_ros.engine.families.base import FlowFamily, LoadOptions, Opened, Placement
from vla_ros.engine.families.random import TEXT_VOCAB, DrawnWeights, build_tokenizer
from vla_ros.engine.io.action_data import ActionData
from vla_ros.engine.io.config import IMAGENET_MEAN, IMAGENET_STD, TowerConfig
from vla_ros.engine.io.ends import check_ends
from vla_ros.engine.io.field_table import Fields
from vla_ros.engine.io.fields import TURBOVLA
from vla_ros.engine.io.files import naming, read_json, write_json
from vla_ros.engine.io.images.preprocessor import stretched
from vla_ros.engine.io.processors import Scaler, TextTokenizer
from vla_ros.engine.io.weights import WEIGHTS, Expected, FileWeights, Weights
from vla_ros.engine.models.base import Inputs
from vla_ros.engine.models.preparation import Preparation, stacked
from vla_ros.engine.models.turbovla import (
    BertShape,
    Specials,
    TurboVLA,
    TurboVLAConfig,
    turbovla_expected,
)

KIND, NAME = "turbovla", "TurboVLA"
STATISTICS = "dataset_statistics.json"
CAMERAS = ("primary", "wrist")  # of LIBERO's two views, in their order
LIBERO_ACTION = 7
EPS = 1e-6  # beside a deviation of the state
TOKENS = ("[CLS]", "[SEP]", "[PAD]")
#: DINOv3's ViT-B/16 and bert-base-uncased, which LIBERO's checkpoint has.
DINOV3_B = TowerConfig(
    768, 12, 12, 3072, image_size=256, patch=16, class_token=True, registers=4, layer_scale=True,
    mean=IMAGENET_MEAN, std=IMAGENET_STD,
)  # fmt: skip
#: Sizes of the tower that ``shapes`` has.
TOWER_SIZES = ("width", "depth", "heads", "mlp", "patch", "registers")


@dataclass(frozen=True, slots=True)
class TurboVLAScalers:
    """The state by mean and deviation, the actions from -1 to 1 by their ends."""

    state: Scaler
    action: Scaler


def parse_turbovla_config(raw: Mapping[str, Any]) -> TurboVLAConfig:
    """Turn the authors' ``model_config`` into a :class:`TurboVLAConfig`."""
    fields = Fields(raw)
    fields.choice("name", NAME, (NAME,))
    TURBOVLA.check(raw)
    values = TURBOVLA.parse(fields, TurboVLAConfig)
    tower, bert = _shapes(fields.part("shapes"))
    side = values.pop("vision.image_size")
    if side % tower.patch:
        raise CheckpointError(f"vision.image_size {side} does not divide by {tower.patch}")
    values |= {
        "cameras": CAMERAS[: values.pop("views")],
        "max_text": min(values["max_text"], bert.positions),
        "lengths": _lengths(fields.part("text")),
    }
    config = TurboVLAConfig(replace(tower, image_size=side), bert, **values)
    _check(config)
    return config


def _shapes(own: Fields) -> tuple[TowerConfig, BertShape]:
    vision_sizes, words = own.part("vision"), own.part("text")
    given: dict[str, Any] = {n: vision_sizes.whole(n, getattr(DINOV3_B, n)) for n in TOWER_SIZES}
    tower = replace(DINOV3_B, **given)
    plain = BertShape()
    return tower, BertShape(**{n: words.whole(n, size) for n, size in asdict(plain).items()})


def _lengths(text: Fields) -> tuple[tuple[str, int], ...]:
    found = text.part("padding_length_by_instruction").raw
    longest = text.raw.get("padding_length")
    for name, length in found.items():
        if not isinstance(length, int) or not isinstance(longest, int) or not 0 < length <= longest:
            raise CheckpointError(
                f"text.padding_length_by_instruction has {length!r} for {name!r}, padding_length is"
                f" {longest!r}"
            )
    return tuple(found.items())


def _check(config: TurboVLAConfig) -> None:
    if config.action_dim != LIBERO_ACTION:
        raise CheckpointError(
            f"action.action_dim is {config.action_dim}: of TurboVLA's robots this engine knows"
            f" LIBERO's alone, whose actions have {LIBERO_ACTION} values and a gripper behind"
        )
    wide = (("interaction.hidden_dim", config.width, config.heads),
            ("interaction.enhancer_inner_dim", config.inner, max(1, config.heads // 2)),
            ("shapes.vision.width", config.vision.width, 4 * config.vision.heads),
            ("shapes.text.width", config.text.width, config.text.heads))  # fmt: skip
    for name, width, heads in wide:
        if width % heads:
            raise CheckpointError(f"{name} {width} does not divide by {heads}")
    if config.text_length > config.max_text:
        raise CheckpointError(
            f"text.padding_length {config.text_length} is more than max_length {config.max_text}"
        )


def turbovla_config_json(config: TurboVLAConfig) -> dict[str, Any]:
    """The config.json that :func:`parse_turbovla_config` reads back, in the authors' words."""
    vision_sizes = {name: getattr(config.vision, name) for name in TOWER_SIZES}
    words = {
        "padding_length": config.text_length or None,
        "padding_length_by_instruction": dict(config.lengths),
    }
    given = {
        "text": words,
        "vision": {"num_views": len(config.cameras)},
        "shapes": {"vision": vision_sizes, "text": asdict(config.text)},
    }
    return TURBOVLA.write(config, given)


# Statistics, images and prompts.


def data_sets_in(directory: Path) -> dict[str, Mapping[str, Any]]:
    """The statistics of each data set of a folder. CheckpointError: there are none."""
    path = directory / STATISTICS
    if not path.is_file():
        raise CheckpointError(
            f"no {STATISTICS} in {directory}: copy the authors' libero_all4_stats.json there by"
            " that name"
        )
    raw = read_json(path)
    found = {n: part for n, part in raw.items() if isinstance(part, Mapping) and "action" in part}
    if not found:
        raise CheckpointError(f"{path} has no data set with statistics of its actions")
    return found


def read_scalers(directory: Path, config: TurboVLAConfig, key: str | None) -> TurboVLAScalers:
    """The scalers of one data set. CheckpointError in one line: which, or what it lacks."""
    found = data_sets_in(directory)
    names = ", ".join(sorted(found))
    if key is None and len(found) > 1:
        raise CheckpointError(f"unnorm_key is needed; {directory} has: {names}")
    if key is not None and key not in found:
        raise CheckpointError(f"unnorm_key {key!r} is unknown; {directory} has: {names}")
    own = Fields(found[key] if key is not None else next(iter(found.values())))
    state = "proprio" if "proprio" in own.raw else "state"
    middle, spread = _pair(own, state, ("mean", "std"), config.state_dim)
    low, high = _pair(own, "action", ("min", "max"), config.action_dim)
    return TurboVLAScalers(
        Scaler("MEAN_STD", middle, spread, eps=EPS), Scaler("QUANTILES", low, high)
    )


def _pair(own: Fields, name: str, which: tuple[str, str], size: int) -> list[torch.Tensor]:
    made = []
    for one in which:
        values = own.part(name).items(one)
        if len(values) != size or not all(isinstance(v, (int, float)) for v in values):
            raise CheckpointError(
                f"{STATISTICS}: {name}.{one} has {len(values)} values, {size} are wanted"
            )
        made.append(torch.tensor(values, dtype=torch.float32))
    check_ends(made[0], made[1], which, f"{STATISTICS}: {name}")
    return made


def specials_of(words: TextTokenizer) -> Specials:
    """The ids of BERT's own tokens and marks. CheckpointError: it has none."""
    cls, sep, pad = (words.id_of(token) for token in TOKENS)
    return Specials(cls, sep, pad, words.id_of("."), words.id_of("?"))


class TurboVLAPreparation(Preparation):
    """Between units and a TurboVLA, as the authors' evaluation on LIBERO does it, but that images
    of another size are stretched, which it refuses, and a prompt that is too long is refused,
    which it cuts."""

    def __init__(
        self,
        config: TurboVLAConfig,
        scalers: TurboVLAScalers,
        words: TextTokenizer,
        device: torch.device,
    ) -> None:
        self._config, self._scalers, self._words, self._device = config, scalers, words, device
        self._mean, self._std = (
            torch.tensor(values, device=device)[:, None, None]
            for values in (config.vision.mean, config.vision.std)
        )
        self._pad = words.id_of(TOKENS[2])
        self._ids = torch.empty(0, dtype=torch.int64)

    def instruct(self, text: str) -> None:
        config = self._config
        ids = self._words(text)
        length = dict(config.lengths).get(text, config.text_length)
        most = length or config.max_text
        if len(ids) > most:
            raise ValueError(f"the instruction has {len(ids)} tokens, the most is {most}")
        self._ids = torch.tensor(ids + [self._pad] * (length - len(ids)), device=self._device)

    def inputs(self, images: Sequence[Image | None], state: torch.Tensor) -> Inputs:
        if any(image is None for image in images):
            raise InvalidAction("TurboVLA needs all of its cameras: none can be left out")
        size, device = self._config.vision.image_size, self._device
        pixels = stacked(images, lambda one: stretched(one, size, device) * (1 / 255))
        return Inputs(
            (pixels - self._mean) / self._std, self._ids, self._scalers.state.normalize(state)
        )

    def actions(self, chunk: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Actions in units; a gripper is open, 1, where its value is below 0, else closed, 0."""
        values = self._scalers.action.restore(chunk)
        gripper = torch.where(chunk[:, -1] < 0, 1.0, 0.0)
        values[:, -1] = torch.where(chunk[:, -1].isfinite(), gripper, torch.nan)
        return values


# The family, and random weights.

SMALL = TurboVLAConfig(
    TowerConfig(
        48, 3, 3, 96, image_size=64, patch=16, class_token=True, registers=2, layer_scale=True,
        mean=IMAGENET_MEAN, std=IMAGENET_STD,
    ),
    BertShape(TEXT_VOCAB + len(TOKENS), 40, 2, 4, 72, 64),
    horizon=6,
    action_dim=LIBERO_ACTION,
    state_dim=8,
    cameras=CAMERAS,
    max_text=48,
    text_length=24,
    width=32,
    heads=4,
    exchange=3,
    inner=64,
    mlp=80,
    state_hidden=24,
    layers=2,
    hidden=48,
)  # fmt: skip
PRESETS = MappingProxyType(
    {
        f"{KIND}-small": SMALL,
        KIND: TurboVLAConfig(DINOV3_B, BertShape(), 12, LIBERO_ACTION, 8, CAMERAS, text_length=21),
    }
)


class TurboVLAFamily(FlowFamily[TurboVLAConfig]):
    """Folders whose config.json has ``"name": "TurboVLA"``."""

    kinds = (KIND,)
    name_key, names = "name", (NAME,)
    presets = PRESETS
    takes = frozenset({"tokenizer", "unnorm_key"})

    def read_config(self, directory: Path) -> TurboVLAConfig:
        path = directory / "config.json"
        with naming(path):
            return parse_turbovla_config(read_json(path))

    def expected(self, config: TurboVLAConfig) -> Expected:
        return turbovla_expected(config)

    def units(
        self, directory: Path, config: TurboVLAConfig, options: LoadOptions
    ) -> TurboVLAScalers:
        return read_scalers(directory, config, options.unnorm_key)

    def words(
        self, directory: Path, config: TurboVLAConfig, options: LoadOptions, units: TurboVLAScalers
    ) -> TextTokenizer:
        return TextTokenizer(directory, options.tokenizer, "bert-base-uncased", config.text.vocab)

    def weights(self, directory: Path, config: TurboVLAConfig) -> FileWeights:
        """Weights of 32 or 16 bits: there are none of fewer."""
        return FileWeights(directory / WEIGHTS, turbovla_expected(config))

    def opened(
        self,
        config: TurboVLAConfig,
        weights: Weights,
        units: TurboVLAScalers,
        words: TextTokenizer,
        directory: Path,
        options: LoadOptions,
    ) -> Opened:
        specials = specials_of(words)

        def build(taken: Weights, to: Placement) -> TurboVLA:
            if to.formats:
                raise CheckpointError(
                    f"weights {to.formats}: TurboVLA's are run as they are stored, leave weights"
                    " empty"
                )
            return TurboVLA(config, taken, specials, to.like, to.capture)

        return Opened(
            config,
            weights,
            units,
            words,
            action_space_of(config.action_dim),
            lambda device: TurboVLAPreparation(config, units, words, device),
            build,
        )

    def random_units(self, config: TurboVLAConfig) -> TurboVLAScalers:
        """States as they are, actions of a tenth."""
        state = torch.zeros(config.state_dim), torch.ones(config.state_dim)
        ends = torch.full((config.action_dim,), 0.1)
        return TurboVLAScalers(
            Scaler("MEAN_STD", *state, eps=EPS), Scaler("QUANTILES", -ends, ends)
        )

    def drawn(self, config: TurboVLAConfig, seed: int, device: torch.device) -> DrawnWeights:
        fills = {"gamma_|lambda1": 0.5, r"LayerNorm\.weight|net\.0\.weight": 1.0}
        return DrawnWeights(turbovla_expected(config).must, seed, device, fills)

    def write_config(self, directory: Path, config: TurboVLAConfig, units: TurboVLAScalers) -> None:
        write_json(directory / "config.json", turbovla_config_json(config))
        stats = {
            "proprio": {"mean": units.state.low.tolist(), "std": units.state.high.tolist()},
            "action": {"min": units.action.low.tolist(), "max": units.action.high.tolist()},
        }
        write_json(directory / STATISTICS, {"random": stats})

    def write_tokenizer(self, directory: Path) -> None:
        """Write the small tokenizer with BERT's tokens, two of which are around every prompt."""
        from tokenizers import processors

        tokenizer = build_tokenizer()
        tokenizer.add_special_tokens(list(TOKENS))
        cls, sep = ((token, tokenizer.token_to_id(token)) for token in TOKENS[:2])
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{cls[0]} $A {sep[0]}", special_tokens=[cls, sep]
        )
        tokenizer.save(str(directory / "tokenizer.json"))

    def action_data(self, directory: Path, options: LoadOptions) -> ActionData:
        """The network gives the gripper as open or closed by itself."""
        config = self.read_config(directory)
        scaler = read_scalers(directory, config, options.unnorm_key).action
        key = options.unnorm_key or next(iter(data_sets_in(directory)))
        return ActionData(
            low=tuple(scaler.low.double().tolist()),
            high=tuple(scaler.high.double().tolist()),
            libero=STATISTICS if "libero" in key.lower() else "",
            gripper="0..1",
            gripper_by="its network",
        )

    def data_sets(self, directory: Path) -> Mapping[str, bool]:
        try:
            found = data_sets_in(directory)
        except CheckpointError:
            return {}
        return dict.fromkeys(found, True) if len(found) > 1 else {}


FAMILY = TurboVLAFamily()
