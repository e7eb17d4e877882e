"""Which images belong to a command: never one from its future, and every loss has a reason."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_ros.data.lerobot.pairing import (
    DUE,
    NEWEST,
    OBSERVATION,
    PAIRINGS,
    Mark,
    RecordedCommand,
    Stamps,
    episodes,
    pair,
)
from vla_ros.data.lerobot.wire import Message, receive, send

S = 1_000_000_000
MS = 1_000_000


def film(*at_ms: int) -> Stamps:
    return Stamps([t * MS for t in at_ms], [(t + 5) * MS for t in at_ms])


def test_the_image_that_an_action_rests_on():
    told = RecordedCommand(
        published_ns=180 * MS, at_ns=181 * MS, observed_ns=50 * MS, latest_ns=150 * MS
    )
    cameras = {"main": film(0, 50, 100, 150)}
    assert pair(told, cameras, OBSERVATION, 1.0, 0.025).images == {"main": 1}
    assert pair(told, cameras, DUE, 1.0, 0.025).images == {"main": 1}  # it says no due time
    assert pair(told, cameras, NEWEST, 1.0, 0.025).images == {"main": 3}


def test_an_action_of_a_chunk_belongs_to_the_moment_that_it_was_made_for():
    """An observation of 0 ms, due at 100 ms; one due later than anything seen shows what was
    seen."""
    cameras = {"main": film(0, 50, 100, 150, 200)}
    third = RecordedCommand(160 * MS, 160 * MS, observed_ns=1, latest_ns=150 * MS, due_ns=101 * MS)
    assert pair(third, cameras, DUE, 1.0, 0.0).images == {"main": 2}
    far = RecordedCommand(160 * MS, 160 * MS, observed_ns=1, latest_ns=150 * MS, due_ns=900 * MS)
    assert pair(far, cameras, DUE, 1.0, 0.0).images == {"main": 3}


def test_two_cameras_of_one_frame_named_by_the_older():
    """The wrist's image of 90 ms and the main one of 100 ms were one frame, received at 103 ms."""
    cameras = {"main": film(50, 100), "wrist": film(40, 90)}
    told = RecordedCommand(150 * MS, 150 * MS, 90 * MS, 90 * MS, 0, received_ns=103 * MS)
    assert pair(told, cameras, OBSERVATION, 1.0, 0.025).images == {"main": 1, "wrist": 1}
    early = RecordedCommand(150 * MS, 150 * MS, 90 * MS, 90 * MS, 0, received_ns=95 * MS)
    assert pair(early, cameras, OBSERVATION, 1.0, 0.025).images == {"main": 0, "wrist": 1}


def test_a_strangers_command_gets_what_had_arrived():
    cameras = {"main": Stamps([0, 50 * MS, 100 * MS], [5 * MS, 120 * MS, 110 * MS])}
    assert pair(RecordedCommand(115 * MS, 115 * MS), cameras, DUE, 1.0, 0.0).images == {"main": 2}
    assert pair(RecordedCommand(100 * MS, 100 * MS), cameras, DUE, 1.0, 0.0).images == {"main": 0}
    assert (
        pair(RecordedCommand(4 * MS, 4 * MS), cameras, DUE, 1.0, 0.0).lacking == "no main before it"
    )
    assert (
        pair(RecordedCommand(3 * S, 3 * S), cameras, DUE, 1.0, 0.0).lacking
        == "no main younger than 1 s"
    )


@given(
    captured=st.lists(st.integers(1, 400), min_size=1, max_size=30),
    delays=st.lists(st.integers(0, 60), min_size=30, max_size=30),
    observed=st.integers(0, 400),
    due=st.integers(0, 600),
    latest=st.integers(0, 400),
    latency=st.integers(0, 200),
    pairing=st.sampled_from(PAIRINGS),
)
def test_no_image_is_from_the_future(captured, delays, observed, due, latest, latency, pairing):
    arrived = [t + d for t, d in zip(captured, delays, strict=False)]
    said = max(observed, latest) + latency
    told = RecordedCommand(said, said, observed, latest, due, received_ns=0)
    found = pair(told, {"main": Stamps(captured, arrived)}, pairing, 1e9, 1e9)
    if found.lacking:
        assert min(captured if observed else arrived) > (told.moment_ns(pairing) or said)
        return
    number = found.images["main"]
    if observed:
        moment = told.moment_ns(pairing)
        assert captured[number] <= moment <= said
        assert captured[number] == max(t for t in captured if t <= moment)
    else:
        assert arrived[number] <= said
        assert captured[number] == max(
            t for t, a in zip(captured, arrived, strict=True) if a <= said
        )


def test_episodes_end_where_the_task_the_epoch_or_time_does():
    marks = [
        Mark(0, 1, 1, "a"), Mark(50 * MS, 1, 1, "a"),
        Mark(100 * MS, 2, 1, "b"),                      # another instruction
        Mark(150 * MS, 3, 1, "b"),                      # a reset
        Mark(200 * MS, 3, 2, "b"),                      # the simulation's next episode
        Mark(20 * S, 3, 2, "b"),                        # a pause
        Mark(1 * S, 3, 2, "b"), Mark(2 * S, 3, 2, "b"),  # time went back
    ]  # fmt: skip
    assert list(episodes(marks, 10.0)) == [0, 0, 1, 2, 3, 4, 5, 5]


def test_messages_come_out_of_a_pipe_as_they_went_in():
    pipe = io.BytesIO()
    arrays = {
        "picture": np.arange(24, dtype=np.uint8).reshape(2, 4, 3)[:, ::2],  # not contiguous
        "numbers": np.array([np.pi, -0.0], np.float32),
        "none": np.zeros((0, 7)),
    }
    send(pipe, Message("frame", {"task": "push the böx"}, arrays))
    whole = pipe.getvalue()
    pipe.seek(0)
    found = receive(pipe)
    assert found is not None and (found.kind, found.fields) == ("frame", {"task": "push the böx"})
    for name, array in arrays.items():
        np.testing.assert_array_equal(found.arrays[name], array)
        assert found.arrays[name].dtype == array.dtype
    assert receive(pipe) is None
    for cut in (2, 9, len(whole) - 1):
        with pytest.raises(EOFError):
            receive(io.BytesIO(whole[:cut]))
