"""The families of policies but OpenVLA's that there are, and whose a checkpoint is.

All but pi0-FAST are flow policies.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.families.base import Family, LoadOptions
from vla_ros.engine.families.evo1 import Evo1Family
from vla_ros.engine.families.groot import FAMILIES as GROOTS
from vla_ros.engine.families.lerobot import LerobotFamily
from vla_ros.engine.families.random import PREFIX
from vla_ros.engine.families.turbovla import TurboVLAFamily
from vla_ros.engine.io.hub import resolve
from vla_ros.engine.models.base import PolicyConfig

#: Asked in this order. A new family is a row here and a kind in :mod:`vla_ros.engine.io.foreign`.
FAMILIES: tuple[Family[Any], ...] = (
    LerobotFamily("pi0", "pi05"),
    LerobotFamily("smolvla"),
    LerobotFamily("pi0_fast"),
    Evo1Family(),
    *GROOTS,
    TurboVLAFamily(),
)


def is_flow(directory: Path) -> bool:
    """Whether a folder holds a flow policy of any family."""
    return any(family.owns(directory) for family in FAMILIES)


def flow_source(checkpoint: str) -> Path | str | None:
    """What to load where ``checkpoint`` is a flow policy: a folder or ``random:<preset>``.

    None: it is neither. CheckpointError: there is no such folder.
    """
    if checkpoint.startswith(PREFIX):
        return checkpoint if checkpoint.removeprefix(PREFIX) in all_presets() else None
    directory = resolve(checkpoint)
    return directory if is_flow(directory) else None


def family_of(source: Path | str) -> Family[Any]:
    """Whose it is what :func:`flow_source` found. CheckpointError: nobody's."""
    for family in FAMILIES:
        if isinstance(source, str) and source.removeprefix(PREFIX) in family.presets:
            return family
        if isinstance(source, Path) and family.owns(source):
            return family
    if isinstance(source, str):
        known = f", {PREFIX}".join(all_presets())
        raise CheckpointError(f"{source!r} is unknown; there are {PREFIX}{known}")
    raise CheckpointError(f"{source} is no flow policy")


def config_of(source: Path | str, options: LoadOptions = LoadOptions()) -> PolicyConfig:
    """What it wants of a robot; reads no weights. CheckpointError, ValueError in one line."""
    family = family_of(source)
    family.refuse(options)
    config: PolicyConfig = family.config(source, options)
    return config


def all_presets() -> dict[str, PolicyConfig]:
    """Every preset of random weights by its name, without ``random:``."""
    return {name: config for family in FAMILIES for name, config in family.presets.items()}
