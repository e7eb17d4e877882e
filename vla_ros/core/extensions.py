"""Entry points: what other distributions bring to `vla-ros` and to the engine.

``vla_ros.verbs``: packages with a table ``VERBS`` (verb -> one line) and a module for each verb;
``vla_ros.decodings``: reference decodings, and the drafter ``model``; ``vla_ros.reports``: who
writes an evaluation's page.
The lab (`pip install ./lab`) brings some of each. Policies have a group of their own, see
:mod:`vla_ros.policies.base`.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from vla_ros.core.errors import UserError

VERBS, DECODINGS, REPORTS = "vla_ros.verbs", "vla_ros.decodings", "vla_ros.reports"
LAB = "pip install ./lab in the checkout, or vla-ros-lab"


def extensions(group: str) -> dict[str, EntryPoint]:
    """The entry points of ``group`` by name, of what this interpreter can import. Imports none.

    UserError: two distributions claim a name.
    """
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        other = found.setdefault(point.name, point)
        if other.value != point.value:  # the same one twice: a folder is on the path twice
            raise UserError(f"{group}: {point.name!r} is both {other.value} and {point.value}")
    return found


def imported(point: EntryPoint) -> Any:
    """What an entry point names. UserError: its package is damaged, or gone in part."""
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise UserError(
            f"{point.group}: {point.name!r} ({point.value}) cannot be imported: {error};"
            " install its package anew, or uninstall it"
        ) from error


def extension(group: str, name: str) -> Any | None:
    """What is offered under this name, imported; None: nothing is. UserError as above."""
    point = extensions(group).get(name)
    return imported(point) if point is not None else None
