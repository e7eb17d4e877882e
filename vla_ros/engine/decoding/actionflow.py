"""ActionFlow: every pass serves K frames at once.

The prompt of frame t and one token of each of the K - 1 frames before it are one pack, so a
frame costs one pass and its action leaves K passes after it came: rate is bought with age.
Source: the ActionFlow paper's cross-request pipeline; here on a KV cache, without its gathering.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import torch

from vla_ros.engine.decoding.base import Decoding
from vla_ros.engine.layers.pack import PackLayout, TailToken
from vla_ros.engine.layers.request import Decoded, Reading, Request
from vla_ros.engine.models.openvla import VLAModel


@dataclass(slots=True)
class InFlight:
    """A request on its way: its KV slot, its prompt's length and its choices so far."""

    request: Request
    slot: int
    length: int
    reading: Reading = field(default_factory=Reading)

    @property
    def count(self) -> int:
        return len(self.reading.choices)


class ActionFlow(Decoding):
    """One pass a call; the first K - 1 calls after a reset return None.

    Where passes are captured, the tail always has K - 1 tokens, so that a prompt's length has one
    shape: while the pipeline fills, those of slots that are free stand in.
    """

    def __init__(self, model: VLAModel, tokens: int, max_prompt: int) -> None:
        super().__init__(model, tokens, max_prompt)
        self.runner = model.runner(tokens, max_prompt + tokens)
        self._flights: deque[InFlight] = deque()  # newest first
        self._choices: torch.Tensor | None = None  # last pass's tokens, in that order
        self._full = model.capture is not None
        self._blank = torch.zeros(tokens - 1, dtype=torch.long, device=model.device)

    @property
    def depth(self) -> int:
        return self.count

    def step(self, request: Request) -> Decoded | None:
        older, length = self._flights, len(request.prompt)
        for each in older:  # since its last pass it has only waited for this frame
            each.request.stages.mark("queue")
        self.runner.fit(length + self.count)
        flight = InFlight(request, self.runner.kv_cache.acquire(), length)
        # Row j of a pass is the j-th token of the j-th newest request, so the last pass's
        # tokens are this pass's tail as they lie: no gathering, and nothing read by the host.
        tail = [TailToken(f.slot, f.length + f.count - 1) for f in older]
        fed = None if self._choices is None or not older else self._choices[: len(older)]
        if self._full:
            taken = self.runner.kv_cache.live
            free = [slot for slot in range(self.count) if slot not in taken]
            tail += [TailToken(slot, 0) for slot in free]  # each sees itself alone
            fed = self._blank if fed is None else torch.cat((fed, self._blank[len(older) :]))
        layout = PackLayout(
            rows=tuple(range(length - 1, length + len(tail))),
            prefill=length,
            slot=flight.slot,
            tail=tuple(tail),
        )
        try:
            choices, maxima = self.runner.run(layout, request.prompt, fed)
        except Exception:
            self.forget()  # or the slot would stay taken
            raise
        request.stages.mark("prefill")
        for each in older:
            each.request.stages.mark("decode")
        older.appendleft(flight)
        self._choices = choices
        for row, each in enumerate(older):
            each.reading.add(choices[row : row + 1], maxima[row : row + 1])
        if len(older) < self.count:
            return None
        done = older.pop()
        self.runner.kv_cache.release(
            done.slot
        )  # what comes next on the device comes behind this pass
        tokens, finite = done.reading.read()
        return done.request.answer(tokens, len(tokens), finite=finite)

    def warm_up(self, request: Request) -> None:
        """The full pipeline; where passes are not captured, also as it fills: 0, 1 ... K - 1 older
        frames beside the new one."""
        length, last = len(request.prompt), self.count - 1
        self.runner.fit(length + self.count)
        for older in (last,) if self._full else range(self.count):
            layout = PackLayout(
                rows=tuple(range(length - 1, length + older)),
                prefill=length,
                tail=tuple(TailToken(1 + place, length + place) for place in range(older)),
            )
            self.runner.run(layout, request.prompt, self._blank[:older] if older else None)

    def forget(self, damaged: bool = False) -> None:
        self._flights.clear()
        self._choices = None
        self.runner.kv_cache.flush(damaged)
