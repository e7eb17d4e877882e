"""`vla-ros train --head` as a user runs it: a head that the engine then drafts with."""

import json
from dataclasses import replace

import pytest

pytest.importorskip("mujoco")

from vla_ros.cli.main import main
from vla_ros.engine import EngineOptions, load_engine
from vla_ros.sim.factory import EnvConfig
from vla_ros_lab.train.head import run as head_run

SHORT = 14  # steps of an episode
HEAD = ["train", "--head", "--threads", "1", "--device", "cpu"]


class ShortTabletop:
    """The tabletop with two of its tasks, which end early: 28 whole ones take minutes."""

    def __init__(self):
        self._world = EnvConfig("tabletop", 64, wrist=False)()
        tasks = tuple(replace(task, max_steps=SHORT) for task in self._world.spec.tasks[:2])
        self.spec = replace(self._world.spec, tasks=tasks)
        self.reset, self.step, self.close = self._world.reset, self._world.step, self._world.close


@pytest.fixture
def short(monkeypatch):
    world = ShortTabletop()
    monkeypatch.setattr(head_run, "shared_environment", lambda wrist: world)
    yield world
    world.close()


@pytest.mark.parametrize(
    ("target", "tokens"),
    [("random:small", 7), pytest.param("random:small-chunk", 56, marks=pytest.mark.slow)],
)
def test_a_head_is_trained_and_drafts(short, tmp_path, capsys, target, tokens):
    out, tasks = tmp_path / "run", len(short.spec.tasks)
    words = [*HEAD, "--target", target, "--out", str(out), "--episodes", "1", "--steps", "3"]
    assert main([*words, "--batch", "4", "--json"]) == 0
    judged = json.loads(capsys.readouterr().out.splitlines()[-1])["held_out"]["head"]
    assert len(judged["first"]) == len(judged["four"]) == min(tokens - 2, 12)
    assert 1.0 <= judged["passes"] <= tokens
    files = {path: path.stat().st_mtime_ns for path in (out / "rollouts").glob("*.safetensors")}
    assert len(files) == 2 * tasks
    executed = json.loads((out / "rollouts" / "rollouts.json").read_text())["executed"]
    record = json.loads((out / "draft_head" / "training.json").read_text())
    assert record["frames"] == -(-SHORT // executed) * tasks
    assert record["held_out"]["head"]["passes"] == judged["passes"]
    assert sum(p.stat().st_size for p in (out / "draft_head").iterdir()) < 3_000_000
    drafts = {"drafter": "head", "draft_checkpoint": str(out / "draft_head")}
    engine = load_engine(EngineOptions(target, decoding="speculative", **drafts))
    assert engine.info.decoding == "speculative"
    # again: nothing is played anew, of another target nothing is taken
    assert main([*words, "--batch", "4"]) == 0
    assert files == {path: path.stat().st_mtime_ns for path in files}
    if executed > 1:
        assert main([*words, "--executed", "2"]) == 2
        assert "execute 4 actions of a chunk, not 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--target", "random:pi0-small"], "flow policy"),
        (["--target", "random:small-chunk", "--executed", "9"], "gives 8 actions"),
        (["--target", "random:small", "--data", "x"], "takes no --data"),
        (["--target", "nowhere"], "nowhere"),
        ([], "--target"),
    ],
)
def test_wrong_usage_is_one_line(words, said, tmp_path, capsys):
    assert main([*HEAD, *words, "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err.strip()
    assert said in error and "\n" not in error
