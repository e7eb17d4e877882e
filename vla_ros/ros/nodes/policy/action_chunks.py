"""GetActionChunk: the service by which MoveIt Pro's ExecutePolicy asks a policy for a chunk.

The request carries the observation, the answer a chunk of joint positions: the caller executes it,
within limits of its own. Nothing moves here, so the node is configured and *not* active meanwhile.
The interface is MoveIt Pro's (``moveit_pro_ml_msgs``), found where it is installed; of its fields
only those in docs/reference/topics.md are read and written.
"""

from __future__ import annotations

import importlib
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from rclpy.lifecycle import LifecycleNode
from rclpy.task import Future
from std_msgs.msg import Float64MultiArray, MultiArrayDimension
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from vla_ros.core.action_space import ActionKind, ActionSpace
from vla_ros.core.clock import Clock
from vla_ros.core.pixels import BadMessage, resized
from vla_ros.core.types import Executing, Floats, Image, Inference, Instruction, Observation
from vla_ros.ros.common.convert import stamp_of
from vla_ros.ros.common.images import pixels_of
from vla_ros.ros.nodes.policy.cameras import Camera
from vla_ros.ros.nodes.policy.inputs import joints_of
from vla_ros.ros.nodes.policy.link import LoopLink
from vla_ros.ros.nodes.policy.needs import FrameStreams
from vla_ros.ros.nodes.policy.outputs import gripper_ends
from vla_ros.runtime.control.control import Control
from vla_ros.runtime.control.goals import check_instruction
from vla_ros.runtime.control.joints import Joints
from vla_ros.runtime.control.queue import Execution
from vla_ros.runtime.worker.wire import WorkerResult

PACKAGE = "moveit_pro_ml_msgs"
_REQUEST = (
    "images", "image_names", "robot_state", "prompt", "new_episode", "previous_action_chunk",
    "frozen_prefix_steps", "guidance_horizon",
)  # fmt: skip
_RESPONSE = ("chunk", "native_control_period", "policy_action_chunk", "status", "message")
_CONSTANTS = ("CHUNK_PRODUCED", "ERROR")
_REMEMBERED = 8  # chunks that a caller may continue
_FIRST_EPOCH = -2  # from here downwards: the loop's are 0 and more, the warm-up's is -1


def get_action_chunk() -> Any:
    """The service's class. Raises ValueError, in one line, where it is not installed or has other
    fields than those that this node knows."""
    try:
        kind = importlib.import_module(f"{PACKAGE}.srv").GetActionChunk
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"action_chunk_service needs {PACKAGE}/srv/GetActionChunk, which cannot be imported"
            f" here ({error}): it comes with MoveIt Pro, source its workspace first"
        ) from None
    request, response = (
        part.get_fields_and_field_types() for part in (kind.Request, kind.Response)
    )
    lacking = [f"Request.{name}" for name in _REQUEST if name not in request]
    lacking += [f"Response.{name}" for name in _RESPONSE if name not in response]
    lacking += [f"Response.{name}" for name in _CONSTANTS if not hasattr(kind.Response, name)]
    if lacking:
        raise ValueError(
            f"this {PACKAGE}/srv/GetActionChunk has no {', '.join(lacking)}: this node speaks"
            " MoveIt Pro 10's"
        )
    return kind


def matrix_of(array: Float64MultiArray) -> Floats | None:
    """Rows of an array of two dimensions, float64 [n, D]; None: it is empty. Raises
    :class:`BadMessage`."""
    if not len(array.data):
        return None
    sizes, begin = [one.size for one in array.layout.dim], array.layout.data_offset
    if len(sizes) != 2 or sizes[0] * sizes[1] != len(array.data) - begin:
        raise BadMessage(
            f"previous_action_chunk has {len(array.data)} numbers and a layout of {sizes}: two"
            " dimensions, steps and numbers of an action, are wanted"
        )
    rows = np.array(array.data[begin:], np.float64).reshape(sizes)
    if not np.isfinite(rows).all():
        raise BadMessage("previous_action_chunk has numbers that are not finite")
    return rows


def array_of(rows: Floats) -> Float64MultiArray:
    """An array of two dimensions, steps and numbers of an action."""
    steps, width = rows.shape
    out = Float64MultiArray(data=rows.ravel().tolist())
    out.layout.dim = [
        MultiArrayDimension(label="steps", size=steps, stride=steps * width),
        MultiArrayDimension(label="dims", size=width, stride=width),
    ]
    return out


@dataclass(slots=True)
class _Asked:
    """The request that is with the worker. ``done``: its result, or why there will be none."""

    epoch: int
    stamp_ns: int
    done: Future[WorkerResult | str]


class ActionChunkService:
    """The service `get_action_chunk` of a loaded policy, from construction until :meth:`close`.

    One request at a time; it waits for the worker without holding up the node's other callbacks.
    Raises ValueError, in one line, for a policy that cannot be asked this way.
    ``turning``: the joints that turn without end, as far as they are known by now.
    """

    def __init__(
        self,
        node: LifecycleNode,
        values: Mapping[str, Any],
        clock: Clock,
        control: Control,
        link: LoopLink,
        needs: FrameStreams,
        turning: Callable[[], frozenset[str]],
    ) -> None:
        self._kind = get_action_chunk()
        self._space = control.loop.limits.space
        info = link.ready.info
        _refuse_unless_askable(self._space, info.pipeline_depth, info.decoding, needs)
        self._node, self._clock, self._control, self._link = node, clock, control, link
        self._needs, self._turning = needs, turning
        self._cameras: dict[str, Camera] = {"main": needs.main, **needs.more}
        if needs.wrist is not None:
            self._cameras["wrist"] = needs.wrist
        self._most = values["max_image_pixels"]
        self._ends = dict(zip(self._space.grippers, gripper_ends(values, self._space), strict=True))
        self._execution = Execution(values["execution"])
        self._continues = self._execution.value in info.continues
        self._epoch, self._made = _FIRST_EPOCH, deque[tuple[int, Floats]](maxlen=_REMEMBERED)
        self._lock = threading.Lock()
        self._asked: _Asked | None = None
        self._service = node.create_service(self._kind, "get_action_chunk", self._on_request)
        link.asker = self
        node.get_logger().info(
            f"serves {self._service.srv_name} while it is not active: image_names are"
            f" {', '.join(self._cameras)}, its limits are the caller's"
        )

    def close(self) -> None:
        self._link.asker = None
        self.lost("the policy node was cleaned up")
        self._node.destroy_service(self._service)

    # The worker's side, from its reader

    def result(self, result: WorkerResult) -> bool:
        """Take a result; False: it is not of a request of this service."""
        if result.epoch > _FIRST_EPOCH:
            return False
        with self._lock:
            asked = self._asked
            if asked and (asked.epoch, asked.stamp_ns) == (result.epoch, result.request_stamp_ns):
                self._asked = None
                asked.done.set_result(result)
        return True

    def lost(self, reason: str) -> None:
        """Give up the request under way: its answer will not come."""
        with self._lock:
            asked, self._asked = self._asked, None
        if asked is not None:
            asked.done.set_result(reason)

    # The caller's side

    async def _on_request(self, request: Any, response: Any) -> Any:
        try:
            await self._answer(request, response)
            response.status = self._kind.Response.CHUNK_PRODUCED
        except ValueError as error:
            response = self._kind.Response(message=str(error), status=self._kind.Response.ERROR)
            self._link.warn("get_action_chunk", f"get_action_chunk refused: {error}")
        return response

    async def _answer(self, request: Any, response: Any) -> None:
        """Fill the response. Raises ValueError, in one line."""
        observation = self._observation(request)
        going = self._going(request)
        observation = replace(
            observation, executing=going, delay_steps=going.delay_steps if going else 0
        )
        done: Future[WorkerResult | str] = Future(executor=self._node.executor)
        self._ask(observation, request, done)
        result = await done
        if isinstance(result, str):
            raise ValueError(f"no chunk: {result}")
        inference = result.inference
        if inference is None or inference.stamp_ns != observation.stamp_ns:
            raise ValueError(result.error_text or "the policy has no answer to this observation")
        response.chunk = self._trajectory(inference, request)
        response.native_control_period = self._control.loop.limits.action_period_s
        if self._continues:
            response.policy_action_chunk = array_of(inference.actions)
            self._made.append((inference.stamp_ns, inference.actions))
        if going is not None and inference.continues is None:
            response.message = (
                "made anew: nothing is left of the previous chunk, or it is forgotten"
            )

    def _ask(
        self, observation: Observation, request: Any, done: Future[WorkerResult | str]
    ) -> None:
        prompt = check_instruction(request.prompt)
        if not prompt:
            raise ValueError("the prompt is empty: say in words what is to be done")
        with self._control.lock:  # activate() takes it too
            if self._control.loop.safety.active:
                raise ValueError(
                    "the policy node is active and moves the robot itself: deactivate it first"
                )
            if not self._link.worker_pid:
                raise ValueError("the policy's worker was lost, another is loading: ask again")
            with self._lock:
                if self._asked is not None:
                    raise ValueError("another request is under way: one at a time")
                self._epoch -= bool(request.new_episode)
                self._asked = _Asked(self._epoch, observation.stamp_ns, done)
            try:
                self._link.executor.submit(observation, Instruction(prompt, self._epoch))
            except ValueError:
                self._asked = None
                raise

    # The observation

    def _observation(self, request: Any) -> Observation:
        images, stamps = self._images(request)
        wanted = frozenset((*self._needs.joint_names, *self._space.names))
        given = joints_of(request.robot_state, wanted)
        if missing := [name for name in self._space.names if name not in given[0]]:
            raise ValueError(f"robot_state lacks {', '.join(map(repr, missing))}, of the actions")
        return Observation(
            stamp_ns=min(stamps) or self._clock.now_ns(),
            received_ns=self._clock.now_ns(),
            received_steady_ns=self._clock.steady_ns(),
            image=images.pop("main"),
            wrist_image=images.pop("wrist", None),
            proprio=self._needs.layout.make({"joint_states": self._state(given)}),
            more_images=images,
        )

    def _images(self, request: Any) -> tuple[dict[str, Image], list[int]]:
        """Pixels by role, and the images' stamps in ns, 0 where there is none."""
        names = list(request.image_names)
        if len(names) != len(request.images):
            raise ValueError(f"{len(names)} image_names for {len(request.images)} images")
        if sorted(names) != sorted(self._cameras):
            raise ValueError(
                f"image_names are {', '.join(names) or 'none'}: this policy looks through"
                f" {', '.join(self._cameras)}, set image_names to these, each once"
            )
        pixels = {}
        for name, image in zip(names, request.images, strict=True):
            try:
                pixels[name] = resized(pixels_of(image, self._most), *self._cameras[name].resize)
            except BadMessage as error:
                raise ValueError(f"image {name}: {error}") from None
        return pixels, [stamp_of(image.header.stamp) for image in request.images]

    def _state(self, given: tuple[tuple[str, ...], Floats]) -> Floats | None:
        """Positions of the policy's joints in its order, those without end in its data's turn."""
        if not self._needs.joints:
            return None
        needs = self._needs
        joints = Joints(needs.joint_names, needs.size, (), needs.middle)
        joints.turning = self._turning()
        joints.add(0, given)
        found = joints.at(0, 0)
        if found is None:
            raise ValueError(f"robot_state {joints.lacks(0).text}")
        return found.value

    def _going(self, request: Any) -> Executing | None:
        """The chunk that the caller executes meanwhile: of which answer its rest is the end."""
        rest = matrix_of(request.previous_action_chunk)
        if rest is None:
            return None
        if not self._continues:
            raise ValueError(
                f"previous_action_chunk was given, and execution {self._execution.value} continues"
                " no chunk with this policy: give execution rtc, or turn real-time chunking off"
            )
        guided = int(request.guidance_horizon)
        if guided and self._execution is Execution.RTC_TRAINED:
            raise ValueError("execution rtc_trained guides nothing: set guidance_horizon to 0")
        for stamp_ns, actions in reversed(self._made):
            if np.array_equal(actions[-len(rest) :], rest):
                begin = len(actions) - len(rest)
                return Executing(stamp_ns, begin, int(request.frozen_prefix_steps), guided)
        raise ValueError(
            "previous_action_chunk is not the end of a policy_action_chunk among the last"
            f" {_REMEMBERED} of this node: send its rows back as they came"
        )

    # The chunk

    def _trajectory(self, inference: Inference, request: Any) -> JointTrajectory:
        """The chunk as joint positions, in the order of the request's joints. As MoveIt Pro's own
        servers send it: without times, which native_control_period gives."""
        state = dict(zip(request.robot_state.name, request.robot_state.position, strict=True))
        positions = np.array(inference.actions)
        for index, (closed, opened) in self._ends.items():
            share = np.clip(positions[:, index], 0.0, 1.0)
            positions[:, index] = closed + (opened - closed) * share
            if not self._link.ready.info.moves_grippers:
                positions[:, index] = state[self._space.names[index]]
        own = {name: index for index, name in enumerate(self._space.names)}
        names = [name for name in request.robot_state.name if name in own]
        rows = positions[:, [own[name] for name in names]].tolist()
        points = [JointTrajectoryPoint(positions=row) for row in rows]
        return JointTrajectory(joint_names=names, points=points)


def _refuse_unless_askable(
    space: ActionSpace, pipeline_depth: int, decoding: str, needs: FrameStreams
) -> None:
    """Raise ValueError, in one line, for a policy that a request cannot be put to."""
    begun = "action_chunk_service: "
    if space.kind is not ActionKind.JOINT_POSITION:
        kind = space.kind.name.lower()
        raise ValueError(
            f"{begun}MoveIt Pro executes joint positions, action_space is {kind}: it takes"
            " joint_position alone"
        )
    if needs.end_effector is not None or needs.ground_truth:
        what = "the end effector's pose" if needs.end_effector is not None else "ground truth"
        raise ValueError(f"{begun}this policy needs {what}, which a request has not")
    if pipeline_depth > 1:
        raise ValueError(
            f"{begun}decoding {decoding} answers {pipeline_depth - 1} frames later, and a request"
            " wants its answer now: choose another decoding"
        )
