"""Folders of the files beside the code: parameter files, launch files, the Fast DDS profile.

In a checkout they are next to the package; installed they are in <prefix>/share/vla_ros.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from xml.etree import ElementTree

_PACKAGE = Path(__file__).resolve().parents[1]


def share() -> Path:
    """The folder that holds config/, launch/ and package.xml.

    The checkout when the package is imported from one, else share/vla_ros of the prefix the
    package was installed into, else of a prefix in AMENT_PREFIX_PATH.

    Raises:
        FileNotFoundError: with every folder that was tried.
    """
    tried = [_PACKAGE.parent]
    # <prefix>/lib/python3.x/site-packages/vla_ros, and Debian's <prefix>/local/lib/...
    tried += [parent / "share" / "vla_ros" for parent in _PACKAGE.parents[3:6]]
    ament = os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep)
    prefixes = dict.fromkeys([*filter(None, ament), sys.prefix])
    tried += [Path(prefix) / "share" / "vla_ros" for prefix in prefixes]
    for folder in tried:
        if (folder / "package.xml").is_file() and (folder / "config").is_dir():
            return folder
    looked = ", ".join(map(str, tried))
    raise FileNotFoundError(f"vla_ros is installed without its share folder; looked in {looked}")


def config_path(name: str) -> Path:
    """A file of config/, such as "policy.yaml".

    Raises:
        FileNotFoundError: with the names there are.
    """
    folder = share() / "config"
    path = folder / name
    if not path.is_file():
        known = ", ".join(sorted(p.name for p in folder.iterdir()))
        raise FileNotFoundError(f"no configuration file {name!r} in {folder}; there are: {known}")
    return path


def version() -> str:
    """The version in package.xml, where alone it is written down."""
    return ElementTree.parse(share() / "package.xml").getroot().findtext("version", "unknown")
