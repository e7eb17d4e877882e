"""An action while it is being said, token by token or draft by draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import overload

import torch

from vla_ros.engine.drafters.verdict import Verdict
from vla_ros.engine.request import Decoded, Reading, Request


class GrowingAction(Sequence[int]):
    """The tokens so far, and what became of the drafts per position.

    A token that no draft preceded stays on the device until :meth:`read`, which looking at any
    token calls; asking for the length is free. ``tokens``, the target's ``own`` choices at the
    same places and ``finite`` are as of the last reading.
    """

    def __init__(self, positions: int) -> None:
        self.tokens: list[int] = []
        self.own: list[int] = []
        self.finite = True
        self.drafted = [0] * positions
        self.accepted = [0] * positions
        self.passes = 0
        self._unread = Reading()
        self._newest: torch.Tensor | None = None  # on the device, where it is there anyway

    def __len__(self) -> int:
        return len(self.tokens) + len(self._unread.choices)

    @overload
    def __getitem__(self, place: int) -> int: ...

    @overload
    def __getitem__(self, place: slice) -> list[int]: ...

    def __getitem__(self, place: int | slice) -> int | list[int]:
        self.read()
        return self.tokens[place]

    def last(self, device: torch.device) -> torch.Tensor:
        """The last token, int64 [1], on the device."""
        if self._newest is None:
            return torch.tensor(self.tokens[-1:], device=device)
        return self._newest

    def say(self, choice: torch.Tensor, maximum: torch.Tensor) -> None:
        """One token more, without a draft: the choice [1] and its logit."""
        self._newest = self._unread.add(choice, maximum)

    def add(self, verdict: Verdict, newest: torch.Tensor | None = None) -> None:
        """What a draft came to; ``newest`` int64 [1] is the last of its tokens on the device."""
        self.read()
        start = len(self.tokens)
        for offset in range(min(len(verdict.draft), verdict.accepted + 1)):  # those judged
            self.drafted[start + offset] += 1
            self.accepted[start + offset] += offset < verdict.accepted
        self.tokens += verdict.tokens
        self.own += verdict.own
        self.finite &= verdict.finite
        self._newest = newest

    def read(self) -> None:
        """Read what is still on the device."""
        if not self._unread.choices:
            return
        tokens, finite = self._unread.read()
        self.tokens += tokens
        self.own += tokens
        self.finite &= finite
        self._unread = Reading()

    def answer(self, request: Request, draft_passes: int) -> Decoded:
        """The finished action as the request's answer."""
        self.read()
        return replace(
            request.answer(self.tokens, self.passes, finite=self.finite),
            draft_passes=draft_passes,
            drafted=tuple(self.drafted),
            accepted=tuple(self.accepted),
            own=tuple(self.own),
        )
