"""A vision-language-action model on the project's engine, as a policy. Imports torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from vla_ros.core.action_space import END_EFFECTOR_DELTA
from vla_ros.core.clock import Clock
from vla_ros.core.errors import UserError
from vla_ros.core.types import GRIPPER, Inference, Instruction, Observation, PolicyInfo, Timeline
from vla_ros.engine import EngineOptions, InvalidAction, load_engine
from vla_ros.engine.io.verdicts import Precision, require
from vla_ros.policies.base import PolicyRefused, PolicySpec
from vla_ros.policies.conventions import Conventions, settle


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
    """Scales the engine's actions into metres and radians, and keeps the gripper in [0, 1]; those
    that are no end effector's displacement are left in the units of their data.

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
        self._cannot = "no instruction was given"
        self.info: PolicyInfo = replace(
            self._engine.info,
            cameras=self._engine.cameras,
            conventions=str(used),
            contradiction=contradiction,
        )

    def reset(self, instruction: Instruction) -> None:
        """Forget pipeline, cache and drafts; take on ``instruction``."""
        try:
            self._engine.reset(instruction.text)
        except ValueError as error:
            self._cannot = str(error)
        else:
            self._cannot = ""

    def watch(self, coming: Callable[[], Observation | None]) -> None:
        """See :class:`vla_ros.policies.base.Policy`."""
        self._engine.watch(coming)

    def step(self, observation: Observation, timeline: Timeline, clock: Clock) -> Inference | None:
        """See :class:`vla_ros.policies.base.Policy`."""
        if self._cannot:
            raise InvalidAction(self._cannot)
        if self.info.cameras == 2 and observation.wrist_image is None:
            raise InvalidAction("this checkpoint needs a wrist image and the frame has none")
        state = 0 if observation.proprio is None else len(observation.proprio)
        if self.info.state_dim and state != self.info.state_dim:
            needed = f"this checkpoint needs {self.info.state_dim} values of robot state"
            raise InvalidAction(f"{needed} and the frame has {state or 'none'}")
        inference = self._engine.step(observation, timeline, clock)
        if inference is None:
            return None
        if self.info.action_space != END_EFFECTOR_DELTA:
            return inference
        actions = inference.actions.copy()
        actions[:, :GRIPPER] *= self._scale
        actions[:, GRIPPER] = np.clip(actions[:, GRIPPER], 0.0, 1.0)
        return replace(inference, actions=actions)
