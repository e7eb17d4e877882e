"""Rate, latency and shares of decodings; what a camera does to them; who is advised."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_ros.core.resources import config_path
from vla_ros_lab.roofline.advice import Candidate, Requirements, advise, from_roofline, judge
from vla_ros_lab.roofline.decodings import clocked, decodings
from vla_ros_lab.roofline.devices import load_devices
from vla_ros_lab.roofline.roofline import Roofline
from vla_ros_lab.roofline.shapes import KNOWN, load_model
from vla_ros_lab.roofline.speculation import alternatives

DEVICES = load_devices(config_path("devices.yaml"))


def of(model: str, device: str, **options):
    return {s.name: s for s in decodings(Roofline(load_model(model), DEVICES[device]), **options)}


def play(seconds: float, depth: int, camera_hz: float, frames: int) -> tuple[float, np.ndarray]:
    """A camera and an engine, inference by inference: answers a second, and their latencies."""
    period = 1 / camera_hz
    now, used, started, ages = 0.0, -1, [], []
    for _ in range(frames):
        newest = int(np.floor(now / period + 1e-9))
        if newest == used:  # wait for a frame not seen yet
            newest += 1
            now = newest * period
        used = newest
        started.append(newest * period)
        now += seconds
        if len(started) >= depth:
            ages.append(now - started[-depth])
    return (frames - depth) / (now - started[0]), np.array(ages)


@pytest.mark.parametrize("depth", [1, 7])
@pytest.mark.parametrize("seconds", [0.005, 0.0226, 0.0507, 0.1317, 0.5883])
def test_behind_a_camera_as_in_a_simulation(seconds, depth):
    rate, ages = play(seconds, depth, 30.0, 3000)
    run = clocked(seconds, seconds, depth, 30.0)
    assert run.rate_hz == pytest.approx(rate, rel=0.01)
    assert run.latency_s == pytest.approx(ages.mean(), rel=0.02)
    assert ages.max() <= run.worst_s + 1e-9
    assert run.worst_s - ages.max() < 0.1 / 30


@pytest.mark.parametrize("model", KNOWN)
@pytest.mark.parametrize("device", ["h200", "orin-64"])
def test_every_model_has_decodings(model, device):
    found = of(model, device, draft=load_model("minivla"))
    assert found
    for s in found.values():
        assert sum(s.shares.values()) == pytest.approx(1.0)
        assert s.rate_hz * s.latency_s == pytest.approx(s.depth)
        assert s.worst_s >= s.seconds - 1e-12
    kind = load_model(model).kind
    assert ("autoregressive" in found) == (kind == "tokens")
    if kind == "tokens":
        tokens, chunks = load_model(model).action_tokens, load_model(model).chunk > 1
        assert ("actionflow" in found) == (not chunks), "no pipeline takes chunks"
        assert chunks or found["actionflow"].depth == tokens == 7
        assert found["speculative_hit"].passes == 1
        assert found["speculative_miss"].passes == tokens


def test_a_draft_model_costs_what_it_drafts():
    found = of("openvla-7b", "h200", alpha=0.5, draft=load_model("minivla"))
    free, dear = found["speculative_temporal"], found["speculative_model"]
    assert dear.passes == free.passes == 4.0
    small = Roofline(load_model("minivla"), DEVICES["h200"])
    start = small.projector().seconds + small.prefill().seconds
    steps = 13.5 - 1  # drafted tokens at 0.5; the draft's prefill gives the first
    assert dear.seconds - free.seconds == pytest.approx(start + steps * small.decode().seconds)
    assert found["vanilla_speculative"].seconds > found["autoregressive"].seconds  # 0.5 is too low
    assert "draft" not in free.shares


@given(st.floats(0, 1))
def test_the_fused_decoding_lies_between_hit_and_miss(alpha):
    found = of("openvla-7b", "h100-sxm", alpha=alpha)
    hit, miss = found["speculative_hit"].seconds, found["speculative_miss"].seconds
    assert hit - 1e-12 <= found["speculative_temporal"].seconds <= miss + 1e-12


def test_operators_one_by_one_are_never_faster_than_one_fused_kernel():
    for model in map(load_model, KNOWN):
        whole = Roofline(model, DEVICES["h200"]).stages()
        each = Roofline(model, DEVICES["h200"], accounting="operator").stages()
        assert all(e.seconds >= w.seconds * (1 - 1e-12) for w, e in zip(whole, each, strict=True))


def test_peak_rates_are_a_lower_bound():
    roof = Roofline(load_model("openvla-7b"), DEVICES["orin-64"])
    peak = Roofline(load_model("openvla-7b"), DEVICES["orin-64"], rates="peak")
    assert peak.decode().seconds < roof.decode().seconds
    assert peak.prefill().bound == "compute"
    assert roof.decode().bound == "memory"


def test_a_model_that_does_not_fit_says_so():
    assert not Roofline(load_model("openvla-7b").with_images(1), small_device()).fits()
    assert Roofline(load_model("openvla-7b"), DEVICES["rtx-4090"]).fits()


def small_device():
    from dataclasses import replace

    return replace(DEVICES["rtx-4090"], memory_gb=16)


# advice


def test_on_a_fast_device_the_fresh_decodings_win_and_the_pipeline_is_too_old():
    limits = Requirements(camera_hz=30, control_hz=20, max_age_s=0.15)
    found = of("openvla-7b", "h200", draft=load_model("minivla")).values()
    verdicts = advise(from_roofline(found), limits)
    names = [v.candidate.name for v in verdicts]
    assert names == [
        *("speculative_tree", "speculative_temporal", "speculative_model", "autoregressive"),
        "actionflow",
    ]
    assert [v.meets for v in verdicts] == [True, True, True, True, False]
    assert "255 ms old" in verdicts[-1].missing[0]
    assert verdicts[0].parameters == "decoding=speculative engine_options=[drafter=temporal_tree]"
    assert verdicts[1].parameters == "decoding=speculative"


def test_a_tree_saves_passes_where_nodes_are_cheap():
    """Between a chain and a hit, whatever the acceptance; nothing to gain at its ends."""
    for alpha in (0.3, 0.55, 0.8):
        found = of("openvla-7b", "h200", alpha=alpha)
        tree, chain = found["speculative_tree"], found["speculative_temporal"]
        assert 1 < tree.passes < chain.passes
        assert found["speculative_hit"].seconds < tree.seconds < chain.seconds
        head = of("openvla-7b", "h200", alpha=alpha, head=True)["speculative_head"]
        assert 1 < head.passes < tree.passes
        assert 0 < head.shares["draft"] < 0.02
    assert "speculative_head" not in found
    assert sum(alternatives(0.55)) <= 1.0
    assert of("openvla-7b", "h200", alpha=1.0)["speculative_tree"].passes == pytest.approx(1)
    assert of("openvla-7b", "h200", alpha=0.0)["speculative_tree"].passes == pytest.approx(7)


def test_on_a_slow_device_only_the_pipeline_reaches_the_rate():
    limits = Requirements(camera_hz=30, control_hz=7, max_age_s=1.5)
    verdicts = advise(from_roofline(of("openvla-7b", "orin-64").values()), limits)
    assert [v.candidate.name for v in verdicts if v.meets] == ["actionflow"]


def test_a_chunk_serves_several_ticks_and_ages_meanwhile():
    limits = Requirements(camera_hz=10, control_hz=20, max_age_s=0.5)
    slow = Candidate("parallel", 0.2, 0.2, chunk=8)
    verdict = judge(slow, limits)
    assert verdict.answers_hz == pytest.approx(5.0)
    assert verdict.meets
    assert verdict.age_s == pytest.approx(0.2 + 0.1 + 4 / 20)  # T, the frame's wait, four ticks
    assert judge(Candidate("parallel", 0.2, 0.2, chunk=3), limits).missing == (
        "15.0 of 20 actions/s",
    )


def test_commands_between_two_actions_need_no_inference():
    """A robot of 200 commands a second asks no more of a policy of 20 actions than one of 20."""
    slow = Candidate("parallel", 0.2, 0.2, chunk=8)
    limits = Requirements(camera_hz=10, control_hz=200, max_age_s=0.6, action_hz=20)
    verdict = judge(slow, limits)
    assert verdict.meets and (verdict.actions_hz, verdict.executed) == (20, 4)
    # The last command of the fourth action comes nine ticks after its first.
    assert verdict.age_s == pytest.approx(0.2 + 0.1 + 4 / 20 + 9 / 200)
    below = Requirements(camera_hz=10, control_hz=10, max_age_s=0.6, action_hz=20)
    assert judge(slow, below).age_s == pytest.approx(0.2 + 0.1 + 1 / 10 + 3 / 20)
    fast = Candidate("autoregressive", 0.04, 0.04)
    assert judge(fast, Requirements(30, 200, 1.0, 20)).meets
    assert judge(fast, Requirements(30, 200, 1.0)).missing == ("25.0 of 200 actions/s",)


def test_a_slow_camera_feeds_no_fast_control():
    verdict = judge(Candidate("autoregressive", 0.01, 0.01), Requirements(10, 20, 1.0))
    assert verdict.missing == ("10.0 of 20 actions/s",)
    assert judge(Candidate("autoregressive", 0.01, 0.01), Requirements(20, 20, 1.0)).meets


def test_a_rare_slow_answer_counts():
    limits = Requirements(30, 20, 0.1)
    assert judge(Candidate("speculative_temporal", 0.01, 0.02), limits).meets
    assert not judge(Candidate("speculative_temporal", 0.01, 0.2), limits).meets


@pytest.mark.parametrize("values", [(0, 20, 1), (30, -1, 1), (30, 20, 0), (30, 20, float("nan"))])
def test_limits_that_are_none(values):
    with pytest.raises(ValueError, match="above 0"):
        Requirements(*values)
