"""The nouns of an evaluation. Plain dicts exist only at a file's edge: to_json, from_json.

Times are milliseconds or seconds as the names say, rates hertz. Everything here can be pickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from vla_ros.runtime.control.queue import Execution
from vla_ros.sim.env import ACTION_RATE_HZ, SimError
from vla_ros.sim.episode import Mode
from vla_ros.sim.factory import EnvConfig

POLICIES = ("vla", "scripted", "zero")
ROUTES = ("ros", "direct")
MAX_DELAY_MS = 10_000.0  # of the bridge's images
EXECUTIONS = tuple(execution.value for execution in Execution)
QUANTILES = tuple(range(0, 101, 5))  # per cent, of a Spread
#: Parameters of the policy node that take its gate out of an evaluation by the published
#: protocol, which has none: the gripper follows every change of side at once, and actions
#: beyond the controller's range are cut to it however many they are.
UNGATED: Final[Mapping[str, float | int]] = {
    "gripper_hysteresis": 0.0,
    "gripper_dwell_s": 0.0,
    "clamp_limit": 1000,
    "hold_latch_s": 0.0,
}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Spread:
    """Samples in short: count, mean and 21 quantiles (0, 5 .. 100 %); all zero without samples."""

    count: int = 0
    mean: float = 0.0
    quantiles: tuple[float, ...] = (0.0,) * len(QUANTILES)

    @staticmethod
    def of(samples: npt.ArrayLike) -> Spread:
        """The spread of ``samples`` [N], quantiles by linear interpolation."""
        values = np.asarray(samples, dtype=np.float64).reshape(-1)
        if values.size == 0:
            return Spread()
        marks = np.percentile(values, QUANTILES)
        return Spread(int(values.size), float(values.mean()), tuple(map(float, marks)))

    def quantile(self, percent: float) -> float:
        """Any quantile, interpolated between those that are kept."""
        return float(np.interp(percent, QUANTILES, self.quantiles))

    @property
    def p50(self) -> float:
        return self.quantile(50)

    @property
    def p95(self) -> float:
        return self.quantile(95)


@dataclass(frozen=True, slots=True)
class Variant:
    """One way of running the policy. ``label`` is unique in an evaluation and has no slash.

    ``delay_frames`` (lock-step): the policy acts on the observation of that many actions
    ago; of chunks, each is there that many actions after its observation. ``execution``: how chunks
    are executed (:mod:`vla_ros.runtime.control.queue`), ``rtc_mode`` what guides those that
    continue each other. ``image_delay_ms`` (real time): every image reaches the policy so much
    later, its stamp unchanged. ``replan_interval``: actions executed of a chunk, 0 all that the age
    limit allows: all of it, as long as the limit grows with the chunk. The others are options of
    the engine, see docs/reference/parameters.md; ``decoding`` is empty for a policy without a
    model. An adaptive draft learns from episode to episode, so with it a lossy
    acceptance is no function of the job alone: in lock-step it is off.
    """

    label: str
    decoding: str = ""
    drafter: str = "temporal"
    draft_checkpoint: str = ""
    acceptance: str = "exact"
    relaxed_distance: int = 0
    adaptive_draft: bool = True
    replan_interval: int = 0
    delay_frames: int = 0
    image_delay_ms: float = 0.0
    execution: str = "async"
    rtc_mode: str = "guided"

    def __post_init__(self) -> None:
        if not self.label or "/" in self.label:
            raise ValueError(f"variant label {self.label!r}: must not be empty or have a slash")
        for name in ("relaxed_distance", "replan_interval", "delay_frames"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}: must be 0 or more")
        for name, known in (("execution", EXECUTIONS), ("rtc_mode", ("guided", "guided_vjp"))):
            if getattr(self, name) not in known:
                offered = ", ".join(known)
                raise ValueError(f"{name} is {getattr(self, name)!r}: give one of {offered}")
        if not 0 <= self.image_delay_ms <= MAX_DELAY_MS:
            most = f"must be 0 to {MAX_DELAY_MS:g}"
            raise ValueError(f"image_delay_ms is {self.image_delay_ms:g}: {most}")


def _flag(default: Any, text: str, **more: Any) -> Any:
    """A field that `vla-ros eval` has a flag of, see :func:`vla_ros.cli.arguments.add_fields`."""
    return field(default=default, metadata={"text": text, **more})


@dataclass(frozen=True, slots=True)
class Setup:
    """Settings that all episodes of an evaluation share; one that is resumed must have the same.

    ``checkpoint_sha256`` is "" without a checkpoint, ``unnorm_key`` "" where the checkpoint
    has one, ``embodiment`` "" where it has one robot, ``engine_options`` the engine's others, as
    ``name=value``. ``seed`` is the first of the jobs' and that
    of the policy (sampling, random weights).
    ``action_scale`` (None: joints, or ``action_units``), ``gripper``, ``center_crop`` and
    ``preprocessing`` are what the policy reads from its checkpoint
    (:mod:`vla_ros.policies.conventions`) or what was given, so that episodes under other ones are
    never mixed in; so is ``adaptation``, as ``name=value``. ``conventions``: all that is taken, a
    line each with its source, for the reader.
    ``executed``: actions of a chunk that its authors execute, 0 all that the age limit allows.
    ``ungated``: with UNGATED, for published protocols that have no gate. ``num_threads`` are the
    policy's, 0 the library's own choice. ``wrist``: the wrist camera is rendered and shown.
    ``control_rate_hz``: of the world's steps and the commands, 0 the world's action rate, at which
    the policy acts anyhow. ``max_steps`` counts actions, 0: the tasks' own limits. ``chunk``:
    actions of an answer, and ``state``: values of the robot's own state that it takes, as its
    checkpoint says. ``max_age_s`` bounds the age of the observation before a variant's own delays,
    see :func:`vla_ros.data.episodes.plan.age_limit_s`. ``nudge_m``: see
    :mod:`vla_ros.sim.tabletop`. ``world``: the simulation's versions (:mod:`vla_ros.sim.versions`).
    ``note``: what a reader of the figures must know ("placeholder visuals"), or "".
    """

    environment: str = _flag("tabletop", "simulation (tabletop; libero with --suite)",
                             flag="env", choices=("tabletop", "libero", "so101"))  # fmt: skip
    suite: str = _flag("", "libero: such as libero_object", metavar="S")
    policy: str = _flag("vla", "who acts", choices=POLICIES)
    checkpoint: str = ""
    checkpoint_sha256: str = ""
    mode: Mode = Mode.LOCKSTEP
    route: str = "ros"
    seed: int = _flag(0, "of the initial states, 0 to 999999 (0)")
    device: str = "cpu"
    dtype: str = "float32"
    weights: str = ""
    num_threads: int = 1
    unnorm_key: str = ""
    embodiment: str = ""
    engine_options: tuple[str, ...] = ()
    center_crop: bool = False
    preprocessing: str = "default"
    action_units: tuple[str, ...] = ()
    gripper: str = ""
    adaptation: tuple[str, ...] = ()
    conventions: tuple[str, ...] = ()
    ungated: bool = False
    action_scale: tuple[float, float, float, float, float, float] | None = None
    image_size: int = _flag(256, "of the cameras", metavar="PX")
    wrist: bool = False
    control_rate_hz: float = _flag(0.0, "of the world's steps and the commands, 1 to 500 (the"
                                   " action rate, 20)", flag="control-rate",
                                   metavar="HZ")  # fmt: skip
    max_steps: int = _flag(0, "of an episode, in actions (the task's limit)")
    chunk: int = 1
    executed: int = 0
    state: int = 0
    max_age_s: float = _flag(0.5, "age limit of observation", flag="max-age", metavar="S")
    nudge_m: float = _flag(0.0, "tabletop: move the task's cube so far while the hand is on its way"
                           " to it", flag="nudge", metavar="M")  # fmt: skip
    world: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"policy is {self.policy!r}: give one of {', '.join(POLICIES)}")
        if self.route not in ROUTES:
            raise ValueError(f"route is {self.route!r}: give one of {', '.join(ROUTES)}")
        try:
            EnvConfig(
                self.environment,
                self.image_size,
                self.wrist,
                self.suite,
                self.nudge_m,
                control_rate_hz=self.control_rate_hz,
            )
        except SimError as error:
            raise ValueError(str(error)) from None
        rate_hz = min(ACTION_RATE_HZ, self.control_rate_hz or ACTION_RATE_HZ)
        if not 1.0 / rate_hz < self.max_age_s < float("inf"):
            which = "action" if rate_hz == ACTION_RATE_HZ else "control"
            least = f"must be above {1.0 / rate_hz:g}, the {which} period"
            raise ValueError(f"max_age_s is {self.max_age_s:g}: {least}")
        if self.route == "direct" and self.mode is not Mode.LOCKSTEP:
            raise ValueError("without ROS there is lock-step only")


@dataclass(frozen=True, slots=True)
class Job:
    """One episode to play: initial state ``initial_state`` of ``task`` drawn from ``seed``.

    ``instruction`` "" is the task's own instruction; the task is judged by its own goal either
    way. ``number`` is its place in the evaluation and no part of its identity.
    """

    variant: str
    task: str
    initial_state: int
    seed: int
    instruction: str = ""
    number: int = 0

    def key(self) -> str:
        """Unique in an evaluation."""
        return f"{self.variant}/{self.task}/{self.initial_state}/{self.seed}/{self.instruction}"


@dataclass(frozen=True, slots=True)
class Record:
    """The result of a job. An episode that could not be played is a failure with its reason.

    ``reason``: why it ended: "success", "step limit", "out of reach", "policy FAULT: ...",
    "no progress: ...". ``steps``, ``max_steps`` and ``held`` count actions, so that they are
    comparable between control rates; what follows of actions executed is of control steps.
    ``rate_hz``: new actions of the policy executed per second of wall time.
    ``age_ms``: observation age of every executed action of the policy at its execution
    (in lock-step in simulated time). ``inference_ms``: time of the policy per frame.
    ``drafted`` and ``accepted``: draft tokens per action dimension, empty without a drafter.
    ``decoding``: how it was decoded, with "auto" resolved; "" without a model.
    ``passes``: of the target model over ``frames`` frames that it answered; they served ``served``
    actions, where a pipeline's pass serves as many as it is deep and a chunk's all of its own.
    ``staleness_ms``: age less due time of the same
    actions at their execution, how far each was behind its own chunk's time line;
    ``conditioning_delay``: the action periods of delay that a policy was conditioned on (none where
    it never was).
    ``held``: those without an action of the policy. ``clamped``: actions changed by the gate.
    ``action_digest``: SHA-256, in hex, of the executed actions (m, rad, gripper 0 to 1 as the
    command carried them, float64 [7] each, held steps included) in order; ``token_digest`` the
    same of the action tokens, int64, "" without a model. Of chunks: ``begun`` is the index of the
    first executed action of each, ``seam`` how far that action is from the one that the chunk
    before had for the same step, where it had one; ``jerk``, of all policies, the second difference
    of the executed actions. Both are norms of the first six numbers, in m and rad.
    ``instruction``: the policy's ("": none).
    ``strip`` and ``clip``: images, relative to the evaluation's directory, or "". ``error``: what
    broke, "" where nothing did. ``tokens``: those of every answered frame, in order, see
    :mod:`vla_ros.data.episodes.store`; ``ages``: of the observation behind every step, ms, NaN
    where it held. Both are no part of the record's line.
    """

    job: Job
    success: bool
    reason: str
    steps: int = 0
    max_steps: int = 0
    wall_s: float = 0.0
    rate_hz: float = 0.0
    age_ms: Spread = Spread()
    staleness_ms: Spread = Spread()
    inference_ms: Spread = Spread()
    conditioning_delay: Spread = Spread()
    decoding: str = ""
    drafted: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()
    passes: int = 0
    frames: int = 0
    served: int = 0
    held: int = 0
    clamped: int = 0
    action_digest: str = ""
    token_digest: str = ""
    begun: Spread = Spread()
    seam: Spread = Spread()
    jerk: Spread = Spread()
    instruction: str = ""
    strip: str = ""
    clip: str = ""
    error: str = ""
    tokens: tuple[tuple[int, ...], ...] = ()
    ages: tuple[float, ...] = field(default=(), compare=False)


# Files


#: of a record: its tokens have a file of their own, and its ages stand in the clip
_APART = ("tokens", "ages")
_ANOTHER = "written by another version; play it again into another directory"


def to_json(noun: Variant | Setup | Job | Record | Spread) -> dict[str, Any]:
    """For ``json.dumps``."""
    values = asdict(noun)
    for name in _APART:
        values.pop(name, None)
    return values


def variant_from_json(values: Mapping[str, Any]) -> Variant:
    return _from(Variant, values)


def setup_from_json(values: Mapping[str, Any]) -> Setup:
    changed = dict(values)
    if "mode" in changed:
        changed["mode"] = Mode(changed["mode"])
    return _from(Setup, changed)


def record_from_json(values: Mapping[str, Any]) -> Record:
    changed = {**values, "job": _from(Job, values["job"])}
    spreads = [one.name for one in fields(Record) if isinstance(one.default, Spread)]
    changed |= {name: _from(Spread, values[name]) for name in spreads if name in values}
    return _from(Record, changed)


def _from(kind: type[T], values: Mapping[str, Any]) -> T:
    """The dataclass from its JSON form, which has every field. ValueError."""
    known = {one.name for one in fields(kind)} - set(_APART)  # type: ignore[arg-type]
    if unknown := sorted(set(values) - known):
        raise ValueError(f"{kind.__name__} has no {', '.join(unknown)}: {_ANOTHER}")
    if absent := sorted(known - set(values)):
        raise ValueError(f"{kind.__name__} without {', '.join(absent)}: {_ANOTHER}")
    try:
        return kind(**{n: tuple(v) if isinstance(v, list) else v for n, v in values.items()})
    except TypeError as error:
        raise ValueError(f"{kind.__name__}: {error}") from error
