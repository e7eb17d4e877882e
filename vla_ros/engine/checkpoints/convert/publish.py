"""A target directory that appears whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from vla_ros.engine.errors import CheckpointError


@contextmanager
def publishing(target: Path) -> Iterator[Path]:
    """A scratch directory beside ``target`` that takes its name when the block ends well.

    Raises CheckpointError where there is something of that name; messages from inside the block
    speak of the target.
    """
    if target.exists() or target.is_symlink():
        raise CheckpointError(f"{target} exists: remove it, or give another name")
    scratch = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        scratch.mkdir(parents=True)
        yield scratch
        _share(scratch)
        scratch.rename(target)
    except CheckpointError as error:
        raise CheckpointError(str(error).replace(str(scratch), str(target))) from error
    except (OSError, SafetensorError) as error:
        said = " ".join(str(error).split())
        raise CheckpointError(f"cannot write {target}: {said}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _share(scratch: Path) -> None:
    """Readable as any new file is: safetensors writes for its owner alone."""
    mask = os.umask(0)
    os.umask(mask)
    for path in scratch.iterdir():
        path.chmod(0o666 & ~mask)
