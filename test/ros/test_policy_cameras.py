"""Another's camera driver, started as its manual says: its images arrive, or it is said why not.

The driver is a process of its own without this package's Fast DDS profile.
"""

from __future__ import annotations

import os
import sys

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")


from endurance import cameras
from support.nodes import Program
from support.timing import bound
from support.wait import wait_until

FRAMES = 150


@pytest.fixture
def drive(ros_env, tmp_path):
    """Start a driver: reliability, size, frames; without the profile but where it is asked for."""
    drivers = []

    def start(*words: str, profile: bool = False) -> Program:
        command = [sys.executable, cameras.DRIVER, *words]
        drivers.append(Program("driver", command, cameras.driver_environment(ros_env, profile)))
        return drivers[-1]

    yield start
    for driver in drivers:
        driver.kill()
        print(driver.log)


def received(rig, driver) -> int:
    """Frames that the node was given of all that the driver sent."""
    assert driver.wait(60.0) == 0
    rig.now()
    return int(rig.now().frames_received)


def test_a_driver_without_our_profile_loses_no_image(start_policy, drive):
    rig = start_policy(detect_frozen=False)
    rig.bring_up()
    driver = drive("reliable", "640x480", str(FRAMES))
    # A best-effort reader gets a tenth of them. A machine that does other work pays with some.
    lost = 1 - received(rig, driver) / FRAMES
    assert lost <= bound(quiet=0.05, loaded=0.3)


@pytest.mark.long
def test_a_reader_follows_a_writer_that_offers_less(start_policy, drive):
    """A reliable reader does not match a best-effort writer at all."""
    rig = start_policy(detect_frozen=False)
    rig.bring_up()
    drive("reliable", "160x120", "60").wait(60.0)
    before = rig.now().frames_received
    assert before >= 55
    drive("best_effort", "160x120", "120").wait(60.0)
    wait_until(lambda: rig.now().frames_received >= before + 60, 10.0, "the other driver's")


@pytest.mark.long
def test_what_is_lost_below_is_said_once_with_its_cause_and_remedies(start_policy, drive):
    rig = start_policy(detect_frozen=False, **{"cameras.main.reliability": "best_effort"})
    rig.bring_up()
    driver = drive("reliable", "640x480", "1200")

    def lines():
        return [line for line in rig.node.log.splitlines() if "images came" in line]

    wait_until(
        lambda: lines() or driver.returncode is not None, 90.0, "the line, or the driver's end"
    )
    if not lines() and rig.now().frames_received > 600:
        pytest.skip("this machine's transport loses no fragment")
    (line,) = lines()  # also where not one of 1200 came
    assert "best-effort reader" in line and "reliability" in line
    assert "FASTDDS_DEFAULT_PROFILES_FILE" in line
    assert "images came" in rig.now().last_drop


def test_the_newest_of_what_waits_is_taken(start_policy, drive):
    """While nobody reads, a reliable reader's images wait; then the newest one counts."""
    rig = start_policy(detect_frozen=False)
    rig.bring_up("reach")
    drive("reliable", "640x480", "300")
    wait_until(lambda: rig.now().frames_received > 10, 20.0, "frames")
    os.kill(rig.node.pid, 19)  # SIGSTOP
    try:
        stopped = rig.status.last
        wait_until(lambda: True, 0.1)
    finally:
        os.kill(rig.node.pid, 18)  # SIGCONT
    wait_until(lambda: rig.now().frames_received > stopped.frames_received, 10.0, "frames again")
    rig.check_commands()
