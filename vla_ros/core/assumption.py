"""An assumption: one thing that is taken for granted about a policy and its robot, with its source.

The policy names its own (:attr:`vla_ros.core.types.PolicyInfo.assumptions`), the policy node the
robot's; together they are the table at configure and the topic ``~/description``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Assumption:
    """One assumption, in plain words.

    ``what``: such as "units of actions"; ``value``: with its unit; ``source``: who says so
    ("config.json", "its statistics", "parameter joint_names"). ``default``: nobody does, and a
    default is taken: the reader has to look at it.
    """

    what: str
    value: str
    source: str = DEFAULT
    default: bool = False

    @classmethod
    def taken(cls, what: str, value: str) -> Assumption:
        """An assumption that nothing says."""
        return cls(what, value, DEFAULT, True)


def table(assumptions: Iterable[Assumption]) -> str:
    """Assumptions as a table for a log, a row each; those that nothing says have a mark."""
    rows = [(a.what, a.value, a.source, a.default) for a in assumptions]
    first = max((len(what) for what, *_ in rows), default=0)
    return "\n".join(
        f"{'?' if default else ' '} {what:<{first}}  {value}  ({source})"
        for what, value, source, default in rows
    )
