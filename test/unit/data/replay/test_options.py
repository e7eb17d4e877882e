"""What the options of `vla-ros record` and `vla-ros replay` mean for the nodes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from vla_ros.cli.main import make_parser
from vla_ros.cli.record import node_arguments
from vla_ros.cli.replay import check
from vla_ros.core.errors import UserError
from vla_ros.core.extensions import POLICIES
from vla_ros.data.run_info import RunInfo
from vla_ros.ros.nodes.replay import frame_range
from vla_ros.ros.nodes.replay import prepare as prepare_module
from vla_ros.ros.nodes.replay.prepare import graph_of, needs_of


def parsed(*words):
    return make_parser(words[0])[0].parse_args(words)


def policy(*words, recorded=None, compressed=False, camera_hz=20.0):
    args = parsed("replay", "bag", *words)
    recorded = {"policy": "zero"} if recorded is None else recorded
    spec = graph_of(args, check(args) or "lockstep", recorded, compressed, camera_hz)
    return spec.node("policy")


def test_options_of_record_become_parameters_of_the_node(tmp_path):
    words = node_arguments(
        parsed("record", "-o", str(tmp_path / "run"), "--no-flight", "-r", "image=/cam/color")
    )
    text = " ".join(words)
    assert f'-p output:="{tmp_path}/run"' in text
    assert "-p flight:=false" in text
    assert "-r image:=/cam/color" in text
    assert "recorder.yaml" in text
    extra = node_arguments(parsed("record", "--topic", "/tf:tf2_msgs/msg/TFMessage"))
    assert 'extra_topics:="/tf tf2_msgs/msg/TFMessage"' in " ".join(extra)
    for wrong in (("-o", str(tmp_path)), ("--topic", "/tf"), ("-r", "image")):
        with pytest.raises(UserError):
            node_arguments(parsed("record", *wrong))


def test_a_replay_runs_the_recorded_policy_unless_told_otherwise():
    recorded = {
        "policy": "vla", "engine_options": ["seed=7"], "max_age_s": 2.0,
        "start_type_description_service": 1,
    }  # fmt: skip
    node = policy("--decoding", "actionflow", "-p", "max_age_s=1", recorded=recorded)
    values = node.parameters
    assert (values["policy"], values["decoding"]) == ("vla", "actionflow")
    assert values["engine_options"] == ["seed=7"]
    assert (values["max_age_s"], type(values["max_age_s"])) == (1.0, float)
    assert (values["mode"], values["use_sim_time"]) == ("lockstep", True)
    assert "start_type_description_service" not in values


@pytest.mark.parametrize("recorded", [{}, {"engine_options": ["seed=7"]}])
def test_a_bag_that_does_not_say_whose_it_is_asks_for_the_policy(recorded):
    """It was compared with `zero` without a word, and every action was 'DIFFERENT'."""
    with pytest.raises(UserError, match=r"bag .*not say .*--policy") as caught:
        policy(recorded=recorded)
    assert "\n" not in str(caught.value)
    for given in (("--policy", "scripted"), ("-p", "policy=scripted")):
        assert policy(*given, recorded=recorded).parameters["policy"] == "scripted"


def test_the_mode_decides_the_clock_and_a_foreign_camera_the_rate():
    recorded = {"policy": "vla", "control_rate_hz": 20.0}
    values = policy("--rate", "2", recorded=recorded, camera_hz=30.0).parameters
    assert (values["mode"], values["use_sim_time"]) == ("realtime", False)
    assert (values["control_rate_hz"], values["camera_rate_hz"]) == (20.0, 60.0)
    foreign = {"recorded": {}, "camera_hz": 15.0, "compressed": True}
    values = policy("--policy", "zero", **foreign).parameters
    assert (values["control_rate_hz"], values["camera_rate_hz"]) == (15.0, 15.0)
    assert values["action_rate_hz"] == 15.0
    assert values["image_transport"] == "compressed"
    for name in ("action_rate_hz", "control_rate_hz"):
        assert policy("--mode", "fast").parameters[name] == 200.0


@pytest.mark.parametrize(
    ("words", "camera_hz", "rates"),
    [
        ((), 100.0, (20.0, 100.0)),  # a run in lock-step: a frame a control step
        ((), 20.0, (20.0, 20.0)),  # a run in real time, whose commands came between its frames
        (("--mode", "chunks"), 20.0, (20.0, 20.0)),
        (("--rate", "1"), 20.0, (20.0, 100.0)),
        (("--mode", "fast"), 20.0, (200.0, 200.0)),
        (("-p", "control_rate_hz=50"), 20.0, (20.0, 50.0)),
    ],
)
def test_a_replay_has_both_rates_of_the_run_where_its_frames_leave_time_for_them(
    words, camera_hz, rates
):
    recorded = {"policy": "vla", "action_rate_hz": 20.0, "control_rate_hz": 100.0}
    values = policy(*words, recorded=recorded, camera_hz=camera_hz).parameters
    assert (values["action_rate_hz"], values["control_rate_hz"]) == rates


def test_what_the_policy_needs_is_read_from_its_parameters():
    assert needs_of(policy("--policy", "zero")) == ()
    assert needs_of(policy("--policy", "scripted")) == ("ground_truth",)
    both = ("-p", "use_wrist_image=true", "-p", "use_joint_states=true")
    both_parts = ("joint_states", "wrist_image")
    assert needs_of(policy(*both)) == ("joint_states", "wrist_image")
    for checkpoint, needed in (("random:smolvla-small", both_parts), ("/nowhere", ())):
        assert needs_of(policy("--policy", "vla", "--checkpoint", checkpoint)) == needed


def test_policies_of_other_packages_are_taken_as_the_node_takes_them(monkeypatch):
    monkeypatch.setattr(
        "vla_ros.core.extensions.claims",
        lambda group: {"mine": [None]} if group == POLICIES else {},
    )
    given = ("--policy", "mine", "-p", "policy_options=[speed=2]")
    values = policy(*given).parameters
    assert (values["policy"], values["policy_options"]) == ("mine", ["speed=2"])
    with pytest.raises(UserError, match=r"policy is 'yours': there are zero, .* mine"):
        policy("--policy", "yours")
    with pytest.raises(UserError, match="no policy 'scriptd': did you mean 'scripted'"):
        policy("--policy", "scriptd")
    assert policy("--policy", "yours", "-p", "worker_python=/x").parameters["policy"] == "yours"
    assert policy("--policy", "lerobot").parameters["policy"] == "lerobot"


@pytest.mark.parametrize(
    ("text", "found"), [(None, (0, None)), ("3:", (3, None)), (":7", (0, 7)), ("2:2", (2, 2))]
)
def test_a_range_of_frames(text, found):
    assert frame_range(text) == found


@pytest.mark.parametrize("text", ["5", "a:b", "7:3", "-1:3"])
def test_no_range_of_frames(text):
    with pytest.raises(UserError, match="--frames"):
        frame_range(text)


@pytest.mark.parametrize(
    "words",
    [
        ("--rate", "0"),
        ("--mode", "fast", "--rate", "1"),
        ("--tolerance", "-1"),
        ("--tolerance", "nan"),
        ("--max-gap", "0"),
        ("--domain-id", "233"),
    ],
)
def test_options_that_cannot_be(words):
    with pytest.raises(UserError, match=words[-2]):
        check(parsed("replay", "bag", *words))


@pytest.mark.parametrize("option", ["--save", "--html"])
def test_what_is_to_be_written_is_looked_at_before_anything_runs(tmp_path, option):
    with pytest.raises(UserError, match="is a folder"):
        check(parsed("replay", "bag", option, str(tmp_path)))
    with pytest.raises(UserError, match="there is no folder"):
        check(parsed("replay", "bag", option, str(tmp_path / "a" / "b")))


@pytest.mark.parametrize(
    ("mode", "chunks", "depth", "given", "becomes"),
    [
        ("realtime", 5, 1, (), "chunks"),
        ("realtime", 0, 1, (), "lockstep"),  # it recorded none
        ("realtime", 5, 7, (), "lockstep"),  # a pipeline
        ("realtime", 5, 1, ("--golden", "g.json"), "lockstep"),
        ("realtime", 5, 1, ("--save", "g.json"), "lockstep"),
        ("lockstep", 5, 1, (), "lockstep"),
        (None, 5, 1, (), "lockstep"),  # another recorder's bag
    ],
)
def test_without_a_mode_the_run_decides(monkeypatch, mode, chunks, depth, given, becomes):
    """The shipped policy's own run in real time differed by 0.996 from itself in lock-step."""
    run = SimpleNamespace(pipeline_depth=depth)
    monkeypatch.setattr(prepare_module, "read_recorded", lambda *_: SimpleNamespace(run=run))
    topics = [
        SimpleNamespace(name=f"/{name}", kind=kind, count=count, latched=False)
        for name, kind, count in (
            ("image", "sensor_msgs/msg/Image", 9),
            ("policy/action_chunk", "vla_ros/msg/ActionChunk", chunks),
        )
    ]
    info = RunInfo(parameters={"policy": {"mode": mode} if mode else {}})
    bag = SimpleNamespace(run=info, topics=topics)
    args = parsed("replay", "bag", *given)
    assert check(args) == ""
    assert prepare_module.mode_like(args, bag) == becomes
