"""LeRobot's folders of pi0, pi0.5, SmolVLA and pi0-FAST: loaded, checked, written, drawn at random.

``random:pi0-small`` and the others that end so are written to a cache directory and read back;
``random:smolvla``, ``random:pi0``, ``random:pi05`` and ``random:pi0_fast`` have the published sizes
and draw their weights as they are loaded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vla_ros.core.action_space import action_space_of
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.families.base import FlowFamily, LoadOptions, Opened
from vla_ros.engine.families.random import (
    TEXT_VOCAB,
    DrawnWeights,
)
from vla_ros.engine.io.action_data import ActionData, executed_in, libero_in, reach_of
from vla_ros.engine.io.config import TextConfig, TowerConfig
from vla_ros.engine.io.fast_tokens import FastTokens, read_fast_tokens, write_fast_tokenizer
from vla_ros.engine.io.fields import FAST_TOKENIZER, ROBOT
from vla_ros.engine.io.files import write_json
from vla_ros.engine.io.flow_config import (
    ACTION,
    ACTION_TOKENIZER,
    FAST,
    FAST_PROMPT,
    MODES,
    NEW_LINE,
    NORMALIZER,
    POSTPROCESSOR,
    PREPROCESSOR,
    STATE,
    STATE_PROMPT,
    TOKENIZER,
    UNNORMALIZER,
    FlowConfig,
    Shapes,
    fast_folder,
    flow_config_json,
    parse_flow_config,
    read_flow_config,
    read_steps,
    relative_actions,
)
from vla_ros.engine.io.processors import (
    Processors,
    Scaler,
    StatisticsChoice,
    TextTokenizer,
    action_scaler,
    action_statistics,
    data_sets_in,
    named_actions,
    read_processors,
)
from vla_ros.engine.io.weights import (
    WEIGHTS,
    Expected,
    Weights,
)
from vla_ros.engine.layers.graphs import Capture
from vla_ros.engine.models.golden_ints import (
    check_discrete,
    discrete_json,
    read_discrete,
)
from vla_ros.engine.models.pi0 import Pi0, pi0_expected
from vla_ros.engine.models.pi0_fast import Pi0Fast, pi0_fast_expected
from vla_ros.engine.models.preparation import LerobotPreparation
from vla_ros.engine.models.smolvla import SmolVLA, smolvla_expected
from vla_ros.engine.models.vlm_with_expert import VLMWithExpert

STATE_DIM = 9  # the tabletop's joints

_TOWER = TowerConfig(72, 3, 3, 152, image_size=56, patch=14)
_GEMMA = TextConfig("gemma", TEXT_VOCAB, 88, 232, 3, heads=5, kv_heads=1, head_dim=24, tied=True)
_LLAMA = TextConfig("llama", TEXT_VOCAB, 90, 216, 4, heads=6, kv_heads=2, head_dim=22)
_PI = Shapes(_TOWER, _GEMMA, replace(_GEMMA, vocab_size=1, hidden_size=56, intermediate_size=152))
_SMOL = Shapes(
    replace(_TOWER, image_size=84),
    _LLAMA,
    replace(_LLAMA, hidden_size=66, intermediate_size=168),
    shuffle=3,
)


class LerobotFamily(FlowFamily[FlowConfig]):
    """Policies whose config.json has one of ``kinds`` for its ``type``."""

    presets_version = 2
    takes = frozenset({"tokenizer", "steps", "unnorm_key", "state_normalization"})

    def __init__(self, *kinds: str) -> None:
        self.kinds = kinds
        if FAST in kinds:
            self.group = FAST
            self.takes -= {"steps"}
        if {"pi05", FAST} & {*kinds}:
            self.takes |= {"state_in_prompt"}
        self.presets = {name: c for name, c in PRESETS.items() if c.kind in kinds}

    def read_config(self, directory: Path) -> FlowConfig:
        return read_flow_config(directory)

    def chosen(self, config: FlowConfig, options: LoadOptions) -> FlowConfig:
        config, given = super().chosen(config, options), options.state_in_prompt
        if given is not None and not config.speaks_state:
            raise CheckpointError(
                f"state_in_prompt is for pi05 and pi0_fast: {config.kind} has no state there"
            )
        return config if given is None else replace(config, state_in_prompt=given)

    def expected(self, config: FlowConfig) -> Expected:
        return expected_tensors(config)

    def units(self, directory: Path, config: FlowConfig, options: LoadOptions) -> Processors:
        return read_processors(directory, config, _statistics_choice(options))

    def words(
        self, directory: Path, config: FlowConfig, options: LoadOptions, units: Processors
    ) -> TextTokenizer:
        vocab = config.shapes.text.vocab_size
        return TextTokenizer(directory, options.tokenizer, units.tokenizer, vocab)

    def opened(
        self,
        config: FlowConfig,
        weights: Weights,
        units: Processors,
        words: TextTokenizer,
        directory: Path,
        options: LoadOptions,
    ) -> Opened:
        """A chunk of pi0-FAST has as many actions as it was trained with: LeRobot's
        ``n_action_steps`` of them are what a robot executes."""
        positions = check_discrete(config, read_discrete(directory, config), str(directory))
        spoken: FastTokens | None = None
        if config.kind == FAST:
            spoken = read_fast_tokens(
                directory, options.tokenizer, config.action_tokenizer, words, config.horizon,
                config.action_dim, config.skip, config.strict,
            )  # fmt: skip
        return Opened(
            config,
            weights,
            units,
            words,
            action_space_of(config.action_dim, units.action_names),
            lambda device: LerobotPreparation(config, units, words, device),
            lambda taken, to: build_model(config, taken, positions, to.like, to.capture, spoken),
        )

    def random_units(self, config: FlowConfig) -> Processors:
        """Actions of a tenth of LIBERO's units, the last one a gripper about 0.5."""
        zeros, ones = torch.zeros(config.state_dim), torch.ones(config.state_dim)
        middle, spread = torch.zeros(config.action_dim), torch.full((config.action_dim,), 0.1)
        middle[-1], spread[-1] = 0.5, 0.25
        state, action = Scaler("MEAN_STD", zeros, ones), Scaler("MEAN_STD", middle, spread)
        if config.speaks_state:
            state = Scaler("QUANTILES", -3 * ones, 3 * ones)
            action = Scaler("QUANTILES", middle - spread, middle + spread)
        return Processors(state, action, "")

    def drawn(self, config: FlowConfig, seed: int, device: torch.device) -> DrawnWeights:
        """Random weights; Gemma's norms scale by 1 + their weight."""
        norms = {r"(language_model|gemma_expert)\..*norm\.weight": 0.0}
        fills, gains = norms if config.kind != "smolvla" else {}, {"^action_out_proj": 0.3}
        return DrawnWeights(expected_tensors(config).must, seed, device, fills, gains)

    def write_config(self, directory: Path, config: FlowConfig, units: Processors) -> None:
        write_config(directory, config, units, discrete_json(config))

    def write_tokenizer(self, directory: Path) -> None:
        super().write_tokenizer(directory)
        if FAST in self.kinds:
            write_fast_tokenizer(directory / Path(FAST_TOKENIZER).name)

    def save(self, directory: Path, tensors: dict[str, torch.Tensor]) -> None:
        save_weights(directory / WEIGHTS, tensors)

    def action_data(self, directory: Path, options: LoadOptions) -> ActionData:
        config, whose = self.config(directory, options), _statistics_choice(options)
        action_scaler(directory, config, whose)  # refuses what cannot be used
        low, high = reach_of(action_statistics(directory, config.action_dim, whose))
        before, after = read_steps(directory, ())
        names, named_by = named_actions(directory, before, config)
        return ActionData(
            names,
            named_by,
            low,
            high,
            positions=any(relative_actions(directory, before, after, config)),
            libero=libero_in(directory) or (TRAINED_KEY if _of_libero(options) else ""),
            executed=executed_in(directory),
        )

    def data_sets(self, directory: Path) -> Mapping[str, bool]:
        return data_sets_in(directory)

    def sha256(self, directory: Path) -> str:
        found = super().sha256(directory)
        if FAST not in self.kinds:
            return found
        with suppress(CheckpointError):  # it lies elsewhere
            both = found + super().sha256(fast_folder(directory, None, FAST_TOKENIZER))
            return hashlib.sha256(both.encode()).hexdigest()
        return found


TRAINED_KEY = "unnorm_key"  # whose statistics may be LIBERO's


def _of_libero(options: LoadOptions) -> bool:
    return "libero" in (options.unnorm_key or "").lower()


def _statistics_choice(options: LoadOptions) -> StatisticsChoice:
    return StatisticsChoice(options.unnorm_key, options.state_normalization)


def expected_tensors(config: FlowConfig) -> Expected:
    """The tensors that a checkpoint of ``config`` must have."""
    if config.kind == FAST:
        return pi0_fast_expected(config)
    return smolvla_expected(config) if config.kind == "smolvla" else pi0_expected(config)


def build_model(
    config: FlowConfig,
    weights: Weights,
    positions: torch.Tensor,
    like: torch.Tensor,
    capture: Capture | None = None,
    spoken: FastTokens | None = None,
) -> VLMWithExpert | Pi0Fast:
    """The model of ``config`` in the dtype and on the device of ``like``."""
    if config.speaks_state:
        _ = config.prompt_state  # asked before any weight is read
    if spoken is not None:
        return Pi0Fast(config, weights, positions, like, capture, spoken)
    network = SmolVLA if config.kind == "smolvla" else Pi0
    return network(config, weights, positions, like, capture)


def write_config(
    directory: Path,
    config: FlowConfig,
    processors: Processors,
    discrete: Mapping[str, object] | None = None,
) -> None:
    """Write a folder as LeRobot's ``save_pretrained`` does, but for weights and a tokenizer;
    ``discrete`` is the content of the gate's file.

    Raises ValueError for relative actions, which nothing here writes.
    """
    if processors.relative:
        raise ValueError("relative actions are read, not written")
    directory.mkdir(parents=True, exist_ok=True)
    state, action = processors.state, processors.action
    modes = {"VISUAL": "IDENTITY", "STATE": state.mode, "ACTION": action.mode}
    raw = flow_config_json(config) | {"normalization_mapping": modes}
    write_json(directory / "config.json", raw)
    stored = {
        f"{key}.{name}": value
        for key, scaler in ((STATE, state), (ACTION, action))
        for name, value in zip(MODES[scaler.mode], (scaler.low, scaler.high), strict=False)
    }
    named, longest = processors.tokenizer, config.max_text
    write_steps(directory, config.kind, modes, stored, named, longest, state.eps)
    if discrete is not None:
        write_json(directory / "discrete.json", discrete)


def save_weights(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """A ``model.safetensors`` with LeRobot's names."""
    from safetensors.torch import save_file

    save_file({f"model.{n}": t.contiguous() for n, t in tensors.items()}, str(path))


def step_json(name: str, **settings: object) -> dict[str, Any]:
    """A processor's step as LeRobot writes it."""
    return {"registry_name": name, "config": settings}


def write_steps(
    directory: Path,
    kind: str,
    modes: Mapping[str, str],
    stored: Mapping[str, torch.Tensor],
    tokenizer: str = "",
    max_text: int = 0,
    eps: float = 1e-8,
) -> None:
    """Write both processors of a policy of ``kind`` with their statistics, as LeRobot does; one
    without ``max_text`` takes no instruction."""
    from safetensors.torch import save_file

    normalize = step_json(NORMALIZER, eps=eps, norm_map=dict(modes))
    restore = step_json(UNNORMALIZER, eps=eps, norm_map=dict(modes))
    for step, file in (
        (normalize, "policy_preprocessor_step_3"),
        (restore, "policy_postprocessor_step_0"),
    ):
        step["state_file"] = f"{file}_{step['registry_name']}.safetensors"
        save_file(dict(stored), str(directory / step["state_file"]))
    words = step_json(
        TOKENIZER,
        max_length=max_text,
        task_key="task",
        padding_side="right",
        padding="max_length",
        truncation=True,
        tokenizer_name=tokenizer,
    )
    first = [step_json("rename_observations_processor", rename_map={})]
    first.append(step_json("to_batch_processor"))
    device = step_json("device_processor", device="cpu")
    if not max_text:
        before = [*first, device, normalize]
    elif kind == "pi05":
        before = [*first, normalize, step_json(STATE_PROMPT), words, device]
    elif kind == FAST:
        actions = step_json(ACTION_TOKENIZER, action_tokenizer_name=FAST_TOKENIZER)
        before = [*first, normalize, step_json(FAST_PROMPT), words, actions, device]
    else:
        before = [*first, step_json(kind + NEW_LINE), words, device, normalize]
    for name, steps in ((PREPROCESSOR, before), (POSTPROCESSOR, [restore, device])):
        write_json(directory / name, {"name": name.removesuffix(".json"), "steps": steps})


def _small(kind: str, shapes: Shapes) -> FlowConfig:
    small, fast = kind == "smolvla", kind == FAST
    speaks = fast or kind == "pi05"
    return FlowConfig(
        kind=kind,
        shapes=shapes,
        horizon=10,
        steps=0 if fast else 5,
        state_width=14,
        action_width=13,
        state_dim=STATE_DIM,
        action_dim=7,
        cameras=("front", "wrist"),
        max_text=200 if speaks else 48,
        image_size=shapes.vision.image_size,
        self_every=2 if small else 0,
        vlm="none" if small else "",
        state_in_prompt=ROBOT if speaks else "",
        max_tokens=60 if fast else 0,
        strict=not fast,  # random weights say anything
        action_tokenizer=FAST_TOKENIZER if fast else "",
    )


def _published(kind: str) -> FlowConfig:
    cameras = {f"observation.images.{n}": {"type": "VISUAL"} for n in ("front", "wrist")}
    state = {"observation.state": {"type": "STATE", "shape": [STATE_DIM]}}
    action = {"action": {"type": "ACTION", "shape": [7]}}
    raw = {"type": kind, "input_features": {**cameras, **state}, "output_features": action}
    speaks: dict[str, Any] = {"state_in_prompt": ROBOT} if kind in ("pi05", FAST) else {}
    if kind == FAST:
        speaks["validate_action_token_prefix"] = False
    return parse_flow_config(raw | speaks)


PRESETS: dict[str, FlowConfig] = {
    "pi0-small": _small("pi0", _PI),
    "pi05-small": _small("pi05", _PI),
    "smolvla-small": _small("smolvla", _SMOL),
    "pi0_fast-small": _small(FAST, replace(_PI, expert=_PI.text)),
    "pi0": _published("pi0"),
    "pi05": _published("pi05"),
    "smolvla": _published("smolvla"),
    FAST: _published(FAST),
}


PI0 = LerobotFamily("pi0", "pi05")
SMOLVLA = LerobotFamily("smolvla")
PI0_FAST = LerobotFamily(FAST)
