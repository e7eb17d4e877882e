# vla_ros on a Jetson Orin with JetPack 6: L4T's CUDA, Humble from apt, JetPack's torch.
#   docker build -f docker/jetson.Dockerfile --build-arg TORCH_WHEEL=https://... -t vla_ros:jetson .
# With JetPack 7.2 (Ubuntu 24.04, Python 3.12, CUDA 13.2): Jazzy, and a CUDA image of arm64
#   ... --build-arg BASE=nvcr.io/nvidia/cuda:13.2.0-runtime-ubuntu24.04 --build-arg ROS=jazzy ...
# TORCH_WHEEL: the wheel for this JetPack and its Python (3.10, 3.12) that NVIDIA lists on
# https://docs.nvidia.com/deeplearning/frameworks/install-pytorch-jetson-platform/
# There is no default: a torch of another JetPack starts and then finds no GPU.
ARG BASE=nvcr.io/nvidia/l4t-jetpack:r36.4.0
# hadolint ignore=DL3006
FROM ${BASE}
ARG TORCH_WHEEL
ARG ROS=humble
# From Ubuntu 24.04 on pip leaves the system's Python alone unless told.
ENV DEBIAN_FRONTEND=noninteractive LANG=C.UTF-8 ROS_DISTRO=${ROS} PIP_BREAK_SYSTEM_PACKAGES=1
SHELL ["/bin/bash", "-o", "pipefail", "-c"]

# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates curl gnupg \
    && curl -fsSL https://raw.githubusercontent.com/ros/rosdistro/master/ros.key \
        -o /usr/share/keyrings/ros-archive-keyring.gpg \
    && echo "deb [signed-by=/usr/share/keyrings/ros-archive-keyring.gpg]" \
        "http://packages.ros.org/ros2/ubuntu $(. /etc/os-release && echo "${UBUNTU_CODENAME}") main" \
        > /etc/apt/sources.list.d/ros2.list \
    && apt-get update \
    && apt-get install -y --no-install-recommends \
        g++ libosmesa6 python3-dev python3-pip python3-venv libopenblas0 \
        python3-colcon-common-extensions python3-rosdep \
        "ros-${ROS}-ros-base" "ros-${ROS}-compressed-image-transport" \
    && rm -rf /var/lib/apt/lists/*

# The machine's torch, for the system's Python: requirements/install.py keeps what it finds there.
# hadolint ignore=DL3013
RUN test -n "${TORCH_WHEEL}" || { echo "give --build-arg TORCH_WHEEL=..., see the top of this file"; exit 1; } \
    && python3 -m pip install --no-cache-dir "numpy<2" "${TORCH_WHEEL}"

WORKDIR /opt/vla
COPY package.xml src/vla_ros/
RUN apt-get update && rosdep init && rosdep update --rosdistro "${ROS}" \
    && rosdep install --from-paths src --ignore-src -y --rosdistro "${ROS}" \
        --dependency-types=buildtool --dependency-types=build --dependency-types=exec \
    && rm -rf /var/lib/apt/lists/*

COPY setup.py src/vla_ros/
COPY requirements src/vla_ros/requirements
RUN source "/opt/ros/${ROS}/setup.bash" \
    && PIP_NO_CACHE_DIR=1 \
       python3 src/vla_ros/requirements/install.py --requirements-only --venv /opt/vla/venv

COPY . src/vla_ros
RUN source "/opt/ros/${ROS}/setup.bash" \
    && colcon build --merge-install --cmake-args -DBUILD_TESTING=OFF \
    && rm -rf build log

COPY docker/entrypoint.sh /
ENV PYTHONUNBUFFERED=1
# The same user in every container: they share memory. Ubuntu 24.04 has one of this number.
RUN useradd --non-unique --create-home --uid 1000 --groups video robot
USER 1000
WORKDIR /home/robot
ENTRYPOINT ["/entrypoint.sh"]
CMD ["vla-ros", "doctor"]
