"""No field of somebody's config.json acts in silence: each is read, irrelevant for a reason, or
refused by its name."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.config_fields import CLASSES, in_no_list, read_classes, stored
from support.engine import tiny_config
from vla_ros.engine.errors import CheckpointError
from vla_ros.engine.families.act import PRESETS as ACT
from vla_ros.engine.families.act import act_config_json, parse_act_config
from vla_ros.engine.families.evo1 import PRESETS as EVO1
from vla_ros.engine.families.evo1 import evo1_config_json, parse_evo1_config
from vla_ros.engine.families.lerobot import PRESETS
from vla_ros.engine.families.turbovla import SMALL as TURBOVLA
from vla_ros.engine.families.turbovla import parse_turbovla_config, turbovla_config_json
from vla_ros.engine.io import fields as lists
from vla_ros.engine.io.config import config_json, parse_config
from vla_ros.engine.io.field_table import (
    Field,
    Fields,
    FieldTable,
    Fixed,
    Written,
    by_hand,
    plain,
)
from vla_ros.engine.io.fields import LEROBOT
from vla_ros.engine.io.flow_config import flow_config_json, parse_flow_config

ALL = {name: it for name, it in vars(lists).items() if isinstance(it, FieldTable)}
RELEASES = stored()
#: Fields that change what a policy says, with a value that does.
ACTING = {
    "pi05": {
        "use_visual_memory": True, "use_proprioceptive_memory": True, "n_obs_steps": 2,
    },
    "pi0": {"adapt_to_pi_aloha": True, "use_delta_joint_actions_aloha": True, "num_steps": 5},
    "pi0_fast": {"temperature": 0.7, "n_obs_steps": 2},
    "smolvla": {"add_image_special_tokens": True, "n_obs_steps": 6},
    "evo1": {"return_cls_only": True, "action_head": "regression"},
    "act": {"replace_final_stride_with_dilation": True, "n_obs_steps": 2},
}  # fmt: skip


def config_of(kind: str) -> dict[str, Any]:
    if kind == "act":
        return act_config_json(ACT["act-small"])
    if kind == "evo1":
        return evo1_config_json(EVO1["evo1-small"])
    return flow_config_json(PRESETS[f"{kind}-small"])


def parse(raw: dict[str, Any]) -> Any:
    own = {"evo1": parse_evo1_config, "act": parse_act_config}
    return own.get(raw["type"], parse_flow_config)(raw)


def test_something_is_stored_of_every_class() -> None:
    seen = {name for found in RELEASES.values() for name in found}
    assert seen == CLASSES.keys()
    assert "use_visual_memory" in RELEASES["lerobot-7427f31"]["PI05Config"]


@pytest.mark.parametrize("release", RELEASES)
def test_every_field_of_the_authors_is_in_a_list(release: str) -> None:
    assert in_no_list(RELEASES[release]) == []


@pytest.mark.parametrize("package", ["lerobot", "transformers"])
def test_every_field_of_the_installed_classes_is_in_a_list(package: str) -> None:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed: its stored releases are compared")
    found = read_classes(Path(spec.origin).parent)
    assert found, importlib.metadata.version(package)
    assert in_no_list(found) == []


@pytest.mark.parametrize("name", ALL)
def test_no_field_is_in_two_lists_and_each_idle_one_has_a_reason(name: str) -> None:
    it = ALL[name]
    read = [key for key, row in it.rows.items() if row and not isinstance(row, Written)]
    every = [*read, *it.used.split(), *it.reasons(), *it.only]
    assert len(every) == len(set(every))
    assert all(it.reasons().values())


@pytest.mark.parametrize("release", [r for r in RELEASES if r.startswith("lerobot")])
@pytest.mark.parametrize("kind", LEROBOT)
def test_the_authors_own_defaults_are_read(kind: str, release: str) -> None:
    """What LeRobot writes where its user chose nothing is no reason to refuse a folder."""
    found = RELEASES[release].get({"pi0": "PI0Config", "pi05": "PI05Config",
        "smolvla": "SmolVLAConfig", "pi0_fast": "PI0FastConfig",
        "evo1": "Evo1Config", "act": "ACTConfig"}[kind])  # fmt: skip
    if found is None:
        pytest.skip(f"{release} has no {kind}")
    raw = config_of(kind)
    for field, text in (RELEASES[release]["PreTrainedConfig"] | found).items():
        try:
            value = ast.literal_eval(text.replace("DEFAULT_IMAGE_SIZE", "224"))
        except (ValueError, SyntaxError):
            continue  # made by a factory
        raw.setdefault(field, list(value) if isinstance(value, tuple) else value)
    parse(raw)


@pytest.mark.parametrize("kind", LEROBOT)
def test_a_field_that_nobody_knows_is_refused_by_name(kind: str) -> None:
    raw = config_of(kind) | {"thinks_twice": True}
    with pytest.raises(CheckpointError, match=r"unknown fields thinks_twice \(True\)"):
        parse(raw)


@pytest.mark.parametrize(("kind", "field"), [(k, f) for k, fs in ACTING.items() for f in fs])
def test_a_field_that_would_act_is_refused_by_name(kind: str, field: str) -> None:
    raw = config_of(kind)
    parse(raw)
    with pytest.raises(CheckpointError, match=f"{field} is .*computes nothing else"):
        parse(raw | {field: ACTING[kind][field]})


def test_of_a_token_policy_too() -> None:
    raw = config_json(tiny_config(), {})
    parse_config(raw)
    with pytest.raises(CheckpointError, match="unknown fields thinks_twice"):
        parse_config(raw | {"thinks_twice": 1})
    with pytest.raises(CheckpointError, match=r"unknown fields text_config\.qk_norm"):
        parse_config(raw | {"text_config": raw["text_config"] | {"qk_norm": True}})


def test_of_turbovla_in_each_of_its_parts() -> None:
    """Its authors' defaults are read, whatever their class had; what nobody knows is refused."""
    written, found = turbovla_config_json(TURBOVLA), RELEASES["H-EmbodVis-TurboVLA-2d42436"]
    parts = {"text": "TextEncoderConfig", "vision": "VisionEncoderConfig",
             "interaction": "InteractionConfig", "action": "ActionHeadConfig"}  # fmt: skip
    for part, name in parts.items():
        for field, text in found[name].items():
            if "factory" not in text:
                written[part].setdefault(field, ast.literal_eval(text))
    config = parse_turbovla_config(written)
    assert parse_turbovla_config(written | {"embedding_dump": {"enabled": False}}) == config
    with pytest.raises(CheckpointError, match=r"unknown fields thinks_twice \(True\)"):
        parse_turbovla_config(written | {"thinks_twice": True})
    for part in parts:
        strange = written | {part: written[part] | {"thinks_twice": True}}
        with pytest.raises(CheckpointError, match=rf"unknown fields {part}\.thinks_twice"):
            parse_turbovla_config(strange)


def test_trained_rtc_by_lerobots_word() -> None:
    """pi0.5 alone has it; its network then takes some actions as given, each with its own time."""
    raw = config_of("pi05")
    assert parse(raw).continues == ("rtc",)
    config = parse(raw | {"rtc_training_max_delay": 4})
    assert config.continues == ("rtc", "rtc_trained")
    assert config.max_delay == 4
    assert parse(flow_config_json(config)) == config
    with pytest.raises(CheckpointError, match="unknown fields rtc_training_max_delay"):
        parse(config_of("pi0") | {"rtc_training_max_delay": 4})


@dataclass
class Arm:
    """A config of a table."""

    joints: int
    speed: float = 0.5
    name: str = "left"
    side: int = 64


ARM = FieldTable(
    {
        "kind": Fixed("arm"),
        "num_joints": Field("joints", 6, (1, 9)),
        "motion": FieldTable(plain("max_speed=speed"), {"color": "paint"}, beside={"color": "red"}),
        "label": Field("name", "left", ("left", "right"), sparse=True),
        "image": Field("side", by="square"),
        "twice": Written("joints"),
        **by_hand("stamp"),
    },
    only={"gripper": (True,)},
)


def test_a_table_parses_what_it_writes_in_its_order() -> None:
    written = ARM.write(Arm(7, 2.0), {"stamp": 3})
    assert json.dumps(written) == json.dumps(
        {
            "kind": "arm",
            "num_joints": 7,
            "motion": {"color": "red", "max_speed": 2.0},
            "image": [64, 64],
            "twice": 7,
            "stamp": 3,
        }
    )
    ARM.check(written)
    assert Arm(**ARM.parse(Fields(written), Arm)) == Arm(7, 2.0)
    assert "stamp" not in ARM.write(Arm(7))
    assert ARM.write(Arm(7, name="right"))["label"] == "right"


def test_what_a_file_leaves_out_is_the_rows_the_dataclasses_or_the_known_ones() -> None:
    assert Arm(**ARM.parse(Fields({"motion": {"max_speed": None}}), Arm)) == Arm(6)
    assert Arm(**ARM.parse(Fields({}), Arm(8, 3.0, "right", 32))) == Arm(6, 3.0, "left", 32)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({"kind": "leg"}, "kind is 'leg': wanted 'arm', this engine computes nothing else"),
        ({"gripper": 1}, "gripper is 1: wanted True"),
        ({"paint": 1}, "unknown fields paint (1)"),
        ({"motion": {"paint": 1}}, "unknown fields motion.paint (1)"),
        ({"motion": 3}, "motion is 3: wanted an object"),
        ({"num_joints": 10}, "num_joints is 10: wanted a whole number from 1 to 9"),
        ({"motion": {"max_speed": "x"}}, "motion.max_speed is 'x': wanted a finite number above 0"),
        ({"label": "up"}, "label is 'up': wanted one of left, right"),
        ({"image": [3, 4]}, "image is [3, 4]: wanted two equal whole numbers"),
    ],
)
def test_a_table_refuses_by_name(raw: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError, match=re.escape(said)):
        ARM.check(raw)
        ARM.parse(Fields(raw), Arm)
