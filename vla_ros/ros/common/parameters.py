"""Parameters as a table: name, default, what it means, what is allowed.

rclpy checks types, ranges and read-only flags; what depends on several parameters together
is checked by the node in one place. A lifecycle node reads its parameters at configure: its fixed
ones can be set until then, and again after cleanup.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor
from rclpy.exceptions import InvalidParameterTypeException, InvalidParameterValueException
from rclpy.node import Node

from vla_ros.ros.common.given import refuse_unknown

Value = bool | int | float | str | Sequence[int] | Sequence[float] | Sequence[str]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One row of a node's table. ``low`` and ``high`` are inclusive, ``choices`` the value's, or
    those of every word of a list."""

    name: str
    default: Value
    text: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    fixed: bool = False  # given at start, or at configure; never changed while in use

    def descriptor(self, lifecycle: bool = False) -> ParameterDescriptor:
        """Descriptor of the parameter. Of a lifecycle node none is read-only: :func:`check_fixed`
        refuses changes of the fixed ones."""
        read_only = self.fixed and not lifecycle
        out = ParameterDescriptor(description=self.text, read_only=read_only)
        if self.choices:
            out.additional_constraints = "one of " + ", ".join(self.choices)
        if self.ends:
            low, high = self.ends
            if isinstance(self.default, int):
                bounds = IntegerRange(from_value=int(low), to_value=int(high), step=0)
                out.integer_range = [bounds]
            else:
                bounds = FloatingPointRange(from_value=float(low), to_value=float(high), step=0.0)
                out.floating_point_range = [bounds]
        return out

    @property
    def ends(self) -> tuple[float, float] | None:
        """Smallest and largest value; None: any."""
        return (self.low, self.high) if self.low is not None and self.high is not None else None


def check_values(table: Iterable[Parameter], values: dict[str, Any]) -> None:
    """Raise ValueError, naming the parameter, for a value that is none of its choices, beyond its
    range, or a number that is not finite (arrays have no range)."""
    for row in table:
        value = values.get(row.name)
        texts = isinstance(row.default, list) and isinstance(row.default[0], str)
        numeric = isinstance(row.default, (float, list)) and not texts
        numbers = np.asarray(value if numeric else 0.0, float)
        ends = row.ends
        if ends and value is not None and not ends[0] <= value <= ends[1]:
            raise ValueError(_beyond(row, value))
        if not np.isfinite(numbers).all():
            raise ValueError(f"{row.name} is {value}, must be finite")
        given = values.get(row.name, row.default)
        for word in filter(None, given) if texts else [given]:
            if row.choices and word not in row.choices:
                allowed = ", ".join(row.choices)
                raise ValueError(f"{row.name} is '{word}', must be one of {allowed}")


def check_fixed(
    table: Iterable[Parameter], before: Mapping[str, Any], after: Mapping[str, Any]
) -> None:
    """Raise ValueError, naming the parameter, where a fixed one of a configured node would change.
    One that is set to the value it has already disturbs nothing."""
    for row in table:
        if row.fixed and after[row.name] != before[row.name]:
            raise ValueError(f"{row.name} is read at configure: deactivate and clean up first")


def declare(
    node: Node, table: Sequence[Parameter], lifecycle: bool = False, *, more: bool = False
) -> dict[str, Any]:
    """Declare every row and return the values by name. Raises ValueError or an rclpy
    parameter exception for a bad value, naming the parameter, and for a given name that the node
    does not have, unless ``more`` are declared later."""
    values = {row.name: _declared(node, row, lifecycle) for row in table}
    check_values(table, values)
    if not more:
        refuse_unknown(node)
    return values


def _declared(node: Node, row: Parameter, lifecycle: bool) -> Any:
    """Value of the parameter. An empty list of a file has no type, and is none to ROS."""
    try:
        value = node.declare_parameter(row.name, row.default, row.descriptor(lifecycle)).value
    except InvalidParameterValueException as error:
        given = re.search(r"value: ([^:]+?)(:|$)", str(error))
        if row.ends is None or given is None:
            raise
        raise ValueError(_beyond(row, given[1])) from None
    except InvalidParameterTypeException as error:
        whole = re.search(
            r"to '(.+)' of type 'INTEGER(_ARRAY)?', expecting type 'DOUBLE", str(error)
        )
        if whole is None:
            raise
        raise ValueError(
            f"{row.name} is {whole[1]}: ROS takes no whole number for a fraction, write 1 as 1.0"
        ) from None
    return given_value(row, value)


def given_value(row: Parameter, value: Any) -> Any:
    """Value that was given for a row; an empty list of texts is [""]. ValueError, one line: none,
    or an empty list of numbers."""
    if value is not None and value != []:
        return value
    if not isinstance(row.default, list):
        raise ValueError(f"{row.name} has no value: give one, or leave it out")
    if not isinstance(row.default[0], str):
        raise ValueError(f"{row.name} is an empty list: give its numbers, or leave it out")
    return [""]


def _beyond(row: Parameter, value: object) -> str:
    return f"{row.name} is {value}: must be {row.low:g} to {row.high:g}"
