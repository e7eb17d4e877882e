"""The ensemble against LeRobot's own ACTTemporalEnsembler, over a stream of chunks.

The expected actions are those of ``tools/golden/act/make.py``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from golden.act.cases import CASES, FRAMES
from golden.flow.seeded import draw
from vla_ros.core.action_space import ActionKind, joints
from vla_ros.core.types import Inference, Timeline
from vla_ros.runtime.control.queue import ActionQueue, Chunking, Execution, PolicyAnswer
from vla_ros.runtime.safety import Limits

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "act"
PERIOD = 50_000_000


@pytest.mark.parametrize(("number", "decay"), list(enumerate((0.01, -0.05))))
@pytest.mark.parametrize("name", CASES)
def test_it_is_that_of_lerobot_where_no_chunk_is_too_old(
    name: str, number: int, decay: float
) -> None:
    """Every chunk that covers a moment counts; those older than ``max_age_s`` would not."""
    wanted = np.load(GOLDEN / name / "golden.npz")[f"ensembled_{number}"]
    horizon, width = 12, wanted.shape[1]
    space = joints(ActionKind.JOINT_POSITION, tuple(f"joint_{i}" for i in range(width)))
    chunking = Chunking(Execution.ENSEMBLE, ensemble_decay=decay)
    queue, limits = ActionQueue(chunking, space, horizon), Limits(max_age_s=horizon * 0.05)
    stream, most = draw(f"{name}/stream", FRAMES, horizon, width).astype(np.float64), 0
    for frame in range(FRAMES):
        now = (frame + 1) * PERIOD
        assert queue.asks(now, limits)
        queue.asked(now, PERIOD)
        queue.put(PolicyAnswer(Inference(now, stream[frame], Timeline(now)), now, now))
        queue.answered()
        action = queue.take(now, limits)
        assert action is not None
        np.testing.assert_allclose(action.action, wanted[frame], atol=1e-6)
        queue.begin()
        queue.executed(now, unchanged=True)
        most = max(most, len(action.answers))
    assert most == horizon
