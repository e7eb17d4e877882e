"""benchmarks/precision: the faults are those that are named, and episodes are paired by their
initial states."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file

from support.engine import tiny_config
from vla_ros.engine import load_engine
from vla_ros.engine.families.openvla import write_random
from vla_ros.engine.layers.int4 import Int4
from vla_ros.engine.options import EngineOptions
from vla_ros.policies.base import PolicySpec
from vla_ros.policies.conventions import settle
from vla_ros_lab.precision.frames import frames_of
from vla_ros_lab.precision.judge import allowed, judge
from vla_ros_lab.precision.run import measure

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks" / "precision"


def program(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    for other in ("collect", "picture", "study", "damage"):
        monkeypatch.delitem(sys.modules, other, raising=False)
    return importlib.import_module(name)


def test_four_bits_are_int4s_own_and_fewer_are_coarser(monkeypatch: pytest.MonkeyPatch) -> None:
    coarse = program("damage", monkeypatch).coarse
    weight = torch.randn(48, 96, generator=torch.Generator().manual_seed(3)).bfloat16()
    assert torch.equal(coarse(weight, 4), Int4.of(weight).whole())
    errors = [float((coarse(weight, n).float() - weight.float()).norm()) for n in (8, 4, 3, 2, 1)]
    assert errors == sorted(errors)
    for bits in (1, 2, 3):
        groups = coarse(weight, bits).view(-1, 32)
        assert max(len(row.unique()) for row in groups) == 2**bits


def test_positions_are_those_that_the_named_faults_give(monkeypatch: pytest.MonkeyPatch) -> None:
    rows_of = program("damage", monkeypatch).rows_of
    assert rows_of("half", 8)[:8].tolist() == [0, 0, 1, 2, 3, 5, 5, 7]
    assert rows_of("one_low", 8)[:8].tolist() == [0, 0, 1, 2, 3, 4, 5, 6]
    assert rows_of("one_low", 8)[8:17].tolist() == [0, 0, 1, 2, 3, 4, 5, 6, 8]


@pytest.mark.parametrize("fault", ["--bits 2", "--positions one_low"])
def test_a_damaged_checkpoint_is_an_ordinary_one(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage = program("damage", monkeypatch)
    write_random(tmp_path / "it", tiny_config(), seed=1)
    words = ["damage", "--checkpoint", str(tmp_path / "it"), *fault.split()]
    monkeypatch.setattr("sys.argv", [*words, str(tmp_path / "bad")])
    assert damage.main() == 0
    before, after = (load_file(tmp_path / n / "model.safetensors") for n in ("it", "bad"))
    changed = {n for n in before if not torch.equal(before[n], after[n])}
    assert before.keys() == after.keys()
    assert changed == {damage.TABLE} if "positions" in fault else damage.TABLE not in changed
    assert changed
    load_engine(EngineOptions(checkpoint=str(tmp_path / "bad")))
    assert damage.main() == 2  # it is there already


@pytest.mark.long
@pytest.mark.parametrize(("bits", "passes"), [(4, True), (3, False)])
def test_the_limits_of_int4_lie_between_what_costs_nothing_and_what_loses_episodes(
    bits: int, passes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four bits solved what float32 does, three lost every ninth episode of it: by the error of a
    stage and by the margin of tokens, each for itself."""
    damage = program("damage", monkeypatch)
    monkeypatch.setattr("sys.argv", ["damage", "--bits", str(bits), str(tmp_path / "few")])
    assert damage.main() == 0
    spec = PolicySpec(
        name="vla", engine=EngineOptions("shipped:tabletop", dtype="float32", num_threads=1)
    )
    used, _ = settle(spec)
    asked = argparse.Namespace(bag=None, images=None, synthetic=False, frames=12, seed=0)
    frames, _ = frames_of(asked, used, lambda *_: None)
    engine = replace(spec.engine, checkpoint=str(tmp_path / "few"), dtype="bfloat16")
    few = replace(spec, engine=engine)
    found = measure(few, frames, lambda *_: None, spec).comparison
    limits = allowed("bfloat16", "int4")
    assert judge(found, replace(limits, margin=1.0, mm=1e9, degrees=1e9)).passed == passes
    assert judge(found, replace(limits, error=1e9, mm=1e9, degrees=1e9)).passed == passes


def test_episodes_are_paired_by_their_initial_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = program("study", monkeypatch)
    lines = [
        {"precision": name, "task": "push_it", "seed": 0, "initial_state": state, "success": done}
        for name, ends in (("float32", (1, 1, 0, 1)), ("int4", (1, 0, 1)))
        for state, done in enumerate(map(bool, ends))
    ]
    (tmp_path / "episodes.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    ends = summary.outcomes(tmp_path / "episodes.jsonl")
    found = summary.paired(ends["int4"], ends["float32"])
    assert (found["episodes"], found["won"], found["lost"], found["p"]) == (3, 1, 1, 1.0)
    assert found["reference"]["solved"] == 2  # of the three that both played
