"""The worker's own part, apart from processes: warm a policy up, answer one request."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable

import numpy as np

from vla_ros.core import Inference, Instruction, Observation, Timeline
from vla_ros.executor.messages import ErrorKind, FrameRequest, Ready, Result
from vla_ros.policies.base import InvalidAction, Policy, PolicyRefused, PolicySpec
from vla_ros.timing import MS, Clock

REMEMBERED = 256  # observations whose receipt is remembered; more than any pipeline is deep
WARM_UP = Instruction("pick up the red block and place it on the plate", -1)


class Server:
    """Answers requests with one policy. One thread."""

    def __init__(self, policy: Policy, clock: Clock) -> None:
        self._policy = policy
        self._clock = clock
        self._instruction: Instruction | None = None
        self._received: deque[tuple[int, int, int]] = deque(maxlen=REMEMBERED)

    def watch(self, waiting: Callable[[], FrameRequest | None]) -> None:
        """Let the policy, if it wants to, look at the frame that comes next: the newest that waits
        under the instruction of now. Whether it is asked for is not said by this."""
        watch = getattr(self._policy, "watch", None)
        if watch is not None:
            watch(lambda: self._coming(waiting()))

    def _coming(self, request: FrameRequest | None) -> Observation | None:
        if request is None or request.instruction != self._instruction:
            return None
        return request.observation

    def answer(self, request: FrameRequest) -> Result:
        """The result of one request; an exception other than the expected two passes through."""
        observation = request.observation
        if request.instruction != self._instruction:
            self._instruction = request.instruction
            self._received.clear()
            self._policy.reset(request.instruction)
        self._received.append(
            (observation.stamp_ns, observation.received_ns, observation.received_steady_ns)
        )
        timeline = Timeline(observation.received_steady_ns).mark("queue", self._clock.steady_ns())
        try:
            return self._result(request, self._step(request, timeline))
        except InvalidAction as error:
            return self._result(request, None, ErrorKind.INVALID, last_line(error))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            return self._result(request, None, ErrorKind.MEMORY, last_line(error))

    def _step(self, request: FrameRequest, timeline: Timeline) -> Inference | None:
        try:
            return self._policy.step(request.observation, timeline, self._clock)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        # Outside the except block: the exception's traceback held the tensors alive.
        self._policy.reset(request.instruction)
        release_memory()
        return self._policy.step(request.observation, timeline, self._clock)

    def _result(
        self,
        request: FrameRequest,
        inference: Inference | None,
        error: ErrorKind = ErrorKind.NONE,
        text: str = "",
    ) -> Result:
        observation = request.observation
        received = (observation.received_ns, observation.received_steady_ns)
        if inference is not None and inference.stamp_ns != observation.stamp_ns:
            received = next(
                ((r, s) for t, r, s in reversed(self._received) if t == inference.stamp_ns),
                (inference.timeline.start_ns, inference.timeline.start_ns),
            )
        return Result(
            sequence=request.sequence,
            request_stamp_ns=observation.stamp_ns,
            epoch=request.instruction.epoch,
            instruction_digest=request.instruction.digest,
            received_ns=received[0],
            received_steady_ns=received[1],
            inference=inference,
            error=error,
            error_text=text,
        )


def warm_up(policy: Policy, spec: PolicySpec, pid: int, clock: Clock) -> Ready:
    """Time ``spec.warmup_count`` inferences, after one and a filled pipeline that are not timed.

    A policy without a model (dtype ``none``) is ready at once. Raises PolicyRefused where the
    policy cannot even answer the synthetic observation.
    """
    info = policy.info
    if info.dtype == "none" or spec.warmup_count == 0:
        return Ready(info, pid)
    policy.reset(WARM_UP)
    image = np.random.default_rng(0).integers(0, 256, (*spec.warmup_size, 3), np.uint8)
    state = np.zeros(info.state_dim) if info.state_dim else None
    more = dict.fromkeys(info.camera_roles, image)
    times = []
    for i in range(spec.warmup_count + info.pipeline_depth):
        began = clock.steady_ns()
        observation = Observation(i + 1, began, began, image, image, state, more_images=more)
        try:
            policy.step(observation, Timeline(began).mark("queue", began), clock)
        except InvalidAction as error:
            raise PolicyRefused(f"the policy cannot act after loading: {error}") from error
        if i >= info.pipeline_depth:
            times.append((clock.steady_ns() - began) / MS)
    p50, p99 = np.percentile(times, (50, 99))
    return Ready(info, pid, float(p50), float(p99))


def last_line(error: BaseException) -> str:
    """The one line that ends a traceback, at most 1000 characters."""
    text = str(error).strip()
    line = text.splitlines()[0] if text else ""
    name = type(error).__name__
    plain = isinstance(error, (InvalidAction, PolicyRefused))
    return (line if plain and line else f"{name}: {line}" if line else name)[:1000]


def is_out_of_memory(error: BaseException) -> bool:
    """True for MemoryError and torch's OutOfMemoryError, which only exists where torch does."""
    names = {cls.__name__ for cls in type(error).__mro__}
    return isinstance(error, MemoryError) or "OutOfMemoryError" in names


def release_memory() -> None:
    """Give cached device memory back, if torch is in use at all."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
