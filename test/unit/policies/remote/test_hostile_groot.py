"""policy: remote, against servers of GR00T's protocol that say anything, or the wrong answer."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

zmq = pytest.importorskip("zmq")
msgpack = pytest.importorskip("msgpack")

from support.groot_server import GrootServer, config
from vla_ros.core.action_space import ActionKind, joints
from vla_ros.core.clock import SystemClock
from vla_ros.core.text import printable
from vla_ros.core.types import Instruction, Observation, Timeline
from vla_ros.engine.options import EngineOptions
from vla_ros.policies import InvalidAction, PolicyRefused, PolicySpec, load_policy
from vla_ros.policies.base import Unreachable
from vla_ros.policies.remote.codec import pack, unpack_groot

CLOCK = SystemClock()
SPACE = joints(ActionKind.JOINT_POSITION, ("a", "b"))
MODALITIES = {
    "video": config("front"),
    "state": config("arm"),
    "action": config("arm"),
    "language": config("task"),
}
TABLE = "images: {main: video.front}\nstate: {state.arm: 2}\nprompt: language.task\n"


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> str:
    table = tmp_path_factory.mktemp("names") / "names.yaml"
    table.write_text(TABLE)
    return str(table)


def load(url: str, names: str, timeout_s: str = "30.0") -> Any:
    spec = PolicySpec(
        "remote", engine=EngineOptions(url), warmup_size=(32, 32), action_space=SPACE,
        state_units=("rad", "rad"), action_units=("rad", "rad"),
        options={"names": names, "timeout_s": timeout_s},
    )  # fmt: skip
    return load_policy(spec)


def ask(policy: Any, stamp: int) -> Any:
    now = CLOCK.steady_ns()
    image = np.zeros((32, 32, 3), np.uint8)
    seen = Observation(stamp, now, now, image, None, np.full(2, float(stamp)))
    return policy.step(seen, Timeline(now), CLOCK)


def about(observation: Any) -> dict[str, Any]:
    """An answer that shows which observation it is about."""
    return {"arm": np.full((1, 4, 2), observation["state"]["arm"][0, 0, 0], np.float32)}


class Router:
    """A server that answers each question with the answer to the one before it, in the envelope of
    that, and then with its own, unless it is ``mute``. A block is its life."""

    mute = False

    def __init__(self) -> None:
        self._socket = zmq.Context.instance().socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind("tcp://127.0.0.1:*")
        self.url = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        before: list[bytes] = []
        with contextlib.closing(self._socket):
            while not self._over.is_set():
                if self._socket.poll(20):
                    *envelope, request = self._socket.recv_multipart()
                    if before:
                        self._socket.send_multipart(before)
                    before = [*envelope, self._answer(unpack_groot(request))]
                    if not self.mute:
                        self._socket.send_multipart(before)

    def _answer(self, request: Any) -> bytes:
        if request["endpoint"] == "get_modality_config":
            return pack(MODALITIES)
        if request["endpoint"] == "reset":
            return pack({})
        return pack({"": [about(request["data"]["observation"]), {}]}, as_npy=True)[2:]

    def __enter__(self) -> Router:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(5.0)


def test_an_answer_belongs_to_the_question_with_its_number(names: str) -> None:
    with Router() as server:
        policy = load(server.url, names)
        for stamp in (3, 4, 5):
            assert ask(policy, stamp).actions[0, 0] == stamp


@pytest.mark.timeout(60)
def test_an_answer_to_another_question_is_waited_for_no_longer_than_none(names: str) -> None:
    with Router() as server:
        policy = load(server.url, names, "0.3")
        server.mute = True
        with pytest.raises(Unreachable, match="has not answered within"):
            ask(policy, 3)


ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**64 - 1, 1e300, float("inf"), float("nan")),
    *("", "\x1b[2J\u202e\n", "z" * 5000, b"\xff"),
    *([], [[]], [None], {}, {"arm": 1}, {1: []}, [["arm"]]),
    *(np.zeros((1, 4, 3)), np.zeros(0), np.zeros((1, 5000, 2)), np.full((1, 4, 2), np.nan)),
)
SOME = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
VALUES = st.integers(0, len(ODD) - 1).map(ODD.__getitem__)


def one_clean_line(error: BaseException) -> None:
    text = str(error)
    assert text and text == printable(text, 700)


@SOME
@given(st.sampled_from(("video", "state", "action", "language")), st.booleans(), VALUES)
def test_whatever_is_odd_in_its_config_is_refused_in_one_line(
    names: str, modality: str, inside: bool, value: Any
) -> None:
    said = {"__ModalityConfig_class__": True, "as_json": {"modality_keys": value}}
    odd = said if inside else value
    with GrootServer(about, {**MODALITIES, modality: odd}) as server:
        try:
            policy = load(server.url, names)
        except PolicyRefused as refused:
            one_clean_line(refused)
            return
        with contextlib.suppress(InvalidAction, Unreachable):
            ask(policy, 3)
        policy.reset(Instruction("stack", 2))


@pytest.fixture(scope="module")
def odd_server(names: str) -> Iterator[tuple[Any, list[Any]]]:
    odd: list[Any] = []
    with GrootServer(lambda seen: odd[0] if odd else about(seen), MODALITIES) as server:
        yield load(server.url, names), odd


@SOME
@given(VALUES, st.booleans())
def test_whatever_is_odd_in_an_answer_is_an_invalid_action(
    odd_server: Any, value: Any, inside: bool
) -> None:
    policy, odd = odd_server
    odd[:] = [{"arm": value} if inside else value]
    try:
        found = ask(policy, 3)
    except (InvalidAction, Unreachable) as error:
        one_clean_line(error)
    else:
        assert found.actions.shape == (4, 2) and np.isfinite(found.actions).all()
    finally:
        odd.clear()


def test_its_error_is_one_clean_line(names: str) -> None:
    wrong = threading.Event()

    def fails(seen: Any) -> Any:
        if wrong.is_set():
            raise ValueError("\x1b[2J\u202e" + "A" * 100_000)
        return about(seen)

    with GrootServer(fails, MODALITIES) as server:
        policy = load(server.url, names)
        wrong.set()
        with pytest.raises(InvalidAction) as refused:
            ask(policy, 3)
    one_clean_line(refused.value)
