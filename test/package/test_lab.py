"""A robot's install has no lab, and runs; `pip install ./lab` brings the rest of the verbs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from support.missing import LAB, import_without, without
from support.plugins import install
from vla_ros.cli.arguments import VERBS
from vla_ros.ros.bringup.environment import python_path
from vla_ros_lab.cli import VERBS as THEIRS

ROOT = Path(__file__).resolve().parents[2]
MOST = 17  # verbs of a robot's install


def run(words: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vla_ros.cli.main", *words]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=170)


def verbs(env: dict[str, str]) -> set[str]:
    done = run(["--help"], env)
    assert done.returncode == 0, done.stderr
    return set(re.findall(r"^  ([a-z]+)(?:\s|$)", done.stdout, re.MULTILINE))


def test_a_robots_verbs_are_few_and_need_nothing_of_the_lab(tmp_path: Path) -> None:
    assert verbs(without(tmp_path, LAB)) == {*VERBS}
    assert len(VERBS) <= MOST
    import_without(tmp_path, [f"vla_ros.cli.{verb}" for verb in VERBS], LAB)


def test_a_verb_of_the_lab_is_refused_in_one_line_that_says_where_it_is(tmp_path: Path) -> None:
    done = run(["train", "--help"], without(tmp_path, LAB))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("vla-ros: there is no verb 'train' here; those of the lab come")
    assert "pip install ./lab" in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("--decoding generate", "decoding generate comes with the lab: pip install ./lab"),
        ("--decoding heterospec", "decoding heterospec comes with the lab: pip install ./lab"),
        ("--decoding speculative --drafter model --draft-checkpoint random:small",
         "drafter model comes with the lab"),
    ],
)  # fmt: skip
def test_a_decoding_of_the_lab_is_refused_in_one_line_too(
    tmp_path: Path, asked: str, said: str
) -> None:
    pytest.importorskip("torch")
    words = ["eval", "--no-ros", "--policy", "vla", "--checkpoint", "random:small"]
    words += ["--episodes", "1", "--tasks", "reach_red_cube", "--max-steps", "2", *asked.split()]
    done = run([*words, "--out", str(tmp_path / "out")], without(tmp_path, LAB))
    assert done.returncode != 0
    assert said in done.stdout + done.stderr


def test_a_damaged_lab_is_named_and_takes_no_other_verb_away(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['vla_ros_lab'] = None\n")
    done = run(
        ["--help"], {**os.environ, "PYTHONPATH": f"{tmp_path}:{python_path(dict(os.environ))}"}
    )
    assert done.returncode == 0 and "  doctor" in done.stdout
    assert "(vla_ros_lab.cli) cannot be imported" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_without_the_lab_an_evaluation_has_its_table_and_summary_and_no_page(
    tmp_path: Path,
) -> None:
    pytest.importorskip("mujoco")
    words = ["eval", "--no-ros", "--policy", "scripted", "--episodes", "1", "--image-size", "64"]
    words += ["--tasks", "reach_red_cube", "--out", str(tmp_path / "out")]
    done = run(words, without(tmp_path, LAB))
    assert done.returncode == 0, done.stderr
    assert "no report.html: it comes with the lab" in done.stdout
    assert (tmp_path / "out" / "summary.json").is_file()
    assert not (tmp_path / "out" / "report.html").exists()


def test_pip_install_lab_brings_its_verbs(tmp_path: Path) -> None:
    env = without(tmp_path, ())
    site = install(ROOT / "lab", tmp_path, "vla_ros_lab")
    env["PYTHONPATH"] = f"{site}:{env['PYTHONPATH']}"
    assert verbs(env) == {*VERBS, *THEIRS}
    done = run(["roofline", "--model", "openvla-7b", "--device", "orin-64"], env)
    assert done.returncode == 0, done.stderr
    where = "import vla_ros_lab; print(vla_ros_lab.__file__)"
    done = subprocess.run([sys.executable, "-c", where], env=env, capture_output=True, text=True)
    assert Path(done.stdout.strip()).is_relative_to(site)


def test_its_version_is_that_of_vla_ros() -> None:
    version = ElementTree.parse(ROOT / "package.xml").getroot().findtext("version")
    text = (ROOT / "lab" / "pyproject.toml").read_text(encoding="utf-8")
    assert f'\nversion = "{version}"' in text
    assert f'"vla_ros[model] == {version}"' in text
