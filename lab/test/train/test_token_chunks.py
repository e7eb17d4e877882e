"""Chunks that are said token by token: what is learned, and that the engine says it."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from support.engine import CLOCK, images, observation
from support.train import (
    CPU,
    INFO,
    SENTENCES,
    SIZE,
    STATS,
    changed,
    demonstration,
    greedy,
    recipe,
    sequences,
    shard_of,
    tokenize,
    train,
)
from vla_ros.core.errors import UserError
from vla_ros.core.types import Timeline
from vla_ros.engine import EngineOptions, load_engine
from vla_ros.engine.families.openvla import load_checkpoint, random_tensors, save_checkpoint
from vla_ros.engine.families.random import write_tokenizer
from vla_ros.engine.io.tokens import ActionTokens
from vla_ros.sim.env import AGENTVIEW
from vla_ros.sim.tasks import instruction_of
from vla_ros_lab.train.ahead import futures
from vla_ros_lab.train.batches import Batches
from vla_ros_lab.train.collect import EnginePolicy
from vla_ros_lab.train.frames import load_frames, wordings
from vla_ros_lab.train.network import Network
from vla_ros_lab.train.trainer import ARCHITECTURES, Trainer, kind_of

CONFIG = ARCHITECTURES["tiny-chunk"]
COUNT = 7 * CONFIG.chunk


def options(data, steps=6, **more):
    return recipe(data, "tiny-chunk", steps, **{"branches": 2, **more})


def test_an_answer_is_every_step_of_the_chunk_for_every_sentence_whoever_acted(tmp_path):
    """Against one made by hand: the expert's values, encoded, a whole step before the next."""
    acted = changed(demonstration(3, length=6), source="round 0")
    frames = load_frames([shard_of(tmp_path / "set", acted)], SIZE, 1)
    actions = ActionTokens(CONFIG.action_vocab)
    drawn = recipe("", batch=8, branches=3, shift=0)
    batch = Batches(frames, CONFIG, tokenize, drawn, CPU).batch(2)
    assert batch.tokens.shape == batch.rows.shape == (8, 3, COUNT)
    goal_of = {tuple(tokenize(t)): g for g in frames.goals for t in wordings(g)}
    chunks = {}  # by frame and instruction: its tokens
    for goal in frames.goals:
        scale = np.array(INFO.scale)
        ahead = futures(
            frames.poses.numpy(), frames.before.numpy(), [goal] * len(frames), scale, CONFIG.chunk
        )
        for row in ahead:
            chunk = [token for step in row for token in actions.encode(step.astype(np.float64))]
            chunks.setdefault(instruction_of(goal), []).append(chunk)
    for found, tokens in zip(sequences(batch, CONFIG), batch.tokens.tolist(), strict=True):
        for (prompt, answer), own in zip(found, tokens, strict=True):
            assert own in chunks[instruction_of(goal_of[tuple(prompt)])]
            assert answer == own[:-1]
    assert len({tuple(chunk) for chunk in batch.tokens.flatten(0, 1).tolist()}) > 10


@pytest.mark.parametrize("arch", ["tiny-chunk", "tiny-flow"])
def test_a_set_without_poses_is_refused(tmp_path, arch):
    one = demonstration(0)
    bare = shard_of(tmp_path / "set", changed(one, poses=one.track.poses[:0]))
    with pytest.raises(UserError, match=r"no poses: collect it anew"):
        Trainer(replace(options(bare), arch=arch), tmp_path / "run", CPU)


def test_delays_are_not_for_chunks(data):
    with pytest.raises(UserError, match="delays are for single actions"):
        kind_of(options(data, delays=2))


@pytest.mark.parametrize(
    ("arch", "steps", "rate", "share"),
    [("tiny-chunk", 30, 3e-3, 0.8), ("tiny-flow", 40, 1e-2, 0.93)],
)
def test_a_few_steps_lower_the_loss(data, tmp_path, arch, steps, rate, share):
    more = {"shift": 0, "dtype": "float32", "learning_rate": rate, "samples": 4}
    trainer = Trainer(replace(options(data, steps, **more), arch=arch), tmp_path / "run", CPU)

    def loss():
        """Of batches that are not trained on."""
        with torch.no_grad():
            return np.mean([float(trainer.losses(step).action) for step in range(1000, 1004)])

    before = loss()
    for _ in range(steps):
        trainer.loop.train_step()
    assert loss() < share * before


def test_the_engine_says_what_the_trained_network_says(data, tmp_path):
    """Begun from weights of a policy of single actions: they are of the same sizes."""
    single = ARCHITECTURES["tiny"]
    begun = random_tensors(single, 3, CPU, torch.float32)
    save_checkpoint(tmp_path / "single", single, begun, STATS, write_tokenizer)
    wanted = options(data, 3, init_from=str(tmp_path / "single"), learning_rate=1e-5)
    assert train(wanted, tmp_path / "run").done
    policy = str(tmp_path / "run" / "policy")
    network = Network(CONFIG, 6)
    network.load_tensors(load_checkpoint(policy, CPU, torch.float32).tensors)
    engines = [
        load_engine(EngineOptions(policy, decoding=decoding, num_threads=1))
        for decoding in ("autoregressive", "speculative")
    ]
    said = set()
    for stamp, image in enumerate(images(3, seed=3, still=0.0)):
        seen = observation(stamp, image)
        pixels, ids = engines[0].robot.prepare(seen)[0], engines[0].policy.tokenizer(SENTENCES[0])
        wanted = greedy(network, pixels, ids, COUNT)
        said.add(tuple(wanted))
        for engine in engines:
            assert (engine.info.chunk_length, engine.info.max_tokens) == (CONFIG.chunk, COUNT)
            engine.reset(SENTENCES[0])
            answer = engine.step(seen, Timeline(CLOCK.steady_ns()), CLOCK)
            assert list(answer.tokens) == wanted
            by_step = engine.model.actions.decode(wanted).reshape(CONFIG.chunk, 7)
            assert np.allclose(answer.actions, engine.robot.normalizer.restore(by_step))
    assert len(said) > 1  # it did look at the images


def test_a_round_executes_some_of_a_chunk_and_looks_again(data, tmp_path):
    """As long as nobody else acts in between."""
    assert train(options(data, 2), tmp_path / "run").done
    policy = EnginePolicy(str(tmp_path / "run" / "policy"))
    asked = []
    values = np.linspace(0.1, 0.9, 8)[:, None].repeat(7, 1)

    def step(seen, timeline, clock):
        asked.append(seen.stamp_ns)
        return SimpleNamespace(actions=values + 10 * len(asked))

    policy.engine.step = step
    seen = SimpleNamespace(images={AGENTVIEW: np.zeros((SIZE, SIZE, 3), np.uint8)})
    policy.reset(SENTENCES[0])
    done = [policy.act(seen)[0] for _ in range(6)]
    assert np.allclose(done, [*(values[:4, 0] + 10), *(values[:2, 0] + 20)])
    policy.interrupt()
    assert policy.act(seen)[0] == values[0, 0] + 30
    policy.reset(SENTENCES[0])
    assert policy.act(seen)[0] == values[0, 0] + 40
