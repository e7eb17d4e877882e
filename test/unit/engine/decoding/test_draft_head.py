"""A draft head: what it is shown, what it names, its file; and judging it before it serves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from support.engine import (
    CLOCK,
    CPU,
    TEXTS,
    engine_of,
    observation,
    play,
    stream,
    tiny,
    tiny_config,
)
from support.heads import recursive_head
from vla_ros.core.types import Timeline
from vla_ros.engine.decoding.draft_head_folder import FOLDER, find_head, load_head, save_head
from vla_ros.engine.decoding.draft_heads import LEVELS
from vla_ros.engine.decoding.draft_tree import Budget
from vla_ros.engine.decoding.drafters import FP32_CPU
from vla_ros.engine.decoding.head_drafters import RecursiveDrafter
from vla_ros.engine.decoding.tree_growth import spaced
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.families.openvla import FAMILY
from vla_ros.engine.io.hub import shipped
from vla_ros.engine.io.tokens import ActionTokens
from vla_ros.engine.layers.pack import PackLayout, chain, prefill_layout
from vla_ros.engine.layers.request import Request
from vla_ros.engine.models.language.base import tap_layers
from vla_ros.engine.models.openvla import VLAModel
from vla_ros_lab.hugging_face import transformers_model

ACTIONS = ActionTokens(960)


@pytest.mark.parametrize(
    ("count", "layers"),
    [(32, (1, 15, 28)), (24, (1, 11, 20)), (8, (1, 3, 4)), (4, (0, 2, 3)), (2, (0, 1)), (1, (0,))],
)
def test_an_early_a_middle_and_a_late_layer(count: int, layers: tuple[int, ...]) -> None:
    assert tap_layers(count) == layers


def prompt_of(engine, seed: int = 1):  # type: ignore[no-untyped-def]
    engine.reset(TEXTS[0])
    image = stream(1, {0: TEXTS[0]}, seed)[0].image
    return engine.encode(observation(0, image), Timeline(0), CLOCK).prompt


@pytest.mark.parametrize("language", ["llama_gqa", "qwen2_tied"])
def test_taps_are_the_residual_stream_of_the_rows_asked_for(language: str) -> None:
    """As transformers has it, in the prefill and behind it, in any order of layers."""
    checkpoint = tiny(tiny_config(language), seed=3)
    seen = []
    for make_model in (VLAModel, transformers_model):
        engine = engine_of(checkpoint, make_model=make_model)
        prompt = prompt_of(engine)
        length = len(prompt)
        runner = engine.model.runner(1, length + 9, taps=(1, 0))
        first, _ = runner.run(prefill_layout(length, (length - 3, length - 1)), prompt, None)
        front = runner.tapped
        runner.run(PackLayout(rows=(1,), tail=chain(0, length, 2)), None, first)
        assert front is not None
        assert runner.tapped is not None
        seen.append((front, runner.tapped))
    own, theirs = seen
    for a, b in zip(own, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert own[0].shape == (2, 128)
    assert own[1].shape == (1, 128)
    if language == "llama_gqa":  # the last layer's output, normed, is what the head of words reads
        hidden = torch.nn.functional.rms_norm(
            own[0][:, :64], (64,), checkpoint.tensors["language_model.model.norm.weight"],
            checkpoint.config.text.rms_eps,
        )  # fmt: skip
        words = checkpoint.tensors["language_model.lm_head.weight"]
        assert (hidden @ words.T).argmax(-1).tolist() == first.tolist()


def test_nobody_asks_nobody_pays() -> None:
    engine = engine_of(tiny())
    prompt = prompt_of(engine)
    runner = engine.model.runner(1, len(prompt) + 9)
    runner.run(prefill_layout(len(prompt), (len(prompt) - 1,)), prompt, None)
    assert runner.tapped is None


def test_taps_come_out_of_captured_passes() -> None:
    checkpoint = tiny(seed=4)
    engine = engine_of(checkpoint)
    prompt = prompt_of(engine)
    length, found = len(prompt), []
    for capture in (None, lambda function: function):
        runner = VLAModel(checkpoint, CPU, torch.float32, capture=capture).runner(
            1, length + 20, taps=(0, 1)
        )
        for scale in (1.0, 0.5):
            runner.run(prefill_layout(length, (length - 1,)), prompt * scale, None)
        found.append(runner.tapped)
    assert found[0] is not None
    torch.testing.assert_close(*found)


# The drafter


def drafter(chance: float = 1.0, **options: object) -> tuple[RecursiveDrafter, list[object]]:
    """A drafter whose head names what is expected: the last action's bin, then those beside it."""
    head = recursive_head(tiny_config(), 5, dim=5, seed=1)
    with torch.no_grad():
        for parameter in (*head.bins.parameters(), *head.gate.parameters()):
            parameter.zero_()
    head.chances.mul_(chance)
    asked: list[object] = []

    def embed(tokens: torch.Tensor) -> torch.Tensor:
        asked.append(tokens.tolist())
        return torch.zeros(*tokens.shape, 64)

    made = RecursiveDrafter(ACTIONS, CPU, lambda position: 0, Budget(6, 9), head, embed, **options)  # type: ignore[arg-type]
    made.begin(REQUEST)
    return made, asked


LAST = [800, 714, 724, 734, 900]
REQUEST = Request(0, torch.zeros(0, 0), None)  # type: ignore[arg-type]


def test_it_drafts_behind_the_prompt_as_the_temporal_tree_and_then_by_the_head() -> None:
    own, asked = drafter()
    assert not len(own.propose([], 4).tokens)  # no last action yet, and no taps
    own.observe(LAST, LAST)
    own.begin(REQUEST)
    assert own.propose([], 4).tokens[0] == LAST[0]
    assert asked == []
    assert not len(own.propose([800], 3).tokens)  # of this frame there are no taps yet
    own.observe_taps(torch.zeros(3, 128), (0,))
    draft = own.propose([800], 3)
    assert draft.parents is not None
    assert len(draft.tokens) == 9
    assert draft.tokens[0] == LAST[1]
    assert asked
    own.observe_taps(torch.zeros(3, 128), (0, 2))
    last = own.propose([800, 714, 724], 1)  # one level is left: alternatives side by side
    assert last.tokens[0] == LAST[3]
    assert set(last.parents or ()) == {-1}


def test_trees_that_do_not_pay_do_not_ask_the_head() -> None:
    own, asked = drafter(0.2, costs=FP32_CPU)
    own.observe_taps(torch.zeros(1, 128), (0,))
    assert not len(own.propose([800], 3).tokens)  # a node costs a quarter of a pass
    assert asked == []
    assert own.passes == 0


def test_alternatives_are_apart_where_near_is_enough() -> None:
    torch.manual_seed(0)
    chances = torch.rand(5, 256).softmax(-1)
    found = spaced(chances, 4, 8)
    for row, given in zip(found.tolist(), chances, strict=True):
        ordered = sorted(row)
        assert min(b - a for a, b in zip(ordered, ordered[1:], strict=False)) > 4
        windows = torch.nn.functional.pad(given, (4, 4)).unfold(0, 9, 1).sum(-1)
        assert row[0] == windows.argmax()


# Its file


def test_a_head_comes_back_from_its_folder(tmp_path: Path) -> None:
    config, head = tiny_config(), recursive_head(tiny_config(), 7)
    head.chances.copy_(torch.rand(5, LEVELS, 16))
    save_head(tmp_path / FOLDER, head)
    read = load_head(find_head(tmp_path, None), config, 7, CPU, torch.float32)
    assert read.config == head.config
    assert read.chances.tolist() == head.chances.tolist()
    for name, tensor in head.state_dict().items():
        torch.testing.assert_close(read.state_dict()[name], tensor, rtol=1e-2, atol=1e-3)


def test_what_is_wrong_with_a_head_is_one_line(tmp_path: Path) -> None:
    config, folder = tiny_config(), tmp_path / FOLDER
    with pytest.raises(CheckpointError, match="vla-ros train --head --target"):
        find_head(tmp_path, None)
    with pytest.raises(CheckpointError, match="no folder of a draft head"):
        find_head(tmp_path, str(tmp_path / "nothing"))
    save_head(folder, recursive_head(config, 7))
    with pytest.raises(CheckpointError, match="7 tokens an action, the target has 56"):
        load_head(folder, config, 56, CPU, torch.float32)
    path = folder / "config.json"
    said = json.loads(path.read_text())
    for change in ({"kind": "one_shot"}, {"width": "wide"}, {"layers": [0, "x"]}, {"more": 1}):
        path.write_text(json.dumps(said | change))
        with pytest.raises(CheckpointError, match="no draft head of this version"):
            load_head(folder, config, 7, CPU, torch.float32)
    path.write_text(json.dumps(said | {"width": 64}))
    with pytest.raises(CheckpointError, match="do not fit"):
        load_head(folder, config, 7, CPU, torch.float32)


def test_the_shipped_policy_has_a_head_of_its_own() -> None:
    directory = shipped("shipped:tabletop")
    folder = find_head(directory, None)
    told = json.loads((folder / "training.json").read_text())
    assert told["target_sha256"] == FAMILY.sha256(directory)
    assert sum(path.stat().st_size for path in folder.iterdir()) < 3_000_000


# Judging


@pytest.mark.parametrize("count", [7, 12])
def test_the_judge_counts_the_passes_that_the_engine_makes(count: int, tmp_path: Path) -> None:
    """Recorded taps and tokens stand for the target: the same drafts, the same passes."""
    from vla_ros_lab.train.head.features import TargetReader, read_episode, write_episode
    from vla_ros_lab.train.head.judge import Judge

    checkpoint = tiny(tiny_config("llama_gqa"), dim=count, seed=5)
    head = recursive_head(checkpoint.config, count, count)
    save_head(tmp_path, head)
    events = stream(24, {0: TEXTS[0], 12: TEXTS[0]}, seed=5)
    options = {"drafter": "head", "draft_checkpoint": str(tmp_path), "adaptive_draft": False}
    answers = play(engine_of(checkpoint, "speculative", **options), events)
    engine = engine_of(checkpoint)
    seer, episodes = TargetReader(engine), []
    for begin in (0, 12):
        engine.reset(TEXTS[0])
        for event in events[begin : begin + 12]:
            said = seer.step(observation(event.stamp, event.image), Timeline(0), CLOCK)
            assert said.tokens == answers[event.stamp].tokens
        write_episode(tmp_path / "episode.safetensors", seer.take())
        episodes.append(read_episode(tmp_path / "episode.safetensors"))
    read = load_head(tmp_path, checkpoint.config, count, CPU, torch.float32)
    judged = Judge(engine.model.actions, episodes, engine.model.decoder.embed).head(read)
    passes = [answer.target_passes for answer in answers.values()]
    assert sum(answer.draft_passes for answer in answers.values()) > 24
    assert judged.passes == pytest.approx(sum(passes) / len(passes), abs=0.15)
