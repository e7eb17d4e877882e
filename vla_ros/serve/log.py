"""The log of what clients cause, with a limit: a file apart, since the stepper needs no websockets.

Whatever a client can do again and again it can do to the log as well: a port scanner, a web browser
at the wrong port, an observation that breaks the policy.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import Any

LINES, LINE = 20, 400  # messages a minute, and characters of one
_MINUTE_S = 60.0


class ClientLog(logging.LoggerAdapter):  # type: ignore[type-arg]  # not generic in Python 3.10
    """Log of what clients cause: :data:`LINES` messages a minute, and how many more there were.

    What websockets says of a connection is one line without its traceback.
    """

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logger, {})
        self._clock = clock
        self._until, self._lines, self._left_out = -_MINUTE_S, 0, 0

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a line, where there is room. websockets says which connection it is about."""
        if level < logging.WARNING:
            super().log(level, msg, *args, **kwargs)
            return
        socket = (kwargs.get("extra") or {}).get("websocket")
        if socket is not None and socket.thrown_out:  # the reason was said
            return
        now = self._clock()
        if now >= self._until:
            self._until, self._lines = now + _MINUTE_S, 0
        self._lines += 1
        if self._lines > LINES:
            self._left_out += 1
            return
        words = [str(msg) % args if args else str(msg)]
        if socket is not None:
            words.insert(0, peer(socket))
            error = sys.exc_info()[1] if kwargs.pop("exc_info", None) else None
            while error is not None:
                words.append(str(error) or type(error).__name__)
                error = error.__cause__
        line = "".join(c if c.isprintable() else "?" for c in ": ".join(words)[:LINE])
        if self._left_out:
            line += f" (before it {self._left_out} lines were left out)"
            self._left_out = 0
        if self._lines == LINES:
            line += " (more of this minute are left out)"
        super().log(level, "%s", line, **kwargs)


def peer(socket: Any) -> str:
    """Address and port of a connection's other end."""
    found = socket.remote_address
    return f"{found[0]} port {found[1]}" if found else "a client"
