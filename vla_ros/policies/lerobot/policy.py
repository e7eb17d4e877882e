"""A LeRobot checkpoint as a policy, run by LeRobot itself. Imports torch and lerobot (0.6).

Runs in the interpreter that LeRobot's pins allow: of this project it imports only what needs
nothing but numpy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vla_ros.action_space import END_EFFECTOR_DELTA
from vla_ros.core import Floats, Image, Inference, Instruction, Observation, PolicyInfo, Timeline
from vla_ros.engine.flow.cameras import MAIN, WRIST
from vla_ros.policies.base import InvalidAction, PolicyRefused, PolicySpec
from vla_ros.policies.lerobot.folder import (
    ACTION,
    STATE,
    WEIGHTS,
    CameraFeature,
    Features,
    read_features,
)
from vla_ros.policies.lerobot.layout import (
    ActionLayout,
    action_layout,
    cameras_of,
    state_scaling,
)
from vla_ros.policies.lerobot.loading import folder_of, load
from vla_ros.policies.lerobot.positions import check_positions
from vla_ros.policies.lerobot.weights import check_weights
from vla_ros.timing import Clock

#: These look at several observations or give one action, which only ``select_action`` handles.
_SELECTING = ("diffusion", "multi_task_dit", "tdmpc", "vqbet", "gaussian_actor")
#: These take images of their data set's size alone; the others resize by themselves.
_FIXED_SIZE = ("act", "diffusion", "tdmpc", "vqbet", "gaussian_actor")


class LerobotPolicy:
    """Gives every observation to LeRobot and returns the whole chunk, in m, rad and 0..1.

    The noise of an inference belongs to the seed and the observation's stamp, so a replay says
    the same. LeRobot's queue of actions stays empty: what is executed is the control loop's affair.
    """

    def __init__(self, spec: PolicySpec) -> None:
        directory = folder_of(spec.checkpoint)
        features = read_features(directory)
        self._features = features
        said = str(spec.schedule_options.get("flow_cameras", ""))
        self._cameras = cameras_of(features, said, spec.camera_roles)
        self._state = state_scaling(features, spec.state_units)
        # The default may only not have been thought of: the checkpoint's names say more.
        told = None if spec.action_space == END_EFFECTOR_DELTA else spec.action_space
        self._layout = action_layout(features, told, spec.action_units, spec.action_scale)
        self._seed = spec.seed
        self._task = ""
        if spec.num_threads:
            torch.set_num_threads(spec.num_threads)
        self._policy, self._before, self._after = load(directory, spec)
        check_weights(self._policy, directory)
        self._check_positions(directory)
        self.info = self._info(spec, directory, chunk=len(self._try()))

    def _check_positions(self, directory: Path) -> None:
        side = getattr(self._policy.config, "resize_imgs_with_padding", None)
        if side:
            check_positions(self._policy, directory, int(side[0]))

    def _info(self, spec: PolicySpec, directory: Path, chunk: int) -> PolicyInfo:
        dtype = next(self._policy.parameters()).dtype
        return PolicyInfo(
            name="lerobot",
            schedule=self._features.kind,
            checkpoint=spec.checkpoint,
            checkpoint_sha256=_sha256(directory / WEIGHTS),
            device=spec.device,
            dtype=str(dtype).removeprefix("torch."),
            chunk_length=chunk,
            cameras=2 if WRIST in self._cameras else 1,
            camera_roles=tuple(r for r in spec.camera_roles if r in self._cameras),
            conventions=_conventions(self._features, self._cameras, self._layout, spec),
            contradiction=self._layout.doubt,
            state_dim=self._features.state_dim,
            action_space=self._layout.space,
        )

    def reset(self, instruction: Instruction) -> None:
        """Forget observations; take on ``instruction``."""
        self._task = instruction.text
        self._policy.reset()

    def step(self, observation: Observation, timeline: Timeline, clock: Clock) -> Inference:
        """The chunk [C, D]. InvalidAction: the frame lacks a camera or values, or the output has
        no numbers."""
        self._draw(observation.stamp_ns)
        with torch.no_grad():
            batch = self._before(self._batch(observation))
            timeline = timeline.mark("preprocess", clock.steady_ns())
            chunk = self._after(self._chunk(batch))
        actions = self._layout.read(chunk[0].float().cpu().numpy())
        if not np.isfinite(actions).all():
            raise InvalidAction("LeRobot's policy gave something that is no number")
        for stage in ("vision", "prefill"):
            timeline = timeline.mark(stage, timeline.end_ns)
        timeline = timeline.mark("decode", clock.steady_ns())
        return Inference(observation.stamp_ns, actions, timeline)

    def _draw(self, stamp_ns: int) -> None:
        digest = hashlib.blake2b(f"{self._seed} {stamp_ns}".encode(), digest_size=4).digest()
        torch.manual_seed(int.from_bytes(digest, "big"))

    def _chunk(self, batch: dict[str, Any]) -> torch.Tensor:
        """The model's actions [1, C, D], in its own space."""
        if self._features.kind not in _SELECTING:
            chunk: torch.Tensor = self._policy.predict_action_chunk(batch)
            return chunk
        first = self._policy.select_action(batch)
        queue = getattr(self._policy, "_queues", {}).get(ACTION, ())
        actions = [first, *queue]
        if queue:
            queue.clear()
        return torch.stack(actions, 1)

    def _batch(self, observation: Observation) -> dict[str, Any]:
        """By the checkpoint's own names: float32 [3, H, W] within 0..1, [S], and the task."""
        images = {MAIN: observation.image, WRIST: observation.wrist_image}
        images |= observation.more_images
        batch: dict[str, Any] = {"task": self._task}
        for role, camera in self._cameras.items():
            if (image := images.get(role)) is None:
                raise InvalidAction(f"this checkpoint needs a {role} image and the frame has none")
            batch[camera.name] = self._pixels(image, camera)
        if wanted := self._features.state_dim:
            state = observation.proprio
            if state is None or len(state) != wanted:
                has = "none" if state is None else len(state)
                raise InvalidAction(
                    f"this checkpoint needs {wanted} values of robot state and the frame has {has}"
                )
            values = self._state.to_checkpoint(np.asarray(state, np.float64))
            batch[STATE] = torch.from_numpy(values.astype(np.float32))
        return batch

    def _pixels(self, image: Image, camera: CameraFeature) -> torch.Tensor:
        pixels = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1).float() / 255.0
        size = (camera.height, camera.width)
        if self._features.kind not in _FIXED_SIZE or pixels.shape[1:] == size:
            return pixels
        resized = torch.nn.functional.interpolate(
            pixels[None], size, mode="bilinear", antialias=True
        )
        return resized[0].clamp(0.0, 1.0)

    def _try(self) -> Floats:
        """One inference on grey images; PolicyRefused where it cannot be made."""
        grey = {
            role: np.full((c.height, c.width, 3), 128, np.uint8)
            for role, c in self._cameras.items()
        }
        state = self._state.to_runtime(np.zeros(self._features.state_dim))
        main = grey.pop(MAIN, np.zeros((8, 8, 3), np.uint8))
        seen = Observation(1, 1, 1, main, grey.pop(WRIST, None), state, more_images=grey)
        self.reset(Instruction("try", -1))
        try:
            self._draw(1)
            with torch.no_grad():
                chunk = self._after(self._chunk(self._before(self._batch(seen))))
        except Exception as error:
            reason = " ".join(str(error).split())
            raise PolicyRefused(
                f"LeRobot's {self._features.kind} cannot act on its own features:"
                f" {type(error).__name__}: {reason}"
            ) from error
        self._policy.reset()
        return self._layout.read(chunk[0].float().cpu().numpy())


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _conventions(
    features: Features,
    cameras: Mapping[str, CameraFeature],
    layout: ActionLayout,
    spec: PolicySpec,
) -> str:
    """One line for a log."""
    eyes = ", ".join(f"{role} is {camera}" for role, camera in cameras.items())
    words = spec.action_units or layout.space.units
    units = words if len(words) > 1 else words * layout.space.width
    said = " ".join(f"{n}[{u}]" for n, u in zip(layout.space.names, units, strict=True))
    kind = layout.space.kind.name.lower().replace("_", " ")
    state = f"state {features.state_dim}" + (
        f" in {' '.join(spec.state_units)}" if spec.state_units else ""
    )
    return f"{eyes}; {state}; {kind}s {said}"
