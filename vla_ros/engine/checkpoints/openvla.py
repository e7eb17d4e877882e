"""Checkpoint directories in OpenVLA's layout: safetensors only, every tensor accounted for.

No pickle and no remote code, ever: the engine reads tensors and JSON.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vla_ros.engine.checkpoints.config import ModelConfig, TextConfig, read_config
from vla_ros.engine.checkpoints.shipped import PREFIX as SHIPPED
from vla_ros.engine.checkpoints.shipped import shipped
from vla_ros.engine.errors import CheckpointError

Tensors = dict[str, torch.Tensor]
Shapes = dict[str, tuple[int, ...]]
LANGUAGE = "language_model."
HEADS = ("action_head", "proprio_projector")  # of OFT checkpoints, beside the index


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that has been read and checked. ``directory`` holds its tokenizer."""

    config: ModelConfig
    tensors: Tensors
    norm_stats: Mapping[str, Any]
    directory: Path
    sha256: str


def resolve(name: str) -> Path:
    """The local directory of ``name``: itself, ``shipped:<name>``, or a download from the hub.

    Raises CheckpointError when it is none of them.
    """
    if name.startswith(SHIPPED):
        return shipped(name)
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    if path.exists() or name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise CheckpointError(f"{name!r} is neither a directory nor a hub id (owner/name)")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise CheckpointError(
            f"{name!r} is no directory, and huggingface_hub is not installed"
        ) from error
    wanted = ["*.json", "*.safetensors", "tokenizer.model", "*.txt"]
    try:
        return Path(snapshot_download(name, allow_patterns=wanted))
    except Exception as error:
        raise CheckpointError(f"cannot download {name!r} from the hub: {error}") from error


def load_checkpoint(name: str, device: torch.device, dtype: torch.dtype) -> Checkpoint:
    """Read a directory or hub id; tensors land on ``device`` as ``dtype``, checked."""
    directory = resolve(name)
    config, raw = read_config(directory)
    files = _weight_files(directory)
    tensors = _read(files, config, device, dtype)
    return Checkpoint(
        config, tensors, norm_stats_of(directory, raw), directory, _sha256(directory, files)
    )


def norm_stats_of(directory: Path, raw: Mapping[str, Any]) -> dict[str, Any]:
    """A checkpoint's action statistics by data set; ``raw`` is its config.json.

    Fine-tuned ones bring a ``dataset_statistics.json``, which overrides the other.
    """
    path = directory / "dataset_statistics.json"
    found: dict[str, Any] = raw.get("norm_stats") or {}
    return json.loads(path.read_text()) if path.is_file() else found


def fingerprint(directory: Path) -> str:
    """The ``sha256`` that :func:`load_checkpoint` will give, without loading."""
    return _sha256(directory, _weight_files(directory))


def _weight_files(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        files = [directory / name for name in names]
        lost = [f.name for f in files if not f.is_file()]
        if lost:
            raise CheckpointError(f"{directory} lacks the shards {', '.join(lost)}")
        heads = [directory / f"{name}.safetensors" for name in HEADS]
        return files + [f for f in heads if f.is_file()]
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        present = ", ".join(sorted(p.name for p in directory.iterdir())[:20])
        raise CheckpointError(
            f"no .safetensors in {directory} (there is {present}):"
            " convert .pt or .bin files first, this engine never unpickles"
        )
    return files


def _read(
    files: Iterable[Path], config: ModelConfig, device: torch.device, dtype: torch.dtype
) -> Tensors:
    from safetensors import safe_open

    wanted, unused = expected_shapes(config), _unused_prefixes(config)
    out: Tensors = {}
    extra: list[str] = []
    for path in files:
        with safe_open(str(path), framework="pt") as shard:
            for name in shard.keys():  # noqa: SIM118 (a safetensors handle is no dict)
                if name in wanted:
                    out[name] = shard.get_tensor(name).to(device, dtype)
                elif not name.startswith(unused) and not name.endswith("rotary_emb.inv_freq"):
                    extra.append(name)
    check_tensors(out, wanted, extra)
    return out


def check_tensors(tensors: Tensors, wanted: Shapes, extra: Iterable[str] = ()) -> None:
    """Raise CheckpointError listing every missing, extra or wrongly shaped tensor."""
    wrong = [
        f"{n} is {list(t.shape)}, wanted {list(wanted[n])}"
        for n, t in tensors.items()
        if tuple(t.shape) != wanted[n]
    ]
    lists = (
        ("missing", [n for n in wanted if n not in tensors]),
        ("extra", list(extra)),
        ("wrong shape", wrong),
    )
    said = [f"{len(names)} {title}: {_shorten(names)}" for title, names in lists if names]
    if said:
        raise CheckpointError("the tensors do not fit config.json; " + "; ".join(said))


def _shorten(names: list[str], limit: int = 12) -> str:
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest


def _unused_prefixes(config: ModelConfig) -> tuple[str, ...]:
    """Tensors that the family's checkpoints carry but its forward pass never reads."""
    out: list[str] = []
    for name, tower in zip(("featurizer", "fused_featurizer"), config.towers, strict=False):
        base = f"vision_backbone.{name}."
        out += [base + part for part in ("attn_pool.", "norm.", "head.", "fc_norm.")]
        out.append(f"{base}blocks.{tower.depth - 1}.")
    return tuple(out)


def expected_shapes(config: ModelConfig) -> Shapes:
    """Name and shape of every tensor the engine reads for ``config``."""
    from vla_ros.engine.vision.towers import Vision

    with torch.device("meta"):
        vision = Vision(config)
    shapes: Shapes = {n: tuple(t.shape) for n, t in vision.state_dict().items()}
    shapes.update({LANGUAGE + n: s for n, s in text_shapes(config.text).items()})
    if config.parallel:
        from vla_ros.engine.heads import head_shapes

        shapes.update(head_shapes(config))
    return shapes


def text_shapes(text: TextConfig) -> Shapes:
    """Tensors of LlamaForCausalLM / Qwen2ForCausalLM, with transformers' names."""
    hidden, middle = text.hidden_size, text.intermediate_size
    wide, narrow = text.heads * text.head_dim, text.kv_heads * text.head_dim
    shapes: Shapes = {"model.embed_tokens.weight": (text.vocab_size, hidden)}
    for layer in range(text.layers):
        base = f"model.layers.{layer}."
        shapes[base + "input_layernorm.weight"] = (hidden,)
        shapes[base + "post_attention_layernorm.weight"] = (hidden,)
        for name, rows in (("q_proj", wide), ("k_proj", narrow), ("v_proj", narrow)):
            shapes[f"{base}self_attn.{name}.weight"] = (rows, hidden)
            if text.qkv_bias:
                shapes[f"{base}self_attn.{name}.bias"] = (rows,)
        shapes[base + "self_attn.o_proj.weight"] = (hidden, wide)
        shapes[base + "mlp.gate_proj.weight"] = (middle, hidden)
        shapes[base + "mlp.up_proj.weight"] = (middle, hidden)
        shapes[base + "mlp.down_proj.weight"] = (hidden, middle)
    shapes["model.norm.weight"] = (hidden,)
    if not text.tied:
        shapes["lm_head.weight"] = (text.vocab_size, hidden)
    return shapes


def _sha256(directory: Path, files: Iterable[Path]) -> str:
    """SHA-256 over config.json and all weights, in name order."""
    digest = hashlib.sha256()
    for path in (directory / "config.json", *sorted(files)):
        with path.open("rb") as stream:
            while block := stream.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


def save_checkpoint(
    directory: Path,
    config: ModelConfig,
    tensors: Tensors,
    norm_stats: Mapping[str, Any],
    write_tokenizer: Callable[[Path], None],
) -> None:
    """Write a checkpoint directory that :func:`load_checkpoint` reads back."""
    from safetensors.torch import save_file

    from vla_ros.engine.checkpoints.config import config_json

    wanted = expected_shapes(config)
    known = {n: t for n, t in tensors.items() if n in wanted}
    check_tensors(known, wanted, [n for n in tensors if n not in wanted])
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(config_json(config, norm_stats), indent=1)
    (directory / "config.json").write_text(text + "\n")
    write_tokenizer(directory / "tokenizer.json")
    contiguous = {n: t.detach().contiguous() for n, t in tensors.items()}
    save_file(contiguous, str(directory / "model.safetensors"))
