"""Data sets of LeRobot's format before v3.0: named, and converted by LeRobot's own code.

Apart, since LeRobot's converter works in place, on a folder that it moves: it gets one of ours.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from vla_ros.core.errors import UserError
from vla_ros.core.files import BadFile, read_json
from vla_ros.core.text import printable
from vla_ros.policies.lerobot.environment import seen_variables

INFO = Path("meta") / "info.json"
_MODULE = "lerobot.scripts.convert_dataset_v21_to_v30"
_CONVERTED = "v2.1"


def version_of(folder: Path) -> str:
    """Version of a data set's format, such as "v3.0"; "": it has none. UserError: no data set."""
    if not (folder / INFO).is_file():
        raise UserError(f"{folder} is no LeRobotDataset: it has no {INFO}")
    try:
        found = read_json(folder / INFO)
    except (BadFile, ValueError) as error:
        raise UserError(f"{folder / INFO} cannot be read: {error}") from None
    return printable(str(found.get("codebase_version", "")), 40) if isinstance(found, dict) else ""


def refuse_older(folder: Path) -> None:
    """UserError, with the way: a data set that LeRobot must convert first."""
    version = version_of(folder)
    if version == _CONVERTED:
        raise UserError(
            f"{folder} is of LeRobot's format {version}: `vla-ros lerobot upgrade {folder} --out"
            f" {folder}-v3` makes v3.0 of it"
        )
    if version.startswith(("v1", "v2")):
        raise UserError(
            f"{folder} is of LeRobot's format {version}, which LeRobot no longer reads: an older"
            f" LeRobot makes {_CONVERTED} of it (lerobot 0.3: convert_dataset_v20_to_v21), and"
            " `vla-ros lerobot upgrade` v3.0 of that"
        )


def upgrade(python: str, folder: Path, out: Path) -> None:
    """Make ``out`` of a data set of v2.1, which stays as it is; LeRobot's lines come out as they
    are. UserError: it is of another version, ``out`` is there, or LeRobot failed."""
    version = version_of(folder)
    if version != _CONVERTED:
        if version.startswith("v3"):
            raise UserError(f"{folder} is of {version} already: nothing to do")
        refuse_older(folder)
        raise UserError(f"{folder / INFO} says codebase_version {version!r}, not {_CONVERTED}")
    if out.exists():
        raise UserError(f"{out} is there already: give another --out, or remove it")
    scratch = out.absolute().with_name(f".{out.name}.part")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        _copy(folder, scratch / out.name)
        words = [python, "-I", "-m", _MODULE, f"--repo-id=local/{out.name}"]
        words += [f"--root={scratch / out.name}", "--push-to-hub=false"]
        env = seen_variables(os.environ) | {"HF_HUB_OFFLINE": "1"}
        status = subprocess.run(words, env=env, stdin=subprocess.DEVNULL).returncode
        if status:
            raise UserError(
                f"LeRobot's converter ended with status {status}, see above; {folder} is as it was"
            )
        if not (scratch / out.name / INFO).is_file():
            raise UserError(f"LeRobot's converter made nothing of {folder}, see above")
        (scratch / out.name).rename(out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _copy(folder: Path, to: Path) -> None:
    """A copy that takes no room, where the disk can do that: the converter only reads files."""

    def copy(source: str, target: str) -> None:
        try:
            os.link(os.path.realpath(source), target)
        except OSError:
            shutil.copyfile(source, target)

    shutil.copytree(folder, to, copy_function=copy)
