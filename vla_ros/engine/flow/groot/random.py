"""GR00Ts with random weights, in NVIDIA's layout: the real loader, nobody's data."""

from __future__ import annotations

import hashlib
import json
import zlib
from dataclasses import asdict
from pathlib import Path

import torch

from vla_ros.engine.checkpoints.cache import cached
from vla_ros.engine.checkpoints.small_tokenizer import build_tokenizer
from vla_ros.engine.flow.family import Choice, Place
from vla_ros.engine.flow.gate import FILE
from vla_ros.engine.flow.groot.config import GrootConfig
from vla_ros.engine.flow.groot.load import GrootPolicy, build, load_folder
from vla_ros.engine.flow.groot.prompt import IMAGE
from vla_ros.engine.flow.groot.version import Version

_VERSION = 1  # of what is written; a new one makes cached folders void
#: Pictures first, so that its id is the vocabulary's own length.
PICTURE_TOKENS = (IMAGE, "<|vision_start|>", "<|vision_end|>", "<IMG_CONTEXT>", "<img>", "</img>")
_SHARDS = 2


class DrawnWeights:
    """Draws what is asked for: each tensor from the seed and its name, of a stack each row."""

    def __init__(
        self, version: Version, config: GrootConfig, seed: int, device: torch.device
    ) -> None:
        self.shapes = version.expected(config).must
        self._seed, self._device = seed, device

    def take(self, name: str) -> torch.Tensor:
        """All of it."""
        shape = self.shapes[name]
        if name.endswith((".W", ".b")):
            return torch.stack([self.take_row(name, row) for row in range(shape[0])])
        if len(shape) == 1:
            norm = "norm" in name.rsplit(".", 2)[-2] or ".vlln" in name
            tensor = torch.zeros(shape, device=self._device)
            return tensor.fill_(1.0 if norm and name.endswith("weight") else 0.0)
        gain = 2.0 if name.endswith(("to_q.weight", "to_k.weight")) else 1.0
        if "embed" in name.rsplit(".", 2)[-2]:
            return self._normal(name, shape, 0.5)
        return self._normal(name, shape, gain * int(torch.Size(shape[1:]).numel()) ** -0.5)

    def take_row(self, name: str, row: int) -> torch.Tensor:
        """One embodiment's."""
        shape = self.shapes[name][1:]
        if len(shape) == 1:
            return torch.zeros(shape, device=self._device)
        gain = 0.3 if "action_decoder.layer2" in name else 1.0
        return self._normal(f"{name} {row}", shape, gain * shape[0] ** -0.5)

    def _normal(self, name: str, shape: tuple[int, ...], spread: float) -> torch.Tensor:
        generator = torch.Generator(self._device)
        generator.manual_seed(zlib.crc32(f"{self._seed} {name}".encode()))  # 32 bits count
        tensor = torch.empty(shape, device=self._device)
        return tensor.normal_(0.0, spread, generator=generator)


def load_random(
    version: Version, preset: str, choice: Choice, place: Place, seed: int, config: GrootConfig
) -> GrootPolicy:
    """A preset, small ones by way of a folder; ``config`` is the preset's as it was chosen."""
    if preset.endswith("-small"):
        written = version.presets[preset]
        folder = cached(
            f"{preset}-{seed}-{_fingerprint(written)}",
            lambda scratch: write_random(version, scratch, written, seed),
        )
        return load_folder(version, folder, choice, place)
    weights = DrawnWeights(version, config, seed, place.device)
    model = build(version, config, weights, place)
    text = f"random {config!r} {seed} {place.dtype}"
    digest = hashlib.sha256(text.encode()).hexdigest()
    words = cached(f"groot-tokenizer-{_VERSION}", _write_tokenizer)
    tokenizer = version.words(words, Choice(), config)
    return GrootPolicy(version, config, model, version.robot(config), tokenizer, digest)


def write_random(version: Version, directory: Path, config: GrootConfig, seed: int) -> None:
    """NVIDIA's folder with random float32 weights in shards, and a small tokenizer."""
    directory.mkdir(parents=True, exist_ok=True)
    version.write(directory, config, version.robot(config))
    _write_tokenizer(directory)
    discrete = json.dumps(version.discrete(config))
    (directory / FILE).write_text(discrete + "\n", encoding="utf-8")
    drawn = DrawnWeights(version, config, seed, torch.device("cpu"))
    write_shards(directory, {name: drawn.take(name) for name in drawn.shapes})


def write_shards(directory: Path, tensors: dict[str, torch.Tensor]) -> None:
    """As transformers' ``save_pretrained`` does."""
    from safetensors.torch import save_file

    names = list(tensors)
    places: dict[str, str] = {}
    for number in range(_SHARDS):
        file = f"model-{number + 1:05d}-of-{_SHARDS:05d}.safetensors"
        part = names[number::_SHARDS]
        metadata = {"format": "pt"}
        save_file({n: tensors[n].contiguous() for n in part}, str(directory / file), metadata)
        places |= dict.fromkeys(part, file)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    path = directory / "model.safetensors.index.json"
    path.write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def _write_tokenizer(directory: Path) -> None:
    tokenizer = build_tokenizer()
    tokenizer.add_special_tokens(list(PICTURE_TOKENS))
    tokenizer.save(str(directory / "tokenizer.json"))


def _fingerprint(config: GrootConfig) -> str:
    text = json.dumps([_VERSION, asdict(config)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
