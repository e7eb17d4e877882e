"""Tables of parameters of all nodes; apart, since it imports the nodes and no node imports it.

A node judges its values as it starts, when others have started already; `vla-ros up` asks here
before anything starts, with the same checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from vla_ros.ros.common.parameters import Parameter, check_values, given_value
from vla_ros.ros.nodes.policy import parameters as policy


def table_of(executable: str) -> tuple[Parameter, ...]:
    """Parameters of a node, by its folder here; of the policy node those of cameras main and wrist
    only, since ``camera_roles`` makes the others."""
    if executable == "policy":
        return policy.TABLE
    found: tuple[Parameter, ...] = import_module(f"vla_ros.ros.nodes.{executable}.node").TABLE
    return found


def check_given(executable: str, given: Mapping[str, Any]) -> None:
    """Raise ValueError, one line that names the parameter, for a value that the node would refuse
    as it starts: one beyond its range, none of its choices, none at all.

    ``given``: values by name, of the types of the table, whole numbers for fractions included; a
    name that is not in the table is passed over.
    """
    table = table_of(executable)
    values = _complete(table, given)
    if executable != "policy":
        check_values(table, values)
        return
    policy.check_parameters(table, values)
    cameras = policy.camera_rows(values)
    policy.check_parameters((*table, *cameras), values | _complete(cameras, given))


def _complete(table: tuple[Parameter, ...], given: Mapping[str, Any]) -> dict[str, Any]:
    """A value for every row: the given one, else the default."""
    return {
        row.name: given_value(row, given[row.name]) if row.name in given else row.default
        for row in table
    }
