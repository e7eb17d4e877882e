"""The engine as its callers see it."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from support.engine import (
    CLOCK,
    CPU,
    TEXTS,
    engine_of,
    images,
    observation,
    play,
    stream,
    tiny,
    tiny_config,
)
from vla_ros.core.types import Timeline
from vla_ros.engine import EngineOptions, InvalidAction, load_engine
from vla_ros.engine.decoding.acceptance import Exact
from vla_ros.engine.decoding.drafters import TemporalDrafter
from vla_ros.engine.decoding.speculative import Speculative
from vla_ros.engine.families.openvla import in_memory

IMAGE = next(images(1))


def step(engine, stamp: int = 0):  # type: ignore[no-untyped-def]
    start = CLOCK.steady_ns()
    timeline = Timeline(start).mark("queue", CLOCK.steady_ns())
    return engine.step(observation(stamp, IMAGE), timeline, CLOCK)


def test_random_small_loads_through_the_real_loader_and_acts() -> None:
    engine = load_engine(EngineOptions(checkpoint="random:small"))
    assert engine.info.name == "vla"
    assert (engine.info.pipeline_depth, engine.info.chunk_length) == (1, 1)
    assert len(engine.info.checkpoint_sha256) == 64
    engine.reset(TEXTS[0])
    inference = step(engine, 5)
    assert inference.stamp_ns == 5
    assert inference.actions.shape == (1, 7)
    assert inference.actions.dtype == np.float64
    assert np.abs(inference.actions).max() <= 1
    assert 0 <= inference.actions[0, 6] <= 1
    assert len(inference.tokens) == inference.target_passes == 7


@pytest.mark.parametrize("decoding", ["autoregressive", "speculative", "generate"])
def test_stages_abut_and_add_up(decoding: str) -> None:
    engine = engine_of(tiny(), decoding)
    engine.reset(TEXTS[0])
    timeline = step(engine).timeline
    names = [name for name, _ in timeline.marks]
    assert names == ["queue", "preprocess", "vision", "prefill", "decode"]
    total = sum(timeline.durations_ms().values())
    assert total == pytest.approx((timeline.end_ns - timeline.start_ns) / 1e6)


def test_a_pipeline_gives_each_frames_own_timeline_and_stamp() -> None:
    engine = engine_of(tiny(), "actionflow")
    engine.reset(TEXTS[0])
    assert engine.info.pipeline_depth == 7
    answers = [step(engine, stamp) for stamp in range(10)]
    assert answers[:6] == [None] * 6
    assert [a.stamp_ns for a in answers[6:]] == [0, 1, 2, 3]
    starts = [a.timeline.start_ns for a in answers[6:]]
    assert starts == sorted(starts)
    assert answers[6].timeline.end_ns > answers[6].timeline.start_ns
    engine.reset(TEXTS[0])  # the same words: still a flush
    assert step(engine, 10) is None


def test_steps_before_an_instruction_and_empty_instructions_are_refused() -> None:
    engine = engine_of(tiny())
    with pytest.raises(RuntimeError, match="call reset"):
        step(engine)
    with pytest.raises(ValueError, match="empty"):
        engine.reset("  ")
    with pytest.raises(ValueError, match="tokens, the most is 192"):
        engine.reset("zyx " * 200)


def test_tokens_that_are_no_action_never_become_one() -> None:
    checkpoint = tiny()
    head = checkpoint.tensors["language_model.lm_head.weight"]
    head[100] = head[900] * 50  # a text token that shouts
    head[101] = -head[100]
    engine = engine_of(checkpoint)
    engine.reset(TEXTS[0])
    with pytest.raises(InvalidAction, match=r"token 10[01] is no action token"):
        step(engine)


def test_too_few_tokens_are_refused() -> None:
    engine = engine_of(tiny())
    engine.reset(TEXTS[0])
    decoded = engine.decoder.decoding.step(engine.encode(observation(0, IMAGE), Timeline(0), CLOCK))
    with pytest.raises(InvalidAction, match="gave 6 tokens, an action has 7"):
        engine.finish(replace(decoded, tokens=decoded.tokens[:-1]))


def test_a_failed_pass_does_not_cost_a_slot() -> None:
    engine = engine_of(tiny(), "actionflow")
    engine.reset(TEXTS[0])
    run = engine.decoder.decoding.runner.run
    for _ in range(9):  # more often than there are slots
        step(engine)
        engine.decoder.decoding.runner.run = lambda *_: 1 / 0
        with pytest.raises(ZeroDivisionError):
            step(engine)
        engine.decoder.decoding.runner.run = run
    assert [step(engine, stamp) is None for stamp in range(7)] == [True] * 6 + [False]


def test_the_instruction_is_tokenized_once(monkeypatch) -> None:
    engine = engine_of(tiny())
    calls = []
    kind = type(engine.policy.tokenizer)
    plain = kind.__call__
    monkeypatch.setattr(
        kind, "__call__", lambda self, text, d: calls.append(text) or plain(self, text, d)
    )
    for text in (TEXTS[0], TEXTS[0], TEXTS[1]):
        engine.reset(text)
        step(engine)
    assert calls == [TEXTS[0], TEXTS[1]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decoding": "magic"}, "decoding is 'magic': give one of auto, autoregressive"),
        ({"acceptance": "relaxed"}, "'auto' changes nothing.* for acceptance 'relaxed' name the"),
        ({"acceptance": "sampling"}, "for acceptance 'sampling' name the decoding, such as spec"),
        ({"drafter": "model"}, "needs no draft model: for drafter 'model' name the decoding"),
        ({"draft_checkpoint": "x"}, "for a draft_checkpoint name the decoding, such as spec"),
        ({"dtype": "int8"}, "dtype is 'int8'"),
        ({"gamma": -1}, "gamma is -1: give 0 to 64"),
        ({"gamma": "3"}, "gamma is '3': give a whole number"),
        ({"cuda_graphs": 1}, "cuda_graphs is 1: give true or false"),
        ({"temperature": 0.0}, "temperature"),
        ({"relaxed_distance": -1}, "relaxed_distance"),
    ],
)
def test_options_are_checked_at_once(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EngineOptions(**{"checkpoint": "random:small", **options})  # type: ignore[arg-type]


def test_a_checkpoint_is_needed_where_one_is_loaded() -> None:
    with pytest.raises(ValueError, match="checkpoint is empty: give a directory"):
        load_engine(EngineOptions())


def test_options_travel_and_say_what_was_chosen() -> None:
    chosen = {"center_crop": "always", "decoding": "speculative", "rtc_mode": "trained"}
    options = EngineOptions("random:small", **chosen, relaxed_distance=2, gamma=3)
    assert options.changed() == {
        "checkpoint": "random:small", **chosen, "relaxed_distance": 2, "gamma": 3,
    }  # fmt: skip
    assert pickle.loads(pickle.dumps(options)) == replace(options) == options


def test_auto_is_the_default_and_names_what_runs() -> None:
    assert EngineOptions(checkpoint="random:small").decoding == "auto"
    token_policy = engine_of(tiny(), "auto")
    assert isinstance(token_policy.decoder.decoding, Speculative)
    assert isinstance(token_policy.decoder.decoding.drafter, TemporalDrafter)
    assert isinstance(token_policy.decoder.decoding.acceptance, Exact)
    assert token_policy.info.decoding == token_policy.options.decoding == "speculative"
    oft = in_memory(replace(tiny_config(), parallel=True, chunk=2), 0, CPU, torch.float32)
    assert engine_of(oft, "auto").info.decoding == "parallel"
    assert engine_of(tiny(), "autoregressive").info.decoding == "autoregressive"


def test_decodings_that_do_not_fit_the_checkpoint_are_refused() -> None:
    with pytest.raises(ValueError, match="no OFT checkpoint"):
        engine_of(tiny(), "parallel")
    with pytest.raises(ValueError, match="give draft_checkpoint"):
        engine_of(tiny(), "speculative", drafter="model")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_named() -> None:
    with pytest.raises(ValueError, match="torch finds no GPU"):
        load_engine(EngineOptions(checkpoint="random:small", device="cuda"))


def test_bfloat16_runs_and_all_decodings_agree_with_fp32_mostly() -> None:
    """In bf16 equality is not promised; the actions must still be the model's."""
    checkpoint = tiny(seed=8)
    events = stream(20, {0: TEXTS[0]})
    exact = play(engine_of(checkpoint), events)
    low = {n: t.bfloat16() for n, t in tiny(seed=8).tensors.items()}
    engine = engine_of(replace(checkpoint, tensors=low), dtype="bfloat16")
    answers = play(engine, events)
    first = [a.tokens[0] == exact[s].tokens[0] for s, a in answers.items()]
    assert np.mean(first) >= 0.5


def test_the_engine_needs_neither_ros_nor_a_simulator_nor_a_plotter() -> None:
    code = (
        "import sys; from vla_ros.engine import load_engine, EngineOptions;"
        "import vla_ros_lab.bench.suite, vla_ros_lab.bench.report;"
        "bad = [m for m in ('rclpy', 'mujoco', 'matplotlib', 'torchvision', 'timm', 'scipy')"
        " if m in sys.modules]; sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_second_camera_is_seen_behind_the_first() -> None:
    """MiniVLA with a wrist camera: two patch sequences in one prompt."""
    config = replace(tiny_config("qwen2_tied", "fused"), images=2)
    engine = engine_of(in_memory(config, 0, CPU, torch.float32))
    engine.reset(TEXTS[0])
    one, other = list(images(2, still=0.0))
    prompts = [
        engine.encode(replace(observation(0, a), wrist_image=b), Timeline(0), CLOCK).prompt
        for a, b in ((one, one), (one, other))
    ]
    assert len(prompts[0]) == 32 + len(engine.policy.tokenizer(TEXTS[0]))
    assert torch.equal(prompts[0][:17], prompts[1][:17])
    assert not torch.equal(prompts[0][17:33], prompts[1][17:33])
    with pytest.raises(ValueError, match="needs a wrist image"):
        step(engine)


def test_the_center_crop_is_a_choice() -> None:
    plain, cropped = engine_of(tiny()), engine_of(tiny(), center_crop="always")
    prompts = []
    for engine in (plain, cropped):
        engine.reset(TEXTS[0])
        prompts.append(engine.encode(observation(0, IMAGE), Timeline(0), CLOCK).prompt)
    assert not torch.equal(*prompts)
