"""Plain decoding: the prompt in one pass, then one pass per token.

Tokens stay on the device between passes; the host reads them once, at the end. The passes behind
the prompt are one function, on CUDA one graph whatever the prompt's length. The prompt's own pass
is not in it: there would be as many of these graphs as lengths of prompts.
"""

from __future__ import annotations

from vla_ros.engine.decoding.base import Decoding
from vla_ros.engine.decoding.request import Decoded, Reading, Request
from vla_ros.engine.layers.pack import PackLayout, chain, prefill_layout
from vla_ros.engine.models.openvla import VLAModel


class Autoregressive(Decoding):
    """K passes an action, always."""

    def __init__(self, model: VLAModel, tokens: int, max_prompt: int) -> None:
        super().__init__(model, tokens, max_prompt)
        self.runner = model.runner(1, max_prompt + tokens)

    def step(self, request: Request) -> Decoded:
        length = len(request.prompt)
        self.runner.fit(length + self.count)
        reading = Reading()
        layout = prefill_layout(length, (length - 1,))
        token = reading.add(*self.runner.run(layout, request.prompt, None))
        request.stages.mark("prefill")
        if self.count > 1:
            reading.add(*self.runner.follow(self._behind(length), token))
        tokens, finite = reading.read()
        return request.answer(tokens, self.count, finite=finite)

    def warm_up(self, request: Request) -> None:
        length = len(request.prompt)
        self.runner.fit(length + self.count)
        token, _ = self.runner.run(prefill_layout(length, (length - 1,)), request.prompt, None)
        if self.count > 1:
            self.runner.follow(self._behind(length), token)

    def _behind(self, length: int) -> tuple[PackLayout, ...]:
        """The passes behind a prompt."""
        return tuple(
            PackLayout(rows=(0,), tail=chain(0, length + number, 1))
            for number in range(self.count - 1)
        )

    def forget(self, damaged: bool = False) -> None:
        self.runner.kv_cache.flush(damaged)
