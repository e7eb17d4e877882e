"""Muon in float32, for CPUs without bf16: torch's steps, with less rounding."""

from __future__ import annotations

import pytest
import torch

from vla_ros.engine.layers.devices import multiplies_bfloat16
from vla_ros_lab.train.optimizer import Muon, muon_for

SHAPES = ((24, 48), (48, 24), (32, 32))


def steps_of(kind: type[torch.optim.Muon]) -> tuple[list[torch.Tensor], dict[str, object]]:
    draw = torch.Generator().manual_seed(0)
    matrices = [torch.nn.Parameter(torch.randn(shape, generator=draw)) for shape in SHAPES]
    muon = kind(matrices, 0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        for matrix in matrices:
            matrix.grad = torch.randn(matrix.shape, generator=draw)
        muon.step()
    return [matrix.detach() for matrix in matrices], muon.state_dict()


def test_its_steps_are_those_of_torch_and_either_goes_on_from_the_others_state() -> None:
    (ours, state), (theirs, known) = steps_of(Muon), steps_of(torch.optim.Muon)
    begun = torch.randn(SHAPES[0], generator=torch.Generator().manual_seed(0))
    assert (ours[0] - begun).abs().mean() > 5e-3  # they moved
    for one, other in zip(ours, theirs, strict=True):
        assert (one - other).abs().max() < 1e-3  # bf16 in torch's products
    assert state["param_groups"] == known["param_groups"]
    for number in range(len(SHAPES)):
        mine, its = (s["state"][number]["momentum_buffer"] for s in (state, known))
        assert torch.equal(mine, its)


def test_a_gpu_keeps_torchs_and_a_cpu_without_bf16_gets_ours() -> None:
    assert muon_for(torch.device("cuda")) is torch.optim.Muon
    if multiplies_bfloat16(torch.device("cpu")):
        pytest.skip("this CPU has bf16")
    assert muon_for(torch.device("cpu")) is Muon
