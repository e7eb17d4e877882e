"""launch/*.launch.py and config/*.up.yaml start the same nodes with the same parameter files.

Read from the source of the launch files, so that it also runs where launch is not installed.
"""

import ast
import py_compile
import re
from importlib import import_module
from pathlib import Path

import pytest
import yaml

from support.launch_files import own_arguments, tree
from vla_ros.core.resources import config_path, share
from vla_ros.data.episodes.records import UNGATED
from vla_ros.ros.bringup.graph_file import GraphSpec, node_names

LAUNCH = sorted((share() / "launch").glob("*.launch.py"))
PAIRS = {
    "policy.launch.py": "policy.up.yaml",
    "sim.launch.py": "sim.up.yaml",
    "libero.launch.py": "libero.up.yaml",
}
INCLUDED = {
    "policy.launch.py": [],
    "sim.launch.py": ["policy.launch.py"],
    "libero.launch.py": ["sim.launch.py", "policy.launch.py"],
}
# Files of an included launch file's defaults, in whose place another one is given.
REPLACED = {"libero.launch.py": {"policy_sim.yaml"}}


def calls(name: str, *functions: str) -> list[dict[str, object]]:
    """The constant keyword arguments of every call of these functions, includes followed."""
    found = []
    for file in (name, *INCLUDED[name]):
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in functions:
                keywords = {k.arg: k.value for k in node.keywords if k.arg}
                found.append(
                    {k: v.value for k, v in keywords.items() if isinstance(v, ast.Constant)}
                )
    return found


def parameter_files(name: str) -> set[str]:
    return {
        node.value
        for file in (name, *INCLUDED[name])
        for node in ast.walk(tree(file))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.endswith(".yaml")
    }


def test_all_launch_files_are_there():
    # replay.launch.py starts `vla-ros replay`, which has no graph file.
    assert [path.name for path in LAUNCH] == sorted([*PAIRS, "replay.launch.py"])


@pytest.mark.parametrize("path", LAUNCH, ids=lambda path: path.name)
def test_a_launch_file_compiles(path, tmp_path):
    py_compile.compile(str(path), cfile=str(tmp_path / "out.pyc"), doraise=True)


@pytest.mark.parametrize("path", LAUNCH, ids=lambda path: path.name)
def test_no_environment_is_set_for_what_others_launch(path):
    """Every process of ours is given its own; `vla-ros` itself sees to what it needs."""
    found = {
        getattr(node.func, "id", ""): {k.arg for k in node.keywords}
        for node in ast.walk(tree(path.name))
        if isinstance(node, ast.Call)
    }
    assert "SetEnvironmentVariable" not in found
    source = path.read_text()
    for kind in {"Node"} & found.keys():
        assert "additional_env" in found[kind] or "**common" in source, kind
    assert ("additional_env" in source) == (path.name != "libero.launch.py")


def test_the_page_names_every_argument():
    """docs/reference/launch.md, file by file."""
    page = (Path(__file__).parents[2] / "docs/reference/launch.md").read_text()
    for path in LAUNCH:
        section = page.split(f"## {path.name}\n")[1].split("\n## ")[0]
        named = {cell for line in section.splitlines() if line.startswith("| `")
                 for cell in re.findall(r"`(\w+)`", line.split("|")[1])}  # fmt: skip
        assert named == own_arguments(path.name), path.name


@pytest.mark.parametrize("launch", PAIRS)
def test_the_same_nodes_and_lifecycle(launch):
    graph = GraphSpec.load(PAIRS[launch])
    started = {(c["name"], c["executable"]) for c in calls(launch, "Node")}
    assert started == {(node.name, f"{node.executable}_node") for node in graph.nodes}
    # policy.launch.py, which all of them are or include, brings up that one.
    assert [node.name for node in graph.nodes if node.lifecycle] == ["policy"]
    assert (share() / "launch" / "policy.launch.py").read_text().count("bring_up(given)") == 1


@pytest.mark.parametrize("launch", PAIRS)
def test_the_same_parameter_files(launch):
    graph = GraphSpec.load(PAIRS[launch])
    used = {path.name for node in graph.nodes for path in node.parameter_files}
    assert parameter_files(launch) == used | REPLACED.get(launch, set())
    assert all(config_path(name).is_file() for name in used)


@pytest.mark.parametrize(
    ("launch", "module"), [("policy", "policy.parameters"), ("sim", "bridge.node")]
)
def test_launch_arguments_are_parameters_of_the_node(launch, module):
    """Read by name from its table, which has their types, texts and choices."""
    pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")
    names = {row.name for row in import_module(f"vla_ros.ros.nodes.{module}").TABLE}
    assigned = (node for node in tree(f"{launch}.launch.py").body if isinstance(node, ast.Assign))
    tables = {getattr(node.targets[0], "id", ""): node.value for node in assigned}
    overrides = ast.literal_eval(tables["OVERRIDES"])
    assert overrides and set(overrides) <= names


def test_lockstep_is_sim_with_simulated_time():
    """config/lockstep.up.yaml differs from sim.up.yaml in nothing but the mode and the clock."""
    sim, lockstep = GraphSpec.load("sim"), GraphSpec.load("lockstep")
    for ours, theirs in zip(lockstep.nodes, sim.nodes, strict=True):
        assert (ours.name, ours.parameter_files) == (theirs.name, theirs.parameter_files)
        assert ours.parameters.items() >= theirs.parameters.items()
        assert ours.parameters.keys() - theirs.parameters.keys() <= {"mode", "use_sim_time"}
        assert ours.parameters.get("use_sim_time", False) is (ours.name != "bridge")


@pytest.mark.parametrize("graph", ["sim", "lockstep", "libero"])
def test_one_episode_follows_another(graph):
    """With launch and without."""
    assert GraphSpec.load(graph).node("bridge").parameters["auto_reset"] is True
    source = (share() / "launch" / "sim.launch.py").read_text()
    argument = source[source.index('"auto_reset",') :]
    assert argument.split("default_value=")[1].startswith('"true"')


def test_what_libero_changes_are_parameters_of_its_nodes():
    protocol = {"action_rate_hz", "detect_frozen", *UNGATED}
    for node in GraphSpec.load("libero").nodes:
        plain = yaml.safe_load(node.parameter_files[0].read_text())["/**"]["ros__parameters"]
        assert set(node.file_parameters()) == set(plain)
        differs = {name for name, value in node.file_parameters().items() if value != plain[name]}
        assert differs == {
            "bridge": {"environment", "suite", "task"},
            "policy": protocol,
            "monitor": set(),
        }.get(node.name)
        if node.name == "policy":
            assert {name: node.file_parameters()[name] for name in UNGATED} == UNGATED


def test_every_node_has_an_executable_and_every_shipped_graph_loads():
    for path in sorted((share() / "config").glob("*.up.yaml")):
        for node in GraphSpec.load(path).nodes:
            assert node.executable in node_names()


def test_the_executables_are_where_ros2_run_looks():
    """Only after an installation: pip puts no console scripts into lib/<package>."""
    prefix = Path(share()).parents[1]
    folder = prefix / "lib" / "vla_ros"
    if (share() / "setup.py").is_file():
        pytest.skip("running from the checkout: nothing is installed")
    assert {path.name for path in folder.iterdir()} >= {f"{name}_node" for name in node_names()}
