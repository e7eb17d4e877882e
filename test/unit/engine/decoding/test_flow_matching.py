"""The two functions that every family implements, and the solver behind the iterative ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from support.engine import CLOCK, images
from support.flow import inputs_of, model_of, noise_of, tiny_flow
from vla_ros.core import Observation, Timeline
from vla_ros.engine import EngineOptions, load_engine
from vla_ros.engine.engine import Engine
from vla_ros.engine.flow.primitive import Guidance, PrefixHead
from vla_ros.engine.flow.solver import Euler, Sample, guidance_gain, noise_for
from vla_ros.engine.request import Request
from vla_ros.engine.stages import StageTimer

CPU = torch.device("cpu")


def test_euler_takes_equal_steps_from_noise_at_one_to_actions_at_zero() -> None:
    solver, seen = Euler(4), []
    sample = Sample(2, 3, 4, CPU)
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
        solver, sample = Euler(steps), Sample(5, 3, steps, CPU)
        solver.load(sample, noise, None)
        out = solver.run(sample, lambda x, i: noise - action)
        assert torch.allclose(out, action, atol=1e-6)


def test_guidance_pulls_the_weighted_rows_to_the_earlier_chunk() -> None:
    solver, sample = Euler(10), Sample(6, 2, 10, CPU)
    noise, action, previous = (torch.randn(6, 2) for _ in range(3))
    weights = torch.tensor([1.0, 1.0, 0.5, 0.1, 0.0, 0.0])
    results = {}
    for name, guidance in (("free", None), ("guided", Guidance(previous, weights, 2, 5.0))):
        solver.load(sample, noise, guidance)
        out = solver.run(sample, lambda x, i: noise - action, guidance and guidance.how)
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
    solver, sample = Euler(2), Sample(4, 3, 2, CPU)
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
    old = model.prefill(model.see(inputs[0]), *inputs[1:])
    model.prefill(model.see(inputs[0]), *inputs[1:])
    with pytest.raises(ValueError, match="written over"):
        model.integrate(old, None, noise_of(config))


class ParallelHead(PrefixHead[Request]):
    """OpenVLA-OFT in the same two functions: the prefix is its prompt (bidirectional attention
    leaves no K and V to keep), and one pass with the L1 head is the whole integration."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.horizon, self.width = engine.info.chunk_length, engine.normaliser.dim

    def instruct(self, text: str) -> None:
        self._engine.reset(text)

    def encode(self, observation: Observation, stages: StageTimer) -> Request:
        return self._engine.request(observation, Timeline(0), CLOCK)

    def integrate(
        self,
        prefix: Request,
        state: torch.Tensor | None = None,
        noise: torch.Tensor | None = None,
        guidance: Guidance | None = None,
    ) -> torch.Tensor:
        if noise is not None or guidance is not None:
            raise ValueError("a single pass takes no noise and no guidance")
        decoded = self._engine.schedule.step(prefix)
        assert decoded is not None
        assert decoded.actions is not None
        return decoded.actions.view(self.horizon, self.width)


def test_a_single_pass_head_is_the_same_two_functions() -> None:
    engine = load_engine(EngineOptions(checkpoint="random:small-oft", schedule="parallel"))
    head = ParallelHead(engine)
    head.instruct("pick up the red cube")
    observation = Observation(1, 1, 1, next(images(1)))
    chunk = head.integrate(head.encode(observation, StageTimer(Timeline(0), CLOCK, CPU)))
    want = engine.step(observation, Timeline(0), CLOCK)
    assert chunk.shape == (head.horizon, head.width) == (8, 7)
    got = engine.normaliser.restore(chunk.double().numpy())
    assert np.array_equal(got, want.actions)
    with pytest.raises(ValueError, match="takes no noise"):
        head.integrate(head.encode(observation, StageTimer(Timeline(0), CLOCK, CPU)), None, chunk)
