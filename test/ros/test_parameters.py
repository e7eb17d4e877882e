"""The parameter files say what the nodes declare, with the nodes' own defaults."""

import dataclasses
import os
from pathlib import Path

import pytest
import yaml

pytest.importorskip("rclpy", reason="rclpy is not installed: source a ROS 2 or use its wheels")

from vla_ros.engine.options import ATTENTIONS, GEMMS, IMAGE_STEPS, EngineOptions
from vla_ros.nodes import describe
from vla_ros.nodes.policy.parameters import ENGINE, TABLE
from vla_ros.nodes.policy.settings import spec_of
from vla_ros.resources import config_path


def test_policy_yaml_lists_every_parameter_with_its_default():
    text = Path(config_path("policy.yaml")).read_text()
    written = yaml.safe_load(text)["/**"]["ros__parameters"]
    assert written == {row.name: row.default for row in TABLE}


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_every_parameter_is_described_and_its_default_allowed(row):
    descriptor = row.descriptor()
    assert descriptor.description
    if row.choices:
        assert row.default in row.choices or row.default == [""]
    if row.low is not None:
        assert row.low <= row.default <= row.high


DEFAULTS = {row.name: row.default for row in TABLE}


@pytest.mark.parametrize(
    ("device", "given", "threads"), [("cpu", 0, 2), ("cpu", 3, 3), ("cuda:0", 0, 0)]
)
def test_a_model_on_the_cpu_leaves_half_of_it_to_the_others(monkeypatch, device, given, threads):
    """Also with `up` and launch, which know nothing of the machine."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(5)))
    assert spec_of({**DEFAULTS, "device": device, "num_threads": given}).num_threads == threads


def test_what_a_checkpoint_says_is_only_overridden_by_what_is_given():
    spec = spec_of(DEFAULTS)
    assert (spec.action_scale, spec.center_crop, spec.preprocessing) == (None, None, None)
    given = {"action_scale": [0.1] * 6, "center_crop": "never", "preprocessing": "libero"}
    spec = spec_of({**DEFAULTS, **given})
    assert (spec.action_scale, spec.center_crop) == ((0.1,) * 6, False)
    assert spec.preprocessing == "libero"


def test_by_default_the_engine_picks_the_schedule_and_is_told_what_drafting_needs():
    values = {row.name: row.default for row in TABLE} | {"policy": "vla", "checkpoint": "x"}
    spec = spec_of(values | {"gamma": 3, "draft_checkpoint": "y"})
    assert spec.schedule == "auto"
    assert (spec.schedule_options["gamma"], spec.schedule_options["draft_checkpoint"]) == (3, "y")
    drafting = spec_of(values | {"gamma": 3, "draft_checkpoint": "y", "schedule": "speculative"})
    assert spec.schedule_options == drafting.schedule_options
    actionflow = spec_of(values | {"schedule": "actionflow"}).schedule_options
    assert set(actionflow) == {*ENGINE, "compile"}


def test_how_the_engine_runs_is_by_default_as_the_engine_says():
    options = spec_of(DEFAULTS).schedule_options
    fields = {field.name: field.default for field in dataclasses.fields(EngineOptions)}
    for name in (*ENGINE, "compile"):
        assert options[name] == fields[name], name
    choices = {row.name: row.choices for row in TABLE}
    assert (choices["attention"], choices["image_steps"]) == (ATTENTIONS, IMAGE_STEPS)
    assert choices["gemm"] == GEMMS


def test_the_reference_page_is_the_tables():
    page = Path(__file__).parents[2] / "docs" / "reference" / "parameters.md"
    assert page.read_text() == describe.document()
