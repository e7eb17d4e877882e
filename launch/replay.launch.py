"""A bag, played into a policy.

    ros2 launch vla_ros replay.launch.py bag:=run1
    ros2 launch vla_ros replay.launch.py bag:=run1 decoding:=speculative html:=report.html
    ros2 launch vla_ros replay.launch.py bag:=cam player:=ros2bag image:=/cam/color policy:=vla \\
        checkpoint:=/models/openvla-7b instruction:="pick up the red cube"

`player:=vla_ros` (default) runs `vla-ros replay`: lock-step, in a ROS domain of its own, with a
comparison and a report at the end. `player:=ros2bag` runs `ros2 bag play` beside the policy of
policy.launch.py, in this domain, so that other nodes can watch; the policy lives in the bag's time,
and every argument of policy.launch.py can be given. `vla-ros replay` takes those that set a
parameter, and `parameters`; arguments that a player cannot follow are refused. The launch ends
with the player's exit status: of `vla-ros replay` 0 for identical, 1 for different, 2 for a bag
that cannot be played.
"""

import json
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path

from launch import LaunchContext, LaunchDescription, LaunchDescriptionEntity
from launch.actions import (
    DeclareLaunchArgument,
    ExecuteProcess,
    IncludeLaunchDescription,
    OpaqueFunction,
    RegisterEventHandler,
    Shutdown,
    TimerAction,
)
from launch.event_handlers import OnProcessExit
from launch.events.process import ProcessExited
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.substitutions import FindPackageShare

from vla_ros.ros.bringup.environment import OVERRIDE, defaults, enclave_of, ends_with_launch
from vla_ros.ros.bringup.graph_file import argument
from vla_ros.ros.bringup.launch_arguments import refuse_undeclared

SHARE = FindPackageShare("vla_ros")

# Of the policy, handed on by both players: name, description.
OVERRIDES = (
    ("policy", "Which policy to run; empty: as recorded"),
    ("checkpoint", "vla: model"),
    ("decoding", "vla: how tokens are decoded"),
    ("device", "vla: torch device"),
    ("dtype", "vla: number format of the weights"),
    ("weights", "vla: formats of the weights, such as int8 or decoder=int4,head=int8"),
    ("instruction", "The task, instead of the bag's own"),
)
# Of `vla-ros replay` alone.
OPTIONS = (
    ("golden", "Compare with this file"),
    ("save", "Keep the actions as a golden file"),
    ("tolerance", "Largest difference that is none"),
    ("html", "Write the report as a page"),
)
# What the policy listens to, by its usual names, and what `ros2 bag play` plays of a bag: the
# recorded commands must not come beside those of the policy.
TOPICS = ("image", "wrist_image", "joint_states", "ground_truth", "instruction")
START_S = 5.0  # for the policy to load before the first frame
# The other arguments of policy.launch.py: those that are a parameter of the policy node, and those
# that `vla-ros replay` cannot follow, with the values that ask for nothing.
PARAMETERS = (
    "require_verified",
    "replay_file",
    "frame_id",
    "action_rate_hz",
    "control_rate_hz",
    "max_age_s",
)
ROS2BAG_ALONE = {
    "contract": "",
    "robot": "",
    "params_file": "",
    "extra_params_file": "",
    "remappings": "{}",
    "monitor_params_file": "",
    "namespace": "",
    "enclave": "",
    "use_sim_time": "false",
    "log_level": "info",
    "monitor": "true",
    "record": "",
    "autostart": "true",
    "mode": "",
    "end_effector_pose": "end_effector_pose",
    "measured_pose": "measured_pose",
    "start_after_s": str(START_S),
}


def arguments() -> list[DeclareLaunchArgument]:
    """Arguments, written as NAME:=VALUE."""
    return [
        DeclareLaunchArgument("bag", description="The bag: a folder, an .mcap or a .db3 file"),
        DeclareLaunchArgument(
            "player",
            default_value="vla_ros",
            choices=["vla_ros", "ros2bag"],
            description="vla_ros: lock-step and a report; ros2bag: `ros2 bag play`",
        ),
        DeclareLaunchArgument("rate", default_value="", description="Times as fast as recorded"),
        DeclareLaunchArgument(
            "start_after_s",
            default_value=str(START_S),
            description="ros2bag: time for the policy to load before the first frame",
        ),
        DeclareLaunchArgument(
            "enclave",
            default_value="",
            description="ros2bag: folder of SROS 2 enclaves: the bag uses ENCLAVE/replay",
        ),
        *(
            DeclareLaunchArgument(name, default_value="", description=text)
            for name, text in (*OVERRIDES, *OPTIONS)
        ),
        *(
            DeclareLaunchArgument(
                name, default_value=name, description=f"What {name} is called in the bag"
            )
            for name in TOPICS[:3]
        ),
    ]


def play(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    """The player, once the arguments are known."""

    def given(name: str) -> str:
        return LaunchConfiguration(name).perform(context)

    if given("player") == "ros2bag":
        for name, _ in OPTIONS:
            if given(name):
                raise RuntimeError(f"{name} is for player:=vla_ros: ros2 bag play has no report")
        _refuse_without_ros2_bag()
        return _ros2bag(given, context.environment)
    return _vla_ros(context.launch_configurations)


def _vla_ros(given: Mapping[str, str]) -> list[LaunchDescriptionEntity]:
    """Player `vla-ros replay`. ``given``: arguments of policy.launch.py too."""
    for name, nothing in ROS2BAG_ALONE.items():
        if given.get(name, "") not in ("", nothing):
            raise RuntimeError(
                f"{name} is for player:=ros2bag: `vla-ros replay` brings up a policy node by itself"
                " (its parameters: parameters:='{NAME: VALUE}')"
            )
    command = ["vla-ros", "replay", given["bag"]]
    for name in ("rate", *(name for name, _ in (*OVERRIDES, *OPTIONS))):
        if given[name]:
            command += [f"--{name}", given[name]]
    for name in TOPICS[:3]:
        if given[name] != name:
            command += ["-r", f"{name}={given[name]}"]
    for name in PARAMETERS:
        if given.get(name):
            command += ["-p", f"{name}={given[name]}"]
    for name, value in argument("parameters", given.get("parameters", "")).items():
        command += ["-p", f"{name}={json.dumps(value, default=str)}"]
    replay = ExecuteProcess(
        cmd=command, name="replay", output="screen", additional_env=ends_with_launch()
    )
    return [replay, _end_with(replay)]


def _ros2bag(
    given: Callable[[str], str], environment: Mapping[str, str]
) -> list[LaunchDescriptionEntity]:
    # The bag's topics are renamed as they are played, so the policy keeps the usual names.
    handed_on = {"use_sim_time": "true"} | {name: name for name in TOPICS[:3]}
    handed_on |= {name: given(name) for name, _ in OVERRIDES if given(name)}
    policy = IncludeLaunchDescription(
        PythonLaunchDescriptionSource(PathJoinSubstitution([SHARE, "launch", "policy.launch.py"])),
        launch_arguments=handed_on.items(),
    )
    names = {name: given(name) if name in TOPICS[:3] else name for name in TOPICS}
    topics = [name if name.startswith("/") else f"/{name}" for name in names.values()]
    command = ["ros2", "bag", "play", given("bag"), "--clock", "100", "--topics", *topics]
    if given("rate"):
        command += ["--rate", given("rate")]
    renamed = [f"{new}:=/{old}" for old, new in names.items() if old != new]
    if renamed:
        command += ["--remap", *renamed]
    keys = {OVERRIDE: enclave_of(given("enclave"), "replay")} if given("enclave") else {}
    player = ExecuteProcess(
        cmd=command, name="bag", output="screen", additional_env=defaults(environment) | keys
    )
    later = TimerAction(period=float(given("start_after_s")), actions=[player])
    return [policy, later, _end_with(player)]


def _refuse_without_ros2_bag() -> None:
    """One line, instead of a usage text and a policy that was brought up for nothing."""
    if not any(verb.name == "bag" for verb in entry_points(group="ros2cli.command")):
        raise RuntimeError(
            "player:=ros2bag needs `ros2 bag`, which is not installed here: sudo apt-get install"
            " ros-$ROS_DISTRO-ros2bag ros-$ROS_DISTRO-rosbag2, or leave player:= out, whose"
            " `vla-ros replay` reads the bag by itself"
        )


def _end_with(process: ExecuteProcess) -> RegisterEventHandler:
    return RegisterEventHandler(OnProcessExit(target_action=process, on_exit=_ended))


def _ended(event: ProcessExited, context: LaunchContext) -> Shutdown | None:
    """Shutdown at the end of the player, whose status is that of the launch."""
    if context.is_shutdown:
        return None
    if event.returncode:
        _exit_with(abs(event.returncode), context)
        return Shutdown(reason=f"{event.process_name} ended with status {event.returncode}")
    return Shutdown(reason="the bag is at its end")


def _exit_with(status: int, context: LaunchContext) -> None:
    """Let launch end with this status, where its own are 0 and 1.

    An exception that is no ``Exception`` is the one thing that gets out of its loop as it is. That
    leaves alone what still runs, so it waits until this process has no children any more.
    """
    loop = context.asyncio_loop
    held = loop.create_future()
    context.add_completion_future(held)  # until then launch does not end by itself

    def look() -> None:
        nonlocal held
        if any(file.read_text().strip() for file in Path("/proc/self/task").glob("*/children")):
            loop.call_later(0.1, look)
            return
        last, held = held, loop.create_future()
        context.add_completion_future(held)  # should launch not have waited for the last one
        loop.call_later(0.1, look)
        last.set_exception(SystemExit(status))

    loop.call_later(0.1, look)


def generate_launch_description() -> LaunchDescription:
    """Launch description, for `ros2 launch`."""
    check = OpaqueFunction(function=lambda context: refuse_undeclared(__file__, context.argv))
    return LaunchDescription([check, *arguments(), OpaqueFunction(function=play)])
