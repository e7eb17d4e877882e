"""The parameter files say what the nodes declare, with the nodes' own defaults."""

from pathlib import Path

import pytest
import yaml

pytest.importorskip("rclpy", reason="rclpy is not installed: source a ROS 2 or use its wheels")

from vla_ros.nodes import describe
from vla_ros.nodes.policy.parameters import TABLE, spec_of
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
        assert row.default in row.choices
    if row.low is not None:
        assert row.low <= row.default <= row.high


def test_by_default_the_engine_picks_the_schedule_and_is_told_what_drafting_needs():
    values = {row.name: row.default for row in TABLE} | {"policy": "vla", "checkpoint": "x"}
    spec = spec_of(values | {"gamma": 3, "draft_checkpoint": "y"})
    assert spec.schedule == "auto"
    assert (spec.schedule_options["gamma"], spec.schedule_options["draft_checkpoint"]) == (3, "y")
    drafting = spec_of(values | {"gamma": 3, "draft_checkpoint": "y", "schedule": "speculative"})
    assert spec.schedule_options == drafting.schedule_options
    assert spec_of(values | {"schedule": "actionflow"}).schedule_options == {}


def test_the_reference_page_is_the_tables():
    page = Path(__file__).parents[2] / "docs" / "reference" / "parameters.md"
    assert page.read_text() == describe.document()
