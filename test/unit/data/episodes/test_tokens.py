"""The tokens of a policy are kept where that is wanted, and read again as they were."""

import hashlib

import numpy as np
import pytest

from vla_ros.core.errors import UserError
from vla_ros.core.types import Inference, Timeline
from vla_ros.data.episodes.play import PlayedEpisode, keep
from vla_ros.data.episodes.records import Job, to_json
from vla_ros.data.episodes.store import read_tokens
from vla_ros.data.episodes.tally import EpisodeTally

JOB = Job("speculative,r=3", "pick_red_cube", 3, 17, "pick / it up")
TOKENS = ((1, 2, 3), (4, 5, 6))


def record(job=JOB, tokens=TOKENS):
    tally = EpisodeTally()
    for number, own in enumerate(tokens):
        tally.inference(Inference(number, np.zeros((1, 7)), Timeline(0), own))
    return tally.record(job, success=True, reason="success", max_steps=9, wall_s=1.0)


def test_tokens_come_back_and_are_those_of_the_digest(tmp_path):
    kept = keep(PlayedEpisode(record()), tmp_path, tokens=True)
    (spoken,) = read_tokens(tmp_path)
    assert spoken.success
    assert spoken.tokens.tolist() == [list(tokens) for tokens in TOKENS]
    assert kept.tokens == ()
    digest = hashlib.sha256(spoken.tokens.astype(np.int64).tobytes()).hexdigest()
    assert kept.token_digest == digest


def test_they_are_no_part_of_the_line_and_kept_only_where_asked(tmp_path):
    assert "tokens" not in to_json(record())
    assert keep(PlayedEpisode(record()), tmp_path).tokens == ()
    assert list(tmp_path.iterdir()) == []
    keep(PlayedEpisode(record(tokens=())), tmp_path, tokens=True)  # a policy that says no tokens
    with pytest.raises(UserError, match="--keep-tokens"):
        read_tokens(tmp_path)


def test_a_variant_is_read_alone(tmp_path):
    for label in ("speculative", "speculative,r=3"):
        keep(PlayedEpisode(record(Job(label, "pick", 0, 0))), tmp_path, tokens=True)
    assert len(read_tokens(tmp_path)) == 2
    assert len(read_tokens(tmp_path, "speculative")) == 1


def test_a_file_that_is_none_is_one_line(tmp_path):
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "a.npz").write_bytes(b"nothing")
    with pytest.raises(UserError, match="cannot be read"):
        read_tokens(tmp_path)
