"""The page in the browser beside a graph: the node that `--view` adds."""

from __future__ import annotations

import importlib.util
from typing import Any

from vla_ros.errors import UserError

NODE = "view"
#: what the node's log says in front of the address
ADDRESS = "the view is at "


def view_node(simulated: bool) -> dict[str, dict[str, Any]]:
    """As it would stand in a graph file. ``simulated``: the stamps are simulated time.

    Raises UserError, where what it is made with is missing.
    """
    if importlib.util.find_spec("viser") is None:
        raise UserError("--view needs viser: pip install 'vla_ros[view]', or make view")
    node: dict[str, Any] = {"parameter_files": ["view.yaml"], "spectator": True}
    if simulated:
        node["parameters"] = {"use_sim_time": True}
    return {NODE: node}


def address_in(line: str) -> str:
    """The page's address, where a line of the node's log tells it; else ""."""
    _, found, address = line.partition(ADDRESS)
    return address.strip() if found else ""
