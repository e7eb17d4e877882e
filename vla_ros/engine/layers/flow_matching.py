"""Flow matching: N Euler steps from noise to a chunk of actions, and real-time chunking (RTC).

The sample lives in buffers that never move, so a captured graph holds all steps. RTC lets a new
chunk continue the one that is being executed (:class:`RtcMode`). With the network's Jacobian taken
as the identity, which is what LeRobot computes too (its velocity is made before the gradient is
switched on), guidance is two elementwise operations a step, and a graph holds it; the true Jacobian
needs a backward pass through the network at every step, and no graph.

Sources: openpi ``sample_actions``, LeRobot ``euler_integrate``; RTC arXiv 2506.07339 (guided) and
2512.05964 (conditioned).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import Enum

import torch

from vla_ros.core.types import Executing
from vla_ros.engine.layers.devices import pinned, upload

#: x [H, D] and the number of a step -> velocity [H, D]
Velocity = Callable[[torch.Tensor, int], torch.Tensor]
REMEMBERED = 4  # chunks in model space: the one that is executed is among the newest


class RtcMode(str, Enum):
    """How a chunk continues the one before it; the values are those of the option ``rtc_mode``."""

    GUIDED = "guided"  # guided, with the Jacobian taken as the identity
    GUIDED_VJP = "guided_vjp"  # guided, by a vector-Jacobian product of the network
    TRAINED = "trained"  # the network takes the rows with weight 1 as given, without noise


@dataclass(frozen=True, slots=True)
class Guidance:
    """What of an earlier chunk the new one should continue.

    ``previous`` [H, D] is the earlier chunk in model space, moved so that its first row is due
    at the same moment as the new chunk's first; ``weights`` [H] from 0 to 1 say how much each
    row counts; ``delay`` is the number of rows that will have been executed when the new chunk
    arrives; ``limit`` is the largest gain of the correction.
    """

    previous: torch.Tensor
    weights: torch.Tensor
    delay: int = 0
    limit: float = 5.0
    mode: RtcMode = RtcMode.GUIDED

    def padded(self, horizon: int) -> Guidance:
        """For a head that makes more rows than the robot takes: those behind count nothing."""
        missing = horizon - len(self.previous)
        if missing <= 0:
            return self
        rows = self.previous[-1:].expand(missing, -1)
        weights = torch.cat((self.weights, self.weights.new_zeros(missing)))
        return Guidance(
            torch.cat((self.previous, rows)), weights, self.delay, self.limit, self.mode
        )


class SampleBuffers:
    """Static buffers of one integration [H, D]: noise, sample and what guides it."""

    def __init__(self, horizon: int, width: int, steps: int, device: torch.device) -> None:
        self.noise = torch.zeros(horizon, width, device=device)
        self.x = torch.zeros_like(self.noise)
        self.previous = torch.zeros_like(self.noise)
        self.weights = torch.zeros(horizon, 1, device=device)
        self.gains = torch.zeros(steps, 1, 1, device=device)


class Euler:
    """N equal steps of x += dt * v(x, t), t = 1 (noise), 1 - 1/N, ... 1/N and dt = -1/N.

    ``rising`` (GR00T, Evo-1): t = 0 (noise), 1/N, ... 1 - 1/N and dt = 1/N.
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

    def load(self, sample: SampleBuffers, noise: torch.Tensor, guidance: Guidance | None) -> None:
        """Fill the buffers. ValueError where something has another shape."""
        _copy(sample.noise, noise, "noise")
        if guidance is None:
            return
        _copy(sample.previous, guidance.previous, "guidance.previous")
        _copy(sample.weights, guidance.weights[:, None], "guidance.weights")
        gains = [guidance_gain(self.left(k), guidance.limit) for k in range(self.steps)]
        gained = pinned(gains, sample.gains.device).view(-1, 1, 1)
        sample.gains.copy_(gained, non_blocking=True)

    def run(
        self, sample: SampleBuffers, velocity: Velocity, mode: RtcMode | None = None
    ) -> torch.Tensor:
        """All steps; the result is the buffer ``sample.x``. A graph captures this, but for
        GUIDED_VJP."""
        steps = self.stepwise(sample, mode)
        given: torch.Tensor | None = None
        try:
            while True:
                x, step = steps.send(given)  # type: ignore[arg-type]
                if mode is RtcMode.GUIDED_VJP:
                    v, pull = self._pulled(sample, velocity, step)
                    given = v + self._towards * sample.gains[step] * pull
                else:
                    given = velocity(x, step)
        except StopIteration as done:
            end: torch.Tensor = done.value
            return end

    @property
    def _towards(self) -> float:
        """Sign of the velocity from noise to actions."""
        return 1.0 if self.rising else -1.0

    def stepwise(
        self, sample: SampleBuffers, mode: RtcMode | None
    ) -> Generator[tuple[torch.Tensor, int], torch.Tensor, torch.Tensor]:
        """The integration, one step at a time: yields x and the number of the step, is sent the
        velocity (for GUIDED_VJP the one that is corrected already)."""
        x = sample.x
        x.copy_(sample.noise)
        given, towards = sample.weights > 0, self._towards
        for step in range(self.steps):
            if mode is RtcMode.TRAINED:
                x.copy_(torch.where(given, sample.previous, x))
            v = yield x, step
            if mode is RtcMode.GUIDED:
                error = (sample.previous - self.ahead(x, v, step)) * sample.weights
                v = v + towards * sample.gains[step] * error
            x.add_(v, alpha=self.dt)
        if mode is RtcMode.TRAINED:
            x.copy_(torch.where(given, sample.previous, x))
        return x

    def _pulled(
        self, sample: SampleBuffers, velocity: Velocity, step: int
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


def soft_mask(horizon: int, left: int, delay: int) -> torch.Tensor:
    """Weights W [H] of the earlier chunk's rows (arXiv 2506.07339, eq. 5): 1 for the ``delay`` rows
    that will have been executed, then falling, 0 from ``left`` on, where the earlier chunk has none
    (the paper's H - s)."""
    delay = min(delay, left)
    weights = torch.zeros(horizon)
    weights[:delay] = 1.0
    for i in range(delay, min(left, horizon)):
        c = (left - i) / (left - delay + 1)
        weights[i] = c * math.expm1(c) / math.expm1(1.0)
    return weights


def guidance_of(
    chunk: torch.Tensor, executing: Executing, limit: float, mode: RtcMode
) -> Guidance | None:
    """The guidance of the next chunk by the one [H, D] that is executed (algorithm 1). None:
    nothing is left of it to continue.

    Rows behind its end repeat its last one; they weigh nothing.
    """
    horizon = len(chunk)
    left = horizon - executing.index
    delay = min(executing.delay_steps, left)
    if left <= 0 or (mode is RtcMode.TRAINED and delay == 0):
        return None
    rest = chunk[executing.index :]
    previous = torch.cat((rest, rest[-1:].expand(executing.index, -1)))
    end = min(left, delay + executing.guided) if executing.guided else left
    weights = soft_mask(horizon, delay if mode is RtcMode.TRAINED else end, delay)
    return Guidance(previous, upload(weights, chunk.device), delay, limit, mode)


def generator_for(seed: int, stamp_ns: int) -> torch.Generator:
    """The random source of one request, by its observation's stamp: a replayed run draws the same
    numbers.

    On the CPU, so every device starts from the same noise.
    """
    digest = hashlib.blake2b(f"{seed} {stamp_ns}".encode(), digest_size=4).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big"))  # 32 bits count


def _copy(buffer: torch.Tensor, values: torch.Tensor, name: str) -> None:
    if values.shape != buffer.shape:
        raise ValueError(f"{name} is {list(values.shape)}, wanted {list(buffer.shape)}")
    buffer.copy_(pinned(values, buffer.device), non_blocking=True)
