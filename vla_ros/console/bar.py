"""A progress bar as text."""

from __future__ import annotations

_WIDTH = 20


def bar(done: int, total: int, seconds_left: float | None = None) -> str:
    """``[#####               ] 5/20``, with the time left where it is known."""
    filled = _WIDTH * done // max(total, 1)
    text = f"[{'#' * filled:<{_WIDTH}}] {done}/{total}"
    return text if seconds_left is None else f"{text}, {clock(seconds_left)} left"


def clock(seconds: float) -> str:
    """``42 s``, ``12 min``, ``3 h 05 min``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"
