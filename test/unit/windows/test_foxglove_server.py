"""What a client of Foxglove's protocol is offered and sent, by a plain web socket client."""

import sys
import threading

import pytest

REASON = "foxglove-sdk is not installed: pip install '.[foxglove]'"
pytest.importorskip("rosbags", reason="rosbags is not installed: pip install '.[replay]'")

from rosbags.typesys import get_types_from_msg

from support.bags import START, STORE, action, task
from vla_ros.cli.main import main
from vla_ros.recording.typestore import ros_types
from vla_ros.windows.foxglove_server import FoxgloveServer, Wish, _text_of, definition

COMMAND = "vla_ros/msg/ActionCommand"


@pytest.fixture
def served():
    pytest.importorskip("foxglove", reason=REASON)
    pytest.importorskip("websockets", reason="websockets is not installed")
    open_servers = []

    def serve(say=""):
        rung = threading.Event()
        open_servers.append(FoxgloveServer("127.0.0.1", 0, rung.set, say))
        return open_servers[-1], rung

    yield serve
    for server in open_servers:
        server.close()


def test_a_message_reaches_the_client_with_all_it_takes_to_read_it(served):
    from support.foxglove import connected

    server, rung = served()
    assert server.offer("/policy/action", COMMAND)
    assert not server.offer("/other", "strange_msgs/msg/Thing")
    entry = action(START, [0.5, 0, 0, 0, 0, 0, 1.0])
    sent = bytes(STORE.serialize_cdr(entry.content, COMMAND))
    with connected(server.port) as app:
        app.until(lambda: "/policy/action" in app.channels)
        assert app.info["capabilities"] == []
        channel = app.channels["/policy/action"]
        assert (channel["encoding"], channel["schemaName"]) == ("cdr", COMMAND)
        number = app.subscribe("/policy/action")
        assert rung.wait(30)
        assert server.take() == Wish("/policy/action")
        server.send("/policy/action", sent)
        got = app.message(number)
        rung.clear()
        app.unsubscribe("/policy/action")
        assert rung.wait(30)
        assert server.take() == Wish("/policy/action", wanted=False)
        server.withdraw("/policy/action")
        app.until(lambda: "/policy/action" not in app.channels)
    # Read with nothing but what the client was told: ROS's own types and the schema.
    store = ros_types()
    types = get_types_from_msg(channel["schema"], COMMAND)
    store.register({k: v for k, v in types.items() if k not in store.fielddefs})
    assert list(store.deserialize_cdr(got, COMMAND).action) == [0.5, 0, 0, 0, 0, 0, 1.0]


def test_a_client_says_the_instruction_only_where_it_may_and_nothing_else(served):
    from support.foxglove import connected

    server, rung = served(say="/instruction")
    with connected(server.port) as app:
        app.until(lambda: bool(app.info))
        assert app.info["capabilities"] == ["clientPublish"]
        app.say("/policy/action", "no")
        app.say("/instruction", "push the cube")
        assert rung.wait(30)
        assert server.take() == Wish("/instruction", text="push the cube")
        assert server.take() is None
    mute, silent = served()
    with connected(mute.port) as app:
        app.until(lambda: bool(app.info))
        app.say("/instruction", "push the cube")
        assert not silent.wait(1.0)
        assert mute.take() is None


def test_a_client_s_bytes_may_be_anything():
    text = task(START, "lift it").content
    assert _text_of("cdr", bytes(STORE.serialize_cdr(text, "std_msgs/msg/String"))) == "lift it"
    assert _text_of("json", b'{"data": "lift it"}') == "lift it"
    for encoding, data in (("cdr", b"\x00"), ("json", b"[]"), ("json", b'{"data": 3}')):
        assert _text_of(encoding, data) is None


def test_definitions_say_all_that_a_type_is_made_of():
    text = definition(COMMAND)
    assert "float64[] action" in text
    assert "MSG: vla_ros/Stages" in text.replace("/msg/", "/")
    assert definition("strange_msgs/msg/Thing") is None


def test_without_the_sdk_one_line_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "foxglove", None)
    assert main(["foxglove"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "foxglove-sdk is missing" in line
    assert main(["foxglove", "--port", "70000"]) == 2
    assert "--port 70000" in capsys.readouterr().err
