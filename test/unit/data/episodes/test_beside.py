"""Success beside other evaluations: tasks matched by place, and nothing that is no comparison."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from vla_ros.core.errors import UserError
from vla_ros.data.episodes.beside import read_beside
from vla_ros.data.episodes.records import Job, Record, Setup, Variant
from vla_ros.data.episodes.rows import Successes, summary
from vla_ros.viz.evaluation import tables
from vla_ros_lab.report.page import html

WORLD = "MuJoCo 3.3.2, robosuite 1.4.0, LIBERO assets 0123456789ab"
BASE = Setup(environment="libero", suite="libero_object", policy="scripted", world=WORLD)
SWAP = replace(BASE, suite="libero_object_swap", world=f"{WORLD}, LIBERO-PRO 00aa")
SCRIPTED = Variant("scripted")


def records(setup: Setup, *solved: int) -> list[Record]:
    """Three episodes of task 0, 1, ...; of each so many solved."""
    return [
        Record(Job("scripted", f"{setup.suite}/{task}", k, 0, "", 3 * task + k), k < count, "end")
        for task, count in enumerate(solved)
        for k in range(3)
    ]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    found = summary(BASE, [SCRIPTED], records(BASE, 3, 2))
    (tmp_path / "summary.json").write_text(json.dumps(found))
    return tmp_path


def test_it_has_the_other_evaluations_tasks_by_their_place(base: Path) -> None:
    found = read_beside(base, SWAP)
    assert found.name == "libero_object" and found.all == Successes(5, 6)
    assert found.tasks == {"0": Successes(3, 3), "1": Successes(2, 3)}


def test_base_and_perturbed_stand_in_one_table(base: Path) -> None:
    """Also a task that only one of them has."""
    found, own = read_beside(base, SWAP), records(SWAP, 0, 1, 2)
    printed = [str(row) for row in tables(SWAP, [SCRIPTED], own, [found])[-1]._rows]  # type: ignore[union-attr]
    assert printed == [
        "['0', '3/3', '0/3']",
        "['1', '2/3', '1/3']",
        "['2', '–', '2/3']",
        "['all', '5/6', '3/9']",
    ]
    page = html(base, SWAP, [SCRIPTED], own, "", beside=[found])
    assert "Beside other evaluations" in page and "libero object swap/2" in page
    assert "Beside other evaluations" not in html(base, SWAP, [SCRIPTED], own, "")


@pytest.mark.parametrize(
    ("changed", "needle"),
    [
        ({"policy": "zero"}, "another policy, scripted"),
        ({"policy": "vla", "checkpoint_sha256": "ab"}, "another policy, scripted"),
        ({"seed": 3}, "another seed"),
        ({"environment": "tabletop", "suite": ""}, "another environment, libero"),
        ({"world": WORLD.replace("3.3.2", "3.8.1")}, r"another world, MuJoCo 3\.3\.2, .*; this is"),
    ],
)
def test_what_cannot_be_compared_is_refused(base: Path, changed: object, needle: str) -> None:
    assert isinstance(changed, dict)
    with pytest.raises(UserError, match=needle):
        read_beside(base, replace(SWAP, **changed))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"by_task": {"a": {"successes": 3}}}'])
def test_a_file_that_is_no_summary_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match=r"there is no summary\.json; let that evaluation end"):
        read_beside(tmp_path, SWAP)
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(UserError, match=r"summary\.json is no evaluation's"):
        read_beside(tmp_path, SWAP)
