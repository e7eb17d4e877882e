"""`POST /act` of `vla-ros serve`, and of anybody's server as a policy here."""

from __future__ import annotations

import base64
import contextlib
import json
import socket as sockets
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("websockets", reason="websockets is not installed: pip install '.[serve]'")
pytest.importorskip("msgpack", reason="msgpack is not installed: pip install '.[serve]'")
pytest.importorskip("prometheus_client", reason="not installed: pip install '.[serve]'")

from support.serving import rows_file, serving
from support.strangers import stranger
from vla_ros.core.clock import SystemClock
from vla_ros.core.types import Instruction, Observation, Timeline
from vla_ros.engine.options import EngineOptions
from vla_ros.policies import PolicyRefused, PolicySpec, load_policy
from vla_ros.policies.base import InvalidAction, Unreachable
from vla_ros.policies.remote.codec import MAX_PARTS, Malformed, pack_json, unpack_json
from vla_ros.serve.server import HALF_OPEN, Server

CLOCK = SystemClock()
ROWS = np.random.default_rng(0).normal(0, 0.01, (6, 3, 7))
ROWS[..., 6] = np.abs(ROWS[..., 6])  # openings: 0 to 1
ONES = ROWS[:, 0]  # chunks of one action
IMAGE = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
SCALE = (1.0,) * 6


@pytest.fixture(params=[ONES, ROWS], ids=["one action", "a chunk"])
def rows(request, tmp_path) -> PolicySpec:
    return PolicySpec("replay", replay_file=rows_file(tmp_path, request.param))


@pytest.fixture(params=["shipped:tabletop", "shipped:tabletop-flow"])
def shipped(request) -> PolicySpec:
    pytest.importorskip("torch")
    return PolicySpec("vla", engine=EngineOptions(request.param))


def encoded(array: np.ndarray) -> dict[str, Any]:
    data = base64.b64encode(array.tobytes()).decode()
    return {"__numpy__": data, "dtype": array.dtype.str, "shape": list(array.shape)}


def body(**more: Any) -> bytes:
    return json.dumps({"image": encoded(IMAGE), "instruction": "stack", **more}).encode()


class Poster:
    """A client by hand, on one connection."""

    def __init__(self, server: Server) -> None:
        host, port = server.address.removeprefix("ws://").rsplit(":", 1)
        self.socket = sockets.create_connection((host, int(port)), timeout=20)
        self.file = self.socket.makefile("rb")

    def post(self, data: bytes, path: str = "/act", **headers: str) -> tuple[int, Any]:
        words = {"Host": "a", "Content_Length": str(len(data)), **headers}
        rows = [f"{name.replace('_', '-')}: {value}" for name, value in words.items()]
        lines = [f"POST {path} HTTP/1.1", *rows]
        self.socket.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        return self.answer()

    def answer(self) -> tuple[int, Any]:
        status = int(self.file.readline().split()[1])
        length = 0
        while line := self.file.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        return status, json.loads(self.file.read(length))


def numbers(found: Any) -> np.ndarray:
    rows = found if isinstance(found, list) else [found]
    return np.stack([np.frombuffer(base64.b64decode(r["__numpy__"]), r["dtype"]) for r in rows])


def test_a_connection_is_an_episode_and_each_post_an_observation(rows) -> None:
    expected = np.load(rows.replay_file)
    with serving(rows) as server:
        one, other = Poster(server), Poster(server)
        for number in range(3):
            for poster in (one, other):
                status, found = poster.post(body())
                assert status == 200
                assert isinstance(found, list) == (expected.ndim == 3)
                np.testing.assert_array_equal(numbers(found), np.atleast_2d(expected[number]))
        status, found = one.post(json.dumps({"encoded": body().decode()}).encode())
        assert isinstance(found, str), "what was encoded twice is answered so"
        np.testing.assert_array_equal(numbers(json.loads(found)), np.atleast_2d(expected[3]))


def test_the_page_s_program_prints_the_action(rows, monkeypatch) -> None:
    pytest.importorskip("requests")
    stranger("json_numpy", monkeypatch)
    program = Path(__file__).resolve().parents[3] / "docs/how-to/post_act.py"
    with serving(rows) as server:
        url = server.address.replace("ws://", "http://").rstrip("/")
        words = [sys.executable, str(program), url]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    found = np.array(json.loads(done.stdout))
    np.testing.assert_array_equal(np.atleast_2d(found), np.atleast_2d(np.load(rows.replay_file)[0]))


def test_openvla_s_own_way_of_asking(rows, monkeypatch) -> None:
    """The lines of its README: requests, with json patched by json-numpy."""
    requests = pytest.importorskip("requests")
    json_numpy = stranger("json_numpy", monkeypatch)
    expected = np.load(rows.replay_file)
    with serving(rows) as server:
        url = server.address.replace("ws://", "http://") + "/act"
        said = json_numpy.dumps({"image": IMAGE, "instruction": "stack", "unnorm_key": "bridge"})
        answer = requests.post(url, data=said, timeout=20)
        found = json_numpy.loads(answer.text)
    np.testing.assert_array_equal(np.atleast_2d(found), np.atleast_2d(expected[0]))


@pytest.mark.parametrize(
    ("data", "words", "status", "says"),
    [
        (b"", {}, 400, "not JSON"),
        (b"[1, 2]", {}, 400, "no map"),
        (b"[" * 2 * MAX_PARTS, {}, 400, "too many entries"),
        (body(instruction=3), {}, 400, "is no text"),
        (json.dumps({"instruction": "stack"}).encode(), {}, 400, "the observation has no 'image'"),
        (body(image=[[1, 2], [3, 4]]), {}, 400, "an image is uint8 hwc"),
        (body(image={**encoded(IMAGE), "shape": [9, 9, 9]}), {}, 400, "in 192 bytes"),
        (body(image={**encoded(IMAGE), "dtype": "|O8"}), {}, 400, "numbers of at most 8 bytes"),
        (body(stamp_ns=1.5), {}, 400, "give whole nanoseconds"),
        (body(state=[1.0]), {}, 400, "has state, and image, instruction are read"),
        (body(), {"path": "/infer"}, 404, "POST goes to /act"),
        (b"", {"Content_Length": str(1 << 40)}, 413, "at most"),
        (b"", {"Transfer_Encoding": "chunked"}, 411, "Content-Length"),
    ],
)
def test_what_is_wrong_is_a_status_and_one_line(rows, data, words, status, says) -> None:
    with serving(rows) as server:
        poster = Poster(server)
        found = poster.post(data, **words)
        assert found[0] == status
        assert says in found[1]["error"]
        assert "\n" not in found[1]["error"]
        assert Poster(server).post(body())[0] == 200, "the server goes on"


def test_a_token_and_the_number_of_clients_hold_here_too(rows) -> None:
    with serving(rows, token="secret", max_clients=1) as server:
        first = Poster(server)
        assert first.post(body())[0] == 401
        first = Poster(server)
        assert first.post(body(), Authorization="Bearer secret")[0] == 200
        status, found = Poster(server).post(body(), Authorization="Bearer secret")
        assert (status, "the most that it may" in found["error"]) == (503, True)


def test_connections_that_ask_nothing_go_when_more_come(rows) -> None:
    with serving(rows) as server:
        silent = [Poster(server) for _ in range(HALF_OPEN + 8)]
        for one in silent:
            one.socket.sendall(b"POST /act HTTP/1.1\r\n")
        with contextlib.suppress(ConnectionResetError):  # what it sent was not read yet
            assert silent[0].socket.recv(10) == b"", "the oldest is closed"
        silent[-1].socket.sendall(b"\r\n")
        assert silent[-1].answer()[0] == 411
        assert Poster(server).post(body())[0] == 200


def policy_at(url: str, **more: Any) -> Any:
    return load_policy(PolicySpec("remote", engine=EngineOptions(url), **more))


def seen() -> tuple[Observation, Timeline]:
    now = CLOCK.steady_ns()
    return Observation(41, now, now, IMAGE), Timeline(now).mark("queue", now)


def test_our_own_client_asks_our_own_server(rows) -> None:
    expected = np.load(rows.replay_file)
    with serving(rows) as server:
        policy = policy_at(server.address.replace("ws", "http", 1), action_scale=SCALE)
        policy.reset(Instruction("stack", 1))
        for number in range(3):
            found = policy.step(*seen(), CLOCK)
            np.testing.assert_allclose(found.actions[:, :6], np.atleast_2d(expected[number])[:, :6])
    assert policy.info.chunk_length == len(np.atleast_2d(expected[0]))
    with pytest.raises(Unreachable, match="connection"):
        policy.step(*seen(), CLOCK)
        policy.step(*seen(), CLOCK)


class Foreign(BaseHTTPRequestHandler):
    """deploy.py's answers, by Python's own HTTP server. ``says``: the body, by turns."""

    protocol_version = "HTTP/1.1"
    says: ClassVar[list[tuple[int, bytes]]] = []
    asked: ClassVar[list[Any]] = []

    def do_POST(self) -> None:
        self.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        status, data = self.says[min(len(self.asked), len(self.says)) - 1]
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def foreign():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Foreign)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    Foreign.asked, Foreign.says = [], []
    yield f"http://127.0.0.1:{server.server_port}/act"
    server.shutdown()
    server.server_close()


ACTION = json.dumps(encoded(ONES[0])).encode()


def test_a_stranger_s_server_is_asked_as_openvla_s_clients_ask_it(foreign) -> None:
    Foreign.says = [(200, ACTION), (200, ACTION), (200, json.dumps(ONES[1].tolist()).encode())]
    policy = policy_at(foreign, action_scale=SCALE)
    policy.reset(Instruction("stack", 1))
    found = policy.step(*seen(), CLOCK)
    np.testing.assert_allclose(found.actions[0, :6], ONES[1][:6])
    asked = Foreign.asked[-1]
    assert asked["instruction"] == "stack"
    np.testing.assert_array_equal(unpack_json(json.dumps(asked))["image"], IMAGE)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((200, b'"error"'), "HTTP 200: error"),
        ((500, b'{"error": "out of memory"}'), "HTTP 500: out of memory"),
        ((404, b"<html>\nNot Found"), "HTTP 404: Not Found"),
        ((200, b"[1, 2"), "not JSON"),
        ((200, b"[1, NaN, 1, 1, 1, 1, 1]"), "not finite"),
        ((200, b"[[1, 2]]"), "is needed, a column a number"),
    ],
)
def test_an_answer_that_is_none_is_an_invalid_action_in_one_line(foreign, answer, says) -> None:
    Foreign.says = [(200, ACTION), (200, ACTION), answer, (200, ACTION)]
    policy = policy_at(foreign, action_scale=SCALE)
    policy.reset(Instruction("stack", 1))
    with pytest.raises(InvalidAction, match=says) as refused:
        policy.step(*seen(), CLOCK)
    assert "\n" not in str(refused.value)
    policy.step(*seen(), CLOCK)
    Foreign.asked, Foreign.says = [], [answer]
    with pytest.raises(PolicyRefused, match=says):
        policy_at(foreign, action_scale=SCALE)


def test_nobody_there_and_no_address_are_refused() -> None:
    with pytest.raises(PolicyRefused, match="nothing listens there"):
        policy_at("http://127.0.0.1:9/act", action_scale=SCALE)
    with pytest.raises(PolicyRefused, match="is no address"):
        policy_at("http://", action_scale=SCALE)


@pytest.mark.parametrize("value", [np.float32(1.5), np.zeros((2, 0, 3)), np.array([True, False])])
def test_arrays_come_back_as_they_went(value) -> None:
    found = unpack_json(pack_json({"a": value}))["a"]
    np.testing.assert_array_equal(found, value)
    assert found.dtype == value.dtype


@pytest.mark.parametrize("text", ["{", '{"a": ' * 200_000, '{"__numpy__": 3}', "1" * 5000])
def test_nothing_but_malformed_comes_of_what_is_no_message(text) -> None:
    with pytest.raises(Malformed):
        unpack_json(text)


def test_every_door_gives_the_same_chunk(shipped) -> None:
    """In process, through the websocket and through POST /act."""
    image = np.random.default_rng(3).integers(0, 256, (224, 224, 3), np.uint8)
    task = Instruction("put the green cube on the red cube", 1)
    observation, timeline = seen()
    policy = load_policy(shipped)
    state = np.linspace(-0.5, 0.5, policy.info.state_dim, dtype=np.float32)
    observation = replace(observation, image=image, proprio=state.astype(float))
    policy.reset(task)
    wanted = policy.step(observation, timeline, CLOCK).actions
    said = {"instruction": task.text, "image": encoded(image), "stamp_ns": observation.stamp_ns}
    if len(state):
        said["state"] = encoded(state)  # as a client sends it, and a websocket of ours
    with serving(shipped) as server:
        remote = policy_at(server.address)
        remote.reset(task)
        found = remote.step(observation, seen()[1], CLOCK).actions
        status, answer = Poster(server).post(json.dumps(said).encode())
        doors = {"ws": found, "act": numbers(answer)}
    assert status == 200
    for door, actions in doors.items():
        np.testing.assert_array_equal(actions, wanted, err_msg=door)
