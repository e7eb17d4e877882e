"""The view node beside a graph, as `--view` adds it, and its log lines about the page.

Apart from graph_file: the node itself needs these names, and no YAML.
"""

from __future__ import annotations

import importlib.util
import threading
from typing import Any

from vla_ros.core.errors import UserError

NODE = "view"
#: log line of the node, in front of the address
ADDRESS = "the view is at "
#: log lines when the first browser has opened the page, and when the last one has left it
OPENED = "the page was opened"
LEFT = "nobody looks at the page any more"


def view_node(simulated: bool) -> dict[str, dict[str, Any]]:
    """Entry of the node, as in a graph file. ``simulated``: the stamps are simulated time.

    Raises UserError where viser is missing.
    """
    if importlib.util.find_spec("viser") is None:
        raise UserError("--view needs viser: pip install '.[view]' in the checkout, or make view")
    node: dict[str, Any] = {"parameter_files": ["view.yaml"], "spectator": True}
    if simulated:
        node["parameters"] = {"use_sim_time": True}
    return {NODE: node}


class PageVisitors:
    """Address of the page, and whether a browser has it open, from the node's log. :meth:`read` may
    be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._new = ""
        self.address = ""
        self.watched = False

    def read(self, line: str) -> None:
        """Take a line of the node's log."""
        with self._lock:
            address = line.partition(ADDRESS)[2].strip()
            if address and address != self.address:
                self.address = self._new = address
            elif line.endswith((OPENED, LEFT)):
                self.watched = line.endswith(OPENED)

    def new_address(self) -> str:
        """Address that was not returned yet; else ""."""
        with self._lock:
            new, self._new = self._new, ""
            return new
