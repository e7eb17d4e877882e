"""What must be known about a VLA checkpoint before it runs somewhere. Imports torch when asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla_ros.policies.base import PolicyRefused

Scale = tuple[float, float, float, float, float, float]

METRES: Scale = (1.0,) * 6
#: No arm moves further in one control step, so larger bounds are units of a controller.
_FARTHEST = 0.2  # m


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """``sha256`` "" for random weights, ``images`` cameras it needs (1, or 2 with the wrist),
    ``action_scale`` what one unit of its first six numbers is, in m and rad."""

    sha256: str
    images: int
    action_scale: Scale


def checkpoint_facts(
    name: str, unnorm_key: str = "", position: float = 0.05, rotation: float = 0.5
) -> CheckpointFacts:
    """Read them from a directory, a hub id or ``random:<preset>``, without the weights' load.

    ``position`` [m] and ``rotation`` [rad]: one unit of the controller of the robot or
    simulation, for a checkpoint that speaks such units. PolicyRefused: in one line.
    """
    from vla_ros.engine.checkpoint import fingerprint, resolve
    from vla_ros.engine.config import read_config
    from vla_ros.engine.random_checkpoint import PREFIX, PRESETS, norm_stats

    units: Scale = (position,) * 3 + (rotation,) * 3
    if name.startswith(PREFIX):
        preset = name.removeprefix(PREFIX)
        if preset not in PRESETS:
            known = ", ".join(PREFIX + one for one in PRESETS)
            raise PolicyRefused(f"{name!r} is unknown; there are {known}")
        scale = action_scale(norm_stats(), unnorm_key, units)
        return CheckpointFacts("", PRESETS[preset].images, scale)
    try:
        directory = resolve(name)
        config, raw = read_config(directory)
        stats = _statistics(directory) or raw.get("norm_stats", {})
        scale = action_scale(stats, unnorm_key, units)
        return CheckpointFacts(fingerprint(directory), config.images, scale)
    except (ValueError, OSError) as error:
        raise PolicyRefused(str(error)) from error


def action_scale(norm_stats: Mapping[str, Any], unnorm_key: str, units: Scale) -> Scale:
    """(1, ...) where the statistics are in m and rad, ``units`` where they are a controller's.

    Told by the bounds of the displacement: no arm moves 20 cm in one control step, and a
    controller's units reach to 1.
    """
    if unnorm_key and unnorm_key not in norm_stats:
        known = ", ".join(sorted(norm_stats)) or "none"
        raise PolicyRefused(f"unnorm_key {unnorm_key!r} is unknown; the checkpoint has: {known}")
    key = unnorm_key or next(iter(norm_stats), "")
    action = norm_stats.get(key, {}).get("action", {})
    bounds = [*action.get("q01", ())[:3], *action.get("q99", ())[:3]]
    return METRES if max(map(abs, bounds), default=1.0) <= _FARTHEST else units


def _statistics(directory: Path) -> Mapping[str, Any]:
    path = directory / "dataset_statistics.json"
    return json.loads(path.read_text()) if path.is_file() else {}  # type: ignore[no-any-return]
