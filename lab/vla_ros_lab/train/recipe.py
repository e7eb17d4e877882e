"""A recipe: the stages from nothing to a policy that ships, read from YAML and checked as a whole.

A stage's keys are the flags of its verb, with underscores: fields of the same options. What names
a stage before it stands for what that stage makes. Everything is refused before anything runs.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from vla_ros.core.errors import UserError
from vla_ros.core.names import nearest
from vla_ros.core.yaml_files import read_yaml
from vla_ros.engine.io.config import MOST_DELAY
from vla_ros_lab.train.head.options import HeadOptions
from vla_ros_lab.train.options import FAMILIES, CollectOptions, HeadRun, TrainOptions
from vla_ros_lab.train.so101_options import So101Options

RECIPES = Path(__file__).parent.parent / "recipes"
SHIPPED = "shipped:"
ASKED = ("at_least", "each")  # by a judge: they change nothing that was made


@dataclass(frozen=True, slots=True)
class BinsOptions:
    """Bins of decoding heterospec for ``checkpoint``; with ``head`` by how sure that head is, on
    the rollouts that its training held out, else from ``episodes`` a task that are played."""

    checkpoint: str = ""
    head: str = ""
    nodes: str = "24,64"
    episodes: int = 4
    seed: int = 1000

    def __post_init__(self) -> None:
        if self.episodes < 1:
            raise UserError("episodes must be at least 1")


@dataclass(frozen=True, slots=True)
class JudgeOptions:
    """An evaluation without ROS, in lock-step: ``episodes`` of each task at each of
    ``delay_frames``. ``at_least``: delay -> success rate below which nothing ships;
    ``each``: the same of every task, at the first of the delays."""

    checkpoint: str = ""
    environment: str = field(default="tabletop", metadata={"choices": ("tabletop", "so101"),
                                                           "flag": "env"})  # fmt: skip
    episodes: int = 20
    seed: int = 0
    tasks: tuple[str, ...] = ()
    delay_frames: tuple[int, ...] = (0,)
    replan_interval: int = 0
    at_least: Mapping[int, float] = field(default_factory=dict)
    each: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.each <= 1:
            raise UserError(f"each is {self.each:g}: give a share, 0 to 1")
        if self.episodes < 1 or self.replan_interval < 0:
            raise UserError("episodes must be at least 1, replan_interval 0 or more")
        if not 0 <= self.seed < 1_000_000:
            raise UserError(f"seed is {self.seed}: give 0 to 999999")
        for delay in self.delay_frames:
            if not isinstance(delay, int) or delay < 0:
                raise UserError(f"delay_frames has {delay!r}: give whole numbers from 0 on")
        for delay, rate in self.at_least.items():
            if delay not in self.delay_frames:
                raise UserError(f"at_least names delay {delay}, which delay_frames has not")
            if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
                raise UserError(f"at_least {delay} is {rate!r}: give a share, 0 to 1")


@dataclass(frozen=True, slots=True)
class PrecisionOptions:
    """A precision check of ``checkpoint``, kept in its folder: `vla-ros verify`."""

    checkpoint: str = ""
    dtype: str = field(default="bfloat16", metadata={"choices": ("bfloat16", "float16")})


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of stage. ``names``: key -> the kinds of stage it may name; ``hidden``: fields that
    the recipe's run gives; ``must``: keys without which it is nothing."""

    tables: tuple[type, ...]
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
    must: tuple[str, ...] = ()

    def fields(self) -> dict[str, tuple[type, Field[Any]]]:
        """Key -> its table and field."""
        found = {}
        for table in self.tables:
            for one in fields(table):
                key = one.metadata.get("flag", one.name).replace("-", "_")
                if one.name not in self.hidden and key not in found:
                    found[key] = table, one
        return found


POLICIES = ("train", "so101")
KINDS = {
    "collect": Kind((CollectOptions,), {"policy": POLICIES}, ("suite", "per_shard")),
    "train": Kind(
        (TrainOptions,),
        {"data": ("collect", "train"), "init_from": POLICIES, "vision_from": POLICIES},
        must=("data",),
    ),
    "head": Kind((HeadRun, HeadOptions), {"target": ("train",)}, ("device", "dtype", "data"),
                 ("target",)),
    "calibrate": Kind((BinsOptions,), {"checkpoint": ("train",), "head": ("head",)},
                      must=("checkpoint",)),
    "verify": Kind((PrecisionOptions,), {"checkpoint": POLICIES}, must=("checkpoint",)),
    "eval": Kind((JudgeOptions,), {"checkpoint": POLICIES}, must=("checkpoint",)),
    "so101": Kind((So101Options,), {"init_from": POLICIES}),
}  # fmt: skip
#: what OUT/policy is made of, and the kinds of stage that make it
SHIPS = {"checkpoint": POLICIES, "head": ("head",), "bins": ("calibrate",)}


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage: ``settings`` by field of its tables, ``digest`` of them and of all that it names."""

    name: str
    kind: str
    settings: Mapping[str, Any]
    given: Mapping[str, Any]
    digest: str

    def options(self, table: type, **other: Any) -> Any:
        """The options of one of the kind's tables; ``other`` replace what the recipe has."""
        own = {one.name for one in fields(table)}
        return table(**{**{n: v for n, v in self.settings.items() if n in own}, **other})

    def named(self, key: str) -> tuple[str, ...]:
        """Values of a key that may name stages."""
        value = self.settings.get(key, ())
        return (value,) if isinstance(value, str) else tuple(value)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Stages in their order, and of which of them the policy that ships is made."""

    name: str
    hours: float
    stages: tuple[Stage, ...]
    policy: Mapping[str, str]

    def stage(self, name: str) -> Stage | None:
        """The stage of that name; None: something else."""
        return next((one for one in self.stages if one.name == name), None)

    def as_json(self) -> dict[str, Any]:
        """What a run is held to: all but the hours, and what a judge asks for, which changes
        nothing that was made."""
        stages = {
            one.name: {one.kind: {k: v for k, v in one.given.items() if k not in ASKED}}
            for one in self.stages
        }
        out: dict[str, Any] = json.loads(json.dumps({"stages": stages, "policy": self.policy}))
        return out


def find_recipe(name: str) -> Path:
    """The file of a recipe of the lab, or a path. UserError."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise UserError(f"--recipe {name}: there is no such file")
        return path
    known = sorted(one.stem for one in RECIPES.glob("*.yaml"))
    if name not in known:
        raise UserError(f"--recipe {name}: {_nearest(name, known)}, or a path of a .yaml")
    return RECIPES / f"{name}.yaml"


def read_recipe(name: str) -> Recipe:
    """The recipe, checked. UserError: one line about the first thing that is wrong."""
    path = find_recipe(name)
    try:
        content = read_yaml(path)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    try:
        return parse_recipe(path.stem, content)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def parse_recipe(name: str, content: Any) -> Recipe:
    """The recipe of a file's content. UserError."""
    content = _mapping(content, "a recipe")
    for key in content:
        if key not in ("hours", "stages", "policy"):
            raise UserError(f"{key}: {_nearest(str(key), ('hours', 'stages', 'policy'))}")
    hours = content.get("hours", 0)
    if isinstance(hours, bool) or not isinstance(hours, int | float) or hours < 0:
        raise UserError(f"hours is {hours!r}: give a number, about how long it takes")
    named = _mapping(content.get("stages"), "stages")
    stages: dict[str, Stage] = {}
    for stage, body in named.items():
        word = str(stage).replace("-", "").replace("_", "")
        if not isinstance(stage, str) or not word.isalnum() or stage == "policy":
            raise UserError(
                f"stage {stage}: give a word of letters, digits, - and _, not policy, and not one"
                " that YAML reads otherwise, as on"
            )
        try:
            stages[str(stage)] = _stage(str(stage), body, stages, tuple(map(str, named)))
        except UserError as error:
            raise UserError(f"stage {stage}: {error}") from error
    policy = _mapping(content.get("policy"), "policy")
    for key, value in policy.items():
        if key not in SHIPS:
            raise UserError(f"policy: {key}: {_nearest(str(key), tuple(SHIPS))}")
        _check_name(f"policy: {key}", str(value), SHIPS[key], stages, tuple(stages), outside=False)
    if "checkpoint" not in policy:
        raise UserError("policy names no checkpoint: give the stage that ships")
    for key, own in (("head", "target"), ("bins", "checkpoint")):
        if key in policy and stages[policy[key]].named(own) != (policy["checkpoint"],):
            raise UserError(f"policy: {key} {policy[key]} is of another checkpoint than"
                            f" {policy['checkpoint']}")  # fmt: skip
    of = stages[policy["bins"]].named("head") if "bins" in policy else ()
    if any(of) and of != (policy.get("head"),):
        raise UserError(f"policy: bins {policy['bins']} are of the head {of[0]}, which ships not")
    return Recipe(name, float(hours), tuple(stages.values()), policy)


def _mapping(value: Any, what: str) -> dict[Any, Any]:
    if not isinstance(value, dict) or not value:
        raise UserError(f"{what} is {value!r}: give keys and values")
    return value


def _stage(name: str, body: Any, before: Mapping[str, Stage], every: tuple[str, ...]) -> Stage:
    body = _mapping(body, "it")
    if len(body) != 1:
        raise UserError(f"has {len(body)} kinds: give one of {', '.join(KINDS)}")
    ((word, given),) = body.items()
    if word not in KINDS:
        raise UserError(f"{word} is no kind of stage: {_nearest(str(word), tuple(KINDS))}")
    kind, given = KINDS[word], {} if given is None else given
    if not isinstance(given, dict):
        raise UserError(f"{word} is {given!r}: give keys and values")
    known, settings = kind.fields(), {}
    for key, value in given.items():
        if key not in known:
            raise UserError(f"{word} has no {key}: {_nearest(str(key), tuple(known))}")
        table, one = known[key]
        settings[one.name] = checked = _value(key, value, one)
        if key in kind.names:
            for each in checked if isinstance(checked, tuple) else (checked,):
                if each:
                    _check_name(key, each, kind.names[key], before, every)
    for key in kind.must:
        if not given.get(key):
            raise UserError(f"{word} needs {key}")
    references = [settings.get(known[key][1].name, ()) for key in kind.names]
    flat = [x for value in references for x in ((value,) if isinstance(value, str) else value)]
    parents = {each: before[each].digest for each in flat if each in before}
    held = {name: value for name, value in settings.items() if name not in ASKED}
    text = json.dumps([word, held, parents], sort_keys=True)
    stage = Stage(name, word, settings, given, hashlib.sha256(text.encode()).hexdigest())
    for table in kind.tables:
        stage.options(table)
    if word == "collect":
        _check_collection(stage.options(CollectOptions))
    return stage


def _check_collection(options: CollectOptions) -> None:
    if options.demonstrations < 1:
        raise UserError(f"demos is {options.demonstrations}: give at least 1")
    if not 16 <= options.image_size <= 256:
        raise UserError(f"image_size is {options.image_size}: give 16 to 256 pixels")
    if not 0 <= options.delays <= MOST_DELAY:
        raise UserError(f"delays is {options.delays}: give 0 to {MOST_DELAY}")
    if not 0 <= options.seed <= 4:
        raise UserError(f"seed is {options.seed}: give 0 to 4, the number of the collection")
    if not 0 <= options.expert_share <= 1:
        raise UserError(f"expert_share is {options.expert_share}: give 0 to 1")
    if options.unsteady and not options.policy:
        raise UserError("unsteady is of a collection with a policy: an expert sees every frame")


def _value(key: str, value: Any, one: Field[Any]) -> Any:
    """The value as the field has it."""
    default = () if one.default is MISSING else one.default
    if one.default_factory is not MISSING:
        return dict(_mapping(value, key))
    if isinstance(default, tuple):
        listed = value if isinstance(value, list) else [value]
        whole = bool(default) and isinstance(default[0], int)
        if not listed or any(type(each) is not (int if whole else str) for each in listed):
            raise UserError(f"{key} is {value!r}: give {'whole numbers' if whole else 'words'}")
        known: tuple[str, ...] = FAMILIES if key.endswith("families") else ()
        if default == FAMILIES:
            from vla_ros.sim.tasks import TASKS

            known = (*FAMILIES, *(task.name for task in TASKS))
        for each in listed if known else ():
            if each not in known:
                raise UserError(f"{key} has {each}: {_nearest(str(each), known)}")
        return tuple(listed)
    kind = int if default is None else type(default)
    if kind is float and isinstance(value, str):  # YAML reads 1e-3 as a word
        with suppress(ValueError):
            value = float(value)
    right = isinstance(value, int | float) if kind is float else isinstance(value, kind)
    if not right or (isinstance(value, bool) and kind is not bool):
        words = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}
        raise UserError(f"{key} is {value!r}: give {words.get(kind, kind.__name__)}")
    choices = one.metadata.get("choices")
    if choices and value not in choices:
        raise UserError(f"{key} is {value!r}: {_nearest(str(value), choices)}")
    if kind in (int, float) and not 0 <= value < math.inf:
        raise UserError(f"{key} is {value}: give 0 or more")
    return kind(value)


def _check_name(
    key: str,
    value: str,
    kinds: tuple[str, ...],
    before: Mapping[str, Stage],
    every: tuple[str, ...],
    outside: bool = True,
) -> None:
    """UserError: neither an earlier stage of these kinds nor, where ``outside``, something else
    that is there."""
    if value in before:
        if before[value].kind not in kinds:
            raise UserError(f"{key} {value} is a stage {before[value].kind}: give one of the kind"
                            f" {' or '.join(kinds)}")  # fmt: skip
        return
    if value in every:
        raise UserError(f"{key} {value} is made by a later stage")
    if outside and (value.startswith(SHIPPED) or Path(value).expanduser().is_dir()):
        return
    known = [name for name, stage in before.items() if stage.kind in kinds]
    raise UserError(f"{key} {value} is made by no earlier stage: {_nearest(value, known)}")


def _nearest(word: str, known: Sequence[str]) -> str:
    """What was perhaps meant, or all that there is."""
    if near := nearest(word, known):
        return near.removeprefix(": ")
    return f"give one of {', '.join(known)}" if known else "there is none"


def differences(there: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What a run's recipe has otherwise than this one, in words; "": nothing."""
    found = []
    before, after = there.get("stages", {}), now["stages"]
    if list(before) != list(after) and sorted(before) == sorted(after):
        found.append("the stages in another order")
    for name in dict.fromkeys((*before, *after)):
        if name not in after or name not in before:
            found.append(f"{'no ' if name not in before else ''}stage {name}")
            continue
        ((old_kind, old),) = before[name].items()
        ((new_kind, new),) = after[name].items()
        if old_kind != new_kind:
            found.append(f"stage {name} {old_kind}")
            continue
        for key in dict.fromkeys((*(old or {}), *(new or {}))):
            if old.get(key) != new.get(key):
                found.append(f"{name} {key} {old[key]}" if key in old else f"{name} no {key}")
    if there.get("policy") != now["policy"]:
        found.append(f"policy {there.get('policy')}")
    return ", ".join(found)
