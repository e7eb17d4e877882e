"""A vision-language-action model on the project's engine, as a policy. Imports torch."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import numpy as np

from vla_ros.core.action_space import END_EFFECTOR_DELTA
from vla_ros.core.clock import Clock
from vla_ros.core.errors import UserError
from vla_ros.core.types import (
    GRIPPER,
    Floats,
    Inference,
    Instruction,
    Observation,
    PolicyInfo,
    Timeline,
)
from vla_ros.engine import EngineOptions, InvalidAction, load_engine
from vla_ros.engine.layers.pieces import Pieces
from vla_ros.engine.options import AUTO
from vla_ros.engine.verdicts import Precision, chosen_dtype, require
from vla_ros.policies.base import PolicyRefused, PolicySpec
from vla_ros.policies.conventions import Conventions, settle
from vla_ros.policies.units import scaling_for


def engine_options(spec: PolicySpec, used: Conventions) -> EngineOptions:
    """The engine's options of a spec, completed by conventions.

    ``used``: those of :func:`vla_ros.policies.conventions.settle`.
    """
    return replace(
        spec.engine,
        unnorm_key=used.unnorm_key,
        center_crop="always" if used.center_crop else "never",
        preprocessing=used.preprocessing,
    )


def _require_verified(spec: PolicySpec) -> None:
    """Raise PolicyRefused, with the command to run, where this precision was not verified."""
    try:
        require(spec.checkpoint, Precision(spec.engine.dtype, spec.engine.weights, spec.device))
    except (UserError, ValueError, OSError) as error:
        raise PolicyRefused(str(error)) from error


def _with_dtype(spec: PolicySpec) -> tuple[PolicySpec, str]:
    """The spec with the dtype that ``auto`` stands for here, and the end of the line about it."""
    engine = spec.engine
    if engine.dtype != AUTO:
        return spec, ""
    try:
        dtype, why = chosen_dtype(engine.checkpoint, engine.weights, engine.device)
    except (UserError, ValueError, OSError, RuntimeError) as error:
        raise PolicyRefused(str(error)) from error
    return replace(spec, engine=replace(engine, dtype=dtype)), f"; dtype auto is {dtype}: {why}"


class VlaPolicy:
    """The engine as a policy: its actions in metres and radians, the gripper in [0, 1]. Actions
    that are no end effector's displacement are in the units of their data, and so is the robot's
    state: with ``action_units`` and ``state_units`` they are converted to the runtime's.

    Units, statistics and image steps are the checkpoint's unless the spec gives them.
    An instruction that the model cannot take (too long for its prompt) makes every step
    raise InvalidAction until the next ``reset``.
    """

    def __init__(self, spec: PolicySpec) -> None:
        used, contradiction = settle(spec)
        spec, dtype = _with_dtype(spec)
        if spec.require_verified:  # before weights are read, which may take minutes
            _require_verified(spec)
        try:
            self._engine = load_engine(engine_options(spec, used))
        except (ValueError, OSError) as error:
            raise PolicyRefused(str(error)) from error
        self._scale = np.array(used.action_scale)
        space = self._engine.info.action_space
        if spec.action_units and space == END_EFFECTOR_DELTA:
            raise PolicyRefused("action_units is for joints, and these are displacements of an end"
                                " effector: give action_scale")  # fmt: skip
        self._actions = scaling_for(spec.action_units, space.width, "action_units")
        self._state = None
        if spec.state_units:
            count = self._engine.info.state_dim
            self._state = scaling_for(spec.state_units, count, "state_units")
        self._cannot = "no instruction was given"
        self.info: PolicyInfo = replace(
            self._engine.info,
            cameras=self._engine.cameras,
            conventions=f"{used}{dtype}",
            contradiction=contradiction,
            action_rate_hz=used.action_rate_hz,
            state_middle=self._state_middle(),
            corrects=self._engine.info.corrects if space == END_EFFECTOR_DELTA else 0,
        )

    def _state_middle(self) -> tuple[float, ...]:
        """Middle of the state in the training data, in the runtime's units."""
        middle = self._engine.info.state_middle
        if not middle or self._state is None:
            return middle
        return tuple(self._state.to_runtime(np.array(middle)).tolist())

    def reset(self, instruction: Instruction) -> None:
        """A new task: forget pipeline, cache and drafts; follow ``instruction``."""
        try:
            self._engine.reset(instruction.text)
        except ValueError as error:
            self._cannot = str(error)
        else:
            self._cannot = ""

    def _in_data_units(self, seen: Observation) -> Observation:
        """An observation with the robot's state in the checkpoint's units."""
        if self._state is None or seen.proprio is None:
            return seen
        return replace(seen, proprio=self._state.to_checkpoint(seen.proprio))

    def step(self, observation: Observation, timeline: Timeline, clock: Clock) -> Inference | None:
        """The action [C, D] that is complete with this observation."""
        self._refuse(observation)
        return self._in_units(self._engine.step(self._in_data_units(observation), timeline, clock))

    def correct(self, observation: Observation, actions: Floats, index: int) -> Floats:
        """Actions of a chunk from ``index`` on, float64 [n, 7], corrected by a newer frame, with
        which the first is due; ``info.corrects`` at most. InvalidAction as of :meth:`step`."""
        self._refuse(observation)
        unscaled = actions.copy()
        unscaled[:, :GRIPPER] /= np.where(self._scale == 0.0, 1.0, self._scale)
        added = self._engine.correction(self._in_data_units(observation), unscaled, index)
        added[:, :GRIPPER] *= self._scale
        out: Floats = actions + added
        out[:, GRIPPER] = np.clip(out[:, GRIPPER], 0.0, 1.0)
        return out

    def session(self, seed: int | None = None) -> VlaPolicy:
        """Another robot's session on the same weights (:mod:`vla_ros.policies.sessions`)."""
        other = copy(self)
        other._engine = self._engine.session(seed)
        other._cannot = "no instruction was given"
        return other

    def pieces(
        self, observation: Observation, timeline: Timeline, clock: Clock
    ) -> Pieces[Inference | None]:
        """The pieces of a :meth:`step`, for a batch."""
        self._refuse(observation)
        seen = self._in_data_units(observation)
        return self._in_units((yield from self._engine.pieces(seen, timeline, clock)))

    def _refuse(self, observation: Observation) -> None:
        """Raise InvalidAction where there can be no answer to this frame."""
        if self._cannot:
            raise InvalidAction(self._cannot)
        if self.info.cameras == 2 and observation.wrist_image is None:
            raise InvalidAction("this checkpoint needs a wrist image and the frame has none")
        state = 0 if observation.proprio is None else len(observation.proprio)
        if self.info.state_dim and state != self.info.state_dim:
            needed = f"this checkpoint needs {self.info.state_dim} values of robot state"
            raise InvalidAction(f"{needed} and the frame has {state or 'none'}")

    def _in_units(self, inference: Inference | None) -> Inference | None:
        """An inference with actions in the runtime's units."""
        if inference is None:
            return None
        if self.info.action_space != END_EFFECTOR_DELTA:
            return replace(inference, actions=self._actions.to_runtime(inference.actions))
        actions = inference.actions.copy()
        actions[:, :GRIPPER] *= self._scale
        actions[:, GRIPPER] = np.clip(actions[:, GRIPPER], 0.0, 1.0)
        return replace(inference, actions=actions)
