"""Proposal of a robot file for `vla-ros setup`: every value with its source, doubtful ones marked.

Sources, the later ones win: the robot's file of config/robots, the checkpoint's needs, the running
graph, answers. Limits are the tighter ones of file and URDF, and a tenth of the URDF's speed; what
no source says is left out, so that configure refuses it, rather than guessed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import yaml

from vla_ros.core.action_space import (
    END_EFFECTOR_DELTA,
    KINDS,
    ActionSpace,
    action_space_of,
    is_gripper,
    joints,
)
from vla_ros.core.errors import UserError
from vla_ros.core.files import read_text
from vla_ros.core.text import printable
from vla_ros.core.urdf import DescribedJoint, read_joints
from vla_ros.core.yaml_files import parse_yaml
from vla_ros.ros.bringup.robot_file import REMAPPINGS, RobotFile
from vla_ros.ros.common.parameter_files import line_of
from vla_ros.ros.common.seen_graph import (
    GRIPPERS,
    TAKEN,
    SeenCamera,
    SeenController,
    SeenGraph,
    SeenJoints,
)

SHARE = 0.1  # of the description's speed
SLOW = 0.2  # rad/s of a joint whose speed nothing says
EFFECTOR = [0.1, 0.1, 0.1, 0.5, 0.5, 0.5]  # m/s and rad/s of an end effector to begin with
LATE_S = 0.5  # an image's stamp, of a camera in order
_AT_THE_HAND = ("wrist", "hand", "gripper")
_OPTIONS = ("state_normalization", "state_in_prompt")  # of the engine, no parameters
_RATES = (5, 10, 15, 20, 25, 30, 50, 60, 100)  # Hz
#: Outputs that command joints, the preferred first; trajectories end by themselves.
_OF_JOINTS = ("trajectory", "joint_state", "positions")
_ORDER = (
    "policy", "checkpoint", "device", "dtype", "unnorm_key", "embodiment", "camera_map",
    "engine_options", "cameras.", "camera_roles", "camera_rate_hz", "action_space", "action_names",
    "joint_names", "gripper_names", "gripper_range", "bounds_low", "bounds_high",
    "velocity_limits", "outputs", "action_rate_hz", "control_rate_hz", "stale_action",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CheckpointNeeds:
    """What a checkpoint needs of a robot. ``cameras``: its names of them; ``state`` and
    ``actions``: numbers of values, 0 unknown; ``names``: of an action's values; ``rate_hz``: of its
    data, 0 unknown; ``choices``: parameters that somebody must choose -> what there is."""

    checkpoint: str
    policy: str = "vla"
    family: str = ""
    cameras: tuple[str, ...] = ()
    state: int = 0
    actions: int = 0
    names: tuple[str, ...] = ()
    rate_hz: float = 0.0
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class Answers(Protocol):
    """Somebody who knows the robot, or nobody."""

    def choose(self, question: str, options: Sequence[str], default: int) -> tuple[int, bool]:
        """Index of one of the options; False: nobody chose it."""
        ...

    def numbers(self, question: str, count: int) -> list[float]:
        """So many numbers; []: nobody knows them."""
        ...


class Safe:
    """The answers of `--yes`: the first choice, which nobody made, and no numbers."""

    def choose(self, question: str, options: Sequence[str], default: int) -> tuple[int, bool]:
        del question, options
        return default, False

    def numbers(self, question: str, count: int) -> list[float]:
        del question, count
        return []


@dataclass(frozen=True, slots=True)
class Value:
    """A value with its source. ``doubt``: a person must look at it."""

    value: Any
    why: str
    doubt: bool = False

    @property
    def comment(self) -> str:
        return f"? {self.why}" if self.doubt else self.why


@dataclass(slots=True)
class Proposal:
    """Parameters of the policy node, topics, and what nothing says: name -> what is asked for."""

    parameters: dict[str, Value] = field(default_factory=dict)
    remappings: dict[str, Value] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def doubts(self) -> list[str]:
        """Names of doubtful values."""
        values = {**self.parameters, **self.remappings}
        return [name for name, one in values.items() if one.doubt]

    def set(self, name: str, value: Any, why: str, doubt: bool = False) -> None:
        self.parameters[name] = Value(value, why, doubt)

    def value(self, name: str, default: Any = None) -> Any:
        """Value of a parameter; a list without the empty texts, by which ROS types an empty one."""
        if (one := self.parameters.get(name)) is None:
            return default
        return [v for v in one.value if v != ""] if isinstance(one.value, list) else one.value

    def text(self, title: str, commands: Sequence[str]) -> str:
        """The robot file."""
        lines = [f"# {printable(title)}"]
        lines += [
            "# Each comment says where a value comes from; with ? in front it is doubtful.",
            "#",
        ]
        lines += [f"#   {command}" for command in commands]
        lines += ["/**/policy:", "  ros__parameters:"]
        lines += _lines(dict(sorted(self.parameters.items(), key=lambda item: _place(item[0]))))
        lines += [f"    # {name}:  # ? {why}" for name, why in self.missing.items()]
        if self.remappings:
            lines += [f"{REMAPPINGS}:", "  ros__parameters:", *_lines(self.remappings)]
        return "\n".join(lines) + "\n"


def _lines(values: Mapping[str, Value]) -> list[str]:
    left = {name: f"    {_plain(name)}: {flow(one.value)}" for name, one in values.items()}
    width = min(max(map(len, left.values()), default=0), 60)
    return [f"{left[name]:<{width}}  # {printable(one.comment)}" for name, one in values.items()]


def _place(name: str) -> tuple[int, int]:
    """Where a parameter stands: as in :data:`_ORDER`, others behind, in their own order."""
    for index, first in enumerate(_ORDER):
        if name == first or (first.endswith(".") and name.startswith(first)):
            return index, 0
    return len(_ORDER), 0


def flow(value: Any) -> str:
    """A value as one line of YAML that rcl reads with the same type."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(flow, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(yaml.safe_dump(value)).split("\n", 1)[0]
    return _plain(value) if isinstance(value, str) else str(value)


def _plain(text: str) -> str:
    """Text of YAML, in quotes where it might be taken for something else (rcl takes y for true)."""
    word = re.fullmatch(r"[A-Za-z_/~][\w/.~-]+", text, re.ASCII)
    if word and parse_yaml(text, "a word") == text:
        return text
    quoted: str = yaml.safe_dump(text, default_style='"', width=sys.maxsize)
    return quoted.rstrip("\n")


# The proposal


def propose(
    seen: SeenGraph,
    needs: CheckpointNeeds | None = None,
    robot: RobotFile | None = None,
    answers: Answers | None = None,
) -> Proposal:
    """The robot file of these sources. UserError: the checkpoint's actions are none that can be
    executed."""
    return _Maker(seen, needs, robot, answers or Safe()).made()


class _Maker:
    """A proposal in the making, in the order of :meth:`made`."""

    def __init__(
        self,
        seen: SeenGraph,
        needs: CheckpointNeeds | None,
        robot: RobotFile | None,
        answers: Answers,
    ) -> None:
        self._seen, self._needs, self._answers = seen, needs, answers
        self._out = Proposal()
        self._described = _described(seen)
        if robot is not None:
            self._out.parameters = commented(robot, robot.parameters())
            self._out.remappings = commented(robot, robot.remappings)

    def made(self) -> Proposal:
        self._checkpoint()
        self._cameras()
        states = self._joint_states()
        space = self._space(states)
        if not self._out.value("arms"):  # several arms have topics of their own: the file's
            if space is not None:
                self._names(space, states)
                self._grippers()
                self._limits()
            else:
                self._effector(states)
            self._outputs(space is not None)
        self._rates()
        self._unseen()
        return self._out

    # The checkpoint

    def _checkpoint(self) -> None:
        needs, out = self._needs, self._out
        if needs is None:
            return
        out.set("policy", needs.policy, "a checkpoint was given")
        out.set("checkpoint", needs.checkpoint, needs.family or "as given")
        if needs.policy == "vla":
            out.set(
                "device", "auto", "CUDA in bfloat16 where there is a GPU, else the CPU in float32"
            )
        options = list(out.value("engine_options", ()))
        for name, values in needs.choices.items():
            question = f"{name} of {needs.checkpoint}"
            index, chosen = self._answers.choose(question, values, 0)
            why = "your answer" if chosen else f"one of {', '.join(values)}"
            if name in _OPTIONS:
                options.append(f"{name}={values[index]}")
                out.set("engine_options", options, why, not chosen)
            else:
                out.set(name, values[index], why, not chosen)

    # Cameras

    def _cameras(self) -> None:
        out, free = self._out, list(self._seen.cameras)
        wanted = self._roles()
        for role, name in wanted.items():
            given = out.value(f"cameras.{role}.topic")
            camera, doubt = self._camera(role, name, given, free)
            if camera is None:
                if given is None:
                    out.missing[f"cameras.{role}.topic"] = f"no topic of images was seen for {name}"
                continue
            free.remove(camera)
            late = _late(camera)
            why = f"{camera}{f', the checkpoint calls it {name}' if name != role else ''}{late}"
            out.set(f"cameras.{role}.topic", camera.topic, why, doubt or bool(late))
            if camera.transport != "raw":
                out.set(f"cameras.{role}.transport", camera.transport, "only compressed is there")
        if "wrist" not in wanted and self._seen.cameras:
            out.set("cameras.wrist.topic", "", "none was asked for")
        more = [role for role in wanted if role not in ("main", "wrist")]
        if more and not out.value("camera_roles"):
            out.set("camera_roles", more, "the checkpoint's cameras beside main and wrist")
        if len(wanted) > 1 and any(role != name for role, name in wanted.items()):
            pairs = " ".join(f"{name}={role}" for role, name in wanted.items())
            doubt = any(
                out.parameters[one].doubt
                for role in wanted
                if (one := f"cameras.{role}.topic") in out.parameters
            )
            out.set("camera_map", pairs, "the checkpoint's cameras by their names", doubt)
        rates = [c.rate_hz for c in self._seen.cameras if c not in free and c.rate_hz]
        if rates:
            out.set("camera_rate_hz", round_rate(min(rates)), "measured, the slowest of them")

    def _roles(self) -> dict[str, str]:
        """Role -> what it is called: by the checkpoint, the robot's file, or the topics."""
        if self._needs is not None and self._needs.cameras:
            return roles_of(self._needs.cameras)
        of_file = [
            found[1]
            for name, one in self._out.parameters.items()
            if (found := re.fullmatch(r"cameras\.(\w+)\.topic", name)) and one.value
        ]
        if of_file:
            return {role: role for role in of_file}
        hands = [c for c in self._seen.cameras if at_the_hand(c.topic)]
        two = hands and len(self._seen.cameras) > 1
        return {"main": "main", "wrist": "wrist"} if two else {"main": "main"}

    def _camera(
        self, role: str, name: str, given: Any, free: list[SeenCamera]
    ) -> tuple[SeenCamera | None, bool]:
        """The camera of a role, and whether that is doubtful."""
        if not free:
            return None, True
        same = [c for c in free if c.topic.strip("/") == str(given or "").strip("/")]
        if same:
            return same[0], False
        named = [c for c in free if name.lower() in c.topic.lower()]
        if not named:
            named = [c for c in free if at_the_hand(c.topic) is (role == "wrist")]
        if len(named) == 1 or len(free) == 1:
            return (named or free)[0], not named
        best = free.index((named or free)[0])
        options = [f"{one.topic}: {one}" for one in free]
        what = f"camera {role}" + (f" (the checkpoint's {name})" if name != role else "")
        index, chosen = self._answers.choose(f"Which topic is {what}?", options, best)
        return free[index], not chosen

    # Joints

    def _joint_states(self) -> SeenJoints | None:
        """The topic of the robot's joint states."""
        named = set(self._out.value("joint_names", ())) | set(self._out.value("action_names", ()))
        named |= set(self._needs.names if self._needs else ())

        def fits(one: SeenJoints) -> tuple[int, int]:
            return len(named & set(one.names)), len(one.names)

        found = max(self._seen.joints, key=fits, default=None)
        if found is None or self._out.value("arms"):
            return found
        two = len(found.publishers) > 1
        why = f"{found.rate_hz:.3g} Hz, by {', '.join(found.publishers)}"
        why += ": two publishers, stop one" if two else ""
        self._out.remappings["joint_states"] = Value(found.topic, why, two)
        if 0.0 < found.rate_hz < 20.0:
            slop = round(0.6 / found.rate_hz, 3)
            why = f"joint states come at {found.rate_hz:.3g} Hz: half a period of theirs, and more"
            self._out.set("pairing_slop_s", slop, why)
        return found

    def _space(self, seen: SeenJoints | None) -> ActionSpace | None:
        """The space of the robot's actions, by its file, the checkpoint or the graph; None: an end
        effector's, whose names are fixed."""
        out, needs = self._out, self._needs
        its = None
        if needs is not None and needs.actions:
            try:
                its = action_space_of(needs.actions, needs.names)
            except ValueError as error:
                raise UserError(f"{needs.checkpoint}: {error}") from None
        given = out.parameters.get("action_space")
        if its is not None and needs is not None:
            word = its.kind.name.lower()
            said = f"the checkpoint's {needs.actions} values"
            unnamed = not needs.names and needs.actions == END_EFFECTOR_DELTA.width
            if given is None:
                why = f"{said}, which it does not name" if unnamed else said
                out.set("action_space", word, why, unnamed)
            elif given.value != word:
                why = f"{given.why}; but {said} are taken for {word}"
                out.set("action_space", given.value, why, True)
        elif given is None:
            commanded = any(map(self._seen.taking, _OF_JOINTS))
            of_joints = commanded or (seen is not None and not self._seen.taking("twist"))
            word = "joint_position" if of_joints else END_EFFECTOR_DELTA.kind.name.lower()
            out.set("action_space", word, "what the graph takes", needs is not None)
        kind = KINDS.get(str(out.value("action_space")), END_EFFECTOR_DELTA.kind)
        if not kind.joints:
            return None
        return its if its is not None and its.kind is kind else joints(kind, ("joint_0",))

    def _names(self, space: ActionSpace, states: SeenJoints | None) -> None:
        out = self._out
        there = states.names if states else ()
        its = self._needs.names if self._needs else ()
        by_name = [name for name in space.names if name in there]
        if not out.value("action_names"):
            taking = [c for output in _OF_JOINTS for c in self._seen.taking(output) if c.joints]
            if its and len(by_name) == len(space.names):
                out.set("action_names", by_name, "the checkpoint's names")
            elif taking:
                hands = [name for name in there if is_gripper(name)]
                own = [*taking[0].joints, *(h for h in hands if h not in taking[0].joints)]
                out.set("action_names", own, f"parameter joints of {taking[0].nodes[0]}", bool(
                    self._needs))  # fmt: skip
            elif there:
                own = [n for n in there if n not in self._described
                       or not self._described[n].follows]  # fmt: skip
                out.set("action_names", own, "the order of joint_states: is it the policy's?", True)
            else:
                out.missing["action_names"] = "the joints in the policy's order"
                return
        names = list(out.value("action_names"))
        width = self._needs.actions if self._needs else 0
        if width and width != len(names):
            why = f"{len(names)} joints, and the checkpoint's actions have {width} values"
            out.set("action_names", names, why, True)
        lacking = [name for name in names if there and name not in there]
        if lacking:
            why = f"joint_states has no {', '.join(lacking)}"
            out.set("action_names", names, why, True)
        if not out.value("joint_names"):
            out.set("joint_names", names, "as action_names")
        state = self._needs.state if self._needs else 0
        if state and state != len(out.value("joint_names")):
            why = f"{len(out.value('joint_names'))} joints, and the checkpoint's state has {state}"
            out.set("joint_names", out.value("joint_names"), f"{why} values", True)

    def _grippers(self) -> None:
        out = self._out
        names = out.value("action_names", ())
        if out.value("gripper_names") is None:
            hands = [name for name in names if is_gripper(name)]
            if hands:
                out.set("gripper_names", hands, "by its name: 0 closed to 1 open", not self._needs)
        hands = list(out.value("gripper_names", ()))
        if not hands or out.value("gripper_range"):
            return
        ends: list[float] = []
        sure = True
        for name in hands:
            low, high = self._described[name].ends if name in self._described and (
                self._described[name].ends) else (0.0, 0.0)  # fmt: skip
            if low == high:
                question = f"position of {name} when it is closed, and open"
                if not (given := self._answers.numbers(question, 2)):
                    out.missing["gripper_range"] = question
                    return
                ends += given
                continue
            options = (f"{low:g} is closed, {high:g} is open", f"{high:g} is closed, {low:g} is"
                       " open")  # fmt: skip
            index, chosen = self._answers.choose(f"Gripper {name}:", options, 0)
            sure &= chosen
            ends += (low, high) if index == 0 else (high, low)
        why = "closed, open: ends of robot_description"
        why += ", your answer" if sure else "; which one is closed?"
        out.set("gripper_range", [round(one, 6) for one in ends], why, not sure)

    # Limits

    def _limits(self) -> None:
        out = self._out
        hands = set(out.value("gripper_names", ()))
        moving = [name for name in out.value("action_names", ()) if name not in hands]
        described = [self._described.get(name) for name in moving]
        if not moving:
            return
        known = [joint.ends for joint in described if joint is not None and joint.ends]
        own = out.value("bounds_low", ()), out.value("bounds_high", ())
        mine = all(len(one) == len(moving) for one in own)
        if len(known) == len(moving):
            low, high = ([round(ends[i], 6) for ends in known] for i in (0, 1))
            if mine:
                low, high = list(map(max, low, own[0])), list(map(min, high, own[1]))
            why = "ends of robot_description" + (", or tighter: the robot's file" if mine else "")
            out.set("bounds_low", low, f"rad, {why}")
            out.set("bounds_high", high, f"rad, {why}")
        elif not mine:
            lacking = [n for n, j in zip(moving, described, strict=True) if not (j and j.ends)]
            why = f"nothing says the ends of {', '.join(lacking)}"
            for name, which in (("bounds_low", "least"), ("bounds_high", "greatest")):
                question = f"{which} positions of {', '.join(moving)}, rad"
                if given := self._answers.numbers(question, len(moving)):
                    out.set(name, given, "rad, your answer")
                else:
                    out.missing[name] = why
        self._speeds(moving, described)

    def _speeds(self, moving: list[str], described: list[DescribedJoint | None]) -> None:
        out = self._out
        own = out.value("velocity_limits", ())
        speeds = [joint.velocity * SHARE if joint else 0.0 for joint in described]
        if len(own) == len(moving):
            if any(speeds):
                tighter = [min(a, b) if b else a for a, b in zip(own, speeds, strict=True)]
                why = "a tenth of robot_description's, or less: the robot's file"
                out.set("velocity_limits", [round(one, 4) for one in tighter], f"rad/s, {why}")
            return
        unknown = [name for name, one in zip(moving, speeds, strict=True) if not one]
        limits = [round(one or SLOW, 4) for one in speeds]
        why = "rad/s, a tenth of robot_description's speeds"
        if unknown:
            why = f"rad/s, slow: nothing says the speed of {', '.join(unknown)}"
        out.set("velocity_limits", limits, why, bool(unknown))

    def _effector(self, states: SeenJoints | None) -> None:
        out, state = self._out, self._needs.state if self._needs else 0
        if state and out.value("joint_names") is None:
            if states is not None and len(states.names) == state:
                why = "the order of joint_states: is it the policy's?"
                out.set("joint_names", list(states.names), why, True)
            else:
                out.missing["joint_names"] = f"the checkpoint's state has {state} values"
        if out.value("velocity_limits") is None:
            why = "m/s and rad/s of the end effector: slow, to begin with"
            out.set("velocity_limits", list(EFFECTOR), why, True)
        if out.value("frame_id") is None:
            out.set("frame_id", "base_link", "the frame of the displacements: the data's?", True)

    # Outputs

    def _outputs(self, of_joints: bool) -> None:
        out = self._out
        kinds = _OF_JOINTS if of_joints else ("twist",)
        given = list(out.value("outputs", ()))
        offers = {name: self._seen.taking(name) for name in kinds}
        output = next((name for name in given if offers.get(name)), "") or next(
            (name for name in kinds if offers[name] and not given), ""
        )
        outputs = [name for name in given if name != "gripper"]
        if output:
            one, doubt = self._controller(offers[output], out.value("action_names", ()))
            topic = next(mine for name, mine in TAKEN.values() if name == output)
            kept = out.remappings.get(topic)
            if kept is None or kept.value not in [other.topic for other in offers[output]]:
                by = ", ".join(one.nodes)
                out.remappings[topic] = Value(one.topic, f"read by {by}", doubt)
            outputs = given or [output]
            others = [name for name in kinds if offers[name] and name != output]
            why = f"{one.topic} takes it" + (f"; {', '.join(others)} too" if others else "")
            out.set("outputs", outputs, why)
        elif not given and (self._seen.cameras or self._seen.joints):
            out.missing["outputs"] = f"nobody reads {' or '.join(kinds)}: start the controller"
        self._gripper_output(outputs)
        if of_joints and out.value("stale_action") is None:
            out.set("stale_action", "hold", "positions: it stays where it is")

    def _controller(
        self, offers: list[SeenController], names: Sequence[str]
    ) -> tuple[SeenController, bool]:
        fitting = [one for one in offers if set(one.joints) & set(names)]
        if len(offers) == 1 or len(fitting) == 1:
            return (fitting or offers)[0], False
        options = [f"{one.topic}, read by {', '.join(one.nodes)}" for one in offers]
        index, chosen = self._answers.choose("Which topic moves the arm?", options, 0)
        return offers[index], not chosen

    def _gripper_output(self, outputs: list[str]) -> None:
        out = self._out
        servers = [one for one in self._seen.controllers if one.kind in GRIPPERS]
        hands = out.value("gripper_names", ())
        if len(servers) != 1 or len(hands) != 1 or not outputs:
            if hands and outputs and "joint_state" not in outputs and self._seen.controllers:
                one = out.parameters["gripper_names"]
                why = f"{one.why}; no action of a gripper was seen, commands are on"
                out.set("gripper_names", one.value, f"{why} ~/gripper_positions", True)
            return
        (server,) = servers
        out.set("outputs", [*outputs, "gripper"] if "gripper" not in outputs else outputs,
                f"{server.topic} takes the gripper")  # fmt: skip
        out.set("gripper_action", GRIPPERS[server.kind], f"of {', '.join(server.nodes)}")
        out.remappings[f"~/{hands[0]}_cmd"] = Value(server.topic, "its action", True)

    # Rates, and what the file names and nobody has

    def _rates(self) -> None:
        out, needs = self._out, self._needs
        if needs is not None and needs.rate_hz:
            out.parameters.pop("action_rate_hz", None)  # the checkpoint says it
        elif needs is not None and not out.value("action_rate_hz") and needs.policy != "zero":
            question = "rate of the demonstrations, Hz"
            if given := self._answers.numbers(question, 1):
                out.set("action_rate_hz", given[0], "your answer")
            else:
                out.missing["action_rate_hz"] = f"{question}: nothing says it"

    def _unseen(self) -> None:
        """Mark the topics of the robot's file that the running graph does not have."""
        if not (self._seen.cameras or self._seen.joints or self._seen.controllers):
            return
        there = {one.topic for part in (self._seen.cameras, self._seen.joints,
                                        self._seen.controllers) for one in part}  # fmt: skip
        text = "it is not in the running graph"
        for old, one in self._out.remappings.items():
            if one.value not in there and old != "instruction" and text not in one.why:
                self._out.remappings[old] = Value(one.value, f"{text}; {one.why}", True)
        for name, one in self._out.parameters.items():
            if re.fullmatch(r"cameras\.\w+\.topic", name) and one.value and one.value not in there:
                self._out.parameters[name] = Value(one.value, f"{text}; {one.why}", True)


# Small parts


def _described(seen: SeenGraph) -> dict[str, DescribedJoint]:
    try:
        return read_joints(seen.description) if seen.description else {}
    except ValueError:
        return {}


def commented(robot: RobotFile, values: Mapping[str, Any]) -> dict[str, Value]:
    """Values of a robot file with the comments of their lines, ? first where they are doubtful."""
    lines = read_text(robot.path).splitlines()
    found = {}
    for name, value in values.items():
        number = line_of(name, robot.path)
        comment = re.search(r"\s#\s*(.*)$", lines[number - 1]) if number else None
        text = comment[1].strip() if comment else ""
        why = text.removeprefix("?").strip() or f"robots/{robot.path.name}"
        found[name] = Value(value, why, text.startswith("?"))
    return found


def roles_of(cameras: Sequence[str]) -> dict[str, str]:
    """Role -> a checkpoint's camera: one at the hand is the wrist's, the first other one the main
    one, the others are called as they are."""
    hands = [name for name in cameras if at_the_hand(name)]
    main = next((name for name in cameras if name not in hands), cameras[0])
    wrist = next((name for name in hands if name != main), None)
    if wrist is None and len(cameras) == 2:
        wrist = next(name for name in cameras if name != main)
    special = {main: "main", wrist: "wrist"}
    return {special.get(name) or re.sub(r"\W", "_", name): name for name in cameras}


def at_the_hand(name: str) -> bool:
    """True of names that people give to a wrist's camera."""
    return any(word in name.lower() for word in _AT_THE_HAND)


def round_rate(hz: float) -> float:
    """A measured rate as its driver was set, where it is near: 29.4 Hz is 30."""
    near = min(_RATES, key=lambda rate: abs(rate - hz))
    return float(near) if abs(near - hz) <= 0.1 * near else round(hz, 1)


def _late(camera: SeenCamera) -> str:
    if camera.width and not -0.05 < camera.late_s < LATE_S:
        return f"; its stamps are {camera.late_s:.3g} s old"
    return "" if camera.width else "; no image was read"
