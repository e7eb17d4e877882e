"""`vla-ros check`: which convention is wrong, before a motor moves."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from vla_ros.cli.arguments import Verbs, add_fields, add_flag, add_verb, require_rosbags
from vla_ros.core.console import Progress, Table, print_json, show
from vla_ros.core.errors import UserError, user_errors
from vla_ros.engine.options import HERE, EngineOptions
from vla_ros.policies.base import PolicyRefused, PolicySpec

if TYPE_CHECKING:
    from vla_ros.core.types import Floats
    from vla_ros.data.check.recording import Recording
    from vla_ros.data.check.report import CheckReport
    from vla_ros.policies.base import Policy

DESCRIPTION = """\
Ask a checkpoint about recorded frames and say which convention is wrong, before a motor moves: a
camera upside down, red and blue exchanged, the sign or the offset of a joint, the gripper's side,
degrees for radians, a frame that is turned, images that are late.

DATA are bags of one robot (the observations that the policy is to have, and the commands that a
person, or another policy, gave), or one LeRobotDataset; or --live, of a robot that a person drives
meanwhile. Every repair on a list is tried on a few
dozen frames; the one that restores the error is named, with the parameter of the policy node to
set. Nothing of it moves anything, and no ROS is needed but for --live, --robot and --contract."""

EPILOG = """\
examples:
  vla-ros check /models/mine bag1 bag2
  vla-ros check /models/mine data/set --robot robot.yaml --html check.html
  vla-ros check shipped:tabletop-flow run1 --write fix.yaml --json
  vla-ros check /models/mine --live 60 -r policy/action=/teleop/joints --instruction "pick it up"

An error of 0 is the recorded action; a policy that always gives the mean action has 0.5, and 1 more
where the gripper is the other way round.

exit status: 0 the policy does what the data do, 1 something is wrong, 2 it cannot be told, wrong
usage or data that cannot be read"""

#: Parameters of a recorded run that say how its observations are made, whichever policy it ran.
_OBSERVING = ("state_layout", "joint_names", "camera_roles")


def add_parser(verbs: Verbs) -> None:
    """The options of this verb."""
    parser = add_verb(verbs, "check", DESCRIPTION, EPILOG)
    add = parser.add_argument
    add("checkpoint", metavar="CHECKPOINT", help="a folder, a hub id, shipped:..., or a server's"
        " ws:// address")  # fmt: skip
    add("data", type=Path, nargs="*", metavar="DATA", help="bags, or one LeRobotDataset")
    add("--live", type=float, metavar="S",
        help="record the running graph for so long, while a person drives it")  # fmt: skip
    add("--out", type=Path, metavar="DIR", help="keep the bag of --live here")
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--robot", type=Path, metavar="FILE", help="the policy node's parameter file"
    )
    group.add_argument("--contract", type=Path, metavar="FILE", help="the robot's contract")
    add("-r", "--remap", action="append", default=[], metavar="ROLE=TOPIC",
        help="what a topic is called in the bags, as of `vla-ros export`")  # fmt: skip
    add("--camera", action="append", default=[], metavar="ROLE=NAME",
        help="a camera of the data by its role (main, wrist, ...); may be repeated")  # fmt: skip
    add("--policy", default="", metavar="NAME", help="lerobot (in its own Python, for folders that"
        " only LeRobot loads), or an installed package's (vla; remote for an address)")  # fmt: skip
    add("--instruction", metavar="TEXT", help="the task, instead of the data's own")
    add("--fps", type=int, default=0, metavar="N", help="rows a second (the data's own)")
    add("--frames", type=int, default=24, metavar="N", help="frames to ask about (24)")
    add("--budget", type=float, default=120.0, metavar="S", help="longest search, in s (120)")
    add_fields(parser, EngineOptions, "device", "dtype", "unnorm_key", "num_threads", **HERE)
    add("--html", type=Path, metavar="FILE", help="write the report as a page")
    add("--write", type=Path, metavar="FILE", help="write the repair as a parameter file")
    add_flag(parser, "--json")


def run(args: argparse.Namespace) -> int:
    """Check; returns the exit status."""
    if not 4 <= args.frames <= 1000:
        raise UserError(f"--frames {args.frames}: give 4 to 1000")
    if not args.budget > 0:
        raise UserError(f"--budget {args.budget:g}: must be above 0 seconds")
    if bool(args.data) == (args.live is not None):
        raise UserError("give DATA (bags, or one LeRobotDataset), or --live SECONDS")
    if args.out is not None and args.live is None:
        raise UserError("--out keeps the bag of --live: give --live SECONDS")
    robot = _robot(args)
    with Progress() as progress, ExitStack() as until:
        progress.update("check", f"loading {args.checkpoint}")
        report = _checked(args, robot, progress, until)
    _show(report)
    if args.html is not None:
        from vla_ros.viz.check_page import page

        args.html.write_text(page(report), encoding="utf-8")
    if args.write is not None:
        _write(args.write, report, robot)
    if args.json:
        print_json(report.json())
    return report.status


# The robot: parameters of the policy node from a file or a contract.


def _robot(args: argparse.Namespace) -> dict[str, Any]:
    """Parameters of the policy node that were given. UserError."""
    if args.contract is not None:
        from vla_ros.ros.bringup.contract import read_contract

        return dict(read_contract(args.contract).parameters)
    if args.robot is None:
        return {}
    from vla_ros.core.yaml_files import read_yaml
    from vla_ros.engine.io import lock
    from vla_ros.ros.bringup.graph_file import flatten
    from vla_ros.ros.common.parameter_files import matches, sections

    lock.use_beside(args.robot)
    content = read_yaml(args.robot)
    found: dict[str, Any] = {}
    for pattern, values in sections(content if isinstance(content, dict) else {}):
        if matches(pattern, "/policy"):
            found |= flatten(values)
    if not found:
        raise UserError(f"{args.robot} has no parameters of the node policy: policy:"
                        " {ros__parameters: {...}}")  # fmt: skip
    return found


def _spec(args: argparse.Namespace, robot: Mapping[str, Any]) -> PolicySpec:
    """The policy to ask. UserError."""
    remote = args.checkpoint.startswith(("ws://", "wss://", "tcp://"))
    name = args.policy or ("remote" if remote else "vla")
    own = {one: getattr(args, one) for one in ("device", "dtype", "unnorm_key", "num_threads")}
    if not robot:
        return PolicySpec(name, EngineOptions(args.checkpoint, **own))
    default = {one: HERE.get(one, getattr(EngineOptions(), one)) for one in own}
    own = {one: value for one, value in own.items() if value != default[one]}
    from vla_ros.ros.common.parameter_files import is_known, nearest
    from vla_ros.ros.nodes.policy.parameters import TABLE, camera_rows
    from vla_ros.ros.nodes.policy.settings import spec_of

    values: dict[str, Any] = {row.name: row.default for row in TABLE}
    values |= {"camera_roles": robot.get("camera_roles", [""])}
    with user_errors(ValueError):
        values |= {row.name: row.default for row in camera_rows(values)}
    if strange := [name for name in robot if not is_known(name, values)]:
        raise UserError(f"the policy node has no parameter {strange[0]!r}"
                        f"{nearest(strange[0], values)}")  # fmt: skip
    values |= {**robot, "policy": name, "checkpoint": args.checkpoint, **own}
    with user_errors(ValueError, PolicyRefused):
        return spec_of(values)


# The data


@dataclass(frozen=True, slots=True)
class _Needs:
    """What the policy takes of a recording."""

    state: int
    horizon: int


def _recording(
    args: argparse.Namespace, robot: Mapping[str, Any], needs: _Needs, progress: Progress
) -> Recording:
    """The recorded frames, with the state as the policy takes it. UserError."""
    from vla_ros.data.check.recording import state_of
    from vla_ros.data.lerobot.dataset import is_dataset

    sets = [path for path in args.data if is_dataset(path)]
    if sets and len(args.data) > 1:
        raise UserError("give bags, or one LeRobotDataset: several are not read side by side")
    read = _of_set if sets else _of_bags
    recording, observed = read(args, needs, progress)
    settings = {**observed, **{n: robot[n] for n in _OBSERVING if n in robot}}
    return state_of(
        recording,
        settings.get("state_layout", "joints"),
        [name for name in settings.get("joint_names", ()) if name],
        needs.state,
    )


def _of_bags(
    args: argparse.Namespace, needs: _Needs, progress: Progress
) -> tuple[Recording, dict[str, Any]]:
    require_rosbags()
    from vla_ros.data.bag_frames import parse_remaps
    from vla_ros.data.bags import Bag
    from vla_ros.data.check.recording import record, roles_of
    from vla_ros.data.lerobot.from_bags import BagOptions, Bags
    from vla_ros.data.lerobot.streams import ROLES

    given = _cameras(args)
    topics = {role: name for role, name in given.items() if name.startswith("/")}
    options = BagOptions(parse_remaps(args.remap, ROLES), topics, args.instruction, fps=args.fps)
    with Bag(args.data[0]) as first:
        run = first.run.parameters.get("policy", {}) if first.run else {}
    observed = {name: run[name] for name in _OBSERVING if name in run}
    with Bags(args.data, options) as bags:
        columns = bags.columns()
        for note in bags.notes():
            progress.say(note)
        numbers = {one.name: one.names for one in columns.numbers}
        roles = roles_of(
            tuple(columns.cameras), {r: n for r, n in given.items() if r not in topics}
        )
        recording = record(
            ", ".join(str(path) for path in args.data), float(columns.fps), bags.rows(), len(bags),
            args.frames, numbers["action"], numbers.get("observation.state", ()), roles,
            needs.horizon,
        )  # fmt: skip
    return recording, observed


def _of_set(
    args: argparse.Namespace, needs: _Needs, progress: Progress
) -> tuple[Recording, dict[str, Any]]:
    from vla_ros.data.check.recording import record, roles_of
    from vla_ros.data.lerobot.dataset import ACTION, STATE, Reader, python_of, short

    (path,) = args.data
    with Reader(python_of(), path) as reader:
        features = reader.info.features
        cameras = [name for name, one in features.items() if one.image]
        if ACTION not in features or not cameras:
            raise UserError(f"{path} has no {'cameras' if ACTION in features else ACTION}")
        wanted = (*cameras, ACTION, *([STATE] if STATE in features else []))
        roles = roles_of([short(name) for name in cameras], _cameras(args))
        state = _names(features[STATE]) if STATE in features else ()
        rows = reader.rows(wanted)
        if args.instruction is not None:
            rows = (replace(row, task=args.instruction) for row in rows)
        recording = record(
            str(path), float(args.fps or reader.info.fps), rows, reader.info.frames, args.frames,
            _names(features[ACTION]), state, roles, needs.horizon,
        )  # fmt: skip
    return recording, {}


def _names(feature: Any) -> tuple[str, ...]:
    """Names of a feature's numbers; by their places where the set has none."""
    count = feature.shape[0]
    return feature.names if len(feature.names) == count else tuple(map(str, range(count)))


def _cameras(args: argparse.Namespace) -> dict[str, str]:
    found = {}
    for item in args.camera:
        role, equals, name = item.partition("=")
        if not (role and equals and name):
            raise UserError(f"--camera {item}: write ROLE=NAME, such as main=front")
        found[role] = name
    return found


def _live(
    args: argparse.Namespace, robot: Mapping[str, Any], needs_state: bool, temporary: Path
) -> Path:
    """A bag of the running robot, whose topics are those of the options, or of the robot's own
    parameters. UserError."""
    require_rosbags()
    from vla_ros.data.bag_frames import parse_remaps
    from vla_ros.data.lerobot.streams import ROLES
    from vla_ros.ros.bringup.live_bag import record_live

    named = {"policy/action": robot.get("shadow_topic")}
    for role, camera in (("image", "main"), ("wrist_image", "wrist")):
        if topic := robot.get(f"cameras.{camera}.topic"):
            transport = robot.get(f"cameras.{camera}.transport", robot.get("image_transport"))
            named[role] = topic + "/compressed" * (transport == "compressed")
    items = [f"{role}={topic}" for role, topic in named.items() if topic]
    args.remap = [*items, *args.remap]  # the last of a role counts
    remaps = parse_remaps(args.remap, ROLES)
    needs = {"image", "policy/action"}
    needs |= {"joint_states"} if needs_state else set()
    needs |= {"instruction"} if args.instruction is None else set()
    cameras = [name for name in _cameras(args).values() if name.startswith("/")]
    return record_live(args.live, args.out or temporary / "live", remaps, cameras, needs)


# The check


def _checked(
    args: argparse.Namespace, robot: Mapping[str, Any], progress: Progress, until: ExitStack
) -> CheckReport:
    """The report; what was made for it goes with ``until``. UserError."""
    from vla_ros.data.check.asking import STEPS, Asker
    from vla_ros.data.check.diagnosis import Search
    from vla_ros.data.check.hypotheses import all_of
    from vla_ros.data.check.report import CheckReport, figures
    from vla_ros.data.check.sensitivity import sensitivities
    from vla_ros.data.check.static import LOOK, Finding, findings, refuse_width
    from vla_ros.data.check.texts import trained_texts

    spec = _spec(args, robot)
    policy = _loaded(spec, until)
    info = policy.info
    needs = _Needs(info.state_dim, 2 * STEPS)
    if args.live is not None:
        progress.update("check", f"recording {args.live:g} s: drive the robot through the task")
        temporary = until.enter_context(TemporaryDirectory(prefix="vla_ros_check_"))
        args.data = [_live(args, robot, bool(info.state_dim), Path(temporary))]
    recording = _recording(args, robot, needs, progress)
    refuse_width(recording, info.action_space)
    ends = _ends(spec, info.action_space.width)
    trained, unread = trained_texts(args.checkpoint)
    seen = findings(recording, info, ends, trained)
    seen += [Finding(LOOK, unread)] if unread else []
    used = ["main", *(["wrist"] if info.cameras == 2 else []), *info.camera_roles]
    asker = Asker(policy, recording.seen_by(used))
    hypotheses = all_of(asker.recording, info.action_space, info.chunk_length, info.state_middle)

    def shown(text: str, done: int, total: int) -> None:
        progress.update("check", text, done, total)

    with user_errors(PolicyRefused):
        diagnosis = Search(asker, hypotheses, args.budget, shown).run()
        sensitive = sensitivities(asker, used)
        return CheckReport(
            args.checkpoint, recording, info, tuple(seen), diagnosis, tuple(sensitive),
            figures(asker, diagnosis), spec.adaptation,
        )  # fmt: skip


def _loaded(spec: PolicySpec, until: ExitStack) -> Policy:
    """The policy; one that this Python cannot load runs in a worker, which ends with ``until``."""
    from vla_ros.core.clock import SystemClock
    from vla_ros.policies.load import load_policy, worker_python

    with user_errors(PolicyRefused):
        if worker_python(spec) is None:
            return load_policy(spec)
        from vla_ros.runtime.worker.asked import WorkerPolicy

        policy = WorkerPolicy(spec, SystemClock())
        until.callback(policy.close)
        return policy


def _ends(spec: PolicySpec, width: int) -> Sequence[Floats]:
    """The least and the greatest action of the checkpoint's data in the robot's units; () where
    nothing says them, or its own units are not the robot's."""
    if spec.name != "vla" or spec.action_units:
        return ()
    import numpy as np

    from vla_ros.policies.conventions import settle

    with user_errors(PolicyRefused):
        used, _ = settle(spec)
    ends = [np.array(end, np.float64) for end in (used.data.low, used.data.high)]
    if any(len(end) != width for end in ends):
        return ()
    scale = np.ones(width)
    if width == 7:
        scale[:6] = used.action_scale
    return [end * scale for end in ends]


# What is said


def _show(report: CheckReport) -> None:
    for finding in report.findings:
        show(f"{'WRONG' if finding.level == 'wrong' else 'look '}  {finding.line}")
    show(Table(("tried", "error"), report.rows(), left=()))
    for line in report.lines():
        show(line)


def _write(path: Path, report: CheckReport, robot: Mapping[str, Any]) -> None:
    """Write the repair as a parameter file of the policy node, to be given behind the robot's own.
    UserError: there is none."""
    parameters = report.parameters
    if not parameters:
        raise UserError(f"--write {path}: there is no parameter to set")
    import yaml

    content = {"policy": {"ros__parameters": parameters}}
    head = f"# {report.checkpoint} on {report.recording.name}: `vla-ros check`\n"
    if anew := [name for name in parameters if name in robot]:
        head += f"# behind the robot's own file, which has {', '.join(anew)} already\n"
    path.write_text(head + yaml.safe_dump(content, sort_keys=True), encoding="utf-8")
