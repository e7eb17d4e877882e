"""What a checkpoint on disk is, and whether it can be loaded, in the memory of one tensor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from vla_ros.engine.checkpoints.openvla import fingerprint, inspect_checkpoint, resolve
from vla_ros.engine.checkpoints.openvla import refuse_formats as refuse_tokens
from vla_ros.engine.checkpoints.random import PREFIX, PRESETS, parameters, random_config
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.flow.accepting import refuse_formats as refuse_flow
from vla_ros.engine.flow.families import all_presets, config_of, family_of, flow_source, is_flow
from vla_ros.engine.flow.family import Choice
from vla_ros.engine.quantised.formats import parse_formats

TOKENS = "tokens"


@dataclass(frozen=True, slots=True)
class Inspection:
    """``kind`` is "tokens" or the type of a flow policy; ``statistics`` the data sets whose
    actions its tokens may stand for, none of a flow policy, which has its own."""

    directory: Path
    kind: str
    parameters: int
    statistics: tuple[str, ...]


def inspect(name: str, tokenizer: str = "") -> Inspection:
    """Find all that loading would find wrong: every tensor there, of its shape, finite.

    ``tokenizer``: the folder of the option of that name. CheckpointError in one line.
    """
    directory = resolve(name)
    if is_flow(directory):
        config, parameters = family_of(directory).inspect(
            directory, Choice(tokenizer=tokenizer or None)
        )
        return Inspection(directory, config.kind, parameters, ())
    layout = inspect_checkpoint(name)
    return Inspection(layout.directory, TOKENS, layout.parameters, tuple(layout.norm_stats))


def refuse_weights(name: str, weights: str, device: str, dtype: str, rtc: str = "") -> None:
    """CheckpointError, or ValueError, in one line where a checkpoint's weights cannot be in these
    formats (:mod:`vla_ros.engine.quantised.formats`) there; reads no weights."""
    formats = parse_formats(weights)
    if not formats:
        return
    place, kind = torch.device(device), getattr(torch, dtype)
    source = flow_source(name)
    if source is not None:
        refuse_flow(source, formats, place, kind, rtc)
    else:
        refuse_tokens(name, formats, place, kind)


def inspect_random(name: str) -> tuple[str, int]:
    """The kind and the number of parameters that ``random:<preset>`` will have. Nothing is made.

    CheckpointError in one line, with what there is.
    """
    preset = name.removeprefix(PREFIX)
    if (config := random_config(name)) is not None:
        return TOKENS, parameters(config)
    if preset in all_presets():
        family, found = family_of(name), config_of(name)
        return found.kind, family.parameters(found)
    known = f", {PREFIX}".join(sorted({*PRESETS, *all_presets()}))
    raise CheckpointError(f"{name!r} is unknown; there are {PREFIX}{known}")


def sha256_on_disk(name: str) -> str:
    """The ``checkpoint_sha256`` that an engine of ``name`` will have, without loading it."""
    directory = resolve(name)
    if is_flow(directory):
        return family_of(directory).sha256(directory)
    return fingerprint(directory)
