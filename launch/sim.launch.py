"""A simulated robot, the policy that moves it, and the monitor.

    ros2 launch vla_ros sim.launch.py policy:=scripted
    ros2 launch vla_ros sim.launch.py policy:=vla checkpoint:=random:small mode:=lockstep

Every argument of policy.launch.py can be given too.
"""

from launch import LaunchContext, LaunchDescription, LaunchDescriptionEntity
from launch.actions import (
    DeclareLaunchArgument,
    IncludeLaunchDescription,
    OpaqueFunction,
    Shutdown,
)
from launch.events.process import ProcessExited
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution, PythonExpression
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue
from launch_ros.substitutions import FindPackageShare

from vla_ros.ros.bringup.environment import OVERRIDE, defaults, enclave_of, ends_with_launch
from vla_ros.ros.bringup.launch_arguments import refuse_undeclared
from vla_ros.ros.nodes.bridge.node import TABLE

SHARE = FindPackageShare("vla_ros")

PARAMETERS = {row.name: row for row in TABLE}
# Arguments that set a parameter of the bridge, with its type and text. Empty means: as in the
# parameter file.
OVERRIDES = ("suite", "task", "initial_state", "seed")


def arguments() -> list[DeclareLaunchArgument]:
    """The arguments that policy.launch.py does not have, or has with another default."""
    return [
        DeclareLaunchArgument(
            "bridge_params_file",
            default_value=PathJoinSubstitution([SHARE, "config", "bridge.yaml"]),
            description="Parameters of the simulation bridge",
        ),
        DeclareLaunchArgument(
            "extra_bridge_params_file",
            default_value="",
            description="A second parameter file of the bridge, read after the first; empty: none",
        ),
        DeclareLaunchArgument(
            "extra_params_file",
            default_value=PathJoinSubstitution([SHARE, "config", "policy_sim.yaml"]),
            description="Parameters of the policy node for simulation, read after params_file",
        ),
        DeclareLaunchArgument(
            "mode",
            default_value="realtime",
            choices=["realtime", "lockstep"],
            description="realtime: the world does not wait; lockstep: it waits for every answer",
        ),
        DeclareLaunchArgument(
            "control_rate_hz",
            default_value="",
            description="Commands, and steps of the world, a second. Empty: as in the files",
        ),
        DeclareLaunchArgument(
            "auto_reset",
            default_value="true",
            choices=["true", "false"],
            description="Episodes follow each other; false: bridge/reset asks for the next",
        ),
        *(
            DeclareLaunchArgument(
                name,
                default_value="",
                description=f"{PARAMETERS[name].text}. Empty: as in the file",
            )
            for name in OVERRIDES
        ),
    ]


def bridge(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    """The simulated robot. It never waits for /clock: in lock-step it publishes it."""

    def given(name: str) -> str:
        return LaunchConfiguration(name).perform(context)

    overrides = {
        name: ParameterValue(LaunchConfiguration(name), value_type=type(PARAMETERS[name].default))
        for name in (*OVERRIDES, "control_rate_hz")
        if given(name)
    }
    always = {"mode": given("mode"), "auto_reset": given("auto_reset") == "true"}
    files = filter(None, map(given, ("bridge_params_file", "extra_bridge_params_file")))
    folder = given("enclave")
    keys = ["--enclave", enclave_of(folder, "bridge")] if folder else []
    own = {OVERRIDE: ""} if folder else {}  # the launch's own enclave is not the bridge's
    return [
        Node(
            package="vla_ros",
            executable="bridge_node",
            name="bridge",
            namespace=given("namespace"),
            output="screen",
            emulate_tty=True,
            additional_env=defaults(context.environment) | ends_with_launch() | own,
            parameters=[*files, overrides | always],
            arguments=["--ros-args", "--log-level", given("log_level"), *keys],
            on_exit=end_with_it,
        )
    ]


def end_with_it(event: ProcessExited, context: LaunchContext) -> Shutdown | None:
    """Shutdown at the end of the simulation. None: the launch is ending anyway."""
    if context.is_shutdown:
        return None
    how = f"{event.process_name} ended with status {event.returncode}"
    if event.returncode:
        raise RuntimeError(how)  # launch says it, ends everything and exits with 1
    return Shutdown(reason=how)


def generate_launch_description() -> LaunchDescription:
    """Launch description, for `ros2 launch`."""
    policy = IncludeLaunchDescription(
        PythonLaunchDescriptionSource(PathJoinSubstitution([SHARE, "launch", "policy.launch.py"])),
        # In lock-step the bridge makes the time.
        launch_arguments={
            # Humble has no EqualsSubstitution.
            "use_sim_time": PythonExpression(
                ["'true' if '", LaunchConfiguration("mode"), "' == 'lockstep' else 'false'"]
            )
        }.items(),
    )
    check = OpaqueFunction(function=lambda context: refuse_undeclared(__file__, context.argv))
    return LaunchDescription([check, *arguments(), policy, OpaqueFunction(function=bridge)])
