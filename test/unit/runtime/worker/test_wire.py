"""What goes over the wire comes back equal; what is not ours is a ValueError."""

from __future__ import annotations

import contextlib
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_ros.core.action_space import ActionKind, joints
from vla_ros.core.types import (
    Executing,
    Inference,
    Instruction,
    Observation,
    PolicyInfo,
    Pose,
    Timeline,
    Uncorrected,
)
from vla_ros.runtime.worker.mailbox import MailboxFrame
from vla_ros.runtime.worker.wire import (
    REPORT_LIMIT,
    ErrorKind,
    FrameRefused,
    LoadRefused,
    PolicyLoaded,
    ReportStream,
    WorkerFailed,
    WorkerResult,
    decode_report,
    decode_request,
    encode_report,
    encode_request,
)

FINITE = st.floats(allow_nan=False, width=64)


@given(
    text=st.text(max_size=50).filter(lambda t: t.isprintable()),
    values=st.lists(FINITE, min_size=7, max_size=7),
    wrist=st.booleans(),
)
@settings(max_examples=50, deadline=None)
def test_request_round_trip(text: str, values: list[float], wrist: bool) -> None:
    image = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    pose = Pose((values[0], values[1], values[2]), (values[3], values[4], values[5], values[6]))
    sent = Observation(
        2**62, 3, 4, image, image[:2] if wrist else None, np.array(values), {text: pose},
        {"left": image[:3], "up": image[1:]},
        Executing(2**61, 7, 2) if wrist else None, 3,
        Uncorrected(2**61, 4, np.array([values, values])) if wrist else None,
    )  # fmt: skip
    head, images = encode_request(sent, Instruction(text, 5))
    letter = MailboxFrame(6, head, tuple(i.reshape(-1).copy() for i in images))
    got = decode_request(letter)
    assert got.sequence == 6
    assert got.instruction == Instruction(text, 5)
    seen = got.observation
    assert (seen.stamp_ns, seen.received_ns, seen.received_steady_ns) == (2**62, 3, 4)
    assert (seen.image == image).all()
    assert (seen.wrist_image is not None) == wrist
    assert list(seen.more_images) == ["left", "up"]
    assert (seen.more_images["up"] == image[1:]).all()
    assert seen.proprio is not None
    assert seen.proprio.tolist() == values
    assert seen.poses == {text: pose}
    assert (seen.executing, seen.delay_steps) == (sent.executing, 3)
    assert (seen.uncorrected is not None) == wrist
    if seen.uncorrected is not None:
        assert (seen.uncorrected.stamp_ns, seen.uncorrected.index) == (2**61, 4)
        assert seen.uncorrected.actions.tolist() == [values, values]


def test_what_an_inference_was_made_for_arrives() -> None:
    made = Inference(
        7, np.ones((1, 7)), Timeline(3).mark("decode", 9),
        continues=Executing(5, 1, 2), conditioning_delay=6, captures=2,
    )  # fmt: skip
    sent = WorkerResult(4, 7, 1, 2, 5, 6, inference=made)
    (got,) = ReportStream().feed(encode_report(sent), 11)
    assert got.inference is not None
    assert (got.inference.continues, got.inference.conditioning_delay) == (made.continues, 6)
    assert got.inference.captures == 2


def test_what_a_policy_says_of_its_actions_arrives() -> None:
    space = joints(ActionKind.JOINT_POSITION, ("a", "claw"), ("claw",))
    sent = PolicyLoaded(
        PolicyInfo("replay", action_space=space, continues=("rtc",), max_delay=8), 7
    )
    (got,) = ReportStream().feed(encode_report(sent), 5)
    assert got == sent


def test_lone_surrogates_are_refused() -> None:
    with pytest.raises(FrameRefused, match="Unicode"):
        encode_request(
            Observation(1, 1, 1, np.zeros((2, 2, 3), np.uint8)), Instruction("\ud800", 0)
        )


RESULT = WorkerResult(
    3, 10, 2, 2**64 - 1, 11, 12,
    Inference(
        9, np.array([[np.nan, np.inf, 0.1, 1e-300, -0.0, 1 / 3, 1.0]]),
        Timeline(5, (("queue", 6), ("decode", 8))), (31999, 31744), 7, 1, (2,), (1,),
        Executing(8, 3, 1),
    ),
)  # fmt: skip
REPORTS = (
    RESULT,
    WorkerResult(1, 2, 3, 4, 5, 6, None, ErrorKind.INVALID, "no", 0),
    PolicyLoaded(PolicyInfo("vla", pipeline_depth=7, camera_roles=("left", "up")), 42, 1.5, 2.5),
    LoadRefused("no such key"),
    WorkerFailed("RuntimeError: x"),
)


def equal(a: object, b: object) -> bool:
    if isinstance(a, WorkerResult) and isinstance(b, WorkerResult) and a.inference and b.inference:
        assert np.array_equal(a.inference.actions, b.inference.actions, equal_nan=True)
        return repr(a) == repr(b)
    return a == b


@given(st.integers(1, 400))
@settings(max_examples=20, deadline=None)
def test_reports_survive_any_cutting_of_the_stream(piece: int) -> None:
    stream = b"".join(map(encode_report, REPORTS))
    reader = ReportStream()
    got = []
    for start in range(0, len(stream), piece):
        got += reader.feed(stream[start : start + piece], 0)
    assert len(got) == len(REPORTS)
    assert all(map(equal, got, REPORTS))


def test_return_time_is_the_readers() -> None:
    report = decode_report(encode_report(REPORTS[1])[4:], 77)
    assert isinstance(report, WorkerResult)
    assert report.returned_steady_ns == 77


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_garbage_is_a_value_error_or_waits_for_more(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        assert ReportStream().feed(data, 0) == []


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"3",
        b"{}",
        b'{"kind": "Result"}',
        b'{"kind": "Ready", "info": 3}',
        b'{"kind": "Nothing"}',
        encode_report(RESULT)[4:].replace(b'"sequence": 3', b'"sequence": "3"'),
        encode_report(RESULT)[4:].replace(b'"marks"', b'"mark"'),
    ],
)
def test_reports_of_the_wrong_shape_are_value_errors(body: bytes) -> None:
    with pytest.raises(ValueError):
        decode_report(body, 0)


def test_endless_report_is_not_waited_for() -> None:
    with pytest.raises(ValueError, match="bytes"):
        ReportStream().feed(struct.pack("<I", REPORT_LIMIT + 1), 0)
