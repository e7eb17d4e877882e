"""How many robots a server has time for, by the roofline."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from vla_ros.cli.main import main
from vla_ros.core.resources import config_path
from vla_ros_lab.roofline.advice import Requirements, advise, from_roofline
from vla_ros_lab.roofline.decodings import decodings
from vla_ros_lab.roofline.devices import load_devices
from vla_ros_lab.roofline.fleet import fleet_of
from vla_ros_lab.roofline.roofline import Roofline
from vla_ros_lab.roofline.shapes import load_model

LIMITS = Requirements(camera_hz=30.0, control_hz=10.0, max_age_s=0.3)


@pytest.fixture
def roof() -> Roofline:
    return Roofline(load_model("openvla-7b"), load_devices(config_path("devices.yaml"))["h200"])


def test_a_batch_reads_the_weights_once(roof: Roofline) -> None:
    alone, eight = roof.decode(), replace(roof, robots=8).decode()
    assert eight.flops == pytest.approx(8 * alone.flops)
    assert alone.bytes < eight.bytes < 1.2 * alone.bytes
    assert eight.seconds < 1.2 * alone.seconds
    filled = replace(roof, robots=8).prefill()  # its arithmetic is the bound
    assert filled.seconds > 4 * roof.prefill().seconds


def test_robots_are_let_in_by_what_a_batch_takes(roof: Roofline) -> None:
    verdicts = advise(from_roofline(decodings(roof)), LIMITS)
    found = fleet_of(roof, verdicts, LIMITS, decodings)
    assert found is not None
    assert found.rate_hz == 10.0
    assert found.max_age_s == pytest.approx(0.3 - 1 / 30 - 1 / 10)
    assert found.robots > 4
    assert found.robots * found.rate_hz <= 0.9 * found.robots / found.together_s * 1.05
    assert 2 * found.together_s <= found.max_age_s * 1.05, "a frame may wait for one before it"
    slower = Requirements(30.0, 5.0, 0.6)
    more = fleet_of(roof, advise(from_roofline(decodings(roof)), slower), slower, decodings)
    assert more is not None and more.robots > found.robots
    nothing = Requirements(30.0, 10.0, 0.1)
    assert (
        fleet_of(roof, advise(from_roofline(decodings(roof)), nothing), nothing, decodings) is None
    )


def test_no_more_than_memory_holds(roof: Roofline) -> None:
    small = replace(roof, device=replace(roof.device, memory_gb=roof.memory(6).total / 1e9))
    found = fleet_of(small, advise(from_roofline(decodings(small)), LIMITS), LIMITS, decodings)
    assert found is not None
    assert (found.robots, found.bound) == (4, True)
    assert "as many as its memory holds" in str(found)


def test_advise_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["advise", "--camera-hz", "30", "--control-hz", "10", "--max-age-ms", "300"]
    assert main([*words, "--device", "h200", "--json"]) == 0
    *shown, line = capsys.readouterr().out.strip().splitlines()
    fleet = json.loads(line)["fleet"]
    assert shown[-1].startswith(f"robots on one server: {fleet['robots']}, by {fleet['decoding']}")
