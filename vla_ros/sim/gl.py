"""The off-screen OpenGL that MuJoCo renders with."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import MutableMapping

from vla_ros.core.process import run
from vla_ros.sim.env import SimError

_EGL = ("libEGL.so.1", "libEGL.so")
_OSMESA = ("libOSMesa.so.8", "libOSMesa.so.6", "libOSMesa.so")
_KNOWN = ("egl", "osmesa", "glfw")
_PROBE = "import mujoco; c = mujoco.GLContext(16, 16); c.make_current(); c.free()"

NO_RENDERER = (
    "no off-screen OpenGL works here: install one, "
    "for instance with `sudo apt-get install libosmesa6`"
)


class NoRenderer(SimError):
    """There is no OpenGL to render with."""


def choose_renderer(environ: MutableMapping[str, str] = os.environ) -> str:
    """MUJOCO_GL, set where it is unset: EGL where it works, else OSMesa.

    A value of the user's is kept. NoRenderer says what to install when neither works.
    Finding out whether EGL works takes a process of its own (about half a second), since a
    failed attempt cannot be undone within one.
    """
    chosen = environ.get("MUJOCO_GL", "")
    if not chosen:
        if _loads(_EGL) and _works("egl"):
            chosen = "egl"
        elif _loads(_OSMESA):
            chosen = "osmesa"
        else:
            raise NoRenderer(NO_RENDERER)
        environ["MUJOCO_GL"] = chosen
    elif chosen not in _KNOWN:
        raise NoRenderer(f"MUJOCO_GL is '{chosen}': unset it, or set one of {', '.join(_KNOWN)}")
    return chosen


def _loads(names: tuple[str, ...]) -> bool:
    for name in names:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return True
    return False


def _works(backend: str) -> bool:
    environ = {**os.environ, "MUJOCO_GL": backend, "PYOPENGL_PLATFORM": backend}
    return run([sys.executable, "-c", _PROBE], 30.0, environ)[0]
