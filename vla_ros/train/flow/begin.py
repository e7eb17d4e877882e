"""A flow policy's first weights: another's, or the eyes and language of a trained token policy.

A Llama becomes a Gemma: its norms count from 1, its embedding is scaled as it is read, and
gelu(x) is nearly silu(1.702 x) / 1.702. The tower keeps its blocks; behind its new last norm one
linear map is fitted to what the token policy's projector made of the same images.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from vla_ros.engine.checkpoints.config import ModelConfig
from vla_ros.engine.checkpoints.openvla import Checkpoint
from vla_ros.engine.checkpoints.shapes import LANGUAGE
from vla_ros.engine.flow.config import read_flow_config
from vla_ros.engine.flow.load import WEIGHTS, expected_tensors
from vla_ros.engine.flow.pi import PROJECTOR, TEXT
from vla_ros.engine.flow.processors import read_processors
from vla_ros.engine.flow.weights import FileWeights
from vla_ros.engine.vision.towers import Vision
from vla_ros.errors import UserError
from vla_ros.train.data.frames import Frames
from vla_ros.train.data.pictures import Pictures
from vla_ros.train.flow.network import FlowNetwork
from vla_ros.train.flow.scaling import Scaling

_SLOPE = 1.702  # Hendrycks and Gimpel 2016: GELU against a sigmoid's
_IMAGES = 256  # at most, that the projector is fitted to


def go_on_from(network: FlowNetwork, directory: Path) -> None:
    """Take over a whole flow policy, its units included. UserError: it has other sizes."""
    config = read_flow_config(directory)
    if replace(config, steps=network.config.steps) != network.config:
        raise UserError(f"--init-from {directory} is a flow policy of other sizes than this one")
    weights = FileWeights(directory / WEIGHTS, expected_tensors(config))
    found = read_processors(directory, config)
    network.scales.copy_(Scaling(found.state, found.action).tensor())
    with torch.no_grad():
        for name, tensor in network.tensors().items():
            tensor.copy_(weights.take(name))


def begin_from(network: FlowNetwork, source: Checkpoint, frames: Frames, seed: int) -> None:
    """Take over what fits. UserError: ``source`` has other sizes."""
    _check(network, source.config)
    eyes = Vision(source.config)
    eyes.load_state_dict({n: source.tensors[n] for n in eyes.state_dict()})
    with torch.no_grad():
        _take_language(network, source)
        _take_eyes(network, eyes, frames, seed)


def _check(network: FlowNetwork, theirs: ModelConfig) -> None:
    tower, text = network.config.shapes.vision, network.config.shapes.text
    other, words = theirs.towers[0], theirs.text
    own = (
        tower.width, tower.heads, tower.mlp, tower.image_size, tower.patch, tower.depth,
        text.hidden_size, text.intermediate_size, text.layers, text.heads, text.kv_heads,
        text.head_dim,
    )  # fmt: skip
    found = (
        other.width, other.heads, other.mlp, other.image_size, other.patch, other.depth - 1,
        words.hidden_size, words.intermediate_size, words.layers, words.heads, words.kv_heads,
        words.head_dim,
    )  # fmt: skip
    if own != found or words.kind != "llama" or len(theirs.towers) != 1:
        raise UserError(
            "--init-from is no token policy with the sizes of this one's tower and language model:"
            " give one that was trained with --arch small, such as shipped:tabletop"
        )


def _take_language(network: FlowNetwork, source: Checkpoint) -> None:
    own, text = network.tensors(), network.config.shapes.text
    words = source.tensors[LANGUAGE + "model.embed_tokens.weight"][: text.vocab_size]
    own[TEXT + "embed_tokens.weight"].copy_(words / text.hidden_size**0.5)
    for name, tensor in own.items():
        if not name.startswith(TEXT) or "embed_tokens" in name:
            continue
        theirs = source.tensors[LANGUAGE + "model." + name.removeprefix(TEXT)]
        if name.endswith("norm.weight"):
            theirs = theirs - 1.0
        elif "gate_proj" in name:
            theirs = theirs / _SLOPE
        elif "up_proj" in name:
            theirs = theirs * _SLOPE
        tensor.copy_(theirs)


def _take_eyes(network: FlowNetwork, eyes: Vision, frames: Frames, seed: int) -> None:
    tower, theirs = network.tower, eyes.vision_backbone.featurizer
    tower.patch_embed.load_state_dict(theirs.patch_embed.state_dict())
    tower.positions.copy_(theirs.pos_embed[0])
    for own, other in zip(tower.blocks, theirs.blocks, strict=True):
        own.load_state_dict(other.state_dict())
    vision = network.config.shapes.vision
    pictures = Pictures(frames, vision, seed, 0, torch.device("cpu"))
    draw = torch.Generator().manual_seed(seed)
    count = min(_IMAGES, len(frames))
    index = torch.randint(len(frames), (count,), generator=draw)
    pixels = pictures(index, draw, 0).pixels.flatten(0, 1)
    features = tower(pixels).flatten(0, 1)
    wanted = eyes((pixels,)).flatten(0, -2)
    rows = torch.cat((features, features.new_ones(len(features), 1)), 1)
    fitted = torch.linalg.lstsq(rows, wanted).solution
    own_tensors = network.tensors()
    own_tensors[PROJECTOR + ".weight"].copy_(fitted[:-1].T)
    own_tensors[PROJECTOR + ".bias"].copy_(fitted[-1])
