"""`vla-ros serve`: what clients get, and what one of them cannot do to the others."""

from __future__ import annotations

import contextlib
import gc
import io
import socket as sockets
import threading
import time
import urllib.error
import urllib.request
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

pytest.importorskip("websockets", reason="websockets is not installed: pip install '.[serve]'")
msgpack = pytest.importorskip("msgpack", reason="msgpack is not installed: pip install '.[serve]'")
pytest.importorskip("prometheus_client", reason="not installed: pip install '.[serve]'")

from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from support.foreign_server import ForeignServer, from_map, to_map
from support.serving import rows_file, serving
from support.strangers import stranger
from vla_ros.core.clock import SECOND, SystemClock
from vla_ros.core.errors import UserError
from vla_ros.core.types import Inference, Instruction, Observation, PolicyInfo, Timeline
from vla_ros.engine.options import EngineOptions
from vla_ros.policies import InvalidAction, PolicyRefused, PolicySpec, load_policy
from vla_ros.policies.base import Unreachable
from vla_ros.runtime.scheduler import BatchCosts
from vla_ros.serve.log import LINES
from vla_ros.serve.server import ServeOptions, Server
from vla_ros.serve.stepper import SharedPolicy

CLOCK = SystemClock()
ROWS = np.random.default_rng(0).normal(0, 0.01, (6, 3, 7))
ROWS[..., 6] = np.abs(ROWS[..., 6])  # openings: 0 to 1
IMAGE = np.zeros((8, 8, 3), np.uint8)


@pytest.fixture
def rows(tmp_path) -> PolicySpec:
    return PolicySpec("replay", replay_file=rows_file(tmp_path, ROWS))


class Stranger:
    """A client of openpi's protocol, by hand."""

    def __init__(self, server: Server, **words: Any) -> None:
        self.socket = connect(server.address, compression=None, max_size=None, **words)
        self.metadata = msgpack.unpackb(self.socket.recv())

    def ask(self, **more: Any) -> Any:
        return self.ask_raw(observation(**more))

    def ask_raw(self, data: bytes) -> Any:
        self.socket.send(data)
        answer = self.socket.recv(30.0)
        return answer if isinstance(answer, str) else msgpack.unpackb(answer, object_hook=from_map)


def observation(**more: Any) -> bytes:
    said = {"observation/image": IMAGE, "prompt": "stack", **more}
    return msgpack.packb({k: v for k, v in said.items() if v is not None}, default=to_map)


def test_a_stranger_gets_metadata_and_then_the_policy_s_actions(rows) -> None:
    with serving(rows) as server:
        stranger = Stranger(server)
        answers = [stranger.ask() for _ in range(7)]
    assert stranger.metadata["vla_ros"]["names"]["images"] == {"main": "observation/image"}
    for number, answer in enumerate(answers):
        np.testing.assert_array_equal(answer["actions"], ROWS[number % 6])
        assert answer["server_timing"]["infer_ms"] >= 0
        assert answer["vla_ros"]["age_ms"] > 0
    assert answers[1]["server_timing"]["prev_total_ms"] > 0


def test_each_client_has_an_episode_of_its_own_and_so_has_each_task(rows) -> None:
    with serving(rows) as server:
        one, other = Stranger(server), Stranger(server)
        for number in range(3):
            np.testing.assert_array_equal(one.ask()["actions"], ROWS[number])
            np.testing.assert_array_equal(other.ask()["actions"], ROWS[number])
        np.testing.assert_array_equal(one.ask(prompt="sweep")["actions"], ROWS[0])
        np.testing.assert_array_equal(other.ask()["actions"], ROWS[3])


def test_our_own_client_gets_what_the_policy_says_of_itself(rows) -> None:
    with serving(rows) as server:
        policy = load_policy(PolicySpec("remote", engine=EngineOptions(server.address)))
        policy.reset(Instruction("stack", 1))
        now = CLOCK.steady_ns()
        seen = Observation(41, now, now, IMAGE)
        inference = policy.step(seen, Timeline(now).mark("queue", now), CLOCK)
        info = policy.info
    assert (info.name, info.chunk_length, info.dtype) == ("remote", 3, "none")
    assert info.checkpoint == server.address
    assert inference.stamp_ns == 41
    np.testing.assert_array_equal(inference.actions, ROWS[0])
    stages = inference.timeline.durations_ms()
    assert list(stages) == ["queue", "preprocess", "vision", "prefill", "decode"]
    assert min(stages.values()) >= 0


@pytest.mark.parametrize("given", [{"action_units": ("deg",)}, {"state_units": ("deg",)}])
def test_units_of_our_own_server_are_refused_and_not_dropped(rows, given) -> None:
    with serving(rows) as server:
        engine = EngineOptions(checkpoint=server.address)
        flag = f"give `vla-ros serve` there --{[*given][0].replace('_', '-')}"
        with pytest.raises(PolicyRefused, match=f"leave {[*given][0]} out here, and {flag}"):
            load_policy(PolicySpec("remote", engine=engine, **given))


def test_a_doubt_of_our_own_server_is_said_to_be_the_server_s(tmp_path) -> None:
    """On the robot its remedy, action_scale, would be refused: it is for the server."""
    pytest.importorskip("torch")
    from vla_ros.engine.families.lerobot import PRESETS
    from vla_ros.engine.families.registry import write_folder

    write_folder(tmp_path / "it", PRESETS["smolvla-small"], seed=4)
    engine = EngineOptions(str(tmp_path / "it"), num_threads=1)
    with serving(PolicySpec("vla", engine=engine, action_scale=(0.05,) * 6)) as server:
        info = load_policy(PolicySpec("remote", engine=EngineOptions(server.address))).info
    assert info.contradiction.startswith("the server says: action_scale (0.05")
    assert info.assumptions[0].what == "server" and server.address in info.assumptions[0].value


def test_another_policy_behind_the_same_address_moves_nothing(rows, tmp_path) -> None:
    with serving(rows) as server:
        policy = load_policy(PolicySpec("remote", engine=EngineOptions(server.address)))
    port = int(server.address.rpartition(":")[2])
    policy.reset(Instruction("stack", 1))
    seen = Observation(41, 1, 1, IMAGE)
    with pytest.raises(Unreachable, match="connection refused"):
        policy.step(seen, Timeline(1), CLOCK)
    with (
        serving(PolicySpec("zero"), port=port),
        pytest.raises(InvalidAction, match="serves something else"),
    ):
        policy.step(seen, Timeline(1), CLOCK)
    with serving(rows, port=port):
        assert policy.step(seen, Timeline(1), CLOCK).stamp_ns == 41


def test_an_answer_that_names_another_observation_is_refused_and_the_next_connection_is_in_step(
    rows,
) -> None:
    """A relay that gives each request the server's answer to the one before."""
    with serving(rows) as server:
        behind, answers, late = Stranger(server), [], threading.Event()

        def relay(message: Any) -> Any:
            behind.socket.send(msgpack.packb(message, default=to_map))
            answers.append(behind.socket.recv(30.0))
            return answers[-2 if late.is_set() else -1]

        with ForeignServer(relay, **behind.metadata) as between:
            policy = load_policy(PolicySpec("remote", engine=EngineOptions(between.url)))
            policy.reset(Instruction("stack", 1))
            assert policy.step(Observation(41, 1, 1, IMAGE), Timeline(1), CLOCK).stamp_ns == 41
            late.set()
            for stamp in (42, 43):
                with pytest.raises(
                    Unreachable, match=r"answers out of step: .* another observation"
                ):
                    policy.step(Observation(stamp, 1, 1, IMAGE), Timeline(1), CLOCK)
            with pytest.raises(PolicyRefused, match="answers out of step"):
                load_policy(PolicySpec("remote", engine=EngineOptions(between.url)))
            late.clear()
            connections = len(between.headers)
            assert policy.step(Observation(44, 1, 1, IMAGE), Timeline(1), CLOCK).stamp_ns == 44
            assert len(between.headers) == connections + 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"prompt": None}, "the observation has no 'prompt': it has observation/image"),
        ({"prompt": 3}, "'prompt' is no text"),
        ({"prompt": "a\x00b"}, "control character"),
        ({"observation/image": IMAGE[0]}, r"uint8 \[8, 3\]: an image is uint8 hwc"),
        ({"observation/image": IMAGE / 1.0}, "float64"),
        ({"observation/image": "x"}, "is a str"),
        ({"vla_ros": IMAGE}, "'vla_ros' of the observation cannot be read"),
        ({"vla_ros": {"stamp_ns": "x"}}, "'vla_ros' of the observation cannot be read"),
        ({"vla_ros": {"stamp_ns": -1, "delay_steps": 0, "executing": None}}, "out of range"),
    ],
)
def test_a_wrong_observation_is_answered_by_text_and_the_next_is_read(rows, words, said) -> None:
    with serving(rows) as server:
        stranger = Stranger(server)
        answer = stranger.ask(**words)
        assert isinstance(answer, str)
        assert "\n" not in answer
        with pytest.raises(AssertionError, match=said):
            raise AssertionError(answer)
        np.testing.assert_array_equal(stranger.ask()["actions"], ROWS[0])


def test_who_sends_garbage_too_much_or_hangs_costs_nobody_else_anything(rows) -> None:
    with serving(rows, max_bytes=4096) as server, contextlib.ExitStack() as stack:
        good = Stranger(server)
        bad = [Stranger(server) for _ in range(3)]
        bad[0].socket.send(b"\xc1 garbage")
        bad[1].socket.send(bytes(5000))
        bad[2].socket.send("text")
        host, port = "127.0.0.1", int(server.address.rpartition(":")[2])
        for words in (b"", b"GET / HT", b"\x16\x03\x01\x02", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"):
            raw = stack.enter_context(sockets.create_connection((host, port)))
            raw.sendall(words)
        silent = Stranger(server)
        for _ in range(20):
            silent.socket.send(observation())  # and it reads no answer
        for number in range(6):
            np.testing.assert_array_equal(good.ask()["actions"], ROWS[number])
        assert "not a message" in bad[0].socket.recv(9.0)
        assert "binary" in bad[2].socket.recv(9.0)
        codes = [_end(one) for one in bad]
        assert codes == [1007, 1009, 1007]
        page = _page(server, "/metrics")
    assert 'vla_ros_refused_total{why="malformed"} 2.0' in page


def _end(stranger: Stranger) -> int:
    with pytest.raises(ConnectionClosed) as error:
        while True:
            stranger.socket.recv(9.0)
    return error.value.rcvd.code


def _page(server: Server, path: str, **headers: str) -> str:
    url = server.address.replace("ws://", "http://") + path
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=9) as found:
        return str(found.read(), "utf-8")


def test_a_token_lets_in_a_browser_s_page_and_one_too_many_stay_out(rows, monkeypatch) -> None:
    with serving(rows, token="secret", max_clients=1) as server:
        for words in ({}, {"Authorization": "Api-Key wrong"}, {"Authorization": "secret"}):
            with pytest.raises(InvalidStatus, match="401"):
                Stranger(server, additional_headers=words)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            _page(server, "/metrics")
        assert _page(server, "/healthz") == "OK\n"
        known = {"Authorization": "Api-Key secret"}
        with pytest.raises(InvalidStatus, match="403"):
            Stranger(server, additional_headers=known, origin="https://example.org")
        Stranger(server, additional_headers={"Authorization": "Bearer secret"}).socket.close()
        with pytest.raises(PolicyRefused, match=r"HTTP 401 give the server's \$VLA_ROS_TOKEN"):
            load_policy(PolicySpec("remote", engine=EngineOptions(server.address)))
        monkeypatch.setenv("VLA_ROS_TOKEN", "secret")
        held = _patiently(lambda: Stranger(server, additional_headers=known))
        with pytest.raises(InvalidStatus, match="503"):
            Stranger(server, additional_headers=known)
        with pytest.raises(PolicyRefused, match="503 it serves 1 clients"):
            load_policy(PolicySpec("remote", engine=EngineOptions(server.address)))
        np.testing.assert_array_equal(held.ask()["actions"], ROWS[0])
        assert "vla_ros_sessions 1.0" in _page(server, "/metrics", **known)


def _patiently(make: Any) -> Any:
    """The server may learn a moment later that the client before it has gone."""
    for _ in range(100):
        with contextlib.suppress(InvalidStatus, ConnectionClosed):
            return make()
        time.sleep(0.05)
    raise AssertionError("it stays full")


def test_a_client_is_held_to_its_pace(rows) -> None:
    with serving(rows, max_rate_hz=20.0) as server:
        stranger = Stranger(server)
        began = time.monotonic()
        for _ in range(6):
            stranger.ask()
        assert time.monotonic() - began > 0.19, "four pauses of 50 ms, after the second and on"


OWN = {"stamp_ns": 1, "delay_steps": 0, "executing": None}
SLOW_S = 0.05


class Slow:
    """A model that takes 50 ms an answer, and more where it is told to hang."""

    info = PolicyInfo("slow", dtype="float32")

    def __init__(self) -> None:
        self.hang = threading.Event()
        self.asked: list[str] = []
        self._task = ""

    def reset(self, instruction: Instruction) -> None:
        self._task = instruction.text

    def step(self, seen: Observation, timeline: Timeline, clock: Any) -> Inference:
        self.asked.append(self._task)
        if self._task == "wait":
            assert self.hang.wait(30.0)
        time.sleep(SLOW_S)
        return Inference(seen.stamp_ns, np.zeros((1, 7)), timeline)


@contextlib.contextmanager
def slow(**options: Any) -> Any:
    """A server whose policy takes 50 ms, as it knows; and the policy."""
    policy, made = Slow(), []

    def make(spec: PolicySpec) -> SharedPolicy:
        made.append(SharedPolicy(lambda: policy, spec))
        made[0].costs = BatchCosts({1: SLOW_S})
        return made[0]

    with serving(PolicySpec("zero"), make=make, **options) as server:
        yield server, policy


def test_a_client_that_cannot_be_served_is_refused_with_the_figures() -> None:
    with slow(rate_hz=8.0, max_age_s=0.3) as (server, _):
        first, second, third = (Stranger(server) for _ in range(3))
        assert "actions" in first.ask()
        assert "actions" in second.ask()
        said = third.ask()
        assert said == (
            "3 robots want 24.0 answers a second, and batches of 1 give 18.0 within the age limit"
            " of 300 ms: ask for at most 2.0 Hz, a higher age limit, or another server"
        )
        assert _end(third) == 1013
        modest = Stranger(server)
        assert "actions" in modest.ask(vla_ros={**OWN, "rate_hz": 1.0, "max_age_s": 0.5})
        options = {"rate_hz": "20", "max_age_s": "0.2"}
        spec = PolicySpec("remote", engine=EngineOptions(server.address), options=options)
        with pytest.raises(PolicyRefused, match=r"4 robots want 37\.0 answers a second"):
            load_policy(spec)
        assert 'refused_total{why="admission"} 2.0' in _page(server, "/metrics")
        modest.socket.close()
        first.socket.close()
        assert "actions" in _patiently(lambda: _answered(server)), "who goes makes room"
        assert "actions" in second.ask()


def _answered(server: Server) -> Any:
    answer = Stranger(server).ask()
    if isinstance(answer, str):
        raise ConnectionClosed(None, None)
    return answer


def test_strangers_are_not_refused_where_no_limits_are_given() -> None:
    with slow() as (server, _):
        strangers = [Stranger(server) for _ in range(6)]
        assert all("actions" in one.ask() for one in strangers)
        options = {"max_age_s": "0.02"}
        spec = PolicySpec("remote", engine=EngineOptions(server.address), options=options)
        with pytest.raises(PolicyRefused, match=r"an answer takes 50 ms and may .* limit of 20 ms"):
            load_policy(spec)


def test_a_frame_that_became_too_old_is_told_and_the_connection_stays() -> None:
    with slow() as (server, policy):
        first, ours, stranger = (Stranger(server) for _ in range(3))
        own = {**OWN, "max_age_s": 0.25}
        assert "actions" in ours.ask(vla_ros=own)
        first.socket.send(observation(prompt="wait"))
        while policy.asked[-1] != "wait":
            time.sleep(0.01)
        ours.socket.send(observation(vla_ros={**own, "age_s": 0.2}))
        stranger.socket.send(observation(prompt="stack"))
        _wait_for_frames(server, 2)
        policy.hang.set()
        late = msgpack.unpackb(ours.socket.recv(9.0))
        assert set(late) == {"vla_ros"}
        assert (
            "more than the age limit of 250 ms: the server has too much"
            in late["vla_ros"]["unanswered"]
        )
        assert "actions" in msgpack.unpackb(stranger.socket.recv(9.0), object_hook=from_map)
        assert "actions" in ours.ask(vla_ros=own)
        assert 'refused_total{why="too_old"} 1.0' in _page(server, "/metrics")


def test_who_acts_on_the_oldest_observation_is_answered_first() -> None:
    with slow() as (server, policy):
        first, younger, older = (Stranger(server) for _ in range(3))
        for one, age in ((younger, 0.0), (older, 0.4)):
            one.ask(prompt=f"{age}", vla_ros={**OWN, "age_s": age, "max_age_s": 9.0})
        first.socket.send(observation(prompt="wait"))
        while policy.asked[-1] != "wait":
            time.sleep(0.01)
        for one, age in ((younger, 0.0), (older, 0.4)):  # the older one's comes last
            more = {**OWN, "age_s": age, "max_age_s": 9.0}
            one.socket.send(observation(prompt=f"{age}", vla_ros=more))
        _wait_for_frames(server, 2)
        policy.hang.set()
        for one in (younger, older):
            one.socket.recv(9.0)
        assert policy.asked[-2:] == ["0.4", "0.0"]


def test_to_our_own_client_a_frame_that_is_too_old_is_no_fault_of_the_policy_s() -> None:
    with slow() as (server, _):
        options = {"max_age_s": "5"}
        spec = PolicySpec("remote", engine=EngineOptions(server.address), options=options)
        policy = load_policy(spec)
        policy.reset(Instruction("stack", 1))
        now = CLOCK.steady_ns()
        seen = Observation(now - 6 * SECOND, now, now, IMAGE)
        with pytest.raises(Unreachable, match="more than the age limit of 5000 ms: the server has"):
            policy.step(seen, Timeline(now), CLOCK)
        assert policy.step(replace(seen, stamp_ns=now), Timeline(now), CLOCK).stamp_ns == now


def _wait_for_frames(server: Server, count: int) -> None:
    """Until so many are in the thread's inbox."""
    for _ in range(1000):
        if server._stepper._work.qsize() >= count:
            return
        time.sleep(0.01)
    raise AssertionError("they do not come")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"rate_hz": -1.0}, "rate must be 0 to the largest"),
        ({"max_age_s": float("nan")}, "age limit 0 or more"),
        ({"host": "0.0.0.0"}, r"reached from other machines: set \$VLA_ROS_TOKEN"),
        ({"port": 70000}, "give 0 to 65535"),
        ({"max_clients": 0}, "1 or more"),
    ],
)
def test_options_that_cannot_be_are_refused(words, said) -> None:
    with pytest.raises(UserError, match=said):
        ServeOptions(**words)


class Fragile:
    """Breaks on a task that is called poison; a model, so all sessions share it."""

    info = PolicyInfo("fragile", dtype="float32")

    def __init__(self) -> None:
        self.task, self.steps, self.broken = "", 0, False

    def reset(self, instruction: Instruction) -> None:
        self.task, self.steps = instruction.text, 0

    def step(self, seen: Observation, timeline: Timeline, clock: Any) -> Inference:
        if self.task == "poison" or self.broken:
            raise RuntimeError("a kernel failed")
        self.broken = self.task == "the end"
        if self.task == "nothing":
            raise InvalidAction("token 5 is no action token")
        self.steps += 1
        return Inference(seen.stamp_ns, np.full((1, 7), float(self.steps)), timeline)


def fragile() -> Any:
    return serving(PolicySpec("zero"), make=lambda spec: SharedPolicy(Fragile, spec))


def test_a_frame_that_breaks_the_policy_ends_that_client_alone() -> None:
    with fragile() as server:
        good, poisoned, odd = (Stranger(server) for _ in range(3))
        assert good.ask()["actions"][0, 0] == 1
        assert good.ask()["actions"][0, 0] == 2
        assert poisoned.ask(prompt="poison") == "RuntimeError: a kernel failed"
        assert _end(poisoned) == 1011
        assert odd.ask(prompt="nothing") == "token 5 is no action token"
        assert good.ask()["actions"][0, 0] == 1, "of a policy that others used it begins anew"
        assert odd.ask(prompt="stack")["actions"][0, 0] == 1


def test_one_robot_s_poison_stops_that_robot_only_however_often_it_comes(caplog) -> None:
    with fragile() as server:
        good = Stranger(server)
        for _ in range(2 * LINES + 7):
            assert Stranger(server).ask(prompt="poison") == "RuntimeError: a kernel failed"
        assert good.ask()["actions"][0, 0] == 1
        assert server.failure == ""
    assert 1 <= len(caplog.records) <= 2 * LINES, "of two minutes, where one ends meanwhile"
    assert caplog.records[0].getMessage() == "an observation failed"
    assert "a kernel failed" in caplog.text


def test_a_policy_that_is_broken_for_good_ends_the_server_with_the_reason() -> None:
    with fragile() as server:
        others = [Stranger(server) for _ in range(2)]
        assert others[0].ask()["actions"][0, 0] == 1
        assert Stranger(server).ask(prompt="the end")["actions"][0, 0] == 1
        for _ in range(3):
            Stranger(server).ask(prompt="stack")
        for _ in range(200):
            if server.failure:
                break
            time.sleep(0.05)
        assert server.failure == "3 failures in a row: RuntimeError: a kernel failed"
        assert [_end(one) for one in others] == [1001, 1001], "all are told that it goes away"


def test_many_at_once_are_each_answered(rows) -> None:
    found: dict[int, list[Any]] = {}

    def run(number: int) -> None:
        stranger = Stranger(server)
        found[number] = [stranger.ask()["actions"] for _ in range(6)]

    with serving(rows) as server:
        threads = [threading.Thread(target=run, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60.0)
    assert len(found) == 8
    for answers in found.values():
        np.testing.assert_array_equal(answers, ROWS)


def test_openpi_s_own_client_gets_exactly_the_policy_s_actions(rows, monkeypatch) -> None:
    theirs = stranger("openpi_client.websocket_client_policy", monkeypatch)
    with serving(rows, token="secret") as server:
        port = int(server.address.rpartition(":")[2])
        client = theirs.WebsocketClientPolicy("127.0.0.1", port, api_key="secret")
        assert client.get_server_metadata()["chunk_length"] == 3
        for number in range(6):
            answer = client.infer({"observation/image": IMAGE, "prompt": "stack"})
            np.testing.assert_array_equal(answer["actions"], ROWS[number])
        with pytest.raises(RuntimeError, match="the observation has no 'prompt'"):
            client.infer({"observation/image": IMAGE})


def test_a_session_ends_with_its_connection_however_that_ends() -> None:
    """At once, and by itself: nothing of it is left to the garbage collector."""
    spec = PolicySpec("vla", engine=EngineOptions("random:small"), warmup_count=0)
    opened: list[weakref.ref[Any]] = []

    class Watched(SharedPolicy):
        def open(self) -> Any:
            session = super().open()
            opened.append(weakref.ref(session.loaded.policy))
            return session

    def make(spec: PolicySpec) -> SharedPolicy:
        return Watched(lambda: load_policy(spec), spec)

    with serving(spec, make=make) as server:
        gc.disable()
        try:
            for end in ("closed", "aborted", "asks another", "does not wait") * 3:
                client = Stranger(server)
                if end == "does not wait":
                    client.socket.send(observation())
                else:
                    assert "actions" in client.ask()
                if end == "asks another":
                    assert "actions" in client.ask(prompt="sweep")
                if end in ("aborted", "does not wait"):
                    client.socket.socket.shutdown(sockets.SHUT_RDWR)
                client.socket.close()
            deadline = time.monotonic() + 15.0
            while any(one() is not None for one in opened) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert len(opened) >= 9
            assert [one() for one in opened if one() is not None] == []
        finally:
            gc.enable()


def seen_at(image: np.ndarray) -> tuple[Observation, Timeline]:
    now = CLOCK.steady_ns()
    return Observation(41, now, now, image), Timeline(now).mark("queue", now)


def test_jpeg_is_a_tenth_of_the_pixels_and_the_server_sees_the_decoded_image(rows) -> None:
    """What the policy gets is what Pillow makes of the JPEG."""
    y, x = np.mgrid[:128, :128]
    image = np.stack([x * 2, y * 2, (x + y)], axis=-1).astype(np.uint8)
    got: list[np.ndarray] = []
    with serving(rows) as server:
        read = server._names.from_wire

        class Keeping:
            def from_wire(self, message: Any, *more: Any) -> Any:
                found = read(message, *more)
                got.append(found[0].image)
                return found

        server._names = Keeping()
        options = {"compression": "jpeg", "quality": "80"}
        policy = load_policy(
            PolicySpec("remote", engine=EngineOptions(server.address), options=options)
        )
        sent = []
        send = policy._link.send
        policy._link.send = lambda message, s: (sent.append(message), send(message, s))[1]
        policy.reset(Instruction("stack", 1))
        found = policy.step(*seen_at(image), CLOCK)
    np.testing.assert_array_equal(found.actions, ROWS[0])
    stream = io.BytesIO()
    Pillow.fromarray(image).save(stream, "JPEG", quality=80)
    np.testing.assert_array_equal(got[-1], np.array(Pillow.open(stream).convert("RGB")))
    assert len(sent[-1]["observation/image"].data) < image.nbytes / 10


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"compression": "png"}, "there is jpeg"),
        ({"compression": "jpeg", "quality": "101"}, "quality"),
        ({"quality": "80"}, "give both"),
    ],
)
def test_a_compression_that_there_is_not_is_refused(rows, options, says) -> None:
    with serving(rows) as server:
        spec = PolicySpec("remote", engine=EngineOptions(server.address), options=options)
        with pytest.raises(PolicyRefused, match=says):
            load_policy(spec)


def test_a_server_that_takes_no_jpeg_is_sent_none() -> None:
    options = {"names": "libero", "compression": "jpeg"}
    with ForeignServer(lambda _: {"actions": ROWS[0]}) as foreign:
        spec = PolicySpec("remote", engine=EngineOptions(foreign.url), options=options)
        with pytest.raises(PolicyRefused, match="does not say that it takes JPEG"):
            load_policy(spec)
