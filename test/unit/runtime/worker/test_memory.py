"""Whether memory holds a second copy: of this machine, its control groups, a GPU."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from vla_ros.policies import PolicyRefused
from vla_ros.runtime.worker import memory
from vla_ros.runtime.worker.memory import MIB


def test_the_peak_of_a_process_counts_and_not_what_it_holds_now() -> None:
    ballast = np.ones(64 * MIB, np.uint8)
    held = memory.peak_bytes(os.getpid())
    del ballast
    after = memory.peak_bytes(os.getpid())
    assert held > 64 * MIB and after > held - 8 * MIB  # the kernel's count is a little late
    assert memory.peak_bytes(2**22 + 1) == 0  # no such process


def test_this_machine_has_some_memory_free() -> None:
    assert 0 < memory.free_bytes() < 2**50


@pytest.mark.parametrize(("free", "fits"), [(1255, False), (1256, True)])
def test_a_copy_and_something_to_spare_must_fit(monkeypatch, free: int, fits: bool) -> None:
    monkeypatch.setattr(memory, "peak_bytes", lambda pid: 1000 * MIB)
    monkeypatch.setattr(memory, "free_bytes", lambda: free * MIB)
    said = memory.refusal(7)
    assert fits is not bool(said)
    if said:
        assert said == (
            "a second copy needs 1000 MiB of memory and 256 to spare, 1255 MiB are free"
        )


def test_the_tightest_control_group_counts(tmp_path) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text("0::/robot/policy\n")
    for name, most, used, cached in (("robot", 900, 500, 100), ("robot/policy", "max", 400, 0)):
        group = tmp_path / "fs" / name
        group.mkdir(parents=True)
        (group / "memory.max").write_text(f"{most}\n")
        (group / "memory.current").write_text(f"{used}\n")
        (group / "memory.stat").write_text(f"anon 1\ninactive_file {cached}\n")
    assert memory._group_rooms(membership, tmp_path / "fs") == [900 - 500 + 100]
    assert memory._group_rooms(tmp_path / "none", tmp_path) == []
    membership.write_text("2:memory:/old\n")  # version 1: not looked at
    assert memory._group_rooms(membership, tmp_path) == []


class Cuda:
    """What of torch.cuda is asked, on a GPU with ``free`` bytes."""

    def __init__(self, free: int, used: bool = True) -> None:
        self.free, self.used = free, used

    def is_initialized(self) -> bool:
        return self.used

    def device_count(self) -> int:
        return 2

    def max_memory_reserved(self, i: int) -> int:
        return (14_000 * MIB, 0)[i]

    def mem_get_info(self, device: object) -> tuple[int, int]:
        return self.free, 24_000 * MIB


def test_a_gpu_must_hold_as_much_again(monkeypatch) -> None:
    def torch_with(cuda: Cuda) -> None:
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, device=str))

    torch_with(Cuda(9_000 * MIB, used=False))
    assert memory.device_bytes() == 0
    torch_with(Cuda(9_000 * MIB))
    need = memory.device_bytes()
    assert need == 14_600 * MIB
    line = r"^a second copy needs 14000 MiB of cuda:0, 9000 MiB are free$"
    with pytest.raises(PolicyRefused, match=line):
        memory.refuse_unless_free("cuda:0", need)
    torch_with(Cuda(14_000 * MIB))
    memory.refuse_unless_free("cuda:0", need)
