"""Several robots on one shadow GPU: their answers, their memory, a worker process and a server."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest
import torch

from shadow_cuda import ShadowGpu, shadow
from shadow_cuda.playing import FRAMES, SETTLED, TEXTS, answer, load_on_shadow, play
from support.engine import CLOCK, engine_of, tiny_config
from unit.runtime.worker.bench import Bench
from unit.runtime.worker.conftest import make_bench
from vla_ros.core.types import Instruction, Observation, Timeline
from vla_ros.engine import Engine, EngineOptions, InvalidAction
from vla_ros.engine.families.openvla import in_memory
from vla_ros.engine.layers.pieces import Batched
from vla_ros.engine.load import load_engine
from vla_ros.policies import PolicySpec, load_policy

pytestmark = pytest.mark.long

__all__ = ["make_bench"]  # a fixture
CONFIG = tiny_config("llama_gqa", "fused")


def of(name: str, device: str) -> Engine:
    if name in ("autoregressive", "speculative"):
        weights = in_memory(CONFIG, 2, torch.device(device), torch.float32, 7)
        return engine_of(weights, name, device=device)
    return load_engine(EngineOptions(f"random:{name}-small", device=device, num_threads=1))


NAMES = ("autoregressive", "speculative", "pi0", "smolvla", "groot-n1.7")


def together(robots: list[Engine], number: int) -> list[object]:
    """Answers to a frame of several sessions, a piece of each at a time."""
    found: dict[int, object] = {}
    batched: Batched[int, object] = Batched((InvalidAction,))
    from shadow_cuda.playing import seen

    for index, robot in enumerate(robots):
        if number in TEXTS:
            robot.reset(TEXTS[number])
        rng = np.random.default_rng(number)
        timeline = Timeline(CLOCK.steady_ns())
        batched.add(index, robot.pieces(seen(robot, number, rng), timeline, CLOCK))
    while len(found) < len(robots):  # one that asks for nothing ends as it is added
        found |= dict(batched.turn())
    return [found[index] for index in range(len(robots))]


@pytest.mark.parametrize("name", NAMES)
def test_sessions_say_what_the_cpu_s_say_and_wait_for_events_alone(name: str) -> None:
    first = of(name, "cpu")
    wanted = [together([one], n)[0] for one in [first.session()] for n in range(FRAMES)]
    with shadow() as gpu:
        robots = [first.session() for first in [of(name, "cuda:0")] for _ in range(2)]
        found = [together(robots, n) for n in range(SETTLED)]
        with gpu.journal.watched() as journal:
            found += [together(robots, n) for n in range(SETTLED, FRAMES)]
        assert not gpu.journal.errors
    for one, pair in zip(wanted, found, strict=True):
        for other in pair:
            assert not isinstance(other, Exception)
            np.testing.assert_allclose(other.actions, one.actions, atol=3e-6)  # type: ignore[union-attr]
    assert set(journal.waits) <= {"event wait", "host malloc"}, str(journal)


@pytest.mark.parametrize("name", NAMES)
def test_a_closed_session_gives_its_memory_back(name: str) -> None:
    with shadow() as gpu:
        first = of(name, "cuda:0")
        peaks, left = [], []
        for _ in range(3):  # the first time tables, pools of KV caches and their plans are made
            robots = [first.session() for _ in range(2)]
            for number in range(3):
                together(robots, number)
            peaks.append(torch.cuda.memory_allocated())
            del robots
            gc.collect()
            left.append(torch.cuda.memory_allocated())
        assert peaks[1] == peaks[2]
        assert left[0] == left[1] == left[2]
        assert not gpu.journal.errors


def test_an_engine_that_is_gone_leaves_nothing_on_the_gpu() -> None:
    """Its graphs' pool, its weights, its KV caches."""
    with shadow() as gpu:
        for name in ("speculative", "pi0"):
            play(of(name, "cuda:0"), gpu)
            gc.collect()
            torch.cuda.empty_cache()
            assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == (0, 0)


@pytest.mark.parametrize("name", ["speculative", "pi0"])
def test_a_frame_that_is_no_number_ends_alone(name: str) -> None:
    """NaN in the weights for a frame: the answers behind it are as before."""
    with shadow() as gpu:
        engine, rng = of(name, "cuda:0"), np.random.default_rng(5)
        good = answer(engine, 0, rng)
        assert good is not None
        tensors = engine.model.vision if name == "speculative" else engine.model.tower
        found = [t for t in all_tensors(tensors) if t.is_cuda and t.dim() == 2][:1]
        kept = [t.clone() for t in found]
        with torch.inference_mode():
            for tensor in found:
                tensor.fill_(float("nan"))
            with pytest.raises(InvalidAction):
                answer(engine, 1, rng)
            for tensor, was in zip(found, kept, strict=True):
                tensor.copy_(was)
        again = answer(engine, 0, np.random.default_rng(5))
        assert again is not None
        np.testing.assert_array_equal(again.actions, good.actions)
        assert engine.captures_in_service == 0
        assert not gpu.journal.errors


def all_tensors(part: object) -> list[torch.Tensor]:
    """Of a module, or of an object's fields."""
    if isinstance(part, torch.nn.Module):
        return [p.detach() for p in part.parameters()]
    found: list[torch.Tensor] = []
    for value in vars(part).values():
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            for each in value:
                if hasattr(each, "__dict__"):
                    found += all_tensors(each)
        elif hasattr(value, "__dict__"):
            found += all_tensors(value)
    return found


def test_an_instruction_at_the_limit_of_its_length() -> None:
    """As many tokens as are captured for, and one more."""
    texts = ["push " * count for count in range(20, 60)]
    with shadow() as gpu:
        engine, rng = of("speculative", "cuda:0"), np.random.default_rng(5)
        answer(engine, 0, rng)
        taken = []
        for text in texts:
            try:
                engine.reset(text)
            except ValueError as error:
                assert "the most is 64" in str(error)
                break
            taken.append(text)
        assert 0 < len(taken) < len(texts)
        engine.reset(taken[-1])
        assert answer(engine, 1, rng) is not None
        assert engine.captures_in_service == 0
        assert not gpu.journal.errors


@pytest.mark.parametrize("name", ["random:small", "random:smolvla-small"])
def test_a_worker_process_on_a_gpu(name: str, make_bench: Callable[..., Bench]) -> None:
    options = EngineOptions(name, num_threads=1)
    local = load_policy(PolicySpec("vla", engine=options))
    there = EngineOptions(name, num_threads=1, device="cuda:0")
    bench = make_bench(load_on_shadow, PolicySpec("vla", engine=there, warmup_count=1))
    bench.executor.start(120)
    task = Instruction("push", 0)
    local.reset(task)
    draw = np.random.default_rng(3)
    for stamp in range(1, 4):
        image = draw.integers(0, 256, (48, 64, 3)).astype(np.uint8)
        state = draw.normal(0, 0.1, local.info.state_dim) if local.info.state_dim else None
        seen = Observation(stamp, stamp, CLOCK.steady_ns(), image, image, state)
        wanted = local.step(seen, Timeline(CLOCK.steady_ns()), CLOCK)
        bench.executor.submit(seen, task)
        found = bench.result().inference
        assert found is not None and wanted is not None
        np.testing.assert_allclose(found.actions, wanted.actions, atol=2e-6)
        assert found.captures == 0


def test_a_server_on_a_gpu() -> None:
    for module in ("websockets", "msgpack", "prometheus_client"):
        pytest.importorskip(module, reason=f"{module} is not installed: pip install '.[serve]'")
    from support.serving import serving

    here = load_policy(PolicySpec("vla", engine=options_of("cpu")))
    here.reset(Instruction(TEXTS[0], 1))
    with shadow() as gpu:
        spec = PolicySpec("vla", engine=options_of("cuda:0"), warmup_count=1)
        with serving(spec) as server:
            there = PolicySpec("remote", engine=EngineOptions(server.address))
            robots = [load_policy(there) for _ in range(2)]
            for robot in robots:
                robot.reset(Instruction(TEXTS[0], 1))
            from shadow_cuda.playing import frames

            for number in range(3):
                seen = Observation(number + 1, number + 1, CLOCK.steady_ns(), frames()[number])
                wanted, *both = (
                    robot.step(seen, Timeline(CLOCK.steady_ns()), CLOCK)
                    for robot in (here, *robots)
                )
                for found in both:
                    assert found is not None and wanted is not None
                    np.testing.assert_allclose(found.actions, wanted.actions, atol=1e-6)
        assert not gpu.journal.errors


def options_of(device: str) -> EngineOptions:
    return EngineOptions("random:small", device=device, num_threads=1)


def test_two_gpus_take_turns() -> None:
    """The second is never the current one: its events, graphs and streams are its own."""
    with shadow(2) as gpu:
        assert isinstance(gpu, ShadowGpu)
        engines = []
        for device in ("cuda:0", "cuda:1"):
            weights = in_memory(CONFIG, 2, torch.device(device), torch.float32, 7)
            engines.append(engine_of(weights, "speculative", device=device))
        rngs = [np.random.default_rng(5) for _ in engines]
        for number in range(6):
            one, other = (
                answer(engine, number, rng) for engine, rng in zip(engines, rngs, strict=True)
            )
            assert one is not None and other is not None
            assert one.tokens == other.tokens
        assert not gpu.journal.errors
