# How far the graph of this container reaches: to be sourced. As `vla-ros up` and the launch files do,
# for what is started without them (`ros2 run`): this machine alone, unless the user said otherwise.
# With the host's network the container's 127.0.0.1 is the host's. The same choice as
# vla_ros.ros.bringup.environment makes; test/package/test_docker.py holds one against the other.
if [ "${ROS_DISTRO:-}" = humble ]; then # it binds to the loopback by itself
    export ROS_LOCALHOST_ONLY="${ROS_LOCALHOST_ONLY:-1}"
elif [ -z "${ROS_LOCALHOST_ONLY+set}" ]; then
    export ROS_AUTOMATIC_DISCOVERY_RANGE="${ROS_AUTOMATIC_DISCOVERY_RANGE:-LOCALHOST}"
fi

case "${ROS_LOCALHOST_ONLY:-}" in
    1) reach=LOCALHOST ;;
    0) reach=SUBNET ;;
    *) reach="${ROS_AUTOMATIC_DISCOVERY_RANGE:-LOCALHOST}" ;;
esac
profile=fastdds_shm.xml
if [ "$reach" = LOCALHOST ] && [ "${ROS_DISTRO:-}" != humble ] &&
    [ -z "${ROS_STATIC_PEERS:-}${ROS_DISCOVERY_SERVER:-}" ]; then
    profile=fastdds_localhost.xml
fi

# Fast DDS 2 (Jazzy, Humble) and 3 read one each; a profile of the user's own stays, under either name.
given="${FASTDDS_DEFAULT_PROFILES_FILE:-${FASTRTPS_DEFAULT_PROFILES_FILE:-}}"
export FASTDDS_DEFAULT_PROFILES_FILE="${given:-/opt/vla/install/share/vla_ros/config/$profile}"
export FASTRTPS_DEFAULT_PROFILES_FILE="$FASTDDS_DEFAULT_PROFILES_FILE"
unset reach profile given
