"""A vision-language-action model on the project's engine, as a policy. Imports torch."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

import numpy as np

from vla_ros.core.action_space import END_EFFECTOR_DELTA
from vla_ros.core.assumption import Assumption
from vla_ros.core.clock import Clock
from vla_ros.core.errors import UserError
from vla_ros.core.types import (
    Floats,
    Inference,
    Instruction,
    Observation,
    PolicyInfo,
    Timeline,
)
from vla_ros.engine import EngineOptions, InvalidAction, load_engine
from vla_ros.engine.layers.pieces import Pieces
from vla_ros.engine.verdicts import Precision, require, settled
from vla_ros.policies.base import PolicyRefused, PolicySpec
from vla_ros.policies.conventions import Conventions, settle
from vla_ros.policies.layout import state_units_of
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


def _settled(spec: PolicySpec) -> tuple[PolicySpec, str]:
    """The spec with the device and dtype that it runs on, and the end of the line about them."""
    try:
        engine, lines = settled(spec.engine)
    except (UserError, ValueError, OSError, RuntimeError) as error:
        raise PolicyRefused(str(error)) from error
    return replace(spec, engine=engine), "".join(f"; {line}" for line in lines)


class VlaPolicy:
    """The engine as a policy: its actions in metres and radians, grippers in [0, 1], in the robot's
    order (:mod:`vla_ros.policies.layout`). The robot's state is in the units of its data unless
    ``state_units`` says how to convert it.

    Units, statistics and image steps are the checkpoint's unless the spec gives them.
    An instruction that the model cannot take (too long for its prompt) makes every step
    raise InvalidAction until the next ``reset``.
    """

    def __init__(self, spec: PolicySpec) -> None:
        used, contradiction = settle(spec)
        self._layout = layout = used.layout(spec)
        spec, place = _settled(spec)
        if spec.require_verified:  # before weights are read, which may take minutes
            _require_verified(spec)
        try:
            self._engine = load_engine(engine_options(spec, used))
        except (ValueError, OSError) as error:
            raise PolicyRefused(str(error)) from error
        self._state = None
        if spec.state_units:
            count = self._engine.info.state_dim
            self._state = scaling_for(spec.state_units, count, "state_units")
        _, state = state_units_of(spec, self._engine.info.state_dim)
        rows = (*layout.assumptions, *filter(None, [state]), *used.assumptions(spec))
        if self._engine.policy.tokenizer is None:
            mute = Assumption(
                "instruction", "not read: it does the task of its data", "its network"
            )
            rows = (*rows, mute)
        self._cannot = "no instruction was given"
        self.info: PolicyInfo = replace(
            self._engine.info,
            cameras=self._engine.cameras,
            conventions=f"{used}{place}",
            contradiction="; ".join(
                filter(None, (contradiction, layout.doubt, self._engine.info.contradiction))
            ),
            assumptions=rows,
            action_space=layout.space,
            action_rate_hz=used.action_rate_hz,
            state_middle=self._state_middle(),
            corrects=self._engine.info.corrects if layout.space == END_EFFECTOR_DELTA else 0,
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
        known = self._layout.write(actions)
        added = self._engine.correction(self._in_data_units(observation), known, index)
        return self._layout.read(known + added)

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
        return replace(inference, actions=self._layout.read(inference.actions))
