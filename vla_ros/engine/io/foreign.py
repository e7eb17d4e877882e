"""What a directory is that this engine does not read as it stands, and what to do about it.

Judged by names of files and by ``config.json`` alone, before any tensor is read: a run of
prismatic, OpenVLA-OFT with heads in ``.pt`` files, an adapter, pickled weights, a policy of
another family, a plain language model.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.io.files import names_in, read_json

CONVERT = "vla-ros convert"
#: ``kind`` of each flow policy's config, in the order of the families; a test holds this to them.
FLOW_KINDS = ("pi0", "pi05", "smolvla", "evo1", "groot-n1.7", "groot-n1.6", "groot-n1.5")
PICKLES = ("pytorch_model*.bin", "model*.pt", "model*.pth", "consolidated*.pth")
OFT_PARTS = "*--*_checkpoint.pt"
RUNS = "checkpoints/*.pt"  # of prismatic
EVO1_STATES = "mp_rank_00_model_states.pt"  # of DeepSpeed
#: What this engine reads, for the messages that refuse anything else.
READS = (
    "this engine reads OpenVLA, OpenVLA-OFT, MiniVLA, BitVLA, and of flow policies"
    f" {', '.join(FLOW_KINDS[:-1])} and {FLOW_KINDS[-1]}"
)
#: What ``model_type`` says in a ``config.json`` that this engine reads.
MODEL_TYPES = ("openvla", "prismatic", "bitvla")


def refuse_foreign(directory: Path) -> None:
    """Raise CheckpointError where ``directory`` is known to be something else."""
    reason = foreign_files(sorted(p.name for p in directory.iterdir()), str(directory))
    if reason is None and (directory / "config.json").is_file():
        reason = foreign_config(read_json(directory / "config.json"), str(directory))
    if reason is None and not (directory / "config.json").exists():
        reason = f"no config.json in {directory}: there is {names_in(directory)}"
    if reason is not None:
        raise CheckpointError(reason)


def foreign_files(names: Iterable[str], where: str) -> str | None:
    """What the names of files in ``where`` say against reading it; None: nothing.

    Those of a directory, or, with their folders, those of a repository on the hub.
    """
    present = set(names)
    if EVO1_STATES in present:
        return (
            f"{where} is a run of MINT-SJTU/Evo-1, its weights in {EVO1_STATES}, a pickle, which"
            " this engine never reads, and its head sees padding too: train the policy with LeRobot"
            " (type evo1), whose head does not"
        )
    if parts := sorted(fnmatch.filter(present, OFT_PARTS)):
        return (
            f"{where} is an OpenVLA-OFT release, its heads are in {parts[0]} and are not read"
            f" from there: run `{CONVERT} {where} TARGET` first"
        )
    if fnmatch.filter(present, RUNS):
        return _run_of_prismatic(where)
    weights = [n for n in present if n.endswith((".safetensors", ".safetensors.index.json"))]
    if all(name.startswith("adapter_") for name in weights):
        if pickles := sorted(n for p in PICKLES for n in fnmatch.filter(present, p)):
            return (
                f"{where} has its weights in {pickles[0]}, a pickle, which this engine never"
                f" reads: run `{CONVERT} {where} TARGET` to make safetensors of it"
            )
        if "adapter_config.json" in present:
            return (
                f"{where} is a LoRA adapter without its base model:"
                f" run `{CONVERT} {where} TARGET --base BASE` to merge the two"
            )
    if gguf := sorted(fnmatch.filter(present, "*.gguf")):
        return f"{where} holds {gguf[0]}, weights for llama.cpp: give the original safetensors"
    if "model_index.json" in present and "config.json" not in present:
        return f"{where} is a pipeline of diffusers: {READS}"
    return None


def foreign_config(raw: Mapping[str, Any], where: str) -> str | None:
    """What a ``config.json`` says against reading ``where`` as it stands; None: nothing."""
    if isinstance(raw.get("vla"), Mapping) or isinstance(raw.get("model"), Mapping):
        return _run_of_prismatic(where)
    if "vision_backbone_id" in raw or ("vision_config" in raw and "text_config" in raw):
        kind = raw.get("model_type", "openvla")
        return None if kind in MODEL_TYPES else _other(where, kind)
    if isinstance(raw.get("type"), str) and ("input_features" in raw or "output_features" in raw):
        return f"{where} is a policy of lerobot, of type {raw['type']!r}: {READS}"
    architectures = raw.get("architectures")
    names = [str(a) for a in architectures] if isinstance(architectures, list) else []
    if any(name.endswith(("CausalLM", "LMHeadModel")) for name in names):
        return (
            f"{where} is a language model ({names[0]}) without vision or actions:"
            f" give a checkpoint that was trained on top of it; {READS}"
        )
    if isinstance(raw.get("model_type"), str):
        return None if raw["model_type"] in MODEL_TYPES else _other(where, raw["model_type"])
    return None


def _run_of_prismatic(where: str) -> str:
    return (
        f"{where} is a training run of prismatic (OpenVLA's and MiniVLA's own layout):"
        f" run `{CONVERT} {where} TARGET --tokenizer tokenizer.json` first"
    )


def _other(where: str, kind: object) -> str:
    return f"{where}/config.json says model_type {str(kind)[:60]!r}: {READS}"
