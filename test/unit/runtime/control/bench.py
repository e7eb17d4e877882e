"""A control loop with a clock that a test moves."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from vla_ros.core.clock import ManualClock, moment
from vla_ros.core.types import Command, CommandKind, Inference, Observation, PolicyInfo, Timeline
from vla_ros.runtime.control.drivers import make_control
from vla_ros.runtime.control.goals import PersistentState
from vla_ros.runtime.control.queue import PolicyAnswer
from vla_ros.runtime.safety import Limits

IMAGE = np.zeros((8, 8, 3), np.uint8)


@dataclass
class Recorder:
    """A ControlSink that keeps every call."""

    submitted: list = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    states: list = field(default_factory=list)
    warnings: list = field(default_factory=list)
    rests: list[Command] = field(default_factory=list)

    def submit(self, observation, instruction):
        self.submitted.append((observation, instruction))

    def publish(self, command):
        self.commands.append(command)

    def rest(self, command):
        self.rests.append(command)

    def changed(self, before, after):
        self.states.append(after)

    def warn(self, kind, text):
        self.warnings.append((kind, text))


class Bench:
    """A control loop with its clock, and the steps of a test."""

    def __init__(self, *, lockstep=False, limits=None, **kwargs):
        self.lockstep = lockstep
        self.clock = kwargs.pop("clock", None) or ManualClock()
        self.out = kwargs.pop("out", None) or Recorder()
        self.persistent = kwargs.pop("persistent", None) or PersistentState()
        self.control = make_control(
            limits or Limits(),
            PolicyInfo(
                "zero",
                chunk_length=kwargs.pop("chunk", 1),
                continues=kwargs.pop("continues", ()),
                pipeline_depth=kwargs.pop("pipeline_depth", 1),
                max_delay=kwargs.pop("max_delay", 0),
                corrects=kwargs.pop("corrects", 0),
            ),
            self.clock,
            self.out,
            lockstep=lockstep,
            sim_time=kwargs.pop("sim_time", lockstep),
            persistent=self.persistent,
            **kwargs,
        )
        self.loop = self.control.loop

    def frame(self, stamp_ns=None, image=IMAGE):
        stamp_ns = self.clock.now if stamp_ns is None else stamp_ns
        observation = Observation(stamp_ns, self.clock.now, self.clock.steady, image)
        self.control.offer(observation)
        return observation

    def answer(self, observation, action=None, epoch=None, conditioning_delay=0):
        action = np.full((1, 7), 0.01) if action is None else np.atleast_2d(action)
        timeline = Timeline(observation.received_steady_ns).mark("queue", self.clock.steady)
        timeline = timeline.mark("decode", self.clock.steady)
        answer = PolicyAnswer(
            Inference(
                observation.stamp_ns, action, timeline, conditioning_delay=conditioning_delay
            ),
            observation.received_ns,
            observation.received_steady_ns,
        )
        epoch = self.loop.instruction.epoch if epoch is None else epoch
        self.control.result(epoch, answer)

    def cycle(self, action=None):
        """A frame, its action, one control period, a tick."""
        self.answer(self.frame(), action)
        return self.tick()

    def tick(self, seconds=0.05):
        self.clock.advance(seconds)
        before = len(self.out.commands)
        self.control.tick()
        return self.out.commands[before:]

    def play(self, frames=3, seconds=0.05):
        """Frames, each answered where the worker is asked; the kinds of the commands."""
        begin = len(self.out.commands)
        for _ in range(frames):
            self.clock.advance(seconds)
            asked = len(self.out.submitted)
            observation = self.frame()
            if len(self.out.submitted) > asked:
                self.answer(observation)
            self.control.tick()
        return [command.kind for command in self.out.commands[begin:]]

    def ready(self):
        """Active with a task."""
        self.control.activate()
        self.control.set_instruction("reach")
        return self

    def running(self):
        (command,) = self.ready().cycle()
        assert command.kind is CommandKind.POLICY
        return self

    def running_either(self):
        """As :meth:`running`, also in lock-step."""
        self.ready().answer(self.frame())
        self.control.tick()
        assert self.out.commands[-1].kind is CommandKind.POLICY
        return self

    def moment(self):
        return moment(self.clock)

    @property
    def state(self):
        return self.loop.safety.state
