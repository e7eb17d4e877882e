"""A stranger's YAML: plain values alone, with limits that hold while it is composed.

An alias costs as many values as it stands for, so ten lines cannot mean a billion values.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from vla_ros.core.files import MB, BadFile, read_text

_MOST = 1 * MB  # a graph file or contract has 10 kB
_VALUES = 20_000  # with those that aliases stand for; 2 s of PyYAML's time
_DEPTH = 64
_NUMBER = 1_000  # characters; PyYAML's time for one of many, such as 1:59:59, is their square
_TEXT = "tag:yaml.org,2002:str"


class _Limit(yaml.MarkedYAMLError):
    """A text that is YAML, and too much of it."""


class _Loader(yaml.SafeLoader):
    """SafeLoader that counts what it composes."""

    def __init__(self, stream: str, most: int) -> None:
        super().__init__(stream)
        self._most = most
        self._values = self._depth = 0
        self._sizes: dict[int, int] = {}  # of every finished node, by its id: the tree holds them

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if self._depth == _DEPTH:
            raise _Limit(problem=f"more than {_DEPTH} deep", problem_mark=event.start_mark)
        before = self._values
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        wrong = ""
        if not isinstance(event, yaml.AliasEvent):
            self._values += 1
            self._sizes[id(node)] = self._values - before
        elif id(node) in self._sizes:
            self._values += self._sizes[id(node)]
        else:
            wrong = "an alias inside the value that it stands for"
        if self._values > self._most:
            wrong = f"more than {self._most:,} values, with those that aliases stand for"
        elif isinstance(node, yaml.ScalarNode) and len(node.value) > _NUMBER and node.tag != _TEXT:
            wrong = f"a number of {len(node.value):,} characters"
        if wrong:
            raise _Limit(problem=wrong, problem_mark=event.start_mark)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
                continue
            if (key.tag, key.value) in seen:
                problem = f"{key.value!r} stands twice, and one would be passed over"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add((key.tag, key.value))
        return node


def parse_yaml(text: str, what: str, values: int = _VALUES) -> Any:
    """The value of a YAML text; None for an empty one. BadFile, one line that begins with ``what``
    and says the line in it."""
    return _refusing(text, what, _Loader.get_single_data, values)


def read_yaml(path: Path, most: int = _MOST, values: int = _VALUES) -> Any:
    """The value in a YAML file, of so many bytes and values. BadFile as of :func:`parse_yaml`,
    OSError."""
    return parse_yaml(read_text(path, most), str(path), values)


def compose_yaml(path: Path) -> yaml.Node | None:
    """The nodes of a YAML file, which know their lines. BadFile, OSError."""
    return _composed(read_text(path, _MOST), str(path))


@lru_cache(maxsize=16)
def _composed(text: str, what: str) -> yaml.Node | None:
    """The nodes of a text: kept, since the line of each of a hundred parameters is asked for."""
    found = _refusing(text, what, _Loader.get_single_node)
    return found if isinstance(found, yaml.Node) else None


def _refusing(text: str, what: str, load: Callable[[_Loader], Any], values: int = _VALUES) -> Any:
    try:
        loader = _Loader(text, values)
        try:
            return load(loader)
        finally:
            loader.dispose()  # type: ignore[no-untyped-call]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        kind = "too much to be read" if isinstance(error, _Limit) else "not YAML"
        raise BadFile(f"{what}{line}: {kind}: {problem}") from None
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        # What PyYAML raises for a date without a month, or a tag on what is none of it.
        raise BadFile(f"{what}: not YAML: {' '.join(str(error).split())}") from None
