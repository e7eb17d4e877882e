"""LIBERO's tasks: their names, instructions and limits, read from the package's files unrun."""

import importlib.util
import sys

import pytest

from support.libero import make_package, why_not
from vla_ros.sim.env import EnvSpec, SimError, UnknownTask
from vla_ros.sim.factory import EnvConfig
from vla_ros.sim.libero import suites
from vla_ros.sim.libero.suites import STEP_LIMITS, SUITES, LiberoTask, find_package, tasks_of

NAMES = {suite: [f"{suite}_first", f"{suite}_second"] for suite in SUITES}


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("pick_up_the_milk_and_place_it_in_the_basket",) * 2,
        ("KITCHEN_SCENE3_turn_on_the_stove_and_put_the_moka_pot_on_it",) * 2,
        ("KITCHEN_SCENE10_close_the_top_drawer_of_the_cabinet",) * 2,
        ("LIVING_ROOM_SCENE2_put_both_the_soup_in_the_basket",) * 2,
    ],
)
def test_the_sentence_is_that_of_the_benchmark(name, sentence):
    """As libero.libero.benchmark.grab_language_from_filename finds it in the file's name."""
    text = sentence
    if text[0].isupper():
        text = text[text.find("SCENE") + (8 if "SCENE10" in text else 7) :]
    assert LiberoTask("libero_90", 0, name).instruction == text.replace("_", " ")


def test_tasks_of_a_suite_and_of_all(tmp_path):
    package = make_package(tmp_path, NAMES)
    goal = tasks_of("libero_goal", package)
    assert [task.key for task in goal] == ["libero_goal/0", "libero_goal/1"]
    assert goal[1].bddl_file(package).name == "libero_goal_second.bddl"
    assert goal[1].states_file(package).name == "libero_goal_second.pruned_init"
    assert [task.suite for task in tasks_of("", package)] == [s for s in SUITES for _ in range(2)]
    with pytest.raises(SimError, match="no suite 'libero_100'; there are: libero_spatial, "):
        tasks_of("libero_100", package)


def test_a_task_has_several_names(tmp_path):
    tasks = tuple(t.as_task(True) for t in tasks_of("libero_goal", make_package(tmp_path, NAMES)))
    spec = EnvSpec("libero", tasks, (), 256)
    for name in ("libero_goal/1", "libero_goal_second", "1"):
        assert spec.task(name).name == "libero_goal/1"
    assert spec.task("1").max_steps == STEP_LIMITS["libero_goal"] == 300
    with pytest.raises(UnknownTask, match="libero has no task '7'; it has: libero_goal/0, "):
        spec.task("7")
    assert "0" not in tasks_of("", tmp_path / "libero" / "libero")[0].as_task(False).aliases


def test_a_long_list_of_tasks_is_cut(tmp_path):
    names = {suite: [f"{suite}_{i}" for i in range(20)] for suite in SUITES}
    tasks = tuple(t.as_task(False) for t in tasks_of("", make_package(tmp_path, names)))
    with pytest.raises(UnknownTask, match=r"libero_object/19, and 60 more$"):
        EnvSpec("libero", tasks, (), 256).task("none")


def test_limits_are_those_of_the_published_evaluation():
    assert dict(STEP_LIMITS) == {
        "libero_spatial": 220,
        "libero_object": 280,
        "libero_goal": 300,
        "libero_10": 520,
        "libero_90": 400,
    }


@pytest.mark.parametrize("text", ["raise SystemExit", "x = {", "libero_task_map = open('x')", ""])
def test_a_list_that_is_none_is_refused_and_not_run(tmp_path, text):
    package = make_package(tmp_path, NAMES)
    (package / "benchmark" / "libero_suite_task_map.py").write_text(text)
    with pytest.raises(SimError, match="is not LIBERO's list of tasks"):
        tasks_of("", package)


def test_a_missing_package_says_what_to_do(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SimError, match="LIBERO is not installed: run `make libero`"):
        find_package()


def test_the_package_is_found_without_importing_it(tmp_path, monkeypatch):
    package = make_package(tmp_path, NAMES)
    (tmp_path / "libero" / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    if "libero" in sys.modules:
        monkeypatch.delitem(sys.modules, "libero")
    assert find_package() == package


def test_the_configuration_of_the_environment():
    assert EnvConfig("libero", suite="libero_10").timeouts.reset_s > EnvConfig().timeouts.reset_s
    with pytest.raises(SimError, match="libero has no suite 'object'; there are: libero_spatial"):
        EnvConfig("libero", suite="object")
    with pytest.raises(SimError, match=r"tabletop has no suite 'libero_10'$"):
        EnvConfig("tabletop", suite="libero_10")


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
def test_the_real_package_has_130_tasks_with_files():
    package = suites.find_package()
    tasks = tasks_of("", package)
    assert [len(tasks_of(suite, package)) for suite in SUITES] == [10, 10, 10, 10, 90]
    assert len({task.name for task in tasks}) == 130
    assert all(task.bddl_file(package).is_file() for task in tasks)
    assert all(task.states_file(package).is_file() for task in tasks)
    assert tasks[10].instruction == "pick up the alphabet soup and place it in the basket"
