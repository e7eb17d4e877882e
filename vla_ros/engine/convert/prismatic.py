"""A run of prismatic, as OpenVLA and MiniVLA are trained and MiniVLA is released.

    RUN/config.json                 {"vla": {"base_vlm", "action_tokenizer", ...}}
    RUN/dataset_statistics.json
    RUN/checkpoints/step-*.pt       {"model": {vision_backbone, projector, llm_backbone}}

and beside it, where its actions are codes, a VQ-VAE:

    VQ/config.json             {"input_dim_h", "input_dim_w", "vqvae_n_embed", "vqvae_groups", ...}
    VQ/checkpoints/model.pt    {"encoder", "decoder", "vq_embedding", "optimizer"}

Source: openvla-mini ``prismatic/models/load.py`` (what is read), ``prismatic/conf/models.py``
(what a base VLM is made of), ``vla/action_tokenizer.py`` (where the action tokens end), and
openvla ``vla-scripts/extern/convert_openvla_weights_to_hf.py`` (names of tensors); vq_bet_official
``vqvae/vqvae.py``, openvla-mini ``vla-scripts/pretrain_vq.py``.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from vla_ros.engine.convert.pickles import SEPARATOR, read_pickle
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.families.openvla import refuse_unlike, save_checkpoint, unused_names
from vla_ros.engine.io.checkpoint import LANGUAGE, STATISTICS, Tensors
from vla_ros.engine.io.config import (
    BACKBONES,
    LLAMA_EMPTY_TOKEN,
    ModelConfig,
    TextConfig,
    VqConfig,
)
from vla_ros.engine.io.field_table import Fields
from vla_ros.engine.io.files import read_json

_VQ_DECODER = {"encoder.0": "0", "encoder.2": "1", "fc": "2"}  # an EncoderMLP too
_STEP = re.compile(r"step-(\d+)[-.]")
_PROJECTOR = {"projector.0": "fc1", "projector.2": "fc2", "projector.4": "fc3"}
_TOWERS = {
    "dino_featurizer.": "featurizer.",
    "siglip_featurizer.": "fused_featurizer.",
    "featurizer.": "featurizer.",
}
_DINOSIGLIP, _SIGLIP = "dinosiglip-vit-so-224px", "siglip-vit-so400m"
_LLAMA = ModelConfig(TextConfig(), BACKBONES[_DINOSIGLIP], 32000, empty_token_id=LLAMA_EMPTY_TOKEN)
_QWEN = ModelConfig(
    TextConfig("qwen2", 32000, 896, 4864, 24, 14, 2, 64, rope_theta=1e6, tied=True),
    BACKBONES[_DINOSIGLIP],
    151643,
    prompt_style="qwen",
)
#: The base models that OpenVLA's and MiniVLA's published runs name, each with its tokenizer's
#: ``vocab_size``; and the tokenizer's length, with what was added to it.
BASE_VLMS = {
    "prism-dinosiglip-224px+7b": (_LLAMA, 32001),
    "siglip-224px+7b": (
        replace(_LLAMA, prompt_style="openvla-v0.1", towers=BACKBONES[_SIGLIP], resize="letterbox"),
        32001,
    ),
    "prism-qwen25-dinosiglip-224px+0_5b": (_QWEN, 151665),
    "prism-qwen25-extra-dinosiglip-224px+0_5b": (_QWEN, 151921),
}


def convert_prismatic(
    source: Path,
    scratch: Path,
    *,
    tokenizer: Path | None,
    step: str | None = None,
    vq: Path | None = None,
    config: ModelConfig | None = None,
) -> str:
    """Fill ``scratch`` with the run ``source``; returns what was read, in one line.

    ``config`` stands for what the run's base VLM says (models of another size).
    """
    run = read_json(source / "config.json")
    vla = Fields(run, str(source / "config.json")).part("vla")
    path = checkpoint_file(source, step)
    stats = read_json(source / STATISTICS)
    tokenizer = _tokenizer(source, tokenizer)
    tensors, config = _named(read_pickle(path), path, config or describe(vla, source))
    if _coded(vla):
        tensors_of_vq, config = _read_vq(source, vq, config)
        tensors.update(tensors_of_vq)
    refuse_unlike(path, tensors, config, unused_names(config))
    used = {n: t for n, t in tensors.items() if not n.startswith(unused_names(config))}
    save_checkpoint(scratch, config, used, stats, partial(shutil.copyfile, tokenizer))
    return f"{path.name} of a prismatic run on {vla.text('base_vlm', 'a base VLM')}"


def checkpoint_file(run: Path, step: str | None) -> Path:
    """The newest ``checkpoints/step-*.pt``, as prismatic's loader takes it, or that of ``step``."""
    files = sorted((run / "checkpoints").glob("step-*.pt"))
    if step is not None:
        files = [f for f in files if int((_STEP.match(f.name) or ["", "-1"])[1]) == int(step)]
    files = files or ([] if step else sorted((run / "checkpoints").glob("*.pt")))
    if not files:
        raise CheckpointError(f"no checkpoints/step-{step or '*'}*.pt in {run}")
    return files[-1]


def describe(vla: Fields, source: Path) -> ModelConfig:
    """The model of the run's ``config.json``."""
    where, name = source / "config.json", Path(vla.text("base_vlm", "")).name
    if name not in BASE_VLMS:
        raise CheckpointError(
            f"{where}: vla.base_vlm is {name!r}; known are {', '.join(BASE_VLMS)}"
        )
    images = vla.whole("image_sequence_len", 1)
    if images > 1 and not (images == 2 and vla.flag("use_wrist_image", False)):
        raise CheckpointError(
            f"{where}: this model looks at {images} images, a history of frames;"
            " one camera, or one with the wrist's beside it, is supported"
        )
    actions = vla.text("action_tokenizer", "action_tokenizer")
    if actions not in ("action_tokenizer", "extra_action_tokenizer") and not _coded(vla):
        raise vla.wrong("action_tokenizer", "action_tokenizer, extra_action_tokenizer or a vq one")
    base, length = BASE_VLMS[name]
    vocab = length if "extra" in actions else base.action_vocab
    return replace(base, action_vocab=vocab, images=images)


def _coded(vla: Fields) -> bool:
    return "_vq_" in f"_{vla.text('action_tokenizer', '')}"


def _named(
    weights: Mapping[str, torch.Tensor], source: Path, config: ModelConfig
) -> tuple[Tensors, ModelConfig]:
    """The tensors under OpenVLA's names; the vocabulary is as large as its embedding."""
    out: Tensors = {}
    parts: set[str] = set()
    for full, tensor in weights.items():
        part, _, name = full.removeprefix(f"model{SEPARATOR}").partition(SEPARATOR)
        new = _rename(part, name)
        if new is None:
            raise CheckpointError(f"{source} has an unknown tensor {full}")
        parts.add(part)
        out[new] = tensor
    lost = {"vision_backbone", "projector", "llm_backbone"} - parts
    if lost:
        raise CheckpointError(f"{source} lacks {', '.join(sorted(lost))}: it is no whole VLA")
    out = {name: tensor for name, tensor in out.items() if not name.endswith("inv_freq")}
    rows = len(out.get(LANGUAGE + "model.embed_tokens.weight", ()))
    return out, replace(config, text=replace(config.text, vocab_size=rows))


def _rename(part: str, name: str) -> str | None:
    if part == "vision_backbone":
        base = next((b for b in _TOWERS if name.startswith(b)), None)
        if base is not None:
            new = f"vision_backbone.{_TOWERS[base]}{name.removeprefix(base)}"
            return new.replace(".gamma", ".scale_factor")
    elif part == "projector":
        stem, _, kind = name.rpartition(".")
        if stem in _PROJECTOR:
            return f"projector.{_PROJECTOR[stem]}.{kind}"
    elif part == "llm_backbone":
        return LANGUAGE + name.removeprefix("llm.")
    return None


def _tokenizer(source: Path, given: Path | None) -> Path:
    path = given or source / "tokenizer.json"
    if path.is_dir():
        path = path / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(
            f"no tokenizer at {path}: give --tokenizer, the tokenizer.json of the language model"
            " the run began with (MiniVLA: Qwen/Qwen2.5-0.5B)"
        )
    return path


def _read_vq(
    source: Path, directory: Path | None, config: ModelConfig
) -> tuple[Tensors, ModelConfig]:
    """Codebooks and decoder of MiniVLA's VQ-VAE as ``vq.*``, and ``config`` with their sizes."""
    if directory is None:
        raise CheckpointError(
            f"{source} speaks in codes of a VQ-VAE: give --vq, the directory with its config.json"
            " and checkpoints/model.pt (MiniVLA: Stanford-ILIAD/pretrain_vq)"
        )
    fields = Fields(read_json(directory / "config.json"), str(directory / "config.json"))
    groups, dim = fields.whole("vqvae_groups", 4), fields.whole("input_dim_w", 9)
    if groups != dim:
        raise fields.wrong("vqvae_groups", f"{dim}, one code for each of the action's dimensions")
    path = directory / "checkpoints" / "model.pt"
    found = read_pickle(path)
    books = [f"vq_embedding{SEPARATOR}layers.{i}._codebook.embed" for i in range(groups)]
    linear = {
        f"decoder{SEPARATOR}{old}.{kind}": f"vq.decoder.{new}.{kind}"
        for old, new in _VQ_DECODER.items()
        for kind in ("weight", "bias")
    }
    lost = sorted({*books, *linear} - found.keys())
    if lost:
        raise CheckpointError(f"{path} lacks {', '.join(lost[:6])}: it is no VQ-VAE of MiniVLA")
    out = {new: found[old].float() for old, new in linear.items()}
    out["vq.codebooks"] = torch.cat([found[name] for name in books]).float()
    vq = VqConfig(
        horizon=fields.whole("input_dim_h", 10),
        latent=fields.whole("n_latent_dims", 512),
        hidden=len(out["vq.decoder.0.bias"]),
        scale=fields.number("act_scale", 1.0),
    )
    codes = fields.whole("vqvae_n_embed", 32, 2)
    return out, replace(config, vq=vq, bins=codes, action_dim=dim)
