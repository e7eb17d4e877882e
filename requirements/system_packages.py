"""What building the package and rendering need of the system: found out, and apt-get where that
needs no password. Standard library only, as install.py.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

from over_ros import SetupError, say


def missing_system_packages() -> dict[str, tuple[str, ...]]:
    """What is missing → Debian packages that give it."""
    missing: dict[str, tuple[str, ...]] = {}
    if shutil.which("g++") is None:
        missing["a C++ compiler"] = ("g++",)
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        missing["the headers of Python"] = ("python3-dev",)
    if importlib.util.find_spec("ensurepip") is None:
        missing["the venv module"] = ("python3-venv",)
    return missing


def install_system_packages(missing: dict[str, tuple[str, ...]]) -> str:
    """apt-get what is missing where that needs no password; returns what to say if it is not."""
    names = sorted({name for packages in missing.values() for name in packages})
    line = f"missing: {', '.join(missing)}; run: sudo apt-get install {' '.join(names)}"
    apt = shutil.which("apt-get")
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    allowed = not sudo or (
        shutil.which("sudo") is not None
        and subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0
    )
    if apt and allowed:
        say(f"apt-get install {' '.join(names)}")
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        options = ["-qq", "-o", "Dpkg::Use-Pty=0"]
        subprocess.run([*sudo, apt, "update", *options], env=quiet, stdin=subprocess.DEVNULL)
        install = [*sudo, apt, "install", "-y", "--no-install-recommends", *options, *names]
        subprocess.run(install, env=quiet, stdin=subprocess.DEVNULL)
    return line


def install_compilers() -> None:
    """What building the package needs."""
    missing = missing_system_packages()
    if not missing:
        return
    line = install_system_packages(missing)
    if missing_system_packages():
        raise SetupError(line)
