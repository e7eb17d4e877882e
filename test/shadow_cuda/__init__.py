"""A GPU that is not there: tensors that say ``cuda:0`` and hold CPU memory, so that a program's
whole CUDA path runs with real values, and raises where CUDA would.

    with shadow() as gpu:
        engine = load_engine(EngineOptions("random:small", device="cuda:0"))
        ...
        gpu.journal.counts    # what waited for the device, by kind
        gpu.journal.errors    # what was found where nothing can be raised

It raises :class:`CudaError` for two devices in one operator; for what a capture forbids
(``item()``, host copies, page-locked memory, synchronizing, boolean indices, draws); for work
on one stream that reads or overwrites what another stream, or the host, has not finished with;
for a graph over memory that was given back. A captured graph is a list of operators over its
own memory: a replay runs them again, so a host value that was baked in stays what it was, and
memory that its pool has handed out again is overwritten, as on a GPU. Streams run in the order
in which they are asked; who waits for whom is kept as vector clocks.

What it cannot see: how long anything takes; races within a kernel, and those of streams that
wait by luck; Triton's kernels (torch's operators run in their place: ``make kernels`` has them in
Triton's interpreter, a GPU alone in graphs); the rounding of cuBLAS, cuDNN and flash attention, and
the draws of a GPU's generator; shared memory, registers, launch limits; what only one generation
of GPU can do; processes that share a GPU; a second thread that launches during a capture; the
operators of a backward pass (``rtc_mode=guided_vjp``), which are the CPU's: its gradient is seen,
not what it waits for and what memory is kept for it. Inference mode is ``no_grad`` here.
"""

from shadow_cuda.journal import CudaError, Journal
from shadow_cuda.runtime import ShadowGpu, shadow

__all__ = ["CudaError", "Journal", "ShadowGpu", "shadow"]
