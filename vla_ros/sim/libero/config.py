"""LIBERO's own configuration file, without which its first import asks questions.

It is `$LIBERO_CONFIG_PATH/config.yaml`, else `~/.libero/config.yaml`, and must name five
folders. LIBERO ignores its entry `assets`; we do not.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

from vla_ros.sim.env import SimError

FOLDER_VARIABLE: Final = "LIBERO_CONFIG_PATH"


def config_file(environ: Mapping[str, str] = os.environ) -> Path:
    """Where LIBERO looks for its configuration."""
    folder = environ.get(FOLDER_VARIABLE)
    return (Path(folder) if folder else Path.home() / ".libero") / "config.yaml"


def read_config(path: Path) -> dict[str, str]:
    """What the file says; nothing where it is missing. SimError: it cannot be read."""
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SimError(f"cannot read {path}: {' '.join(str(error).split())}") from error
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise SimError(f"{path} is not LIBERO's configuration; remove it")
    return {str(key): str(value) for key, value in found.items()}


def write_config(path: Path, package: Path, assets: Path) -> None:
    """Write every entry LIBERO wants. What a user changed is kept, but for the assets."""
    wanted = {
        "benchmark_root": str(package),
        "bddl_files": str(package / "bddl_files"),
        "init_states": str(package / "init_files"),
        "datasets": str(package.parent / "datasets"),
    }
    kept = {key: value for key, value in read_config(path).items() if _still_true(value)}
    text = yaml.safe_dump({**wanted, **kept, "assets": str(assets)}, sort_keys=True)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            return
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            file.write(text)
        os.replace(file.name, path)
    except OSError as error:
        with contextlib.suppress(OSError, UnboundLocalError):
            os.unlink(file.name)
        raise SimError(f"cannot write {path}: {error}") from error


def _still_true(folder: str) -> bool:
    """A folder of an environment that is gone is no wish of the user's."""
    return Path(folder).is_dir()
