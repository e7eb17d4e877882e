"""LeRobot's environment: a virtual environment of its own, of a Python and packages that fit it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from vla_ros.core.errors import UserError
from vla_ros.core.files import read_text
from vla_ros.core.process import run
from vla_ros.policies.load import OLDEST

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
NEWEST = (3, 13)  # that its pinned numpy has wheels for
_NOTE = ".vla_ros_requirements"  # what was installed, so that a second setup takes a moment
_PROBE = "import ensurepip, sys, venv; print(*sys.version_info[:2])"
_TRIAL = (
    "import lerobot, torch, torchvision, transformers as t;"
    "from lerobot.policies.factory import get_policy_class as get;"
    "[get(n) for n in ('act', 'diffusion', 'smolvla', 'pi0', 'pi05')];"
    "print(f'lerobot {lerobot.__version__}, torch {torch.__version__}, transformers"
    " {t.__version__}, CUDA {torch.cuda.is_available()}')"
)

#: Variables that a process of LeRobot's sees, by name or by the beginning of it: not our token, nor
#: what else the operator's shell has. A checkpoint that found a way to run would find nothing.
_SEEN = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
_SEEN_FROM = (
    "LC_", "XDG_CACHE", "XDG_STATE", "HF_H", "HF_MODULES", "TORCH", "PYTORCH", "CUDA", "NVIDIA",
    "NCCL", "CUBLAS", "CUDNN", "OMP_", "MKL_", "OPENBLAS_", "KMP_", "GOMP_", "TRITON", "SSL_CERT",
    "VLA_ROS_WORKER", "VLA_ROS_LOCK",
)  # fmt: skip
_OF_THE_HUB = ("HF_", "HUGGING", "HTTP_", "HTTPS_", "NO_", "http_", "https_", "no_", "REQUESTS_")


def seen_variables(environment: Mapping[str, str], hub: bool = False) -> dict[str, str]:
    """Variables of a process of LeRobot's; without ``hub`` it is offline, unless the operator set
    HF_HUB_OFFLINE."""
    begins = _SEEN_FROM + (_OF_THE_HUB if hub else ())
    found = {n: v for n, v in environment.items() if n in _SEEN or n.startswith(begins)}
    return found if hub else {"HF_HUB_OFFLINE": "1"} | found


def find_python(given: str = "") -> str:
    """A Python that LeRobot runs on: ``given``, else one of the path or of pyenv.

    UserError: there is none, and how to get one.
    """
    for name in [given] if given else list(_candidates()):
        path = shutil.which(os.path.expanduser(name))
        if path is not None and _version(path) is not None:
            return path
    wanted = f"Python {_dotted(OLDEST)} to {_dotted(NEWEST)} with its venv module"
    if given:
        raise UserError(f"{given} is no {wanted}, which LeRobot needs")
    raise UserError(
        f"LeRobot needs {wanted}, and there is none here: install one (sudo apt-get install"
        " python3.12-venv, or uv python install 3.12, or pyenv install 3.12), or give --python"
    )


def _candidates() -> Iterator[str]:
    for minor in range(OLDEST[1], NEWEST[1] + 1):
        yield f"python3.{minor}"
    yield "python3"
    for pattern in (".pyenv/versions/3.*/bin/python", ".local/share/uv/python/*/bin/python3"):
        yield from map(str, sorted(Path.home().glob(pattern)))


def _version(path: str) -> tuple[int, ...] | None:
    """Version of a Python that LeRobot runs on; None: another, or none that runs (pyenv's
    shims)."""
    good, text = run([path, "-I", "-c", _PROBE], 20.0)
    found = tuple(map(int, text.split())) if good else ()
    return found if OLDEST <= found <= NEWEST else None


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def interpreter_of(folder: Path) -> Path:
    return folder / "bin" / "python"


def create(folder: Path, python: str) -> None:
    """Make the environment where there is none. UserError: it cannot be made there."""
    if interpreter_of(folder).is_file():
        return
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is there and is no Python environment: give another --dir")
    folder.parent.mkdir(parents=True, exist_ok=True)
    _run([python, "-m", "venv", str(folder)], f"{folder} cannot be made")


def install(folder: Path, index: Sequence[str] = ()) -> bool:
    """Put the pinned packages in; False: they were there. ``index``: package indexes besides pip's.

    UserError: pip failed; its output is on stderr.
    """
    note, wanted = folder / _NOTE, hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    if note.is_file() and read_text(note) == wanted:
        return False
    more = [argument for url in index for argument in ("--extra-index-url", url)]
    pip = [str(interpreter_of(folder)), "-m", "pip", "install", "--disable-pip-version-check"]
    _run([*pip, *more, "-r", str(REQUIREMENTS)], "pip failed")
    note.write_text(wanted)
    return True


def trial(folder: Path) -> str:
    """Import LeRobot as a worker would; returns its versions, in a line. UserError: the failure."""
    command = [str(interpreter_of(folder)), "-I", "-c", _TRIAL]
    good, text = run(command, 600.0)
    if not good:
        raise UserError(f"LeRobot cannot be imported in {folder}: {text}")
    return text.strip().splitlines()[-1]


def _run(command: list[str], wrong: str) -> None:
    # The parent's own search path is for another Python.
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    if subprocess.run(command, env=env, stdin=subprocess.DEVNULL).returncode:
        raise UserError(f"{wrong}; to see it alone: {' '.join(command)}")
