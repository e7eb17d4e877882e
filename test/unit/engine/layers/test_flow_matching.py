"""The solver: Euler steps, guidance, noise by request."""

from __future__ import annotations

import pytest
import torch

from support.flow import inputs_of, model_of, noise_for, noise_of, tiny_flow
from vla_ros.engine.layers.flow_matching import (
    Euler,
    Guidance,
    SampleBuffers,
    guidance_gain,
)

CPU = torch.device("cpu")


def test_euler_takes_equal_steps_from_noise_at_one_to_actions_at_zero() -> None:
    solver, seen = Euler(4), []
    sample = SampleBuffers(2, 3, 4, CPU)
    noise = torch.arange(6.0).view(2, 3)
    solver.load(sample, noise, None)

    def velocity(x: torch.Tensor, step: int) -> torch.Tensor:
        seen.append((step, x.clone()))
        return torch.full_like(x, float(step + 1))

    out = solver.run(sample, velocity)
    assert solver.times == (1.0, 0.75, 0.5, 0.25)
    assert [step for step, _ in seen] == [0, 1, 2, 3]
    assert torch.equal(seen[2][1], noise - 0.25 * (1 + 2))
    assert torch.equal(out, noise - 0.25 * (1 + 2 + 3 + 4))
    assert out.data_ptr() == sample.x.data_ptr()  # a buffer: nothing new is made


def test_an_exact_velocity_field_is_followed_to_its_end() -> None:
    """For v = noise - action the flow is a straight line, whatever the number of steps."""
    noise, action = torch.randn(5, 3), torch.randn(5, 3)
    for steps in (1, 3, 10):
        solver, sample = Euler(steps), SampleBuffers(5, 3, steps, CPU)
        solver.load(sample, noise, None)
        out = solver.run(sample, lambda x, i: noise - action)
        assert torch.allclose(out, action, atol=1e-6)


def test_guidance_pulls_the_weighted_rows_to_the_earlier_chunk() -> None:
    solver, sample = Euler(10), SampleBuffers(6, 2, 10, CPU)
    noise, action, previous = (torch.randn(6, 2) for _ in range(3))
    weights = torch.tensor([1.0, 1.0, 0.5, 0.1, 0.0, 0.0])
    results = {}
    for name, guidance in (("free", None), ("guided", Guidance(previous, weights, 2, 5.0))):
        solver.load(sample, noise, guidance)
        out = solver.run(sample, lambda x, i: noise - action, guidance and guidance.mode)
        results[name] = (out - previous).norm(dim=1).clone()
    assert torch.allclose(results["guided"][4:], results["free"][4:], atol=1e-5)
    assert (results["guided"][:4] < results["free"][:4]).all()
    assert results["guided"][0] < 0.05 * results["free"][0]


def test_the_gain_is_the_papers() -> None:
    """min(beta, (1 - tau) / (tau r^2)), r^2 = (1 - tau)^2 / (tau^2 + (1 - tau)^2)."""
    assert guidance_gain(1.0, 5.0) == 5.0
    for tau in (0.1, 0.3, 0.5, 0.9):
        r2 = (1 - tau) ** 2 / (tau**2 + (1 - tau) ** 2)
        assert guidance_gain(1 - tau, 1e9) == pytest.approx((1 - tau) / (tau * r2))


def test_noise_belongs_to_the_request() -> None:
    first = noise_for(3, 10**18, 50, 32)
    assert torch.equal(first, noise_for(3, 10**18, 50, 32))
    assert not torch.equal(first, noise_for(4, 10**18, 50, 32))
    assert not torch.equal(first, noise_for(3, 10**18 + 1, 50, 32))
    assert abs(float(first.mean())) < 0.1
    assert 0.9 < float(first.std()) < 1.1
    known = torch.tensor([0.78986, 0.00045, 0.89564])  # a recording replays in later versions too
    assert torch.allclose(first[0, :3], known, atol=1e-4)


@pytest.mark.parametrize("name", ["noise", "previous", "weights"])
def test_a_wrong_shape_is_named(name: str) -> None:
    solver, sample = Euler(2), SampleBuffers(4, 3, 2, CPU)
    right = {"noise": (4, 3), "previous": (4, 3), "weights": (4,)}
    given = {n: torch.zeros(*((5, 3) if n == name else s)) for n, s in right.items()}
    if name == "weights":
        given["weights"] = torch.zeros(5)
    guidance = Guidance(given["previous"], given["weights"])
    with pytest.raises(ValueError, match=rf"{name} is \[5"):
        solver.load(sample, given["noise"], guidance)
    with pytest.raises(ValueError, match="at least 1 step"):
        Euler(0)


@pytest.mark.parametrize("kind", ["pi0", "pi05", "smolvla"])
def test_an_old_prefix_is_refused(kind: str) -> None:
    """Prefixes are views of one set of buffers."""
    config = tiny_flow(kind)
    model, inputs = model_of(config), inputs_of(config, 2, 5)
    old = model.prefill(model.image_features(inputs[0]), *inputs[1:])
    model.prefill(model.image_features(inputs[0]), *inputs[1:])
    with pytest.raises(ValueError, match="written over"):
        model.sample_actions(old, None, noise_of(config))
