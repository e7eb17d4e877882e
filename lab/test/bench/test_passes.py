"""`vla-ros bench --passes`: every pass beside the roofline of this machine."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from support.engine import Again
from support.tuned import MadeUp
from vla_ros.engine.families.openvla import policy_of
from vla_ros.engine.layers.tuner import TORCH
from vla_ros.engine.models import openvla as model
from vla_ros_lab.bench import passes
from vla_ros_lab.bench.passes import _spent, operators
from vla_ros_lab.roofline.devices import Device, Rate

PASSES = ["--passes", "--timed", "3"]
Bench = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is measured at once: 1 TFLOP/s, 100 GB/s."""
    fast, wide = (Rate(rate, rate, "a test", "a test") for rate in (1e12, 1e11))
    device = Device("this", "a machine", {"fp32": fast, "bf16": fast}, wide)
    monkeypatch.setattr("vla_ros_lab.roofline.devices.measure", lambda *args, **options: device)


def test_every_pass_and_its_share(bench: Bench, tmp_path: Path) -> None:
    found = bench("random:small", *PASSES, "--output", str(tmp_path))
    rows, prompt = found["passes"], found["prompt_tokens"]
    assert list(rows) == [
        "preprocess", "vision", "projector", "prefill", "prefill + draft", "decode",
        "decode + draft", "packed pass",
    ]  # fmt: skip
    new = {name: row["tokens"] for name, row in rows.items()}
    assert new["prefill"] == prompt
    assert new["prefill + draft"] == new["packed pass"] == prompt + 6
    assert (new["decode"], new["decode + draft"]) == (1, 7)
    for name, row in rows.items():
        assert 0 < row["best_ms"] <= row["median_ms"]
        assert row["kernels"] is None  # no GPU tells
        if name == "preprocess":
            assert row["efficiency"] is None
            continue
        assert row["operators"] > (0 if name == "projector" else 10)
        assert row["efficiency"] == pytest.approx(row["roofline_ms"] / row["median_ms"], rel=1e-4)
    # A decode reads all weights at 100 GB/s: layers and head of random:small in fp32.
    weights = 4 * (4 * 256 * 256 + 3 * 256 * 704) + 256 * 1024
    assert rows["decode"]["bound"] == "memory"
    assert rows["decode"]["roofline_ms"] == pytest.approx(4 * weights / 1e11 * 1e3, rel=0.1)
    assert rows["prefill"]["bound"] == "compute"
    assert json.loads((tmp_path / "passes.json").read_text()) == found
    assert "packed pass" in (tmp_path / "passes.txt").read_text()


def test_the_products_that_were_chosen_are_listed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where passes are captured; here a stand-in captures them, and the times are made up."""
    made = MadeUp({TORCH: 5e-6, "GEMV 4x512": 2e-6})
    monkeypatch.setattr(model, "choose_tuner", lambda device, dtype: made.tuner)
    monkeypatch.setattr(passes, "policy_of", partial(policy_of, capture=Again()))
    found = bench("random:small", *PASSES, "--gemm", "auto", "--output", str(tmp_path))
    decode = {
        "rows": 1, "count": 768, "width": 256, "way": "GEMV 4x512", "us": 2.0, "torch_us": 5.0,
        "kind": "product",
    }  # fmt: skip
    assert found["gemm"] == "auto" and decode in found["products"]
    text = (tmp_path / "passes.txt").read_text()
    assert "768 x 256" in text and "2.50" in text and "GEMV 4x512" in text
    found = bench("random:small", *PASSES, "--gemm", "torch")
    assert (found["gemm"], found["products"]) == ("torch", [])


def test_a_replayed_graph_asks_for_few_operators() -> None:
    """What is counted is what the host launches one by one."""
    x = torch.ones(4)

    def pass_over() -> torch.Tensor:
        return (x * 2 + 1).view(2, 2).sum()

    assert operators(pass_over) == 3  # the view is none


@pytest.mark.parametrize("gemm", ["torch", "auto"])  # which is the same without graphs
@pytest.mark.parametrize("preset", ["pi0-small", "smolvla-small", "groot-n1.7-small"])
def test_of_an_action_head_the_functions_that_are_captured(
    preset: str, gemm: str, bench: Bench, tmp_path: Path
) -> None:
    found = bench(f"random:{preset}", *PASSES, "--gemm", gemm, "--output", str(tmp_path))
    rows = found["passes"]
    assert list(rows) == ["vision", "prefill", "all steps"]
    assert rows["prefill"]["tokens"] == found["prompt_tokens"]
    assert rows["all steps"]["operators"] > rows["prefill"]["operators"] > 10
    for row in rows.values():
        assert 0 < row["best_ms"] <= row["median_ms"] and row["kernels"] is None
        assert row["efficiency"] == pytest.approx(row["roofline_ms"] / row["median_ms"], rel=1e-4)
    assert (found["attention"], found["gemm"], found["products"]) == ("no graphs", gemm, [])
    assert "all steps" in (tmp_path / "passes.txt").read_text()


def test_a_head_without_a_roofline_is_timed(bench: Bench) -> None:
    rows = bench("random:turbovla-small", *PASSES)["passes"]
    assert all(row["roofline_ms"] is None and row["median_ms"] > 0 for row in rows.values())


def test_a_pass_is_timed_by_the_clock_that_was_asked_for() -> None:
    """A sleep takes no CPU time: what others of the machine do is not the pass's."""
    device = torch.device("cpu")
    by_cpu, by_wall = (_spent(lambda: time.sleep(0.02), device, 3, cpu) for cpu in (True, False))
    assert max(by_cpu) < 10
    assert min(by_wall) >= 20
