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
from vla_ros.engine.verdicts import Precision, require
from vla_ros.policies.base import PolicyRefused, PolicySpec
from vla_ros.policies.conventions import Conventions, settle
from vla_ros.policies.units import scaling_for


def engine_options(spec: PolicySpec, used: Conventions) -> EngineOptions:
    """The engine's options of a spec, with what its checkpoint's conventions leave to nobody.

    ``used``: what :func:`vla_ros.policies.conventions.settle` says of the spec.
    """
    return replace(
        spec.engine,
        unnorm_key=used.unnorm_key,
        center_crop="always" if used.center_crop else "never",
        preprocessing=used.preprocessing,
    )


def _require_verified(spec: PolicySpec) -> None:
    """PolicyRefused, with the command to run, where this precision was not shown to be good."""
    try:
        require(spec.checkpoint, Precision(spec.engine.dtype, spec.engine.weights, spec.device))
    except (UserError, ValueError, OSError) as error:
        raise PolicyRefused(str(error)) from error


class VlaPolicy:
    """Scales the engine's actions into metres and radians, and keeps the gripper in [0, 1]. Those
    that are no end effector's displacement are in the units of their data, and so is the robot's
    state: ``action_units`` and ``state_units`` say in which, and then they become the runtime's.

    Units, statistics and image steps are the checkpoint's unless the spec gives them.
    An instruction that the model cannot take (too long for its prompt) makes every step
    raise InvalidAction until the next ``reset``.
    """

    def __init__(self, spec: PolicySpec) -> None:
        used, contradiction = settle(spec)
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
            conventions=str(used),
            contradiction=contradiction,
            state_middle=self._state_middle(),
            corrects=self._engine.info.corrects if space == END_EFFECTOR_DELTA else 0,
        )

    def _state_middle(self) -> tuple[float, ...]:
        """The engine's in the runtime's units."""
        middle = self._engine.info.state_middle
        if not middle or self._state is None:
            return middle
        return tuple(self._state.to_runtime(np.array(middle)).tolist())

    def reset(self, instruction: Instruction) -> None:
        """Forget pipeline, cache and drafts; take on ``instruction``."""
        try:
            self._engine.reset(instruction.text)
        except ValueError as error:
            self._cannot = str(error)
        else:
            self._cannot = ""

    def _as_taught(self, seen: Observation) -> Observation:
        """The same with the robot's state in the checkpoint's units."""
        if self._state is None or seen.proprio is None:
            return seen
        return replace(seen, proprio=self._state.to_checkpoint(seen.proprio))

    def step(self, observation: Observation, timeline: Timeline, clock: Clock) -> Inference | None:
        """See :class:`vla_ros.policies.base.Policy`."""
        self._refuse(observation)
        return self._in_units(self._engine.step(self._as_taught(observation), timeline, clock))

    def correct(self, observation: Observation, actions: Floats, index: int) -> Floats:
        """The actions of a chunk from ``index`` on, float64 [n, 7], as a newer frame has them, with
        which the first is due; ``info.corrects`` at most. InvalidAction as of :meth:`step`."""
        self._refuse(observation)
        said = actions.copy()
        said[:, :GRIPPER] /= np.where(self._scale == 0.0, 1.0, self._scale)
        added = self._engine.correction(self._as_taught(observation), said, index)
        added[:, :GRIPPER] *= self._scale
        out: Floats = actions + added
        out[:, GRIPPER] = np.clip(out[:, GRIPPER], 0.0, 1.0)
        return out

    def session(self, seed: int | None = None) -> VlaPolicy:
        """Another robot's session on the same weights, see :mod:`vla_ros.policies.sessions`."""
        other = copy(self)
        other._engine = self._engine.session(seed)
        other._cannot = "no instruction was given"
        return other

    def pieces(
        self, observation: Observation, timeline: Timeline, clock: Clock
    ) -> Pieces[Inference | None]:
        """The same as :meth:`step`, a piece at a time."""
        self._refuse(observation)
        seen = self._as_taught(observation)
        return self._in_units((yield from self._engine.pieces(seen, timeline, clock)))

    def _refuse(self, observation: Observation) -> None:
        """InvalidAction where there can be no answer to this frame."""
        if self._cannot:
            raise InvalidAction(self._cannot)
        if self.info.cameras == 2 and observation.wrist_image is None:
            raise InvalidAction("this checkpoint needs a wrist image and the frame has none")
        state = 0 if observation.proprio is None else len(observation.proprio)
        if self.info.state_dim and state != self.info.state_dim:
            needed = f"this checkpoint needs {self.info.state_dim} values of robot state"
            raise InvalidAction(f"{needed} and the frame has {state or 'none'}")

    def _in_units(self, inference: Inference | None) -> Inference | None:
        """In the runtime's units."""
        if inference is None:
            return None
        if self.info.action_space != END_EFFECTOR_DELTA:
            return replace(inference, actions=self._actions.to_runtime(inference.actions))
        actions = inference.actions.copy()
        actions[:, :GRIPPER] *= self._scale
        actions[:, GRIPPER] = np.clip(actions[:, GRIPPER], 0.0, 1.0)
        return replace(inference, actions=actions)
