"""config/security: what every enclave may say and hear, held to what the nodes open.

A topic, service or client that is new in a node fails here until its policy has it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from support.endpoints import UNREADABLE, endpoints_of
from support.sros2 import Enclave, Endpoint, absolute, read_policy
from vla_ros.core.resources import config_path
from vla_ros.core.video import VIDEOS
from vla_ros.data.run_info import TOPICS as RECORDED

FOLDER = config_path("security/governance.xml").parent
FILES = sorted(path for path in FOLDER.glob("*.xml") if path.name != "governance.xml")
ROOT = Path(__file__).resolve().parents[4]
NODES = ROOT / "vla_ros" / "ros" / "nodes"
#: nodes that have no file of their own, since they hear everything
SPECTATORS = {"rerun"}
#: no keys are made of these where there is a robot
SIMULATED = {"bridge", "replay"}

CAMERAS = ("image", "wrist_image")
IMAGES = ("image", "image/compressed", "wrist_image", "wrist_image/compressed")
OUTPUTS = (
    *("twist", "left_twist", "gripper", "left_gripper"),
    *("joint_trajectory", "positions", "joint_commands", "gripper_positions"),
    *("cartesian_reference", "left_cartesian_reference"),
    *("left_joint_trajectory", "left_positions", "left_joint_commands", "left_gripper_positions"),
)
TAKEOVER = ("action", "twist", "left_twist", "gripper", "left_gripper", "joint_states")
#: What the source does not show: by node and file, how many such calls there are, and what they
#: open, as the words of support.sros2 and names.
COMPUTED: dict[tuple[str, str], tuple[int, dict[str, tuple[str, ...]]]] = {
    ("bridge", "convert.py"): (1, {"publish": ("camera_info", "wrist_camera_info")}),
    ("bridge", "node.py"): (
        2,
        {"publish": ("image", "wrist_image"), "request": ("policy/reset",)},
    ),
    # A goal's success_topic has any name: who uses one adds it to policy.xml.
    ("policy", "goals.py"): (2, {}),
    ("policy", "cameras.py"): (1, {"subscribe": (*IMAGES, "left_image")}),
    ("policy", "inputs.py"): (
        4,  # poses and joints of arms, and the helper itself, twice
        {
            "subscribe": (
                *("measured_pose", "left_measured_pose"),
                *("joint_states", "left_joint_states"),
            )
        },
    ),
    ("policy", "outputs.py"): (
        6,  # the helpers themselves, and what they are asked for
        {
            "publish": tuple(f"~/{name}" for name in OUTPUTS),
            "call": ("~/hand_cmd",),
        },
    ),
    # The person's commands have any name: who uses shadow_topic adds it to policy.xml.
    ("policy", "shadow.py"): (1, {}),
    ("policy", "takeover.py"): (
        3,  # the helper itself, a gripper, an arm
        {"subscribe": tuple(f"~/takeover/{name}" for name in TAKEOVER)},
    ),
    # The cloud has any name: who shows one adds it to view.xml.
    ("view", "cloud.py"): (1, {}),
    ("recorder", "node.py"): (
        5,
        {
            "subscribe": tuple(name for name, _ in RECORDED),
            "request": tuple(
                f"{node}/{verb}_parameters"
                for node in ("policy", "bridge", "monitor")
                for verb in ("list", "get")
            ),
        },
    ),
    ("replay", "driver.py"): (1, {"publish": (*IMAGES, "joint_states", "ground_truth")}),
    ("view", "node.py"): (
        2,
        {
            "subscribe": IMAGES,
            "request": tuple(
                f"policy/{w}" for w in ("stop", "resume", "recover", "reset", "release")
            ),
        },
    ),
}
PARAMETERS = (
    *("describe_parameters", "get_parameter_types", "get_parameters", "list_parameters"),
    *("set_parameters", "set_parameters_atomically"),
)
OF_EVERY_NODE = (
    *(("publish", name) for name in ("/rosout", "/parameter_events")),
    ("subscribe", "/clock"),
    *(("reply", f"~/{name}") for name in (*PARAMETERS, "get_type_description")),
)
LIFECYCLE = (
    ("publish", "~/transition_event"),
    *(("reply", f"~/get_{n}") for n in ("state", "available_states", "available_transitions")),
    *(("reply", f"~/{n}") for n in ("change_state", "get_transition_graph")),
)
#: whatever moves a robot, and what would if somebody took it for a command
MOVES = (
    *("policy/action", "policy/action_chunk", "policy/twist", "policy/left_twist"),
    *("policy/gripper", "policy/left_gripper", "policy/joint_trajectory", "policy/positions"),
    "policy/gripper_positions",
    "policy/joint_commands",
    "policy/cartesian_reference",
)


@pytest.fixture(scope="module")
def enclaves() -> dict[str, Enclave]:
    return {path.stem: read_policy(path) for path in FILES}


def writers(enclaves: dict[str, Enclave], how: str, name: str) -> set[str]:
    topics = Endpoint(how, absolute(name)).writes()
    return {who for who, one in enclaves.items() if any(map(one.may_write, topics))}


def opened(node: str) -> list[Endpoint]:
    """What a node opens, by its source and by COMPUTED."""
    folder = NODES / node
    found, unread = [], dict.fromkeys([file for who, file in COMPUTED if who == node], 0)
    for file, endpoint in endpoints_of(folder, node):
        if endpoint.name != UNREADABLE:
            found.append(endpoint)
        else:
            unread[file] = unread.get(file, 0) + 1
    for file, count in unread.items():
        told, names = COMPUTED.get((node, file), (0, {}))
        assert count == told, f"{node}/{file}: {count} computed names; tell them in COMPUTED"
        found += [Endpoint(h, absolute(n, "/", node)) for h in names for n in names[h]]
    if any("Diagnostics(" in p.read_text(encoding="utf-8") for p in folder.rglob("*.py")):
        found.append(Endpoint("publish", "/diagnostics"))
    return found


def test_every_file_is_one_enclave_of_its_name(enclaves: dict[str, Enclave]) -> None:
    assert {name: (one.path, one.node) for name, one in enclaves.items()} == {
        name: (f"/vla_ros/{name}", name) for name in enclaves
    }
    nodes = {p.parent.name for p in NODES.glob("*/node.py")} | {"replay"}
    assert nodes - SPECTATORS | {"operator", "robot", "spectator"} == set(enclaves)


@pytest.mark.parametrize("node", ["policy", "monitor", "bridge", "recorder", "view", "replay"])
def test_a_node_may_open_what_it_opens(enclaves: dict[str, Enclave], node: str) -> None:
    endpoints = opened(node)
    own = (*OF_EVERY_NODE, *(LIFECYCLE if node == "policy" else ()))
    endpoints += [Endpoint(how, absolute(name, "/", node)) for how, name in own]
    assert len(endpoints) > len(own)
    denied = {f"{e.how} {e.name}": lack for e in endpoints if (lack := enclaves[node].lacks(e))}
    assert not denied, f"config/security/{node}.xml"


@pytest.mark.parametrize("node", sorted(SPECTATORS))
def test_a_spectator_may_hear_everything_and_say_nothing(
    enclaves: dict[str, Enclave], node: str
) -> None:
    one = enclaves["spectator"]
    for how, name in OF_EVERY_NODE:
        assert not one.lacks(Endpoint(how, absolute(name, "/", node)))
    assert not one.lacks(Endpoint("subscribe", "/policy/action"))
    assert {t for t in one.writes if t.startswith("rt")} == {"rt/rosout", "rt/parameter_events"}
    assert not {t for t in one.writes if t.startswith("rq")}


def test_no_policy_allows_what_nobody_opens(enclaves: dict[str, Enclave]) -> None:
    """Leftovers of a topic that went are permissions that nobody looks at."""
    for node in ("policy", "monitor", "bridge", "recorder", "view", "replay"):
        own = (*OF_EVERY_NODE, *(LIFECYCLE if node == "policy" else ()))
        made = [*opened(node), *(Endpoint(h, absolute(n, "/", node)) for h, n in own)]
        if node == "policy":  # of tf2's listener, with end_effector_frame; any camera's role
            made += [Endpoint("subscribe", name) for name in ("/tf", "/tf_static")]
            made += [Endpoint("subscribe", f"/left_image/{one}") for one in ("compressed", *VIDEOS)]
        if node in ("policy", "recorder"):  # where their messages are installed
            made += [Endpoint("subscribe", f"/{c}/{t}") for c in CAMERAS for t in VIDEOS]
        for allowed in enclaves[node].allowed:
            alone = Enclave("", node, (allowed,))
            assert any(not alone.lacks(e) for e in made if e.how == allowed.how), allowed


@pytest.mark.parametrize("name", MOVES)
def test_only_the_policy_says_what_moves_the_robot(enclaves: dict[str, Enclave], name: str) -> None:
    assert writers(enclaves, "publish", name) == {"policy"}


def test_only_the_policy_gives_grippers_goals(enclaves: dict[str, Enclave]) -> None:
    assert writers(enclaves, "call", "policy/hand_cmd") == {"policy"}


@pytest.mark.parametrize("name", ["policy/status", "policy/latency"])
def test_nobody_else_speaks_for_the_policy(enclaves: dict[str, Enclave], name: str) -> None:
    assert writers(enclaves, "publish", name) == {"policy"}
    for service in ("policy/stop", "policy/change_state", "policy/set_parameters"):
        assert writers(enclaves, "reply", service) == {"policy"}


def test_who_may_do_what_to_a_robot(enclaves: dict[str, Enclave]) -> None:
    def may(how: str, name: str) -> set[str]:
        return writers(enclaves, how, name) - SIMULATED

    assert may("publish", "instruction") == {"operator", "view"}
    assert may("call", "policy/execute_instruction") == {"operator"}
    for service in ("policy/stop", "policy/resume", "policy/recover", "policy/reset"):
        assert may("request", service) == {"operator", "view"}
    for service in ("change_state", "set_parameters", "set_parameters_atomically"):
        assert may("request", f"policy/{service}") == {"operator"}
    assert may("request", "policy/get_parameters") == {"operator", "view", "recorder"}
    assert may("publish", "image") == may("publish", "joint_states") == {"robot"}
    assert may("publish", "/clock") == set()


WORDS = {
    "in": "subscribe",
    "out": "publish",
    "goals out": "call",
    "std_srvs/Trigger": "reply",
    "moveit_pro_ml_msgs/GetActionChunk": "reply",
    "vla_ros/ExecuteInstruction": "execute",
}


def topics_page() -> list[tuple[str, str]]:
    """Direction and name of each row of the policy's tables in docs/reference/topics.md."""
    text = (ROOT / "docs" / "reference" / "topics.md").read_text(encoding="utf-8")
    section = text.split("## policy (lifecycle node)")[1].split("\n### ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    found = []
    for row in rows:
        names = re.findall(r"`([~\w/<>]+)`", row[0].split("for each of")[0])
        where = row[-1].split(",")[0].split(":")[0].split(";")[0].strip()
        how = WORDS.get(where) or WORDS.get(row[1], "")
        found += [(how, name) for name in names if how]
    return found


def test_the_page_of_topics_says_the_same(enclaves: dict[str, Enclave]) -> None:
    rows = topics_page()
    assert {how for how, _ in rows} == {"subscribe", "publish", "call", "reply", "execute"}
    assert len(rows) > 25
    for how, name in rows:
        spelled = name.replace("ROLE", "left").replace("<gripper>", "hand")
        lack = enclaves["policy"].lacks(Endpoint(how, absolute(spelled, "/", "policy")))
        assert not lack, f"{how} {name}"


def test_the_policys_page_tells_every_topic_it_opens() -> None:
    """The other way: what is opened and stands in no table is no public topic, or forgotten."""
    told = {name.replace("ROLE", "left").replace("<gripper>", "hand") for _, name in topics_page()}
    told = {absolute(name, "/", "policy") for name in told} | {"/diagnostics"}
    same = {"/wrist_image/compressed", "/image/compressed"}  # told as one of a list, or by a prefix
    same |= {"/measured_pose", "/left_measured_pose", "/policy/left_gripper", "/policy/left_twist"}
    assert {e.name for e in opened("policy")} - told <= same


def test_governance_lets_nobody_in_unknown() -> None:
    root = ElementTree.parse(FOLDER / "governance.xml").getroot()
    values = {e.tag: (e.text or "").strip() for e in root.iter() if len(e) == 0}
    assert values == {
        "min": "0",
        "max": "232",
        "allow_unauthenticated_participants": "false",
        "enable_join_access_control": "true",
        "discovery_protection_kind": "ENCRYPT",
        "liveliness_protection_kind": "ENCRYPT",
        "rtps_protection_kind": "SIGN",
        "topic_expression": "*",
        "enable_discovery_protection": "true",
        "enable_liveliness_protection": "true",
        "enable_read_access_control": "true",
        "enable_write_access_control": "true",
        "metadata_protection_kind": "ENCRYPT",
        "data_protection_kind": "ENCRYPT",
    }


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ('version="0.2.0"', 'version="0.1.0"'),
        ("<profiles>", '<profiles kind="x">'),
        (' node="monitor"', ""),
        ('subscribe="ALLOW"', 'subscribe="PERHAPS"'),
        ('subscribe="ALLOW"', 'hear="ALLOW"'),
        ("<topic>/clock</topic>", "<service>/clock</service>"),
        ("<topic>/clock</topic>", ""),
        ("<topic>/clock</topic>", "<topic></topic>"),
    ],
)
def test_what_the_schema_forbids_is_seen(tmp_path: Path, was: str, becomes: str) -> None:
    text = (FOLDER / "monitor.xml").read_text(encoding="utf-8")
    assert was in text
    wrong = tmp_path / "monitor.xml"
    wrong.write_text(text.replace(was, becomes, 1), encoding="utf-8")
    with pytest.raises(ValueError):
        read_policy(wrong)


MAKE = """
import sys
from pathlib import Path
from sros2.api._artifact_generation import generate_artifacts
generate_artifacts(Path(sys.argv[1]), [], [Path(word) for word in sys.argv[2:]])
"""


def test_ros2_security_makes_a_keystore_of_them(
    enclaves: dict[str, Enclave], tmp_path: Path
) -> None:
    """What `ros2 security generate_artifacts` calls, and what it permits, topic by topic."""
    pytest.importorskip("lxml", reason="lxml is not installed: sros2 needs it")
    pytest.importorskip("sros2", reason="sros2 is not installed: ros-<distro>-sros2")
    store = tmp_path / "keystore"
    (store / "enclaves").mkdir(parents=True)
    (store / "enclaves" / "governance.xml").write_bytes((FOLDER / "governance.xml").read_bytes())
    command = [sys.executable, "-W", "ignore", "-c", MAKE, str(store), *map(str, FILES)]
    env = {**os.environ, "ROS_DOMAIN_ID": "7"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 0, done.stderr
    assert (store / "enclaves" / "governance.p7s").is_file()
    for name, one in enclaves.items():
        folder = store / "enclaves" / "vla_ros" / name
        assert {"cert.pem", "key.pem", "permissions.p7s"} <= {p.name for p in folder.iterdir()}
        root = ElementTree.parse(folder / "permissions.xml").getroot()
        assert {e.text for e in root.iter("id")} == {"7"}
        assert root.findtext("permissions/grant/default") == "DENY"
        for kind, wanted in (("publish", one.writes), ("subscribe", one.reads)):
            found = {e.text for part in root.iter(kind) for e in part.iter("topic")}
            assert found - {"ros_discovery_info"} == wanted, (name, kind)
