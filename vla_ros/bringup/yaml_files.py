"""YAML that a user wrote: what is wrong with it is one line with its place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from vla_ros.errors import UserError


def read_yaml(path: Path) -> dict[str, Any]:
    """A file that is a mapping. UserError: the line in which it is not YAML."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise UserError(f"{path}{line}: not YAML: {problem}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from None
    return mapping(content, str(path))


def mapping(value: object, place: str) -> dict[str, Any]:
    """What was written, where a mapping has to be; nothing is an empty one. UserError."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UserError(f"{place} must be a mapping of names, not {type(value).__name__}")
    return value


def argument(name: str, text: str) -> dict[str, Any]:
    """The launch argument ``name:=text``, a mapping or nothing. UserError in one line."""
    try:
        found = yaml.safe_load(text or "{}")
    except yaml.YAMLError as error:
        raise UserError(f"{name}:={text}: {' '.join(str(error).split())}") from None
    if not isinstance(found, dict):
        raise UserError(f"{name}:={text}: write '{{NAME: VALUE, NAME: VALUE}}'")
    return found


def known_keys(content: Mapping[str, Any], known: Iterable[str], place: str) -> None:
    """UserError with the first key that is none of these."""
    unknown = [str(key) for key in content if key not in known]
    if unknown:
        raise UserError(f"{place}: unknown key {unknown[0]!r}; known: {', '.join(known)}")


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Parameters that were written as a tree, by their names with dots."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
