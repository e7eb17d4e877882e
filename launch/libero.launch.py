"""A task of the LIBERO benchmark, the policy that moves the robot, and the monitor.

    ros2 launch vla_ros libero.launch.py policy:=scripted task:=3
    ros2 launch vla_ros libero.launch.py suite:=libero_goal policy:=vla checkpoint:=DIR

In lock-step unless mode:=realtime is given. Every argument of sim.launch.py and
policy.launch.py can be given too. `vla-ros libero setup` prepares the benchmark.
"""

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription, OpaqueFunction
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import PathJoinSubstitution
from launch_ros.substitutions import FindPackageShare

from vla_ros.ros.bringup.launch_arguments import refuse_undeclared

SHARE = FindPackageShare("vla_ros")
LIBERO = PathJoinSubstitution([SHARE, "config", "libero.yaml"])


def arguments() -> list[DeclareLaunchArgument]:
    """The arguments that sim.launch.py has with another default; the first to say it wins."""
    return [
        DeclareLaunchArgument(
            "extra_bridge_params_file",
            default_value=LIBERO,
            description="Parameters of the bridge with LIBERO, read after bridge_params_file",
        ),
        DeclareLaunchArgument(
            "extra_params_file",
            default_value=LIBERO,
            description="Parameters of the policy node with LIBERO, read after params_file",
        ),
        DeclareLaunchArgument(
            "mode",
            default_value="lockstep",
            choices=["realtime", "lockstep"],
            description="lockstep: the world waits for every answer; realtime: it does not",
        ),
    ]


def generate_launch_description() -> LaunchDescription:
    """Launch description, for `ros2 launch`."""
    simulation = PathJoinSubstitution([SHARE, "launch", "sim.launch.py"])
    check = OpaqueFunction(function=lambda context: refuse_undeclared(__file__, context.argv))
    return LaunchDescription(
        [
            check,
            *arguments(),
            IncludeLaunchDescription(PythonLaunchDescriptionSource(simulation)),
        ]
    )
