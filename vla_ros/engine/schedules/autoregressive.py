"""Plain decoding: the prompt in one pass, then one pass per token.

Tokens stay on the device between passes; the host reads them once, at the end.
"""

from __future__ import annotations

from vla_ros.engine.model import VLAModel
from vla_ros.engine.packed.pack import PackLayout, chain, prefill_layout
from vla_ros.engine.packed.planner import spread
from vla_ros.engine.request import Decoded, Reading, Request
from vla_ros.engine.schedules.base import Schedule


class Autoregressive(Schedule):
    """K passes an action, always."""

    def __init__(self, model: VLAModel, tokens: int, max_prompt: int) -> None:
        super().__init__(model, tokens, max_prompt)
        self.lane = model.lane(1, max_prompt + tokens)

    def step(self, request: Request) -> Decoded:
        length = len(request.prompt)
        self.lane.fit(length + self.count)
        reading = Reading()
        layout = prefill_layout(length, (length - 1,))
        token = reading.add(*self.lane.run(layout, request.prompt, None))
        request.stages.mark("prefill")
        for number in range(self.count - 1):
            layout = PackLayout(rows=(0,), tail=chain(0, length + number, 1))
            token = reading.add(*self.lane.run(layout, None, token))
        tokens, finite = reading.read()
        return request.answer(tokens, self.count, finite=finite)

    def rehearse(self, request: Request) -> None:
        length = len(request.prompt)
        self.lane.fit(length + self.count)
        token, _ = self.lane.run(prefill_layout(length, (length - 1,)), request.prompt, None)
        for entry in spread(length, length + self.count - 2):
            self.lane.run(PackLayout(rows=(0,), tail=chain(0, entry, 1)), None, token)

    def forget(self, damaged: bool = False) -> None:
        self.lane.ring.flush(damaged)
