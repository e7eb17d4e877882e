"""The simulated robot's body: commands become steps of the environment, and steps an end."""

from __future__ import annotations

from dataclasses import dataclass

from vla_ros.core import GRIPPER, Command, CommandKind
from vla_ros.sim.commands import OPEN, environment_action
from vla_ros.sim.env import Environment, SimObservation, SimStep
from vla_ros.sim.episode.desk import Desk
from vla_ros.sim.episode.state import EpisodeRequest, EpisodeState


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an episode ended. ``seen``: the world at its end; None where it was lost."""

    state: EpisodeState
    reason: str = ""
    seen: SimObservation | None = None


class Body:
    """Used by the episode's thread alone."""

    def __init__(self, environment: Environment, desk: Desk) -> None:
        self._environment = environment
        self._spec = environment.spec
        self._desk = desk
        self._gripper = OPEN

    def reset(self, request: EpisodeRequest) -> SimObservation:
        """The world as the episode begins, the gripper open."""
        self._gripper = OPEN
        return self._environment.reset(request.task, request.initial_state, request.seed)

    def step(self, command: Command | None, render: bool = True) -> tuple[SimStep, Outcome | None]:
        """One control period under ``command``, and how the episode ended if it did.

        Without an action of the policy the arm stands still; the gripper stays as last told.
        """
        action = environment_action(command, self._gripper, self._spec)
        step = self._environment.step(action, render)
        moved = command is not None and command.kind is CommandKind.POLICY
        if command is not None and moved:
            self._gripper = float(command.action[GRIPPER])
        count = self._desk.executed(moved)
        outcome = _outcome(step, count, self._desk.view().max_steps)
        if outcome is not None:
            self._desk.close()
        return step, outcome


def _outcome(step: SimStep, count: int, limit: int) -> Outcome | None:
    """How the episode ended with step number ``count`` of at most ``limit``; None: it goes on."""
    seen = step.observation
    if step.success:
        return Outcome(EpisodeState.SUCCESS, "", seen)
    if step.done:
        return Outcome(EpisodeState.FAILURE, "the task can no longer be solved", seen)
    if count >= limit:
        return Outcome(EpisodeState.FAILURE, f"not solved within {limit} steps", seen)
    return None
