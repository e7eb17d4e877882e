"""The families of policies, and which of them a checkpoint belongs to.

A family's module is imported when a checkpoint is its own.
Other distributions bring families by entry points of the group ``vla_ros.families``: their kind,
and ``module:NAME`` of a :class:`~vla_ros.engine.families.base.Family`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from vla_ros.core.extensions import FAMILIES as GROUP
from vla_ros.core.extensions import extensions, imported
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.families.base import Family, LoadOptions
from vla_ros.engine.families.random import PREFIX
from vla_ros.engine.io.files import read_json
from vla_ros.engine.io.hub import resolve
from vla_ros.engine.models.base import PolicyConfig

#: kind -> its name in config.json (``type``, ``model_type`` or ``name``), and the family.
#: A new one is a row here, and its kind in :data:`vla_ros.engine.io.foreign.FLOW_KINDS`.
FAMILIES: dict[str, tuple[str, str]] = {
    "pi0": ("pi0", "vla_ros.engine.families.lerobot:PI0"),
    "pi05": ("pi05", "vla_ros.engine.families.lerobot:PI0"),
    "smolvla": ("smolvla", "vla_ros.engine.families.lerobot:SMOLVLA"),
    "pi0_fast": ("pi0_fast", "vla_ros.engine.families.lerobot:PI0_FAST"),
    "evo1": ("evo1", "vla_ros.engine.families.evo1:FAMILY"),
    "act": ("act", "vla_ros.engine.families.act:FAMILY"),
    "groot-n1.7": ("Gr00tN1d7", "vla_ros.engine.families.groot:N17_FAMILY"),
    "groot-n1.6": ("Gr00tN1d6", "vla_ros.engine.families.groot:N16_FAMILY"),
    "groot-n1.5": ("gr00t_n1_5", "vla_ros.engine.families.groot:N15_FAMILY"),
    "turbovla": ("TurboVLA", "vla_ros.engine.families.turbovla:FAMILY"),
    "tokens": ("openvla", "vla_ros.engine.families.openvla:FAMILY"),
}


@cache
def _imported(path: str) -> Family[Any]:
    module, _, name = path.partition(":")
    family: Family[Any] = getattr(import_module(module), name)
    return family


def _others() -> dict[str, Family[Any]]:
    """Kind -> family of other distributions."""
    return {kind: imported(point) for kind, point in extensions(GROUP).items()}


def every_family() -> tuple[Family[Any], ...]:
    """All families, imported: for lists and tests."""
    own = (_imported(path) for _, path in FAMILIES.values())
    return tuple(dict.fromkeys((*own, *_others().values())))


def _asked(directory: Path) -> Iterator[Family[Any]]:
    """The families that may own a folder: that of the kind that its config.json names, and those
    of other distributions."""
    path, named = directory / "config.json", set[str]()
    if path.is_file():
        try:
            raw = read_json(path)
            named = {str(raw.get(key)) for key in ("type", "model_type", "name")}
        except CheckpointError:  # damaged: nobody's
            pass
    yield from (_imported(path) for name, path in FAMILIES.values() if name in named)
    yield from _others().values()


def source_of(checkpoint: str) -> Path | str:
    """The source of a policy: a folder, or ``random:<preset>`` as it is. CheckpointError: there is
    no such folder."""
    return checkpoint if checkpoint.startswith(PREFIX) else resolve(checkpoint)


def family_of(source: Path | str) -> Family[Any]:
    """The family of a source, which is OpenVLA's where it is no other's: its loader names what is
    wrong."""
    if isinstance(source, Path):
        mine = (family for family in _asked(source) if family.owns(source))
    else:
        preset = source.removeprefix(PREFIX)
        row = FAMILIES.get(preset.removesuffix("-small"))
        asked = _others().values() if row is None else (_imported(row[1]),)
        mine = (family for family in asked if preset in family.presets)
    return next(mine, family_of_kind("tokens"))


def group_of(checkpoint: str) -> str:
    """The group of options that a checkpoint takes: TOKENS, FLOW or FAST of
    :mod:`vla_ros.engine.options`. CheckpointError as of :func:`source_of`."""
    return family_of(source_of(checkpoint)).group


def family_of_kind(kind: str) -> Family[Any]:
    """The family whose configs are of this ``kind``. KeyError: there is none."""
    row = FAMILIES.get(kind)
    return _imported(row[1]) if row is not None else _others()[kind]


def write_folder(directory: Path, config: PolicyConfig, seed: int) -> None:
    """Write a folder of ``config`` in its authors' own layout, with random weights."""
    family_of_kind(config.kind).write(directory, config, seed)


def config_of(source: Path | str, options: LoadOptions = LoadOptions()) -> PolicyConfig:
    """The config of a policy; reads no weights. CheckpointError, ValueError in one line."""
    family = family_of(source)
    family.refuse(options)
    config: PolicyConfig = family.config(source, options)
    return config


def all_presets() -> dict[str, PolicyConfig]:
    """Every preset of random weights by its name, without ``random:``."""
    return {name: config for family in every_family() for name, config in family.presets.items()}
