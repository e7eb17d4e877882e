"""Conventions of a checkpoint that its files do not state, taken from its action statistics.

Units, statistics, image steps and cameras of a VLA are settled here and nowhere else; explicit
values of a :class:`vla_ros.policies.base.PolicySpec` win.

The published LIBERO protocol of token policies (openvla
``experiments/robot/libero/run_libero_eval.py``, the same in openvla-oft): statistics under the
suite's name, else ``<suite>_no_noops``; actions in the controller's units; images mirrored, through
JPEG, Lanczos-3 and the center crop; the gripper's side decides, wherever in 0..1 it is. How far
0..1 is from its middle does not matter to LIBERO's gripper, which moves at one speed by the sign of
1 - 2 g; so commands carry g as it is. That of LeRobot's folders (lerobot 0.6.1 ``envs/libero.py``,
``processor/env_processor.py``, and openpi ``examples/libero/main.py``): the same units, images
mirrored and nothing else done to them, the gripper as the simulator takes it, -1 open and +1
closed. It applies to whatever its files say was trained on LIBERO, wherever that runs.
Statistics do not name their unit. Most data sets of Open X-Embodiment are in m and rad of one
action period, and so they are taken, unless they reach further than an arm moves in one: RT-1's
(3 Hz) reach 0.23, those in a controller's own units much more (DROID 0.78, LIBERO 0.94).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from vla_ros.core.action_space import (
    END_EFFECTOR_DELTA,
    ActionKind,
    ActionSpace,
    action_space_of,
)
from vla_ros.core.assumption import Assumption
from vla_ros.core.types import ACTION_DIM, GRIPPER
from vla_ros.engine.io.action_data import STATISTICS, ActionData
from vla_ros.engine.options import AUTO
from vla_ros.policies.base import PolicyRefused, PolicySpec, Scale
from vla_ros.policies.layout import (
    CONTROLLER_UNITS,
    PROTOCOL,
    ActionLayout,
    OwnUnits,
    action_layout,
)

LIBERO_SUITE = "libero_"  # what the names of LIBERO's data sets begin with
LIBERO = "libero"  # its steps of images, and the simulation's name
RANDOM = "random"  # random:<preset>, and the name of its statistics
#: Hz of Open X-Embodiment's data sets, by what their statistics are called.
DATA_HZ: Final[Mapping[str, float]] = {
    "bridge_orig": 5.0,
    "droid": 15.0,
    "fractal20220817_data": 3.0,
}
#: Statistics whose data are known to be displacements of an end effector.
_DISPLACEMENTS: Final = frozenset({*DATA_HZ, RANDOM, "tabletop"})
PHYSICAL_UNITS: Final[Scale] = (1.0,) * 6
LONGEST_STEP = 0.5  # statistics that reach further are not in metres
LONGEST_TURN = 13.0  # and joints of two turns are not in radians


@dataclass(frozen=True, slots=True)
class Conventions:
    """Settings of a policy that follow from its checkpoint.

    ``unnorm_key``: the statistics to use. ``action_scale`` [6]: m and rad of one unit, and
    ``units`` how that is known. ``cameras``: 2 where the model takes the wrist camera's image too.
    ``doubt``: one line about what contradicts the units, or "". ``width``: numbers
    of an action; the scale is of an end effector's seven, any other width is left as it is.
    ``chunk``: actions of an answer. ``state``: values of the robot's own state that it takes.
    ``action_rate_hz``: of its data, 0 where nothing says it. ``data``: what the folder says about
    the actions that it learned.
    """

    unnorm_key: str
    action_scale: Scale
    preprocessing: str
    center_crop: bool
    cameras: int = 1
    units: str = ""
    doubt: str = ""
    width: int = ACTION_DIM
    chunk: int = 1
    state: int = 0
    action_rate_hz: float = 0.0
    data: ActionData = ActionData()

    @property
    def space(self) -> ActionSpace:
        """The actions by the checkpoint's own names and their number."""
        return action_space_of(self.width, self.data.names)

    def __str__(self) -> str:
        """One line for a log."""
        scale = ", ".join(f"{unit:g}" for unit in self.action_scale)
        units = f"one unit is [{scale}] m and rad ({self.units})"
        if self.space.kind.joints:
            units = f"{self.width} numbers an action, as its data have them"
        crop = "with" if self.center_crop else "without"
        whose = f"statistics '{self.unnorm_key}'" if self.unnorm_key else "its own statistics"
        rate = f", data of {self.action_rate_hz:g} Hz" if self.action_rate_hz else ""
        return (
            f"{whose}, {units}, images {self.preprocessing} {crop} center crop,"
            f" cameras {self.cameras}{rate}"
        )

    def layout(self, spec: PolicySpec) -> ActionLayout:
        """Layout of the actions for a robot. PolicyRefused."""
        known = not self.units.startswith(_BY_REACH)
        scale = OwnUnits(self.action_scale, source=self.units if known else "")
        return action_layout(self.data, self.width, spec, scale, self.action_rate_hz)

    def assumptions(self, spec: PolicySpec) -> tuple[Assumption, ...]:
        """What is taken of a checkpoint beside its actions' layout, each with its source."""
        engine, data = spec.engine, self.data
        whose = f"'{self.unnorm_key}'" if self.unnorm_key else "the only ones"
        images = "mirrored" if self.preprocessing == LIBERO else "as they come"
        if self.center_crop:
            images += ", center crop"
        by = "default"
        if self.preprocessing == LIBERO:
            by = f"{PROTOCOL} ({data.libero or 'unnorm_key'})"
        for name in ("center_crop", "preprocessing"):
            if getattr(engine, name) != AUTO:
                by = f"parameter {name}"
        return (
            Assumption(
                "statistics", whose, "parameter unnorm_key" if engine.unnorm_key else "its files"
            ),
            Assumption("orientation of images", images, by, by == "default"),
            Assumption("chunk", f"{self.chunk} action{'s' * (self.chunk > 1)}", "config.json"),
        )


_BY_REACH = "its data reach"


def settle(spec: PolicySpec) -> tuple[Conventions, str]:
    """Conventions that the VLA of ``spec`` is run with: the spec's own, the rest the checkpoint's.

    The second is one line about where the spec contradicts the checkpoint, or what else to check,
    or "".
    PolicyRefused: a scale for what is no end effector's, and see :func:`conventions_of`.
    """
    engine = spec.engine
    own = conventions_of(
        engine.checkpoint,
        "",
        engine.unnorm_key,
        spec.action_scale,
        embodiment=engine.embodiment,
        space=spec.action_space,
    )
    given: dict[str, Any] = {}
    if spec.action_scale is not None:
        given["action_scale"] = spec.action_scale
    if engine.preprocessing != AUTO:
        given["preprocessing"] = engine.preprocessing
    if engine.center_crop != AUTO:
        given["center_crop"] = engine.center_crop == "always"
    against = {name: getattr(own, name) for name in given if given[name] != getattr(own, name)}
    lines = [f"{name} {given[name]}, not the checkpoint's {its}" for name, its in against.items()]
    if "action_scale" in given and own.space.kind.joints:
        raise PolicyRefused(
            f"action_scale is for end effectors, and this checkpoint's actions have {own.width}"
            " numbers: leave it out"
        )
    if "action_scale" in given:
        given |= {"doubt": ""} | ({"units": "as given"} if "action_scale" in against else {})
    if spec.action_units:
        given["doubt"] = ""
    used = replace(own, **given)
    return used, "; ".join([*lines, *filter(None, [used.doubt])])


def conventions_of(
    checkpoint: str,
    suite: str = "",
    unnorm_key: str = "",
    action_scale: Scale | None = None,
    *,
    embodiment: str = "",
    space: ActionSpace = END_EFFECTOR_DELTA,
    in_libero: bool = False,
) -> Conventions:
    """The conventions of a directory, hub id or ``random:<preset>``; reads no weights.

    ``suite``: the LIBERO suite to be evaluated, or "". ``unnorm_key`` and ``action_scale``:
    explicit choices; the scale is used only where the statistics cannot be in metres.
    ``embodiment``: the robot among those of a flow policy, or "". ``space``: what the robot's
    parameters say the actions are; ``in_libero``: they are executed in that simulation, so what
    its statistics leave open is as LIBERO has it.
    PolicyRefused: there is no such checkpoint, its statistics fit neither, or its units are
    unknown. :func:`~vla_ros.engine.load.inspect` checks the rest of it.
    """
    from vla_ros.engine.families.openvla import PRESETS
    from vla_ros.engine.families.registry import family_of, source_of
    from vla_ros.engine.io.checkpoint import norm_stats_of, read_config
    from vla_ros.engine.io.rates import action_rate_of
    from vla_ros.engine.options import TOKENS

    try:
        source = source_of(checkpoint)
        said = action_rate_of(source) if isinstance(source, Path) else 0.0
        if family_of(source).group != TOKENS:
            found = _of_flow(source, unnorm_key, embodiment, space, in_libero)
            return replace(found, action_rate_hz=said or found.action_rate_hz)
        if embodiment:
            raise PolicyRefused(f"embodiment {embodiment!r} means nothing to {checkpoint}: it is no"
                                " flow policy")  # fmt: skip
        if isinstance(source, str):
            preset = PRESETS.get(source.removeprefix(f"{RANDOM}:"))
            key = unnorm_key or RANDOM
            found = _of_statistics(key, {}, preset.images if preset else 1, action_scale)
            if preset is None:
                return found
            return replace(found, chunk=preset.chunk, state=preset.proprio_dim)
        config, raw = read_config(source)
        stats = norm_stats_of(source, raw)
    except (ValueError, OSError) as error:
        raise PolicyRefused(str(error)) from error
    found = conventions_from(stats, suite, unnorm_key, config.images, action_scale, space)
    return replace(
        found,
        chunk=config.chunk,
        state=config.proprio_dim,
        action_rate_hz=said or found.action_rate_hz,
    )


def conventions_from(
    stats: Mapping[str, Any],
    suite: str = "",
    unnorm_key: str = "",
    cameras: int = 1,
    action_scale: Scale | None = None,
    space: ActionSpace = END_EFFECTOR_DELTA,
) -> Conventions:
    """The conventions that go with ``norm_stats``; see :func:`conventions_of`."""
    from vla_ros.engine.io.rates import LIBERO_HZ

    key = _choose(stats, suite, unnorm_key)
    hz = LIBERO_HZ if key.startswith(LIBERO_SUITE) else DATA_HZ.get(key, 0.0)
    found = _of_statistics(key, stats[key], cameras, action_scale, space)
    return replace(found, action_rate_hz=hz)


def _of_flow(
    source: Path | str, unnorm_key: str, embodiment: str, space: ActionSpace, in_libero: bool
) -> Conventions:
    """Conventions of a flow policy, whose own postprocessor restores its actions and names no unit.
    They may be poses, where a long reach is none of a step: so it is doubted and not refused."""
    from vla_ros.engine.families.base import LoadOptions
    from vla_ros.engine.families.registry import config_of, family_of
    from vla_ros.engine.io.rates import LIBERO_HZ

    drawn = isinstance(source, str)
    choice = LoadOptions(embodiment=embodiment or None, unnorm_key=unnorm_key or None)
    config = config_of(source, choice)
    found = Conventions(
        unnorm_key, CONTROLLER_UNITS if drawn else PHYSICAL_UNITS, "default", False,
        cameras=min(len(config.cameras), 2), units="as LIBERO's controller",
        width=config.action_dim, chunk=config.horizon, state=config.state_dim,
    )  # fmt: skip
    if isinstance(source, str):
        return found
    data = family_of(source).action_data(source, choice)
    found = replace(found, data=data)
    ends = [list(data.low), list(data.high)] if data.low else []
    if _are_joints(found, space):
        return replace(found, doubt=_of_joints(ends))
    reach = max((abs(x) for end in ends for x in end[:3]), default=0.0)
    if not data.libero and in_libero and _may_be_liberos(data, reach):
        data = replace(data, libero="the simulation that it is evaluated in")
    if data.libero:
        units = f"{PROTOCOL} ({data.libero})"
        return replace(found, data=data, action_scale=CONTROLLER_UNITS, preprocessing=LIBERO,
                       units=units, action_rate_hz=LIBERO_HZ)  # fmt: skip
    units = f"its data reach {reach:.3g} a step: taken for m and rad"
    doubt = f"its data reach {reach:.3g} a step, no displacement in m: give action_scale"
    return replace(found, units=units, doubt=doubt if reach > LONGEST_STEP else "")


def _are_joints(found: Conventions, space: ActionSpace) -> bool:
    """True of actions that move joints, by the checkpoint's names or the robot's parameters."""
    if found.data.names or found.width != ACTION_DIM:
        return found.data.positions or found.space.kind.joints
    return found.data.positions or (space.kind.joints and space.width == found.width)


def _may_be_liberos(data: ActionData, reach: float) -> bool:
    """True of statistics in the units of LIBERO's controller: a gripper of -1..1, or a step that is
    none in metres."""
    lowest = data.low[GRIPPER] if len(data.low) == ACTION_DIM else 0.0
    return lowest < -LONGEST_STEP or reach > LONGEST_STEP


def _of_statistics(
    key: str,
    stats: Mapping[str, Any],
    cameras: int,
    action_scale: Scale | None,
    space: ActionSpace = END_EFFECTOR_DELTA,
) -> Conventions:
    low, high = (tuple(end) for end in _ends(stats))
    data = ActionData(low=low, high=high) if len(low) == len(high) else ActionData()
    if key.startswith(LIBERO_SUITE) or key in _DISPLACEMENTS:
        data = replace(data, names=END_EFFECTOR_DELTA.names, named_by=f"statistics '{key}'")
    if key.startswith(LIBERO_SUITE):
        # OpenVLA's copies of LIBERO's data have 0 closed and 1 open.
        data = replace(data, libero=f"statistics '{key}'", gripper="0..1", gripper_by=PROTOCOL)
        return Conventions(
            key, CONTROLLER_UNITS, LIBERO, True, cameras, "LIBERO's controller", data=data
        )
    if key == RANDOM:
        units = "as LIBERO's controller"
        return Conventions(key, CONTROLLER_UNITS, "default", False, cameras, units, data=data)
    width = _width(stats)
    found = Conventions(key, PHYSICAL_UNITS, "default", False, cameras, width=width, data=data)
    if _are_joints(found, space):
        return replace(found, doubt=_of_joints(_ends(stats)))
    if space.kind is ActionKind.END_EFFECTOR_POSE:
        return replace(found, units=f"{STATISTICS}: taken for m and rad")
    if (reach := _reach(stats)) <= LONGEST_STEP:
        still, doubt = _still(stats)
        units = f"its data reach {reach:g} a step: taken for m and rad{still}"
        return replace(found, units=units, doubt=doubt)
    if action_scale is None:
        raise PolicyRefused(
            f"the action statistics of '{key}' reach {reach:g} a step: these are no metres, and"
            " nothing says what they are; give action_scale, m and rad of one unit"
        )
    return replace(found, action_scale=action_scale, units="as given")


def _of_joints(ends: Sequence[Sequence[float]]) -> str:
    """Doubt about angles that no joint in rad reaches; "" for none."""
    reach = max((abs(x) for end in ends for x in end), default=0.0)
    if reach <= LONGEST_TURN:
        return ""
    return (
        f"its data reach {reach:.3g}, which no joint in rad does: give action_units and"
        " state_units, as deg and 0..100"
    )


def _reach(stats: Mapping[str, Any]) -> float:
    """The largest entry of a position, in the statistics' own unit; 0 where they have none.

    The quantiles' where there are any: single outliers of RT-1 are 22 m.
    """
    return max((abs(x) for end in _ends(stats) for x in end[:3]), default=0.0)


def _ends(stats: Mapping[str, Any]) -> list[list[float]]:
    """The least and the greatest of each value of an action; those of the quantiles where there
    are any. PolicyRefused: they are no numbers."""
    action = stats.get("action") or {}
    names = ("q01", "q99") if "q99" in action else ("min", "max")
    try:
        return [[float(x) for x in action.get(name) or ()] for name in names]
    except (AttributeError, TypeError, ValueError) as error:
        raise PolicyRefused(
            f"the action statistics {' and '.join(names)} are no lists of numbers"
        ) from error


def _still(stats: Mapping[str, Any]) -> tuple[str, str]:
    """A line about the values of a motion that never moved in the data, and so never will, and the
    doubt where that is every position; "" for none."""
    low, high = _ends(stats)
    places = [i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a == b and i < 6]
    mask = (stats.get("action") or {}).get("mask") or [True] * len(low)
    names = [("x", "y", "z", "rx", "ry", "rz")[i] for i in places if i < len(mask) and mask[i]]
    if not names:
        return "", ""
    doubt = "the data never moved a position, so the policy cannot: are the statistics filled in?"
    return f"; {', '.join(names)} never move", doubt if {"x", "y", "z"} <= set(names) else ""


def _width(stats: Mapping[str, Any]) -> int:
    """Numbers of an action; 7 where the statistics do not have them."""
    action = stats.get("action", {})
    return next((len(v) for n in ("q01", "min", "mean") if (v := action.get(n))), ACTION_DIM)


def _choose(stats: Mapping[str, Any], suite: str, unnorm_key: str) -> str:
    known = ", ".join(sorted(stats)) or "none"
    if unnorm_key:
        if unnorm_key not in stats:
            raise PolicyRefused(f"unnorm_key {unnorm_key!r} is unknown; the checkpoint has {known}")
        return unnorm_key
    for key in (suite, f"{suite}_no_noops") if suite else ():
        if key in stats:
            return key
    others = [key for key in stats if suite and key.startswith(LIBERO_SUITE)]
    if others:
        raise PolicyRefused(
            f"the checkpoint has action statistics of {known} and none of {suite}:"
            " it was trained for another suite; give unnorm_key to use it all the same"
        )
    if len(stats) != 1:
        raise PolicyRefused(f"the checkpoint has action statistics of {known}: give unnorm_key")
    return next(iter(stats))
