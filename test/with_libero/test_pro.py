"""LIBERO-PRO's suites run in the installed benchmark: its tasks, states, and things of its own.

Its own files are not here, so one is made of the benchmark's: a task of libero_object with another
instruction, its initial states in the other order and one thing in another's place.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from vla_ros.sim.env import SimError
from vla_ros.sim.factory import EnvConfig
from vla_ros.sim.libero import assets
from vla_ros.sim.libero.environment import load_states
from vla_ros.sim.libero.files import PRO_FOLDERS, PRO_VARIABLE
from vla_ros.sim.libero.suites import find_package, tasks_of
from vla_ros.sim.process import SimProcess

SWAP, OBJECT = "libero_object_swap", "libero_object_object"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All tasks of two suites; in `_object` the soup is a bigger one."""
    package, folder = find_package(), tmp_path_factory.mktemp("pro")
    for suite in (SWAP, OBJECT):
        for kind in PRO_FOLDERS:
            (folder / kind / suite).mkdir(parents=True)
        for task in tasks_of("libero_object", package):
            text = task.bddl_file(package).read_text()
            if suite == OBJECT:
                text = text.replace("alphabet_soup", "bigger_alphabet_soup")
            (folder / "bddl_files" / suite / f"{task.name}.bddl").write_text(text)
            states = load_states(task.states_file(package))[::-1]
            np.savez(folder / "init_files" / suite / f"{task.name}.pruned_init.npz", states=states)
    return folder


@pytest.fixture(scope="module")
def base() -> dict[str, tuple[float, ...]]:
    """Where things are in the benchmark's last state, the first of those made here."""
    return poses_of("libero_object", 49)


@pytest.fixture
def given(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PRO_VARIABLE, str(made))


def poses_of(suite: str, state: int) -> dict[str, tuple[float, ...]]:
    env = SimProcess(EnvConfig("libero", 64, False, suite))
    try:
        return {n: p.position for n, p in env.reset("0", state, render=False).poses.items()}
    finally:
        env.close()


@pytest.mark.long
def test_a_perturbed_suite_begins_in_its_own_states(
    given: None, base: dict[str, tuple[float, ...]]
) -> None:
    env = SimProcess(EnvConfig("libero", 64, False, SWAP))
    try:
        task = env.spec.task("0")
        assert task.instruction == "Pick the alphabet soup and place it in the basket"
        assert "LIBERO-PRO" in env.spec.world
        seen = env.reset("0", 0).poses
    finally:
        env.close()
    assert seen.keys() == base.keys()
    for name, pose in seen.items():
        assert pose.position == pytest.approx(base[name], abs=1e-6), name


def test_a_thing_without_a_model_is_refused_by_name(given: None) -> None:
    with pytest.raises(SimError, match=r"libero_object_object/0: .* no model of bigger_alphabet_"):
        poses_of(OBJECT, 0)


def test_a_thing_of_its_own_is_made_like_the_benchmarks(
    given: None,
    base: dict[str, tuple[float, ...]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a model of that name beside the others it stands where the soup stood."""
    own = tmp_path / "assets"
    shutil.copytree(assets.find_assets(find_package()), own, symlinks=True)
    things = own / "stable_hope_objects"
    shutil.copytree(things / "alphabet_soup", things / "bigger_alphabet_soup")
    model = things / "bigger_alphabet_soup" / "alphabet_soup.xml"
    model.rename(model.with_name("bigger_alphabet_soup.xml"))
    monkeypatch.setenv(assets.VARIABLE, str(own))
    found = poses_of(OBJECT, 0)
    assert found["bigger_alphabet_soup_1"] == pytest.approx(base["alphabet_soup_1"], abs=1e-6)
    assert found["basket_1"] == pytest.approx(base["basket_1"], abs=1e-6)


def test_everything_libero_pro_brings_has_a_class() -> None:
    """And none of those was there before: a LIBERO that knows them needs no help of ours."""
    program = (
        "from vla_ros.sim.libero import assets, pro, suites\n"
        "package = suites.find_package()\n"
        "seen = []\n"
        "kept, pro.register = pro.register, lambda *tables: seen.append(tables)\n"
        "assets.load(package, assets.find_assets(package))\n"
        "classes, changing = seen[0]\n"
        "assert not set(pro.LIKE) & set(classes), 'known'\n"
        "assert set(pro.LIKE.values()) <= set(classes), 'like nothing'\n"
        "kept(classes, changing)\n"
        "assert set(pro.LIKE) <= set(classes) and 'yellow_stove' in changing\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", program], env=environ, check=True)
