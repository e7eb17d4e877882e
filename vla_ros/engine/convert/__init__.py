"""Checkpoints as others release them -> directories that the engine reads (`vla-ros convert`).

:func:`convert` sees which kind a directory is: a run of prismatic (MiniVLA), an OpenVLA-OFT
release, a LoRA adapter, OpenVLA's layout with pickled weights, an adapter of peft that LeRobot
trained, a folder of before LeRobot's processor files, or a ``.pth`` of TurboVLA's authors. What it
writes has been read back by the engine's own loader before it appears.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vla_ros.engine.convert.adapter import adapter_in, convert_adapter
from vla_ros.engine.convert.lerobot import convert_lerobot
from vla_ros.engine.convert.oft import convert_oft
from vla_ros.engine.convert.pickles import read_pickle
from vla_ros.engine.convert.prismatic import convert_prismatic
from vla_ros.engine.convert.turbovla import convert_turbovla, pth_in
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.families.base import LoadOptions
from vla_ros.engine.families.openvla import FAMILY, CheckpointLayout, read_layout
from vla_ros.engine.io.files import (
    copy_beside,
    names_in,
    publishing,
    read_json,
    weight_map,
    write_json,
)
from vla_ros.engine.io.foreign import OFT_PARTS, PICKLES, READS, foreign_config
from vla_ros.engine.io.weights import INDEX


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """Options for what a release does not have; see ``vla-ros convert --help``."""

    tokenizer: Path | None = None
    base: Path | None = None
    vq: Path | None = None
    step: str | None = None
    chunk: int | None = None
    images: int | None = None


@dataclass(frozen=True, slots=True)
class Converted:
    """A summary of what was read, and what came of it; ``layout``: None of a flow policy."""

    summary: str
    layout: CheckpointLayout | None


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
        layout = None
        summary = convert_lerobot(source, scratch, options.base)
        if summary is None and (path := pth_in(source)) is not None:
            summary = convert_turbovla(source, scratch, path, options.tokenizer)
        if summary is None:
            summary = _fill(source, scratch, options)
            FAMILY.inspect(scratch, LoadOptions())
            layout = read_layout(scratch)
    return Converted(summary, layout)


def _fill(source: Path, scratch: Path, options: ConvertOptions) -> str:
    raw = read_json(source / "config.json") if (source / "config.json").exists() else {}
    if "vla" in raw:
        return convert_prismatic(
            source, scratch, tokenizer=options.tokenizer, step=options.step, vq=options.vq
        )
    if list(source.glob(OFT_PARTS)):
        return convert_oft(
            source,
            scratch,
            chunk=options.chunk,
            images=options.images,
            step=options.step,
            base=options.base,
        )
    has_weights = list(source.glob("model*.safetensors"))
    if adapter_in(source) is not None and not has_weights:
        return convert_adapter(source, scratch, options.base)
    pickles = sorted(path for pattern in PICKLES for path in source.glob(pattern))
    if pickles and not has_weights:
        return _convert_pickled(source, scratch, pickles)
    if reason := foreign_config(raw, str(source)):
        raise CheckpointError(reason)
    if has_weights and "vision_backbone_id" in raw:
        raise CheckpointError(f"{source} is in the engine's own layout already: use it as it is")
    raise CheckpointError(f"nothing to convert in {source}: there is {names_in(source)}; {READS}")


def _convert_pickled(source: Path, scratch: Path, files: list[Path]) -> str:
    """OpenVLA's layout with its weights in ``pytorch_model*.bin``: every file on its own, and an
    index over them where there are several."""
    from safetensors.torch import save_file

    read_json(source / "config.json")
    index = source / "pytorch_model.bin.index.json"
    if index.is_file():
        files = [source / name for name in sorted(set(weight_map(index).values()))]
    elif len(files) > 1:
        names = ", ".join(path.name for path in files)
        raise CheckpointError(f"{source} has {names} and no index: which one is the model?")
    places: dict[str, str] = {}
    for number, path in enumerate(files, 1):
        several = f"-{number:05d}-of-{len(files):05d}" if len(files) > 1 else ""
        name = f"model{several}.safetensors"
        tensors = {n: t.contiguous() for n, t in read_pickle(path).items()}
        save_file(tensors, str(scratch / name))
        places |= dict.fromkeys(tensors, name)
    if len(files) > 1:
        write_json(scratch / INDEX, {"weight_map": places})
    copy_beside(source, scratch)
    return f"{len(files)} file{'s' * (len(files) > 1)} of pickled weights"
