"""Nonsense on every topic that a node of ours listens to, and in its parameters, over DDS.

The nodes run as they are, their callbacks counted (`counted`). A good camera films meanwhile, so
the policy acts, and what it commands is judged as in a soak.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from rclpy.serialization import serialize_message
from std_msgs.msg import String
from std_srvs.srv import Trigger

from endurance.fuzz_files import Finding
from endurance.judge import RULES, Judge
from endurance.mutate import nasty, spoilt_bytes, spoilt_message
from endurance.stage import heard_of, told_of
from support.domain import leased_domain
from support.motion_listener import MotionListener
from support.nodes import Program, ros_environment
from support.policy_client import CAMERA, moves
from support.ros import RosPeer, keeping_all
from support.wait import wait_until
from vla_ros.core.resources import config_path
from vla_ros.msg import ActionCommand, PolicyStatus
from vla_ros.ros.bringup.graph import command_line
from vla_ros.ros.bringup.graph_file import NodeSpec
from vla_ros.ros.common import qos

ALIVE_S = 20.0  # for an answer of a service
PAUSE_S = 0.05  # after which those on their way are given up: the middleware took them for nonsense
FILMING = 4  # callbacks in that time that the good camera and the nodes' own timers account for
CHECK = 2000  # messages between two looks at the nodes
Say = Callable[[int], None]

#: who is fuzzed: parameters with which a node listens to as much as it can
POLICY: dict[str, Any] = {
    "use_wrist_image": False,
    "use_joint_states": True,
    "state_layout": "joints",
    "outputs": ["twist"],
    "velocity_limits": [1.0, 1.0, 1.0, 10.0, 10.0, 10.0],
}
OTHERS: dict[str, dict[str, Any]] = {
    "monitor": {},
    "bridge": {"mode": "realtime", "image_size": 32, "wait_for_policy": False, "auto_reset": True},
    "recorder": {},
}


class Nodes:
    """Nodes under fire in one domain, and who fires."""

    def __init__(self, env: dict[str, str], domain: int, folder: Path) -> None:
        self._env, self._folder, self.domain = env, folder, domain
        self.programs: dict[str, Program] = {}
        self.peer = RosPeer(domain)
        self._publishers: dict[tuple[str, str], Any] = {}

    def start(self, executable: str, parameters: dict[str, Any]) -> None:
        """One more node."""
        config = config_path(f"{executable}.yaml")
        files = (config,) if config.exists() else ()
        spec = NodeSpec(
            name=executable, executable=executable, parameter_files=files, parameters=parameters
        )
        words = command_line(spec)
        at = words.index("--ros-args")
        command = [sys.executable, "-m", "endurance.counted", str(self._file(executable))]
        env = {**self._env, "PYTHONPATH": os.pathsep.join(sys.path)}
        self.programs[executable] = Program(executable, [*command, executable, *words[at:]], env)

    def close(self) -> None:
        """End all of them."""
        self.peer.close()
        for program in self.programs.values():
            program.kill()

    def _file(self, executable: str) -> Path:
        return self._folder / f"{executable}.json"

    def counts(self) -> dict[tuple[str, str], int]:
        """(topic, type) -> callbacks that ran, of all nodes."""
        total: dict[tuple[str, str], int] = {}
        for entry, topic in self._entries():
            key = (topic, entry["type"])
            total[key] = total.get(key, 0) + int(entry.get("executed", 0))
        return total

    def raised(self) -> dict[str, int]:
        """Exceptions that left a callback."""
        found: dict[str, int] = {}
        for entry, topic in self._entries():
            for words, count in entry.get("raised", {}).items():
                found[f"{topic}: {words}"] = found.get(f"{topic}: {words}", 0) + count
        return found

    def _entries(self) -> Iterator[tuple[dict[str, Any], str]]:
        for name in self.programs:
            with contextlib.suppress(FileNotFoundError):
                for key, entry in json.loads(self._file(name).read_text()).items():
                    yield entry, key.rpartition(" ")[0]

    def fire(self, key: tuple[str, str], data: bytes) -> None:
        """Publish these bytes."""
        publisher = self._publishers.get(key)
        if publisher is None:
            package, _, kind = key[1].partition("/")
            message = getattr(import_module(f"{package}.msg"), kind)
            latched = key[0].endswith(("instruction", "episode", "status", "robot_description"))
            status = key[1].endswith("PolicyStatus")  # some readers ask for its liveliness
            profile = keeping_all(qos.STATUS if status else qos.LATCHED if latched else qos.ACTION)
            publisher = self._publishers[key] = self.peer.publisher(message, key[0], profile)
            with contextlib.suppress(AssertionError):
                self.peer.wait_for_subscriber(publisher, 5.0)
        with contextlib.suppress(RuntimeError):  # longer than any message of a fixed size
            publisher.publish(data)

    def drain(self) -> int:
        """Wait until what was sent has been executed or is refused; returns what was executed."""
        last, quiet = -1, time.monotonic()
        while time.monotonic() - quiet < 4 * PAUSE_S:
            now = sum(self.counts().values())
            if now > last + FILMING:
                quiet = time.monotonic()
            last = now
            time.sleep(PAUSE_S)
        return last

    def dead(self) -> list[str]:
        """Nodes that have ended."""
        return [name for name, program in self.programs.items() if program.returncode is not None]

    def complaints(self) -> list[str]:
        """Tracebacks and exceptions in their logs."""
        lines = [line for program in self.programs.values() for line in program.log.splitlines()]
        return [line for line in lines if "Traceback" in line or " in a callback:" in line]


@contextlib.contextmanager
def _under_fire() -> Iterator[Nodes]:
    with leased_domain() as domain, tempfile.TemporaryDirectory() as folder:
        env = ros_environment(domain)
        os.environ.update(env)
        nodes = Nodes(env, domain, Path(folder))
        try:
            yield nodes
        finally:
            nodes.close()


def fuzz_topics(count: int, seed: int, say: Say) -> tuple[dict[str, int], list[Finding]]:
    """Half of them to the policy node while it acts, half to all others."""
    executed: dict[str, int] = {}
    findings: list[Finding] = []
    with _under_fire() as nodes:
        replay = moves(nodes._folder)
        motion = MotionListener(nodes.domain)
        nodes.start("policy", POLICY | {"policy": "replay", "replay_file": replay})
        judge = Judge()
        judge.trouble()
        node = nodes.peer.node
        node.create_subscription(
            ActionCommand, "policy/action", lambda m: judge.command(heard_of(m)), 1000
        )
        node.create_subscription(
            PolicyStatus, "policy/status", lambda m: judge.status(told_of(m)), qos.EVERY_CHANGE
        )
        nodes.peer.bring_up("/policy")
        nodes.programs["camera"] = Program(
            "camera", [sys.executable, str(CAMERA), "--topic", "image"], nodes._env
        )
        nodes.peer.publisher(String, "instruction", qos.LATCHED).publish(String(data="go"))
        executed["messages to policy"] = _bombard(nodes, count // 2, seed, say, "policy", findings)
        executed["commands judged"] = sum(judge.kinds.values())
        for one in judge.violations:
            findings.append(Finding("topics", seed, f"{RULES[one.rule]}: {one.what}", ""))
        for line in motion.leave():
            findings.append(Finding("topics", seed, f"{RULES['motion']}: {line}", ""))
        executed["messages of motion judged"] = sum(motion.judge.judged.values())
    with _under_fire() as nodes:
        for name, parameters in OTHERS.items():
            more = {"directory": str(nodes._folder)} if name == "recorder" else {}
            nodes.start(name, parameters | more)
        done = _bombard(nodes, count - count // 2, seed + 1, say, "monitor", findings)
        executed["messages to others"] = done
    executed["topics"] = executed["messages to policy"] + executed["messages to others"]
    return executed, findings


def _bombard(
    nodes: Nodes, count: int, seed: int, say: Say, asked: str, findings: list[Finding]
) -> int:
    """Until ``count`` callbacks have run; returns how many have."""
    rng = random.Random(seed)
    wait_until(nodes.counts, 30.0, "subscriptions")
    time.sleep(1.0)
    executed = round_ = 0
    while executed < count:
        keys = sorted(key for key in nodes.counts() if not key[0].startswith("/clock"))
        for _ in range(CHECK // max(1, len(keys))):
            for key in keys:
                nodes.fire(key, _shot(key[1], rng))
        executed = nodes.drain()
        say(executed)
        round_ += 1
        dead = nodes.dead()
        for name in dead:
            program = nodes.programs[name]
            at = max(program.log.rfind("Fatal"), program.log.rfind("terminate called"), 0)
            words = f"{name} died in round {round_} with status {program.returncode}"
            findings.append(Finding("topics", seed, words, program.log[at:][:2500]))
        if dead:
            break
        if asked == "policy":
            try:
                nodes.peer.call(Trigger, "/policy/recover", timeout=ALIVE_S)
                nodes.peer.call(Trigger, "/policy/resume", timeout=ALIVE_S)
            except AssertionError as error:
                findings.append(Finding("topics", seed, f"hung in round {round_}: {error}", ""))
                break
    for words, times in nodes.raised().items():
        findings.append(Finding("topics", seed, f"raised {times} times, {words}", ""))
    for line in dict.fromkeys(nodes.complaints()):
        findings.append(Finding("topics", seed, line, ""))
    return executed


def _shot(kind: str, rng: random.Random) -> bytes:
    package, _, name = kind.partition("/")
    message = spoilt_message(getattr(import_module(f"{package}.msg"), name), rng)
    if hasattr(message, "header") and rng.random() < 0.7:  # else it is too old to be read further
        now = time.time_ns() - rng.choice((0, 10_000_000, 200_000_000))
        message.header.stamp.sec, message.header.stamp.nanosec = divmod(now, 10**9)
    try:
        data = bytes(serialize_message(message))
    except UnicodeEncodeError:
        return b"\0\1\0\0"
    return spoilt_bytes(data, rng) if rng.random() < 0.3 else data


def fuzz_parameters(count: int, seed: int, say: Say) -> tuple[dict[str, int], list[Finding]]:
    """Random values for every parameter of every node, one request each: it answers, and lives."""
    rng = random.Random(seed)
    findings: list[Finding] = []
    done = taken = 0
    with _under_fire() as nodes:
        nodes.start("policy", {"policy": "zero"})
        for name, parameters in OTHERS.items():
            more = {"directory": str(nodes._folder)} if name == "recorder" else {}
            nodes.start(name, parameters | more)
        names = {name: _parameters(nodes.peer, name) for name in nodes.programs}
        while done < count:
            node = rng.choice(list(names))
            parameter = rng.choice(names[node])
            value = _parameter(rng)
            try:
                accepted, _ = nodes.peer.set_parameter(f"/{node}", parameter, value)
                taken += accepted
            except (TypeError, ValueError, OverflowError, UnicodeEncodeError):
                continue  # no parameter at all
            except AssertionError as error:
                findings.append(
                    Finding("parameters", seed, f"{node}.{parameter} = {value!r}: {error}", "")
                )
            done += 1
            say(done)
            for name in nodes.dead():
                log = nodes.programs[name].log[-2000:]
                findings.append(
                    Finding("parameters", seed, f"{name} died of {parameter} = {value!r}", log)
                )
                return {"parameters": done, "parameters taken": taken}, findings
        for line in dict.fromkeys(nodes.complaints()):
            findings.append(Finding("parameters", seed, line, ""))
    return {"parameters": done, "parameters taken": taken}, findings


def _parameters(peer: RosPeer, node: str) -> list[str]:
    from rcl_interfaces.srv import ListParameters

    answer = peer.call(ListParameters, f"/{node}/list_parameters", timeout=60.0)
    return sorted(answer.result.names)


def _parameter(rng: random.Random) -> Any:
    """A value of one of the types that a parameter can have."""
    value = nasty(rng, 3)
    if isinstance(value, int) and not isinstance(value, bool):
        return max(-(2**63), min(2**63 - 1, value))
    if value in (None, [], {}) or isinstance(value, list):
        kind = rng.choice((float, int, str))
        return [kind(rng.choice((0, 1, -1, 7))) for _ in range(rng.randrange(9))]
    if isinstance(value, float) and math.isnan(value):
        return float("nan")
    return value
