"""`vla-ros train --recipe`: all stages by one command, in the real simulation, small."""

import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest
import yaml

pytest.importorskip("mujoco", reason="mujoco is not installed: pip install '.[sim]'")

from vla_ros.cli.main import main
from vla_ros.core.errors import UserError
from vla_ros_lab.cli.recipe import Made, missed_rate
from vla_ros_lab.train.options import TrainOptions
from vla_ros_lab.train.recipe import RECIPES, parse_recipe, read_recipe

DEMOS = {"demos": 4, "tasks": ["reach"], "image_size": 32}
CLONE = {"data": ["demos"], "arch": "tiny", "steps": 60, "batch": 8, "dtype": "float32"}
JUDGE = {"checkpoint": "clone", "episodes": 1, "tasks": ["reach_red_cube"], "delay_frames": [2]}


def tiny(**judge):
    """A recipe of four demonstrations, 60 steps with a round among them, and an episode."""
    return {
        "stages": {
            "demos": {"collect": dict(DEMOS)},
            "clone": {"train": {**CLONE, "dagger": 1, "dagger_episodes": 1}},
            "judge": {"eval": {**JUDGE, **judge}},
        },
        "policy": {"checkpoint": "clone"},
    }


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny(at_least={2: 0.0}), sort_keys=False))
    return path


def words(recipe, out, *more):
    own = ["--device", "cpu", "--threads", "1", "--save-every", "0.01"]
    return ["train", "--recipe", str(recipe), "--out", str(out), *own, *more]


def weights(out):
    return hashlib.sha256((out / "policy" / "model.safetensors").read_bytes()).hexdigest()


def killed(recipe, out, when):
    """Run the command in a process of its own, and kill it as soon as ``when`` is there."""
    process = subprocess.Popen(
        [sys.executable, "-m", "vla_ros", *words(recipe, out)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    until = time.monotonic() + 60
    while not when.exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.005)
    assert process.poll() is None, "it ended before it was killed"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.long
def test_from_nothing_to_the_policy_and_after_a_kill_to_the_same(recipe, tmp_path, capsys):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert main(words(recipe, whole, "--json")) == 0
    shown = capsys.readouterr().out.splitlines()
    result = json.loads(shown[-1])
    assert result["done"] and list(result["stages"]) == ["demos", "clone", "judge"]
    assert result["sha256"] == {"model.safetensors": weights(whole)}
    assert {delay: n for delay, (_, n) in result["judged"]["judge"].items()} == {"2": 1}
    log = (whole / "recipe.log").read_text().splitlines()
    assert log[-1] == f"{weights(whole)}  policy/model.safetensors"
    assert [line.split(" ", 2)[2] for line in log if "begun" in line] == [
        "demos (collect) begun", "clone (train) begun", "judge (eval) begun",
    ]  # fmt: skip
    assert any("rounds solved" in line for line in log)
    for moment in ("demos/collection.json", "clone/policy-round-0", "judge/run.json"):
        killed(recipe, broken, broken / moment)
    assert not (broken / "policy").exists()
    assert main(words(recipe, broken)) == 0
    assert weights(broken) == weights(whole)


def test_a_sitting_ends_after_its_minutes_and_another_recipe_is_refused(recipe, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(words(recipe, out, "--minutes", "0.000001")) == 0
    assert "the same command goes on" in capsys.readouterr().out
    assert not (out / "policy").exists()
    changed = tiny(at_least={2: 0.0})
    changed["stages"]["clone"]["train"]["steps"] = 61
    recipe.write_text(yaml.safe_dump(changed, sort_keys=False))
    assert main(words(recipe, out)) == 2
    assert "clone steps 60" in capsys.readouterr().err


@pytest.mark.long
def test_a_judge_that_is_missed_leaves_the_policy_as_it_is(recipe, tmp_path, capsys):
    """Sixty steps teach nothing; what is asked may be changed, since nothing is made by it."""
    out = tmp_path / "run"
    recipe.write_text(yaml.safe_dump(tiny(at_least={2: 1.0}), sort_keys=False))
    for _ in range(2):  # also where the judge was done before
        assert main(words(recipe, out)) == 3
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert "judge: delay 2:" in error and "is below 100 %" in error
        assert not (out / "policy").exists()
    recipe.write_text(yaml.safe_dump(tiny(at_least={2: 0.0}), sort_keys=False))
    assert main(words(recipe, out)) == 0
    assert (out / "policy" / "config.json").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_head_and_its_bins_ship_with_the_policy(tmp_path):
    stages = {
        "demos": {"collect": dict(DEMOS)},
        "clone": {"train": dict(CLONE)},
        "head": {"head": {"target": "clone", "episodes": 1, "steps": 4, "batch": 4}},
        "bins": {"calibrate": {"checkpoint": "clone", "head": "head"}},
    }
    policy = {"checkpoint": "clone", "head": "head", "bins": "bins"}
    path = tmp_path / "head.yaml"
    path.write_text(yaml.safe_dump({"stages": stages, "policy": policy}, sort_keys=False))
    assert main(words(path, tmp_path / "run")) == 0
    assert (tmp_path / "run/policy/draft_head/heterospec.json").exists()
    assert (tmp_path / "run/policy/draft_head/model.safetensors").exists()


@pytest.mark.parametrize("name", [path.stem for path in sorted(RECIPES.glob("*.yaml"))])
def test_the_recipes_of_the_lab_are_sound(name):
    assert read_recipe(name).hours > 0


@pytest.mark.parametrize(
    ("stage", "body", "said"),
    [
        ("clone", {"trian": {}}, "did you mean 'train'?"),
        ("clone", {"train": {"data": ["demos"], "step": 6}}, "did you mean 'steps'?"),
        ("clone", {"train": {"data": ["demos"], "steps": 0}}, "at least 1"),
        ("clone", {"train": {"data": ["demos"], "steps": "many"}}, "a whole number"),
        ("clone", {"train": {"data": ["demos"], "steps": True}}, "a whole number"),
        ("clone", {"train": {"data": ["demos"], "delays": 99}}, "delays is 99"),
        ("clone", {"train": {"data": ["demos"], "learning_rate": math.nan}}, "give 0 or more"),
        ("clone", {"train": {"data": ["demos"], "learning_rate": math.inf}}, "give 0 or more"),
        ("clone", {"train": {"data": ["demos"], "learning_rate": "fast"}}, "give a number"),
        ("clone", {"train": {"data": ["demso"]}}, "did you mean 'demos'?"),
        ("clone", {"train": {"data": ["judge"]}}, "made by a later stage"),
        ("clone", {"train": {}}, "train needs data"),
        ("clone", {"train": {"data": [True]}}, "data is [True]: give words"),
        ("judge", {"eval": {**JUDGE, "delay_frames": ["2"]}}, "give whole numbers"),
        ("clone", {"train": {"data": ["demos"], "init_from": "demos"}}, "is a stage collect"),
        ("demos", {"collect": {"tasks": ["stak"]}}, "did you mean 'stack'?"),
        ("demos", {"collect": {"seed": 9}}, "0 to 4"),
        ("demos", {"collect": {"unsteady": True}}, "with a policy"),
        ("judge", {"eval": {**JUDGE, "at_least": {5: 0.9}}}, "which delay_frames has not"),
        ("judge", {"eval": {**JUDGE, "at_least": {2: 97}}}, "a share"),
        ("judge", {"so101": {"tasks": ["juggle"]}}, "lift_cube"),
    ],
)
def test_what_is_wrong_in_a_stage_is_one_line_before_anything_runs(stage, body, said):
    content = tiny()
    content["stages"][stage] = body
    with pytest.raises(UserError) as refused:
        parse_recipe("tiny", content)
    assert str(refused.value).startswith(f"stage {stage}: ")
    assert said in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"policy": {"checkpoint": "clon"}}, "did you mean 'clone'?"),
        ({"policy": {"chekpoint": "clone"}}, "did you mean 'checkpoint'?"),
        ({"stage": {}}, "did you mean 'stages'?"),
        ({"stages": None}, "give keys and values"),
        ({"hours": "long"}, "give a number"),
        ({"stages": {True: {"collect": {}}}}, "YAML reads otherwise"),
    ],
)
def test_what_is_wrong_in_a_recipe_is_one_line(change, said):
    with pytest.raises(UserError) as refused:
        parse_recipe("tiny", {**tiny(), **change})
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--steps", "5"], "--steps is in the recipe"),
        (["--dagger", "2"], "--dagger is in the recipe"),
        (["--head"], "--head is in the recipe"),
        (["--data", "x"], "--data is in the recipe"),
        (["--workers", "0"], "--workers must be at least 1"),
    ],
)
def test_other_flags_beside_a_recipe_are_refused(recipe, tmp_path, capsys, more, said):
    assert main(words(recipe, tmp_path / "run", *more)) == 2
    error = capsys.readouterr().err.strip()
    assert said in error and "\n" not in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("clone", "train", "arch", "huge"), "stage clone: arch is 'huge'"),
        (("judge", "eval", "tasks", ["juggle"]), "stage judge:"),
    ],
)
def test_what_only_the_simulation_or_torch_knows_is_refused_before_anything_runs(
    recipe, tmp_path, capsys, change, said
):
    content = tiny()
    stage, kind, key, value = change
    content["stages"][stage][kind][key] = value
    recipe.write_text(yaml.safe_dump(content, sort_keys=False))
    assert main(words(recipe, tmp_path / "run")) == 2
    error = capsys.readouterr().err.strip()
    assert said in error and "\n" not in error
    assert not (tmp_path / "run").exists()


def test_a_recipe_that_is_not_there_is_refused_by_the_nearest_name(tmp_path, capsys):
    assert main(words("tabeltop", tmp_path / "run")) == 2
    assert "did you mean 'tabletop'?" in capsys.readouterr().err


def test_a_task_that_succeeds_too_seldom_is_named():
    judge = {"judge": {"eval": {**JUDGE, "delay_frames": [0], "at_least": {0: 0.9}, "each": 0.8}}}
    content = {**tiny(), "stages": {**tiny()["stages"], **judge}}
    stage = parse_recipe("it", content).stage("judge")
    rates = {"0": (19, 20)}
    assert missed_rate(stage, Made("", rates, ("pick_red_cube", 0.8))) == ""
    missed = missed_rate(stage, Made("", rates, ("pick_red_cube", 0.6)))
    assert missed == "judge: pick_red_cube: 60.0 % is below 80 %: no policy is put together"
    missed = missed_rate(stage, Made("", {"0": (17, 20)}, ("pick_red_cube", 0.8)))
    assert missed.startswith("judge: delay 0: 17 of 20, 85.0 %, is below 90 %")


def test_what_a_judge_asks_may_be_lowered_and_numbers_written_as_people_do():
    def made(**asked):
        body = {"eval": {**JUDGE, "delay_frames": [0], **asked}}
        clone = {"train": {"data": ["demos"], "steps": 60, "learning_rate": "1e-3"}}
        stages = {**tiny()["stages"], "clone": clone, "judge": body}
        return parse_recipe("it", {**tiny(), "stages": stages})

    strict, lower = made(each=0.9, at_least={0: 0.9}), made(each=0.5)
    assert strict.as_json() == lower.as_json()
    assert strict.stage("judge").digest == lower.stage("judge").digest
    assert strict.stage("clone").options(TrainOptions).learning_rate == 1e-3


def test_a_rate_that_is_met_exactly_is_met():
    judge = {"judge": {"eval": {**JUDGE, "delay_frames": [0], "at_least": {0: 0.14}}}}
    content = {**tiny(), "stages": {**tiny()["stages"], **judge}}
    stage = parse_recipe("it", content).stage("judge")
    assert missed_rate(stage, Made("", {"0": (7, 50)})) == ""
    assert missed_rate(stage, Made("", {"0": (6, 50)}))
