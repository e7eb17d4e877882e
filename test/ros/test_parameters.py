"""The parameter files say what the nodes declare, with the nodes' own defaults."""

from pathlib import Path

import pytest
import yaml

pytest.importorskip("rclpy", reason="rclpy is not installed: source a ROS 2 or use its wheels")

from vla_ros.nodes import describe
from vla_ros.nodes.policy.parameters import TABLE
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


def test_the_reference_page_is_the_tables():
    page = Path(__file__).parents[2] / "docs" / "reference" / "parameters.md"
    assert page.read_text() == describe.document()
