"""LeRobot's folders that are not read as they stand: an adapter of peft, merged into its base; and
those of before LeRobot's processor files, whose statistics lie among the weights.

Sources: lerobot 0.3.3 ``policies/normalize.py`` and ``smolvla/modeling_smolvla.py`` (what the
statistics are called, also those kept by data set), 0.6.1 ``migrate_policy_normalization.py`` and
``processor_*.py`` (what is made of them); peft as in :mod:`.adapter`.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from vla_ros.engine.convert.adapter import (
    adapter_in,
    merged_tensors,
    needed_base,
    read_adapter,
)
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.families.act import KIND as ACT
from vla_ros.engine.families.lerobot import write_steps
from vla_ros.engine.io.fields import LEROBOT, SMOLVLM2_500M
from vla_ros.engine.io.files import AGAIN, read_json, text_in, write_json
from vla_ros.engine.io.flow_config import (
    ACTION,
    POSTPROCESSOR,
    PREPROCESSOR,
    STATE,
    parse_flow_config,
)
from vla_ros.engine.io.processors import MODES
from vla_ros.engine.io.weights import WEIGHTS, FileWeights, canonical, read_file, weight_files

PALIGEMMA = "google/paligemma-3b-pt-224"
#: ``normalize_inputs.so100_buffer_observation_state.mean``: the data set may be there or not.
_OLD = re.compile(
    r"(?:un)?normali[sz]e_(?:inputs|targets|outputs)\."
    r"(?:(?P<set>.+?)_)?buffer_(?P<feature>.+)\.(?P<name>mean|std|min|max)"
)
#: lerobot's first pi0: its word -> today's, of the same meaning
_FIRST_WORDS = {"num_steps": "num_inference_steps", "resize_imgs_with_padding": "image_resolution"}


def what_of_lerobot(source: Path) -> str:
    """ "adapter" or "first" (before processor files), for what :func:`convert_lerobot` makes whole;
    "" for anything else."""
    if text_in(source / "config.json", "type") not in LEROBOT:
        return ""
    own = list(source.glob("model*.safetensors"))
    if not own and adapter_in(source) is not None:
        return "adapter"
    return "first" if own and not (source / PREPROCESSOR).is_file() else ""


def convert_lerobot(source: Path, scratch: Path, base: Path | None) -> str | None:
    """Write what the engine reads; None where ``source`` is none of these two kinds."""
    what = what_of_lerobot(source)
    if not what:
        return None
    made = _merged(source, scratch, base) if what == "adapter" else _split(source, scratch)
    _read_back(scratch)
    return made


def _merged(source: Path, scratch: Path, base: Path | None) -> str:
    directory = adapter_in(source)
    assert directory is not None  # the caller saw it
    base = needed_base(source, directory, base)
    kind, other = (text_in(one / "config.json", "type") for one in (source, base))
    if other is not None and other != kind:
        raise CheckpointError(f"{source} is a {kind}, its base {base} a {other}")
    path, given, scale = read_adapter(directory)
    tensors: dict[str, torch.Tensor] = {}
    for file in weight_files(base):
        tensors |= {f"model.{canonical(name)}": t for name, t in read_file(file).items()}
    renamed = {_adapted(name): tensor for name, tensor in given.items()}
    tensors, count = merged_tensors(path, renamed, scale, tensors, base)
    _save(scratch, tensors)
    _copy(source, scratch, {"use_peft": False})
    return f"{count} weights of {base} changed by {directory}"


def _adapted(name: str) -> str:
    """A name of the adapter's, as its base's tensors are named here."""
    inner = name.removeprefix("base_model.model.")
    return f"model.{canonical(inner)}"


def _split(source: Path, scratch: Path) -> str:
    """Statistics out of the weights, and the processors that LeRobot would make of the config."""
    raw = read_json(source / "config.json")
    kind = str(raw["type"])
    if kind not in ("pi0", "pi05", "smolvla", ACT):
        raise CheckpointError(
            f"{source} has no {PREPROCESSOR}, and LeRobot never wrote one of type {kind} without:"
            f" {AGAIN}, all of its files"
        )
    tensors: dict[str, torch.Tensor] = {}
    for file in weight_files(source):
        tensors |= read_file(file)
    features = [*_names(raw, "input_features"), *_names(raw, "output_features")]
    features = list(dict.fromkeys([STATE, ACTION, *features]))
    stored: dict[str, torch.Tensor] = {}
    for name in [n for n in tensors if n.startswith(("normalize_", "unnormalize_"))]:
        tensor, match = tensors.pop(name), _OLD.fullmatch(name)
        whose = [f for f in features if match and f.replace(".", "_") == match["feature"]]
        if match is None or not whose:
            raise CheckpointError(f"{source}: {name} is a statistic of no feature of its config")
        prefix = f"{match['set']}.buffer." if match["set"] else ""
        stored[f"{prefix}{whose[0]}.{match['name']}"] = tensor.float().clone()
    if not stored:
        raise CheckpointError(
            f"{source} has neither {PREPROCESSOR} nor statistics among its weights: {AGAIN},"
            " all of its files"
        )
    _save(scratch, {name.replace("._orig_mod", ""): t for name, t in tensors.items()})
    words = {new: raw[old] for old, new in _FIRST_WORDS.items() if kind == "pi0" and old in raw}
    _copy(source, scratch, words, tuple(_FIRST_WORDS) if kind == "pi0" else ())
    modes = _modes(raw, source)
    if kind == ACT:  # whose folders have no tokenizer
        write_steps(scratch, kind, modes, stored)
    else:
        named = {"smolvla": str(raw.get("vlm_model_name") or SMOLVLM2_500M)}.get(kind, PALIGEMMA)
        longest = parse_flow_config(read_json(scratch / "config.json"), scratch).max_text
        write_steps(scratch, kind, modes, stored, named, longest)
    sets = {name.partition(".buffer.")[0] for name in stored if ".buffer." in name}
    note = f", by data set ({', '.join(sorted(sets))})" if sets else ""
    return f"{len(stored)} statistics taken out of the weights of a {kind}{note}"


def _modes(raw: Mapping[str, Any], source: Path) -> dict[str, str]:
    said = raw.get("normalization_mapping")
    if not isinstance(said, Mapping) or not all(str(v) in MODES for v in said.values()):
        raise CheckpointError(
            f"{source}/config.json has no normalization_mapping: how its state and actions were"
            " scaled is known to its authors alone"
        )
    return {kind: str(said.get(kind, "IDENTITY")) for kind in ("VISUAL", "STATE", "ACTION")}


def _names(raw: Mapping[str, Any], group: str) -> list[str]:
    found = raw.get(group)
    return [str(name) for name in found] if isinstance(found, Mapping) else []


def _save(scratch: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    save_file({n: t.contiguous().clone() for n, t in tensors.items()}, str(scratch / WEIGHTS))


def _copy(
    source: Path, scratch: Path, changes: Mapping[str, object], gone: tuple[str, ...] = ()
) -> None:
    """The small files, and config.json with ``changes`` and without the fields ``gone``."""
    for path in source.iterdir():
        names = {p.name for p in path.iterdir()} if path.is_dir() else set()
        if names & {"tokenizer.json", "config.json"} and not any("safetensors" in n for n in names):
            shutil.copytree(path, scratch / path.name)  # a language model's words and sizes
        small = path.name.endswith(".json") or path.name.startswith(
            ("policy_", "README", "LICENSE")
        )
        if path.is_file() and small and path.name not in ("adapter_config.json", "config.json"):
            shutil.copyfile(path, scratch / path.name)
    raw = read_json(source / "config.json")
    write_json(
        scratch / "config.json", {k: v for k, v in raw.items() if k not in gone} | dict(changes)
    )


def _read_back(scratch: Path) -> None:
    """Everything of it but the tokenizer, which LeRobot's folders do not have."""
    from vla_ros.engine.families.base import LoadOptions
    from vla_ros.engine.families.registry import family_of

    family = family_of(scratch)
    expected = family.expected(family.config(scratch, LoadOptions()))
    weights = FileWeights(scratch / WEIGHTS, expected)
    for name in weights.read_all(expected.must):
        weights.take(name)
    for name in (PREPROCESSOR, POSTPROCESSOR):
        read_json(scratch / name)
