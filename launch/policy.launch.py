"""The policy node, brought up, and the monitor that watches it.

    ros2 launch vla_ros policy.launch.py policy:=vla checkpoint:=/models/openvla-7b device:=cuda:0
    ros2 launch vla_ros policy.launch.py image:=/camera/color/image_raw namespace:=arm_left
    ros2 launch vla_ros policy.launch.py robot:=robot.yaml policy:=vla checkpoint:=/models/mine

Parameter files come first, the robot's between them, then a contract, then the arguments that are
given here, then `parameters`: with it each parameter of the policy node can be given, and with
`remappings` each topic be renamed.
`ros2 launch vla_ros policy.launch.py --show-args` explains each; so does docs/reference/launch.md.
"""

import sys
from collections.abc import Callable
from typing import Any

from launch import LaunchContext, LaunchDescription, LaunchDescriptionEntity
from launch.actions import (
    DeclareLaunchArgument,
    ExecuteProcess,
    OpaqueFunction,
    Shutdown,
)
from launch.conditions import IfCondition
from launch.events.process import ProcessExited
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue
from launch_ros.substitutions import FindPackageShare

from vla_ros.ros.bringup.contract import read_contract
from vla_ros.ros.bringup.environment import (
    OVERRIDE,
    check_enclave,
    defaults,
    enclave_of,
    ends_with_launch,
)
from vla_ros.ros.bringup.graph_file import argument
from vla_ros.ros.bringup.launch_arguments import refuse_undeclared
from vla_ros.ros.bringup.robot_file import RobotFile, find_robot
from vla_ros.ros.common.parameters import Parameter
from vla_ros.ros.common.topic_names import check_remapped
from vla_ros.ros.nodes.policy.parameters import TABLE

CONFIG = PathJoinSubstitution([FindPackageShare("vla_ros"), "config"])

PARAMETERS = {row.name: row for row in TABLE}
# Arguments that set a parameter of the policy node, with its type, text and choices. Empty means:
# as in the parameter file.
OVERRIDES = (
    "policy",
    "checkpoint",
    "decoding",
    "device",
    "dtype",
    "weights",
    "require_verified",
    "replay_file",
    "instruction",
    "frame_id",
    "mode",
    "action_rate_hz",
    "control_rate_hz",
    "max_age_s",
)
# Topics of the node that a robot usually calls otherwise.
TOPICS = {
    "image": "sensor_msgs/Image of the main camera",
    "wrist_image": "sensor_msgs/Image of the wrist camera",
    "joint_states": "sensor_msgs/JointState",
    "end_effector_pose": "geometry_msgs/PoseStamped, with state_layout libero_oft",
    "measured_pose": "geometry_msgs/PoseStamped, with poses as actions",
}


def arguments() -> list[DeclareLaunchArgument]:
    """Arguments, written as NAME:=VALUE."""
    declared = [
        DeclareLaunchArgument(
            "params_file",
            default_value=PathJoinSubstitution([CONFIG, "policy.yaml"]),
            description="Parameters of the policy node",
        ),
        DeclareLaunchArgument(
            "robot",
            default_value="",
            description="The robot's file, as `vla-ros setup` writes it, or the name of one in"
            " config/robots: its parameters, read after params_file, and its topics; empty: none",
        ),
        DeclareLaunchArgument(
            "extra_params_file",
            default_value="",
            description="A further parameter file, read after those; empty: none",
        ),
        DeclareLaunchArgument(
            "contract",
            default_value="",
            description="Rosetta's contract of the robot, read after the parameter files: cameras,"
            " joints, units, rate, topics; empty: none",
        ),
        DeclareLaunchArgument(
            "parameters",
            default_value="{}",
            description="More of the policy node's parameters, as YAML: '{joint_names: [a, b]}'",
        ),
        DeclareLaunchArgument(
            "remappings",
            default_value="{}",
            description="More topics, as YAML: '{~/twist: /servo_node/delta_twist_cmds}'",
        ),
        DeclareLaunchArgument(
            "monitor_params_file",
            default_value=PathJoinSubstitution([CONFIG, "monitor.yaml"]),
            description="Parameters of the monitor node",
        ),
        DeclareLaunchArgument("namespace", default_value="", description="Namespace of all nodes"),
        DeclareLaunchArgument(
            "enclave",
            default_value="",
            description="Folder of SROS 2 enclaves: node NAME uses ENCLAVE/NAME; empty: none",
        ),
        DeclareLaunchArgument(
            "use_sim_time",
            default_value="false",
            choices=["true", "false"],
            description="Take the time from /clock",
        ),
        DeclareLaunchArgument(
            "log_level",
            default_value="info",
            choices=["debug", "info", "warn", "error", "fatal"],
            description="Of all nodes",
        ),
        DeclareLaunchArgument(
            "monitor",
            default_value="true",
            choices=["true", "false"],
            description="Start the monitor node too",
        ),
        DeclareLaunchArgument(
            "record",
            default_value="",
            description="Record everything into this bag, with flight records; empty: do not",
        ),
        DeclareLaunchArgument(
            "autostart",
            default_value="true",
            choices=["true", "false"],
            description="Configure and activate the policy node; false: another node does",
        ),
    ]
    declared += [as_argument(PARAMETERS[name]) for name in OVERRIDES]
    for name, description in TOPICS.items():
        declared.append(DeclareLaunchArgument(name, default_value=name, description=description))
    return declared


def as_argument(row: Parameter) -> DeclareLaunchArgument:
    """The argument of a parameter."""
    choices = ("true", "false") if isinstance(row.default, bool) else row.choices
    more = {"choices": ["", *choices]} if choices else {}
    text = f"{row.text}. Empty: as in the file"
    return DeclareLaunchArgument(row.name, default_value="", description=text, **more)


def mapping(context: LaunchContext, name: str) -> dict[str, Any]:
    """The argument ``name``, which is YAML. UserError: it is something else."""
    return argument(name, LaunchConfiguration(name).perform(context))


def nodes(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    """The nodes, once the arguments are known: only those that are given become parameters."""

    def given(name: str) -> str:
        return LaunchConfiguration(name).perform(context)

    sim_time = {"use_sim_time": given("use_sim_time") == "true"}
    robot = find_robot(given("robot")) if given("robot") else None
    files = [
        *([given("params_file")] if given("params_file") else []),
        *part_of(robot, given, "policy"),
        *([given("extra_params_file")] if given("extra_params_file") else []),
    ]
    overrides = {
        name: ParameterValue(LaunchConfiguration(name), value_type=type(PARAMETERS[name].default))
        for name in OVERRIDES
        if given(name)
    }
    contract = read_contract(given("contract")) if given("contract") else None
    moved = dict(robot.remappings) if robot else {}
    moved |= contract.remappings if contract else {}
    moved |= {name: given(name) for name in TOPICS if given(name) != name}
    named = mapping(context, "remappings")
    for old in named:
        check_remapped(old, "remappings", map(str, mapping(context, "parameters").values()))
    moved |= named
    check_enclave(given("enclave"), context.environment)
    common = {
        "package": "vla_ros",
        "namespace": given("namespace"),
        "output": "screen",
        "emulate_tty": True,
        "remappings": list(moved.items()),
        # Profile and discovery for camera images and safety, for this process and no other.
        "additional_env": defaults(context.environment) | ends_with_launch() | own_keys(given),
    }
    policy = Node(
        executable="policy_node",
        name="policy",
        parameters=[
            *files,
            *([dict(contract.parameters)] if contract else []),
            overrides | mapping(context, "parameters") | sim_time,
        ],
        arguments=ros_arguments(given, "policy"),
        on_exit=end_with_it,
        **common,
    )
    monitor = Node(
        executable="monitor_node",
        name="monitor",
        parameters=[
            given("monitor_params_file"),
            *part_of(robot, given, "monitor"),
            sim_time,
        ],
        arguments=ros_arguments(given, "monitor"),
        condition=IfCondition(given("monitor")),
        **common,
    )
    bringing = [bring_up(given)] if given("autostart") == "true" else []
    return [*recorder(given, moved), monitor, policy, *bringing]


def part_of(robot: RobotFile | None, given: Callable[[str], str], node: str) -> list[str]:
    """The robot's file, where it has parameters of this node."""
    name = f"/{given('namespace').strip('/')}/{node}".replace("//", "/")
    return [str(robot.path.resolve())] if robot is not None and robot.has_part_for(name) else []


def own_keys(given: Callable[[str], str]) -> dict[str, str]:
    """Environment without the launch's own enclave, which is not that of its nodes."""
    return {OVERRIDE: ""} if given("enclave") else {}


def ros_arguments(given: Callable[[str], str], node: str) -> list[str]:
    """ROS arguments of a node: its log level, the enclave of its keys."""
    keys = ["--enclave", enclave_of(given("enclave"), node)] if given("enclave") else []
    return ["--ros-args", "--log-level", given("log_level"), *keys]


def recorder(given: Callable[[str], str], moved: dict[str, str]) -> list[LaunchDescriptionEntity]:
    """Process of `vla-ros record`, where it is asked for. Its end ends nothing else."""
    if not given("record"):
        return []
    command = ["vla-ros", "record", "-o", given("record"), "--namespace", given("namespace")]
    if given("enclave"):
        command += ["--enclave", given("enclave")]
    for name, topic in moved.items():
        if not name.startswith("~"):  # the policy's own
            command += ["-r", f"{name}={topic}"]
    # Time to write what is held and the index of the bag.
    return [
        ExecuteProcess(
            cmd=command,
            name="recorder",
            output="screen",
            sigterm_timeout="20",
            additional_env=ends_with_launch(),
        )
    ]


def end_with_it(event: ProcessExited, context: LaunchContext) -> Shutdown | None:
    """Shutdown at the end of the policy node. None: the launch is ending anyway."""
    if context.is_shutdown:
        return None
    how = f"{event.process_name} ended with status {event.returncode}"
    if event.returncode:
        raise RuntimeError(how)  # launch says it, ends everything and exits with 1
    return Shutdown(reason=how)


def bring_up(given: Callable[[str], str]) -> ExecuteProcess:
    """Process that configures and activates the policy node, once: after that its lifecycle is its
    caller's.

    It goes by the services' responses, as `vla-ros up` does. launch_ros goes by ~/transition_event,
    misses it where launch has not discovered the node yet, and waits for ever then; and the ROS
    node that it makes in launch's process can abort it at a second Ctrl-C.
    """
    name = f"{given('namespace').strip('/')}/policy"
    command = [sys.executable, "-m", "vla_ros.ros.bringup.lifecycle", f"/{name.strip('/')}"]
    return ExecuteProcess(
        cmd=command,
        name="bring_up",
        output="screen",
        on_exit=brought_up,
        additional_env=ends_with_launch(),
    )


def brought_up(event: ProcessExited, context: LaunchContext) -> None:
    """End everything, with exit status 1, where the node refused."""
    if event.returncode and not context.is_shutdown:
        raise RuntimeError("the policy node was not brought up, see its error above")


def generate_launch_description() -> LaunchDescription:
    """Launch description, for `ros2 launch`."""
    check = OpaqueFunction(function=lambda context: refuse_undeclared(__file__, context.argv))
    return LaunchDescription([check, *arguments(), OpaqueFunction(function=nodes)])
