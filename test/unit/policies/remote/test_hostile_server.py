"""policy: remote, against servers that say anything: figures without end, floods, answers to what
nobody asked. Each ends in one line of the errors that a policy may raise, and in time."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("websockets", reason="websockets is not installed: pip install '.[serve]'")
pytest.importorskip("msgpack", reason="msgpack is not installed: pip install '.[serve]'")

import msgpack
from websockets.datastructures import Headers
from websockets.http11 import Response
from websockets.sync.server import serve

from support.foreign_server import ForeignServer, to_map
from support.raw_server import RawServer, Write, binary
from support.wait import wait_until
from vla_ros.core.clock import SystemClock
from vla_ros.core.text import printable
from vla_ros.core.types import Inference, Instruction, Observation, PolicyInfo, Timeline
from vla_ros.engine.options import EngineOptions
from vla_ros.policies import InvalidAction, PolicyRefused, PolicySpec, load_policy
from vla_ros.policies.base import Unreachable
from vla_ros.policies.remote import figures
from vla_ros.policies.remote.link import FRAMES
from vla_ros.policies.remote.names import NameTable, names_from

CLOCK = SystemClock()
ACTIONS = np.full((1, 7), 0.001)
STAMP = 7
INF = float("inf")
Path = tuple[str, ...]


def metadata() -> dict[str, Any]:
    """What our own server says when a client connects."""
    info = asdict(PolicyInfo("far", state_dim=2, state_middle=(0.0, 0.0)))
    names = asdict(NameTable(state={"observation/state": 2}))
    return {"policy": "far", "vla_ros": {"info": info, "names": names, "inference_p50_ms": 1.0}}


def answer(stamp: int) -> dict[str, Any]:
    """What our own server answers."""
    made = asdict(Inference(stamp, ACTIONS, Timeline(0)))
    for name in ("actions", "timeline"):
        del made[name]
    stages = dict.fromkeys(("queue", "preprocess", "vision", "prefill", "decode"), 0.1)
    own = {"stages_ms": stages, "age_ms": 1.0, "inference": made}
    return {"actions": ACTIONS, "server_timing": {"infer_ms": 1.0}, "vla_ros": own}


def changed(message: dict[str, Any], path: Path, value: Any) -> dict[str, Any]:
    """The message with another value at one place."""
    message = copy.deepcopy(message)
    found = message
    for name in path[:-1]:
        found = found[name]
    found[path[-1]] = value
    return message


def honest(request: dict[str, Any]) -> dict[str, Any]:
    return answer(request["vla_ros"]["stamp_ns"])


def load(url: str, timeout_s: str = "30.0") -> Any:
    spec = PolicySpec(
        "remote", engine=EngineOptions(url), warmup_size=(32, 32), options={"timeout_s": timeout_s}
    )
    return load_policy(spec)


def ask(policy: Any, stamp: int = STAMP, side: int = 32) -> Any:
    image = np.zeros((side, side, 3), np.uint8)
    now = CLOCK.steady_ns()
    state = np.zeros(policy.info.state_dim)
    more = dict.fromkeys(policy.info.camera_roles, image)
    seen = Observation(stamp, now, now, image, image, state, more_images=more)
    return policy.step(seen, Timeline(now).mark("queue", now), CLOCK)


def one_clean_line(error: BaseException) -> None:
    text = str(error)
    assert text and len(text) < 700
    assert text == printable(text, 700), "nothing in it that a terminal would obey"


INFO, NAMES, MADE = ("vla_ros", "info"), ("vla_ros", "names"), ("vla_ros", "inference")
BIG = [8192, 8192]


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ((*INFO, "pipeline_depth"), 10**9, r"info.pipeline_depth is 1000000000: 1 is taken"),
        ((*INFO, "chunk_length"), 10**9, r"info.chunk_length is 1000000000: .* from 1 to 4096"),
        ((*INFO, "chunk_length"), 1.5, r"info.chunk_length is 1.5: a whole number from 1 to 4096"),
        ((*INFO, "chunk_length"), True, r"info.chunk_length is True: a whole number"),
        ((*INFO, "state_dim"), 2 * 10**9, r"info.state_dim is 2000000000: .* from 0 to 10000"),
        ((*INFO, "state_middle"), [0.0, INF], r"info.state_middle\[1\] is inf: a number from"),
        ((*INFO, "state_middle"), [0.0], r"info.state_middle has 1 values, info.state_dim is 2"),
        ((*INFO, "corrects"), 10**9, r"info.corrects is 1000000000: .* from 0 to 10000"),
        ((*INFO, "max_delay"), -1, r"info.max_delay is -1: .* from 0 to 10000"),
        ((*INFO, "action_rate_hz"), INF, r"info.action_rate_hz is inf: a number from 0 to 10000"),
        ((*INFO, "camera_roles"), ["a"] * 1000, r"info.camera_roles is .*: a list of at most 16"),
        ((*INFO, "conventions"), "x" * 10**6, r"info.conventions is .* at most 4096 characters"),
        ((*INFO, "moves_grippers"), 1, r"info.moves_grippers is 1: true or false"),
        ((*INFO, "action_space", "kind"), 9, r"info.action_space.kind is 9: .* from 0 to 3"),
        ((*INFO, "action_space", "names"), ["\x1b[2J"], r"info: .* \d+ values|info: 7 units for 1"),
        ((*NAMES, "state"), {"s": 2 * 10**9}, r"state.s is 2000000000: .* from 1 to 10000"),
        ((*NAMES, "state"), {f"s{i}": 6000 for i in range(2)}, r"state, all .* is 12000: .* 10000"),
        ((*NAMES, "size"), BIG, r"size is \[8192, 8192\] of 1 images: .* message, 32 MiB"),
        ((*NAMES, "size"), [INF, 2], r"size\[0\] is inf: a whole number from 16 to 8192"),
        ((*NAMES, "images"), {}, "images has no 'main'"),
        ((*NAMES, "images"), {"main": "x", "wrist": ["x", "y"]}, "have the same key"),
        ((*NAMES, "prompt"), "observation/state", "have the same key"),
        ((*NAMES, "action_rate_hz"), float("nan"), r"action_rate_hz is nan: a number from 0"),
        ((*NAMES, "action_scale"), [1e300] * 6, r"action_scale\[0\] is 1e\+300: .* -1000 to 1000"),
        (INFO, "\x1b[2J", r"info is '\\x1b\[2J': a map is taken"),
        (NAMES, [1], "names is a map"),
    ],
)
def test_a_figure_outside_of_its_range_is_refused_when_it_is_loaded(path, value, said) -> None:
    with ForeignServer(honest, **changed(metadata(), path, value)) as server:
        with pytest.raises(PolicyRefused, match=said) as refused:
            load(server.url)
        assert server.seen == [], "nothing was made of it"
    one_clean_line(refused.value)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("vla_ros", "stages_ms", "decode"), INF, r"stages_ms.decode is inf: .* from 0 to 600000"),
        (("vla_ros", "stages_ms", "decode"), float("nan"), r"stages_ms.decode is nan"),
        (("vla_ros", "stages_ms", "decode"), -1e18, r"stages_ms.decode is -1e\+18"),
        (("vla_ros", "stages_ms"), {f"s{i}": 1.0 for i in range(99)}, "a map of at most 32"),
        ((*MADE, "conditioning_delay"), 10**6, r"conditioning_delay is 1000000: .* 0 to 10000"),
        ((*MADE, "conditioning_delay"), -1, r"conditioning_delay is -1"),
        ((*MADE, "target_passes"), 2**62, r"target_passes is .*: a whole number from 0 to 65535"),
        ((*MADE, "draft_passes"), -(2**63), r"draft_passes is .*: a whole number from 0 to 65535"),
        ((*MADE, "tokens"), [2**62], r"tokens\[0\] is .* from 0 to 2147483647"),
        ((*MADE, "captures"), 2**62, r"captures is .* from 0 to 4294967295"),
        ((*MADE, "accepted"), [5] * 7, "7 of 0 drafts are accepted"),
        ((*MADE, "evil\x1b"), 1, r"inference has 'evil\\x1b', which is not known"),
        ((*MADE, "continues"), {"stamp_ns": 1}, "continues has no index"),
        (("vla_ros",), None, "the answer is None: a map is taken"),
        (("actions",), np.zeros((1, 8)), r"\[1, 8\]: \[1, 7\] is needed"),
        (("actions",), np.full((1, 7), np.nan), "not finite"),
        (("actions",), np.full((1, 7), np.inf), "not finite"),
        (("actions",), np.full((1, 7), 2**1023.0), None),
        (("actions",), "x" * 1000, "no array of numbers"),
        (("actions",), [0] * 4097, "not a message"),
        (("actions",), [[0] * 4000] * 900, "lists of more than 16384 entries"),
    ],
)  # fmt: skip
def test_an_answer_outside_of_its_range_is_an_invalid_action(path, value, said) -> None:
    hostile = threading.Event()

    def infer(request: dict[str, Any]) -> dict[str, Any]:
        good = honest(request)
        return changed(good, path, value) if hostile.is_set() else good

    with ForeignServer(infer, **metadata()) as server:
        policy = load(server.url)
        hostile.set()
        if said is None:  # a number as any other: the gate's to judge
            assert np.isfinite(ask(policy).actions).all()
            return
        with pytest.raises(InvalidAction, match=said) as refused:
            ask(policy)
        one_clean_line(refused.value)
        hostile.clear()
        assert ask(policy, 8).stamp_ns == 8, "and it goes on"


def test_each_field_that_a_server_says_has_a_rule() -> None:
    assert set(figures.INFO.rules) == {one.name for one in fields(PolicyInfo)}
    apart = {"actions", "timeline"}  # checked by the action space; made here
    assert set(figures.INFERENCE.rules) | apart == {one.name for one in fields(Inference)}


EVIL = "Traceback\n\x1b[2J\x1b[31mEVIL \u202e" + "A" * 1_000_000


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (RuntimeError(EVIL), InvalidAction),
        ({"vla_ros": {"unanswered": "\x1b[2J\nX" * 1000}}, Unreachable),
        ({"vla_ros": {"unanswered": [1] * 4000}}, Unreachable),
        ({"\x1b[2J" + "k" * 1000: 1}, InvalidAction),
    ],
)
def test_a_server_s_text_is_one_clean_line(said: Any, kind: type[Exception]) -> None:
    hostile = threading.Event()

    def infer(request: dict[str, Any]) -> Any:
        if not hostile.is_set():
            return honest(request)
        if isinstance(said, Exception):
            raise said
        return said

    with ForeignServer(infer, **metadata()) as server:
        policy = load(server.url)
        hostile.set()
        with pytest.raises(kind) as refused:
            ask(policy)
    one_clean_line(refused.value)


def test_the_token_is_for_the_server_that_was_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLA_ROS_TOKEN", "secret")
    with ForeignServer(honest, **metadata()) as other:

        def elsewhere(_: Any, __: Any) -> Response:
            return Response(302, "Found", Headers({"Location": f"{other.url}/x"}))

        with serve(lambda _: None, "127.0.0.1", 0, process_request=elsewhere) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            url = f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
            with pytest.raises(PolicyRefused, match=f"HTTP 302: it points to {other.url}") as no:
                load(url)
            server.shutdown()
        assert other.headers == []
    one_clean_line(no.value)


# What a server writes in place of an answer. The connection ends, or the step does, in time.


@contextlib.contextmanager
def written(
    write: Callable[[bytes, Write], None], timeout_s: str = "60.0", **words: Any
) -> Iterator[tuple[Any, Any]]:
    """A policy whose server, from then on that the event is set, writes this in place of an answer
    (given as the first argument)."""
    hostile = threading.Event()

    def reply(request: bytes, out: Write) -> None:
        stamp = msgpack.unpackb(request)["vla_ros"]["stamp_ns"]
        good = binary(msgpack.packb(answer(stamp), default=to_map))
        if hostile.is_set():
            write(good, out)
        else:
            out(good)

    with RawServer(msgpack.packb(metadata()), reply, **words) as server:
        yield load(server.url, timeout_s), hostile


def fragments(good: bytes, out: Write) -> None:
    out(bytes([0x02, 0]))
    while True:
        out(bytes([0, 0]) * 5000)


def pings(good: bytes, out: Write) -> None:
    while True:
        out(bytes([0x89, 0]) * 5000)


@pytest.mark.parametrize("write", [fragments, pings])
def test_a_flood_of_frames_ends_the_connection(write: Callable[[bytes, Write], None]) -> None:
    with written(write) as (policy, hostile):
        hostile.set()
        with pytest.raises(Unreachable, match=f"more than {FRAMES} frames without an answer") as no:
            ask(policy)
        one_clean_line(no.value)
        hostile.clear()
        assert wait_until(lambda: answered(policy, 8)).stamp_ns == 8, "and it goes on"


def answered(policy: Any, stamp: int) -> Any:
    try:
        return ask(policy, stamp)
    except Unreachable:
        return None


def messages(good: bytes, out: Write) -> None:
    while True:
        out(good * 100)


def text_and_answer(good: bytes, out: Write) -> None:
    out(good + good)


@pytest.mark.parametrize("write", [messages, text_and_answer])
def test_of_several_answers_none_is_taken(write: Callable[[bytes, Write], None]) -> None:
    with written(write) as (policy, hostile):
        hostile.set()
        with pytest.raises(Unreachable, match="answers out of step") as no:
            for stamp in range(100, 200):  # where the second one comes later
                ask(policy, stamp)
        one_clean_line(no.value)


@pytest.mark.timeout(120)
def test_bytes_that_drip_make_no_step_longer() -> None:
    over = threading.Event()

    def drip(good: bytes, out: Write) -> None:
        for byte in good[:-1]:
            if over.wait(0.02):
                return
            out(bytes([byte]))

    with written(drip, "0.3") as (policy, hostile):
        hostile.set()
        with pytest.raises(Unreachable, match="has not answered within"):
            ask(policy)
        over.set()


def test_a_fragment_that_comes_after_the_time_is_over_is_not_lost() -> None:
    rest, sent = threading.Event(), threading.Event()

    def halves(good: bytes, out: Write) -> None:
        payload = good[4:] if good[1] == 126 else good[2:]
        out(bytes([0x02, 1]) + payload[:1] + bytes([0, 1]) + payload[1:2])
        rest.wait(60.0)
        left = payload[2:]
        out(bytes([0x80, 126]) + len(left).to_bytes(2, "big") + left)
        sent.set()

    with written(halves, "0.5") as (policy, hostile):
        hostile.set()
        with pytest.raises(Unreachable, match="has not answered within"):
            ask(policy)
        rest.set()
        assert sent.wait(60.0)
        late = wait_until(lambda: answered(policy, 8))
        assert late.stamp_ns == STAMP, "the answer belongs to its own question"


def test_an_answer_that_begins_before_its_question_has_left_is_refused() -> None:
    over = threading.Event()
    early = threading.Event()

    def begun(out: Write) -> None:
        if early.is_set():
            early.clear()
            out(binary(msgpack.packb(answer(STAMP), default=to_map)))
            over.wait(60.0)  # and reads no more of it

    with written(lambda good, out: out(good), begun=begun) as (policy, _):
        early.set()
        with pytest.raises(Unreachable, match=r"answers out of step: .* has not left yet"):
            ask(policy, STAMP, side=3000)  # more than the kernel takes meanwhile
        over.set()
        assert wait_until(lambda: answered(policy, 8)).stamp_ns == 8


# Anything at all: values that are odd, at any place of what a server says.

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63 - 1, 2**64 - 1, -(2**63)),
    *(0.0, -0.0, INF, -INF, float("nan"), 1e300, 5e-324),
    *("", "x", "\x1b[2J\u202e\n", "z" * 5000, b"", b"\xff" * 9),
    *([], [None], [[1], 2], [2**63] * 20, {}, {"": {}}, {1: 2}, {"main": []}),
)


def places(message: Any, path: Path = ()) -> list[Path]:
    """The path of each value in a message."""
    if not isinstance(message, dict):
        return [path]
    inner = [one for key, value in message.items() for one in places(value, (*path, key))]
    return [path, *inner] if path else inner


def spoilt(message: dict[str, Any], choices: list[tuple[int, int]]) -> dict[str, Any]:
    for where, what in choices:
        paths = places(message)
        message = changed(message, paths[where % len(paths)], ODD[what % len(ODD)])
    return message


CHOICES = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)), min_size=1, max_size=3)
SOME = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@SOME
@given(CHOICES)
def test_whatever_is_odd_in_what_a_server_says_of_itself_is_refused_in_one_line(choices) -> None:
    with ForeignServer(honest, **spoilt(metadata(), choices)) as server:
        try:
            policy = load(server.url)
        except PolicyRefused as refused:
            one_clean_line(refused)
            return
        with contextlib.suppress(InvalidAction, Unreachable):
            ask(policy)
        policy.reset(Instruction("stack", 2))


@pytest.fixture(scope="module")
def odd_server() -> Iterator[tuple[Any, list[Any]]]:
    choices: list[Any] = []

    def infer(request: dict[str, Any]) -> dict[str, Any]:
        return spoilt(honest(request), choices) if choices else honest(request)

    with ForeignServer(infer, **metadata()) as server:
        yield load(server.url), choices


@SOME
@given(CHOICES)
def test_whatever_is_odd_in_an_answer_is_an_invalid_action(odd_server: Any, choices) -> None:
    policy, current = odd_server
    current[:] = choices
    try:
        found = ask(policy)
    except (InvalidAction, Unreachable) as error:
        one_clean_line(error)
    else:
        assert found.stamp_ns == STAMP and found.actions.shape == (1, 7)
        assert np.isfinite(found.actions).all()
        marks = [end for _, end in found.timeline.marks]
        assert marks == sorted(marks)
    finally:
        current.clear()


def test_a_table_of_names_that_can_be_is_taken() -> None:
    table = names_from({"images": {"main": "a"}, "size": [224, 224], "action_rate_hz": 20})
    assert (table.size, table.action_rate_hz) == ((224, 224), 20)
    assert replace(table, action_scale=(0.05,) * 6).action_scale == (0.05,) * 6
