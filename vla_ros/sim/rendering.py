"""Off-screen rendering of a MuJoCo scene. One renderer belongs to one thread.

mujoco's own Renderer takes its OpenGL binding from MUJOCO_GL at the moment mujoco is first
imported, by whomever; this one takes it when it is made.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping

import mujoco
import numpy as np

from vla_ros.core.types import Image
from vla_ros.sim.env import SimError
from vla_ros.sim.gl import NO_RENDERER, NoRenderer, choose_renderer

_MAX_GEOMS = 1000


class OffscreenRenderer:
    """Renderer of square images of ``size`` pixels. NoRenderer: OpenGL does not work here."""

    def __init__(self, model: mujoco.MjModel, size: int, shadows: bool = False) -> None:
        backend = choose_renderer()
        try:
            binding = importlib.import_module(f"mujoco.{backend}")
            self._gl = binding.GLContext(size, size)
            self._gl.make_current()
            self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        except Exception as error:  # each OpenGL binding has exceptions of its own
            raise NoRenderer(f"MUJOCO_GL={backend}: {NO_RENDERER} ({error})") from error
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._model = model
        self._viewport = mujoco.MjrRect(0, 0, size, size)
        self._scene = mujoco.MjvScene(model, _MAX_GEOMS)
        self._scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = shadows
        self._options = mujoco.MjvOption()
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._bottom_up = np.empty((size, size, 3), np.uint8)

    def render(self, data: mujoco.MjData, camera: str) -> Image:
        """The view of a camera of the model: a new uint8 [size, size, 3], RGB, upright."""
        self._gl.make_current()
        self._camera.fixedcamid = self._model.camera(camera).id
        mujoco.mjv_updateScene(
            self._model,
            data,
            self._options,
            None,
            self._camera,
            mujoco.mjtCatBit.mjCAT_ALL,
            self._scene,
        )
        mujoco.mjr_render(self._viewport, self._scene, self._context)
        mujoco.mjr_readPixels(self._bottom_up, None, self._viewport, self._context)
        return np.ascontiguousarray(self._bottom_up[::-1])

    def close(self) -> None:
        """Free the context. Not to be used afterwards."""
        self._context.free()
        self._gl.free()


# Images that are rendered when they are read: rendering is most of a simulated step's time (6 of
# 8 ms on one core of a CPU), and a policy that executes four actions of a chunk reads one frame in
# four.


class LaterImages(Mapping[str, Image]):
    """Images by camera, rendered when they are read first, until the world moves on.

    ``render`` gives the image of a camera as the world stands: uint8 [size, size, 3], RGB,
    upright. SimError: read first after :meth:`moved_on`, when it would be of another moment.
    """

    def __init__(self, cameras: tuple[str, ...], render: Callable[[str], Image]) -> None:
        self._cameras = cameras
        self._render = render
        self._rendered: dict[str, Image] = {}
        self._past = False

    def moved_on(self) -> None:
        """End the reading of images that were not read by now."""
        self._past = True

    def __getitem__(self, camera: str) -> Image:
        if camera not in self._cameras:
            raise KeyError(camera)
        if camera not in self._rendered:
            if self._past:
                raise SimError(f"the image of {camera} was not looked at before the next step")
            self._rendered[camera] = self._render(camera)
        return self._rendered[camera]

    def __iter__(self) -> Iterator[str]:
        return iter(self._cameras)

    def __len__(self) -> int:
        return len(self._cameras)
