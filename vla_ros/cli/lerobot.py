"""`vla-ros lerobot`: LeRobot's environment, and a look at one of its checkpoints."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from vla_ros.cli.arguments import Verbs, add_verb
from vla_ros.cli.doctor import Check, fail, line, ok, warn
from vla_ros.core.clock import SystemClock
from vla_ros.core.console import Table, show
from vla_ros.data.lerobot.dataset import python_of
from vla_ros.data.lerobot.older import upgrade
from vla_ros.engine.options import EngineOptions
from vla_ros.policies import PolicyRefused, PolicySpec
from vla_ros.policies.lerobot import checkpoint, environment
from vla_ros.policies.lerobot.checkpoint import Features
from vla_ros.policies.load import lerobot_folder
from vla_ros.runtime.worker.executor import Executor
from vla_ros.runtime.worker.wire import WorkerLimits

DESCRIPTION = """\
Run LeRobot's own policies: set up its environment, look at a checkpoint.

setup makes a virtual environment with the versions that LeRobot needs, which exclude ours, and
tries it. `policy: lerobot` finds it there. About 5 GB with torch's CUDA libraries.
check loads FOLDER in that environment as a policy node would, every weight compared, and prints
what the checkpoint wants beside what is offered.
upgrade makes v3.0 of a data set of LeRobot's format v2.1, by LeRobot's own code; SET stays."""

EPILOG = """\
examples:
  vla-ros lerobot setup                                 into ~/.cache/vla_ros/lerobot
  vla-ros lerobot setup --dir ~/lerobot --python python3.13
  vla-ros lerobot setup --index https://download.pytorch.org/whl/cpu     torch without CUDA
  vla-ros lerobot check outputs/train/checkpoints/last/pretrained_model
  vla-ros lerobot upgrade data/old --out data/new

exit status: 0 it runs, 1 it does not, 2 wrong usage, or something is missing"""


def add_parser(verbs: Verbs) -> None:
    """The options of this verb."""
    parser = add_verb(verbs, "lerobot", DESCRIPTION, EPILOG)
    what = parser.add_subparsers(dest="what", metavar="setup|check|upgrade", required=True)
    add = what.add_parser("setup", help="make the environment and try it").add_argument
    add("--dir", type=Path, help="where (~/.cache/vla_ros/lerobot)")
    add("--python", default="", help="a Python 3.12 or 3.13 (the first that is found)")
    add("--index", action="append", default=[], metavar="URL", help="a package index besides pip's")
    add = what.add_parser("check", help="load a checkpoint strictly").add_argument
    add("folder", type=Path, metavar="FOLDER", help="as LeRobot saved it")
    add("--python", default="", help="LeRobot's interpreter (that of setup)")
    add("--device", default="cpu", help="torch device (cpu)")
    add("--cameras", default="", help="'top=main left=wrist right=none' (by their names)")
    add("--gripper", default="", metavar="CLOSED..OPEN", help="what its actions have for a closed"
        " and an open gripper, such as 0..100")  # fmt: skip
    add = what.add_parser("upgrade", help="make v3.0 of a data set of v2.1").add_argument
    add("set", type=Path, metavar="SET", help="a folder on this machine")
    add("--out", type=Path, required=True, metavar="DIR", help="folder to make")
    add("--python", default="", help="LeRobot's interpreter (that of setup)")


def run(args: argparse.Namespace) -> int:
    """Set up, check or upgrade; returns the exit status."""
    if args.what == "upgrade":
        upgrade(python_of(args.python), args.set.expanduser(), args.out.expanduser())
        print(line(ok("upgrade", f"{args.out}")))
        return 0
    return _setup(args) if args.what == "setup" else _check(args)


def _setup(args: argparse.Namespace) -> int:
    for check in _steps(args):
        print(line(check), flush=True)
    return 0


def _steps(args: argparse.Namespace) -> Iterator[Check]:
    folder = (args.dir or lerobot_folder()).expanduser().absolute()
    python = str(environment.interpreter_of(folder))
    if not Path(python).is_file():
        python = environment.find_python(args.python)
    yield ok("Python", python)
    environment.create(folder, python)
    yield ok("folder", str(folder))
    fresh = environment.install(folder, args.index)
    yield ok("packages", "installed" if fresh else "as they are wanted")
    yield ok("trial", environment.trial(folder))
    if folder != lerobot_folder():
        yield ok("use it", f"worker_python: {environment.interpreter_of(folder)}")


def _check(args: argparse.Namespace) -> int:
    folder = args.folder.expanduser()
    try:
        features = checkpoint.read_features(folder)
        more = _more_roles(features, args.cameras)
        show(Table(("wanted", "offered", "parameter"), _rows(features, args.cameras, more)))
        engine = EngineOptions(
            str(folder), device=args.device, camera_map=args.cameras, camera_roles=more
        )
        spec = PolicySpec("lerobot", engine, worker_python=args.python, gripper=args.gripper)
        executor = Executor(spec, SystemClock(), WorkerLimits(), lambda _: None, lambda _: None)
        ready = executor.start(timeout_s=1800.0)
    except PolicyRefused as error:
        print(line(fail("load", str(error), "")))
        return 1
    executor.close(2.0)
    info = ready.info
    print(line(ok("load", f"{info.decoding}, {info.dtype}, every weight is the file's")))
    print(line(ok("act", f"{info.chunk_length} actions in {ready.inference_p50_ms:.0f} ms (p50)")))
    if info.contradiction:
        print(line(warn("actions", info.contradiction, "")))
    return 0


def _more_roles(features: Features, cameras: str) -> tuple[str, ...]:
    """Roles beside main and wrist: those of --cameras, else one for each further camera."""
    if cameras:
        roles = dict.fromkeys(pair.partition("=")[2] for pair in cameras.split())
        return tuple(role for role in roles if role not in ("main", "wrist", "none"))
    return tuple(one.name.removeprefix(checkpoint.IMAGES) for one in features.cameras[2:])


def _rows(
    features: Features, cameras: str, more: tuple[str, ...]
) -> Iterator[tuple[str, str, str]]:
    """Rows of the table: a feature of the checkpoint, its role here, and the parameter for it."""
    found = checkpoint.cameras_of(features, cameras, more)
    roles = {camera: role for role, camera in found.items()}
    for camera in features.cameras:
        role = roles.get(camera, "absent")
        yield str(camera), role, f"cameras.{role}.topic"
    if features.state_dim:
        yield f"{checkpoint.STATE} [{features.state_dim}]", "robot state", "joint_names"
    names = " ".join(features.action_names) or "no names"
    yield f"{checkpoint.ACTION} [{features.action_dim}]", names, "action_units"
