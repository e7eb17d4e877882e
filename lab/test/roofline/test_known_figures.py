"""Figures that others, or we before, worked out: the ETH report's tables and our own."""

from __future__ import annotations

import pytest

from vla_ros.core.resources import config_path
from vla_ros_lab.roofline import published
from vla_ros_lab.roofline.decodings import decodings
from vla_ros_lab.roofline.devices import load_devices
from vla_ros_lab.roofline.roofline import Roofline
from vla_ros_lab.roofline.shapes import load_model
from vla_ros_lab.roofline.speculation import speedup
from vla_ros_lab.roofline.work import parse_precision

DEVICES = load_devices(config_path("devices.yaml"))

# The ETH report, from its stated inputs: to be met within 10 %.
TABLE_5 = {
    "OpenVLA vision": 0.36,
    "OpenVLA prefill": 3.92,
    "OpenVLA decode": 3.15,
    "MiniVLA prefill": 0.41,
    "MiniVLA decode": 0.23,
    "decode ratio": 13.5,
}
TABLE_6 = {
    "OpenVLA rate": 38.0,
    "MiniVLA rate": 415.7,
    "break-even, analytic c": 31.0,
    "break-even, measured c": 68.0,
    "speedup at 27.5 %": 0.87,
    "the same, from the passes counted": 0.87,
}


@pytest.mark.parametrize(
    ("found", "known"), [(published.table_5, TABLE_5), (published.table_6, TABLE_6)]
)
def test_the_eth_report_within_ten_percent(found, known):
    figures = {f.name: f for f in found()}
    assert figures.keys() == known.keys()
    for name, value in known.items():
        assert figures[name].published == value
        assert figures[name].ours == pytest.approx(value, rel=0.10), name
        assert figures[name].reproduced


def test_most_of_the_report_is_met_much_closer():
    """GenZ's way of counting is understood: within 4 % but for the one figure explained."""
    figures = {f.name: f for f in (*published.table_5(), *published.table_6())}
    loose = [name for name, f in figures.items() if abs(f.off) > 0.04]
    assert loose == ["speedup at 27.5 %"]


def test_why_the_report_measured_a_loss():
    """Its formula with the c of its measured rates gives what it measured: 0.46."""
    assert published.measured_speedup().ours == pytest.approx(0.46, rel=0.05)


def test_what_the_remarks_on_the_report_say():
    target = published.genz_times(load_model("openvla-7b"))
    ratio = published.genz_times(load_model("minivla")).decode / target.decode
    text = " ".join(published.NOT_REPRODUCED)
    assert speedup(0.275, 6, ratio) == pytest.approx(0.95, abs=0.005)
    assert speedup(0.275, 6, 38.0 / 415.7) == pytest.approx(0.89, abs=0.005)
    six = target.vision + target.prefill + 6 * target.decode
    assert 1e3 / six == pytest.approx(43, abs=0.5)
    decimal = Roofline(load_model("openvla-7b"), published._device(1e9)).decode().ms
    assert decimal == pytest.approx(3.38, abs=0.01)
    each = Roofline(load_model("openvla-7b"), published.DEVICE, accounting="operator").vision().ms
    assert each == pytest.approx(0.45, abs=0.01)
    for figure in ("0.95", "0.89", "43 Hz", "3.38", "0.45"):
        assert figure in text


# Calculated by hand for OpenVLA-7B, bf16, one image: vision, prefill, decode, autoregressive,
# packed pass, latency of seven packed passes, in ms.
BY_HAND = {
    "h200": (0.51, 4.63, 2.91, 22.6, 5.25, 36.7),
    "h100-sxm": (0.58, 5.23, 4.38, 32.1, 5.92, 41.5),
    "rtx-5090": (2.25, 20.3, 8.30, 72.4, 23.0, 161),
    "rtx-4090": (2.73, 24.7, 14.4, 114, 28.0, 196),
    "thor": (6.5, 57.6, 57.6, 410, 68, 476),
    "orin-64": (12.6, 114, 76.8, 588, 130, 907),
}


def of(device: str, dtype: str = "bf16"):
    roof = Roofline(load_model("openvla-7b"), DEVICES[device], parse_precision(dtype))
    return roof, {s.name: s for s in decodings(roof)}


@pytest.mark.parametrize("device", BY_HAND)
def test_the_table_of_openvla_7b(device):
    roof, found = of(device)
    ours = (
        roof.vision().ms + roof.projector().ms,
        roof.prefill().ms,
        roof.decode().ms,
        found["autoregressive"].seconds * 1e3,
        found["actionflow"].seconds * 1e3,
        found["actionflow"].latency_s * 1e3,
    )
    assert ours == pytest.approx(BY_HAND[device], rel=0.01)


@pytest.mark.parametrize(
    ("device", "dtype", "autoregressive", "packed"),
    [
        ("h200", "fp8", 11.9, 3.0),
        ("h100-sxm", "fp8", 16.8, 3.4),
        ("orin-64", "int8", 307, 71),
        ("orin-64", "int4", 260, 130),
        ("thor", "int4", 124, 25),
    ],
)
def test_low_precision(device, dtype, autoregressive, packed):
    _, found = of(device, dtype)
    assert found["autoregressive"].seconds * 1e3 == pytest.approx(autoregressive, rel=0.1)
    assert found["actionflow"].seconds * 1e3 == pytest.approx(packed, rel=0.1)


def test_a_pipeline_behind_a_camera_is_old():
    """205 ms at 30 Hz on an H200, where plain decoding needs 22.6."""
    _, found = of("h200")
    assert found["actionflow"].clocked(30).latency_s == pytest.approx(0.205, abs=0.001)
    assert found["autoregressive"].clocked(30).latency_s == pytest.approx(0.0226, abs=0.0001)


def test_a_miss_costs_a_tenth_of_a_millisecond():
    _, found = of("h200")
    loss = found["speculative_miss"].seconds - found["autoregressive"].seconds
    assert 0 < loss < 0.15e-3
    assert found["speculative_hit"].seconds == pytest.approx(found["actionflow"].seconds, rel=0.01)


@pytest.mark.parametrize(("views", "measured_ms"), [(1, 20.0), (2, 27.3), (3, 36.8)])
def test_pi0_on_a_4090_stays_below_what_was_measured(views, measured_ms):
    """realtime-vla reaches 20.0, 27.3, 36.8 ms: a bound must be lower, and not by far."""
    roof = Roofline(load_model("pi0").with_images(views), DEVICES["rtx-4090"])
    flow, naive = decodings(roof)
    assert 0.75 * measured_ms < flow.seconds * 1e3 < measured_ms
    assert flow.seconds < naive.seconds


@pytest.mark.parametrize(("name", "share"), [("smolvla", 0.52), ("pi0", 0.75)])
def test_the_prefix_takes_the_share_of_a_chunk_that_was_measured(name, share):
    """vla.cpp (arXiv 2606.08094) measured 52 % for SmolVLA and 75 % for pi0 on an RTX 5070: what
    comes before the solver, vision included. A roofline has no gaps between kernels, which the
    many small steps of SmolVLA suffer most from, so its prefix weighs more here."""
    naive = decodings(Roofline(load_model(name), DEVICES["rtx-4090"]))[1]
    assert 1 - naive.shares["decode"] == pytest.approx(share, abs=0.1)


def test_how_dense_prefix_and_steps_are():
    """256 to 530 operations a byte before the solver and about 50 in it (the same paper)."""
    roof = Roofline(load_model("pi0"), DEVICES["rtx-4090"])
    assert roof.prefix(naive=True).intensity == pytest.approx(530, rel=0.1)
    assert roof.expert_step(naive=True).intensity == pytest.approx(50, rel=0.2)
