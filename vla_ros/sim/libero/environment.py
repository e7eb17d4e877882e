"""LIBERO as an ``Environment``: OffScreenRenderEnv, OSC_POSE at 20 Hz, the benchmark's states.

Images are upright and not mirrored, as a robot's camera shows them and as the tabletop's
are: the simulator's rows run from the bottom, and ``raw[::-1]`` turns them over. Published
LIBERO policies were trained on ``raw[::-1, ::-1]``, which is the mirror image of that; the
policy's preprocessing (`preprocessing: libero`) makes it, nobody else.

Only one task's world is held at a time: another task closes it and builds its own (3 to 6 s).

Thread: one, from construction to close. OSMesa crashes where two share it.
"""

from __future__ import annotations

import gc
import io
import math
import pickle
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from vla_ros.core.types import Floats
from vla_ros.sim.env import (
    AGENTVIEW,
    WRIST,
    EnvSpec,
    RefusedAction,
    SimError,
    SimObservation,
    SimStep,
    checked_action,
)
from vla_ros.sim.libero.assets import (
    HOW,
    find_assets,
    load,
    missing_objects,
    world_note,
    world_versions,
)
from vla_ros.sim.libero.suites import LiberoTask, find_package, tasks_of

if TYPE_CHECKING:
    from vla_ros.sim.libero.world import LiberoWorld


# LIBERO's initial states, read without running code of a pickle.
#
# The files are pickles inside zip archives, as torch.save writes them. The pickles hold one
# NumPy array; an unpickler that is given nothing but three stand-ins for NumPy's own
# constructors cannot build, import or call anything else.


_LARGEST: Final = 64 << 20  # bytes; the benchmark's own files have 80 kB


class _DType:
    """Stand-in for numpy.dtype: little-endian float64 and no other."""

    def __init__(self, code: object, *_: object) -> None:
        if code != "f8":
            raise pickle.UnpicklingError(f"numbers of type {code!r}, expected f8")

    def __setstate__(self, state: tuple[object, ...]) -> None:
        if state[1] != "<":
            raise pickle.UnpicklingError("numbers are not little-endian")


class _Array:
    """Stand-in for an array that is being unpickled; becomes one by :meth:`numbers`."""

    def __init__(self, *_: object) -> None:
        self._state: tuple[object, ...] = ()

    def __setstate__(self, state: tuple[object, ...]) -> None:
        self._state = state

    def numbers(self) -> Floats:
        """The array, float64, of the pickle's shape."""
        try:
            _, shape, dtype, fortran, data = self._state
        except ValueError:
            raise pickle.UnpicklingError("an array without contents") from None
        sides = isinstance(shape, tuple) and all(type(side) is int and side > 0 for side in shape)
        if not (sides and isinstance(dtype, _DType) and isinstance(data, bytes)):
            raise pickle.UnpicklingError("an array of something else than numbers")
        assert isinstance(shape, tuple)
        if math.prod(shape) * 8 != len(data):
            raise pickle.UnpicklingError("an array whose length is not that of its contents")
        order: Final = "F" if fortran else "C"
        flat = np.frombuffer(data, "<f8")
        return np.ascontiguousarray(flat.reshape(shape, order=order), np.float64)


def _encode(text: str, encoding: str) -> bytes:
    """Stand-in for _codecs.encode, by which old pickles carry bytes."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes in {encoding!r}")
    return text.encode("latin1")


def _reconstruct(*_: object) -> _Array:
    return _Array()


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickler of the names of an array alone; each is one of the stand-ins above."""

    _NAMES: Final = {
        ("_codecs", "encode"): _encode,
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _DType,
        ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    }

    def find_class(self, module: str, name: str) -> object:
        try:
            return self._NAMES[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}") from None

    def persistent_load(self, pid: object) -> object:
        raise pickle.UnpicklingError("it refers to other files")


def load_array(data: bytes) -> Floats:
    """The one float64 array in a pickle. UnpicklingError: it holds or asks for more."""
    try:
        found = _ArrayUnpickler(io.BytesIO(data)).load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # a torn pickle fails in every way there is
        raise pickle.UnpicklingError(f"{type(error).__name__}: {error}") from None
    if not isinstance(found, _Array):
        raise pickle.UnpicklingError(f"a {type(found).__name__}, expected an array")
    return found.numbers()


def load_states(path: Path) -> Floats:
    """The initial states of a task: float64 [states, size of the simulator's state].

    SimError: the file is missing, or not what LIBERO or LIBERO-PRO (.npz) ships.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            packed = path.suffix == ".npz"
            ends = "states.npy" if packed else "data.pkl"
            entries = [e for e in archive.infolist() if e.filename.endswith(ends)]
            if len(entries) != 1 or entries[0].file_size > _LARGEST:
                raise pickle.UnpicklingError(f"not one {ends} of a moderate size")
            data = archive.read(entries[0])
        states = _npy(data) if packed else load_array(data)
        if states.ndim != 2 or not np.isfinite(states).all():
            raise pickle.UnpicklingError(f"an array of shape {states.shape} or not finite")
    except (OSError, zipfile.BadZipFile, pickle.UnpicklingError) as error:
        raise SimError(f"cannot read the initial states in {path}: {error}") from error
    return states


def _npy(data: bytes) -> Floats:
    """The float64 array of a .npy file; no pickle is read. UnpicklingError: it is none."""
    try:
        found = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise pickle.UnpicklingError(" ".join(str(error).split())) from None
    if not isinstance(found, np.ndarray) or found.dtype != np.dtype("<f8"):
        raise pickle.UnpicklingError("no array of little-endian float64")
    return np.ascontiguousarray(found)


NAME: Final = "libero"


@dataclass(frozen=True, slots=True)
class CameraPose:
    """Pose of the main camera: its position [3] in m, its axes as columns [3, 3] (it looks along
    -z, y up), and its field of view from top to bottom in rad."""

    position: Floats
    rotation: Floats
    fovy: float


class Libero:
    """``Environment`` of the tasks of ``suite``; where it is '' of every suite of LIBERO's own.

    ``initial_state`` k and ``seed`` s mean the benchmark's k-th episode after env.seed(s).
    SimError: LIBERO or its assets are missing. NoRenderer: there is no OpenGL.
    """

    def __init__(self, suite: str = "", image_size: int = 256, wrist: bool = True) -> None:
        self._package = find_package()
        tasks = tasks_of(suite, self._package)
        self._assets = find_assets(self._package)
        self._make = load(self._package, self._assets)
        self._tasks = {task.key: task for task in tasks}
        self._spec = EnvSpec(
            NAME,
            tuple(task.as_task(one_suite=bool(suite)) for task in tasks),
            (AGENTVIEW, WRIST) if wrist else (AGENTVIEW,),
            image_size,
            world=world_versions(self._assets, suite),
            note=world_note(self._assets),
        )
        self._world: LiberoWorld | None = None
        self._built = ""  # the task whose world this is
        self._done = True

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    def reset(
        self, task: str, initial_state: int, seed: int = 0, render: bool = True
    ) -> SimObservation:
        """Begin an episode, the ten steps in which objects come to rest already made.

        Takes 3 to 6 s for another task than before, else a third of a second.
        """
        chosen = self._spec.task(task)
        self._spec.check_initial_state(chosen, initial_state)
        self._done = True
        found = self._tasks[chosen.name]
        states = load_states(found.states_file(self._package))
        try:
            world = self._world_of(found)
            observation = world.reset(initial_state, seed, states[initial_state], render)
        except Exception as error:  # robosuite has no errors of its own
            self.close()
            if isinstance(error, SimError):
                raise
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise SimError(f"LIBERO cannot set up {found.key}: {reason}") from error
        self._done = False
        return observation

    def _world_of(self, task: LiberoTask) -> LiberoWorld:
        if self._world is None or self._built != task.key:
            from vla_ros.sim.libero.world import LiberoWorld  # robosuite, which load() has prepared

            self.close()
            if missing := missing_objects([task], self._package, self._assets):
                kinds = ", ".join(missing)
                raise SimError(f"{task.key}: the assets have no model of {kinds}: {HOW}")
            bddl = task.bddl_file(self._package)
            self._world = LiberoWorld(self._make, bddl, self._spec.cameras, self._spec.image_size)
            self._built = task.key
        return self._world

    def step(self, action: npt.ArrayLike, render: bool = True) -> SimStep:
        """Execute one action. Done only by success: LIBERO never gives a task up."""
        if self._done or self._world is None:
            raise RefusedAction("the episode has ended: reset before the next step")
        observation, success = self._world.step(checked_action(action), render)
        self._done = success
        return SimStep(observation, success, success)

    def eye(self) -> CameraPose:
        """Main camera of the task that was reset last. SimError: none was."""
        if self._world is None:
            raise SimError("no task is built: reset first")
        return CameraPose(*self._world.eye())

    def close(self) -> None:
        if self._world is None:
            return
        self._done = True
        self._world.close()
        self._world = None
        gc.collect()  # worlds are full of cycles and hold a gigabyte
