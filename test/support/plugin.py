"""Fixtures for all tests. ROS tests get a domain of their own and real processes.

    def test_it(spawn_node, ros):
        policy = spawn_node("policy", {"policy": "zero"})
        ros.bring_up("/policy")
        status = ros.inbox(PolicyStatus, "/policy/status", LATCHED)
        status.wait(lambda m: m.state == PolicyStatus.STATE_WAITING)

Tests that use `ros`, `spawn_node` or `ros_env` are skipped, with the reason, without rclpy.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib.util
import logging
import os
import resource
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parents[2]
if not (ROOT / "vla_ros" / "msg").is_dir():
    # `python -m pytest` in the root puts it first: a checkout without messages would hide the
    # installed package.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]

from support import timing, wait
from support.domain import leased_domain
from support.nodes import Program, ros_environment, start_node
from support.weights import bring_back
from support.without import pytest_make_collect_report, pytest_runtest_makereport  # noqa: F401
from vla_ros.ros.bringup.environment import PROFILES, find_leftovers, remove
from vla_ros.sim.gl import NoRenderer, choose_renderer

if TYPE_CHECKING:
    from support.motion_listener import MotionListener
    from support.ros import RosPeer

with contextlib.suppress(NoRenderer):  # the tests that render say what to install
    choose_renderer()
# An example that took 0.2 s says that the machine was busy; pytest-timeout ends what hangs.
hypothesis.settings.register_profile("busy machine", deadline=None)
hypothesis.settings.load_profile("busy machine")
wait.patience = 1.0 if timing.QUIET else 3.0
# Writing a core file delays the news of a worker's death, and some tests send SIGSEGV.
resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
# A crash in native code says where every thread was: also behind pytest's own handler, which is off
# at the end of the process, and in whatever the tests start.
faulthandler.enable(sys.__stderr__)
os.environ.setdefault("PYTHONFAULTHANDLER", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch in many test processes on few cores

if "PYTEST_XDIST_WORKER" not in os.environ:  # one process for all
    with pytest.MonkeyPatch.context() as patched:
        bring_back(patched)

NEEDS_ROS = {"ros", "ros_env", "ros_domain", "spawn_node"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs ROS, skip it without rclpy, mark what runs in LIBERO, and run unit tests
    first."""
    missing = importlib.util.find_spec("rclpy") is None
    for item in items:
        nodes = ROOT / "test" / "ros" in item.path.parents
        if nodes or NEEDS_ROS & set(getattr(item, "fixturenames", ())):
            item.add_marker("ros")
        if ROOT / "test" / "with_libero" in item.path.parents:  # its worlds take seconds each
            item.add_marker("long")
        if missing and item.get_closest_marker("ros"):
            item.add_marker(pytest.mark.skip(reason="rclpy is not installed: no ROS 2 here"))
    items.sort(key=lambda item: item.get_closest_marker("ros") is not None)


def pytest_runtest_setup() -> None:
    """Begin every test at Python's own level of logs: `import launch` sets it to INFO."""
    logging.root.setLevel(logging.WARNING)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the timing tests of this process measured."""
    if timing.told:
        terminalreporter.section("measured times", sep="-")
        for (test, _), (_, line) in timing.told.items():
            terminalreporter.line(f"{test}: {line}")


def pytest_sessionfinish() -> None:
    """Killed nodes leave 32 MB each in shared memory."""
    remove(find_leftovers())


@pytest.fixture
def ros_domain() -> Iterator[int]:
    """A ROS domain id that nobody else uses meanwhile."""
    with leased_domain() as domain:
        yield domain


@pytest.fixture
def ros_env(ros_domain: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of this test's processes; this process gets the same ROS variables."""
    env = ros_environment(ros_domain)
    for name in (
        "ROS_DOMAIN_ID",
        "ROS_AUTOMATIC_DISCOVERY_RANGE",
        *PROFILES,
        "AMENT_PREFIX_PATH",
    ):
        if name in env:
            monkeypatch.setenv(name, env[name])
    return env


@pytest.fixture
def spawn_node(
    ros_env: dict[str, str], ros_domain: int, request: pytest.FixtureRequest
) -> Iterator[Callable[..., Program]]:
    """`spawn_node("policy", {"policy": "zero"}, ...)`: see support.nodes.start_node.

    All are killed at the end; their logs are shown where the test fails. What a policy node with
    `outputs` commands is judged from outside, and the test fails where it broke a promise; the mark
    `unjudged` is for those that plant a break.
    """
    programs: list[Program] = []
    listeners: list[MotionListener] = []
    judged = request.node.get_closest_marker("unjudged") is None

    def spawn(
        executable: str, parameters: Mapping[str, Any] | None = None, **options: Any
    ) -> Program:
        if judged and executable == "policy" and any((parameters or {}).get("outputs", ())):
            from support.motion_listener import MotionListener

            name = f"{options.get('namespace', '')}/{options.get('name') or executable}"
            name = "/" + name.strip("/")
            listeners.append(MotionListener(ros_domain, name, options.get("remappings")))
        programs.append(start_node(executable, ros_env, parameters, **options))
        return programs[-1]

    yield spawn
    for program in programs:
        program.kill()
        print(f"----- {program.name}: {' '.join(program.command)}\n{program.log}")
    broken = [line for listener in listeners for line in listener.leave()]
    assert not broken, "\n".join(["the motion broke promises:", *broken])


@pytest.fixture
def ros(ros_env: dict[str, str], ros_domain: int) -> Iterator[RosPeer]:
    """A node of the test's own, spinning in the background: see support.ros.RosPeer."""
    from support.ros import RosPeer

    peer = RosPeer(ros_domain)
    yield peer
    peer.close()
