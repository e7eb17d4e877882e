"""A policy behind an adaptation: what the robot shows and does, in the conventions of its data.

:func:`adapted` is called where policies are made and nowhere else, so that node, replay, server and
evaluation go the same way.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import numpy as np

from vla_ros.core.adaptation import Adaptation
from vla_ros.core.clock import Clock
from vla_ros.core.types import Inference, Instruction, Observation, PolicyInfo, Timeline
from vla_ros.policies.base import Policy, PolicyRefused


def adapted(policy: Policy, adaptation: Adaptation) -> Policy:
    """The policy behind an adaptation; the policy itself where that is nothing. PolicyRefused: it
    does not fit the policy's cameras, state or actions."""
    if not adaptation:
        return policy
    return (SharedAdapted if hasattr(policy, "session") else AdaptedPolicy)(policy, adaptation)


class AdaptedPolicy:
    """A policy whose observations come from, and whose actions go to, a robot of other conventions.

    ``info``: the policy's, its ``state_middle`` that of the robot's own values.
    """

    def __init__(self, policy: Policy, adaptation: Adaptation) -> None:
        self._policy, self._adaptation = policy, adaptation
        self._space = policy.info.action_space
        _check(policy.info, adaptation)
        self.info: PolicyInfo = replace(
            policy.info,
            state_middle=_middle(policy.info, adaptation),
            conventions="; ".join(filter(None, (policy.info.conventions, _line(adaptation)))),
        )

    def reset(self, instruction: Instruction) -> None:
        """A new task."""
        self._policy.reset(instruction)

    def step(self, observation: Observation, timeline: Timeline, clock: Clock) -> Inference | None:
        """The robot's action that is complete with this observation."""
        return self._commanded(self._policy.step(self.seen(observation), timeline, clock))

    def seen(self, observation: Observation) -> Observation:
        """The observation as the policy gets it. PolicyRefused would come too late: a state of
        another width is the policy's to refuse."""
        images, state, wrist = self._adaptation, observation.proprio, observation.wrist_image
        order, uncorrected = images.state.order, observation.uncorrected
        if state is not None and not (order and max(order) >= len(state)):
            state = images.state.apply(state)
        if uncorrected is not None:
            theirs = images.action.undo(uncorrected.actions, self._space)
            uncorrected = replace(uncorrected, actions=theirs)
        return replace(
            observation,
            image=images.image("main", observation.image),
            wrist_image=None if wrist is None else images.image("wrist", wrist),
            more_images={r: images.image(r, one) for r, one in observation.more_images.items()},
            proprio=state,
            uncorrected=uncorrected,
        )

    def _commanded(self, inference: Inference | None) -> Inference | None:
        if inference is None:
            return None
        actions = self._adaptation.action.apply(inference.actions, self._space)
        return replace(inference, actions=actions)


class SharedAdapted(AdaptedPolicy):
    """An adapted policy that has sessions."""

    def session(self, seed: int | None = None) -> AdaptedPolicy:
        """Another robot's session, behind the same adaptation."""
        inner: Any = self._policy
        return SharedAdapted(inner.session(seed), self._adaptation)

    def pieces(
        self, observation: Observation, timeline: Timeline, clock: Clock
    ) -> Generator[Any, Any, Inference | None]:
        """The pieces of a :meth:`step`, for a batch."""
        inner: Any = self._policy
        return self._commanded((yield from inner.pieces(self.seen(observation), timeline, clock)))


def _check(info: PolicyInfo, adaptation: Adaptation) -> None:
    try:
        adaptation.state.check(0, info.state_dim, "state")
        adaptation.action.check(info.action_space)
    except ValueError as error:
        raise PolicyRefused(str(error)) from error


def _middle(info: PolicyInfo, adaptation: Adaptation) -> tuple[float, ...]:
    """Middle of each of the robot's values in the policy's data; () where it is unknown."""
    if not info.state_middle:
        return ()
    try:
        middle: tuple[float, ...] = tuple(
            adaptation.state.undo(np.array(info.state_middle)).tolist()
        )
    except ValueError:
        return ()
    return middle


def _line(adaptation: Adaptation) -> str:
    words = (f"{name} {value}" for name, value in adaptation.parameters().items())
    return f"adapted: {', '.join(words)}"
