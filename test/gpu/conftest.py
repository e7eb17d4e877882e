"""Tests whose question is a GPU's. Each runs on the CPU too, so that the test itself is known to
work; there a stand-in captures the passes.

    cd test && python -m pytest gpu            on a machine with a GPU: both devices
    python -m pytest gpu -m gpu                the GPU alone, as benchmarks/run.sh
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from support.gpu import DEVICES
from vla_ros.engine import Engine
from vla_ros.engine.families.openvla import in_memory
from vla_ros.engine.io.config import ModelConfig


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(autouse=True)
def plain_arithmetic() -> Iterator[None]:
    """No TF32 and no sums in bf16: what is compared differs in the order of its sums only."""
    torch.set_num_threads(1)
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, matmul.allow_bf16_reduced_precision_reduction, cudnn.allow_tf32
    matmul.allow_tf32 = matmul.allow_bf16_reduced_precision_reduction = cudnn.allow_tf32 = False
    yield
    matmul.allow_tf32, matmul.allow_bf16_reduced_precision_reduction, cudnn.allow_tf32 = before


@pytest.fixture(autouse=True)
def short_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer lengths of prompts to prepare for."""
    for module in ("vla_ros.engine.decoding.tokens", "vla_ros_lab.model_drafter"):
        monkeypatch.setattr(f"{module}.MAX_TEXT", 64)


@pytest.fixture
def make_engine():  # type: ignore[no-untyped-def]
    """make(config, device, decoding, graphs=True, seed=0, **options): random weights in fp32."""
    from support.engine import Again, engine_of

    def make(
        config: ModelConfig,
        device: str,
        decoding: str,
        graphs: bool = True,
        seed: int = 0,
        dtype: str = "float32",
        **options: object,
    ) -> Engine:
        weights = in_memory(config, seed, torch.device(device), getattr(torch, dtype), 7)
        capture = Again() if graphs and device == "cpu" else None
        return engine_of(
            weights, decoding, capture, device=device, dtype=dtype, cuda_graphs=graphs, **options
        )

    return make
