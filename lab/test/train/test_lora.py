"""OpenVLA by LoRA: peft's adapters on a tiny checkpoint of its layout, read back by the engine."""

import json

import numpy as np
import pytest
import torch

pytest.importorskip("peft", reason="peft is not installed: pip install ./lab")

from support.engine import CLOCK, observation
from support.train import CPU, SENTENCES, SIZE, data_set, greedy
from vla_ros.cli.main import main
from vla_ros.core.types import Timeline
from vla_ros.engine import EngineOptions, load_engine
from vla_ros.engine.convert import ConvertOptions, convert
from vla_ros.engine.families.openvla import SMALL_VOCAB, load_checkpoint, write_random
from vla_ros.engine.io.config import ModelConfig, TextConfig, TowerConfig
from vla_ros_lab.train.loop import read_journal
from vla_ros_lab.train.lora import LoraNetwork

TEXT = TextConfig(
    vocab_size=SMALL_VOCAB + 64, hidden_size=32, intermediate_size=64, layers=2, heads=2,
    kv_heads=1, head_dim=16, rope_theta=5e4,
)  # fmt: skip
DINO = TowerConfig(
    32, 3, 2, 64, image_size=SIZE, patch=8, class_token=True, registers=4, layer_scale=True,
    mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225),
)  # fmt: skip
SIGLIP = TowerConfig(16, 3, 2, 32, image_size=SIZE, patch=8)
CONFIG = ModelConfig(TEXT, (DINO, SIGLIP), SMALL_VOCAB)


@pytest.fixture
def base(tmp_path):
    write_random(tmp_path / "base", CONFIG, seed=3)
    return tmp_path / "base"


def tokens_of(engine, grey):
    engine.reset(SENTENCES[0])
    image = np.full((SIZE, SIZE, 3), grey, np.uint8)
    return list(engine.step(observation(1, image), Timeline(CLOCK.steady_ns()), CLOCK).tokens)


def tokens_in_training(network, engine, grey):
    mean, std = (torch.tensor(x).view(1, 3, 1, 1) for x in (DINO.mean, DINO.std))
    pixels = (torch.full((1, 3, SIZE, SIZE), grey / 255) - mean) / std
    return greedy(network, pixels, engine.policy.tokenizer(SENTENCES[0]), 7)


def test_what_is_trained_is_what_runs(base):
    """transformers' language model and two towers, beside the engine's own."""
    network = LoraNetwork(load_checkpoint(str(base), CPU, torch.float32), 4, 0, seed=0)
    engine = load_engine(EngineOptions(str(base), dtype="float32", num_threads=1))
    for grey in (30, 200):
        assert tokens_in_training(network, engine, grey) == tokens_of(engine, grey)
    trained = [n for n, p in network.named_parameters() if p.requires_grad]
    assert all("lora_" in name or "_head." in name for name in trained)


def test_it_learns_and_the_merged_checkpoint_says_what_was_learned(base, tmp_path, capsys):
    data, out = data_set(tmp_path / "set", shards=4), tmp_path / "run"
    words = ["train", "--data", data, "--out", out, "--init-from", base, "--lora", "4"]
    words += ["--batch", "8", "--branches", "1", "--shift", "0", "--dtype", "float32"]
    words += ["--learning-rate", "2e-2", "--validation", "0.2", "--device", "cpu", "--threads", "1"]
    words = [*map(str, words), "--steps", "60"]
    assert main([*words, "--minutes", "0.000001"]) == 0  # killed early: it goes on
    assert main(words) == 0
    assert "done" in capsys.readouterr().out
    journal = read_journal(out)
    assert len(journal) == 60 and journal[-1].loss < journal[0].loss - 1.0
    # The state is the adapter's and the heads' alone.
    state = torch.load(out / "state.pt", weights_only=True)
    assert not [n for n in state["model"] if "lora_" not in n and "_head." not in n]
    policy = out / "policy"
    card = json.loads((policy / "training.json").read_text())
    assert card["options"]["lora"] == 4 and card["validation"]["step"] == 60
    engine = load_engine(EngineOptions(str(policy), dtype="float32", num_threads=1))
    before = load_engine(EngineOptions(str(base), dtype="float32", num_threads=1))
    assert [tokens_of(engine, g) for g in (30, 200)] != [tokens_of(before, g) for g in (30, 200)]
    # The adapter beside it, merged by the verb for anybody's, gives the same weights.
    convert(policy / "lora_adapter", tmp_path / "merged", ConvertOptions(base=base))
    ours = load_checkpoint(str(policy), CPU, torch.float32).tensors
    theirs = load_checkpoint(str(tmp_path / "merged"), CPU, torch.float32).tensors
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--lora", "4"], "--init-from"),
        (["--lora", "4", "--init-from", "shipped:tabletop-oft"], "token by token"),
        (["--lora", "4", "--init-from", "shipped:tabletop", "--delays", "3"], "stay as they are"),
    ],
)
def test_wrong_usage_is_one_line(tmp_path, capsys, words, said):
    data = data_set(tmp_path / "set", shards=1)
    arguments = ["train", "--data", str(data), "--out", str(tmp_path / "run"), *words]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
