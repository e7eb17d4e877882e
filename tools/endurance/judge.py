"""What must hold for commands and states, whatever was done to the graph: judged from what the
policy node published, and from when services had answered. No ROS here.

All times are ns of the ROS clock, the sender's own stamps: a judge who hears late judges alike.
The node publishes commands and statuses under one lock, so their stamps are in order.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field

from vla_ros.core.clock import MS, SECOND
from vla_ros.core.types import CommandKind, PolicyState

RULES = {
    "old": "no command that acts on observation older than max_age_s",
    "not finite": "no number of a command that is not finite",
    "old epoch": "no command of an epoch that is over, nor of another instruction",
    "after deactivation": "no command after a deactivation was answered",
    "after stop": "nothing that moves after ~/stop was answered, or only brakes",
    "moving stop": "no STOP command that moves an arm, or moves it on but slower",
    "sequence": "sequence numbers that grow",
    "lost process": "no process that ends unasked",
    "stuck": "RUNNING again after every trouble",
    "held": "HOLD left within 3 s of the end of its cause",
    "accepted": "no parameter taken that makes no sense",
    "motion": "every number of every output within its limits",
}


@dataclass(frozen=True, slots=True)
class JudgedCommand:
    """A command, as far as the rules need it."""

    stamp: int
    sequence: int
    kind: CommandKind
    epoch: int
    observation_stamp: int
    valid_until: int
    instruction_hash: int
    action: tuple[float, ...]

    @property
    def moves(self) -> bool:
        """Whether it displaces the arm; the gripper's number is the last."""
        return any(self.action[:-1])

    @property
    def age(self) -> int:
        """Of the observation behind it at publication, ns."""
        return self.stamp - self.observation_stamp


@dataclass(frozen=True, slots=True)
class JudgedStatus:
    """A status, as far as the rules need it; ``instruction_hash`` is of the text it shows."""

    stamp: int
    state: PolicyState
    epoch: int
    instruction_hash: int
    max_age: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Violation:
    """One rule broken once."""

    rule: str
    at: int
    what: str


@dataclass(frozen=True, slots=True)
class Hold:
    """The node stopped commanding, and whether something had been done to it."""

    at: int
    state: PolicyState
    reason: str
    provoked: bool


@dataclass
class Judge:
    """Hears everything in the order in which it arrives; counts, and keeps what broke a rule.

    ``trouble()`` and ``calm()`` bracket the time in which a HOLD is somebody's fault. ``brakes``:
    a STOP takes acceleration limits to slow down.
    """

    violations: list[Violation] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    kinds: Counter[CommandKind] = field(default_factory=Counter)
    states: Counter[PolicyState] = field(default_factory=Counter)  # ns spent in each
    ages: Counter[int] = field(default_factory=Counter)  # of POLICY and HELD commands, whole ms
    gaps: int = 0  # commands that this reader missed, by their numbers
    brakes: bool = False

    def __post_init__(self) -> None:
        self._last: JudgedCommand | None = None
        self._status: JudgedStatus | None = None
        self._statuses: deque[JudgedStatus] = deque(maxlen=64)
        self._recent: deque[JudgedCommand] = deque(maxlen=64)
        self._old: list[JudgedCommand] = []  # commands that a status on its way may still allow
        self._silent_from: int | None = None  # deactivation answered, no activation asked since
        self._stopped_from: int | None = None
        self._trouble = False

    # What is done to the graph

    def trouble(self) -> None:
        """Something is being done to the graph: a HOLD is provoked from now on."""
        self._trouble = True

    def calm(self) -> None:
        """What was done is over and the policy has acted again."""
        self._trouble = False

    @property
    def troubled(self) -> bool:
        return self._trouble

    def deactivated(self, answered_at: int) -> None:
        """The node has said that it is inactive."""
        self._silent_from = answered_at

    def activating(self) -> None:
        """It is about to be asked to be active again."""
        self._silent_from = None

    def stopped(self, answered_at: int) -> None:
        """~/stop was answered."""
        self._stopped_from = answered_at

    def resuming(self) -> None:
        """It is about to be told to go on, or something else to do."""
        self._stopped_from = None

    def lost(self, at: int, what: str) -> None:
        """A process ended unasked."""
        self._broken("lost process", at, what)

    def stuck(self, at: int, what: str) -> None:
        """It did not run again in time."""
        self._broken("stuck", at, what)

    def held(self, at: int, what: str) -> None:
        """It stayed in HOLD although its cause was over."""
        self._broken("held", at, what)

    def accepted(self, at: int, what: str) -> None:
        """A parameter that should have been refused was not."""
        self._broken("accepted", at, what)

    def moved(self, at: int, what: str) -> None:
        """An output broke a promise of motion: see :mod:`support.motion_judge`."""
        self._broken("motion", at, what)

    # What the graph says

    def command(self, heard: JudgedCommand) -> None:
        """A command has arrived."""
        self.kinds[heard.kind] += 1
        *arm, gripper = heard.action  # NaN is a gripper that nobody commanded
        if not all(map(math.isfinite, arm)) or math.isinf(gripper):
            self._broken("not finite", heard.stamp, f"{heard.action}")
        if heard.kind == CommandKind.POLICY or heard.observation_stamp:  # a person's has none
            self.ages[math.ceil(heard.age / MS)] += 1
            self._judge_age(heard)
        moves = heard.moves and not self._only_brakes(heard)
        if heard.kind == CommandKind.STOP and moves:
            self._broken("moving stop", heard.stamp, f"{heard.action}")
        if self._last is not None:
            self._judge_order(self._last, heard)
        for status in self._statuses:
            self._judge_epoch(heard, status)
        if self._silent_from is not None and heard.stamp > self._silent_from:
            late = (heard.stamp - self._silent_from) / MS
            self._broken(
                "after deactivation", heard.stamp, f"{heard.kind.name} {late:.1f} ms after"
            )
        if self._stopped_from is not None and heard.stamp > self._stopped_from and moves:
            late = (heard.stamp - self._stopped_from) / MS
            self._broken("after stop", heard.stamp, f"{heard.kind.name} {late:.1f} ms after")
        self._last = heard
        self._recent.append(heard)

    def _only_brakes(self, heard: JudgedCommand) -> bool:
        """Whether it is a STOP that goes on as the command before it, but slower. What was missed
        is not held against it."""
        if not self.brakes or heard.kind != CommandKind.STOP:
            return False
        before = self._last
        if before is None or heard.sequence != before.sequence + 1:
            return True
        pairs = zip(heard.action[:-1], before.action[:-1], strict=True)
        return all(now == 0.0 or (abs(now) < abs(was) and now * was > 0.0) for now, was in pairs)

    def status(self, told: JudgedStatus) -> None:
        """A status has arrived."""
        before = self._status
        if before is not None:
            self.states[before.state] += max(0, told.stamp - before.stamp)
            if told.state != before.state and told.state in (PolicyState.HOLD, PolicyState.FAULT):
                self.holds.append(Hold(told.stamp, told.state, told.reason, self._trouble))
        for heard in self._recent:  # commands that overtook this status
            self._judge_epoch(heard, told)
        self._status = told
        self._statuses.append(told)
        for heard in [heard for heard in self._old if heard.stamp < told.stamp]:
            self._old.remove(heard)
            if heard.age > (allowed := self._allowed(heard)):
                said = f"{heard.age / MS:.1f} ms, {allowed / MS:g} allowed"
                self._broken("old", heard.stamp, said)

    # The rules

    def _allowed(self, heard: JudgedCommand) -> int:
        """The oldest observation that a status of its time, or the newest, allows this command."""
        limits = [s.max_age for s in self._statuses if abs(s.stamp - heard.stamp) < 2 * SECOND]
        if self._status is not None:
            limits.append(self._status.max_age)
        return max(limits, default=heard.age)

    def _judge_age(self, heard: JudgedCommand) -> None:
        if heard.age > self._allowed(heard):
            self._old.append(heard)  # it may have overtaken the status that allows it
        if heard.stamp > heard.valid_until:
            late = (heard.stamp - heard.valid_until) / MS
            self._broken("old", heard.stamp, f"published {late:.1f} ms after its valid_until")
        if heard.age < 0:
            self._broken(
                "old", heard.stamp, f"rests on an image {-heard.age / MS:.1f} ms in the future"
            )

    def _judge_order(self, before: JudgedCommand, heard: JudgedCommand) -> None:
        if heard.sequence <= before.sequence:
            self._broken("sequence", heard.stamp, f"{heard.sequence} after {before.sequence}")
        self.gaps += max(0, heard.sequence - before.sequence - 1)
        if heard.epoch < before.epoch:
            self._broken("old epoch", heard.stamp, f"epoch {heard.epoch} after {before.epoch}")

    def _judge_epoch(self, heard: JudgedCommand, status: JudgedStatus) -> None:
        if not status.stamp < heard.stamp or heard.kind == CommandKind.STOP:
            return
        if heard.epoch < status.epoch:
            self._broken(
                "old epoch", heard.stamp, f"epoch {heard.epoch} after a status of {status.epoch}"
            )
        elif heard.epoch == status.epoch and heard.instruction_hash != status.instruction_hash:
            self._broken("old epoch", heard.stamp, "another instruction than its epoch's")

    def _broken(self, rule: str, at: int, what: str) -> None:
        found = Violation(rule, at, what)
        if found not in self.violations[-64:]:
            self.violations.append(found)

    # The verdict

    @property
    def now(self) -> JudgedStatus | None:
        """The newest status."""
        return self._status

    def false_holds(self) -> list[Hold]:
        """Those that nobody provoked."""
        return [hold for hold in self.holds if not hold.provoked]
