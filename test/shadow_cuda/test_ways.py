"""Every family, decoding, drafter and format of weights on the shadow GPU: the CPU's actions, no
capture in service, and nothing that waits but the events of the answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from shadow_cuda.playing import held, off, on_both, play, tokens
from shadow_cuda.runtime import shadow
from support.calibrations import write_calibration
from support.engine import engine_of, tiny_config
from support.heads import recursive_head
from vla_ros.engine import Engine, EngineOptions
from vla_ros.engine.decoding.draft_head_folder import save_head
from vla_ros.engine.families.lerobot import PRESETS
from vla_ros.engine.families.openvla import in_memory, write_random
from vla_ros.engine.families.registry import write_folder
from vla_ros.engine.io.config import ModelConfig
from vla_ros.engine.layers.flow_matching import RtcMode
from vla_ros.engine.load import load_engine
from vla_ros.engine.options import HERE

CONFIG = tiny_config("llama_gqa", "fused")
DECODINGS: dict[str, dict[str, Any]] = {
    "autoregressive": {},
    "autoregressive, Qwen": {"config": tiny_config("qwen2_tied", "fused")},
    "autoregressive, by torch alone": {"attention": "torch", "image_steps": "cpu"},
    "autoregressive, gemm=auto": {"gemm": "auto"},
    "autoregressive, LIBERO's images": {"preprocessing": "libero", "center_crop": "always"},
    "actionflow": {},
    "speculative": {},
    "speculative, temporal_linear": {"drafter": "temporal_linear"},
    "speculative, fixed shapes": {"fixed_shapes": True},
    "speculative, gamma 2": {"gamma": 2},
    "speculative, trees": {"drafter": "temporal_tree"},
    "speculative, head": {"drafter": "head", "adaptive_draft": False},
    "speculative, model": {"drafter": "model"},
    "speculative, relaxed": {"acceptance": "relaxed", "relaxed_distance": 8},
    "speculative, sampling": {"drafter": "model", "acceptance": "sampling"},
    "heterospec": {},
    "speculative, K = 1": {"dim": 1},
    "speculative, K = 56": {"config": replace(CONFIG, chunk=8)},
    "autoregressive, K = 56": {"config": replace(CONFIG, chunk=8)},
}


def of_tokens(name: str, folder: Path, **more: Any) -> Callable[[str], Engine]:
    """An engine of a tiny model, by a device."""
    options = {**DECODINGS[name], **more}
    config: ModelConfig = options.pop("config", CONFIG)
    dim = options.pop("dim", 7)
    count = dim * config.chunk
    if options.get("drafter") == "model":
        write_random(folder, CONFIG, seed=9)
        options["draft_checkpoint"] = str(folder)
    if options.get("drafter") == "head":
        save_head(folder / "head", recursive_head(config, count, dim, seed=3))
        options["draft_checkpoint"] = str(folder / "head")
    decoding = name.split(",")[0]
    if decoding == "heterospec":
        options["extra"] = write_calibration(folder, count)

    def make(device: str) -> Engine:
        place = torch.device(device), getattr(torch, options.get("dtype", "float32"))
        weights = in_memory(config, 2, *place, dim)
        return engine_of(weights, decoding, device=device, num_threads=1, **options)

    return make


def quick_but(names: tuple[str, ...], *long: str) -> list[Any]:
    """Parameters, some of them for `make test-long`: what takes seconds and asks what others do."""
    return [pytest.param(n, marks=pytest.mark.long) if n in long else n for n in names]


@pytest.mark.parametrize(
    "name", quick_but(tuple(DECODINGS), "speculative, temporal_linear", "speculative, gamma 2")
)
def test_tokens(name: str, tmp_path: Path) -> None:
    """A draw by the GPU's generator differs there; the shadow's draws as the CPU's."""
    here, there = on_both(of_tokens(name, tmp_path))
    held(name, here, there, within=0.0)


@pytest.mark.parametrize("name", ["autoregressive", "actionflow", "speculative, trees"])
def test_tokens_without_graphs(name: str, tmp_path: Path) -> None:
    here, there = on_both(of_tokens(name, tmp_path, cuda_graphs=False))
    held(f"{name}, eager", here, there, within=0.0, graphs=False)


FAMILIES = ("pi0", "pi05", "smolvla", "groot-n1.5", "groot-n1.6", "groot-n1.7", "evo1", "turbovla")
GUIDED = tuple(name for name in FAMILIES if name != "turbovla")  # which starts from no noise


def of_family(checkpoint: str, **options: Any) -> Callable[[str], Engine]:
    def make(device: str) -> Engine:
        return load_engine(EngineOptions(checkpoint, device=device, num_threads=1, **options))

    return make


@pytest.mark.parametrize("name", quick_but(FAMILIES, "pi05", "groot-n1.5"))
def test_chunks(name: str) -> None:
    here, there = on_both(of_family(f"random:{name}-small"))
    held(name, here, there, within=2e-6)


@pytest.mark.parametrize("name", quick_but(GUIDED, "pi05", "smolvla", "groot-n1.6", "groot-n1.7"))
def test_chunks_that_continue(name: str) -> None:
    here, there = on_both(of_family(f"random:{name}-small", rtc_mode="guided"))
    assert any(one.continues for one in there.answers)
    held(f"{name}, guided", here, there, within=2e-6)


@pytest.mark.parametrize(("name", "dtype"), [("pi0", "float32"), ("groot-n1.7", "bfloat16")])
def test_chunks_without_graphs(name: str, dtype: str) -> None:
    make = of_family(f"random:{name}-small", cuda_graphs=False, dtype=dtype)
    here, there = on_both(make)
    held(f"{name}, eager, {dtype}", here, there, 2e-6 if dtype == "float32" else 0.02, False)


@pytest.mark.parametrize("name", ["smolvla", "evo1", "turbovla"])
def test_chunks_in_bf16(name: str) -> None:
    here, there = on_both(of_family(f"random:{name}-small", dtype="bfloat16", gemm="auto"))
    held(f"{name}, bf16, gemm=auto", here, there, within=0.02)


@pytest.fixture(scope="module")
def trained_for_rtc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pi05 that takes every RTC mode."""
    folder = tmp_path_factory.mktemp("rtc_trained")
    write_folder(folder, replace(PRESETS["pi05-small"], rtc_trained=True, max_delay=4), seed=1)
    return folder


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
@pytest.mark.parametrize("mode", [mode.value for mode in RtcMode])
def test_chunks_that_continue_in_each_mode(mode: str, graphs: bool, trained_for_rtc: Path) -> None:
    """``guided_vjp`` goes back through the network at every step, behind a prefix of a graph."""
    make = of_family(str(trained_for_rtc), rtc_mode=mode, cuda_graphs=graphs)
    here, there = on_both(make)
    assert any(one.continues for one in there.answers)
    # A backward pass a step adds up what other products round: 5.5e-6 on a CPU with AVX512-BF16.
    within = 2e-5 if mode == "guided_vjp" else 2e-6
    held(f"pi05, {mode}{'' if graphs else ', eager'}", here, there, within, graphs)


def test_chunks_of_three_cameras(tmp_path: Path) -> None:
    config = replace(PRESETS["smolvla-small"], cameras=("front", "wrist", "left"))
    write_folder(tmp_path, config, seed=1)
    here, there = on_both(of_family(str(tmp_path), camera_roles=("left",)))
    held("smolvla, three cameras", here, there, within=2e-6)


@pytest.mark.parametrize("name", ["small-oft", "bitvla-small"])
def test_chunks_in_one_pass(name: str) -> None:
    """BitVLA rounds activations to eight bits: where a sum differs in its last bit, one of them
    may be another."""
    here, there = on_both(of_family(f"random:{name}"))
    held(name, here, there, within=0.1 if name.startswith("bitvla") else 1e-5)


FAST = {
    "autoregressive": {"decoding": "autoregressive"}, "temporal": {"decoding": "speculative"},
    "temporal_tree": {"decoding": "speculative", "drafter": "temporal_tree"},
}  # fmt: skip


@pytest.mark.parametrize("name", quick_but(tuple(FAST), "temporal", "temporal_tree"))
def test_pi0_fast(name: str) -> None:
    here, there = on_both(of_family("random:pi0_fast-small", **FAST[name]))
    held(f"pi0_fast, {name}", here, there, within=0.0)


CHECKPOINTS = ("random:small", "random:pi0-small")
WEIGHTS = ("", "int8", "int4", "fp8", "decoder=int4,head=int8")


@pytest.mark.parametrize("weights", quick_but(WEIGHTS, "int4", "fp8", "decoder=int4,head=int8"))
@pytest.mark.parametrize("checkpoint", quick_but(CHECKPOINTS, "random:small"))
def test_weights_of_few_bits(checkpoint: str, weights: str) -> None:
    """A GPU multiplies them by other kernels than a CPU: its graphs are held to its passes without
    (in BF16 as another shape's sums may differ)."""
    played = []
    for graphs in (False, True):
        make = of_family(checkpoint, dtype="bfloat16", weights=weights, cuda_graphs=graphs)
        with shadow() as gpu:
            played.append(play(make("cuda:0"), gpu))
    name = f"{checkpoint.removeprefix('random:')}, {weights or 'as stored'}"
    if checkpoint == "random:small":
        assert tokens(played[0]) == tokens(played[1])
    assert off(*played) < 0.05
    held(f"{name}, bf16", *played, within=0.05)


def test_what_is_left_open_takes_the_gpu() -> None:
    with shadow():
        info = load_engine(EngineOptions("random:small", **HERE)).info  # type: ignore[arg-type]
        assert (info.device, info.dtype) == ("cuda:0", "bfloat16")
