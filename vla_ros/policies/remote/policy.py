"""A policy on another machine as a policy here: any server of openpi's protocol, GR00T's, or ours.

One request at a time. A late answer is returned by a later call and names its observation, so that
its age is counted from there; the gate judges it as every other. A link that is lost
is made again with the next observation. Each ``reset`` is a connection of its own: to a server
that keeps state of an episode, a connection is one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from vla_ros.core.action_space import KINDS, ActionKind, ActionSpace, end_effectors, joints
from vla_ros.core.assumption import Assumption
from vla_ros.core.clock import MS, SECOND, Clock
from vla_ros.core.text import printable
from vla_ros.core.types import (
    Executing,
    Floats,
    Inference,
    Instruction,
    Observation,
    PolicyInfo,
    Timeline,
)
from vla_ros.engine.io.action_data import ActionData
from vla_ros.policies.base import InvalidAction, PolicyRefused, PolicySpec, Unreachable, finish
from vla_ros.policies.layout import (
    ActionLayout,
    OwnUnits,
    action_layout,
    state_units_of,
)
from vla_ros.policies.remote.act import ActLink, act_names
from vla_ros.policies.remote.codec import JPEG, Jpeg, Malformed
from vla_ros.policies.remote.figures import MAX_CHUNK, inference_from, info_from
from vla_ros.policies.remote.groot import GrootLink
from vla_ros.policies.remote.link import OUT_OF_STEP, Connection, ServerError
from vla_ros.policies.remote.names import NameTable, names_from, names_of
from vla_ros.policies.units import Scaling, scaling_for

OURS = "vla_ros"  # the key of our own server's additions
UNANSWERED = "unanswered"  # in its answer: why there is none, which is no fault of the policy's
OPTIONS = ("names", "timeout_s", "rate_hz", "max_age_s", "compression", "quality")
QUALITY = 90  # of JPEG, where none is given
TRY_S = 280.0  # for the first answer: JAX compiles, a large model loads
SHORTEST_S = 1.0  # of timeout_s where it is not given
TIMES = 3  # of the first warm answer, which timeout_s is then
GIVE_UP = 5  # times timeout_s without an answer, and the link is made anew
TRIAL = Instruction("do nothing", -1)


@dataclass(frozen=True, slots=True)
class _OpenRequest:
    observation: Observation
    timeline: Timeline
    asked_s: float


def _quality(options: Mapping[str, str]) -> int:
    """Quality of the JPEGs that are sent; 0: none are. PolicyRefused."""
    how = options.get("compression", "")
    if how not in ("", JPEG):
        raise PolicyRefused(f"policy_options compression={how}: there is {JPEG}")
    if not how and "quality" in options:
        raise PolicyRefused(f"policy_options quality is that of compression={JPEG}: give both")
    given = _number(options.get("quality", str(QUALITY)), "quality", 1, 100)
    return round(given) if how else 0


def _compressed(message: dict[str, Any], quality: int) -> dict[str, Any]:
    """The same message with its images as JPEG."""
    made: dict[str, Any] = {}
    for key, value in message.items():
        if isinstance(value, dict):
            made[key] = _compressed(value, quality)
        elif isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 3:
            made[key] = Jpeg(value, quality)
        else:
            made[key] = value
    return made


def _link(url: str) -> Connection | GrootLink | ActLink:
    """The kind of connection that an address means."""
    if url.startswith("tcp://"):
        return GrootLink(url)
    return ActLink(url) if url.startswith("http") else Connection(url)


class RemotePolicy:
    """The policy of the server at ``spec.checkpoint`` (ws:// or wss://; tcp:// of GR00T's; http://
    of `POST /act`).

    ``spec.options``: ``names``, the table of :mod:`vla_ros.policies.remote.names` (our own server
    has its own); ``timeout_s``, after which an observation without an answer is Unreachable;
    ``rate_hz`` and ``max_age_s``, the answers a second that
    our own server has to have time for and how old what they rest on may be when they are made
    (0: as they come). ``compression=jpeg`` sends images to our own server as JPEG of ``quality`` 1
    to 100. PolicyRefused: no answer, none with actions of the space, or not so often.
    """

    def __init__(self, spec: PolicySpec) -> None:
        if strange := sorted(set(spec.options) - set(OPTIONS)):
            known = ", ".join(OPTIONS)
            raise PolicyRefused(
                f"policy_options has {', '.join(strange)}: of remote they are {known}"
            )
        self._spec, self._url = spec, spec.checkpoint
        given = spec.options.get("timeout_s")
        self._limits = {
            name: _number(spec.options[name], name, 0.0, 86_400.0)
            for name in ("rate_hz", "max_age_s")
            if name in spec.options
        }
        self._quality = _quality(spec.options)
        self._link = _link(self._url)
        self._task = TRIAL
        self._open: _OpenRequest | None = None
        self._timeout_s = TRY_S
        self._length = 0  # rows of a chunk; 0: not known yet
        self._greeted = 0  # connections whose metadata was looked at
        self._served: PolicyInfo | None = None
        try:
            self._timeout_s = _seconds(given) if given else TRY_S
            self._link.connect(TRY_S)
            self._names = self._settle_names()
            self._served = self._hello()
            self._check_compression()
            self._greeted = self._link.connections
            self._space = self._served.action_space if self._served else spec.action_space
            self._layout = self._settle_layout()
            self._space = self._layout.space
            self._state = self._settle_state()
            self._length = 0 if self._served is None else self._served.chunk_length
            self._timeout_s = TRY_S
            self._length = len(self._try())
            began = time.monotonic()
            self._try()  # warm
            taken = time.monotonic() - began
        except (Unreachable, InvalidAction) as error:
            raise PolicyRefused(str(error)) from error
        except (ServerError, Malformed) as error:
            raise PolicyRefused(f"{self._url}: {error}") from error
        self._timeout_s = _seconds(given) if given else max(SHORTEST_S, TIMES * taken)
        self.info = self._info()

    # The served policy

    def _settle_names(self) -> NameTable:
        if word := self._spec.options.get("names"):
            return names_of(word)
        if isinstance(self._link, ActLink):
            return act_names()
        own = self._own(self._link.metadata).get("names")
        if own is None:
            raise PolicyRefused(
                f"{self._url} does not say what it calls its cameras: give policy_options"
                " names=FILE, or names=libero, droid, aloha"
            )
        try:
            return names_from(own)
        except (TypeError, ValueError) as error:
            raise PolicyRefused(
                f"{self._url}: its names cannot be read: {printable(error)}"
            ) from error
        except PolicyRefused as error:
            raise PolicyRefused(f"{self._url}: {error}") from error

    def _hello(self) -> PolicyInfo | None:
        """Description of the policy of our own server; None of another's."""
        body = self._own(self._link.metadata).get("info")
        if body is None:
            return None
        try:
            return info_from(body)
        except Malformed as error:
            raise PolicyRefused(f"{self._url}: what it serves cannot be read: {error}") from error

    def _check_compression(self) -> None:
        """Raise PolicyRefused where images are to go as JPEG to a server that takes none."""
        takes = self._own(self._link.metadata).get("compression")
        if self._quality and not (isinstance(takes, list) and JPEG in takes):
            raise PolicyRefused(
                f"{self._url} does not say that it takes JPEG: leave compression out of"
                " policy_options"
            )

    def _own(self, message: Mapping[Any, Any]) -> Mapping[Any, Any]:
        own = message.get(OURS)
        return own if isinstance(own, Mapping) else {}

    def _settle_layout(self) -> ActionLayout:
        """Layout of the server's actions. Our own server has them in m, rad and 0..1."""
        spec, names, space = self._spec, self._names, self._space
        if self._served is not None:
            told = ("action_units", "state_units", "action_scale", "gripper")
            if given := [name for name in told if getattr(spec, name)]:
                listed = ", ".join(given)
                flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
                raise PolicyRefused(
                    f"{self._url} converts the units of its checkpoint itself: leave {listed} out"
                    f" here, and give `vla-ros serve` there {flags}"
                )
            return ActionLayout(space, tuple(range(space.width)), scaling_for((), space.width, ""))
        table = f"names={spec.options.get('names', '')}"
        kind = KINDS[names.action_space] if names.action_space else space.kind
        if kind is not space.kind and not spec.action_space_override:
            space = _of_kind(kind, space)
        if names.action_units and not (spec.action_units or spec.action_scale):
            _check_width(names.action_units, space, table)
        scale = spec.action_scale or names.action_scale
        units = spec.action_units or names.action_units
        if not units and not scale and not space.kind.joints:
            raise PolicyRefused(
                f"nothing says in which units {self._url} says its actions: give action_scale, m"
                " and rad of one unit (ones: it is in m and rad)"
            )
        return action_layout(
            ActionData(gripper=names.gripper, gripper_by=table),
            space.width,
            replace(spec, action_space=space),
            OwnUnits(
                names.action_scale or (1.0,) * 6,
                names.action_units,
                table if names.action_scale or names.action_units else "",
            ),
            names.action_rate_hz,
        )

    def _settle_state(self) -> Scaling:
        """Scaling of the robot's state to what the server takes."""
        names, table = self._names, f"names={self._spec.options.get('names', '')}"
        words, row = state_units_of(self._spec, names.state_dim, names.state_units, table)
        self._state_row = row
        return scaling_for(words, names.state_dim, "state_units")

    def _info(self) -> PolicyInfo:
        names, served = self._names, self._served
        line = f"{self._url}: " + ", ".join(f"{r} is {k!r}" for r, k in names.images.items())
        if served is not None:
            doubt = f"the server says: {served.contradiction}" if served.contradiction else ""
            return replace(
                served,
                name="remote",
                checkpoint=self._url,
                conventions=line,
                contradiction=doubt,
                assumptions=(self._server_row(), *served.assumptions),
            )
        return PolicyInfo(
            name="remote",
            decoding="remote",
            checkpoint=self._url,
            device="remote",
            dtype="remote",
            chunk_length=self._length,
            cameras=2 if "wrist" in names.images else 1,
            conventions=line,
            contradiction=self._layout.doubt,
            assumptions=(
                self._server_row(),
                *self._layout.assumptions,
                *filter(None, [self._state_row]),
            ),
            state_dim=names.state_dim,
            action_space=self._space,
            camera_roles=names.more_cameras,
            action_rate_hz=names.action_rate_hz,
        )

    def _server_row(self) -> Assumption:
        """The row about the server, and what it calls the images."""
        images = ", ".join(f"camera {role} {key!r}" for role, key in self._names.images.items())
        return Assumption("server", f"{self._url}: {images}", "parameter checkpoint")

    def _try(self) -> Floats:
        """The answer to a gray image, which moves nothing."""
        gray = np.full((*self._spec.warmup_size, 3), 128, np.uint8)
        names = self._names
        state = np.zeros(names.state_dim) if names.state_dim else None
        more = dict.fromkeys(names.more_cameras, gray)
        now = time.monotonic_ns()
        seen = Observation(now, now, now, gray, gray, state, more_images=more)
        self._ask(seen, Timeline(now), time.monotonic() + self._timeout_s)
        answer, _ = self._answer(time.monotonic() + self._timeout_s)
        return self._actions(answer)

    # A policy

    def reset(self, instruction: Instruction) -> None:
        """A new task, and a new connection: an episode is one."""
        self._task = instruction
        self._open = None
        self._link.close()

    def step(self, observation: Observation, timeline: Timeline, clock: Clock) -> Inference:
        """The chunk [C, D] of the newest answer. Unreachable: there is none yet."""
        until = time.monotonic() + self._timeout_s
        try:
            if self._open is None:
                self._ask(observation, timeline, until)
            answer, request = self._answer(until)
        except (ServerError, Malformed) as error:
            self._open = None
            raise InvalidAction(f"{self._url}: {error}") from error
        actions = self._actions(answer)
        if self._served is None:
            return Inference(request.observation.stamp_ns, actions, finish(request.timeline, clock))
        return self._full(answer, actions, request, clock)

    def _ask(self, observation: Observation, timeline: Timeline, until: float) -> None:
        seen = observation
        if seen.proprio is not None and len(seen.proprio) == len(self._state.factor):
            seen = replace(seen, proprio=self._state.to_checkpoint(seen.proprio))
        message = self._names.to_wire(seen, self._task.text)
        if self._quality:
            message = _compressed(message, self._quality)
        if self._served is not None:
            going = observation.executing
            since_ns = time.monotonic_ns() - observation.received_steady_ns
            age_s = (observation.received_ns - observation.stamp_ns + since_ns) / SECOND
            message[OURS] = {
                "stamp_ns": observation.stamp_ns,
                "age_s": min(max(0.0, age_s), 86_400.0),
                **self._limits,
                "delay_steps": observation.delay_steps,
                "executing": None if going is None else asdict(going),
            }
        self._link.send(message, until - time.monotonic())
        self._open = _OpenRequest(observation, timeline, time.monotonic())
        if self._greeted != self._link.connections:
            self._refuse_another()

    def _refuse_another(self) -> None:
        """Raise InvalidAction where a new connection serves another policy."""
        before = self._served
        try:
            same = before is None or self._hello() == before
        except PolicyRefused:
            same = False
        if not same:
            self._open = None
            self._link.close()
            raise InvalidAction(
                f"{self._url} serves something else than when the node was configured: configure"
                " again"
            )
        self._greeted = self._link.connections

    def _answer(self, until: float) -> tuple[dict[Any, Any], _OpenRequest]:
        request = self._open
        assert request is not None
        try:
            answer = self._link.receive(until - time.monotonic())
        except Unreachable as error:
            waited = time.monotonic() - request.asked_s
            if not self._link.connected:
                self._open = None
            elif waited > GIVE_UP * self._timeout_s:
                self._open = None
                self._link.close()
            else:
                raise Unreachable(
                    f"{self._url} has not answered within {self._timeout_s:.2g} s"
                ) from error
            raise
        self._open = None
        own = self._own(answer)
        if text := own.get(UNANSWERED):
            raise Unreachable(f"{self._url}: {printable(text)}")
        made = None if self._served is None else own.get("inference")
        if isinstance(made, Mapping) and made.get("stamp_ns") != request.observation.stamp_ns:
            self._link.close()
            raise Unreachable(f"{self._url} {OUT_OF_STEP}: this one is of another observation")
        return answer, request

    def _actions(self, answer: Mapping[Any, Any]) -> Floats:
        """Actions, float64 [C, D] in m, rad and 0..1. InvalidAction: none of the space."""
        key = self._names.actions
        if key not in answer:
            there = ", ".join(sorted(printable(k, 40) for k in answer)[:20]) or "nothing"
            raise InvalidAction(f"{self._url} answers without {key!r}: it has {there}")
        try:
            raw = np.asarray(answer[key], np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidAction(f"{self._url}: {key!r} is no array of numbers") from error
        rows = raw[None] if raw.ndim == 1 else raw
        width, length = self._space.width, self._length or len(rows)
        if rows.ndim != 2 or rows.shape[1] != width or len(rows) != length or not length:
            shape = f"[{self._length or 'N'}, {width}]"
            raise InvalidAction(
                f"{self._url} answers {key!r} of {list(raw.shape)}: {shape} is needed, a column a"
                f" number of {_columns(self._space)}"
            )
        if length > MAX_CHUNK:
            raise InvalidAction(
                f"{self._url} answers {length} actions: at most {MAX_CHUNK} are taken"
            )
        with np.errstate(over="ignore", invalid="ignore"):
            actions = self._layout.read(rows)
        if not np.isfinite(actions).all():
            raise InvalidAction(f"{self._url} answers actions that are not finite")
        return actions

    def _full(
        self, answer: Mapping[Any, Any], actions: Floats, request: _OpenRequest, clock: Clock
    ) -> Inference:
        """Inference of our own server's answer. The network counts as preprocessing."""
        try:
            made, stages = inference_from(answer.get(OURS))
        except Malformed as error:
            raise InvalidAction(f"{self._url}: its answer cannot be read: {error}") from error
        timeline, now = request.timeline, clock.steady_ns()
        ends, end = [], now
        for stage in ("decode", "prefill", "vision"):
            ends.append((stage, end))
            end = max(timeline.end_ns, end - round(stages.get(stage, 0.0) * MS))
        for stage, mark in (("preprocess", end), *reversed(ends)):
            timeline = timeline.mark(stage, mark)
        return replace(
            made,
            actions=actions,
            timeline=timeline,
            continues=_same(made.continues, request.observation.executing),
        )


def _of_kind(kind: ActionKind, space: ActionSpace) -> ActionSpace:
    """The space of a server's actions, which are of another kind than the robot's parameters say:
    for the node to compare."""
    if kind.joints and space.kind.joints:
        return joints(kind, space.names, tuple(space.names[i] for i in space.grippers))
    if kind.joints:
        names = tuple(f"joint_{i}" for i in range(space.width))
        return joints(kind, names, (names[-1],))
    return end_effectors(kind)


def _check_width(units: tuple[str, ...], space: ActionSpace, table: str) -> None:
    """PolicyRefused: the table's units are of another number of values than this robot's."""
    if len(units) not in (1, space.width):
        raise PolicyRefused(
            f"{table} has actions of {len(units)} values, {space.kind.name.lower()}: give"
            f" action_space and action_names of as many, not {space.width}"
        )


def _same(continued: Executing | None, asked: Executing | None) -> Executing | None:
    """The chunk that a server continued, which can be no other than it was asked about."""
    return continued if continued == asked else None


def _columns(space: ActionSpace) -> str:
    return f"{space.kind.name.lower()}: {' '.join(space.names)}"


def _seconds(text: str) -> float:
    return _number(text, "timeout_s", 0.01, 600.0)


def _number(text: str, name: str, least: float, most: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        unit = {"quality": "", "rate_hz": "Hz "}.get(name, "seconds ")
        raise PolicyRefused(f"{name} is {text!r}: give {unit}from {least:g} to {most:g}")
    return number
