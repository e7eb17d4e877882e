"""Directories that this engine does not read as they stand, and what to do about each.

Judged by names of files and by ``config.json`` alone, before any tensor is read: a run of
prismatic, OpenVLA-OFT with heads in ``.pt`` files, an adapter, pickled weights, a policy of
another family, a plain language model.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.io.files import header, names_in, read_json, some

CONVERT = "vla-ros convert"
#: ``kind`` of each family's config, in their order; a test holds this to them.
FLOW_KINDS = (
    "pi0",
    "pi05",
    "smolvla",
    "pi0_fast",
    "evo1",
    "act",
    "groot-n1.7",
    "groot-n1.6",
    "groot-n1.5",
    "turbovla",
)
PICKLES = ("pytorch_model*.bin", "model*.pt", "model*.pth", "consolidated*.pth")
OFT_PARTS = "*--*_checkpoint.pt"
MOST_FOLDERS = 400  # that are looked into for checkpoints, of a level
RUNS = "checkpoints/*.pt"  # of prismatic
EVO1_STATES = "mp_rank_00_model_states.pt"  # of DeepSpeed
#: What this engine reads, for the messages that refuse anything else.
READS = (
    "this engine reads OpenVLA, OpenVLA-OFT, MiniVLA, BitVLA,"
    f" {', '.join(FLOW_KINDS[:-1])} and {FLOW_KINDS[-1]}"
)
#: Policies that LeRobot 0.6.1 runs in a worker of its own, and this engine does not.
LEROBOT_RUNS = (
    *("diffusion", "eo1", "fastwam", "gaussian_actor", "groot", "lingbot_va", "molmoact2"),
    *("multi_task_dit", "tdmpc", "vla_jepa", "vqbet", "wall_x", "xvla"),
)
#: What ``model_type`` says in a ``config.json`` that this engine reads.
MODEL_TYPES = ("openvla", "prismatic", "bitvla")


def refuse_foreign(directory: Path) -> None:
    """Raise CheckpointError where ``directory`` is known to be something else."""
    reason = foreign_files(sorted(p.name for p in directory.iterdir()), str(directory))
    if reason is None and (directory / "config.json").is_file():
        reason = foreign_config(read_json(directory / "config.json"), str(directory))
    if reason is None and not (directory / "config.json").exists():
        deeper = checkpoints_below(directory)
        reason = (
            f"{directory} is a folder above checkpoints: give one of those in it, {deeper}"
            if deeper
            else f"no config.json in {directory}: there is {names_in(directory)}"
        )
    if reason is not None:
        raise CheckpointError(reason)


def refuse_foreign_flow(directory: Path) -> None:
    """Raise CheckpointError where a folder of LeRobot's is not whole as it stands: an adapter
    without its base, or one of before LeRobot's processor files."""
    weights = list(directory.glob("model*.safetensors"))
    if not weights and (directory / "adapter_config.json").is_file():
        base = read_json(directory / "adapter_config.json").get("base_model_name_or_path")
        said = f" ({base})" if isinstance(base, str) and base else ""
        raise CheckpointError(
            f"{directory} is an adapter of peft without its base model{said}:"
            f" run `{CONVERT} {directory} TARGET --base BASE` to merge the two"
        )
    single, old = directory / "model.safetensors", None
    if (directory / "policy_preprocessor.json").is_file() or not single.is_file():
        return
    with suppress(CheckpointError):  # damaged: the loader says how
        if any(name.startswith(("normalize_", "unnormalize_")) for name in header(single)):
            old = directory
    if old:
        raise CheckpointError(
            f"{directory} has its statistics among the weights, as before LeRobot 0.4:"
            f" run `{CONVERT} {directory} TARGET`"
        )


def below(names: Iterable[str], limit: int = 8) -> str:
    """The folders that hold a ``config.json``, of files named with their folders; "" for none.

    The last first: of several checkpoints of one run the newest is the most likely. What lies in
    such a folder again is part of it, such as its language model."""
    folders = {Path(name).parent for name in names if Path(name).name == "config.json"}
    own = [f for f in folders if f.name and not folders & set(f.parents[:-1])]
    return some(sorted(map(str, own), reverse=True), limit)


def checkpoints_below(directory: Path) -> str:
    """The folders with a ``config.json`` below one on this machine, at most four deep."""
    found: list[str] = []
    level = [directory]
    for _ in range(4):
        level = [p for one in level for p in _folders(one)][:MOST_FOLDERS]
        found += [str((p / "config.json").relative_to(directory)) for p in level
                  if (p / "config.json").is_file()]  # fmt: skip
    return below(found)


def _folders(directory: Path) -> list[Path]:
    """Folders in a folder, those that may be looked into."""
    try:
        return sorted(p for p in directory.iterdir() if p.is_dir() and not p.name.startswith("."))
    except OSError:
        return []


def foreign_files(names: Iterable[str], where: str) -> str | None:
    """The reason against reading ``where`` by the names of its files; None: there is none.

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
    saved = sorted(n for n in fnmatch.filter(present, "*.pth") if "/" not in n)
    if saved and "config.json" not in present and not weights:
        return (
            f"{where} holds {saved[0]}, a pickle, which this engine never reads: if it is a"
            f" checkpoint of TurboVLA's authors, `{CONVERT} {where} TARGET` makes safetensors of it"
        )
    if gguf := sorted(fnmatch.filter(present, "*.gguf")):
        return f"{where} holds {gguf[0]}, weights for llama.cpp: give the original safetensors"
    if "model_index.json" in present and "config.json" not in present:
        return f"{where} is a pipeline of diffusers: {READS}"
    if "config.json" not in present and (deeper := below(present)):
        return (
            f"{where} has one folder a checkpoint: download one,"
            f" `hf download {where} --include 'FOLDER/*' --local-dir DIRECTORY`, and give"
            f" DIRECTORY/FOLDER; it has {deeper}"
        )
    return None


def foreign_config(raw: Mapping[str, Any], where: str) -> str | None:
    """The reason in a ``config.json`` against reading ``where`` as it stands; None."""
    if isinstance(raw.get("vla"), Mapping) or isinstance(raw.get("model"), Mapping):
        return _run_of_prismatic(where)
    if "vision_backbone_id" in raw or ("vision_config" in raw and "text_config" in raw):
        kind = raw.get("model_type", "openvla")
        return None if kind in MODEL_TYPES else _other(where, kind)
    if isinstance(raw.get("type"), str) and ("input_features" in raw or "output_features" in raw):
        kind = raw["type"]
        itself = (
            "; LeRobot itself runs it: policy: lerobot, after `vla-ros lerobot setup`"
            if kind in LEROBOT_RUNS
            else ""
        )
        return f"{where} is a policy of lerobot, of type {kind!r}: {READS}{itself}"
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
