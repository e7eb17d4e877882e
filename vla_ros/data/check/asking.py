"""A policy asked about recorded frames, and how far its answers are from what was recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vla_ros.core.action_space import ActionSpace
from vla_ros.core.clock import SystemClock
from vla_ros.core.errors import UserError
from vla_ros.core.types import Floats, Image, Instruction, Observation, Timeline
from vla_ros.data.check.hypotheses import Answer, Inputs
from vla_ros.data.check.recording import Recording
from vla_ros.policies.base import InvalidAction, Policy
from vla_ros.policies.sessions import SessionRequest, open_session, step_together

STEPS = 4  # actions of a chunk that are judged
_BATCH = 8
_LEAST = 1e-3  # m, rad: a group that moves less in the data is not judged
_WEIGHTS = (3.0, 1.0)  # of an end effector's position and rotation: square objects have four


class NoAnswer(UserError):
    """A frame that the policy does not answer, such as one of another image size."""


class Asker:
    """A policy and the frames that it is asked about. An answer is kept: the same question costs
    nothing the second time. ``calls``: questions that were asked.

    The same frame always has the same stamp, so a policy that draws noise draws the same.
    """

    def __init__(
        self, policy: Policy, recording: Recording, asked: Callable[[int], None] = lambda _: None
    ) -> None:
        self.recording, self.calls = recording, 0
        self._policy, self._asked = policy, asked
        self._clock = SystemClock()
        many = hasattr(policy, "session")
        self._sessions = [open_session(policy) for _ in range(_BATCH)] if many else [policy]
        self._known: dict[tuple[str, int], Floats] = {}
        self._epoch = 0

    @property
    def space(self) -> ActionSpace:
        """Space of the policy's actions."""
        return self._policy.info.action_space

    def ask(
        self, inputs: Sequence[Inputs], rows: Sequence[int], instruction: str | None = None
    ) -> Floats:
        """Predicted actions [F, C, D] of the frames ``rows``, each changed by ``inputs`` in turn.
        NoAnswer: the policy has none to such a frame; UserError: nor to any other."""
        key = "|".join(one.key for one in inputs) + f"|{instruction}"
        left = [row for row in rows if (key, row) not in self._known]
        size = len(self._sessions)
        for at in range(0, len(left), size):
            batch = left[at : at + size]
            for row, actions in zip(batch, self._answers(inputs, batch, instruction), strict=True):
                self._known[key, row] = actions
        return np.stack([self._known[key, row] for row in rows])

    def states(self, rows: Sequence[int]) -> Floats | None:
        """The recorded state [F, S] of the frames."""
        state = self.recording.state
        return None if state is None else state[list(rows)]

    def _answers(
        self, inputs: Sequence[Inputs], rows: Sequence[int], instruction: str | None
    ) -> list[Floats]:
        asked = list(zip(self._sessions, rows, strict=False))
        for session, row in asked:
            self._epoch += 1
            text = self.recording.tasks[row] if instruction is None else instruction
            session.reset(Instruction(text, self._epoch))
        for back in range(self._policy.info.observations - 1, -1, -1):
            requests = []
            for session, row in asked:
                seen = self.observation(inputs, row, back)
                timeline = Timeline(seen.received_steady_ns)
                timeline = timeline.mark("queue", seen.received_steady_ns)
                requests.append(SessionRequest(session, seen, timeline))
            answers = step_together(requests, self._clock)
        found: list[Floats] = []  # of the newest; the others were its history
        for request, answer in zip(requests, answers, strict=True):
            turn = 0
            while answer is None and turn < self._policy.info.pipeline_depth:
                turn += 1  # a pipeline fills with the same frame
                seen = replace(request.observation, stamp_ns=request.observation.stamp_ns + turn)
                answer = request.session.step(seen, request.timeline, self._clock)
            if answer is None or isinstance(answer, Exception):
                kind = NoAnswer if isinstance(answer, InvalidAction) else UserError
                raise kind(f"{self.recording.name}: the policy has no answer: {answer}")
            found.append(np.asarray(answer.actions, np.float64))
        self.calls += len(found)
        self._asked(len(found))
        return found

    def observation(self, inputs: Sequence[Inputs], row: int, back: int = 0) -> Observation:
        """The frame ``back`` rows before a row, changed by ``inputs`` in turn."""
        recording = self.recording
        image_lag = sum(one.image_lag for one in inputs) - back
        state_lag = sum(one.state_lag for one in inputs) - back
        images: dict[str, Image] = dict(recording.images[recording.row(row, image_lag)])
        state = None
        if recording.state is not None:
            state = recording.state[recording.row(row, state_lag)]
        for one in inputs:
            images |= {role: images[other] for role, other in one.cameras.items()}
            images = {role: one.adaptation.image(role, image) for role, image in images.items()}
            state = None if state is None else one.adaptation.state.apply(state)
        stamp = 1_000_000 * (row - back + 1)
        return Observation(
            stamp, stamp, self._clock.steady_ns(), images["main"], images.get("wrist"), state,
            more_images={r: i for r, i in images.items() if r not in ("main", "wrist")},
        )  # fmt: skip


# Errors: 0 is the recorded action; e variances of what was recorded off count e / (1 + e), so that
# always the mean action counts a half, and no single frame, such as one in which two ways are as
# good, decides.


class Judge:
    """Measure of answers by the recorded actions of a recording."""

    def __init__(self, recording: Recording, space: ActionSpace) -> None:
        self.recording, self.space = recording, space
        self._variances: dict[tuple[int, float, int], list[float]] = {}

    def errors(self, predicted: Floats, answer: Answer, rows: Sequence[int], steps: int) -> Floats:
        """Error of each frame, float64 [F]: of its motion 0 to 1, and of its grippers as much."""
        return self._errors(*self.compared(predicted, answer, rows, steps), answer)

    def floors(self, predicted: Floats, answer: Answer, rows: Sequence[int], steps: int) -> Floats:
        """Error of each frame, float64 [F], where each value of the motion has the scale, of none
        to any, that fits the other frames best: what no convention explains, such as a hand that
        is not steady."""
        mine, labels = self.compared(predicted, answer, rows, steps)
        mine = mine.copy()
        for i in self.space.motion:
            there = np.isfinite(labels[..., i])
            if not there.any():
                continue
            middle = labels[..., i][there].mean()
            moved, label = mine[..., i] - middle, labels[..., i] - middle
            both = np.where(there, moved * label, 0.0).sum(1)
            own = np.where(there, moved**2, 0.0).sum(1)
            scale = (both.sum() - both) / np.maximum(own.sum() - own, 1e-12)
            mine[..., i] = middle + np.maximum(scale, 0.0)[:, None] * moved
        return self._errors(mine, labels, answer)

    def _errors(self, mine: Floats, labels: Floats, answer: Answer) -> Floats:
        out, weights = np.zeros(len(mine)), 0.0
        variances = self._variance(answer, labels.shape[1])
        for (group, weight), variance in zip(self._groups(), variances, strict=True):
            if variance < _LEAST**2:
                continue
            label = labels[..., group]
            away = ((mine[..., group] - label) ** 2).sum(2) / variance
            away = _mean_of(away, np.isfinite(label).all(2))
            out += weight * away / (1.0 + away)
            weights += weight
        out /= max(weights, 1e-9)
        for i in self.space.grippers:
            there = np.isfinite(labels[..., i])
            span = max([1.0, *np.abs(labels[..., i][there]).tolist()])
            away = np.minimum(np.abs(mine[..., i] - labels[..., i]) / span, 1.0) ** 2
            out += _mean_of(away, there) / len(self.space.grippers)
        known = np.isfinite(labels).any((1, 2))  # a lag may lead out of an episode
        out[~known] = mean(out[known]) if known.any() else 1.0
        return out

    def _variance(self, answer: Answer, steps: int) -> list[float]:
        """Variance of each group over all chosen frames."""
        key = (answer.lag, max(answer.rate, 1.0), steps)
        if key not in self._variances:
            found = []
            labels = self._labels(self.recording.chosen, answer.lag, steps * round(key[1]))
            if key[1] > 1.0:
                labels = self._merged(labels, round(key[1]))
            for group, _ in self._groups():
                there = labels[..., group][np.isfinite(labels[..., group]).all(2)]
                found.append(float(there.var(0).sum()) if len(there) else 0.0)
            self._variances[key] = found
        return self._variances[key]

    def compared(
        self, predicted: Floats, answer: Answer, rows: Sequence[int], steps: int
    ) -> tuple[Floats, Floats]:
        """Predicted and recorded actions [F, K, D] that are held against each other."""
        count = min(steps, predicted.shape[1])
        if answer.rate > 1.0:  # several of the data's in one of the policy's
            times = round(answer.rate)
            fine = self._labels(rows, answer.lag, count * times)
            labels = self._merged(fine, times)
            return predicted[:, :count], labels
        if answer.rate < 1.0:
            times = round(1.0 / answer.rate)
            count = min(steps, predicted.shape[1] // times)
            merged = self._merged(predicted[:, : count * times], times)
            return merged, self._labels(rows, answer.lag, count)
        mine = predicted[:, :count]
        labels = self._labels(rows, answer.lag, count)
        return mine, labels

    def _labels(self, rows: Sequence[int], lag: int, count: int) -> Floats:
        return np.stack([self.recording.labels(row, lag, count) for row in rows])

    def _merged(self, actions: Floats, times: int) -> Floats:
        """One action of ``times`` ones: displacements add up, of targets the last counts."""
        grouped = actions.reshape(len(actions), -1, times, actions.shape[2])
        out: Floats = grouped[:, :, -1].copy()
        if not self.space.absolute:
            motion = list(self.space.motion)
            out[..., motion] = grouped.sum(2)[..., motion]
        return out

    def _groups(self) -> list[tuple[list[int], float]]:
        """The numbers that are judged together, and their weight: positions, rotations, and each
        joint alone."""
        motion = list(self.space.motion)
        if self.space.kind.joints:
            return [([i], 1.0) for i in motion]
        return [(motion[i : i + 3], _WEIGHTS[i // 3 % 2]) for i in range(0, len(motion), 3)]


def _mean_of(values: Floats, there: Any) -> Floats:
    """Mean over the steps [F, K] that are there; 0 for a frame without any."""
    out: Floats = np.where(there, values, 0.0).sum(1) / np.maximum(there.sum(1), 1)
    return out


def mean(values: Any) -> float:
    """Mean as a plain number."""
    return float(np.mean(values))
