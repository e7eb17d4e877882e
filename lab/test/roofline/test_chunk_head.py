"""Chunks said token by token: the recursive head's cost, and the passes that it leaves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_ros.core.resources import config_path
from vla_ros.engine.decoding.draft_heads import recursive_width
from vla_ros_lab.roofline import decodings as chunk_head
from vla_ros_lab.roofline.decodings import decodings, recursive_decoding, refused, served
from vla_ros_lab.roofline.devices import load_devices
from vla_ros_lab.roofline.roofline import Roofline
from vla_ros_lab.roofline.shapes import load_model
from vla_ros_lab.roofline.speculation import covered, ranked, rounds

DEVICES = load_devices(config_path("devices.yaml"))
CHUNKED = load_model("openvla-7b").with_chunk(8)
H200 = Roofline(CHUNKED, DEVICES["h200"])

#: OpenVLA-7B's shape, 56 tokens, an H200, worked out by hand before any of this was written:
#: coverage -> (passes, times as fast as autoregressive) with 8 and with 11 levels. A level is
#: taken as 0.03 ms there, three times what its bytes take, for its launches.
BY_HAND = {
    0.5: ((29.0, 1.77), (29.0, 1.72)),
    0.7: ((18.8, 2.70), (18.4, 2.69)),
    0.8: ((14.3, 3.51), (13.5, 3.62)),
    0.9: ((10.5, 4.70), (9.3, 5.18)),
}


@pytest.mark.parametrize("coverage", BY_HAND)
@pytest.mark.parametrize(("which", "levels"), [(0, 8), (1, 11)])
def test_passes_and_speed_are_those_worked_out_by_hand(coverage, which, levels):
    passes, speed = BY_HAND[coverage][which]
    assert rounds(56, covered(coverage), levels).passes == pytest.approx(passes, abs=0.06)
    plain = decodings(H200)[0]
    assert plain.passes == 56
    assert plain.seconds == pytest.approx(0.165, rel=0.01)
    # alpha 0: nothing is drafted behind the prompt, as there
    drafted = recursive_decoding(H200, 0.0, coverage, levels)
    assert drafted.passes == pytest.approx(passes, abs=0.06)
    gain = plain.seconds / drafted.seconds
    assert speed < gain < 1.07 * speed, "launches are not in a roofline"
    launched = drafted.draft_passes * (30e-6 - chunk_head.head_time(H200).level.seconds)
    assert plain.seconds / (drafted.seconds + launched) == pytest.approx(speed, rel=0.01)


def play(rng, coverage: float, tokens: int, levels: int) -> tuple[int, int]:
    """A chunk by throwing dice: the prefill's token, then rounds."""
    done, passes, asked = 1, 1, 0
    while done < tokens:
        depth = min(levels, tokens - 1 - done)
        passes, asked, stood = passes + 1, asked + depth, 0
        while stood < depth and rng.random() < coverage:
            stood += 1
        done += stood + 1
    return passes, asked


@pytest.mark.parametrize(
    ("coverage", "tokens", "levels"), [(0.5, 56, 8), (0.9, 56, 12), (0.8, 14, 3)]
)
def test_expected_rounds_are_what_dice_give(coverage, tokens, levels):
    rng = np.random.default_rng(0)
    thrown = np.array([play(rng, coverage, tokens, levels) for _ in range(2000)])
    found = rounds(tokens, covered(coverage), levels)
    error = 4 * thrown.std(axis=0) / np.sqrt(len(thrown))
    assert abs(thrown[:, 0].mean() - found.passes) < error[0]
    assert abs(thrown[:, 1].mean() - found.head_passes) < error[1]


@given(st.floats(0.0, 0.99), st.integers(1, 12), st.integers(3, 60))
def test_more_coverage_and_more_levels_never_cost_passes(coverage, levels, tokens):
    found = rounds(tokens, covered(coverage), levels)
    assert 2 - 1e-9 <= found.passes <= tokens + 1e-9
    assert rounds(tokens, covered(coverage + 0.01), levels).passes <= found.passes + 1e-9
    assert rounds(tokens, covered(coverage), levels + 1).passes <= found.passes + 1e-9


def test_far_from_the_end_a_round_yields_what_the_sum_says():
    c, levels = 0.8, 8
    a, b = (rounds(tokens, covered(c), levels).passes for tokens in (400, 800))
    assert 400 / (b - a) == pytest.approx((1 - c ** (levels + 1)) / (1 - c), rel=1e-3)


@pytest.mark.parametrize("model", ["openvla-7b", "small"])
def test_a_level_of_a_recursive_head_reads_all_but_its_taps(model):
    shape = load_model(model).with_chunk(8)
    hidden, width = shape.decoder.hidden, recursive_width(shape.decoder.hidden)
    inner = width * 11 // 4
    each = {
        "token": hidden * width, "qkv": 6 * width**2, "out": width**2,
        "gate_up": 2 * width * inner, "down": inner * width, "wide": width * hidden,
        "bins": hidden * 256, "attention": 0,
    }  # fmt: skip
    assert {op.name: op.weights for op in chunk_head.level_ops(shape, 1)} == each
    assert sum(op.weights for op in chunk_head.taps_ops(shape, 1)) == 3 * hidden * width
    ops = {op.name: op for op in chunk_head.level_ops(shape, 6)}
    assert ops["bins"].flops == 2 * 6 * hidden * 256


def test_a_level_of_a_large_policys_head_is_a_fraction_of_a_pass():
    head = chunk_head.head_time(H200)
    assert head.width == 1024
    assert head.level.bytes / H200.decode().bytes == pytest.approx(0.004, abs=0.001)
    assert head.level.bound == "memory"


def test_the_head_of_a_chunk_is_the_recursive_one():
    found = {s.name: s for s in decodings(H200, 0.5, head=True)}
    tree, head = found["speculative_tree"], found["speculative_head"]
    assert 1 < head.passes < tree.passes < found["speculative_temporal"].passes < 56
    assert 0.5 < head.coverage < 1
    assert 1 <= head.draft_levels <= 12
    assert head.draft_passes > head.passes
    assert 0 < head.shares["draft"] < 0.1
    assert head.worst_s > found["speculative_miss"].worst_s
    assert "speculative_head" not in {s.name for s in decodings(H200, 0.5)}
    # the coverage that is said takes the passes that are said
    assert recursive_decoding(H200, 0.5, head.coverage, head.draft_levels).passes == pytest.approx(
        head.passes, rel=0.01
    )
    sums = ranked(0.5, 64)(12)
    assert all(np.diff(sums) < 0)


def test_a_draft_that_knows_nothing_goes_no_deeper_than_it_must():
    never, always = (recursive_decoding(H200, 0.0, c) for c in (0.0, 1.0))
    assert never.passes == pytest.approx(56)
    assert never.draft_levels == 1
    # the first token, then five rounds of eleven: no other depth needs as few levels for five
    assert (always.passes, always.draft_levels) == (pytest.approx(6), 10)


def test_who_refuses_chunks_is_left_out_with_a_reason():
    assert set(refused(CHUNKED)) == {"actionflow", "naive_pipe"}
    assert "56 frames old" in refused(CHUNKED)["actionflow"]
    assert refused(load_model("openvla-7b")) == refused(load_model("pi0")) == {}
    assert not set(refused(CHUNKED)) & {s.name for s in decodings(H200)}
    assert "packed pass" not in {s.name for s in H200.stages()}


def test_a_chunk_serves_half_of_its_actions():
    plain = decodings(H200)[0]
    half = served(plain, 30.0)
    assert half.executed == 4
    assert half.actions_hz == pytest.approx(4 / plain.seconds)
    assert half.age_s == pytest.approx(plain.clocked(30.0).latency_s + plain.seconds / 2)
    assert half.worst_s == pytest.approx(plain.clocked(30.0).worst_s + plain.seconds)
    assert served(plain, 30.0, 8).actions_hz == pytest.approx(2 * half.actions_hz)
    fast = served(decodings(H200)[1], 30.0)  # waits for the camera
    assert fast.actions_hz == pytest.approx(120)


def test_a_chunk_is_asked_of_a_known_shape():
    assert (CHUNKED.chunk, CHUNKED.action_tokens) == (8, 56)
    assert CHUNKED.with_chunk(1) == load_model("openvla-7b")
    small = load_model("small-chunk")
    assert load_model("small").with_chunk(8).action_tokens == small.action_tokens
    for model, actions, needle in (("pi0", 4, "at once"), ("small", 0, "at least 1")):
        with pytest.raises(ValueError, match=needle):
            load_model(model).with_chunk(actions)
