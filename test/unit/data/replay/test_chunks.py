"""Chunks of a bag: what was asked and said, to be asked again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("rosbags", reason="rosbags is not installed: pip install '.[replay]'")

from support.bags import START, T, action, chunk, film, task, write_bag
from vla_ros.data.bag_frames import pick
from vla_ros.data.bags import Bag, BagError
from vla_ros.data.replay import instructions_of, read_chunks, read_recorded, run_of_chunks
from vla_ros.data.replay_compare import compare

ROWS = np.arange(21.0).reshape(3, 7) / 100


def read(path):
    with Bag(path) as bag:
        picked = pick(bag.topics, {})
        return read_chunks(bag, picked), read_recorded(bag, picked)


def test_what_was_said_and_continued_is_read_and_compared_row_by_row(tmp_path):
    entries = [
        task(START - T, "reach"),
        *film(4),
        action(START, ROWS[0]),
        chunk(START, ROWS, "reach"),
        chunk(START + 2 * T, ROWS + 1, "reach", continued=(START, 2, 1), conditioning_delay=3),
        task(START + 2 * T, "push"),
        chunk(START + 3 * T, ROWS + 2, "push", epoch=2),
    ]
    ordered = sorted(entries, key=lambda e: e.at_ns)
    chunks, recorded = read(write_bag(tmp_path / "bag", ordered))
    assert [c.continued for c in chunks] == [None, (START, 2, 1), None]
    assert [c.conditioning_delay for c in chunks] == [0, 3, 0]
    assert instructions_of(chunks, recorded, None) == {1: "reach", 2: "push"}
    assert instructions_of(chunks, recorded, "other") == {1: "other", 2: "other"}
    run = run_of_chunks(chunks, recorded.run, 3)
    assert len(run.actions) == 9
    assert run.actions[(START + 2 * T, 1)].action == tuple(ROWS[1] + 1)
    frames = [c.observed_ns for c in chunks]
    assert compare(run, run, frames).identical
    off = [chunks[0], replace(chunks[1], rows=chunks[2].rows), chunks[2]]
    found = compare(run, run_of_chunks(off, recorded.run, 3), frames)
    assert (found.compared, found.identical) == (9, False)
    assert found.largest == pytest.approx(1.0)
    missing = compare(run, run_of_chunks(off[:2], recorded.run, 3), frames)
    assert missing.missing == 3


def test_a_bag_without_chunks_or_with_cut_ones_is_one_line(tmp_path):
    with pytest.raises(BagError, match=r"has no chunks \(policy/action_chunk\)"):
        read(write_bag(tmp_path / "none", [task(START, "reach"), *film(2)]))
    cut = chunk(START, ROWS, "reach")
    cut.content.length = 4
    with pytest.raises(BagError, match="21 numbers, not 4 rows of 7"):
        read(write_bag(tmp_path / "cut", [*film(2), cut]))
    chunks, recorded = read(write_bag(tmp_path / "mute", [*film(2), chunk(START, ROWS, "reach")]))
    with pytest.raises(BagError, match="give --instruction"):
        instructions_of(chunks, recorded, None)
