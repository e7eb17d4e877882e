"""Parameters of ROS are typed: what is given for one becomes its type, or is refused.

rcl drops a value whose type is not that of the parameter file, without a word: `image_size:=2.5`
would leave it at 256.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from vla_ros.errors import UserError

_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
}


def of_type(before: object, value: Any, place: str) -> Any:
    """``value`` as YAML read it, with the type of ``before``; None: of any type.

    A whole number may be a fraction's or a text's, and a text a number's (1e3 is text to YAML).
    UserError, which begins with ``place``, for everything else.
    """
    kind = next((kind for kind in _WORDS if type(before) is kind), None)
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is None or type(value) is kind is not list:
        return value
    if kind is list and isinstance(value, Sequence) and not isinstance(value, str):
        first = before[0] if isinstance(before, list) and before else None
        return [of_type(first, one, place) for one in value]
    if kind is float and (number or isinstance(value, str)):
        with contextlib.suppress(ValueError):
            return float(value)
    if kind is str and number:
        return str(value)
    assert kind is not None
    example = "" if kind is bool else f" such as {before!r}"
    raise UserError(f"{place}: must be {_WORDS[kind]}{example}, not {value!r}")
