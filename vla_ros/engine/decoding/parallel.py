"""Parallel decoding (OpenVLA-OFT): a whole chunk of actions in one bidirectional pass.

Source: openvla-oft ``modeling_prismatic.py`` (``predict_action``), and BitVLA's
``bitvla_for_action_prediction.py``, where more than BOS stands in front. The sequence is BOS, the
patches of all images, [the robot's state], the rest of the prompt, one zeroed placeholder per
action value, and the stop token; the states from the last prompt token on feed the L1 head.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from vla_ros.engine.decoding.base import Decoding
from vla_ros.engine.io.tokens import Normalizer
from vla_ros.engine.layers.devices import downloaded, upload
from vla_ros.engine.layers.pack import PackLayout
from vla_ros.engine.layers.pieces import Pieces
from vla_ros.engine.layers.request import Decoded, Request
from vla_ros.engine.layers.runner import HIDDEN, PackPass
from vla_ros.engine.models.oft import load_heads
from vla_ros.engine.models.openvla import VLAModel


class Parallel(Decoding):
    """One pass a chunk."""

    def __init__(
        self, model: VLAModel, tokens: int, max_prompt: int, proprio: Normalizer | None
    ) -> None:
        super().__init__(model, tokens, max_prompt)
        self._proprio = proprio
        self._heads = load_heads(model.config, model.tensors, model.quantized_head)
        self.runner = model.runner(1, max_prompt + tokens + 2)
        with torch.inference_mode():
            stop = model.decoder.embed(torch.tensor([model.config.stop_token], device=model.device))
            self._behind = torch.cat((stop.new_zeros(tokens, stop.shape[1]), stop))

    def pieces(self, request: Request) -> Pieces[Decoded]:
        x = self.sequence(request)
        (states,) = yield PackPass(self.runner, self._layout(len(x)), x, gives=HIDDEN)
        request.stages.mark("prefill")
        with torch.inference_mode():
            actions = downloaded(self.read(states).double())  # the one host sync
        finite = bool(actions.isfinite().all())
        return replace(request.answer((), 1, finite=finite), actions=actions)

    def warm_up(self, request: Request) -> None:
        x = self.sequence(request)
        self.read(self.runner.hidden(self._layout(len(x)), x))

    def _layout(self, length: int) -> PackLayout:
        return PackLayout(rows=tuple(self.rows(length)), prefill=length, causal=False)

    def rows(self, length: int) -> range:
        """Which rows of a sequence of so many the head reads."""
        prompt = length - len(self._behind)
        return range(prompt - 1, prompt - 1 + self.count)

    def read(self, states: torch.Tensor) -> torch.Tensor:
        """The states of these rows -> actions [C, A] in [-1, 1]."""
        actions: torch.Tensor = self._heads.action_head(states)
        return actions

    def sequence(self, request: Request) -> torch.Tensor:
        """Embeddings that the pass is over [T, C]."""
        if self._proprio is None:
            return torch.cat((request.prompt, self._behind))
        split = request.front + self.model.config.patches
        front, text = request.prompt[:split], request.prompt[split:]
        return torch.cat((front, self._state(request), text, self._behind))

    def _state(self, request: Request) -> torch.Tensor:
        assert self._proprio is not None
        observed = None if request.observation is None else request.observation.proprio
        if observed is None or len(observed) != self._proprio.dim:
            size = "none" if observed is None else str(len(observed))
            raise ValueError(
                f"this checkpoint needs {self._proprio.dim} values of robot state, there are {size}"
            )
        values = self._proprio.normalize(np.asarray(observed, dtype=np.float64))
        state = upload(torch.from_numpy(values), self.model.device, self.model.dtype)
        with torch.inference_mode():
            embedded: torch.Tensor = self._heads.proprio_projector(state)
        return embedded

    def forget(self, damaged: bool = False) -> None:
        self.runner.kv_cache.flush(damaged)
