"""Asks other nodes for all their parameters, without waiting for any of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rcl_interfaces.srv import GetParameters, ListParameters
from rclpy.node import Node
from rclpy.parameter import parameter_value_to_python

Known = Callable[[str, dict[str, Any]], None]


class ParameterCollector:
    """Call :meth:`ask` now and then; ``known(node, parameters)`` is called once a node, and
    again after :meth:`node_is_up` was told of a node that had not answered.

    Everything runs in the node's executor.
    """

    def __init__(self, node: Node, names: Iterable[str], known: Known) -> None:
        self._known = known
        self._open = {name: _Clients(node, name) for name in names}

    def ask(self) -> None:
        """Ask every node that is there and has not answered yet."""
        for name, clients in list(self._open.items()):
            if clients.ready and not clients.asked:
                clients.asked = True
                future = clients.list.call_async(ListParameters.Request())
                future.add_done_callback(lambda done, name=name: self._on_names(name, done))

    def node_is_up(self, name: str) -> None:
        """Do not wait for the next :meth:`ask`."""
        if name in self._open:
            self.ask()

    def _on_names(self, node: str, future: Any) -> None:
        answer = future.result()
        if answer is None:
            self._open[node].asked = False
            return
        names = list(answer.result.names)
        request = GetParameters.Request(names=names)
        values = self._open[node].get.call_async(request)
        values.add_done_callback(lambda done: self._on_values(node, names, done))

    def _on_values(self, node: str, names: list[str], future: Any) -> None:
        answer = future.result()
        clients = self._open.get(node)
        if answer is None or clients is None:
            return
        found = {
            name: _plain(parameter_value_to_python(value))
            for name, value in zip(names, answer.values, strict=False)
        }
        del self._open[node]
        self._known(node, {name: value for name, value in found.items() if value is not None})


class _Clients:
    def __init__(self, node: Node, name: str) -> None:
        self.list = node.create_client(ListParameters, f"{name}/list_parameters")
        self.get = node.create_client(GetParameters, f"{name}/get_parameters")
        self.asked = False

    @property
    def ready(self) -> bool:
        return bool(self.list.service_is_ready() and self.get.service_is_ready())


def _plain(value: Any) -> Any:
    """As JSON can hold it."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return [item if isinstance(item, bool | int | float | str) else str(item) for item in value]
