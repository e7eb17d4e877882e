"""The graph that is troubled, and how each trouble is done to it.

Nodes are processes as `vla-ros up sim` starts them; between the simulation's camera and the policy
stands `rough_camera`. What the graph says goes to the judge as it arrives.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from std_msgs.msg import String
from std_srvs.srv import Trigger

from endurance.judge import Judge, JudgedCommand, JudgedStatus
from endurance.troubles import Trouble
from support.motion_listener import MotionListener
from support.ros import RosPeer, keeping_all
from vla_ros.core.clock import SECOND
from vla_ros.core.types import CommandKind, Instruction, PolicyState
from vla_ros.msg import ActionCommand, EpisodeStatus, PolicyStatus
from vla_ros.ros.bringup.graph import Graph
from vla_ros.ros.bringup.graph_file import GraphSpec
from vla_ros.ros.common import qos
from vla_ros.ros.common.convert import stamp_of
from vla_ros.sim.tasks import all_goals, instruction_of, task_name
from vla_ros.srv import ResetEpisode

CAMERA = Path(__file__).with_name("rough_camera.py")
ANSWER_S = 20.0  # of a service
RESPAWN_S = 90.0  # of a worker: noticed, killed, loaded, warm


class Stage:
    """A running graph with everything that can be done to it."""

    def __init__(
        self,
        domain: int,
        env: dict[str, str],
        judge: Judge,
        overrides: dict[str, dict[str, Any]],
        log: Callable[[str], None],
    ) -> None:
        self._env, self._judge, self._log = env, judge, log
        self._lock = threading.Lock()  # the judge's: callbacks come from another thread
        self.instruction = ""
        self.worker = 0
        self._sentences = [instruction_of(goal) for goal in all_goals()]
        self._tasks = [task_name(goal) for goal in all_goals()]
        spec = GraphSpec.load("sim", overrides, remappings=["bridge:image=camera/image"])
        self.graph = Graph(
            spec, environment=env, on_line=lambda node, line: log(f"[{node}] {line}")
        )
        self.graph.start()
        self._defaults = spec_values(spec, "policy")
        self._camera = subprocess.Popen(
            [sys.executable, str(CAMERA), "--from", "camera/image", "--to", "image"],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._camera_says()
        self._peer = RosPeer(domain)
        self.motion = MotionListener(domain)
        self._listen()

    def close(self) -> None:
        """End all of it, and account for its motion."""
        with contextlib.suppress(Exception):
            self._peer.close()
        with contextlib.suppress(Exception):
            self.motion.close()
        at = time.time_ns()
        for line in self.motion.judge.finish():
            self._judge.moved(at, line)
        self._camera.kill()
        self._camera.wait()
        self.graph.stop()

    # What it says

    def _listen(self) -> None:
        node = self._peer.node
        node.create_subscription(
            ActionCommand, "policy/action", self._on_command, keeping_all(qos.ACTION)
        )
        node.create_subscription(PolicyStatus, "policy/status", self._on_status, qos.EVERY_CHANGE)
        node.create_subscription(EpisodeStatus, "bridge/episode", self._on_episode, qos.LATCHED)
        self._say_publisher = self._peer.publisher(String, "instruction", qos.LATCHED)
        self._episode = -1

    def _on_command(self, message: ActionCommand) -> None:
        with self._lock:
            self._judge.command(heard_of(message))

    def _on_status(self, message: PolicyStatus) -> None:
        self.instruction = message.instruction or self.instruction
        self.worker = int(message.worker_pid)
        with self._lock:
            self._judge.status(told_of(message))

    def _on_episode(self, message: EpisodeStatus) -> None:
        if message.episode != self._episode:  # another episode may begin what a stop ended
            self._episode = message.episode
            with self._lock:
                self._judge.resuming()

    # What may be asked of it

    def now(self) -> int:
        """The ROS clock, ns."""
        return int(self._peer.node.get_clock().now().nanoseconds)

    def pids(self) -> dict[str, int]:
        """Of every process that should live, and of the worker that lives now."""
        found = {spec.name: self.graph.pid(spec.name) for spec in self.graph.spec.nodes}
        return (
            found | {"camera": self._camera.pid} | ({"worker": self.worker} if self.worker else {})
        )

    def lost(self) -> str | None:
        """What has ended unasked, or None."""
        name = self.graph.ended()
        if name is None and self._camera.poll() is not None:
            return "camera"
        return name

    def state(self) -> PolicyState | None:
        """As the last status has it."""
        with self._lock:
            return self._judge.now.state if self._judge.now else None

    def reason(self) -> str:
        """Why it is in that state, in its own words."""
        with self._lock:
            return self._judge.now.reason if self._judge.now else ""

    def tell(self, what: Callable[[Judge], None]) -> None:
        """Something for the judge, in its turn."""
        with self._lock:
            what(self._judge)

    def recover(self) -> None:
        """Ask the policy to leave FAULT or HOLD."""
        self._ask("recover")

    def resume(self) -> None:
        """Ask it to go on with what was stopped."""
        self.tell(Judge.resuming)
        self._ask("resume")

    # Troubles

    def do(self, trouble: Trouble, wait: Callable[[float], None]) -> None:
        """Do it, and undo it after its length; ``wait`` may raise to end everything."""
        kind, rng = trouble.kind, random.Random(str(trouble))
        if kind.startswith("camera ") or kind == "clock step":
            word = "clock" if kind == "clock step" else kind.removeprefix("camera ")
            self._order({"do": word, "seed": rng.randrange(2**31), **trouble.detail})
            wait(trouble.length_s)
            self._order({"do": "none"})
        elif kind == "worker killed":
            self._signal_worker(signal.SIGKILL, wait)
        elif kind == "worker frozen":
            self._signal_worker(signal.SIGSTOP, wait)
        elif kind.startswith("instruction "):
            self._instruct(kind.removeprefix("instruction "), trouble, rng, wait)
        elif kind == "parameters":
            self._set(trouble.detail["name"], trouble.detail["value"], good=True)
            wait(trouble.length_s)
            self._set(trouble.detail["name"], self._defaults[trouble.detail["name"]], good=True)
        elif kind == "bad parameters":
            self._set(trouble.detail["name"], trouble.detail["value"], good=False)
        elif kind in ("deactivated", "cleaned up"):
            self._cycle(kind == "cleaned up", trouble.length_s, wait)
        elif kind == "stopped":
            if self._ask("stop"):
                answered = self.now()
                self.tell(lambda judge: judge.stopped(answered))
            wait(trouble.length_s)
            self.resume()
        elif kind in ("recover", "reset"):
            self._ask(kind)
            if kind == "reset":  # the instruction is kept by the node
                self.tell(Judge.resuming)
        elif kind == "episode reset":
            request = ResetEpisode.Request(task=rng.choice(self._tasks), initial_state=-1)
            self._peer.call(ResetEpisode, "/bridge/reset", request, ANSWER_S)
        else:
            raise ValueError(f"nobody knows how to do {kind!r}")

    def _order(self, order: dict[str, Any]) -> None:
        assert self._camera.stdin is not None
        self._camera.stdin.write(json.dumps(order) + "\n")
        self._camera.stdin.flush()
        self._camera_says()

    def _camera_says(self) -> None:
        assert self._camera.stdout is not None
        if not self._camera.stdout.readline():
            raise RuntimeError("the camera between simulation and policy has ended")

    def _signal_worker(self, number: signal.Signals, wait: Callable[[float], None]) -> None:
        before = self.worker
        if not before:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(before, number)
        until = time.monotonic() + RESPAWN_S
        while time.monotonic() < until:
            wait(0.2)
            if self.worker not in (0, before) or self.state() == PolicyState.FAULT:
                return

    def _instruct(
        self, how: str, trouble: Trouble, rng: random.Random, wait: Callable[[float], None]
    ) -> None:
        before = self.instruction
        if how == "overlong":
            self._say_publisher.publish(String(data="reach " * 20_000))
            wait(0.5)
        elif how == "empty":
            self._say_publisher.publish(String(data=""))
            wait(trouble.length_s)
        else:
            until = time.monotonic() + trouble.length_s
            while time.monotonic() < until:
                self._say_publisher.publish(String(data=rng.choice(self._sentences)))
                wait(0.05)
        self._say_publisher.publish(String(data=before))
        if how == "empty":
            self.resume()

    def _set(self, name: str, value: Any, *, good: bool) -> None:
        taken, reason = self._peer.set_parameter("/policy", name, value)
        if taken and not good:
            at = self.now()
            self.tell(lambda judge: judge.accepted(at, f"{name} = {value!r}"))
        if good and not taken:
            raise AssertionError(f"{name} = {value!r} was refused: {reason}")

    def _cycle(self, whole: bool, pause_s: float, wait: Callable[[float], None]) -> None:
        if self._change("deactivate"):
            answered = self.now()
            self.tell(lambda judge: judge.deactivated(answered))
        wait(pause_s)
        if whole:
            self._change("cleanup")
            wait(pause_s)
            self._change("configure")
        self.tell(Judge.activating)
        self._change("activate")
        self.resume()

    def _change(self, transition: str) -> bool:
        done = self._peer.change_state("/policy", transition, 120.0)
        if not done:
            self._log(f"[soak] the policy refused to {transition}")
        return done

    def _ask(self, service: str) -> bool:
        answer = self._peer.call(Trigger, f"/policy/{service}", timeout=ANSWER_S)
        return bool(answer.success)


def heard_of(message: ActionCommand) -> JudgedCommand:
    """What a judge needs of a command."""
    return JudgedCommand(
        stamp=stamp_of(message.header.stamp),
        sequence=int(message.sequence),
        kind=CommandKind(message.kind),
        epoch=int(message.epoch),
        observation_stamp=stamp_of(message.observation_stamp),
        valid_until=stamp_of(message.valid_until),
        instruction_hash=int(message.instruction_hash),
        action=tuple(message.action),
    )


def told_of(message: PolicyStatus) -> JudgedStatus:
    """What a judge needs of a status."""
    return JudgedStatus(
        stamp=stamp_of(message.header.stamp),
        state=PolicyState(message.state),
        epoch=int(message.epoch),
        instruction_hash=Instruction(message.instruction, 0).digest,
        max_age=round(message.max_age_s * SECOND),
        reason=message.reason,
    )


def spec_values(spec: GraphSpec, name: str) -> dict[str, Any]:
    """The parameters with which a node of a graph was started."""
    return next(node.values() for node in spec.nodes if node.name == name)
