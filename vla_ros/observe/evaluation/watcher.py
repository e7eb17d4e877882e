"""A node that begins the episodes of an evaluation at a bridge and writes down what it hears.

Callbacks run in a thread of their own, see :mod:`vla_ros.observe.listener`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from rcl_interfaces.srv import SetParametersAtomically
from rclpy.parameter import Parameter
from rclpy.serialization import deserialize_message
from rclpy.subscription import MessageInfo
from sensor_msgs.msg import Image, JointState
from std_srvs.srv import Trigger

from vla_ros.core import Inference, PolicyState, Timeline
from vla_ros.evaluation.records import Job, Setup
from vla_ros.evaluation.strips import Strip
from vla_ros.monitoring import StatusSeen
from vla_ros.msg import ActionChunk, ActionCommand, EpisodeStatus, PolicyStatus
from vla_ros.nodes.bridge.convert import command_of
from vla_ros.nodes.common import qos
from vla_ros.nodes.common.convert import image_of, stamp_of
from vla_ros.nodes.monitor import convert as monitor_convert
from vla_ros.observe.demo.watcher import MAX_PIXELS, episode_of
from vla_ros.observe.evaluation.log import EvalLog, Heard
from vla_ros.observe.listener import Listener, deep
from vla_ros.sim.episode.state import Mode
from vla_ros.srv import ResetEpisode

ANSWER_S = 10.0  # longest wait for a service
COMPLETE_S = 3.0  # after the end of an episode: for what is still on its way to us


class EvalWatcher(Listener):
    """Joins the graph of ``domain``; use it with `with`. ``delay_s``: of what the bridge shows.

    ``strip``: of the episode that the bridge begins by itself.
    """

    def __init__(
        self, domain: int, setup: Setup, delay_s: float = 0.0, strip: Strip | None = None
    ) -> None:
        super().__init__("eval", domain, setup.mode is Mode.LOCKSTEP)
        self._setup = setup
        self._delay_s = delay_s
        self._status: StatusSeen | None = None
        self._strip = strip
        self.log = EvalLog(setup, 0, None)
        make = self.node.create_client
        self._set = make(SetParametersAtomically, "bridge/set_parameters_atomically")
        self._begin = make(ResetEpisode, "bridge/reset")
        self._reset = make(Trigger, "policy/reset")
        self.listen(Image, "image", self._on_image, deep(qos.IMAGE_SUB, 10), raw=True)
        self.listen(JointState, "joint_states", self._on_frame, deep(qos.STATE, 100), raw=True)
        self.listen(ActionCommand, "policy/action", self._on_command, deep(qos.ACTION, 1000))
        self.listen(ActionChunk, "policy/action_chunk", self._on_chunk, deep(qos.REPORT, 1000))
        self.listen(PolicyStatus, "policy/status", self._on_status, deep(qos.LATCHED, 100))
        self.listen(EpisodeStatus, "bridge/episode", self._on_episode, deep(qos.LATCHED, 100))
        self.start()

    # ------------------------------------------------------------------ from the caller

    def begin(self, job: Job, strip: Strip | None, check: Callable[[], None]) -> None:
        """Let the bridge begin the job; from now on :attr:`log` is about it.

        ``check`` is called often and may raise. ValueError: the bridge refused. TimeoutError.
        """
        values = {"seed": job.seed, "instruction": job.instruction}
        request = SetParametersAtomically.Request(
            parameters=[Parameter(name, value=v).to_parameter_msg() for name, v in values.items()]
        )
        result = self.call(self._set, request, ANSWER_S, check).result
        if not result.successful:
            raise ValueError(f"the bridge refused {values}: {result.reason}")
        asked = ResetEpisode.Request(task=job.task, initial_state=job.initial_state)
        answer = self.call(self._begin, asked, ANSWER_S, check)
        if not answer.success:
            raise ValueError(f"the bridge refused: {answer.message}")
        with self.bell:
            self._strip = strip
            self._take_up(answer.episode)

    def follow(self, stall_s: float, check: Callable[[], None]) -> str:
        """Wait until the episode has ended and everything about it has come.

        Returns why it was given up: "" where it was not. In real time a FAULT ends it: the
        robot would only stand until the step limit.
        """
        until, progress = time.monotonic() + stall_s, self._progress()
        while not self.wait(self._has_ended, 0.5, check):
            if progress != (now := self._progress()):
                until, progress = time.monotonic() + stall_s, now
            if time.monotonic() > until:
                return f"no progress for {stall_s:g} s: {self.log.policy}"
        if self.log.ended:
            self.wait(self.log.complete, self._delay_s + COMPLETE_S, check)
        return ""

    def settle(self, check: Callable[[], None]) -> None:
        """Let the policy rest until the next episode; it says then what it counted."""
        with self.bell:
            self._strip = None
            epoch = self._status.epoch if self._status else 0
        self.call(self._reset, Trigger.Request(), ANSWER_S, check)
        self.wait(lambda: self._status is not None and self._status.epoch > epoch, COMPLETE_S)

    @property
    def steps(self) -> int:
        """Control steps that were seen of the episode."""
        with self.bell:
            return self.log.steps

    def _has_ended(self) -> bool:
        fault = self.log.state is PolicyState.FAULT and self._setup.mode is Mode.REALTIME
        return self.log.ended or fault

    def _progress(self) -> tuple[bool, int, int]:
        with self.bell:
            return self.log.progress

    def _take_up(self, number: int) -> None:
        if number > self.log.number:
            self.log = EvalLog(self._setup, number, self._status)

    # ------------------------------------------------------------------ what is heard

    def _on_episode(self, message: EpisodeStatus) -> None:
        with self.bell:
            self._take_up(message.episode)
            if message.episode == self.log.number:
                self.log.add_episode(episode_of(message))
            self.bell.notify_all()

    def _on_status(self, message: PolicyStatus) -> None:
        with self.bell:
            self._status = monitor_convert.status_seen(message)
            self.log.add_status(self._status)
            self.bell.notify_all()

    def _on_command(self, message: ActionCommand, info: MessageInfo) -> None:
        stages = monitor_convert.stages_seen(message.stages)
        arrival = self.clock.arrival(info)
        heard = Heard(command_of(message), arrival.now_ns, stages.inference_ms)
        with self.bell:
            self.log.add_command(heard)
            self.bell.notify_all()

    def _on_chunk(self, message: ActionChunk) -> None:
        inference = Inference(
            stamp_ns=stamp_of(message.observation_stamp),
            actions=message.actions,
            timeline=Timeline(0),
            tokens=tuple(map(int, message.tokens)),
            target_passes=message.target_passes,
            draft_passes=message.draft_passes,
            drafted=tuple(map(int, message.drafted)),
            accepted=tuple(map(int, message.accepted)),
        )
        with self.bell:
            self.log.add_inference(inference)
            self.bell.notify_all()

    def _on_frame(self, raw: bytes) -> None:
        with self.bell:
            self.log.add_frame(monitor_convert.header_stamp(raw))
            self.bell.notify_all()

    def _on_image(self, raw: bytes) -> None:
        with self.bell:
            strip = self._strip
            step = self.log.step_of(monitor_convert.header_stamp(raw))
        if strip is not None and step is not None:
            strip.add(image_of(deserialize_message(raw, Image), MAX_PIXELS), step)
