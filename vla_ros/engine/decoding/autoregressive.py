"""Plain decoding: the prompt in one pass, then one pass per token.

Tokens stay on the device between passes; the host reads them once, at the end. The passes behind
the prompt are one function, on CUDA one graph whatever the prompt's length. The prompt's own pass
is not in it: there would be as many of these graphs as lengths of prompts. Where an answer ends
with a token of its own, the passes are a few at a time, and the host looks for it between them.
"""

from __future__ import annotations

from vla_ros.engine.decoding.base import Decoding, TokenModel, look_every, up_to
from vla_ros.engine.layers.devices import downloaded
from vla_ros.engine.layers.pack import PackLayout, chain, prefill_layout
from vla_ros.engine.layers.pieces import Pieces
from vla_ros.engine.layers.request import Decoded, Reading, Request
from vla_ros.engine.layers.runner import PackPass


class Autoregressive(Decoding):
    """K passes an action, always."""

    def __init__(self, model: TokenModel, tokens: int, max_prompt: int) -> None:
        super().__init__(model, tokens, max_prompt)
        self.runner = model.runner(1, max_prompt + tokens)
        self._stride = tokens if model.ends is None else look_every(model)

    def pieces(self, request: Request) -> Pieces[Decoded]:
        length = len(request.prompt)
        self.runner.fit(length + self.count)
        reading = Reading()
        token = reading.add(*(yield PackPass(self.runner, self._prompt(length), request.prompt)))
        request.stages.mark("prefill")
        for layouts in self._behind(length):
            if self.model.ends is not None and self.model.ends in downloaded(token).tolist():
                break
            if self.model.capture is not None:
                token = reading.add(*self.runner.follow(layouts, token[-1:]))
                continue
            for layout in layouts:
                token = reading.add(*(yield PackPass(self.runner, layout, None, token)))
        tokens, finite = reading.read()
        passes = len(tokens)
        return request.answer(up_to(tokens, self.model.ends), passes, finite=finite)

    def warm_up(self, request: Request) -> None:
        length = len(request.prompt)
        self.runner.fit(length + self.count)
        token, _ = self.runner.run(self._prompt(length), request.prompt, None)
        for layouts in self._behind(length)[:: max(1, (self.count - 2) // self._stride)]:
            self.runner.follow(layouts, token)  # the first and the last: there are two sizes

    def _prompt(self, length: int) -> PackLayout:
        return prefill_layout(length, (length - 1,), causal=self.model.causal)

    def _behind(self, length: int) -> list[tuple[PackLayout, ...]]:
        """The passes behind a prompt, a few at a time."""
        every = [
            PackLayout(rows=(0,), tail=chain(0, length + number, 1))
            for number in range(self.count - 1)
        ]
        first = range(0, len(every), self._stride)
        return [tuple(every[number : number + self._stride]) for number in first]

    def forget(self, damaged: bool = False) -> None:
        self.runner.kv_cache.flush(damaged)
