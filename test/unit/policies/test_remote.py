"""policy: remote, against a stranger's server: names, units, lost links, late and wrong answers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("websockets", reason="websockets is not installed: pip install '.[serve]'")
pytest.importorskip("msgpack", reason="msgpack is not installed: pip install '.[serve]'")

from support.foreign_server import ForeignServer
from support.wait import wait_until
from vla_ros.core.action_space import ActionKind, joints
from vla_ros.core.clock import SystemClock
from vla_ros.core.types import Instruction, Observation, Timeline
from vla_ros.engine.options import EngineOptions
from vla_ros.policies import InvalidAction, PolicyRefused, PolicySpec, load_policy
from vla_ros.policies.base import Unreachable
from vla_ros.runtime.worker.wire import ErrorKind, FrameRequest
from vla_ros.runtime.worker.worker import Server as Worker
from vla_ros.runtime.worker.worker import warm_up

CHUNK = np.arange(70, dtype=np.float32).reshape(10, 7) / 100
CLOCK = SystemClock()
LIBERO = {"names": "libero"}


def spec(url: str, **words: Any) -> PolicySpec:
    options = {"options": LIBERO, "warmup_size": (32, 32), **words}
    return PolicySpec("remote", engine=EngineOptions(url), **options)


def seen(stamp: int = 7) -> Observation:
    image = np.zeros((60, 80, 3), np.uint8)
    image[:, :40] = 200  # the left half
    now = CLOCK.steady_ns()
    return Observation(stamp, now, now, image, image, np.arange(8.0))


def ask(policy: Any, stamp: int = 7) -> Any:
    observation = seen(stamp)
    return policy.step(observation, Timeline(observation.received_steady_ns), CLOCK)


def loaded(server: ForeignServer, **words: Any) -> Any:
    policy = load_policy(spec(server.url, **words))
    policy.reset(Instruction("stack", 1))
    return policy


def chunk(_: object) -> dict[str, Any]:
    return {"actions": CHUNK}


def test_openpi_s_libero_example_is_spoken() -> None:
    with ForeignServer(chunk) as server:
        policy = loaded(server)
        info = policy.info
        assert (info.name, info.chunk_length, info.cameras, info.state_dim) == ("remote", 10, 2, 8)
        assert info.action_rate_hz == 20.0
        inference = ask(policy)
        said = server.seen[-1]
    assert set(said) == {
        *("observation/image", "observation/wrist_image", "observation/state", "prompt")
    }
    assert said["prompt"] == "stack"
    assert said["observation/state"].tolist() == list(range(8))
    image = said["observation/image"]
    assert (image.shape, image.dtype) == ((224, 224, 3), np.uint8)
    assert image[112, 200].tolist() == [200] * 3, "mirrored, as LIBERO's data are"
    assert image[112, 20].tolist() == [0] * 3
    assert not image[:20].any(), "fitted, with a border"
    assert inference.stamp_ns == 7
    assert [stage for stage, _ in inference.timeline.marks] == [
        *("preprocess", "vision", "prefill", "decode")
    ]
    assert inference.actions[:, :3] == pytest.approx(CHUNK[:, :3] * 0.05)
    assert inference.actions[:, 3:6] == pytest.approx(CHUNK[:, 3:6] * 0.5)
    assert inference.actions[:, 6] == pytest.approx((1 - CHUNK[:, 6]) / 2), "1 closes, -1 opens"


def test_a_table_of_ones_own_and_joints_in_degrees(tmp_path) -> None:
    table = tmp_path / "names.yaml"
    table.write_text(
        "images: {main: [images, top]}\nstate: {arm: 2, hand: 1}\nlayout: chw\nactions: plan\n"
        "action_rate_hz: 25\n"
    )
    space = joints(ActionKind.JOINT_POSITION, ("a", "b", "g"), ("g",))
    with ForeignServer(lambda _: {"plan": [90.0, 0.0, 100.0]}) as server:
        policy = loaded(
            server, action_space=space, options={"names": str(table)},
            state_units=("deg", "deg", "%"), action_units=("deg", "deg", "%"),
        )  # fmt: skip
        observation = replace(seen(), proprio=np.array([np.pi, 0.0, 0.5]))
        assert policy.info.action_rate_hz == 25.0
        inference = policy.step(observation, Timeline(1), CLOCK)
        said = server.seen[-1]
    assert said["images"]["top"].shape == (3, 60, 80)
    assert said["arm"].tolist() == [180.0, 0.0]
    assert said["hand"].tolist() == [50.0]
    assert inference.actions == pytest.approx(np.array([[np.pi / 2, 0.0, 1.0]]))


def test_a_lost_link_is_no_fault_of_the_policy_s_and_is_made_again() -> None:
    with ForeignServer(chunk) as server:
        policy = loaded(server)
        port = server.port
        ask(policy, 1)
    worker = Worker(policy, CLOCK)
    task = Instruction("stack", 1)
    for number in range(5):  # FAULT is three invalid actions
        result = worker.answer(FrameRequest(number, seen(number + 2), task))
        assert (result.error, result.inference) == (ErrorKind.LINK, None)
    assert "connection refused" in result.error_text
    with ForeignServer(chunk, port):
        result = worker.answer(FrameRequest(9, seen(9), task))
    assert result.inference is not None
    assert result.inference.stamp_ns == 9


def test_a_connection_that_the_server_dropped_meanwhile_costs_no_observation() -> None:
    with ForeignServer(chunk) as server:
        policy = loaded(server)
        ask(policy, 1)
        port = server.port
    with ForeignServer(chunk, port):
        assert ask(policy, 2).stamp_ns == 2


def test_a_late_answer_belongs_to_its_own_observation() -> None:
    slow, go = threading.Event(), threading.Event()

    def infer(message: Any) -> Any:
        if slow.is_set():
            go.wait(30.0)
        return {"actions": CHUNK}

    with ForeignServer(infer) as server:
        policy = loaded(server, options={**LIBERO, "timeout_s": "0.2"})
        ask(policy, 1)
        slow.set()
        count = len(server.seen)
        with pytest.raises(Unreachable, match="has not answered within"):
            ask(policy, 2)
        with pytest.raises(Unreachable, match="has not answered within"):
            ask(policy, 3)
        assert len(server.seen) == count + 1, "nothing is asked of one who is busy"
        slow.clear()
        go.set()
        late = wait_until(lambda: answered(policy, 4))
        assert late.stamp_ns == 2
        assert ask(policy, 5).stamp_ns == 5


def answered(policy: Any, stamp: int) -> Any:
    try:
        return ask(policy, stamp)
    except Unreachable:
        return None


def test_one_who_never_answers_is_connected_to_anew() -> None:
    silent = threading.Event()
    silence = threading.Event()

    def infer(message: Any) -> Any:
        if silent.is_set():
            silent.clear()
            silence.wait(30.0)
        return {"actions": CHUNK}

    with ForeignServer(infer) as server:
        policy = loaded(server, options={**LIBERO, "timeout_s": "0.1"})
        silent.set()
        found = wait_until(lambda: answered(policy, 3), 30.0)
        assert found.stamp_ns == 3
        silence.set()


def plan(message: Any) -> dict[str, Any]:
    """An answer that shows which observation it is about."""
    return {"actions": np.full((10, 7), message["observation/state"][0])}


def answers_about(policy: Any, stamp: int, size: tuple[int, int] = (60, 80)) -> float:
    """Of the observation that the answer to this one is about."""
    image = np.zeros((*size, 3), np.uint8)
    observation = replace(seen(stamp), image=image, proprio=np.full(8, float(stamp)))
    inference = policy.step(observation, Timeline(1), CLOCK)
    assert inference.stamp_ns == stamp
    return round(inference.actions[0, 0] / 0.05, 6)


def test_an_answer_too_many_is_taken_for_no_other_observation_s() -> None:
    twice = threading.Event()

    def infer(message: Any) -> Any:
        if not twice.is_set():
            return plan(message)
        twice.clear()
        return plan(message), plan(message)

    with ForeignServer(infer) as server:
        policy = loaded(server)
        assert answers_about(policy, 2) == 2
        twice.set()
        with pytest.raises(Unreachable, match=r"answers out of step: .* was not asked for"):
            assert answers_about(policy, 3) == 3  # where the other one is not there yet
            wait_until(lambda: server.sent == len(server.seen) + 1)
            answers_about(policy, 4)
        assert [answers_about(policy, stamp) for stamp in (5, 6)] == [5, 6]


def test_who_sends_answers_ahead_is_refused_at_loading() -> None:
    with (
        ForeignServer(lambda message: (plan(message),) * 20) as server,
        pytest.raises(PolicyRefused, match="answers out of step"),
    ):
        loaded(server)


PROGRAM = """
from support.foreign_server import ForeignServer
from unit.policies.test_remote import plan
with ForeignServer(plan) as server:
    print(server.url, flush=True)
    input()
"""


def test_the_answer_to_a_request_that_took_too_long_to_send_is_not_the_next_one_s(tmp_path) -> None:
    table = tmp_path / "names.yaml"
    table.write_text("images: {main: image}\nstate: {observation/state: 8}\n"
                     "action_scale: [0.05, 0.05, 0.05, 1, 1, 1]\n")  # fmt: skip
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", PROGRAM], env=env, text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:  # fmt: skip
        try:
            assert server.stdout is not None
            options = {"names": str(table), "timeout_s": "1.0"}
            policy = load_policy(spec(server.stdout.readline().strip(), options=options))
            policy.reset(Instruction("stack", 1))
            assert answers_about(policy, 2) == 2
            server.send_signal(signal.SIGSTOP)
            with pytest.raises(Unreachable, match="does not answer"):
                answers_about(policy, 3, size=(3000, 3000))  # more than the kernel takes meanwhile
            server.send_signal(signal.SIGCONT)
            assert answers_about(policy, 4) == 4
        finally:
            server.kill()


def test_each_episode_is_a_connection() -> None:
    with ForeignServer(chunk) as server:
        policy = loaded(server)
        ask(policy, 1)
        before = len(server.headers)
        policy.reset(Instruction("stack", 2))
        ask(policy, 2)
        ask(policy, 3)
        assert len(server.headers) == before + 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"action": CHUNK}, "answers without 'actions': it has action"),
        ({"actions": CHUNK[:, :6]}, r"\[10, 6\]: \[10, 7\] is needed"),
        ({"actions": CHUNK[:4]}, r"\[4, 7\]: \[10, 7\] is needed"),
        ({"actions": CHUNK * np.nan}, "not finite"),
        ({"actions": "up"}, "no array of numbers"),
        ([1], "the message is a list"),
        (b"\xc1", "not a message"),
        (KeyError("observation/image_2"), "KeyError: 'observation/image_2'"),
    ],
)
def test_a_wrong_answer_is_an_invalid_action_with_one_line(answer, said) -> None:
    wrong = threading.Event()

    def infer(message: Any) -> Any:
        if wrong.is_set() and isinstance(answer, Exception):
            raise answer
        return answer if wrong.is_set() else {"actions": CHUNK}

    with ForeignServer(infer) as server:
        policy = loaded(server)
        wrong.set()
        with pytest.raises(InvalidAction, match=said) as found:
            ask(policy)
        assert "\n" not in str(found.value)
        wrong.clear()
        assert ask(policy, 8).stamp_ns == 8, "and it goes on"


def test_after_an_error_the_next_frame_waits_for_no_server_that_is_slow_to_close() -> None:
    wrong = threading.Event()

    def infer(message: Any) -> Any:
        if wrong.is_set():
            raise KeyError("observation/image_2")
        return {"actions": CHUNK}

    with ForeignServer(infer) as server:
        server.closes_after_s = 0.3
        policy = loaded(server)
        wrong.set()
        with pytest.raises(InvalidAction, match="KeyError"):
            ask(policy)
        wrong.clear()
        assert ask(policy, 8).stamp_ns == 8


def test_what_cannot_be_is_refused_at_loading_in_one_line(tmp_path) -> None:
    broken = tmp_path / "names.yaml"
    broken.write_text("images: {wrist: x}\n")
    with pytest.raises(PolicyRefused, match="ws://host:8000"):
        spec("host:8000")
    with pytest.raises(PolicyRefused, match="connection refused: nothing listens there"):
        load_policy(spec("ws://127.0.0.1:1"))
    with ForeignServer(chunk) as server:
        for words, said in (
            ({"options": {}}, "does not say what it calls its cameras"),
            ({"options": {"names": "liberia"}}, "neither a file nor one of libero, droid, aloha"),
            ({"options": {"names": str(broken)}}, "images has no 'main'"),
            ({"options": {"nams": "libero"}}, "policy_options has nams: of remote they are names"),
            ({"options": {**LIBERO, "timeout_s": "soon"}}, "timeout_s is 'soon'"),
            (
                {"options": {"names": "droid"}},
                "8 values, joint_delta: give action_space",
            ),
        ):
            with pytest.raises(PolicyRefused, match=said):
                load_policy(spec(server.url, **words))
    with (
        ForeignServer(lambda _: {"actions": CHUNK[:, :3]}) as server,
        pytest.raises(PolicyRefused, match=r"\[10, 3\]: \[N, 7\] is needed"),
    ):
        load_policy(spec(server.url))


def test_its_answers_are_timed_at_loading_as_a_model_s() -> None:
    with ForeignServer(chunk) as server:
        settings = spec(server.url, warmup_count=2)
        ready = warm_up(load_policy(settings), settings, 1, CLOCK)
    assert ready.inference_p99_ms > 0


def test_the_token_of_the_environment_is_sent(monkeypatch) -> None:
    monkeypatch.setenv("VLA_ROS_TOKEN", "secret")
    with ForeignServer(chunk) as server:
        load_policy(spec(server.url))
        assert server.headers == ["Api-Key secret"]


def test_it_needs_no_torch() -> None:
    code = (
        "import sys; import vla_ros.policies.remote.policy, vla_ros.serve.server;"
        "sys.exit(any(m in sys.modules for m in ('torch', 'mujoco', 'rclpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
