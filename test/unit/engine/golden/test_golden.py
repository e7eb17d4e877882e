"""Ours against the originals: pixels, prompt ids, logits, tokens, actions of their own checkpoints.

``pytest -s`` prints the largest differences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scenes import INSTRUCTIONS, TALL, of_tall, pairs, pictures

from support.engine import CLOCK, CPU
from vla_ros.core.types import Inference, Observation, Timeline
from vla_ros.engine import Engine, EngineOptions, load_engine
from vla_ros.engine.convert import ConvertOptions, convert
from vla_ros.engine.convert.prismatic import BASE_VLMS, convert_prismatic, describe
from vla_ros.engine.families.openvla import PRESETS
from vla_ros.engine.io.config import TextConfig, TowerConfig
from vla_ros.engine.io.field_table import Fields
from vla_ros.engine.io.files import read_json
from vla_ros.engine.io.images.preprocessor import Preprocessor
from vla_ros.engine.io.processors import read_preprocessor
from vla_ros.engine.layers.pack import PackLayout, chain, prefill_layout

TOWERS = (
    TowerConfig(32, 3, 2, 64, 56, 14, class_token=True, registers=4, layer_scale=True,
                mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)),
    TowerConfig(32, 5, 4, 64, 56, 14),
)  # fmt: skip
QWEN = TextConfig(
    "qwen2", hidden_size=64, intermediate_size=96, layers=2, heads=4, kv_heads=2, head_dim=16,
    rope_theta=1e6, tied=True,
)  # fmt: skip


def engine(directory: Path, decoding: str = "autoregressive", **options: object) -> Engine:
    words = {"checkpoint": str(directory), "num_threads": 1, **options}
    return load_engine(EngineOptions(decoding=decoding, **words))  # type: ignore[arg-type]


def seen(number: int, cameras: int, state: np.ndarray | None = None) -> Observation:
    shown = pictures()
    wrist, more = (shown[(number + i) % len(shown)] for i in (1, 2))
    return Observation(
        number, number, CLOCK.steady_ns(), shown[number], wrist if cameras > 1 else None, state,
        more_images={"right": more} if cameras > 2 else {},
    )  # fmt: skip


def answers(policy: Engine, state: np.ndarray | None = None) -> list[Inference]:
    """One for each pair; every frame begins an episode."""
    found = []
    for number, text in pairs():
        policy.reset(text)
        what = seen(number, policy.model.config.images, state)
        answer = policy.step(what, Timeline(0), CLOCK)
        assert answer is not None
        found.append(answer)
    return found


def logits(policy: Engine, number: int, text: str, tokens: np.ndarray) -> np.ndarray:
    """Logits [K, action tokens] where the original's tokens are fed back."""
    policy.reset(text)
    model, actions = policy.model, policy.model.actions
    request = policy.encode(seen(number, model.config.images), Timeline(0), CLOCK)
    length = len(request.prompt)
    runner = model.runner(1, length + len(tokens))
    rows = [runner.logits(prefill_layout(length, (length - 1,)), request.prompt, None)]
    for i, token in enumerate(tokens[:-1]):
        layout = PackLayout(rows=(0,), tail=chain(0, length + i, 1))
        rows.append(runner.logits(layout, None, torch.tensor([token])))
    return torch.cat(rows)[:, actions.first : actions.vocab].numpy()


def check(policy: Engine, expected: dict[str, np.ndarray]) -> None:
    """Everything of a token checkpoint; prints how far the two are apart."""
    for i, text in enumerate(INSTRUCTIONS):
        assert policy.policy.tokenizer(text) == expected[f"ids_{i}"].tolist()
    apart = {"pixels": 0.0, "logits": 0.0, "actions": 0.0}
    for wanted, (number, text) in zip(expected["pixels"], pairs(), strict=False):
        policy.reset(text)
        request = policy.encode(seen(number, policy.model.config.images), Timeline(0), CLOCK)
        ours = torch.cat(request.pixels, dim=1).numpy().reshape(wanted.shape)
        apart["pixels"] = max(apart["pixels"], float(np.abs(ours - wanted).max()))
    for wanted, tokens, (number, text) in zip(
        expected["logits"], expected["tokens"], pairs(), strict=False
    ):
        ours = logits(policy, number, text, tokens)
        apart["logits"] = max(apart["logits"], float(np.abs(ours - wanted).max()))
    cameras = policy.model.config.images
    for (number, _), answer, tokens, actions in zip(
        pairs(), answers(policy), expected["tokens"], expected["actions"], strict=True
    ):
        if of_tall(number, cameras):
            continue
        assert list(answer.tokens) == tokens.tolist()
        apart["actions"] = max(apart["actions"], float(np.abs(answer.actions - actions).max()))
    print({name: f"{value:.1e}" for name, value in apart.items()})
    assert apart["pixels"] < 1e-6
    assert apart["logits"] < 5e-4  # of up to 16; 1.3e-4 where a processor sums in another order
    assert apart["actions"] < 1e-6


@pytest.mark.parametrize("name", ["openvla", "openvla-v01"])
def test_openvla(golden: Callable, name: str) -> None:
    """Fused towers of unequal depth; and SigLIP alone under the prompt and letterbox of v0.1."""
    given = golden(name)
    with pytest.raises(ValueError, match=r"unnorm_key is needed; .* has: bridge_orig, five"):
        engine(given.directory)
    policy = engine(given.directory, unnorm_key="bridge_orig")
    check(policy, given.expected)
    five = engine(given.directory, unnorm_key="five")
    number, text = pairs()[-1]
    five.reset(text)
    answer = five.step(seen(number, 1), Timeline(0), CLOCK)
    assert answer is not None
    np.testing.assert_allclose(answer.actions[0], given.expected["five"], atol=1e-9)


def test_an_adapter_merged_into_openvla(golden: Callable, tmp_path: Path) -> None:
    """peft's own file, on every linear layer of towers, projector and language model."""
    base, given = golden("openvla"), golden("openvla-lora")
    assert not np.array_equal(given.expected["tokens"], base.expected["tokens"])
    convert(given.directory, tmp_path / "out", ConvertOptions(base=base.directory))
    check(engine(tmp_path / "out", unnorm_key="bridge_orig"), given.expected)


@pytest.mark.parametrize("decoding", ["actionflow", "speculative", "generate"])
def test_every_decoding_says_what_the_original_says(golden: Callable, decoding: str) -> None:
    given = golden("openvla")
    policy = engine(given.directory, decoding, unnorm_key="bridge_orig")
    found = {}
    text = pairs()[0][1]
    policy.reset(text)
    shown = [number for number, said in pairs() if said == text]
    for stamp, number in enumerate((*shown, *[shown[0]] * 7)):
        what = replace(seen(number, 1), stamp_ns=stamp)
        answer = policy.step(what, Timeline(0), CLOCK)
        if answer is not None:
            found[answer.stamp_ns] = answer.tokens
    for stamp, number in enumerate(shown):
        assert list(found[stamp]) == given.expected["tokens"][number].tolist()


@pytest.mark.parametrize("strategy", ["resize-naive", "resize-crop", "letterbox"])
def test_squares(golden: Callable, strategy: str) -> None:
    """What torchvision makes of nine images, odd differences among them."""
    given = golden("squares")
    config = replace(PRESETS["openvla-7b"], towers=TOWERS)
    config = read_preprocessor(given.directory / strategy, config)
    assert config.resize == strategy
    preprocess = Preprocessor(config, CPU, torch.float32, False)
    ours = np.stack([torch.cat(preprocess(picture), dim=1)[0] for picture in pictures()])
    apart = np.abs(ours - given.expected[strategy])[:TALL]
    assert len(apart) == len(pictures()) - 1
    print(f"{strategy}: {apart.max():.1e}")
    assert apart.max() < 1e-6


@pytest.mark.parametrize(("robot", "cameras"), [("libero", 2), ("aloha", 3)])
def test_openvla_oft(golden: Callable, robot: str, cameras: int, tmp_path: Path) -> None:
    """Two images and three, the robot's state, chunks of 8 x 7 and of 25 x 14 by other bounds."""
    given = golden(f"oft-{robot}")
    convert(given.directory, tmp_path / "out")
    policy = engine(tmp_path / "out", "parallel", camera_roles=("right",))
    for i, text in enumerate(INSTRUCTIONS):
        assert policy.policy.tokenizer(text) == given.expected[f"ids_{i}"].tolist()
    found = answers(policy, given.expected["state"])
    kept = [i for i, (number, _) in enumerate(pairs()) if not of_tall(number, cameras)]
    assert len(kept) == len(found) - cameras
    ours, theirs = np.stack([a.actions for a in found]), given.expected["actions"]
    apart = np.abs(ours[kept] - theirs[kept]).max()
    print(f"oft-{robot}: actions {apart:.1e}")
    assert apart < 2e-4  # 3.4e-5 where a processor sums in another order
    assert np.ptp(given.expected["actions"], axis=0).max() > 0.1  # the images matter


@pytest.mark.parametrize("name", ["minivla", "minivla-vq"])
def test_minivla(golden: Callable, name: str, tmp_path: Path) -> None:
    """Out of the trainer's own run: bins with two images, and codes of a VQ-VAE."""
    given = golden(name)
    rows, last = int(given.expected["rows"]), int(given.expected["last"])
    vla = Fields(read_json(given.directory / "config.json"), "config").part("vla")
    real = describe(vla, given.directory)
    assert BASE_VLMS[str(vla.raw["base_vlm"])][1] == 151921
    small = replace(real, text=replace(QWEN, vocab_size=rows), towers=TOWERS, action_vocab=last)
    (tmp_path / "out").mkdir()
    vq = given.directory / "vq" if name.endswith("vq") else None
    convert_prismatic(given.directory, tmp_path / "out", tokenizer=None, vq=vq, config=small)
    policy = engine(tmp_path / "out")
    assert policy.model.config.images == (1 if vq else 2)
    check(policy, given.expected)
