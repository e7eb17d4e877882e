"""The loop in the tabletop: run, take over, train, judge, generation after generation.

A person is played by the scripted expert, over ROS topics alone: it subscribes to the ground truth
and the robot's commands, and where for a second the robot has hardly gone where the expert would,
it moves it by ~/takeover/action for two seconds and lets go. What was recorded of all generations
so far trains the next one, which must not solve fewer of the same episodes than the one before.

    python benchmarks/loop.py runs/loop --checkpoint shipped:tabletop --generations 3

OUT/loop.html is the page, OUT/handover.json how fast the person had the robot and how far it
jumped. The same command goes on where it was stopped, but for a run, which begins anew.
"""

from __future__ import annotations

import argparse
import array
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from std_srvs.srv import Trigger

from vla_ros.cli.main import main as vla_ros
from vla_ros.core.clock import SECOND
from vla_ros.core.console import Progress
from vla_ros.core.types import CommandKind, Floats
from vla_ros.data.episodes.records import Job, Setup, Variant
from vla_ros.engine.load import sha256_on_disk
from vla_ros.msg import ActionCommand, EpisodeStatus, NamedPoses
from vla_ros.ros.common import qos
from vla_ros.ros.common.convert import stamp_of
from vla_ros.ros.listeners.graph_runner import GraphRunner
from vla_ros.ros.listeners.listener import GraphListener
from vla_ros.ros.nodes.policy.inputs import poses_of
from vla_ros.sim.episode import Mode
from vla_ros.sim.expert import Expert

TASKS = (
    "stack_blue_on_yellow",
    "stack_yellow_on_red",
    "stack_green_on_blue",
    "stack_red_on_yellow",
)
SEED = 1_500_000  # of initial states: the evaluation's are below a million
PATIENCE, HELP = 20, 40  # control steps: of watching, and of moving the robot past the policy
TOWARDS = 0.25  # share of the expert's way that a person is content with
LEAST_M = 0.06  # of the expert's way in that time: where it hardly moves there is nothing to help
PERIOD_S = 0.05


class Person(GraphListener):
    """Watches, takes over where the robot is lost, and lets go. ``delays_s``: from the first
    command of a takeover until the node moves the robot by it; ``jumps``: between neighboring
    commands where the one who acts changes, m a period."""

    def __init__(self, domain: int) -> None:
        super().__init__("person", domain, simulated=False)
        self.delays_s: list[float] = []
        self.jumps: list[float] = []
        self._expert: Expert | None = None
        self._instruction, self._running = "", False
        self._ways: deque[tuple[Floats, Floats]] = deque(maxlen=PATIENCE)
        self._left, self._began_ns = 0, 0
        self._last: tuple[int, Floats] | None = None
        self._moved = np.zeros(3)
        self._publisher = self.node.create_publisher(
            ActionCommand, "policy/takeover/action", qos.SAID
        )
        self._release = self.node.create_client(Trigger, "policy/release")
        self.listen(EpisodeStatus, "bridge/episode", self._on_episode, qos.LATCHED)
        self.listen(NamedPoses, "ground_truth", self._on_poses, qos.STATE)
        self.listen(ActionCommand, "policy/action", self._on_command, qos.ACTION)
        self.start()

    def _on_episode(self, message: EpisodeStatus) -> None:
        self._running = message.state == EpisodeStatus.STATE_RUNNING
        if not self._running or message.instruction != self._instruction:
            self._expert, self._left, self._instruction = None, 0, message.instruction
            self._ways.clear()
        if self._running and self._expert is None and message.instruction:
            self._expert = Expert(message.instruction)

    def _on_command(self, message: ActionCommand) -> None:
        kind, action = int(message.kind), np.asarray(message.action, np.float64)
        moved = action[:3] if CommandKind(kind).moves else np.zeros(3)
        self._moved += moved
        if self._last is not None and (self._last[0] == CommandKind.TAKEOVER) != (
            kind == CommandKind.TAKEOVER
        ):
            self.jumps.append(float(np.abs(moved - self._last[1]).max()))
        if kind == CommandKind.TAKEOVER and self._began_ns:
            self.delays_s.append((stamp_of(message.header.stamp) - self._began_ns) / SECOND)
            self._began_ns = 0
        self._last = kind, moved

    def _on_poses(self, message: NamedPoses) -> None:
        if self._expert is None:
            return
        wanted = self._expert.act(poses_of(message))
        self._ways.append((self._moved, wanted[:3].copy()))
        self._moved = np.zeros(3)
        if self._left:
            self._left -= 1
            self._command(wanted)
            if not self._left:
                self._release.call_async(Trigger.Request())
                self._ways.clear()
        elif self._lost():
            self._left = HELP
            self._began_ns = self.node.get_clock().now().nanoseconds
            self._command(wanted)

    def _lost(self) -> bool:
        """For a second the robot has hardly gone where the expert would."""
        if len(self._ways) < PATIENCE:
            return False
        ways = np.array([wanted for _, wanted in self._ways])
        went = np.array([moved for moved, _ in self._ways])
        length = np.linalg.norm(ways, axis=1)
        along = (went * ways).sum(1)[length > 0] / length[length > 0]
        return bool(length.sum() > LEAST_M and along.sum() < TOWARDS * length.sum())

    def _command(self, action: Floats) -> None:
        message = ActionCommand(action=array.array("d", action))
        message.header.stamp = self.node.get_clock().now().to_msg()
        self._publisher.publish(message)


def drive(checkpoint: str, generation: int, args: argparse.Namespace) -> dict[str, Any]:
    """Record one generation's run into OUT/run-N; returns the person's figures."""
    setup = Setup(
        checkpoint=checkpoint, mode=Mode.REALTIME, checkpoint_sha256=sha256_on_disk(checkpoint)
    )
    variant = Variant("auto", "auto")
    out = args.out / f"run-{generation}"
    shutil.rmtree(out, ignore_errors=True)
    jobs = [
        Job(variant.label, task, number, SEED + generation)
        for number in range(args.episodes)
        for task in args.tasks
    ]
    solved = 0
    with GraphRunner(setup, (variant,)) as runner, Progress() as progress:
        words = [sys.executable, "-m", "vla_ros", "record", "-o", str(out), "--no-flight"]
        recorder = subprocess.Popen(
            words,
            env={**os.environ, "ROS_DOMAIN_ID": str(runner.domain)},
            stderr=subprocess.DEVNULL,
        )
        try:
            with Person(runner.domain) as person:
                for number, job in enumerate(jobs):
                    solved += runner.play(job, variant).success
                    line = f"generation {generation}: {solved} solved,"
                    line += f" {len(person.delays_s)} takeovers"
                    progress.update("run", line, number + 1, len(jobs))
        finally:
            recorder.send_signal(signal.SIGTERM)
            recorder.wait(60)
    return {"generation": generation, "delays_ms": [1e3 * d for d in person.delays_s],
            "jumps_mm": [1e3 * j for j in person.jumps]}  # fmt: skip


def verb(*words: object) -> None:
    """Run one verb of `vla-ros`, printed as typed; 3 is a checkpoint that was not promoted."""
    command = [str(word) for word in words]
    print("vla-ros", *command, flush=True)
    if (status := vla_ros(command)) not in (0, 3):
        sys.exit(status)


def judge(checkpoint: str, generation: int, args: argparse.Namespace) -> None:
    words: list[object] = [
        "eval",
        "--checkpoint",
        checkpoint,
        "--no-ros",
        "--decoding",
        "autoregressive",
    ]
    words += ["--tasks", *args.tasks, "--episodes", args.judged, "--workers", 2]
    words += ["--out", args.out / f"eval-{generation}"]
    if generation:
        words += ["--against", args.out / f"eval-{args.best}", "--promote", args.out / "current"]
    verb(*words)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("out", type=Path)
    add("--checkpoint", default="shipped:tabletop")
    add("--generations", type=int, default=3)
    add("--tasks", nargs="+", default=TASKS)
    add("--episodes", type=int, default=20, help="of a run, a task")
    add("--judged", type=int, default=25, help="of an evaluation, a task")
    add("--steps", type=int, default=200, help="of a training")
    add("--learning-rate", type=float, default=1e-4)
    add("--demonstrations", type=Path, nargs="*", default=[], help="learned from beside the runs")
    args = parser.parse_args(argv)
    args.out = args.out.absolute()
    args.best, best = 0, args.checkpoint  # the generation that the others must not fall behind
    handovers = []
    judge(best, 0, args)
    for generation in range(args.generations):
        log = args.out / f"handover-{generation}.json"
        if not log.exists():
            log.write_text(json.dumps(drive(best, generation, args)))
        handovers.append(json.loads(log.read_text()))
        made = args.out / f"gen-{generation + 1}"
        runs = [args.out / f"run-{n}" for n in range(generation + 1)]
        verb("train", "--data", *args.demonstrations, *runs, "--out", made, "--init-from", best,
             "--steps", args.steps, "--learning-rate", args.learning_rate)  # fmt: skip
        judge(str(made / "policy"), generation + 1, args)
        current = args.out / "current"
        if current.exists() and current.resolve() == (made / "policy").resolve():
            args.best, best = generation + 1, str(made / "policy")
    delays = np.array([d for one in handovers for d in one["delays_ms"]])
    jumps = np.array([j for one in handovers for j in one["jumps_mm"]])
    if len(delays):
        print(
            f"{len(delays)} takeovers: the robot moved by them after {np.median(delays):.0f} ms"
            f" (median), {delays.max():.0f} at most; largest jump {jumps.max():.1f} mm a period, of"
            " the 100 that the simulation's limits allow"
        )
    (args.out / "handover.json").write_text(json.dumps(handovers) + "\n")
    verb("loop", args.out, "--json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
