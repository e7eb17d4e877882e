"""Where LIBERO's meshes and textures are. Nothing is downloaded here and no question asked.

They are looked for in VLA_ROS_LIBERO_ASSETS (a folder, or an archive of one), in the folder
that `vla-ros libero setup` wrote into LIBERO's config.yaml, inside the installed package,
and in ~/.cache/libero/assets, where LIBERO itself puts what it gets from the hub.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from vla_ros.sim.env import SimError
from vla_ros.sim.libero.config import config_file, read_config

VARIABLE: Final = "VLA_ROS_LIBERO_ASSETS"
PLACEHOLDER_NOTE: Final = "LIBERO physics, placeholder visuals"
HOW: Final = "run `vla-ros libero setup --assets hub` (or --assets FOLDER)"

_FOLDERS: Final = (
    "articulated_objects",
    "scenes",
    "stable_hope_objects",
    "stable_scanned_objects",
    "textures",
    "turbosquid_objects",
)
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


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where archives are unpacked and Numba keeps what it compiled."""
    base = environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "vla_ros" / "libero"


def hub_folder() -> Path:
    """Where LIBERO looks for what came from the hub."""
    return Path.home() / ".cache" / "libero" / "assets"


def find_assets(package: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of assets to use. SimError says what to do where there is none."""
    given = environ.get(VARIABLE)
    if given:
        try:
            return usable_folder(Path(given), environ)
        except SimError as error:
            raise SimError(f"{VARIABLE}: {error}") from None
    for folder in _usual_places(package, environ):
        if is_assets(folder):
            return folder
    raise SimError(f"LIBERO's assets (meshes, textures) are missing: {HOW}")


def _usual_places(package: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    configured = read_config(config_file(environ)).get("assets")
    if configured:
        yield Path(configured)
    yield package / "assets"
    yield hub_folder()


def is_assets(folder: Path) -> bool:
    """Whether a folder looks like LIBERO's assets."""
    return all((folder / name).is_dir() for name in _FOLDERS)


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
        missing = ", ".join(name for name in _FOLDERS if not (path / name).is_dir())
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


def placeholder_note(assets: Path) -> str:
    """What every picture and figure made with these assets must be labelled with, or ''."""
    for name, begins in _PLACEHOLDERS.items():
        path = assets / name
        if not path.is_file():
            continue
        if hashlib.sha256(path.read_bytes()).hexdigest().startswith(begins):
            return PLACEHOLDER_NOTE
    return ""
