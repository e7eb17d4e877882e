"""Messages of an episode as its frozen views."""

from __future__ import annotations

import math

import numpy as np

from vla_ros.core import INFERENCE_STAGES, Inference, Timeline
from vla_ros.msg import ActionChunk, EpisodeStatus
from vla_ros.nodes.common.convert import stamp_of
from vla_ros.observe.episode import Episode
from vla_ros.timing import SECOND

_ENDED = {EpisodeStatus.STATE_SUCCESS: "success", EpisodeStatus.STATE_FAILURE: "failure"}


def episode_of(message: EpisodeStatus) -> Episode:
    """What the bridge says of its episode."""
    return Episode(
        number=message.episode,
        stamp_ns=stamp_of(message.header.stamp),
        running=message.state == EpisodeStatus.STATE_RUNNING,
        ended=_ENDED.get(message.state, ""),
        reason=message.reason,
        task=message.task,
        instruction=message.instruction,
        initial_state=message.initial_state,
        step=message.step,
        max_steps=message.max_steps,
        control_rate_hz=message.control_rate_hz,
        achieved_rate_hz=message.achieved_rate_hz,
        applied=message.actions_applied,
    )


def inference_of(message: ActionChunk) -> Inference:
    """What the policy said of one frame; of the time it took only the sum is known."""
    length = message.length or 1
    spent_s = message.inference_s if math.isfinite(message.inference_s) else 0.0
    return Inference(
        stamp_ns=stamp_of(message.observation_stamp),
        actions=np.asarray(message.actions, np.float64).reshape(length, -1),
        timeline=Timeline(0).mark(INFERENCE_STAGES[-1], round(spent_s * SECOND)),
        tokens=tuple(map(int, message.tokens)),
        target_passes=message.target_passes,
        draft_passes=message.draft_passes,
        drafted=tuple(map(int, message.drafted)),
        accepted=tuple(map(int, message.accepted)),
        told_delay=message.told_delay,
    )
