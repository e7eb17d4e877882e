"""Time of a stage on a device: the larger of its arithmetic and its traffic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from vla_ros.analysis import stages
from vla_ros.analysis.devices import Device
from vla_ros.analysis.memory import Memory, memory_of
from vla_ros.analysis.shapes import ModelShape
from vla_ros.analysis.work import Op, Precision


@dataclass(frozen=True, slots=True)
class StageTime:
    """One stage: operations, bytes, seconds, and what bounds it (``compute``, ``memory``)."""

    name: str
    flops: float
    bytes: float
    seconds: float
    bound: str

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.flops / self.bytes if self.bytes else 0.0

    @property
    def ms(self) -> float:
        return self.seconds * 1e3


@dataclass(frozen=True, slots=True)
class Roofline:
    """A model on a device.

    ``accounting`` "stage": a stage is as good as one fused kernel, T = max(FLOP / F, bytes / B)
    over the whole stage, activations stay on the chip: the least time there can be. "operator":
    the sum of that maximum over the operators, each writing its result to memory, as GenZ
    counts; closer to kernels one by one. ``rates`` "achieved" or "peak".

    Source: Williams et al., CACM 52(4), 2009: attainable = min(peak, intensity x bandwidth).
    """

    model: ModelShape
    device: Device
    precision: Precision = Precision()
    accounting: str = "stage"
    rates: str = "achieved"

    def time(self, name: str, ops: Iterable[Op]) -> StageTime:
        """The time of some operators run one after the other."""
        each = self.accounting == "operator"
        compute = memory = total = flops = traffic = 0.0
        for op in ops:
            c = op.flops / self.device.flops(self.precision.compute(op), self.rates)
            moved = self.precision.traffic(op, activations=each)
            m = moved / self.device.bandwidth(self.rates)
            compute, memory, total = compute + c, memory + m, total + max(c, m)
            flops, traffic = flops + op.flops, traffic + moved
        seconds = total if each else max(compute, memory)
        return StageTime(
            name, flops, traffic, seconds, "compute" if compute >= memory else "memory"
        )

    def for_model(self, model: ModelShape) -> Roofline:
        """Another model on the same device, in the same formats."""
        return replace(self, model=model)

    def vision(self) -> StageTime:
        return self.time("vision", stages.vision(self.model))

    def projector(self) -> StageTime:
        return self.time("projector", stages.projector(self.model))

    def prefill(self, extra: int = 0) -> StageTime:
        """The prompt's pass, head included, with ``extra`` draft tokens behind the prompt."""
        return self.time("prefill", stages.prefill(self.model, extra))

    def decode(self, tokens: int = 1) -> StageTime:
        """A pass of ``tokens`` tokens behind the prompt, head included."""
        return self.time("decode", stages.decode(self.model, tokens))

    def packed(self) -> StageTime:
        """actionflow's pass."""
        return self.time("packed pass", stages.packed(self.model))

    def parallel(self) -> StageTime:
        return self.time("parallel pass", stages.parallel(self.model))

    def prefix(self, naive: bool = False) -> StageTime:
        return self.time("prefill", stages.flow_prefix(self.model, naive))

    def expert_once(self) -> StageTime:
        """What is the same in all steps, once a chunk."""
        return self.time("expert, once", stages.expert_once(self.model))

    def expert_step(self, naive: bool = False) -> StageTime:
        return self.time("expert step", stages.expert_step(self.model, naive))

    def head(self) -> StageTime:
        """The action head, or the language model's head on one row."""
        own = stages.action_head(self.model)
        return self.time("head", own or stages.head(self.model.decoder, 1))

    def stages(self) -> tuple[StageTime, ...]:
        """Every stage of this kind of model, in order. ``head`` of a token model is part of
        prefill and of each decode; it is listed to be seen, not to be added."""
        front = (self.vision(), self.projector())
        if self.model.kind == "flow":
            once = (self.expert_once(),) if stages.expert_once(self.model) else ()
            return (*front, self.prefix(), *once, self.expert_step())
        if self.model.kind == "parallel":
            return (*front, self.parallel(), self.head())
        packed = (self.packed(),) if self.model.chunk == 1 else ()  # no pipeline takes chunks
        return (*front, self.prefill(), self.decode(), self.head(), *packed)

    def memory(self, frames: int = 1) -> Memory:
        """What a policy takes, with so many frames decoded at a time."""
        return memory_of(self.model, self.precision, frames)

    def fits(self, frames: int = 1) -> bool:
        """Whether the device has room for it; True where its size is unknown."""
        return self.memory(frames).fits(1e9 * self.device.memory_gb)
