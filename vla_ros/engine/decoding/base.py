"""What a schedule is: it builds packs out of requests and turns logits into tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

from vla_ros.engine.model import VLAModel
from vla_ros.engine.packed.lane import prompt_lengths, resized
from vla_ros.engine.request import Decoded, Pending, Request, Settled


class Schedule(ABC):
    """One way of filling packs. Called by one thread."""

    #: whether its tokens are those of greedy decoding, whatever the input (in fp32: in bf16 a
    #: product of another shape rounds otherwise, and a close call may go the other way)
    lossless: bool = True

    def __init__(self, model: VLAModel, tokens: int, max_prompt: int) -> None:
        self.model, self.count, self.max_prompt = model, tokens, max_prompt

    @property
    def depth(self) -> int:
        """Calls of step() from a request to its answer."""
        return 1

    @abstractmethod
    def step(self, request: Request) -> Decoded | None:
        """Take one request in; give the answer that is ready, or None while a pipeline fills."""

    def submit(self, request: Request) -> Pending:
        """As ``step``, but where the schedule can, without waiting for the device: the caller reads
        the answer before the next call, and may do something else meanwhile."""
        return Settled(self.step(request))

    def instruct(self, text: str) -> None:
        """A new instruction; ``forget`` follows."""

    def prepare(self, request: Request, every: bool = False) -> None:
        """Run every pack shape that may come once, so that no graph is captured in service.

        Shapes of prompts as long as the request's; ``every``: of all that an instruction may give.
        """
        own = len(request.prompt)
        lengths = prompt_lengths(self.model.config.patches, self.max_prompt) if every else ()
        for length in (*lengths, own):  # its own last, so that its plans are remembered
            self.rehearse(replace(request, prompt=resized(request.prompt, length)))

    def rehearse(self, request: Request) -> None:
        """Run every shape of prompts of this length. Nothing where no pass is captured."""

    def forget(self, damaged: bool = False) -> None:
        """Forget earlier requests: a new episode or instruction begins.

        ``damaged``: a value was not finite. Then all memory that it may have touched, a drafter's
        too, is zeroed: 0 * NaN is NaN even behind a mask.
        """
