"""Checkpoint directories of token policies: read, checked, written.

No pickle and no remote code, ever: the engine reads tensors and JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.formats import Formats
from vla_ros.engine.io.bitvla import EMBEDDING, FileRows, gather, vision_table, vision_unused
from vla_ros.engine.io.checkpoint import (
    LANGUAGE,
    RANDOM,
    VQ,
    Checkpoint,
    Tensors,
    norm_stats_of,
    read_config,
)
from vla_ros.engine.io.config import ModelConfig, TextConfig, config_json
from vla_ros.engine.io.files import write_json
from vla_ros.engine.io.hub import resolve
from vla_ros.engine.io.quantize import (
    TERNARY,
    Origin,
    already,
    from_stored,
    quantize_tensors,
    read_origin,
    refuse_flow_formats,
    refuse_unless_fast,
    stored_shapes,
    with_head,
)
from vla_ros.engine.io.tensors import Plain, Table, shapes
from vla_ros.engine.io.weights import (
    PACKED,
    WEIGHTS,
    Expected,
    Shapes,
    Stored,
    check_tensors,
    read_headers,
    read_tensors,
    sha256_of,
    weight_files,
)
from vla_ros.engine.models.transformer import layer_table

_DTYPES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.float64: "F64"}


@dataclass(frozen=True, slots=True)
class CheckpointLayout:
    """What a directory holds, known from its JSON files and the headers of its weights."""

    directory: Path
    config: ModelConfig
    norm_stats: Mapping[str, Any]
    files: list[Path]
    stored: Mapping[str, Stored]
    wanted: Shapes
    origin: Origin | None = None

    @property
    def parameters(self) -> int:
        return sum(int(torch.Size(shape).numel()) for shape in self.wanted.values())


def unused_names(config: ModelConfig) -> tuple[str, ...]:
    """What names of tensors begin with that the family's checkpoints carry and never read."""
    if config.text.ternary:  # all BitVLA says is what its action head makes of states
        return (*vision_unused(config), LANGUAGE + "lm_head.weight")
    out: list[str] = []
    for name, tower in zip(("featurizer", "fused_featurizer"), config.towers, strict=False):
        base = f"vision_backbone.{name}."
        out += [base + part for part in ("attn_pool.", "norm.", "head.", "fc_norm.")]
        out.append(f"{base}blocks.{tower.depth - 1}.")
    if config.text.tied:
        out.append(LANGUAGE + "lm_head.weight")  # a second copy of the embedding
    return tuple(out)


def expected_shapes(config: ModelConfig) -> Shapes:
    """Name and shape of every tensor the engine reads for ``config``."""
    if config.text.ternary:
        found = shapes(vision_table(config))
    else:
        from vla_ros.engine.models.towers import Vision

        with torch.device("meta"):
            vision = Vision(config)
        found = {n: tuple(t.shape) for n, t in vision.state_dict().items()}
    found |= shapes(text_table(config.text), LANGUAGE)
    if config.parallel:
        from vla_ros.engine.models.oft import head_shapes

        found |= head_shapes(config)
    if config.vq is not None:
        from vla_ros.engine.models.minivla import vq_table

        found |= shapes(vq_table(config.vq, config))
    return found


def text_table(text: TextConfig) -> Table:
    """LlamaForCausalLM, Qwen2ForCausalLM, or BitNet's without its head."""
    hidden, vocab = text.hidden_size, text.vocab_size
    layer = layer_table(text)
    layer = {name: layer[name] for name in sorted(layer, key=lambda name: "norm" not in name)}
    inner = {"self_attn.attn_sub_norm": hidden, "mlp.ffn_sub_norm": text.intermediate_size}
    layer |= {f"{name}.weight": Plain((size,)) for name, size in inner.items() if text.ternary}
    head: Table = {"lm_head.weight": Plain((vocab, hidden))}
    return {
        "model.embed_tokens.weight": Plain((vocab, hidden)),
        "model.layers": [layer] * text.layers,
        "model.norm.weight": Plain((hidden,)),
        **({} if text.tied or text.ternary else head),
    }


def read_layout(directory: Path) -> CheckpointLayout:
    """Everything about a directory but its tensors. CheckpointError: it cannot be loaded."""
    config, raw = read_config(directory)
    stats = norm_stats_of(directory, raw)
    files = weight_files(directory)
    stored, wanted = read_headers(files), expected_shapes(config)
    origin = read_origin(directory)
    if origin is not None:
        wanted = stored_shapes(wanted, config, origin.formats)
    unused = tuple(name for name in unused_names(config) if f"{name}.scale" not in wanted)
    check_tensors(directory, stored, Expected(wanted), unused)
    return CheckpointLayout(directory, config, stats, files, stored, wanted, origin)


def load_checkpoint(name: str, device: torch.device, dtype: torch.dtype) -> Checkpoint:
    """Read a directory or hub id; tensors land on ``device`` as ``dtype``, checked.

    CheckpointError names the file, what is wrong with it and what to do.
    """
    layout = read_layout(resolve(name))
    stats, directory = layout.norm_stats, layout.directory
    if layout.config.text.ternary:
        like = torch.empty(0, device=device, dtype=dtype)
        words = FileRows(layout.stored[EMBEDDING].path, EMBEDDING, like)
        # reading also looks at every number
        parts = gather(layout.config, read_tensors(layout.stored, layout.wanted), like)
        digest = sha256_of(directory, layout.files)
        return Checkpoint(
            layout.config, parts.tensors, stats, directory, digest, parts.ternary, words
        )
    shapes = layout.wanted
    own: tuple[str, ...] = PACKED  # of a type of their own
    if layout.origin is not None:
        formats = layout.origin.formats
        refuse_unless_fast(device, dtype, f"{layout.directory} has {formats}")
        shapes = with_head(expected_shapes(layout.config), layout.config, formats)
        own = (*PACKED, ".scale")
    read = {
        name: tensor.to(torch.float32, copy=True)
        if name.startswith(VQ)
        else tensor.to(device, tensor.dtype if name.endswith(own) else dtype, copy=True)
        for name, tensor in read_tensors(layout.stored, layout.wanted)
    }
    digest = sha256_of(directory, layout.files)
    tensors, quantized = from_stored(read, shapes)
    return Checkpoint(layout.config, tensors, stats, directory, digest, quantized)


def quantized(checkpoint: Checkpoint, formats: Formats) -> Checkpoint:
    """The same with weights in other formats; ValueError where they cannot be.

    To the bit what a directory that was quantized ahead of time is read back as.
    """
    if checkpoint.config.text.ternary:
        raise CheckpointError(TERNARY)
    if checkpoint.quantized:
        raise CheckpointError(already(checkpoint.directory))
    like = next(t for n, t in checkpoint.tensors.items() if not n.startswith(VQ))
    refuse_unless_fast(like.device, like.dtype, f"weights {formats}")
    kept, made = quantize_tensors(checkpoint.tensors, checkpoint.config, formats)
    return replace(checkpoint, tensors=kept, quantized=made)


def refuse_formats(name: str, formats: Formats, device: torch.device, dtype: torch.dtype) -> None:
    """CheckpointError in one line where weights cannot be in these formats; reads no weights."""
    where: Path | str = name
    ternary = "bitvla" in name
    if not name.startswith(RANDOM):
        layout = read_layout(resolve(name))
        where, ternary = layout.directory, layout.config.text.ternary
    if ternary:
        raise CheckpointError(TERNARY)
    refuse_flow_formats(where, formats, device, dtype)


def inspect_checkpoint(name: str) -> CheckpointLayout:
    """All that loading would find wrong, in the memory of one tensor at a time.

    The tokenizer is tried too, and every data set's statistics. Raises CheckpointError as
    :func:`load_checkpoint` does.
    """
    from vla_ros.engine.io.tokens import PromptTokenizer, read_normalizer

    layout = read_layout(resolve(name))
    for key in layout.norm_stats:
        where, minmax = str(layout.directory), layout.config.minmax
        read_normalizer(layout.norm_stats, key, minmax=minmax, source=where)
    PromptTokenizer(layout.directory, layout.config)("pick up the red cube")
    for _ in read_tensors(layout.stored, layout.wanted):
        pass
    return layout


def fingerprint(directory: Path) -> str:
    """The ``sha256`` that :func:`load_checkpoint` will give, without loading."""
    return sha256_of(directory, weight_files(directory))


def save_checkpoint(
    directory: Path,
    config: ModelConfig,
    tensors: Tensors,
    norm_stats: Mapping[str, Any],
    write_tokenizer: Callable[[Path], None],
) -> None:
    """Write a checkpoint directory that :func:`load_checkpoint` reads back."""
    from safetensors.torch import save_file

    refuse_unlike(directory, tensors, config)
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "config.json", config_json(config, norm_stats))
    write_tokenizer(directory / "tokenizer.json")
    contiguous = {n: t.detach().contiguous() for n, t in tensors.items()}
    save_file(contiguous, str(directory / WEIGHTS))


def refuse_unlike(
    where: Path, tensors: Tensors, config: ModelConfig, unused: tuple[str, ...] = ()
) -> None:
    """Raise CheckpointError where they are not those of ``config``; ``where`` they come from."""
    described = {
        name: Stored(where, tuple(tensor.shape), _DTYPES.get(tensor.dtype, str(tensor.dtype)))
        for name, tensor in tensors.items()
    }
    check_tensors(where, described, Expected(expected_shapes(config)), unused)
