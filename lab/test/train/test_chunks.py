"""Training of OpenVLA-OFT's architecture: what the network says is what the engine says."""

import numpy as np
import pytest
import torch

from support.engine import CLOCK, engine_of, images, observation
from support.train import (
    CPU,
    SENTENCES,
    SIZE,
    STATS,
    changed,
    data_set,
    demonstration,
    recipe,
    shard_of,
    tokenize,
    train,
)
from vla_ros.core.errors import UserError
from vla_ros.core.types import Timeline
from vla_ros.engine import EngineOptions, load_engine
from vla_ros.engine.families.openvla import load_checkpoint, random_tensors, save_checkpoint
from vla_ros.engine.families.random import write_tokenizer
from vla_ros.sim.tasks import parse_instruction
from vla_ros_lab.train.batches import ChunkBatches
from vla_ros_lab.train.frames import load_frames, wordings
from vla_ros_lab.train.network import Network
from vla_ros_lab.train.trainer import ARCHITECTURES

CONFIG = ARCHITECTURES["tiny-oft"]


def same_for_every_instruction(seed):
    """A demonstration whose labels are the same for every instruction: quickly learned."""
    one = demonstration(seed)
    labels = np.repeat(one.track.actions[:, None], one.track.labels.shape[1], axis=1)
    return changed(one, labels=labels)


def batches(frames):
    return ChunkBatches(frames, CONFIG, tokenize, recipe("", batch=12, shift=0), CPU)


def test_a_chunk_is_what_the_expert_did_next(tmp_path):
    frames = load_frames([data_set(tmp_path / "set", shards=1)], SIZE, 1, CONFIG.chunk)
    track = demonstration(0).track
    expected = track.actions.copy()
    expected[:, 6] *= -1  # values: the gripper's sign
    for t in range(10):
        last = [expected[min(t + n, 9)] for n in range(CONFIG.chunk)]
        assert np.allclose(frames.chunks[t].numpy(), last, atol=1e-3)


@pytest.mark.slow
def test_what_followed_a_policy_or_another_sentence_is_not_taught(tmp_path):
    paths = [data_set(tmp_path / "set", shards=1)]
    paths.append(shard_of(tmp_path / "round", changed(demonstration(9), source="round 0")))
    frames = load_frames(paths, SIZE, 1, CONFIG.chunk)
    assert frames.expert.tolist() == [True] * 20 + [False] * 10
    drawn = [batches(frames).batch(step) for step in range(20)]
    assert all(batch.known[:, 0].all() for batch in drawn)
    taught, first = frames.chunks[:20].float(), frames.values.float().flatten(0, 1)
    whole = [batch.known.all(1) for batch in drawn]
    assert 0.2 < torch.cat(whole).float().mean() < 0.5  # own instruction, and the expert acted
    for batch, full in zip(drawn, whole, strict=True):
        assert (batch.known[:, 1:].any(1) == full).all()
        for values in batch.values[full]:
            assert (taught == values).flatten(1).all(1).any()
        for values in batch.values[~full]:
            assert (first == values[0]).all(1).any()


def test_another_sentence_comes_with_what_the_expert_would_do_for_it(tmp_path):
    frames = load_frames([data_set(tmp_path / "set", shards=1)], SIZE, 1, CONFIG.chunk)
    prompts = {tuple(tokenize(text)): goal for goal in frames.goals for text in wordings(goal)}
    said = set()
    for step in range(10):
        batch = batches(frames).batch(step)
        ends = batch.blank.int().argmax(1)
        for ids, end, values, full in zip(
            batch.ids, ends, batch.values, batch.known.all(1), strict=True
        ):
            goal = prompts[tuple(ids[:end].tolist())]
            of_goal = frames.values[:, frames.goals.index(goal)].float()
            assert (of_goal == values[0]).all(1).any()
            said.add((goal, bool(full)))
    whole = {goal for goal, full in said if full}
    assert whole == {parse_instruction(text) for text in SENTENCES}
    assert len({goal for goal, _ in said}) > 10


def test_only_rounds_are_nothing_to_learn_chunks_from(tmp_path):
    path = shard_of(tmp_path / "set", changed(demonstration(9), source="round 0"))
    frames = load_frames([path], SIZE, 1, CONFIG.chunk)
    with pytest.raises(UserError, match="demonstrations"):
        batches(frames)


def test_the_engine_says_what_the_network_says_whatever_the_padding(tmp_path):
    network = Network(CONFIG, 6)
    network.load_tensors(random_tensors(CONFIG, 3, CPU, torch.float32))
    tensors = {n: t.detach() for n, t in network.tensors().items()}
    save_checkpoint(tmp_path / "policy", CONFIG, tensors, STATS, write_tokenizer)
    engine = engine_of(load_checkpoint(str(tmp_path / "policy"), CPU, torch.float32), "parallel")
    count = CONFIG.chunk * 7
    image = next(images(1, seed=3, still=0.0))
    seen = observation(1, image)
    pixels = engine.robot.prepare(seen)[0]
    sentences = (SENTENCES[0], "grasp the red cube and put it onto the plate")
    prompts = [tokenize(text) for text in sentences]
    length = max(map(len, prompts)) + count + 1
    position = torch.arange(length)
    ids = torch.full((2, length), 2)
    for row, prompt in zip(ids, prompts, strict=True):
        row[: len(prompt)] = torch.tensor(prompt)
    ends = torch.tensor([[len(p)] for p in prompts])
    blank = (position >= ends) & (position < ends + count)
    rows = ends + CONFIG.patches - 1 + torch.arange(count)
    with torch.no_grad():
        said, _ = network.chunk(
            torch.stack((pixels, pixels)), ids, blank, position <= ends + count, rows
        )
    for sentence, values in zip(sentences, said.double().numpy(), strict=True):
        engine.reset(sentence)
        answer = engine.step(seen, Timeline(CLOCK.steady_ns()), CLOCK)
        low, high = (
            np.array([-0.05] * 3 + [-0.5] * 3 + [0.0]),
            np.array([0.05] * 3 + [0.5] * 3 + [1]),
        )
        wanted = 0.5 * (values + 1) * (high - low + 1e-8) + low
        assert np.allclose(answer.actions, wanted, atol=1e-4)


def test_a_chunk_policy_begins_from_a_token_policy_and_learns(tmp_path):
    data = shard_of(tmp_path / "set", *(same_for_every_instruction(n) for n in range(4)))
    assert train(recipe(data, steps=2), tmp_path / "tokens").done
    begun = str(tmp_path / "tokens" / "policy")
    losses: list[float] = []
    more = {"learning_rate": 3e-3, "shift": 0, "dtype": "float32", "init_from": begun}
    options = recipe(data, "tiny-oft", 200, batch=8, **more)
    assert train(options, tmp_path / "chunks", lambda step: losses.append(step.entry.loss)).done
    assert np.mean(losses[-10:]) < 0.5 * np.mean(losses[:10])
    policy = str(tmp_path / "chunks" / "policy")
    engine = load_engine(EngineOptions(policy, decoding="parallel", num_threads=1))
    engine.reset(SENTENCES[0])
    image = np.full((SIZE, SIZE, 3), 200, np.uint8)
    answer = engine.step(observation(1, image), Timeline(CLOCK.steady_ns()), CLOCK)
    assert answer.actions.shape == (4, 7)
    assert answer.actions[0, 0] > 0.005  # bright means +x; the label is about +0.03 m


def test_weights_of_another_size_are_refused(data, tmp_path):
    train(recipe(data, "tiny-draft", 1), tmp_path / "draft")
    with pytest.raises(UserError, match="other sizes"):
        train(recipe(data, init_from=str(tmp_path / "draft" / "policy")), tmp_path / "run")
