"""The hang of Fast DDS: its locks are read from stacks, profiles differ in what was asked."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET

import pytest

from endurance import dds_hang
from endurance.dds_hang import Count, churn
from endurance.dds_settings import NEVER, SPACE, Discovery, changed
from endurance.growth import poisson
from endurance.stacks import all_asleep, cycle
from vla_ros.core.resources import config_path

# As gdb writes them, shortened: frames without arguments and addresses.
REMOVAL = """
Thread 8 (Thread 0x7f3a38e7c6c0 (LWP 20731) "dds.udp.20664"):
#5  std::condition_variable::wait ()
#6  eprosima::fastdds::rtps::ResourceEvent::unregister_timer ()
#7  eprosima::fastdds::rtps::TimedEvent::recreate_timer ()
#8  eprosima::fastdds::rtps::WriterProxy::stop ()
#11 eprosima::fastdds::rtps::PDP::removeWriterProxyData ()
"""
EVENT = """
Thread 7 (Thread 0x7f3a3967d6c0 (LWP 20730) "dds.ev.0"):
#3  ___pthread_mutex_lock ()
#4  eprosima::fastdds::rtps::PDP::{0} ()
#7  eprosima::fastdds::rtps::ResourceEvent::do_timer_actions ()
#8  eprosima::fastdds::rtps::ResourceEvent::event_service ()
"""
IDLE = EVENT.replace("PDP::{0}", "nothing")


@pytest.mark.parametrize(
    ("stacks", "found"),
    [
        (REMOVAL + EVENT.format("set_next_announcement_interval"), "announcement"),
        (EVENT.format("set_next_announcement_interval") + REMOVAL, "announcement"),
        (REMOVAL + EVENT.format("check_remote_participant_liveliness"), "lease of a peer"),
        (EVENT.format("set_next_announcement_interval"), ""),
        (REMOVAL + IDLE, ""),
        ("", ""),
    ],
)
def test_a_cycle_needs_a_removal_and_an_event_that_wait_for_each_other(stacks, found):
    assert cycle(stacks) == found


def test_frames_of_one_thread_are_no_cycle():
    both = REMOVAL + EVENT.format("set_next_announcement_interval").replace("\nThread 7 (", "\n(")
    assert cycle(both) == ""


def test_a_process_that_computes_is_not_asleep_and_one_that_waits_is():
    waits = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=-1)
    try:
        until = time.monotonic() + 10
        while not all_asleep(waits.pid) and time.monotonic() < until:
            time.sleep(0.02)
        assert all_asleep(waits.pid)
    finally:
        waits.kill()
        waits.communicate()
    assert not all_asleep(os.getpid()), "it reads this very file"
    assert not all_asleep(waits.pid), "it has ended"


def find(text: str, *path: str) -> str | None:
    return ET.fromstring(text).findtext("/".join(f"{{{SPACE}}}{part}" for part in path))


CONFIG = ("profiles", "participant", "rtps", "builtin", "discovery_config")
TIMES = ("profiles", "data_reader", "times")


def test_nothing_asked_for_is_the_shipped_profile():
    shipped = config_path("fastdds_shm.xml").read_text()
    strip = {"strip_text": True}
    assert ET.canonicalize(changed(shipped, Discovery()), **strip) == ET.canonicalize(
        shipped, **strip
    )


def test_a_profile_differs_in_what_was_asked_for():
    shipped = config_path("fastdds_shm.xml").read_text()
    asked = Discovery(initial=7, period_s=0.25, announcement_s=2.5, lease_s=NEVER, response_s=0.0)
    text = changed(shipped, asked)
    assert find(text, *CONFIG, "initialAnnouncements", "count") == "7"
    assert find(text, *CONFIG, "initialAnnouncements", "period", "nanosec") == "250000000"
    assert find(text, *CONFIG, "leaseAnnouncement", "sec") == "2"
    assert find(text, *CONFIG, "leaseAnnouncement", "nanosec") == "500000000"
    assert find(text, *CONFIG, "leaseDuration", "sec") == "DURATION_INFINITY"
    assert find(text, *TIMES, "heartbeat_response_delay", "nanosec") == "0"
    assert find(text, *TIMES, "initial_acknack_delay") is None
    size = ("profiles", "transport_descriptors", "transport_descriptor", "segment_size")
    assert find(text, *size) == find(shipped, *size) == "33554432"


@pytest.mark.parametrize(
    ("count", "low", "high"), [(0, 0.0, 3.689), (5, 1.623, 11.67), (100, 81.36, 121.63)]
)
def test_the_interval_of_a_count(count, low, high):
    assert poisson(count) == pytest.approx((low, high), rel=0.02, abs=0.02)


def test_hangs_are_counted_by_thousands_of_cycles():
    count = Count(cycles=2000)
    count.hangs["announcement"] = 5
    share, low, high = count.per_thousand()
    assert share == 2.5
    assert low < share < high
    assert Count().per_thousand()[0] == 0.0, "before the first cycle"


STANDS_STILL = """
import struct, sys, time
slot, cycles = int(sys.argv[2]), 0
while True:
    if slot == 0 or cycles < 3:
        cycles += 1
        with open(sys.argv[1], "r+b") as file:
            file.seek(8 * slot)
            file.write(struct.pack("Q", cycles))
    time.sleep(0.01)
"""


def test_a_process_that_stands_still_is_a_hang_and_another_takes_its_place(tmp_path, monkeypatch):
    script = tmp_path / "churn.py"
    script.write_text(STANDS_STILL)
    looked: list[int] = []

    def native(pid: int) -> str:
        looked.append(pid)
        return REMOVAL + EVENT.format("set_next_announcement_interval")

    monkeypatch.setattr(dds_hang, "CHURN", script)
    monkeypatch.setattr(dds_hang, "LOOK_S", 0.05)
    monkeypatch.setattr(dds_hang, "native", native)
    for count in churn(2, 10**6, 1.0, 0.2, dict(os.environ), 20.0):
        if count.hung:
            break
    assert dict(count.hangs) == {"announcement": 1}
    assert count.cycles > 3, "the other process went on"
    assert not any(os.path.exists(f"/proc/{pid}") for pid in looked), "the hung one was killed"


def test_a_churn_that_ends_by_itself_is_an_error_and_not_a_calm_run(tmp_path, monkeypatch):
    script = tmp_path / "churn.py"
    script.write_text("raise SystemExit(3)")
    monkeypatch.setattr(dds_hang, "CHURN", script)
    monkeypatch.setattr(dds_hang, "LOOK_S", 0.05)
    with pytest.raises(RuntimeError, match="ended with 3"):
        list(churn(2, 10, 1.0, 60.0, dict(os.environ), 20.0))
