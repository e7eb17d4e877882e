"""vla-ros doctor on a Jetson, from the files that one has."""

from __future__ import annotations

import pytest

from vla_ros.cli import doctor as checks
from vla_ros.cli.doctor import Level, Machine, check_jetson

MAXN = "NV Power Mode: MAXN\n0\n"
MEMINFO = "MemTotal: {total} kB\nMemFree: 1 kB\nMemAvailable: {free} kB\nSwapTotal: {swap} kB\n"
SWAPS = "Filename Type Size Used Priority\n"


@pytest.fixture
def orin(tmp_path, monkeypatch):
    """An AGX Orin 64 at its best."""

    def write(path: str, text: str) -> None:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    write("etc/nv_tegra_release", "# R36 (release), REVISION: 4.0, GCID: 37537400, BOARD: generic")
    write("proc/device-tree/model", "NVIDIA Jetson AGX Orin Developer Kit\0")
    for policy in ("policy0", "policy4"):
        for end in ("min", "max"):
            write(f"sys/devices/system/cpu/cpufreq/{policy}/scaling_{end}_freq", "2201600")
    write("proc/meminfo", MEMINFO.format(total=64349996, free=58000000, swap=0))
    write("proc/swaps", SWAPS)
    monkeypatch.setattr(checks, "_output", lambda *command: MAXN)
    return write


def found(tmp_path):
    return {check.name: check for check in check_jetson(Machine(tmp_path))}


def test_another_machine_has_no_such_lines(tmp_path):
    assert found(tmp_path) == {}


def test_an_orin_at_its_best_is_all_ok(orin, tmp_path):
    got = found(tmp_path)
    assert list(got) == ["Jetson", "power mode", "clocks", "memory"]
    assert {check.level for check in got.values()} == {Level.OK}
    assert got["Jetson"].found == "NVIDIA Jetson AGX Orin Developer Kit, L4T 36.4.0"
    assert got["memory"].found == "59.4 of 65.9 GB free, shared with the GPU; no swap"


@pytest.mark.parametrize(
    ("said", "needle"), [("NV Power Mode: MODE_30W\n2\n", "MODE_30W"), ("", "does not say")]
)
def test_another_power_mode_says_how_to_change_it(orin, tmp_path, monkeypatch, said, needle):
    monkeypatch.setattr(checks, "_output", lambda *command: said)
    power = found(tmp_path)["power mode"]
    assert (power.level, needle in power.found) == (Level.WARN, True)
    assert "nvpmodel" in power.advice


def test_clocks_that_may_fall_say_jetson_clocks(orin, tmp_path):
    orin("sys/devices/system/cpu/cpufreq/policy4/scaling_min_freq", "115200")
    clocks = found(tmp_path)["clocks"]
    assert (clocks.level, clocks.found) == (Level.WARN, "free to fall (1 of 2 groups)")
    assert "sudo jetson_clocks" in clocks.advice


def test_little_memory_and_swap_on_disk_warn(orin, tmp_path):
    orin("proc/meminfo", MEMINFO.format(total=7802856, free=1500000, swap=3901428))
    orin("proc/swaps", SWAPS + "/dev/zram0 partition 3901428 0 5\n")
    memory = found(tmp_path)["memory"]
    assert memory.level is Level.WARN and "1.5 of 8.0 GB" in memory.found
    assert "4.0 GB (zram)" in memory.found
    orin("proc/meminfo", MEMINFO.format(total=7802856, free=6500000, swap=8388608))
    orin("proc/swaps", SWAPS + "/swapfile file 8388608 0 -2\n")
    memory = found(tmp_path)["memory"]
    assert memory.level is Level.WARN and "/swapfile" in memory.found
    assert "swapoff" in memory.advice
