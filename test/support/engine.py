"""Small random models and slowly changing frames for the engine's tests."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from vla_ros.core.clock import SystemClock
from vla_ros.core.types import Image, Inference, Observation, Timeline
from vla_ros.engine import Engine, EngineOptions
from vla_ros.engine.decoding.base import Decoding
from vla_ros.engine.families.openvla import SMALL_VOCAB, in_memory, policy_of
from vla_ros.engine.io.checkpoint import Checkpoint
from vla_ros.engine.io.config import ModelConfig, TextConfig, TowerConfig
from vla_ros.engine.layers.graphs import Capture, Outputs
from vla_ros.engine.layers.pieces import Pieces
from vla_ros.engine.layers.request import Decoded, Request
from vla_ros.engine.models.openvla import VLAModel

ResultT = TypeVar("ResultT")
CPU = torch.device("cpu")
CLOCK = SystemClock()
TEXTS = ("pick up the red cube", "push the blue block to the plate", "open the drawer")

_SIZE = {
    "vocab_size": SMALL_VOCAB + 64, "hidden_size": 64, "intermediate_size": 160, "layers": 2,
    "heads": 4, "head_dim": 16,
}  # fmt: skip
LANGUAGE = {
    "llama_mha": TextConfig("llama", kv_heads=4, **_SIZE),
    "llama_gqa": TextConfig("llama", kv_heads=2, **_SIZE),
    "qwen2_tied": TextConfig("qwen2", kv_heads=2, tied=True, rope_theta=1e6, **_SIZE),
}
_PLAIN = TowerConfig(32, 3, 2, 64, image_size=32, patch=8)
_DINO = TowerConfig(
    32, 3, 2, 64, image_size=32, patch=8, class_token=True, registers=4, layer_scale=True
)
TOWERS = {"single": (_PLAIN,), "fused": (_DINO, _PLAIN)}


def tiny_config(language: str = "llama_mha", towers: str = "single") -> ModelConfig:
    style = "qwen" if language.startswith("qwen") else "openvla"
    return ModelConfig(LANGUAGE[language], TOWERS[towers], SMALL_VOCAB, prompt_style=style)


def tiny(config: ModelConfig | None = None, dim: int = 7, seed: int = 0) -> Checkpoint:
    """A checkpoint with random fp32 weights."""
    return in_memory(config or tiny_config(), seed, CPU, torch.float32, dim)


class Again:
    """A stand-in for CUDA graphs: it runs the function again, into the memory of the first time.

    As in a pool that graphs share, what another graph had returned is gone after a replay.
    """

    def __init__(self) -> None:
        self.captured = 0
        self._results: list[tuple[torch.Tensor, ...]] = []

    def __call__(self, function: Callable[[], Outputs]) -> Callable[[], Outputs]:
        self.captured += 1
        result = function()
        self._results.append(result)

        def replay() -> Outputs:
            with torch.inference_mode():
                for other in (t for results in self._results for t in results):
                    other.fill_(float("nan") if other.is_floating_point() else -1)
                for static, fresh in zip(result, function(), strict=True):
                    static.copy_(fresh)
            return result

        return replay


def engine_of(
    checkpoint: Checkpoint,
    decoding: str = "autoregressive",
    capture: Capture | None = None,
    make_model: Callable[..., VLAModel] = VLAModel,
    **options: object,
) -> Engine:
    """An engine of a checkpoint in memory; takes actions of any size."""
    asked = EngineOptions("memory", decoding=decoding, **options)  # type: ignore[arg-type]
    return Engine(policy_of(checkpoint, asked, capture, make_model), asked)


def noted(decoding: Decoding) -> list[Decoded]:
    """What a decoding answers from now on."""
    seen: list[Decoded] = []
    original = decoding.pieces

    def pieces(request: Request) -> Pieces[Decoded | None]:
        decoded = yield from original(request)
        if decoded is not None:
            seen.append(decoded)
        return decoded

    decoding.pieces = pieces  # type: ignore[method-assign]
    return seen


def images(count: int, seed: int = 0, still: float = 0.3) -> Iterator[Image]:
    """Images that drift; with probability ``still`` one repeats the one before it."""
    rng = np.random.default_rng(seed)
    scene = rng.uniform(0, 255, (8, 8, 3))
    frame = np.kron(scene, np.ones((5, 5, 1)))
    for _ in range(count):
        if rng.uniform() >= still:
            scene = np.clip(scene + rng.normal(0, 25, scene.shape), 0, 255)
            frame = np.kron(scene, np.ones((5, 5, 1)))
        yield frame.astype(np.uint8)


@dataclass(frozen=True)
class Event:
    """A frame of a stream; ``text`` where an episode or instruction begins with it."""

    stamp: int
    image: Image
    text: str | None = None


def stream(count: int, resets: dict[int, str], seed: int = 0) -> list[Event]:
    return [Event(i, image, resets.get(i)) for i, image in enumerate(images(count, seed))]


def observation(stamp: int, image: Image) -> Observation:
    return Observation(stamp, stamp, CLOCK.steady_ns(), image)


def play(engine: Engine, events: list[Event]) -> dict[int, Inference]:
    """Answers of an engine by the stamp of the frame they belong to."""
    out = {}
    for event in events:
        if event.text is not None:
            engine.reset(event.text)
        start = CLOCK.steady_ns()
        timeline = Timeline(start).mark("queue", start)
        answer = engine.step(observation(event.stamp, event.image), timeline, CLOCK)
        if answer is not None:
            assert answer.stamp_ns not in out
            out[answer.stamp_ns] = answer
    return out


def left_to_collector(play: Callable[[], ResultT]) -> tuple[ResultT, list[str]]:
    """What a function returns, and the types, ours and torch's, of what it left in memory that
    only the garbage collector would free."""
    gc.collect()
    gc.disable()
    try:
        result = play()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        kinds = {f"{type(one).__module__}.{type(one).__name__}" for one in gc.garbage}
        return result, sorted(k for k in kinds if k.startswith(("vla_ros.", "torch.")))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
