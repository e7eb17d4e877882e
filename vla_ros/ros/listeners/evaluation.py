"""Node that begins the episodes of an evaluation at a bridge and records what is published.

Callbacks run in a thread of their own, see :mod:`vla_ros.ros.listeners.listener`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from rcl_interfaces.srv import SetParametersAtomically
from rclpy.parameter import Parameter
from sensor_msgs.msg import JointState
from std_srvs.srv import Trigger

from vla_ros.core.clock import Moment
from vla_ros.core.types import Inference, PolicyState
from vla_ros.data.episodes.records import Job, Setup
from vla_ros.data.episodes.store import FrameStrip
from vla_ros.msg import ActionCommand
from vla_ros.ros.common import qos
from vla_ros.ros.common.serialized import header_stamp
from vla_ros.ros.listeners.demo_log import EpisodeChange
from vla_ros.ros.listeners.evaluation_log import EvalLog, ReceivedCommand
from vla_ros.ros.listeners.listener import EpisodeWatcher, Keep
from vla_ros.ros.nodes.bridge.convert import command_of
from vla_ros.runtime.monitor.seen import StatusSeen
from vla_ros.sim.episode import Mode
from vla_ros.srv import ResetEpisode

if TYPE_CHECKING:
    from rclpy.subscription import MessageInfo  # Jazzy and Humble lack it

ANSWER_S = 10.0  # longest wait for a service
COMPLETE_S = 3.0  # after the end of an episode: for what is still on its way to us


class EvalWatcher(EpisodeWatcher):
    """Follower of an evaluation's episodes in the graph of ``domain``; use it with `with`.
    ``delay_s``: of the bridge's images. ``strip``: of the episode that the bridge begins by itself.
    """

    def __init__(
        self, domain: int, setup: Setup, delay_s: float = 0.0, strip: FrameStrip | None = None
    ) -> None:
        super().__init__("eval", domain, setup.mode is Mode.LOCKSTEP)
        self._setup = setup
        self._delay_s = delay_s
        self._strip = strip
        self.log = EvalLog(setup, 0, None)
        make = self.node.create_client
        self._set = make(SetParametersAtomically, "bridge/set_parameters_atomically")
        self._begin = make(ResetEpisode, "bridge/reset")
        self._reset = make(Trigger, "policy/reset")
        self.listen_raw(JointState, "joint_states", self._on_frame, qos.copy(qos.STATE, 1000))
        self.start()

    # From the caller

    def begin(self, job: Job, strip: FrameStrip | None, check: Callable[[], None]) -> None:
        """Begin the job at the bridge; from now on :attr:`log` is about it.

        ``check`` is called often and may raise. ValueError: the bridge refused. TimeoutError.
        """
        values = {"seed": job.seed, "instruction": job.instruction}
        request = SetParametersAtomically.Request(
            parameters=[Parameter(name, value=v).to_parameter_msg() for name, v in values.items()]
        )
        result = self.call(self._set, request, ANSWER_S, check).result
        if not result.successful:
            raise ValueError(f"the bridge refused {values}: {result.reason}")
        reset = ResetEpisode.Request(task=job.task, initial_state=job.initial_state)
        answer = self.call(self._begin, reset, ANSWER_S, check)
        if not answer.success:
            raise ValueError(f"the bridge refused: {answer.message}")
        with self.bell:
            self._strip = strip
            self._take_up(answer.episode)

    def follow(self, stall_s: float, check: Callable[[], None]) -> str:
        """Wait until the episode has ended and every message of it has come.

        Returns why it was given up, or "". In real time a FAULT ends it: the robot would only stand
        still until the step limit.
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
        """Reset the policy, which rests until the next episode; it reports its counts then."""
        with self.bell:
            self._strip = None
            epoch = self.status.epoch if self.status else 0
        self.call(self._reset, Trigger.Request(), ANSWER_S, check)
        self.wait(lambda: self.status is not None and self.status.epoch > epoch, COMPLETE_S)

    @property
    def steps(self) -> int:
        """Control steps of the episode that were received."""
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
            self.log = EvalLog(self._setup, number, self.status)

    # Received

    def on_episode(self, episode: EpisodeChange, arrival: Moment) -> None:
        self._take_up(episode.number)
        if episode.number == self.log.number:
            self.log.add_episode(episode)

    def on_status(self, status: StatusSeen, arrival: Moment) -> None:
        self.log.add_status(status)

    def on_command(self, message: ActionCommand, info: MessageInfo, arrival: Moment) -> None:
        self.log.add_command(ReceivedCommand(command_of(message), arrival.now_ns))

    def on_inference(self, inference: Inference) -> None:
        self.log.add_inference(inference)

    def on_image(self, stamp_ns: int, arrival: Moment) -> Keep | None:
        strip, step = self._strip, self.log.step_of(stamp_ns)
        if strip is None or step is None:
            return None
        return partial(strip.add, step=step)

    def _on_frame(self, raw: bytes) -> None:
        with self.bell:
            self.log.add_frame(header_stamp(raw))
            self.bell.notify_all()
