"""Folders of LIBERO's meshes and textures. Nothing is downloaded here and no question asked.

They are looked for in VLA_ROS_LIBERO_ASSETS (a folder, or an archive of one), in the folder
that `vla-ros libero setup` wrote into LIBERO's config.yaml, inside the installed package,
and in ~/.cache/libero/assets, where LIBERO itself puts what it gets from the hub.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import os
import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import yaml

from vla_ros.core.files import BadFile, read_text, sha256_of
from vla_ros.core.yaml_files import read_yaml
from vla_ros.sim.env import SimError
from vla_ros.sim.gl import NO_RENDERER, NoRenderer, choose_renderer
from vla_ros.sim.libero import pro
from vla_ros.sim.libero.files import (
    ASSETS_FOLDERS,
    cache_folder,
    digest_of,
    find_pro,
    is_assets,
)
from vla_ros.sim.libero.suites import NOT_INSTALLED, PRO_SUITES, LiberoTask
from vla_ros.sim.versions import libero_world, mujoco_note

# LIBERO's own configuration file, without which its first import asks questions.
#
# It is `$LIBERO_CONFIG_PATH/config.yaml`, else `~/.libero/config.yaml`, and must name five
# folders. LIBERO ignores its entry `assets`; we do not.


FOLDER_VARIABLE: Final = "LIBERO_CONFIG_PATH"


def config_file(environ: Mapping[str, str] = os.environ) -> Path:
    """LIBERO's configuration file."""
    folder = environ.get(FOLDER_VARIABLE)
    return (Path(folder) if folder else Path.home() / ".libero") / "config.yaml"


def read_config(path: Path) -> dict[str, str]:
    """Entries of the file; none where it is missing. SimError: it cannot be read."""
    try:
        found = read_yaml(path)
    except FileNotFoundError:
        return {}
    except (OSError, BadFile) as error:
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
        if path.is_file() and read_text(path) == text:
            return
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            file.write(text)
        os.replace(file.name, path)
    except OSError as error:
        with contextlib.suppress(OSError, UnboundLocalError):
            os.unlink(file.name)
        raise SimError(f"cannot write {path}: {error}") from error


def _still_true(folder: str) -> bool:
    """False for a folder of an environment that is gone: the user did not set it."""
    return Path(folder).is_dir()


VARIABLE: Final = "VLA_ROS_LIBERO_ASSETS"
PLACEHOLDER_NOTE: Final = "LIBERO physics, placeholder visuals"
HOW: Final = "run `vla-ros libero setup --assets pypi` (or --assets FOLDER)"

#: Textures that stand in for the benchmark's own in a set of assets made for tests:
#: path → beginning of the file's SHA-256.
_PLACEHOLDERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "scenes/wall_decoration/wall_decoration_texture.png": "7bba141a03f08385",
        "stable_scanned_objects/akita_black_bowl/texture.png": "e8f761899813f4c4",
        "stable_scanned_objects/basket/texture.png": "ab16c2bcd9d3b28a",
        "stable_scanned_objects/plate/texture.png": "997d27d2911914fb",
        "turbosquid_objects/desk_caddy/desk_caddy_texture.png": "a5e1a98c60521815",
        "turbosquid_objects/porcelain_mug/porcelain_mug_texture.png": "affc9b4275130ca1",
        "turbosquid_objects/red_coffee_mug/red_coffee_mug_texture.png": "4ccc49876ae32269",
        "turbosquid_objects/white_yellow_mug/white_yellow_mug_texture.png": "377f41bbc31be786",
    }
)


def hub_folder() -> Path:
    """LIBERO's folder of assets from the hub."""
    return Path.home() / ".cache" / "libero" / "assets"


def find_assets(package: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of assets to use. SimError, with what to do: there is none."""
    given = environ.get(VARIABLE)
    if given:
        try:
            return usable_folder(Path(given), environ)
        except SimError as error:
            raise SimError(f"{VARIABLE}: {error}") from None
    for folder in _usual_folders(package, environ):
        if is_assets(folder):
            return folder
    raise SimError(f"LIBERO's assets (meshes, textures) are missing: {HOW}")


def _usual_folders(package: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    configured = read_config(config_file(environ)).get("assets")
    if configured:
        yield Path(configured)
    yield package / "assets"
    yield hub_folder()


def usable_folder(path: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """``path`` itself, or the folder that the archive ``path`` was unpacked into.

    SimError: there is nothing, or something else.
    """
    path = path.expanduser().absolute()
    if path.is_file():
        return unpacked(path, cache_folder(environ))
    if not path.is_dir():
        raise SimError(f"{path} is not there")
    if not is_assets(path):
        missing = ", ".join(name for name in ASSETS_FOLDERS if not (path / name).is_dir())
        raise SimError(f"{path} is no folder of LIBERO assets: it lacks {missing}")
    return path


def unpacked(archive: Path, cache: Path) -> Path:
    """The contents of a tar archive in a folder of ``cache``, unpacked once.

    Several processes may do so at the same time: each unpacks into a folder of its own, and
    the first one's is kept.
    """
    about = archive.stat()
    name = hashlib.sha256(f"{archive}\0{about.st_size}\0{about.st_mtime_ns}".encode()).hexdigest()
    target = cache / f"assets-{name[:12]}"
    if is_assets(target):
        return target
    cache.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=cache))
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(work, filter="data")  # nothing outside of it, no devices, no links out
        if not is_assets(work):
            raise SimError(f"{archive} holds no LIBERO assets at its top")
        try:
            work.rename(target)
        except OSError:
            if not is_assets(target):  # else another process was first
                raise
    except (OSError, tarfile.TarError, EOFError) as error:
        raise SimError(f"cannot unpack {archive}: {error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def world_versions(assets: Path, suite: str = "") -> str:
    """Names and versions of what a suite is played with, for files and pages."""
    more = f", {pro.pro_world(find_pro())}" if suite in PRO_SUITES else ""
    return libero_world(digest_of(assets)) + more


def world_note(assets: Path) -> str:
    """Label of all images and figures of this installation, or ''."""
    return "; ".join(filter(None, (mujoco_note(), placeholder_note(assets))))


def placeholder_note(assets: Path) -> str:
    """Label of all images and figures made with these assets, or ''."""
    for name, begins in _PLACEHOLDERS.items():
        path = assets / name
        if not path.is_file():
            continue
        if sha256_of(path).startswith(begins):
            return PLACEHOLDER_NOTE
    return ""


# Installed packages of LIBERO, and objects of tasks that a folder of assets lacks.


#: what is installed without its dependencies (requirements/libero.txt) → its import
BENCHMARK: Final = {"hf-libero": "libero", "robosuite": "robosuite", "bddl": "bddl"}
#: what those import, as the extra `libero` of setup.py has it → its import
DEPENDENCIES: Final = {
    "mujoco": "mujoco",
    "scipy": "scipy",
    "numba": "numba",
    "opencv-python-headless": "cv2",
    "easydict": "easydict",
    "cloudpickle": "cloudpickle",
    "gymnasium": "gymnasium",
    "future": "future",
    "termcolor": "termcolor",
    "matplotlib": "matplotlib",
    "tqdm": "tqdm",
}
#: arenas that a task's file lists among its fixtures
_ARENAS: Final = {
    "table",
    "kitchen_table",
    "living_room_table",
    "study_table",
    "coffee_table",
    "floor",
}
_SECTION: Final = re.compile(r"\(:(?:objects|fixtures)\b(.*?)\)", re.DOTALL)
_CATEGORY: Final = re.compile(r"-\s+([^\s()]+)")


def missing_packages() -> tuple[str, ...]:
    """Packages that LIBERO imports and that are not installed, by their names for pip."""
    wanted = {**BENCHMARK, **DEPENDENCIES}
    return tuple(name for name, module in wanted.items() if not _found(module))


def _found(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def categories(bddl: Path) -> frozenset[str]:
    """The kinds of object a task's BDDL file names. SimError: the file cannot be read."""
    try:
        text = read_text(bddl)
    except (OSError, BadFile) as error:
        raise SimError(f"cannot read {bddl}: {error}") from error
    named = {kind for section in _SECTION.findall(text) for kind in _CATEGORY.findall(section)}
    return frozenset(named - _ARENAS)


def missing_objects(tasks: Iterable[LiberoTask], package: Path, assets: Path) -> tuple[str, ...]:
    """Kinds of object that the tasks need and the assets have no model of, sorted."""
    there = _models(assets)
    needed = {kind for task in tasks for kind in categories(task.bddl_file(package))}
    return tuple(sorted(needed - there))


@functools.cache
def _models(assets: Path) -> frozenset[str]:
    return frozenset(path.stem for path in assets.rglob("*.xml"))


# Importing LIBERO without its habits: no question, no download, no file in /tmp, no torch.
#
# What LIBERO and robosuite read from the environment and from their own modules is set before
# they are imported, so :func:`load` must come first in a process.


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
        known = importlib.import_module("libero.libero.envs.base_object")
    except ModuleNotFoundError as error:
        raise SimError(f"{NOT_INSTALLED} ({error})") from error
    except (AttributeError, ImportError, OSError) as error:  # the OpenGL library is not there
        raise NoRenderer(f"MUJOCO_GL={backend}: {NO_RENDERER} ({error})") from error
    pro.register(known.OBJECTS_DICT, known.VISUAL_CHANGE_OBJECTS_DICT)
    return wrapper.OffScreenRenderEnv


def _quiet_robosuite() -> None:
    """Set its logging before it does: it would log to one file in /tmp, which only the first user
    of a machine can open."""
    if "robosuite" in sys.modules:
        return
    found = importlib.util.find_spec("robosuite")
    for folder in (found.submodule_search_locations or ()) if found else ():
        name = "robosuite.macros"
        spec = importlib.util.spec_from_file_location(name, Path(folder) / "macros.py")
        if spec is None or spec.loader is None:
            continue
        macros = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(macros)
        macros.FILE_LOGGING_LEVEL = None  # type: ignore[attr-defined]
        macros.CONSOLE_LOGGING_LEVEL = "ERROR"  # type: ignore[attr-defined]
        sys.modules[name] = macros
        return
