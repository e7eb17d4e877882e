"""Graph files: what is read, what is refused, and that outside parameters win."""

import pytest

from vla_ros.core.errors import UserError
from vla_ros.ros.bringup.environment import defaults, profile_name
from vla_ros.ros.bringup.graph import command_line, parameters_file
from vla_ros.ros.bringup.graph_file import GraphSpec, NodeSpec, node_names, parse_overrides


def write(tmp_path, text, name="my.up.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.fixture
def graph_file(tmp_path):
    write(
        tmp_path,
        "/**:\n  ros__parameters:\n    control_rate_hz: 20.0\n    mode: realtime\n"
        "    max_age_s: 0.5\n    cameras: {main: {topic: image}}\n",
        "mine.yaml",
    )
    return write(
        tmp_path,
        "log_level: warn\n"
        "parameters: {use_sim_time: true}\n"
        "nodes:\n"
        "  arm_policy:\n"
        "    executable: policy\n"
        "    parameter_files: [mine.yaml]\n"
        "    parameters: {mode: lockstep}\n"
        "    remappings: {image: /camera/image_raw}\n"
        "    namespace: arm\n"
        "    lifecycle: true\n"
        "  monitor: {}\n",
    )


def test_a_file_is_read_as_it_says(graph_file):
    policy, monitor = GraphSpec.load(graph_file).nodes
    assert (policy.full_name, policy.executable, policy.lifecycle) == (
        "/arm/arm_policy",
        "policy",
        True,
    )
    assert policy.parameters == {"use_sim_time": True, "mode": "lockstep"}
    assert policy.file_parameters()["cameras.main.topic"] == "image"
    assert (monitor.full_name, monitor.executable, monitor.log_level) == (
        "/monitor",
        "monitor",
        "warn",
    )


def test_a_parameter_file_may_say_the_types_of_its_values(tmp_path):
    """Lyrical's rcl reads these tags."""
    write(
        tmp_path,
        "policy:\n  ros__parameters:\n    max_age_s: !!float 1\n    device: !!str 0\n"
        "    warm_spare: !!bool yes\n    seed: !!int '7'\n"
        "    bounds_low: [!!float -1, !!float -2]\n",
        "typed.yaml",
    )
    path = write(tmp_path, "nodes:\n  policy:\n    parameter_files: [typed.yaml]\n")
    (policy,) = GraphSpec.load(path).nodes
    found = policy.file_parameters()
    assert found == {
        "max_age_s": 1.0, "device": "0", "warm_spare": True, "seed": 7, "bounds_low": [-1.0, -2.0],
    }  # fmt: skip
    assert isinstance(found["max_age_s"], float) and isinstance(found["bounds_low"][0], float)


def test_parameters_from_outside_win_and_keep_their_type(graph_file):
    given = parse_overrides(
        ["arm_policy.control_rate_hz=10", "arm_policy.max_age_s=1", "arm_policy.mode=x"]
    )
    policy = GraphSpec.load(graph_file, given).node("arm_policy")
    assert policy.parameters["control_rate_hz"] == 10.0
    assert isinstance(policy.parameters["control_rate_hz"], float)
    assert policy.parameters["max_age_s"] == 1.0
    assert policy.parameters["mode"] == "x"
    words = command_line(policy)
    assert words.index("--params-file") < words.index("control_rate_hz:=10.0")


def test_values_reach_the_command_line_as_yaml(graph_file):
    given = {"arm_policy": {"mode": "1.0"}, "monitor": {"use_sim_time": False}}
    graph = GraphSpec.load(graph_file, given)
    assert 'mode:="1.0"' in command_line(graph.node("arm_policy"))
    assert "use_sim_time:=false" in command_line(graph.node("monitor"))


def test_namespace_and_remappings_from_outside(graph_file):
    graph = GraphSpec.load(
        graph_file, namespace="/left/", remappings=["tf=b", "arm_policy:image:=/other"]
    )
    assert [node.full_name for node in graph.nodes] == ["/left/arm/arm_policy", "/left/monitor"]
    assert graph.node("arm_policy").remappings == {"image": "/other", "tf": "b"}
    assert graph.node("monitor").remappings == {"tf": "b"}
    assert "__ns:=/left/arm" in command_line(graph.node("arm_policy"))


@pytest.mark.parametrize(
    ("text", "needle"),
    [
        ("nodes: {}", "empty"),
        ("nodes: [a]", "nodes must be a mapping"),
        ("knots: {}", "unknown key 'knots'"),
        ("nodes: {policy: {paramters: {}}}", "unknown key 'paramters'"),
        ("nodes: {camera: {}}", "no node 'camera'"),
        ("nodes: {policy: {parameter_files: [none.yaml]}}", "none.yaml"),
        ("nodes: {policy: {parameter_files: policy.yaml}}", "must be a list"),
        ("nodes: {policy: {lifecycle: maybe}}", "true or false"),
        ("nodes: {policy: {log_level: loud}}", "loud"),
        ("nodes: {policy: {namespace: 1bad}}", "namespace 1bad: parts of letters"),
        ("nodes:\n  policy: {\n", "line 3: not YAML"),
        ("nodes: \0", "not YAML: .*#x0000"),
        ("nodes: !!python/object/apply:os.system [true]", "not YAML"),
        ("- a", "must be a mapping"),
    ],
)
def test_a_bad_file_is_one_line_that_names_it(tmp_path, text, needle):
    path = write(tmp_path, text)
    with pytest.raises(UserError, match=needle) as caught:
        GraphSpec.load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_text(tmp_path):
    path = tmp_path / "x.up.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"x.up.yaml is no text in UTF-8"):
        GraphSpec.load(path)


def test_formats_of_weights_and_the_gate_reach_the_shipped_policy_node():
    """As policy.launch.py's arguments of these names do; the value has an equals sign itself."""
    given = parse_overrides(
        ["policy.weights=decoder=int4,head=int8", "policy.require_verified=true"]
    )
    policy = GraphSpec.load("policy", given).node("policy")
    assert policy.values()["weights"] == "decoder=int4,head=int8"
    assert policy.values()["require_verified"] is True
    assert "require_verified:=true" in command_line(policy)


@pytest.mark.parametrize("item", ["x", "x=1", "policy=1", ".a=1", "policy.=1"])
def test_an_override_without_node_and_parameter_is_refused(item):
    with pytest.raises(UserError, match=r"NODE\.PARAMETER=VALUE"):
        parse_overrides([item])


def test_overrides_are_read_as_yaml():
    assert parse_overrides(["n.a=3", "n.b=x y", "n.c=[1.0, 2.0]", "n.d=", "n.e='3'", "m.a=no"]) == {
        "n": {"a": 3, "b": "x y", "c": [1.0, 2.0], "d": "", "e": "3"},
        "m": {"a": False},
    }


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ("bridge.image_size=2.5", "bridge.image_size: must be a whole number such as 256, not 2.5"),
        ("bridge.auto_reset=maybe", "bridge.auto_reset: must be true or false, not 'maybe'"),
        ("bridge.image_delay_ms=soon", "bridge.image_delay_ms: must be a number such as 0.0"),
        ("policy.center_crop=true", "policy.center_crop: must be text such as 'auto', not True"),
        ("policy.bounds_low=1", "policy.bounds_low: must be a list such as [-0.05"),
        ("bridge.image_size=", "bridge.image_size: must be a whole number such as 256, not ''"),
    ],
)
def test_a_value_of_another_type_is_refused(item, says):
    """rcl drops a value whose type is not that of the parameter file, without a word."""
    with pytest.raises(UserError) as caught:
        GraphSpec.load("sim", parse_overrides([item]))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_value_that_means_the_type_becomes_it():
    given = ["bridge.task=3", "bridge.image_delay_ms=1e2", "policy.bounds_low=[0, -1, 0, 0, 0, 0]"]
    graph = GraphSpec.load("sim", parse_overrides(given))
    assert graph.node("bridge").parameters["task"] == "3"  # of a suite of LIBERO
    assert graph.node("bridge").parameters["image_delay_ms"] == 100.0
    assert all(type(value) is float for value in graph.node("policy").parameters["bounds_low"])


def test_shipped_graphs_by_their_short_name():
    assert [node.name for node in GraphSpec.load("policy").nodes] == ["monitor", "policy"]
    assert GraphSpec.load("sim.up.yaml").node("policy").lifecycle
    assert {"policy", "monitor", "bridge"} <= set(node_names())


@pytest.mark.parametrize(
    ("rclpy", "wanted"), [("7.1.6", "FASTRTPS"), ("9.1.2", "FASTDDS"), ("odd", "FASTDDS")]
)
def test_of_wheels_the_version_tells_where_fast_dds_looks(monkeypatch, rclpy, wanted):
    monkeypatch.setattr("vla_ros.ros.bringup.environment.version", lambda name: rclpy)
    assert profile_name({}) == f"{wanted}_DEFAULT_PROFILES_FILE"
    assert profile_name({"ROS_DISTRO": "humble"}).startswith("FASTRTPS"), "a sourced one counts"


def test_the_environment_fills_gaps_and_changes_nothing():
    empty = defaults({})
    assert empty["ROS_AUTOMATIC_DISCOVERY_RANGE"] == "LOCALHOST"
    assert empty["FASTDDS_DEFAULT_PROFILES_FILE"].endswith("fastdds_localhost.xml")
    mine = {"FASTDDS_DEFAULT_PROFILES_FILE": "/x.xml", "ROS_AUTOMATIC_DISCOVERY_RANGE": "SUBNET"}
    assert not set(mine) & set(defaults(mine))
    assert "FASTRTPS_DEFAULT_PROFILES_FILE" not in empty, (
        "Fast DDS 3 complains of it at every start"
    )
    older = defaults(mine | {"ROS_DISTRO": "jazzy"})
    assert older["FASTRTPS_DEFAULT_PROFILES_FILE"] == "/x.xml", "Fast DDS 2 is told too"
    assert "AMENT_PREFIX_PATH" not in defaults({"ROS_DISTRO": "kilted"})
    assert "ROS_AUTOMATIC_DISCOVERY_RANGE" not in defaults({"ROS_LOCALHOST_ONLY": "1"})


def test_a_spectator_is_added_to_a_file_and_takes_its_remappings_and_parameters(graph_file):
    more = {"view": {"parameter_files": ["view.yaml"], "spectator": True}}
    graph = GraphSpec.load(
        graph_file, {"view": {"port": 9000}}, namespace="left", remappings=["image=/cam"], more=more
    )
    view = graph.node("view")
    assert (view.spectator, view.full_name, view.executable) == (True, "/left/view", "view")
    assert view.values()["port"] == 9000
    assert view.remappings == {"image": "/cam"}
    assert not any(node.spectator for node in graph.nodes if node.name != "view")
    assert [node.name for node in graph.nodes][1:] == ["arm_policy", "monitor"]


def test_a_given_parameter_wins_over_a_file_s_entry_of_one_node(tmp_path):
    """`-p` alone is of /**, which loses to /**/NAME."""
    rclpy = pytest.importorskip("rclpy")
    file = tmp_path / "own.yaml"
    file.write_text("/**/probe:\n  ros__parameters: {task: file, seed: 1}\n", encoding="utf-8")
    spec = NodeSpec("probe", "bridge", (file,), {"task": "given"}, namespace="left")
    told = parameters_file(spec)
    words = [*command_line(spec), "--params-file", str(told)]
    context = rclpy.Context()
    rclpy.init(args=words[words.index("--ros-args") :], context=context)
    node = rclpy.create_node(
        "probe", context=context, automatically_declare_parameters_from_overrides=True
    )
    found = {name: node.get_parameter(name).value for name in ("task", "seed")}
    node.destroy_node()
    rclpy.shutdown(context=context)
    told.unlink()
    assert found == {"task": "given", "seed": 1}


@pytest.mark.parametrize(
    ("graph", "file", "says"),
    [
        ("parameters: {max_age: 1.0}", "", r"my.up.yaml, line 2: node policy has no .*'max_age_s'"),
        ("", "policy:\n  ros__parameters:\n    rate: 1\n    mode: x\n",
         r"mine.yaml, line 3: node policy has no parameter 'rate'"),
        ("", "/**/policy:\n  ros__parameters:\n    velocity_limit: [1.0]\n",
         r"mine.yaml, line 3: .*'velocity_limit': did you mean 'velocity_limits'"),
        ("", "/**:\n  ros__parameters:\n    cameras.side.topic: x\n", r"'cameras.side.topic'"),
        ("parameters: {max_age_s: old}", "", "policy.max_age_s: must be a number such as 0.5"),
        ("", "vla_policy:\n  ros__parameters:\n    max_age_s: 0.3\n",
         r"mine.yaml is for vla_policy, and this node is /policy: name .* policy or /\*\*"),
        ("namespace: arm", "policy:\n  ros__parameters:\n    max_age_s: 0.3\n",
         r"is for policy, and this node is /arm/policy"),
    ],
)  # fmt: skip
def test_names_that_no_node_has_are_refused_before_anything_starts(tmp_path, graph, file, says):
    write(tmp_path, file, "mine.yaml")
    path = write(
        tmp_path, f"nodes:\n  policy: {{parameter_files: [mine.yaml]{', ' * bool(graph)}{graph}}}\n"
    )
    with pytest.raises(UserError, match=says):
        GraphSpec.load(path)


def test_a_role_of_a_camera_brings_its_parameters(tmp_path):
    text = "policy:\n  ros__parameters:\n    camera_roles: [side]\n    cameras.side.topic: x\n"
    write(tmp_path, text, "mine.yaml")
    (spec,) = GraphSpec.load(
        write(tmp_path, "nodes:\n  policy: {parameter_files: [mine.yaml]}\n")
    ).nodes
    assert spec.values()["cameras.side.topic"] == "x"
