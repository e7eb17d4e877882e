"""flash-attn in the engine's passes: a stand-in of its signature on the shadow GPU."""

from __future__ import annotations

import importlib.machinery
import logging
import sys
from collections.abc import Callable, Iterator

import pytest
import torch

from shadow_cuda import flash_stand_in as library
from shadow_cuda import shadow
from shadow_cuda.playing import Played, held, play, tokens
from support.engine import engine_of, tiny_config
from vla_ros.engine import EngineOptions
from vla_ros.engine.families.openvla import in_memory
from vla_ros.engine.layers import flash as module
from vla_ros.engine.layers.backends import choose_backend
from vla_ros.engine.layers.flash import Shape, flash, misfit
from vla_ros.engine.layers.kernels.fused import Heads
from vla_ros.engine.load import load_engine

pytestmark = pytest.mark.long

CUDA = torch.device("cuda:0")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bool], None]]:
    """installed(faster): the stand-in is there, and wins its trials or loses them."""
    caches = module.installed, module._is_faster
    spec = importlib.machinery.ModuleSpec("flash_attn", None)
    monkeypatch.setattr(library, "__spec__", spec)
    library.CALLS.clear()

    def install(faster: bool = True) -> None:
        monkeypatch.setitem(sys.modules, "flash_attn", library)
        for one in caches:
            one.cache_clear()
        library.CALLS.clear()
        times = iter([1e-5, 2e-5] * 99 if faster else [2e-5, 1e-5] * 99)
        monkeypatch.setattr(module, "stopwatch", lambda device: lambda call: next(times))

    yield install
    for one in caches:
        one.cache_clear()


def of_tokens(decoding: str, **options: object) -> Played:
    config = tiny_config("llama_gqa", "fused")
    with shadow() as gpu:
        weights = in_memory(config, 2, CUDA, torch.bfloat16, 7)
        more = {"device": "cuda:0", "dtype": "bfloat16", "num_threads": 1, **options}
        return play(engine_of(weights, decoding, **more), gpu)


@pytest.mark.parametrize("decoding", ["autoregressive", "speculative"])
def test_it_runs_where_it_is_faster(
    decoding: str, installed: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    """Vision, prefill and single tokens by it, in graphs; where it rounds otherwise than torch, a
    random model's close calls are others."""
    plain = of_tokens(decoding)
    assert not library.CALLS
    installed()
    eager = of_tokens(decoding, cuda_graphs=False)
    with caplog.at_level(logging.INFO, logger="vla_ros.engine"):
        found = of_tokens(decoding)
    assert set(library.CALLS) == {"fresh", "causal", "rows"}
    held(f"{decoding}, flash-attn", eager, found, within=0.0)
    pairs = [each for pair in zip(tokens(found), tokens(plain), strict=True)
             for each in zip(*map(tuple, filter(None, pair)), strict=True)]  # fmt: skip
    assert sum(one == other for one, other in pairs) > 0.8 * len(pairs)


def test_the_log_says_what_runs(
    installed: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    installed()
    with caplog.at_level(logging.INFO, logger="vla_ros.engine"), shadow():
        backend = choose_backend(CUDA, torch.bfloat16, 16, heads=Heads(4, 2))
    assert "single tokens, 4 heads of 16: flash-attn runs: 10.0 us by flash" in caplog.text
    assert backend.name == "two products, flash-attn for single tokens"


@pytest.mark.parametrize("name", ["pi0", "smolvla"])
def test_chunks(name: str, installed: Callable[..., None]) -> None:
    """pi0's prefix too, with its padding; SmolVLA's has a mask of its own."""
    options = EngineOptions(f"random:{name}-small", device="cuda:0", dtype="bfloat16")
    played = []
    for faster in (False, True):
        installed(faster)
        with shadow() as gpu:
            played.append(play(load_engine(options), gpu))
    assert set(library.CALLS) == ({"fresh", "filled"} if name == "pi0" else {"fresh"})
    held(f"{name}, flash-attn", *played, within=0.02)


def test_it_does_not_run_where_torch_is_faster_or_asked_for(
    installed: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    installed(faster=False)
    with caplog.at_level(logging.INFO, logger="vla_ros.engine"):
        of_tokens("autoregressive")
    assert "stays as it is: 20.0 us by flash-attn, 10.0 without" in caplog.text
    assert sum(library.CALLS.values()) < 5
    installed()
    of_tokens("autoregressive", attention="torch")
    assert not library.CALLS["causal"] + library.CALLS["rows"]


def test_one_that_gives_something_else_is_left_out(
    installed: Callable[..., None], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    installed()
    right, name = library.flash_attn_func, "flash_attn_func"
    monkeypatch.setattr(library, name, lambda *given, **more: right(*given, **more) * 2)
    with shadow():
        x = torch.randn(1, 8, 2, 16, device=CUDA, dtype=torch.bfloat16)
        with torch.inference_mode():
            assert flash(x, x, x, 0.25) is None
    assert "flash-attn fails (ValueError: its result is off by" in caplog.text


REFUSED = {
    "is neither float16 nor bfloat16": {"dtype": torch.float32},
    "no multiple of 8 up to 256": {"head_dim": 20},
    "heads of 264": {"head_dim": 264},
    "6 heads do not share 4": {"heads": Heads(6, 4)},
    "generation 8.0 or newer": {"device": torch.device("cpu")},
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_it_cannot_take_is_said_in_one_line(
    why: str, installed: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    installed()
    good = {"device": CUDA, "dtype": torch.bfloat16, "head_dim": 64, "heads": Heads(8, 2)}
    with shadow():
        assert misfit(Shape(**good)) == ""
        shape = Shape(**{**good, **REFUSED[why]})
        assert why in misfit(shape)
        with caplog.at_level(logging.INFO, logger="vla_ros.engine"):
            assert not module._is_faster(shape)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "flash-attn does not fit" in line and why in line


def test_a_gradient_is_torch_s(installed: Callable[..., None]) -> None:
    installed()
    with shadow():
        x = torch.randn(1, 8, 2, 16, device=CUDA, dtype=torch.bfloat16)
        with torch.enable_grad():
            assert flash(x, x, x, 0.25) is None
