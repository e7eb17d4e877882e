"""The simulation bridge as a process, with a test in the policy's place."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import math
import os
import signal
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest

from support import built_messages
from support.processes import children
from support.ros import Inbox, RosPeer
from support.timing import bound, judge
from support.wait import wait_until

pytest.importorskip("rclpy")

from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import PoseStamped
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CameraInfo, Image, JointState
from std_msgs.msg import String
from std_srvs.srv import Trigger

from vla_ros.msg import ActionCommand, EpisodeStatus, NamedPoses, PolicyStatus
from vla_ros.ros.common import qos
from vla_ros.ros.common.convert import stamp_of, to_time
from vla_ros.srv import ResetEpisode

LOCKSTEP = {"mode": "lockstep", "image_size": 32}
ANSWER_S = 1.0  # answer_timeout_s: an answer of a test that has no processor is not a missing one
REALTIME = {**LOCKSTEP, "mode": "realtime"}
MS = 1_000_000


def command(stamp: int, number: int, **changes: object) -> ActionCommand:
    """An answer to the frame of that stamp: down, and to and fro."""
    out = ActionCommand(sequence=number, kind=ActionCommand.KIND_POLICY)
    out.header.stamp = to_time(stamp + 1)
    out.observation_stamp = out.latest_observation_stamp = to_time(stamp)
    out.valid_until = to_time(stamp + 500 * MS)
    out.action = [0.02 * (-1) ** number, 0.01, -0.03, 0.0, 0.0, 0.1, float(number % 2)]
    for name, value in changes.items():
        setattr(out, name, value)
    return out


class Policy:
    """Sees what the bridge publishes and answers frame number n with ``answer(n, stamp)``.

    Its status says that it is active once everything between the two is connected.
    """

    def __init__(self, ros: RosPeer, answer=None) -> None:
        self.ros = ros
        self.answer = answer or (lambda number, stamp: command(stamp, number))
        self.actions = ros.publisher(ActionCommand, "/policy/action", qos.ACTION)
        self.own_status = ros.publisher(PolicyStatus, "/policy/status", qos.LATCHED)
        self.clock = ros.inbox(Clock, "/clock")
        self.wrist = ros.inbox(Image, "/wrist_image")
        self.joints = ros.inbox(JointState, "/joint_states")
        self.truth = ros.inbox(NamedPoses, "/ground_truth")
        self.instructions: list[str] = []
        self.frames: list[Image] = []
        self._image = ros.node.create_subscription(Image, "/image", self._on_image, 100)
        ros.node.create_subscription(String, "/instruction", self._on_instruction, qos.LATCHED)
        # The last of the readers: a bridge that serves it knows those before it.
        self.status = ros.inbox(EpisodeStatus, "/bridge/episode", qos.LATCHED)

    def connect(self, *others: Inbox) -> None:
        """Be active from now on. ``others``: what the test listens to beside this."""
        self.ros.wait_for_subscriber(self.actions, 30.0)
        boxes = (self.wrist, self.joints, self.truth, *others)
        for reader in (self._image, *(box.subscription for box in boxes)):
            wait_until(
                lambda r=reader: r.get_publisher_count() > 0,
                10.0,
                f"a publisher of {reader.topic_name}",
            )
        self.status.wait(timeout=10.0)
        self.own_status.publish(PolicyStatus(state=PolicyStatus.STATE_WAITING))

    def _on_instruction(self, message: String) -> None:
        self.instructions.append(message.data)
        status = PolicyStatus(state=PolicyStatus.STATE_WAITING, instruction=message.data)
        self.own_status.publish(status)

    def _on_image(self, message: Image) -> None:
        number = len(self.frames)
        self.frames.append(message)
        answer = self.answer(number, stamp_of(message.header.stamp))
        if answer is not None:
            self.actions.publish(answer)

    def reset(self, task: str = "", initial_state: int = 0) -> ResetEpisode.Response:
        request = ResetEpisode.Request(task=task, initial_state=initial_state)
        return self.ros.call(ResetEpisode, "/bridge/reset", request)

    def ended(self, episode: int, timeout: float = 15.0) -> EpisodeStatus:
        final = (EpisodeStatus.STATE_SUCCESS, EpisodeStatus.STATE_FAILURE)
        return self.status.wait(lambda m: m.episode == episode and m.state in final, timeout)

    def running(self, episode: int) -> EpisodeStatus:
        running = EpisodeStatus.STATE_RUNNING
        return self.status.wait(lambda m: m.episode == episode and m.state == running, 15.0)


def sim_pid(bridge_pid: int) -> int:
    """The process that the bridge started."""
    (child,) = children(bridge_pid)
    return child


def stamps_of(messages: list) -> list[int]:
    return [stamp_of(m.header.stamp) for m in messages]


# Lock-step


def test_lockstep_is_the_same_every_time(spawn_node, ros):
    """Two episodes of the same state and commands: every byte of every message but the stamps."""
    policy = Policy(ros, lambda number, stamp: command(stamp, number % 9))
    spawn_node("bridge", LOCKSTEP | {"max_steps": 8})
    policy.connect()
    first = policy.ended(1)
    assert policy.reset("", 0).success
    assert policy.ended(2).reason == first.reason == "not solved within 8 steps"
    assert (first.step, first.actions_applied, first.idle_steps) == (8, 8, 0)
    for stream in (policy.truth, policy.joints, policy.wrist, policy.frames):
        wait_until(lambda stream=stream: len(stream) >= 18, 5.0, "18 of each")
    for stream in (policy.frames, policy.wrist.messages):
        pixels = [bytes(message.data) for message in stream]
        assert pixels[:9] == pixels[9:18]
        assert len(set(pixels[:9])) == 9  # the world did move
        assert (stream[0].encoding, stream[0].width, stream[0].step) == ("rgb8", 32, 96)
    assert len({tuple(m.position) for m in policy.joints.messages[:9]}) == 9
    for inbox in (policy.joints, policy.truth):
        for message in inbox.messages:
            message.header.stamp = to_time(0)
        assert inbox.messages[:9] == inbox.messages[9:18]


def test_one_step_one_stamp_and_a_clock_that_never_goes_back(spawn_node, ros):
    policy = Policy(ros)
    spawn_node("bridge", LOCKSTEP | {"max_steps": 5})
    policy.connect()
    policy.ended(1)
    policy.reset()
    policy.ended(2)
    streams = (policy.frames, policy.wrist.messages, policy.joints.messages, policy.truth.messages)
    wait_until(lambda: all(len(stream) >= 12 for stream in streams), 5.0, "12 of each")
    stamps = stamps_of(policy.frames)
    assert len(stamps) == 12
    for stream in streams:
        assert stamps_of(stream) == stamps
    assert stamps == sorted(set(stamps))
    assert {b - a for a, b in itertools.pairwise(stamps)} <= {50 * MS, 100 * MS}

    def clock() -> list[int]:
        return [stamp_of(m.clock) for m in policy.clock.messages]

    wait_until(lambda: set(stamps) <= set(clock()), 5.0, "the clock of every frame")
    assert clock() == sorted(clock())
    assert policy.instructions[-1] == "pick up the red cube and put it on the plate"
    assert "gripper" in policy.truth.last.names
    assert len(policy.joints.last.name) == len(policy.joints.last.position) == 9


def test_every_image_comes_with_its_camera_and_the_robot_describes_itself(spawn_node, ros):
    """By the names that other tools of ROS look for; what nobody listens to is not made."""
    infos = {
        image: ros.inbox(CameraInfo, topic)
        for image, topic in (("image", "/camera_info"), ("wrist", "/wrist_camera_info"))
    }
    poses = ros.inbox(PoseStamped, "/end_effector_pose")
    policy = Policy(ros)
    spawn_node("bridge", LOCKSTEP | {"max_steps": 5})
    policy.connect(*infos.values(), poses)
    policy.ended(1)
    wait_until(lambda: len(policy.frames) == 6, 5.0, "6 frames")
    stamps = stamps_of(policy.frames)
    for image, images in (("image", policy.frames), ("wrist", policy.wrist.messages)):
        role = "main" if image == "image" else image
        for inbox in (images, infos[image].messages):
            wait_until(lambda inbox=inbox: len(inbox) == 6, 5.0, f"6 of {image}")
            assert stamps_of(inbox) == stamps
            assert {m.header.frame_id for m in inbox} == {f"{role}_camera_optical_frame"}
        info = infos[image].messages[0]
        assert (info.width, info.height, info.k[2]) == (32, 32, 15.5)
    wait_until(lambda: len(policy.truth) == len(poses) == 6, 5.0, "6 of both")
    truth = {stamp_of(m.header.stamp): m for m in policy.truth.messages}
    assert stamps_of(poses.messages) == stamps
    for pose in poses.messages:  # nobody has to know the ground truth for it
        seen = truth[stamp_of(pose.header.stamp)]
        assert pose.header.frame_id == seen.header.frame_id == "world"
        assert pose.pose.position == seen.poses[seen.names.index("gripper")].position
    late = ros.inbox(String, "/robot_description", qos.LATCHED)
    urdf = ElementTree.fromstring(late.wait(timeout=5.0).data)
    moving = {j.get("name") for j in urdf.findall("joint") if j.get("type") != "fixed"}
    assert moving == set(policy.joints.messages[0].name)
    health = ros.inbox(DiagnosticArray, "/diagnostics").wait(timeout=5.0).status[0]
    assert health.name == "bridge: episode" and health.message.startswith("FAILURE: not solved")


@pytest.fixture
def tf2_msgs(tmp_path, monkeypatch):
    """The package, for this process and for those that it starts."""
    try:
        folder = built_messages.where("tf2_msgs", tmp_path)
    except LookupError as missing:
        pytest.skip(str(missing))
    if folder:
        monkeypatch.syspath_prepend(folder)
    yield folder
    for name in [name for name in sys.modules if folder and name.startswith("tf2_msgs")]:
        del sys.modules[name]


def test_transforms_come_with_every_image(spawn_node, ros, tf2_msgs):
    kind = importlib.import_module("tf2_msgs.msg").TFMessage
    transforms, static = ros.inbox(kind, "/tf"), ros.inbox(kind, "/tf_static", qos.LATCHED)
    policy = Policy(ros)
    path = os.pathsep.join(filter(None, (tf2_msgs, os.environ.get("PYTHONPATH", ""))))
    spawn_node("bridge", LOCKSTEP | {"max_steps": 5}, extra_env={"PYTHONPATH": path})
    policy.connect(transforms)
    policy.ended(1)
    assert {t.header.frame_id for t in static.wait(timeout=5.0).transforms} >= {"base_link", "hand"}
    wait_until(lambda: len(policy.frames) == len(transforms) == 6, 5.0, "6 of both")
    stamps = [stamp_of(m.transforms[0].header.stamp) for m in transforms.messages]
    assert stamps == stamps_of(policy.frames)
    # One tree, from the world down: no frame has two parents, and each hangs somewhere.
    tree = [*transforms.messages[-1].transforms, *static.last.transforms]
    parents = {t.child_frame_id: t.header.frame_id for t in tree}
    assert len(parents) == len(tree)
    assert set(parents.values()) - set(parents) == {"world"}


def test_without_tf2_msgs_no_transforms_are_published(spawn_node, ros):
    if importlib.util.find_spec("tf2_msgs") is not None:
        pytest.skip("tf2_msgs is installed here")
    bridge = spawn_node("bridge", LOCKSTEP | {"max_steps": 1})
    bridge.wait_for_log("no transforms are published: tf2_msgs cannot be imported", 20.0)


def test_bad_answers_are_refused_and_the_next_good_one_counts(spawn_node, ros):
    bad = [
        {"action": [math.nan] * 7},
        {"action": [0.0, 0.0, math.inf, 0.0, 0.0, 0.0, 1.0]},
        {"valid_until": to_time(1)},
        {"latest_observation_stamp": to_time(1)},
        {"kind": 77},
    ]

    def answer(number: int, stamp: int) -> ActionCommand:
        return command(stamp, number, **(bad[number] if number < len(bad) else {}))

    policy = Policy(ros, answer)
    bridge = spawn_node("bridge", LOCKSTEP | {"max_steps": 2, "answer_timeout_s": ANSWER_S})
    policy.connect()
    status = policy.ended(1)
    assert status.reason == "not solved within 2 steps"
    assert (status.actions_applied, status.actions_rejected, status.resends) == (2, 5, 5)
    assert len({bytes(m.data) for m in policy.frames[:6]}) == 1  # nothing moved meanwhile
    assert len({stamp_of(m.header.stamp) for m in policy.frames[:6]}) == 1
    bridge.wait_for_log("command not executed: its action is not finite")


def test_no_answer_ends_the_episode_and_the_next_one_is_free_of_it(spawn_node, ros):
    policy = Policy(ros, lambda number, stamp: None)
    spawn_node("bridge", LOCKSTEP | {"max_steps": 2, "answer_timeout_s": ANSWER_S})
    policy.connect()
    status = policy.ended(1)
    assert status.state == EpisodeStatus.STATE_FAILURE
    assert status.reason == "no answer to the frame of step 0 after 5 resends"
    assert status.step == 0
    wait_until(lambda: len(policy.frames) == 6, 5.0, "a frame and five resends")
    policy.answer = lambda number, stamp: command(stamp, number)
    policy.reset()
    status = policy.ended(2)
    assert (status.step, status.resends, status.actions_rejected) == (2, 0, 0)


# Real time


@pytest.mark.timing
def test_real_time_executes_what_is_fresh_and_nothing_else(spawn_node, ros):
    policy = Policy(ros, lambda number, stamp: None)
    spawn_node("bridge", REALTIME | {"max_steps": 40})
    policy.connect()
    first = policy.running(1)
    wait_until(lambda: len(policy.frames) > 2, 10.0, "frames")
    now = time.time_ns()
    assert abs(now - stamp_of(policy.frames[-1].header.stamp)) < 500 * MS  # wall time
    policy.actions.publish(command(now, 1, valid_until=to_time(now - 1)))
    policy.actions.publish(command(stamp_of(first.header.stamp) - 10**9, 2))
    policy.actions.publish(command(now, 3, action=[math.nan] * 7))
    # Good for long: the world of a busy machine may come to it late.
    good = command(now, 4, valid_until=to_time(now + 10**10))
    policy.actions.publish(good)
    policy.actions.publish(good)  # the same again
    status = policy.ended(1)
    assert (status.step, status.actions_applied, status.actions_rejected) == (40, 1, 4)
    assert status.idle_steps == 39
    keeps_pace(status)
    assert len(policy.clock) == 0


@pytest.mark.timing
def test_a_world_that_is_stepped_at_a_higher_rate_shows_as_many_images(spawn_node, ros):
    """Joints are published at every step of the world, images at the action rate."""
    policy = Policy(ros, lambda number, stamp: None)
    spawn_node("bridge", REALTIME | {"max_steps": 40, "control_rate_hz": 60.0})
    policy.connect()
    status = policy.ended(1)
    assert (status.step, status.max_steps, status.control_steps) == (40, 40, 120)
    assert (status.action_rate_hz, status.control_rate_hz, status.idle_steps) == (20.0, 60.0, 120)
    begin, end = stamp_of(policy.running(1).header.stamp), stamp_of(status.header.stamp)

    def during(messages: list) -> int:
        return sum(begin <= stamp <= end for stamp in stamps_of(messages))

    wait_until(lambda: during(policy.joints.messages) >= 119, 5.0, "the joints of every step")
    assert 39 <= during(policy.frames) <= 42
    assert status.achieved_rate_hz < 63.0
    judge("time per step", 1 / status.achieved_rate_hz, quiet=1 / 45, loaded=1 / 9)


def keeps_pace(status: EpisodeStatus) -> None:
    """20 steps a second, or what a busy machine can; never more."""
    assert status.achieved_rate_hz < 21.0
    judge("time per step", 1 / status.achieved_rate_hz, quiet=1 / 15, loaded=1 / 3)


@pytest.mark.timing
def test_delayed_images_keep_their_stamps_and_the_world_its_pace(spawn_node, ros):
    """Everything seen is 300 ms old when it comes, in order, at the rate of the control steps."""
    receipts: list[tuple[int, int]] = []  # stamp, age on receipt

    def on_image(message: Image) -> None:
        stamp = stamp_of(message.header.stamp)
        receipts.append((stamp, time.time_ns() - stamp))

    ros.node.create_subscription(Image, "/image", on_image, 100)
    policy = Policy(ros, lambda number, stamp: None)
    spawn_node("bridge", REALTIME | {"max_steps": 40, "image_delay_ms": 300.0})
    policy.connect()
    status = policy.ended(1)
    keeps_pace(status)
    end = stamp_of(status.header.stamp)
    wait_until(lambda: receipts and receipts[-1][0] > end, 5.0, "the delayed images")
    shown = sum(stamp + age <= end for stamp, age in receipts)
    assert shown < 40  # the last ones are still under way when the episode ends
    episode = [(stamp, age) for stamp, age in receipts if stamp <= end]
    assert len(episode) == 41
    assert min(age for _, age in receipts) >= 300 * MS
    median = sorted(age for _, age in episode)[20] / MS
    judge("median age on receipt", median, quiet=400.0, loaded=800.0, unit="ms")
    stamps = [stamp for stamp, _ in receipts]
    assert stamps == sorted(stamps)
    wait_until(lambda: len(policy.joints) > 41, 5.0, "the states that belong to them")
    joints = [stamp_of(m.header.stamp) for m in policy.joints.messages]
    assert joints[:41] == stamps[:41]
    policy.reset()  # what is under way is not seen in the next episode
    began = stamp_of(policy.running(2).header.stamp)
    wait_until(lambda: receipts[-1][0] >= began, 5.0, "an image of the next episode")
    # By their stamps: what was shown before may reach a busy reader after the news of the episode.
    assert not [s for s, _ in receipts if began - 300 * MS < s < began - 25 * MS]


def test_an_end_is_one_line_and_the_next_episode_begins_by_itself(spawn_node, ros):
    """Status, pause with a living camera, reset, instruction, and the next initial state."""
    events: list[str] = []

    def reset(_: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        events.append("reset")
        response.success = True
        return response

    ros.node.create_service(Trigger, "/policy/reset", reset)
    ros.node.create_subscription(
        String, "/instruction", lambda m: events.append(m.data), qos.LATCHED
    )
    policy = Policy(ros, lambda number, stamp: None)
    every = {"max_steps": 4, "auto_reset": True, "reset_pause_s": 1.0}
    bridge = spawn_node("bridge", REALTIME | every)
    policy.connect()
    bridge.wait_for_log("episode 1 of pick_red_cube: begins in initial state 0")
    end = policy.ended(1)
    bridge.wait_for_log(
        "episode 1 of pick_red_cube: failure after 4 steps (not solved within 4 steps);"
        " the next begins in 1 s"
    )
    task = "pick up the red cube and put it on the plate"
    assert events[:2] == ["reset", task]
    begin = policy.running(2)
    wait_until(lambda: len(events) >= 4, 5.0, "the instruction of the second")
    assert events == ["reset", task, "reset", task]
    assert begin.initial_state == 1
    ended, began = stamp_of(end.header.stamp), stamp_of(begin.header.stamp)
    # The stand-in's status names no new epoch, for which the bridge waits 2 s.
    assert 0.9 < (began - ended) / 1e9 < 6.0
    frames = [(stamp_of(m.header.stamp), bytes(m.data)) for m in policy.frames]
    pause = [(stamp, seen) for stamp, seen in frames if ended < stamp < ended + 900 * MS]
    assert bound(quiet=-12, loaded=-3) >= -len(pause) >= -19
    assert {seen for _, seen in pause} == {frames[4][1]}


def test_without_auto_reset_the_end_says_how_to_go_on(spawn_node, ros):
    policy = Policy(ros, lambda number, stamp: None)
    bridge = spawn_node("bridge", REALTIME | {"max_steps": 2, "task": "reach_red_cube"})
    policy.connect()
    policy.ended(1)
    bridge.wait_for_log("(not solved within 2 steps); call /bridge/reset to begin another")
    before = len(policy.frames)
    wait_until(lambda: len(policy.frames) > before + 20, 20.0, "a camera that goes on")
    assert policy.status.last.episode == 1


# The policy's side


@pytest.mark.parametrize("given", ["fetch the purple cube", " "])
def test_the_instruction_can_be_another_than_the_task_s(spawn_node, ros, given):
    policy = Policy(ros)
    spawn_node("bridge", LOCKSTEP | {"max_steps": 2, "instruction": given})
    policy.connect()
    status = policy.ended(1)
    assert policy.instructions[-1] == status.instruction == given.strip()
    assert ros.set_parameter("/bridge", "instruction", "go\ton")[0]
    answer = policy.reset()
    assert not answer.success
    assert answer.message == "instruction has the control character U+0009"
    assert ros.set_parameter("/bridge", "instruction", "")[0]
    answer = policy.reset()
    assert answer.instruction == "pick up the red cube and put it on the plate"
    assert policy.ended(answer.episode).instruction == answer.instruction
    assert policy.instructions[-1] == answer.instruction


def test_episodes_begin_when_the_policy_is_active_and_reset(spawn_node, ros):
    """The order is: reset, instruction known, first frame."""
    events: list[str] = []

    def reset(_: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        events.append("reset")
        response.success = True
        return response

    def say(state: int, epoch: int, instruction: str = "") -> None:
        statuses.publish(PolicyStatus(state=state, epoch=epoch, instruction=instruction))

    statuses = ros.publisher(PolicyStatus, "/policy/status", qos.LATCHED)
    ros.node.create_service(Trigger, "/policy/reset", reset)
    ros.node.create_subscription(
        String, "/instruction", lambda m: events.append(m.data), qos.LATCHED
    )
    ros.node.create_subscription(Image, "/image", lambda _: events.append("frame"), 10)
    clock = ros.inbox(Clock, "/clock")
    status = ros.inbox(EpisodeStatus, "/bridge/episode", qos.LATCHED)
    say(PolicyStatus.STATE_INACTIVE, epoch=7)
    spawn_node("bridge", LOCKSTEP)
    waiting = status.wait(lambda m: m.reason == "waits for the policy", 15.0)
    assert waiting.state == EpisodeStatus.STATE_RESETTING
    wait_until(lambda: len(clock) > 2, 5.0, "the clock of a waiting bridge")
    assert events == []
    say(PolicyStatus.STATE_WAITING, epoch=7)
    wait_until(lambda: len(events) == 2, 5.0, "reset and instruction")
    task = "pick up the red cube and put it on the plate"
    say(PolicyStatus.STATE_WAITING, epoch=7, instruction=task)  # it does know, but not yet anew
    clock.wait_new(timeout=5.0)
    assert events == ["reset", task]
    say(PolicyStatus.STATE_WAITING, epoch=8, instruction=task)
    wait_until(lambda: len(events) > 2, 5.0, "the first frame")
    assert events[:3] == ["reset", task, "frame"]


# Requests and ends


def test_reset_takes_a_task_and_refuses_what_is_not_there(spawn_node, ros):
    policy = Policy(ros, lambda number, stamp: None)
    spawn_node("bridge", LOCKSTEP | {"answer_timeout_s": 30.0})
    policy.connect()
    policy.running(1)
    answer = policy.reset("juggle")
    assert not answer.success
    assert answer.message.startswith("tabletop has no task 'juggle'; it has: pick_red_cube, ")
    assert "reach_yellow_cube" in answer.message
    answer = policy.reset("pick_red_cube", 50)
    assert answer.message == "pick_red_cube has no initial state 50; it has 0 to 49"
    answer = policy.reset("push_blue_cube_left", 3)
    assert (answer.success, answer.episode) == (True, 2)
    assert answer.instruction == "push the blue cube to the left"
    status = policy.running(2)
    assert (status.task, status.initial_state) == ("push_blue_cube_left", 3)
    wait_until(lambda: answer.instruction in policy.instructions, 5.0, "the instruction")
    assert policy.reset("", -1).success  # the same task, the next state
    assert policy.running(3).initial_state == 4


def test_a_lost_simulation_is_reported_and_comes_back(spawn_node, ros):
    policy = Policy(ros, lambda number, stamp: None)
    bridge = spawn_node("bridge", REALTIME | {"max_steps": 1000})
    policy.connect()
    policy.running(1)
    os.kill(sim_pid(bridge.pid), signal.SIGKILL)
    status = policy.ended(1)
    assert status.state == EpisodeStatus.STATE_FAILURE
    assert "simulation" in status.reason
    policy.reset()
    policy.running(2)
    policy.status.wait(lambda m: m.episode == 2 and m.step > 0)


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "simulation hangs"])
def test_sigterm_ends_it_with_its_simulation(spawn_node, ros, stopped):
    policy = Policy(ros, lambda number, stamp: None)
    bridge = spawn_node("bridge", REALTIME | {"max_steps": 1000})
    policy.connect()
    policy.running(1)
    child = sim_pid(bridge.pid)
    if stopped:
        os.kill(child, signal.SIGSTOP)
    bridge.signal(signal.SIGTERM)
    assert bridge.wait(bound(quiet=5.0, loaded=15.0)) == 0
    assert not Path(f"/proc/{child}").exists()


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({"task": "juggle"}, "bad parameter: tabletop has no task 'juggle'; it has: pick_red"),
        ({"mode": "fast"}, "mode is 'fast', must be one of lockstep, realtime"),
        ({"image_size": 5}, "image_size"),
        ({"instruction": "go\x07"}, "bad parameter: instruction has the control character U+0007"),
    ],
)
def test_a_bad_parameter_is_one_line_and_exit_2(spawn_node, parameters, why):
    bridge = spawn_node("bridge", parameters)
    assert bridge.wait(60.0) == 2
    assert why in bridge.log
    assert "Traceback" not in bridge.log


def test_without_opengl_it_says_what_to_do(spawn_node):
    bridge = spawn_node("bridge", LOCKSTEP, extra_env={"MUJOCO_GL": "vulkan"})
    assert bridge.wait(60.0) == 1
    assert "the simulation cannot be started: MUJOCO_GL is 'vulkan': unset it" in bridge.log
    assert "Traceback" not in bridge.log
