"""Arguments of the launch files by the names that they declare. Apart: launch files alone use it.

launch takes an argument that no file declares, and nothing comes of it.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterable
from pathlib import Path

from vla_ros.core.errors import UserError
from vla_ros.core.names import nearest

#: launch file -> those of ours that it includes, whose arguments can be given to it too
_INCLUDES = {
    "policy.launch.py": (),
    "sim.launch.py": ("policy.launch.py",),
    "libero.launch.py": ("sim.launch.py", "policy.launch.py"),
    "replay.launch.py": ("policy.launch.py",),
}


def refuse_undeclared(file: str, words: Iterable[str]) -> None:
    """Raise UserError, one line, for an argument NAME:=VALUE among the ``words`` of a command line
    that neither the launch ``file`` nor one that it includes declares. A file that another
    includes takes what that one is given."""
    path = Path(file)
    if path.name not in (Path(word).name for word in sys.argv):
        return
    names: set[str] = set()
    for one in (path.name, *_INCLUDES[path.name]):
        declared = runpy.run_path(str(path.with_name(one)))["arguments"]()
        names |= {argument.name for argument in declared}
    for word in words:
        name, given, _ = word.partition(":=")
        if given and name not in names:
            hint = nearest(name, names, "; --show-args lists them")
            raise UserError(f"{path.name} has no argument {name!r}{hint}")
