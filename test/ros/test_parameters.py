"""The parameter files say what the nodes declare, with the nodes' own defaults."""

import os
from importlib import import_module
from pathlib import Path

import pytest
import yaml

pytest.importorskip("rclpy", reason="rclpy is not installed: source a ROS 2 or use its wheels")
pytest.importorskip("viser", reason="viser is not installed: make view")

from vla_ros.core.resources import config_path
from vla_ros.engine.options import HERE, OPTIONS, Option
from vla_ros.policies import PolicyRefused
from vla_ros.ros import describe
from vla_ros.ros.nodes.policy.parameters import ENGINE, IN_ENGINE_OPTIONS, TABLE
from vla_ros.ros.nodes.policy.settings import spec_of


@pytest.mark.parametrize("node", ["policy", "bridge", "monitor", "recorder", "view", "rerun"])
def test_the_shipped_file_names_every_parameter_with_its_default(node):
    module = "parameters" if node == "policy" else "node"
    table = import_module(f"vla_ros.ros.nodes.{node}.{module}").TABLE
    written = yaml.safe_load(config_path(f"{node}.yaml").read_text())["/**"]["ros__parameters"]
    assert written == {row.name: row.default for row in table}


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
    assert (spec.action_scale, spec.engine.center_crop, spec.engine.preprocessing) == (
        None,
        "auto",
        "auto",
    )
    given = {"action_scale": [0.1] * 6, "center_crop": "never", "preprocessing": "libero"}
    spec = spec_of({**DEFAULTS, **given})
    assert (spec.action_scale, spec.engine.center_crop) == ((0.1,) * 6, "never")
    assert spec.engine.preprocessing == "libero"


def test_every_option_of_the_engine_has_one_way_in_and_its_own_default():
    ways = [*ENGINE, *IN_ENGINE_OPTIONS, "camera_roles", "action_dim"]
    assert sorted(ways) == sorted(OPTIONS)
    spec = spec_of({**DEFAULTS, "device": "cuda:0", "policy": "vla", "checkpoint": "x"})
    assert spec.engine.changed() == {"checkpoint": "x", **HERE, "device": "cuda:0"}
    words = ["gamma=3", "adaptive_draft=false", "temperature=0.5"]
    engine = spec_of({**DEFAULTS, "engine_options": words}).engine
    assert (engine.gamma, engine.adaptive_draft, engine.temperature) == (3, False, 0.5)


def test_options_of_another_distributions_decoding_go_through_engine_options(monkeypatch):
    declared = {"bins": Option("bins", "", "its file"), "width": Option("width", 8, "", 1, 9)}
    monkeypatch.setattr("vla_ros.engine.options.extra_options", lambda: declared)
    engine = spec_of({**DEFAULTS, "engine_options": ["bins=a.json", "gamma=3"]}).engine
    assert (engine.extra, engine.gamma) == (("bins=a.json",), 3)
    assert engine.changed()["extra"] == ("bins=a.json",)
    with pytest.raises(PolicyRefused, match="width is 10: give 1 to 9"):
        spec_of({**DEFAULTS, "engine_options": ["width=10"]})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"engine_options": ["color=1"]}, "no engine option 'color'"),
        ({"engine_options": ["device=cpu"]}, "a parameter of that name"),
        ({"engine_options": ["gamma=many"]}, "gamma is 'many': give a whole number"),
        ({"engine_options": ["gamma=65"]}, "gamma is 65: give 0 to 64"),
        ({"engine_options": ["adaptive_draft=1"]}, "give true or false"),
        ({"engine_options": ["gamma"]}, "each entry is name=value"),
        ({"engine_options": ["drafter=head"]}, "decoding 'auto' changes nothing"),
        (
            {"execution": "rtc", "engine_options": ["rtc_mode=trained"]},
            "execution 'rtc_trained'",
        ),
    ],
)
def test_what_cannot_be_an_option_is_refused_by_name(given, says):
    with pytest.raises(PolicyRefused, match=says):
        spec_of({**DEFAULTS, **given})


def test_how_chunks_continue_follows_from_their_execution():
    modes = {
        execution: spec_of({**DEFAULTS, "execution": execution}).engine.rtc_mode
        for execution in ("async", "rtc", "rtc_trained")
    }
    assert modes == {"async": "", "rtc": "guided", "rtc_trained": "trained"}
    vjp = {"execution": "rtc", "engine_options": ["rtc_mode=guided_vjp"]}
    assert spec_of({**DEFAULTS, **vjp}).engine.rtc_mode == "guided_vjp"
    assert spec_of({**DEFAULTS, **vjp, "execution": "async"}).engine.rtc_mode == ""


def test_the_parameters_are_few():
    assert len(DEFAULTS) == len(TABLE) <= 116


def test_the_reference_page_and_the_parameter_file_are_the_tables():
    root, stale = Path(__file__).resolve().parents[2], "run python -m vla_ros.ros.describe"
    page = (root / "docs" / "reference" / "parameters.md").read_text(encoding="utf-8")
    assert page == describe.document(), stale
    config = (root / "config" / "policy.yaml").read_text(encoding="utf-8")
    assert config == describe.policy_yaml(), stale
