"""The page in the browser beside a graph: the node that `--view` adds."""

from __future__ import annotations

import importlib.util
import threading
from typing import Any

from vla_ros.errors import UserError

NODE = "view"
#: what the node's log says in front of the address
ADDRESS = "the view is at "
#: ... when the first browser has opened the page, and when the last one has left it
OPENED = "the page was opened"
LEFT = "nobody looks at the page any more"


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


class Visitors:
    """Whether anybody looks at the page, by what the node logs. :meth:`hear` may be called from
    any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: list[str] = []
        self.address = ""
        self.watched = False

    def hear(self, line: str) -> None:
        """A line of the node's log."""
        with self._lock:
            if address := address_in(line):
                self.address = address
                self._told.append(address)
            elif line.endswith(OPENED):
                self.watched = True
            elif line.endswith(LEFT):
                self.watched = False

    def news(self) -> str:
        """An address that was not asked for yet; else ""."""
        with self._lock:
            return self._told.pop(0) if self._told else ""
