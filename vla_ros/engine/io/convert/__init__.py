"""Checkpoints as others release them -> directories that the engine reads (`vla-ros convert`).

:func:`convert` sees which of four kinds a directory is: a run of prismatic (MiniVLA), an
OpenVLA-OFT release, a LoRA adapter, or OpenVLA's layout with pickled weights. What it writes
has been read back by the engine's own loader before it appears.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vla_ros.engine.checkpoints.convert.adapter import adapter_in
from vla_ros.engine.checkpoints.convert.lora import convert_adapter
from vla_ros.engine.checkpoints.convert.oft import convert_oft
from vla_ros.engine.checkpoints.convert.pickled import convert_pickled, pickles_in
from vla_ros.engine.checkpoints.convert.prismatic import convert_prismatic
from vla_ros.engine.checkpoints.convert.publish import publishing
from vla_ros.engine.checkpoints.family import OFT_PARTS, READS, foreign_config
from vla_ros.engine.checkpoints.files import names_in, read_json
from vla_ros.engine.checkpoints.openvla import Layout, inspect_checkpoint
from vla_ros.engine.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """What a release does not say itself; see ``vla-ros convert --help``."""

    tokenizer: Path | None = None
    base: Path | None = None
    vq: Path | None = None
    step: str | None = None
    chunk: int | None = None
    images: int | None = None


@dataclass(frozen=True, slots=True)
class Converted:
    """What was read, in one line, and what came of it."""

    summary: str
    layout: Layout


def convert(source: Path, target: Path, options: ConvertOptions | None = None) -> Converted:
    """Write ``target``, whole or not at all. CheckpointError: what is wrong with ``source``."""
    options = options or ConvertOptions()
    if source.suffix == ".pt" and source.parent.name == "checkpoints":
        source = source.parents[1]  # prismatic's own programs are given the file
    if not source.is_dir():
        raise CheckpointError(
            f"{source} is no directory: give one, for a model on the hub what"
            " `hf download NAME --local-dir DIRECTORY` made"
        )
    for path in (options.base, options.vq):
        if path is not None and not path.is_dir():
            raise CheckpointError(f"{path} is no directory")
    with publishing(target) as scratch:
        summary = _fill(source, scratch, options)
        layout = inspect_checkpoint(str(scratch))
    return Converted(summary, layout)


def _fill(source: Path, scratch: Path, options: ConvertOptions) -> str:
    raw = read_json(source / "config.json") if (source / "config.json").exists() else {}
    if "vla" in raw:
        return convert_prismatic(
            source, scratch, tokenizer=options.tokenizer, step=options.step, vq=options.vq
        )
    if list(source.glob(OFT_PARTS)):
        return convert_oft(
            source, scratch, chunk=options.chunk, images=options.images, step=options.step,
            base=options.base,
        )  # fmt: skip
    has_weights = list(source.glob("model*.safetensors"))
    if adapter_in(source) is not None and not has_weights:
        return convert_adapter(source, scratch, options.base)
    if pickles_in(source) and not has_weights:
        return convert_pickled(source, scratch)
    if reason := foreign_config(raw, str(source)):
        raise CheckpointError(reason)
    if has_weights and "vision_backbone_id" in raw:
        raise CheckpointError(f"{source} is in the engine's own layout already: use it as it is")
    raise CheckpointError(f"nothing to convert in {source}: there is {names_in(source)}; {READS}")
