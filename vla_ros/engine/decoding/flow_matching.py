"""The flow's solver: N Euler steps from noise to actions, over buffers that never move.

Time runs from 1 (noise) to 0 (actions) as in openpi's ``sample_actions`` and LeRobot's
``euler_integrate``. Guidance is real-time chunking's. With the Jacobian taken as the identity,
which is what LeRobot computes too (its velocity is made before the gradient is switched on), it is
two elementwise operations a step, so a captured graph holds it; the true one needs a backward pass
through the network at every step, and no graph.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch

from vla_ros.engine.flow.primitive import Continuing, Guidance

Velocity = Callable[[torch.Tensor, int], torch.Tensor]


class Sample:
    """Static buffers of one integration: noise, sample and what guides it, [H, D] each."""

    def __init__(self, horizon: int, width: int, steps: int, device: torch.device) -> None:
        self.noise = torch.zeros(horizon, width, device=device)
        self.x = torch.zeros_like(self.noise)
        self.previous = torch.zeros_like(self.noise)
        self.weights = torch.zeros(horizon, 1, device=device)
        self.gains = torch.zeros(steps, 1, 1, device=device)


class Euler:
    """N equal steps of x += dt * v(x, t), t = 1, 1 - 1/N, ... 1/N and dt = -1/N.

    ``rising`` (GR00T, Evo-1): t = 0, 1/N, ... 1 - 1/N and dt = 1/N.
    """

    def __init__(self, steps: int, rising: bool = False) -> None:
        if steps < 1:
            raise ValueError(f"a solver takes at least 1 step, not {steps}")
        self.steps, self.rising = steps, rising
        self.dt = (1.0 if rising else -1.0) / steps
        self.times = tuple((0.0 if rising else 1.0) + k * self.dt for k in range(steps))

    def left(self, step: int) -> float:
        """The share of the way from noise to actions that is still to go at a step."""
        return 1.0 - self.times[step] if self.rising else self.times[step]

    def ahead(self, x: torch.Tensor, v: torch.Tensor, step: int) -> torch.Tensor:
        """The actions that x would become if the velocity stayed."""
        return x + self.left(step) * v if self.rising else x - self.times[step] * v

    def load(self, sample: Sample, noise: torch.Tensor, guidance: Guidance | None) -> None:
        """Fill the buffers; ValueError where something has another shape."""
        _copy(sample.noise, noise, "noise")
        if guidance is None:
            return
        _copy(sample.previous, guidance.previous, "guidance.previous")
        _copy(sample.weights, guidance.weights[:, None], "guidance.weights")
        gains = [guidance_gain(self.left(k), guidance.limit) for k in range(self.steps)]
        sample.gains.copy_(torch.tensor(gains).view(-1, 1, 1))

    def run(
        self, sample: Sample, velocity: Velocity, how: Continuing | None = None
    ) -> torch.Tensor:
        """All steps; the result is the buffer ``sample.x``. What a graph captures, but for the
        true Jacobian."""
        x = sample.x
        x.copy_(sample.noise)
        given = sample.weights > 0
        towards = 1.0 if self.rising else -1.0  # the actions, along the velocity
        for step in range(self.steps):
            if how is Continuing.TRAINED:
                x.copy_(torch.where(given, sample.previous, x))
            if how is Continuing.TRUE:
                v, pull = self._pulled(sample, velocity, step)
                v = v + towards * sample.gains[step] * pull
            else:
                v = velocity(x, step)
            if how is Continuing.IDENTITY:
                error = (sample.previous - self.ahead(x, v, step)) * sample.weights
                v = v + towards * sample.gains[step] * error
            x.add_(v, alpha=self.dt)
        if how is Continuing.TRAINED:
            x.copy_(torch.where(given, sample.previous, x))
        return x

    def _pulled(
        self, sample: Sample, velocity: Velocity, step: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The velocity, and the error of the estimated actions pulled back to x."""
        with torch.enable_grad():
            x = sample.x.clone().requires_grad_(True)
            v = velocity(x, step)
            ahead = self.ahead(x, v, step)
            error = ((sample.previous - ahead) * sample.weights).detach()
            (pull,) = torch.autograd.grad(ahead, x, error)
        return v.detach(), pull


def guidance_gain(left: float, limit: float) -> float:
    """min(limit, (1 - tau) / (tau r^2)) with tau = 1 - left (arXiv 2506.07339, eq. 2 and 4)."""
    tau = 1.0 - left
    if tau <= 0.0:
        return limit
    rest = 1.0 - tau
    return min(limit, rest / tau * (rest**2 + tau**2) / rest**2)


def noise_for(seed: int, stamp_ns: int, horizon: int, width: int) -> torch.Tensor:
    """Normal noise [H, D] that belongs to one request: a run that is replayed draws it again.

    Drawn on the CPU, so every device starts from the same noise.
    """
    return torch.randn(horizon, width, generator=generator_for(seed, stamp_ns))


def generator_for(seed: int, stamp_ns: int) -> torch.Generator:
    """The source of all that is random about one request, on the CPU."""
    digest = hashlib.blake2b(f"{seed} {stamp_ns}".encode(), digest_size=4).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big"))  # 32 bits count


def _copy(buffer: torch.Tensor, values: torch.Tensor, name: str) -> None:
    if values.shape != buffer.shape:
        raise ValueError(f"{name} is {list(values.shape)}, wanted {list(buffer.shape)}")
    buffer.copy_(values)
