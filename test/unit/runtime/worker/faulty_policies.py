"""Policies that misbehave, loaded into real workers by the tests."""

from __future__ import annotations

import os
import time

import numpy as np

from vla_ros.core.clock import Clock
from vla_ros.core.types import Inference, Instruction, Observation, PolicyInfo, Timeline
from vla_ros.policies import InvalidAction, Policy, PolicyRefused, PolicySpec
from vla_ros.policies.base import finish


class Obedient:
    """Does what the instruction's first word says; its action shows what it received."""

    info = PolicyInfo(name="obedient")

    def __init__(self) -> None:
        self.word = ""
        self.resets = 0
        self.steps = 0

    def reset(self, instruction: Instruction) -> None:
        self.word = instruction.text.split()[0] if instruction.text else ""
        self.resets += 1

    def step(self, observation: Observation, timeline: Timeline, clock: Clock) -> Inference | None:
        self.steps += 1
        match self.word:
            case "raise":
                raise RuntimeError("kernel launch failed\nsecond line")
            case "invalid":
                raise InvalidAction("token 5 is no action token")
            case "memory":
                raise MemoryError("no room")
            case "memory-once":
                if self.steps == 1:
                    raise MemoryError("no room")
            case "exit":
                os._exit(3)
            case "hang":
                while True:
                    time.sleep(1)
            case "nothing":
                return None
            case "garbage":
                _shout()
            case "slow":
                time.sleep(0.02)
        action = np.zeros((1, 7))
        action[0, 0] = observation.image[0, 0, 0]
        action[0, 1] = self.resets
        return Inference(observation.stamp_ns, action, finish(timeline, clock))


class Pipelined(Obedient):
    """Answers with the observation before the last one."""

    info = PolicyInfo(name="pipelined", pipeline_depth=3)

    def reset(self, instruction: Instruction) -> None:
        self.seen: list[tuple[int, Timeline]] = []

    def step(self, observation: Observation, timeline: Timeline, clock: Clock) -> Inference | None:
        self.seen.append((observation.stamp_ns, timeline))
        if len(self.seen) < 3:
            return None
        stamp, begun = self.seen[-3]
        return Inference(stamp, np.zeros((1, 7)), finish(begun, clock))


def _shout() -> None:
    """Write what is no report to every socket this process has."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd < 3:
            continue
        try:
            os.write(fd, b"\xff" * 64)
        except OSError:
            continue


def load_obedient(spec: PolicySpec) -> Policy:
    return Obedient()


def load_pipelined(spec: PolicySpec) -> Policy:
    return Pipelined()


def load_refused(spec: PolicySpec) -> Policy:
    raise PolicyRefused("no such unnorm_key: give one of bridge, libero")


def load_crashing(spec: PolicySpec) -> Policy:
    os._exit(7)


def load_once(spec: PolicySpec) -> Policy:
    """Loads the first time only; replay_file names the flag."""
    if os.path.exists(spec.replay_file):
        raise PolicyRefused("the checkpoint is gone")
    with open(spec.replay_file, "w", encoding="utf-8"):
        return Obedient()


def load_once_then_never(spec: PolicySpec) -> Policy:
    try:
        return load_once(spec)
    except PolicyRefused:
        return load_never(spec)


def load_never(spec: PolicySpec) -> Policy:
    while True:
        time.sleep(1)


HEAVY = 1 << 30  # bytes: a core file takes its time, on a busy machine too


class Heavy(Obedient):
    """Holds memory, as a model does."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = np.ones(HEAVY, np.uint8)


def load_heavy(spec: PolicySpec) -> Policy:
    return Heavy()
