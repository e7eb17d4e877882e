"""Policy remote on GR00T's own protocol."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("zmq")
pytest.importorskip("msgpack")

from support.groot_server import GrootServer, config
from vla_ros.core.action_space import ActionKind, joints
from vla_ros.core.clock import SystemClock
from vla_ros.core.types import Instruction, Observation, Timeline
from vla_ros.engine.options import EngineOptions
from vla_ros.policies import InvalidAction, PolicyRefused, PolicySpec, load_policy
from vla_ros.policies.base import Unreachable
from vla_ros.policies.remote.codec import Malformed, pack, unpack, unpack_groot

CLOCK = SystemClock()
SPACE = joints(ActionKind.JOINT_POSITION, ("a", "b", "g"), ("g",))
MODALITIES = {
    "video": config("front"),
    "state": config("arm", "hand"),
    "action": config("arm", "hand"),
    "language": config("task"),
}
TABLE = """\
images: {main: video.front}
state: {state.arm: 2, state.hand: 1}
prompt: language.task
"""


def act(_: Any) -> dict[str, Any]:
    """The groups in another order than the modality config has them."""
    hand = np.full((1, 4, 1), 50, np.float32)
    arm = np.arange(8, dtype=np.float32).reshape(1, 4, 2)
    return {"hand": hand, "arm": np.asfortranarray(arm)}


@pytest.fixture
def names(tmp_path: Path) -> str:
    table = tmp_path / "names.yaml"
    table.write_text(TABLE)
    return str(table)


@pytest.fixture
def server() -> Iterator[GrootServer]:
    with GrootServer(act, MODALITIES) as running:
        yield running


def loaded(url: str, names: str, **options: str) -> Any:
    policy = load_policy(
        PolicySpec(
            "remote", engine=EngineOptions(url), warmup_size=(32, 32), action_space=SPACE,
            state_units=("rad", "rad", "%"), action_units=("rad", "rad", "%"),
            options={"names": names, **options},
        )
    )  # fmt: skip
    policy.reset(Instruction("stack", 1))
    return policy


def ask(policy: Any, stamp: int = 7) -> Any:
    now = CLOCK.steady_ns()
    image = np.full((60, 80, 3), 9, np.uint8)
    seen = Observation(stamp, now, now, image, None, np.array([0.1, 0.2, 0.5]))
    return policy.step(seen, Timeline(now), CLOCK)


def test_an_observation_and_its_actions_as_groot_says_them(server: GrootServer, names: str) -> None:
    policy = loaded(server.url, names)
    assert (policy.info.chunk_length, policy.info.state_dim) == (4, 3)
    inference = ask(policy)
    assert inference.stamp_ns == 7
    assert inference.actions == pytest.approx(
        np.array([[0, 1, 0.5], [2, 3, 0.5], [4, 5, 0.5], [6, 7, 0.5]])
    )
    said = server.seen[-1]["data"]["observation"]
    assert {key: list(inner) for key, inner in said.items()} == {
        "video": ["front"], "state": ["arm", "hand"], "language": ["task"]
    }  # fmt: skip
    image = said["video"]["front"]
    assert (image.shape, image.dtype) == ((1, 1, 60, 80, 3), np.uint8) and (image == 9).all()
    assert said["state"]["arm"].shape == (1, 1, 2) and said["state"]["arm"].dtype == np.float32
    assert said["state"]["hand"].tolist() == [[[50.0]]]
    assert said["language"]["task"] == [["stack"]]
    before = server.endpoints().count("reset")
    policy.reset(Instruction("stack", 2))
    ask(policy)
    assert server.endpoints().count("reset") == before + 1


def test_the_token_is_said_and_a_wrong_one_is_one_line(
    monkeypatch: pytest.MonkeyPatch, names: str
) -> None:
    with GrootServer(act, MODALITIES, token="right") as server:
        with pytest.raises(PolicyRefused, match="Unauthorized: Invalid API token"):
            loaded(server.url, names)
        monkeypatch.setenv("VLA_ROS_TOKEN", "right")
        assert ask(loaded(server.url, names)) is not None


def test_nobody_there_and_more_than_one_moment_are_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, names: str
) -> None:
    monkeypatch.setattr("vla_ros.policies.remote.policy.TRY_S", 0.3)
    with pytest.raises(PolicyRefused, match="does not answer: does a GR00T server run there"):
        loaded("tcp://127.0.0.1:9", names)
    modalities = {**MODALITIES, "video": config("front", deltas=(-1, 0))}
    with (
        GrootServer(act, modalities) as server,
        pytest.raises(PolicyRefused, match="it looks at video of 2 moments: one is sent"),
    ):
        loaded(server.url, names)


def test_an_error_is_one_invalid_action_and_it_goes_on(names: str) -> None:
    wrong = threading.Event()

    def fails(seen: Any) -> Any:
        if wrong.is_set():
            raise ValueError("state 'arm' is out of range")
        return act(seen)

    with GrootServer(fails, MODALITIES) as server:
        policy = loaded(server.url, names)
        wrong.set()
        with pytest.raises(InvalidAction, match="state 'arm' is out of range"):
            ask(policy)
        wrong.clear()
        assert ask(policy, 8).stamp_ns == 8


def test_a_server_that_comes_back_is_found_and_a_lost_one_is_no_fault(names: str) -> None:
    with GrootServer(act, MODALITIES) as server:
        policy = loaded(server.url, names, timeout_s="0.2")
        port = int(server.url.rpartition(":")[2])
        assert ask(policy, 1).stamp_ns == 1
    for stamp in range(2, 9):
        with pytest.raises(Unreachable, match="answer"):
            ask(policy, stamp)
    with GrootServer(act, MODALITIES, port):
        until = time.monotonic() + 20
        while True:
            try:
                found = ask(policy, 20)
                break
            except Unreachable:
                assert time.monotonic() < until
    assert found.stamp_ns in range(2, 21)


@pytest.mark.parametrize(
    "answer",
    [[], {"actions": 1}, [{"arm": np.zeros((1, 4, 2))}, {}], [{"arm": 1, "hand": 2}, {}], b"\xc1"],
)
def test_what_is_no_answer_is_an_invalid_action(names: str, answer: Any) -> None:
    wrong = threading.Event()
    with GrootServer(lambda seen: act(seen), MODALITIES) as server:
        policy = loaded(server.url, names)
        send = server._reply

        def reply(request: Any) -> None:
            if not wrong.is_set() or request["endpoint"] != "get_action":
                send(request)
            else:
                server._socket.send(answer if answer == b"\xc1" else pack_any(answer))

        server._reply = reply  # type: ignore[method-assign]
        wrong.set()
        with pytest.raises(InvalidAction) as found:
            ask(policy)
        assert "\n" not in str(found.value)
        wrong.clear()
        assert ask(policy, 8).stamp_ns == 8


def pack_any(answer: Any) -> bytes:
    return pack({"": answer}, as_npy=True)[2:]  # without the map and its key


@pytest.mark.parametrize("shape", ["(2, 10**12)", "(2,)", "(-1,)", "'x'", "(2, 2)"])
def test_an_array_whose_header_lies_is_malformed_and_takes_no_memory(shape: str) -> None:
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    data = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head.encode() + b"\0" * 12
    with pytest.raises(Malformed):
        unpack_groot(pack({"a": {"__ndarray_class__": True, "as_npy": data}}))


def test_arrays_of_objects_are_never_read() -> None:
    stream = io.BytesIO()
    np.save(stream, np.array([{}], object), allow_pickle=True)
    with pytest.raises(Malformed, match="numbers of at most 8 bytes"):
        unpack_groot(pack({"a": {"__ndarray_class__": True, "as_npy": stream.getvalue()}}))


def test_npy_arrays_are_read_from_groots_servers_alone() -> None:
    said = pack({"a": np.arange(3)}, as_npy=True)
    assert unpack_groot(said)["a"].tolist() == [0, 1, 2]
    assert isinstance(unpack(said)["a"], dict), "a client of our server sends no files"
