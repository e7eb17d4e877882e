"""LIBERO for tests: a package of files without its code, and the real one where its assets are."""

from __future__ import annotations

import importlib.util
import io
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np

from vla_ros.sim.libero.assets import VARIABLE

ROOT = Path(__file__).resolve().parents[2]
ARCHIVE = ROOT.parent / "shared" / "libero_assets_subset.tar.xz"

BDDL = """(define (problem LIBERO_Floor_Manipulation)
  (:language Pick the milk and place it in the basket)
  (:fixtures floor - floor)
  (:objects
    milk_1 - milk
    butter_1 butter_2 - butter
    basket_1 - basket
  )
  (:obj_of_interest milk_1 basket_1)
  (:goal (And (In milk_1 basket_1_contain_region)))
)"""


def why_not() -> str:
    """Why the tests of the real benchmark cannot run here, or ''."""
    if importlib.util.find_spec("libero") is None or importlib.util.find_spec("robosuite") is None:
        return "LIBERO is not installed: make libero"
    if not (os.environ.get(VARIABLE) or ARCHIVE.is_file()):
        return f"LIBERO's assets are not here: set {VARIABLE}, or put them at ../shared"
    return ""


def make_package(folder: Path, names: dict[str, list[str]]) -> Path:
    """A folder libero/libero with the list of tasks, and files for the first of each suite."""
    package = folder / "libero" / "libero"
    (package / "benchmark").mkdir(parents=True)
    text = f"libero_task_map = {names!r}\n"
    (package / "benchmark" / "libero_suite_task_map.py").write_text(text)
    for suite, of_it in names.items():
        for kind in ("bddl_files", "init_files"):
            (package / kind / suite).mkdir(parents=True)
        if of_it:
            (package / "bddl_files" / suite / f"{of_it[0]}.bddl").write_text(BDDL)
    return package


def make_pro(folder: Path, suite: str, names: list[str], sentence: str) -> Path:
    """A folder of LIBERO-PRO's files with the tasks of one suite, STATES for each."""
    for name in names:
        bddl = folder / "bddl_files" / suite / f"{name}.bddl"
        bddl.parent.mkdir(parents=True, exist_ok=True)
        bddl.write_text(BDDL.replace("Pick the milk and place it in the basket", sentence))
        packed = folder / "init_files" / suite / f"{name}.pruned_init.npz"
        packed.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(packed, states=STATES)
    return folder


def make_assets(folder: Path, models: tuple[str, ...] = ()) -> Path:
    """A folder that looks like LIBERO's assets, with empty model files."""
    for name in ("articulated_objects", "scenes", "stable_hope_objects", "textures"):
        (folder / name).mkdir(parents=True)
    for name in ("stable_scanned_objects", "turbosquid_objects"):
        (folder / name).mkdir()
    for model in models:
        (folder / "stable_hope_objects" / model).mkdir()
        (folder / "stable_hope_objects" / model / f"{model}.xml").write_text("<mujoco/>")
    return folder


def states_file(path: Path, content: object, protocol: int = 2) -> Path:
    """What torch.save would write: a pickle in a zip archive. Bytes are taken as the pickle."""
    data = content if isinstance(content, bytes) else pickled(content, protocol)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", data)
        archive.writestr("archive/version", "3")
    return path


def pickled(content: object, protocol: int = 2) -> bytes:
    """As NumPy 1, which wrote LIBERO's files, named its modules."""
    out = io.BytesIO()
    pickle.Pickler(out, protocol).dump(content)
    return out.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


STATES = np.arange(12.0).reshape(3, 4)
