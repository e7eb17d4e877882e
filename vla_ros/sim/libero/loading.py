"""Importing LIBERO without its habits: no question, no download, no file in /tmp, no torch.

What LIBERO and robosuite read from the environment and from their own modules is set before
they are imported, so :func:`load` must come first in a process.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from vla_ros.sim.env import SimError
from vla_ros.sim.gl import NO_RENDERER, NoRenderer, choose_renderer
from vla_ros.sim.libero.assets import cache_folder
from vla_ros.sim.libero.config import FOLDER_VARIABLE, config_file, write_config
from vla_ros.sim.libero.suites import NOT_INSTALLED


def load(package: Path, assets: Path) -> Any:
    """LIBERO's class OffScreenRenderEnv, which will use these assets.

    SimError: something is not installed. NoRenderer: there is no OpenGL.
    """
    backend = choose_renderer()
    cache = cache_folder()
    os.environ.setdefault("NUMBA_CACHE_DIR", str(cache / "numba"))
    if not config_file().is_file():  # its first import would ask where things are
        os.environ[FOLDER_VARIABLE] = str(cache)
        write_config(config_file(), package, assets)
    try:
        _quiet_robosuite()
        libero = importlib.import_module("libero.libero")
        libero._assets_path_cache = str(assets)  # type: ignore[attr-defined]
        wrapper = importlib.import_module("libero.libero.envs.env_wrapper")
    except ModuleNotFoundError as error:
        raise SimError(f"{NOT_INSTALLED} ({error})") from error
    except (AttributeError, ImportError, OSError) as error:  # the OpenGL library is not there
        raise NoRenderer(f"MUJOCO_GL={backend}: {NO_RENDERER} ({error})") from error
    return wrapper.OffScreenRenderEnv


def _quiet_robosuite() -> None:
    """Its settings, taken before it reads them: it would log to one file in /tmp, which only
    the first user of a machine can open."""
    if "robosuite" in sys.modules:
        return
    found = importlib.util.find_spec("robosuite")
    for place in (found.submodule_search_locations or ()) if found else ():
        name = "robosuite.macros"
        spec = importlib.util.spec_from_file_location(name, Path(place) / "macros.py")
        if spec is None or spec.loader is None:
            continue
        macros = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(macros)
        macros.FILE_LOGGING_LEVEL = None  # type: ignore[attr-defined]
        macros.CONSOLE_LOGGING_LEVEL = "ERROR"  # type: ignore[attr-defined]
        sys.modules[name] = macros
        return
