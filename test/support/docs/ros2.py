"""What is wrong with a `ros2` command of the documentation: "" for nothing.

Names of other packages (a MoveIt service, `ros2 bag`) are nobody's here: their block says why.
"""

from __future__ import annotations

import yaml

from support.docs import declared
from support.docs.pages import ROOT
from support.docs.shell import Command


def ros2(command: Command) -> str:
    words = command.words[1:]
    if words[0] == "launch" and words[1:2] == ("vla_ros",):
        return _launch(words[2], words[3:])
    if words[0] == "run" and words[1:2] == ("vla_ros",):
        return _run(words[2], words[3:])
    if words[0] in ("topic", "service", "action"):
        return _spoken(words)
    if words[0] == "interface":
        return "" if declared.interface(words[-1]) is not None else f"there is no {words[-1]}"
    if words[0] in ("lifecycle", "param"):
        node = words[2].removeprefix("/")
        return "" if declared.parameters(node) else f"there is no node {node}"
    return "" if command.needs else "<!-- needs: ROS 2 --> before the block: it is not vla_ros's"


def _launch(file: str, given: tuple[str, ...]) -> str:
    if not (ROOT / "launch" / file).is_file():
        return f"there is no launch/{file}"
    known = declared.launch_arguments(file)
    for word in given:
        name, sign, value = word.partition(":=")
        if not sign or name not in known:
            return f"{file} has no argument {name}"
        if known[name] and value not in known[name] and name != "policy":
            return f"{word}: {file} takes {', '.join(known[name])}"
        if name == "parameters":
            for parameter in yaml.safe_load(value):
                if parameter not in declared.parameters("policy"):
                    return f"the policy node has no parameter {parameter}"
        if name == "remappings":
            for topic in yaml.safe_load(value):
                if not declared.is_name(topic.replace("~", "/policy")):
                    return f"the policy node has no topic {topic}"
    return ""


def _run(program: str, given: tuple[str, ...]) -> str:
    node = program.removesuffix("_node")
    if program == node or not (ROOT / "vla_ros/ros/nodes" / node / "node.py").is_file():
        return f"vla_ros has no program {program}"
    for word in given:
        name, sign, _ = word.partition(":=")
        if sign and name not in declared.parameters(node):
            return f"the {node} node has no parameter {name}"
    return ""


def _spoken(words: tuple[str, ...]) -> str:
    """`ros2 topic|service|action VERB [options] NAME [TYPE] [YAML]`."""
    rest, fields = [], []
    skip = ""
    for word in words[2:]:
        if skip == "--field":
            fields.append(word)
        elif not skip and not word.startswith("--"):
            rest.append(word)
        skip = word if word in ("--field", "--qos-durability", "--qos-reliability") else ""
    if not declared.is_name(rest[0]):
        return f"nothing of vla_ros is called {rest[0]}"
    if gone := [one for one in fields if one.split(".")[0] not in declared.message_fields()]:
        return f"no message has a field {gone[0]}"
    kind = rest[1] if len(rest) > 1 else ""
    known = declared.interface(kind) if kind else ()
    if known is None:
        return f"there is no {kind}"
    said = yaml.safe_load(rest[2]) if len(rest) > 2 else {}
    wrong = [field for field in said if field not in known]
    return f"{kind} has no field {wrong[0]}" if wrong else ""


def parameter_file(text: str) -> str:
    """What is wrong with a parameter file: nodes and parameters that are not ours, or no YAML."""
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        return "not YAML: " + " ".join(str(error).split())
    for node, body in content.items():
        if not isinstance(body, dict) or "ros__parameters" not in body:
            continue
        known = declared.parameters(node)
        for name in body["ros__parameters"]:
            if name not in known and name != "qos_overrides":  # rclpy's own
                return f"the {node} node has no parameter {name}"
    return ""
