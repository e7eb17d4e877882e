#!/bin/bash
# A shell in which ROS 2, the workspace and the venv over it are there.
set -e
source "/opt/ros/${ROS_DISTRO}/setup.bash"
source /opt/vla/install/setup.bash
source /opt/vla/src/vla_ros/docker/reach.sh
export PATH="/opt/vla/venv/bin:${PATH}"
exec "$@"
