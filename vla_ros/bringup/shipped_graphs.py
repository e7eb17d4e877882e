"""The graph files that come with the package (config/*.up.yaml), and any other by its path."""

from __future__ import annotations

import re
from pathlib import Path

from vla_ros.errors import UserError
from vla_ros.resources import config_path, share

SUFFIX = ".up.yaml"


def find_graph_file(path: str | Path) -> Path:
    """The file itself, or the one of that name in config/."""
    given = Path(path)
    if given.is_file():
        return given
    if len(given.parts) == 1:
        for name in (given.name, f"{given.name}{SUFFIX}"):
            try:
                return config_path(name)
            except FileNotFoundError:
                continue
    if given.is_dir():
        raise UserError(f"{given} is a directory; name a graph file such as sim.up.yaml")
    known = ", ".join(path.name for path in shipped_graphs().values())
    raise UserError(f"no graph file {str(path)!r}; shipped ones: {known}")


def shipped_graphs() -> dict[str, Path]:
    """The graphs of config/ by their short names."""
    files = sorted((share() / "config").glob(f"*{SUFFIX}"))
    return {path.name.removesuffix(SUFFIX): path for path in files}


def title_of(file: Path) -> str:
    """What a graph file says of itself in its first sentence; "" where it says nothing."""
    words = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        words += line.lstrip("# ").split()
    return re.split(r"[.:] ", " ".join(words))[0].rstrip(".")
