"""Flow policies through the trainer: data in, a checkpoint in LeRobot's layout out."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from support.engine import CLOCK, observation
from support.flow import load_folder
from support.train import CPU, QUICK, SENTENCES, SIZE, recipe, tokenize, train
from vla_ros.cli.main import main
from vla_ros.core.errors import UserError
from vla_ros.core.types import Executing, Timeline
from vla_ros.engine import EngineOptions, load_engine
from vla_ros.engine.families.base import Placement
from vla_ros.engine.families.lerobot import WEIGHTS, expected_tensors
from vla_ros.engine.families.openvla import load_checkpoint
from vla_ros.engine.io.checkpoint import LANGUAGE
from vla_ros.engine.io.weights import FileWeights, canonical
from vla_ros.engine.models.language.llama import LlamaDecoder
from vla_ros_lab.train.demonstrations import BODIES
from vla_ros_lab.train.flow import (
    FLOW_ARCHITECTURES,
    FlowBatches,
    FlowNetwork,
    begin_from,
    restored,
    spot_loss,
    stored,
    units_of,
)
from vla_ros_lab.train.frames import load_frames
from vla_ros_lab.train.network import BatchedAttention
from vla_ros_lab.train.trainer import Trainer, kind_of


def options(data, steps=6, **more):
    return recipe(data, "tiny-flow", steps, **{"branches": 2, **more})


def test_what_is_written_is_what_is_read(data, tmp_path):
    trainer = Trainer(options(data), tmp_path / "run", CPU)
    trainer.loop.train_step()
    trainer.export(tmp_path / "policy")
    policy = load_folder(tmp_path / "policy", Placement(CPU, torch.float32))
    network, config = trainer.network, trainer.kind.config
    assert policy.config == config and policy.config.rtc_trained
    stored = FileWeights(tmp_path / "policy" / WEIGHTS, expected_tensors(config))
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(trainer.loop.average[name])
    for name, tensor in network.tensors().items():
        assert torch.equal(stored.take(canonical(name)), tensor.detach().bfloat16().float()), name
    for own, read in zip(
        (network.units.state, network.units.action),
        (policy.processors.state, policy.processors.action),
        strict=True,
    ):
        assert own.mode == read.mode == "MEAN_STD"
        assert torch.equal(own.low, read.low) and torch.equal(own.high, read.high)
    record = json.loads((tmp_path / "policy" / "training.json").read_text())
    assert record["step"] == 1 and record["options"]["arch"] == "tiny-flow"


def test_the_engine_runs_it_plain_guided_and_given(data, tmp_path):
    train(options(data, 2), tmp_path / "run")
    said = {}
    for how in ("", "guided", "guided_vjp", "trained"):
        engine = load_engine(
            EngineOptions(str(tmp_path / "run" / "policy"), num_threads=1, rtc_mode=how)
        )
        assert engine.info.continues == ("rtc", "rtc_trained")
        assert engine.info.state_dim == 8 and engine.info.chunk_length == 6
        engine.reset(SENTENCES[0])
        for stamp, executing in ((1, None), (2, Executing(1, 1, 2))):
            seen = observation(stamp, np.full((SIZE, SIZE, 3), 90, np.uint8))
            seen = replace(seen, proprio=np.array([0, 0, 0.1, 3.1, 0, 0, 0.04, -0.04]))
            seen = replace(seen, executing=executing)
            answer = engine.step(seen, Timeline(CLOCK.steady_ns()), CLOCK)
            said[how, stamp] = answer.actions
        assert answer.actions.shape == (6, 7) and np.isfinite(answer.actions).all()
    np.testing.assert_array_equal(said["", 1], said["trained", 1])
    np.testing.assert_allclose(  # what is under way is taken over, to the rounding of the units
        said["trained", 2][:2], said["trained", 1][1:3], atol=1e-6
    )


def test_values_and_units_are_one_to_one(data):
    frames = load_frames([data], SIZE, 1)
    units = units_of(frames)
    again = restored(stored(units))
    physical = torch.rand(5, 7)
    torch.testing.assert_close(again.action.restore(units.action.normalize(physical)), physical)
    assert (units.state.high >= 0.005).all()


def test_where_things_are_is_learned_of_those_there_are():
    spots = torch.tensor([[[[0.05, 0.0, 0.1], [float("nan")] * 3]]])
    right = torch.tensor([[[1.0, 0.0, 2.0, 9.0, 9.0, 9.0]]]).repeat(1, 1, 3, 1).view(1, 1, 3, 6)
    assert spot_loss(right, spots) == 0
    right[0, 0, 1, 0] += 3.0  # at the word for the thing; six numbers are known
    assert spot_loss(right, spots) == pytest.approx(0.5)
    right[0, 0, 2, :3] += 7.0  # at the other word the thing is not asked for
    assert spot_loss(right, spots) == pytest.approx(0.5)


def batches(data):
    wanted, frames = options(data, branches=3), load_frames([data], SIZE, 1)
    kind = kind_of(wanted)
    network = kind.build(frames)
    return FlowBatches(frames, kind.config, tokenize, network.units, wanted, CPU)


def test_given_rows_are_the_first_ones_and_never_all(data):
    given = torch.cat([batches(data).batch(step).given.flatten(0, 2) for step in range(8)])
    assert (given.long().diff(dim=1) <= 0).all()  # once open, open to the end
    counts = given.sum(1)
    assert counts.max() <= 5 and set(counts.tolist()) == set(range(6))
    assert 0.35 < (counts == 0).float().mean() < 0.65


def test_sentences_of_one_image_have_chunks_of_their_own(data):
    one = batches(data).batch(0)
    assert one.actions.isfinite().all()
    assert (one.actions[:, 0] - one.actions[:, 1]).abs().amax((1, 2)).min() > 0.01


def test_spots_are_where_the_poses_say(data):
    maker = batches(data)
    index, goals = torch.tensor([3]), torch.tensor([[0, 4, 12]])
    spots, frames = maker._spots(index, goals), load_frames([data], SIZE, 1)
    for row, number in enumerate(goals[0].tolist()):
        goal = frames.goals[number]
        place = frames.poses[3, BODIES.index(goal.object), :3]
        assert torch.equal(spots[0, row, 0], place)
        assert bool(spots[0, row, 1].isnan().all()) == (goal.target not in BODIES)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--wrist"], "one camera"),
        (["--dagger", "1"], "--dagger is for token policies"),
        (["--vision-from", "x"], "--init-from"),
        (["--samples", "0"], "at least 1"),
        (["--check", "1"], "vla-ros eval --no-ros --checkpoint"),
        (["--init-from", "shipped:tabletop"], "other sizes|--arch small"),
    ],
)
def test_wrong_usage_is_one_line(more, said, data, tmp_path, capsys):
    arguments = ["train", "--data", str(data), "--out", str(tmp_path / "run"), *QUICK]
    assert main([*arguments, "--arch", "tiny-flow", *more]) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert re.search(said, error[-1]) and len(error) == 1
    assert not (tmp_path / "run").exists()


def test_it_begins_with_the_language_of_a_token_policy(data):
    """The Gemma that is made of the Llama reads words as that does, but for GELU's difference."""
    network = FlowNetwork(FLOW_ARCHITECTURES["small-flow"], 6)
    theirs = load_checkpoint("shipped:tabletop", CPU, torch.float32)
    # Of the flow policy's last layer only K and V are made.
    three, ones = replace(theirs.config.text, layers=3), torch.ones(256)
    tensors = {**theirs.tensors, LANGUAGE + "model.norm.weight": ones}
    llama = LlamaDecoder(three, tensors, max_positions=8)
    ids, rows = torch.tensor([[0, 300, 310, 320]]), torch.arange(4)

    def alike():
        with torch.no_grad():
            everything = BatchedAttention(1, torch.ones(1, 1, 4, 4, dtype=torch.bool))
            wanted = llama.hidden(llama.embed(ids)[0], rows, everything, rows)
            lengths = torch.tensor([[4]])
            _, hidden = network._read(torch.zeros(1, 0, 192), ids[:, None], lengths)
        return torch.nn.functional.cosine_similarity(hidden[0], wanted, dim=-1).min()

    assert alike() < 0.5
    begin_from(network, theirs, load_frames([data], 128, 1), 0)
    assert alike() > 0.99


def test_it_goes_on_from_another_flow_policy(data, tmp_path):
    train(options(data, 2), tmp_path / "first")
    begun = str(tmp_path / "first" / "policy")
    trainer = Trainer(options(data, seed=3, init_from=begun), tmp_path / "second", CPU)
    kind = kind_of(options(data))
    stored = FileWeights(tmp_path / "first" / "policy" / WEIGHTS, expected_tensors(kind.config))
    for name, tensor in trainer.network.tensors().items():
        assert torch.equal(tensor, stored.take(name)), name
    other = recipe(data, "small-flow", 1, init_from=begun)
    with pytest.raises(UserError, match="other sizes"):
        Trainer(other, tmp_path / "third", CPU)
