"""A corrector's examples, batches and training, and the verb."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from vla_ros.cli.main import main
from vla_ros.core.errors import UserError
from vla_ros.engine.models.corrector import FOLDER, Corrector, CorrectorConfig
from vla_ros_lab.train.corrector.examples import Example, LateActor
from vla_ros_lab.train.corrector.training import (
    CorrectorBatches,
    CorrectorOptions,
    train_corrector,
)

CONFIG = CorrectorConfig(hidden=6, state=2, actions=7, horizon=4, width=16, heads=2, head_dim=4)
QUICK = CorrectorOptions(steps=60, batch=32, learning_rate=1e-2, warmup=5, mixed=0.0)


def examples(count: int = 40) -> list[Example]:
    """The label is the last row of the prefix, which no chunk knows."""
    found, draw = [], torch.Generator().manual_seed(1)
    for number in range(count):
        rows = torch.randn(3 + number % 2, CONFIG.hidden, generator=draw)
        bases, labels = torch.randn(2, 7, generator=draw), rows[-1, 0].repeat(2, 7)
        indices, ahead = torch.tensor([number % 2, 2]), torch.tensor([0, 1])
        state = torch.zeros(CONFIG.state)
        found.append(Example(rows.bfloat16(), state, bases, labels, indices, ahead, number // 10))
    return found


def test_a_batch_is_the_same_again_and_pads_prefixes():
    options = CorrectorOptions(batch=8)
    (first, labels), (second, _) = (
        CorrectorBatches(examples(), 40, options).draw() for _ in range(2)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    rows, lengths, state, actions, indices, ahead = first
    assert rows.shape == (8, 4, CONFIG.hidden)
    assert set(lengths.tolist()) <= {3, 4}
    assert (state.shape, actions.shape, labels.shape) == ((8, 2), (8, 7), (8, 7))
    assert set(indices.tolist()) <= {0, 1, 2}
    assert [a == 1 for a in ahead.tolist()] == [i == 2 for i in indices.tolist()]


def test_own_episodes_are_drawn_more_often_and_long_ones_no_more_than_others():
    found = examples(200)
    for number, one in enumerate(found):
        one.episode = int(number >= 40)
    weights = CorrectorBatches(found, 40, CorrectorOptions(own_weight=2.0))._weights
    assert set(weights[:40].tolist()) == {1.0}
    assert weights[40:].sum() == pytest.approx(2.0 * 60)


class Line:
    """In place of a policy's eyes: actions are as they are."""

    def begin(self, instruction):
        pass

    def normalized(self, actions):
        return torch.from_numpy(np.asarray(actions, np.float32))


def test_an_own_frame_learns_what_is_right_later_of_the_chunk_that_it_was_asked_about():
    instruction, rng = "pick up the red cube and put it on the plate", np.random.default_rng(0)
    actor = LateActor(Line(), None, instruction, 0, 4, 2, 0.0, rng, number=7)
    rows = torch.zeros(3, CONFIG.hidden)
    for step, began in enumerate((0, 0, 0, 0, 4, 4)):  # another chunk takes over at step 4
        actor._step, actor._chunk = step, (began, np.zeros((8, 7)))
        base = torch.full((7,), 10.0 + step)
        actor._keep(rows, torch.zeros(8), np.full(7, float(step)), base, step - began)
    found = actor.found
    assert [one.labels[:, 0].tolist() for one in found] == [
        *([0, 1, 2], [1, 2, 3], [2, 3], [3]),
        *([4, 5], [5]),
    ]
    assert [one.bases[:, 0].tolist() for one in found[:2]] == [[10, 11, 12], [11, 12, 13]]
    ahead = [one.ahead.tolist() for one in found]
    assert ahead == [[0, 1, 2], [0, 1, 2], [0, 1], [0], [0, 1], [0]]
    assert [one.indices.tolist() for one in found[2:]] == [[2, 3], [3], [0, 1], [1]]
    assert [one.episode for one in found] == [7] * 6


def test_nothing_to_learn_from_is_refused():
    with pytest.raises(UserError, match="nothing to learn from"):
        CorrectorBatches([], 0, QUICK)


def test_it_learns_what_only_the_newest_frame_shows():
    losses = []
    made = train_corrector(
        CONFIG, QUICK, examples(), 40, None, lambda step, loss: losses.append(loss), lambda: False
    )
    assert isinstance(made, Corrector)
    assert len(losses) == QUICK.steps
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])
    again = train_corrector(CONFIG, QUICK, examples(), 40, None, lambda *_: None, lambda: False)
    assert torch.equal(again.out.bias, made.out.bias)


@pytest.mark.long
def test_the_verb_writes_a_folder_that_the_target_takes(tmp_path, capsys):
    pytest.importorskip("mujoco")
    data, out = tmp_path / "box", tmp_path / "run"
    words = ["--demos", "1", "--tasks", "reach", "--interpolation", "box"]
    assert main(["collect", "--out", str(data), *words]) == 0
    quick = ["--steps", "2", "--batch", "4", "--dagger", "1", "--dagger-episodes", "1"]
    given = ["--corrector", "--target", "shipped:tabletop-flow", "--data", str(data)]
    assert main(["train", *given, "--out", str(out), *quick]) == 0
    assert "execution: corrected" in capsys.readouterr().out
    said = json.loads((out / FOLDER / "training.json").read_text())
    assert said["examples"] > 0
    assert len(said["solved"]) == 1
    assert (out / FOLDER / "model.safetensors").stat().st_size < 1_000_000


def test_a_target_that_can_have_none_is_refused(tmp_path):
    from vla_ros_lab.train.corrector.run import run

    with pytest.raises(UserError, match="is no flow policy of the tabletop"):
        run("shipped:tabletop", (tmp_path,), QUICK, tmp_path, lambda *_: None)
