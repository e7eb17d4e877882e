"""Short prompts, one thread, and the table of what was found: shown with ``-s``."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from shadow_cuda.playing import TABLE


@pytest.fixture(autouse=True)
def no_gpu_and_no_triton() -> None:
    """Where kernels would be given the addresses of a CPU."""
    if torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("a GPU or Triton's interpreter is here: test/gpu is for them")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def short_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer lengths of prompts to capture, each warmed up once."""
    monkeypatch.setattr("vla_ros.engine.layers.graphs.WARM_UP", 1)
    monkeypatch.setattr("vla_ros.engine.models.base.BUCKET", 48)
    for module in ("vla_ros.engine.decoding.tokens", "vla_ros_lab.model_drafter"):
        monkeypatch.setattr(f"{module}.MAX_TEXT", 64)


@pytest.fixture(autouse=True, scope="module")
def table() -> Iterator[None]:
    TABLE.clear()
    yield
    if TABLE:
        print("\n| way | off the CPU's | graphs | in service | replays | waits of an action |")
        print("|---|---|---|---|---|---|")
        print("\n".join(TABLE))
