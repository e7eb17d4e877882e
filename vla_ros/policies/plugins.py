"""The policies that other packages offer: entry points of the group ``vla_ros.policies``."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

GROUP = "vla_ros.policies"


def installed() -> dict[str, tuple[EntryPoint, ...]]:
    """Their entry points by name, of what this interpreter can import. Imports none of them.

    More than one: several packages claim the name.
    """
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for point in entry_points(group=GROUP):
        if point not in found.get(point.name, ()):  # a folder may be on the path twice
            found[point.name] = (*found.get(point.name, ()), point)
    return found


def described(point: EntryPoint) -> str:
    """Who offers it, in words."""
    package = f" of {point.dist.name} {point.dist.version}" if point.dist is not None else ""
    return f"policy {point.name!r} (entry point {point.value}{package})"
