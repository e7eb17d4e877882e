"""The nodes' parameter tables as Markdown: `python -m vla_ros.nodes.describe` writes
docs/reference/parameters.md, and a test holds the two together."""

from __future__ import annotations

from collections.abc import Sequence

from vla_ros.nodes.bridge import parameters as bridge
from vla_ros.nodes.common.parameters import Parameter
from vla_ros.nodes.foxglove import parameters as foxglove
from vla_ros.nodes.monitor import node as monitor
from vla_ros.nodes.policy import parameters as policy_parameters
from vla_ros.nodes.rerun import parameters as rerun
from vla_ros.nodes.view import parameters as view_parameters

_HEAD = """# Parameters

Written by `python -m vla_ros.nodes.describe > docs/reference/parameters.md`.

"fixed" parameters are given at start, in a parameter file or with `-p`. Those of the policy node
are read at configure: they may be set again after cleanup, and what they cannot mean together is
a configure that fails with the reason. All others may be set while the node runs; a bad value is
refused with the reason and nothing changes. Defaults are in `config/policy.yaml`,
`config/bridge.yaml`, `config/monitor.yaml`, `config/view.yaml`, `config/foxglove.yaml` and
`config/rerun.yaml`.
"""


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"`{value}`" if value else "empty"
    if isinstance(value, Sequence):
        if isinstance(value[0], str):
            return ", ".join(f"`{v}`" for v in value) if any(value) else "empty"
        return "[" + ", ".join(f"{v:g}" for v in value) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _allowed(row: Parameter) -> str:
    if row.choices:
        return ", ".join(f"`{choice}`" for choice in row.choices)
    if row.low is not None and row.high is not None:
        return f"{row.low:g} to {row.high:g}"
    return ""


def table(rows: Sequence[Parameter]) -> str:
    """One Markdown table."""
    lines = ["| name | default | allowed | fixed | meaning |", "|---|---|---|---|---|"]
    for row in rows:
        fixed = "yes" if row.fixed else ""
        lines.append(
            f"| `{row.name}` | {_value(row.default)} | {_allowed(row)} | {fixed} | {row.text} |"
        )
    return "\n".join(lines)


def document() -> str:
    """The whole page."""
    parts = [_HEAD]
    for name, rows in (
        ("policy", policy_parameters.TABLE),
        ("bridge", bridge.TABLE),
        ("monitor", monitor.TABLE),
        ("view", view_parameters.TABLE),
        ("foxglove", foxglove.TABLE),
        ("rerun", rerun.TABLE),
    ):
        parts.append(f"## {name}\n\n{table(rows)}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    print(document(), end="")
