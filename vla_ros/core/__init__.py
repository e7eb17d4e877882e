"""The types that pass between all parts, and what every part stands on: clock, errors, resources.

``from vla_ros.core import Observation`` works for every name of :mod:`vla_ros.core.types`.
"""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    # Lazy: `vla-ros --help` needs the errors but not numpy. By its name: `from vla_ros.core import
    # types` would ask this function for `types` first.
    types = import_module("vla_ros.core.types")
    try:
        return getattr(types, name)
    except AttributeError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
