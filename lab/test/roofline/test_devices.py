"""The table of devices, and this machine measured."""

from __future__ import annotations

import pytest
import torch

from vla_ros.core.resources import config_path
from vla_ros.engine.layers.tuner import multiplies_integers
from vla_ros_lab.roofline import devices
from vla_ros_lab.roofline.devices import load_devices, measure

GOOD = """
sources: {sheet: a data sheet, guess: a guess}
devices:
  box:
    title: A box
    memory_gb: 8
    gb_s: [100, sheet, 80, guess]
    tflops: {bf16: [10, sheet, 7, guess]}
"""


def load(tmp_path, text: str):
    path = tmp_path / "devices.yaml"
    path.write_text(text)
    return load_devices(path)


def test_the_shipped_table_names_a_source_for_each_figure():
    devices = load_devices(config_path("devices.yaml"))
    wanted = {
        "h100-nvl",
        "h100-sxm",
        "h200",
        "a100",
        "rtx-4090",
        "rtx-5090",
        "orin-64",
        "orin-nano",
        "thor",
    }
    assert devices.keys() == wanted
    for device in devices.values():
        for rate in (device.memory, *device.compute.values()):
            assert 0.5 * rate.peak < rate.achieved <= rate.peak
            assert len(rate.peak_from) > 10
            assert len(rate.achieved_from) > 10
        assert device.flops("bf16") < device.flops("bf16", "peak")


def test_units(tmp_path):
    box = load(tmp_path, GOOD)["box"]
    assert box.bandwidth() == 80e9
    assert box.flops("bf16", "peak") == 10e12
    assert box.memory.achieved_from == "a guess"
    with pytest.raises(ValueError, match="box has no rate for fp8: it has bf16"):
        box.flops("fp8")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[10, sheet, 7, guess]", "[10, sheet, 7, rumour]", "rumour"),
        ("[10, sheet, 7, guess]", "[10, sheet, 17, guess]", "at most peak"),
        ("[10, sheet, 7, guess]", "[10, sheet]", "box"),
        ("bf16", "bf17", "bf17"),
        ("    title: A box\n", "", "title"),
        ("devices:", "machines:", "devices"),
        ("memory_gb: 8", "memory_gb: -8", r"box\.memory_gb is -8"),
        ("[100, sheet, 80, guess]", "[.inf, sheet, .inf, guess]", "at most peak"),
        ("{sheet", "[sheet", "cannot be read"),
    ],
)
def test_a_wrong_table_is_refused_with_its_place(tmp_path, old, new, message):
    with pytest.raises(ValueError, match=message) as caught:
        load(tmp_path, GOOD.replace(old, new))
    assert "\n" not in str(caught.value)


def test_no_table(tmp_path):
    with pytest.raises(ValueError, match="cannot be read"):
        load_devices(tmp_path / "none.yaml")


def test_this_machine_measured():
    device = measure(8e6, threads=1, gpu=False, budget_s=0.05)
    assert set(device.compute) - {"int8w"} == {"fp32", "bf16"}
    integers = multiplies_integers(torch.device("cpu"))
    assert ("int8w" in device.compute) == integers
    # int8 that is made wider is multiplied as bfloat16
    assert device.computes("int8w") == ("int8w" if integers else "bf16")
    assert device.flops("int8w") == device.flops(device.computes("int8w"))
    # between a microcontroller and the fastest server there is
    assert 1e8 < device.flops("fp32") < 1e15
    assert 1e8 < device.bandwidth() < 1e13
    assert 0.1 < device.memory_gb < 1e5
    assert "MB" in device.memory.achieved_from
    assert device.title


def test_measuring_leaves_torch_as_it_was():
    before = torch.get_num_threads()
    measure(4e6, threads=1, gpu=False, budget_s=0.01)
    assert torch.get_num_threads() == before


def test_peaks_are_measured_on_numbers_as_weights_have_them(monkeypatch):
    """Not on ones, which a GPU multiplies at a higher clock; and each reader counts."""
    multiplied, read = [], []

    def best(run, budget_s, sync=None):
        run()
        return 1.0

    product, readers = torch.mm, devices._readers
    monkeypatch.setattr(devices, "_best", best)
    monkeypatch.setattr(torch, "mm", lambda a, b: multiplied.append(a) or product(a, b))
    monkeypatch.setattr(
        devices, "_readers", lambda *given: read.append(given[1]) or readers(*given)
    )
    measure(working_set=4e6, threads=1, gpu=False)
    assert len(multiplied) == 2
    assert len(read) == 1
    for numbers in (*multiplied, *read):
        assert 0.9 < float(numbers.float().std()) < 1.1


def test_a_memorys_rate_is_that_of_the_fastest_reader():
    matrix, vector = torch.randn(8, 16), torch.randn(16)
    by_product, by_sum = (reader() for reader in devices._readers(torch, matrix, vector))
    assert torch.allclose(by_product, matrix @ vector)
    assert torch.allclose(by_sum, matrix.sum())
