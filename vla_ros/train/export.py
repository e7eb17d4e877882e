"""From a network in training to a checkpoint directory that the engine loads."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vla_ros.engine.checkpoints.openvla import save_checkpoint
from vla_ros.engine.checkpoints.small_tokenizer import write_tokenizer
from vla_ros.train.data.frames import Frames
from vla_ros.train.data.units import norm_stats
from vla_ros.train.network import Network

RECORD_FILE = "training.json"


def export(
    write: Callable[[Path], None], frames: Frames, record: dict[str, Any], directory: Path
) -> None:
    """Let ``write`` fill a directory, with ``record`` (recipe, step, data) beside it.

    The directory is written aside and then put in place of an older one.
    """
    scratch = directory.with_name(f"{directory.name}.{os.getpid()}.tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    write(scratch)
    whole = {**record, "data_sha256": frames.digest, "frames": len(frames)}
    whole["demonstrations"] = frames.demonstrations
    (scratch / RECORD_FILE).write_text(json.dumps(whole, indent=1) + "\n")
    if directory.exists():
        old = directory.with_name(f"{directory.name}.{os.getpid()}.old")
        directory.rename(old)
        scratch.rename(directory)
        shutil.rmtree(old)
    else:
        scratch.rename(directory)


def write_tokens(network: Network, frames: Frames, directory: Path) -> None:
    """OpenVLA's layout in bf16."""
    tensors = {n: t.detach().cpu().to(torch.bfloat16) for n, t in network.tensors().items()}
    scale = np.array(frames.info.scale)
    stats = norm_stats(frames.info.environment, scale, len(frames), frames.demonstrations)
    save_checkpoint(directory, network.config, tensors, stats, write_tokenizer)
