"""The stages of benchmarks/run.sh on a GPU, of the smallest models, on the shadow: each comes to
its end, so that the first hour on a real one is not lost to an error of our own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from shadow_cuda import shadow
from vla_ros.cli.main import main
from vla_ros_lab.roofline import devices

ROOT = Path(__file__).resolve().parents[2]
#: in `make test`; the others with the long ones
QUICK = {"passes", "engine-speculative_tree", "weights-int8", "family-smolvla", "family-pi0"}
REFUSED = 2


def stages() -> list:  # type: ignore[type-arg]
    """Those that are a run of `vla-ros bench`, and not of torch.compile."""
    from stages import on_gpu

    every = [
        stage for stage in on_gpu(small=True) if stage.command[:3] == ("-m", "vla_ros", "bench")
    ]
    return [
        pytest.param(stage, id=stage.name, marks=() if stage.name in QUICK else pytest.mark.long)
        for stage in every
        if "--compile-ablation" not in stage.command
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(ROOT / "benchmarks"))
        if "stage" in metafunc.fixturenames:
            metafunc.parametrize("stage", stages())


def test_a_stage_comes_to_its_end(stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    # The profiler counts what hardware did.
    monkeypatch.setattr("vla_ros_lab.bench.passes.kernels", lambda call, device: 7)
    drawn = devices._numbers  # a GPU's rates are measured with 8192 x 8192, which a CPU is long at

    def small(torch_: Any, *shape: int, **more: Any) -> Any:
        return drawn(torch_, *(min(size, 64) for size in shape), **more)

    monkeypatch.setattr(devices, "_numbers", small)
    words = [*stage.command[2:], "--output", str(tmp_path / stage.name)]
    with shadow() as gpu:
        status = main(words)
        assert not gpu.journal.errors
    assert torch.get_num_threads()
    assert status == 0 or (stage.may_refuse and status == REFUSED)
    kind = "passes" if "--passes" in stage.command else "bench"
    if status == 0:
        written = json.loads((tmp_path / stage.name / f"{kind}.json").read_text())
        assert written["machine"]["gpu"] == "shadow"
        from summary import report

        report(tmp_path, {stage.name: stage.group})
        assert "shadow" in (tmp_path / "table.md").read_text()
