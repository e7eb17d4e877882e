"""The nouns of an evaluation survive their files."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_ros.data.episodes.records import (
    Job,
    Record,
    Setup,
    Spread,
    Variant,
    record_from_json,
    setup_from_json,
    to_json,
    variant_from_json,
)
from vla_ros.sim.episode import Mode

SAMPLES = st.lists(st.floats(-1e6, 1e6), max_size=60)
WORDS = st.text(max_size=30)


def _through_a_file(noun):
    return json.loads(json.dumps(to_json(noun)))


@given(SAMPLES)
def test_a_spread_is_that_of_its_samples(samples):
    spread = Spread.of(samples)
    assert spread.count == len(samples)
    if samples:
        assert math.isclose(spread.p95, float(np.percentile(samples, 95)), abs_tol=1e-9)
        assert spread.quantiles[0] == min(samples)
        assert spread.quantiles[-1] == max(samples)
        assert list(spread.quantiles) == sorted(spread.quantiles)


@given(SAMPLES, WORDS, st.lists(st.integers(0, 1000), max_size=7))
def test_a_record_comes_back_as_it_was(samples, words, drafted):
    record = Record(
        Job("speculative,relaxed,r=3", "pick_red_cube", 3, 17, words, 5),
        success=True,
        reason=words,
        age_ms=Spread.of(samples),
        drafted=tuple(drafted),
        error=words,
    )
    assert record_from_json(_through_a_file(record)) == record


def test_setup_and_variant_come_back_as_they_were():
    setup = Setup(mode=Mode.REALTIME, action_scale=(0.05,) * 3 + (0.5,) * 3, wrist=True)
    assert setup_from_json(_through_a_file(setup)) == setup
    variant = Variant("a", "speculative", relaxed_distance=3, image_delay_ms=50.0)
    assert variant_from_json(_through_a_file(variant)) == variant


def test_a_field_of_another_version_is_one_line():
    values = _through_a_file(Variant("a")) | {"color": "red"}
    with pytest.raises(ValueError, match="Variant has no color"):
        variant_from_json(values)
    with pytest.raises(ValueError, match="label"):
        variant_from_json({})
    values = _through_a_file(Record(Job("a", "reach", 0, 0), True, "success"))
    for name in ("served", "seam"):
        with pytest.raises(ValueError, match=f"^Record without {name}: .*; play it again"):
            record_from_json({n: value for n, value in values.items() if n != name})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Variant("a/b"), "slash"),
        (lambda: Variant("a", delay_frames=-1), "delay_frames"),
        (lambda: Variant("a", image_delay_ms=float("nan")), "image_delay_ms is nan"),
        (lambda: Variant("a", image_delay_ms=1e9), "image_delay_ms is 1e\\+09: must be 0 to 10000"),
        (lambda: Setup(image_size=0), "image_size must be 16 to 1024 pixels, not 0"),
        (lambda: Setup(max_age_s=-1.0), r"max_age_s is -1: must be above 0\.05"),
        (lambda: Setup(max_age_s=float("nan")), "max_age_s is nan"),
        (lambda: Setup(policy="replay"), "policy is 'replay'"),
        (lambda: Setup(route="bus"), "route"),
        (lambda: Setup(route="direct", mode=Mode.REALTIME), "lock-step only"),
    ],
)
def test_what_makes_no_sense_is_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_a_job_is_known_by_what_is_played_not_by_its_place():
    assert Job("a", "t", 1, 0, number=1).key() == Job("a", "t", 1, 0, number=9).key()
    keys = {
        Job(v, t, s, d, w).key()
        for v in "ab"
        for t in "tu"
        for s in (0, 1)
        for d in (0, 1)
        for w in ("", "x")
    }
    assert len(keys) == 32
