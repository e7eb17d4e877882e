"""`vla-ros eval`: success over many episodes, with intervals, a report, and resumable."""

from __future__ import annotations

import argparse
import functools
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_ros.cli.arguments import (
    FLAGS,
    Verbs,
    adaptation_words,
    add_conventions,
    add_fields,
    add_verb,
    scale_of,
    words_of,
)
from vla_ros.cli.defaults import (
    CHECKPOINT,
    DRAFT_CHECKPOINT,
    default_checkpoint,
    refuse_unreadable,
)
from vla_ros.core.action_space import END_EFFECTOR_DELTA
from vla_ros.core.console import Progress, error, json_text, print_json, show
from vla_ros.core.errors import UserError, user_errors
from vla_ros.core.extensions import LAB, REPORTS, extension
from vla_ros.data.episodes.beside import (
    SUMMARY,
    ComparedEvaluation,
    EarlierEvaluation,
    judged,
    read_before,
    read_beside,
)
from vla_ros.data.episodes.records import Job, Setup, Variant
from vla_ros.data.episodes.rows import Successes
from vla_ros.data.episodes.variants import Choices
from vla_ros.engine.options import AUTO, REFERENCES, EngineOptions
from vla_ros.ros.bringup.view import NODE as VIEW
from vla_ros.ros.bringup.view import PageVisitors, view_node
from vla_ros.sim.episode import Mode

if TYPE_CHECKING:
    from vla_ros.core.action_space import ActionSpace
    from vla_ros.data.episodes.plan import Plan
    from vla_ros.data.episodes.play import EpisodeOrder, MakeRunner, PlayedEpisode, Runner
    from vla_ros.data.episodes.store import Store
    from vla_ros.policies.conventions import Conventions

MARGIN = 0.05  # of --promote

DESCRIPTION = """\
Play many episodes of many tasks and say how often the policy succeeds, with 95 % Wilson
intervals: through the ROS graph, or straight on the policy (--no-ros), in lock-step the same to
the last bit. Every variant (decoding, drafter, acceptance, delay, replan interval) plays the same
episodes; the same options give the same initial states. An episode that breaks counts as failed.

Stopped at any moment, the same command with the same --out goes on. DIR holds run.json,
episodes.jsonl (a line an episode), summary.json, and report.html where the lab is installed."""

EPILOG = """\
examples:
  vla-ros eval --policy scripted --no-ros --episodes 5
  vla-ros eval --episodes 20 --no-ros --workers 4 --out runs/eval
  vla-ros eval --decoding autoregressive,speculative,actionflow --tasks reach push
  vla-ros eval --decoding speculative --relaxed-distance 1,2,3,5,8,15 --no-ros
  vla-ros eval --episodes 2 --mode realtime --view
  vla-ros eval --control-rate 100 --no-ros --policy scripted
  vla-ros eval --checkpoint DIR --mode realtime --image-delay-ms 0,50,100,200
  vla-ros eval --env libero --suite libero_object --checkpoint openvla/... --device cuda:0
  vla-ros eval --checkpoint runs/new/policy --against runs/eval-old --promote policies/current
  vla-ros eval --suite libero_object_swap --policy scripted --no-ros --beside runs/object

exit status: 0 all episodes were played (successful or not), 1 a variant cannot be played,
2 wrong usage, 3 fewer solved than --against, or not promoted, 130 interrupted (to be
continued)"""


#: flags that are fields of the setup: for every policy, and for one with a model
SHARED = ("suite", "policy", "seed", "image_size", "max_steps", "max_age_s", "nudge_m",
          "control_rate_hz")  # fmt: skip
OF_MODEL = ("checkpoint", "device", "dtype", "weights", "unnorm_key", "embodiment")


def add_parser(verbs: Verbs) -> None:
    """The options of this verb."""
    parser = add_verb(verbs, "eval", DESCRIPTION, EPILOG)
    _what(parser.add_argument_group("what is played"))
    _policy(parser.add_argument_group("the policy"))
    _variants(parser.add_argument_group("variants; lists are joined by commas"))
    _how(parser.add_argument_group("how"))


def _what(group: Any) -> None:
    add = group.add_argument
    add_fields(group, Setup, "environment", "suite", environment=None)
    add("--tasks", nargs="+", default=[], metavar="NAME", help="tasks or families (all)")
    add("--episodes", type=int, default=20, metavar="N", help="of every task and variant (20)")
    add_fields(group, Setup, "seed")
    add("--mode", choices=[mode.value for mode in Mode], default="lockstep",
        help="realtime: the world does not wait")  # fmt: skip
    add("--instruction", default="", metavar="TEXT", help="instead of each task's own")
    add_fields(group, Setup, "control_rate_hz", "nudge_m", "max_steps")


def _policy(group: Any) -> None:
    add = group.add_argument
    add_fields(group, Setup, "policy")
    add("--checkpoint", metavar="C", help=f"vla: directory or hub id ({CHECKPOINT})")
    add_fields(group, EngineOptions, *OF_MODEL[1:], "preprocessing", "num_threads",
               num_threads=None)  # fmt: skip
    add_conventions(group)
    add("--engine-option", action="append", default=[], metavar="NAME=VALUE", help="vla: of the"
        " engine's others, such as state_normalization=identity; may be given again")  # fmt: skip
    add_fields(group, Setup, "max_age_s")


def _variants(group: Any) -> None:
    add_fields(group, Choices, "decoding", "drafter")
    add_fields(group, EngineOptions, "draft_checkpoint")
    add_fields(group, Choices, "acceptance", "relaxed_distance")
    add_fields(group, Choices, "replan_interval", "execution", "rtc_mode", "delay_frames",
               "image_delay_ms")  # fmt: skip


def _how(group: Any) -> None:
    add = group.add_argument
    add("--no-ros", action="store_true", help="lock-step straight on the policy, without ROS")
    add("--workers", type=int, default=1, metavar="N", help="lock-step: processes (1)")
    add(
        "--ray",
        default="",
        metavar="ADDRESS",
        help="lock-step: on a Ray cluster (auto,"
        " HOST:PORT, ray://...), a CPU and on cuda a GPU an episode; --workers: the most at once",
    )
    add("--batched", action="store_true", help="with --no-ros: the policy is loaded once, and"
        " answers the episodes of all workers together")  # fmt: skip
    add_fields(group, Setup, "image_size")
    add("--out", type=Path, metavar="DIR", help="the evaluation's directory (runs/eval-TIME)")
    add("--beside", nargs="+", type=Path, default=[], metavar="DIR", help="finished evaluations of"
        " this policy, whose success stands beside: base against perturbed")  # fmt: skip
    add("--against", type=Path, metavar="DIR", help="an evaluation of the checkpoint before: the"
        " same episodes are counted one by one (McNemar)")  # fmt: skip
    add("--promote", type=Path, metavar="LINK", help="make this link name the checkpoint, unless"
        " it solves fewer than --against, or too few episodes show that it does not")  # fmt: skip
    add("--margin", type=float, default=MARGIN, metavar="X", help="--promote: it may solve this"
        f" share fewer, with 95 %% confidence ({MARGIN:g}: 52 episodes or more)")  # fmt: skip
    add("--keep-tokens", action="store_true", help="keep the policy's tokens of every frame,"
        " an .npz an episode in DIR/tokens (vla-ros coverage reads them)")  # fmt: skip
    add("--view", action="store_true", help="show the graph in the browser while it plays")
    add("--json", **FLAGS["--json"])


def check(args: argparse.Namespace) -> None:
    """Raise UserError for options that contradict each other."""
    realtime = args.mode == "realtime"
    model_options = {
        "checkpoint": args.checkpoint,
        "embodiment": args.embodiment,
        "action-units": args.action_units,
        "action-scale": args.action_scale,
        "gripper": args.gripper,
        "adapt": args.adapt,
        "engine-option": args.engine_option,
        "decoding": args.decoding,
        "relaxed-distance": args.relaxed_distance,
        "draft-checkpoint": args.draft_checkpoint,
    }
    if args.policy != "vla":
        for name, value in model_options.items():
            if value:
                raise UserError(f"--{name} needs --policy vla, not {args.policy}")
    elif not args.checkpoint:
        if environment_of(args) != "tabletop":  # the shipped ones know nothing else
            where = environment_of(args)
            raise UserError(f"--env {where} needs --checkpoint: a directory or a hub id")
        args.checkpoint = default_checkpoint(args.decoding or [])
    if args.suite and args.environment in ("tabletop", "so101"):
        raise UserError("--suite belongs to --env libero")
    if realtime and args.no_ros:
        raise UserError("--no-ros is lock-step: real time is measured through the ROS graph")
    if realtime and (args.workers > 1):
        raise UserError("--workers is for lock-step: in real time episodes that share"
                        " a machine slow each other down")  # fmt: skip
    if realtime and any(args.delay_frames):
        raise UserError("--delay-frames is lock-step: in real time use --image-delay-ms")
    if not realtime and any(args.image_delay_ms):
        raise UserError("--image-delay-ms is real time: in lock-step use --delay-frames")
    if args.batched:
        _check_batched(args)
    if args.promote and not (args.against and args.policy == "vla"):
        raise UserError("--promote judges a checkpoint by the one before: give --against")
    if not 0.0 < args.margin < 1.0:
        raise UserError(f"--margin {args.margin:g}: a share of the episodes, above 0 and below 1")
    if args.promote and args.promote.exists() and not args.promote.is_symlink():
        raise UserError(f"--promote {args.promote}: is there, and is no link: nothing is replaced")
    if args.view:
        _check_view(args)
    if args.ray and (realtime or not args.no_ros or args.batched or args.view):
        raise UserError("--ray plays lock-step episodes straight on the policy: with --no-ros,"
                        " without --batched and --view")  # fmt: skip
    if min(args.workers, args.episodes) < 1:
        raise UserError("--workers and --episodes must be at least 1")
    if args.max_steps < 0 or (args.num_threads is not None and args.num_threads < 1):
        raise UserError("--max-steps must be 0 or more, --num-threads at least 1")
    if any(r < 1 or r > 255 for r in args.relaxed_distance):
        raise UserError("--relaxed-distance: distances are 1 to 255 bins")


def _check_batched(args: argparse.Namespace) -> None:
    if args.policy != "vla" or not args.no_ros:
        raise UserError("--batched is for --policy vla with --no-ros: a model answers many")
    if args.workers < 2:
        raise UserError("--batched answers the episodes of several --workers together: give 2 or"
                        " more")  # fmt: skip
    if any(args.delay_frames) or any(word in REFERENCES for word in args.decoding or []):
        raise UserError("--batched has neither --delay-frames nor reference decodings")


def _check_view(args: argparse.Namespace) -> None:
    if args.no_ros:
        raise UserError("--view shows a running graph, and with --no-ros there is none")
    if args.workers > 1:
        raise UserError("--view shows one graph: without --workers")
    view_node(simulated=False)  # raises where viser is missing


def setup_of(args: argparse.Namespace) -> Setup:
    """Setup that all episodes share, from the options. Raises UserError."""
    model = args.policy == "vla"
    given = {name: getattr(args, name) for name in (*SHARED, *(OF_MODEL if model else ()))}
    with user_errors(ValueError):
        return Setup(
            environment=environment_of(args),
            mode=Mode(args.mode),
            route="direct" if args.no_ros else "ros",
            num_threads=args.num_threads or _threads(args.mode),
            engine_options=tuple(args.engine_option),
            action_units=words_of(args.action_units),
            action_scale=scale_of(args.action_scale),
            gripper=args.gripper,
            adaptation=adaptation_words(args),
            **({"preprocessing": args.preprocessing} if model else {}),
            **given,
        )


def environment_of(args: argparse.Namespace) -> str:
    """The environment's name; a suite is LIBERO's."""
    return str(args.environment or ("libero" if args.suite else "tabletop"))


def completed(setup: Setup) -> Setup:
    """Setup with the conventions of its checkpoint, which is read. Raises UserError."""
    if setup.policy != "vla":
        return setup
    try:
        from vla_ros.data.episodes.play import parse_words
        from vla_ros.engine.formats import parse_formats
        from vla_ros.engine.layers.devices import usable_device
        from vla_ros.engine.load import refuse_weights, sha256_on_disk
        from vla_ros.engine.verdicts import settled
        from vla_ros.policies.conventions import conventions_of
        from vla_ros.sim.libero.suites import base_of
        from vla_ros.sim.so101 import world as so101
    except ImportError as missing:
        raise UserError(f"{missing}: pip install '.[model]' in the checkout") from missing
    device, checkpoint = str(usable_device(setup.device)), setup.checkpoint
    with user_errors(ValueError):
        options = parse_words(setup.engine_options)
        wanted = EngineOptions(checkpoint, device, setup.dtype, setup.weights)
        dtype = settled(wanted)[0].dtype  # another machine that goes on with it keeps them
        refuse_weights(checkpoint, setup.weights, device, dtype)
        refuse_unreadable(checkpoint, str(options.get("tokenizer", "")))
        suite = base_of(setup.suite)  # no checkpoint is trained on a perturbed one
        space = so101.ACTIONS if setup.environment == so101.NAME else END_EFFECTOR_DELTA
        found = conventions_of(
            checkpoint,
            suite,
            setup.unnorm_key,
            setup.action_scale,
            embodiment=setup.embodiment,
            space=space,
            in_libero=setup.environment == "libero",
        )
        known = "" if checkpoint.startswith("random:") else sha256_on_disk(checkpoint)
        steps = found.preprocessing if setup.preprocessing == AUTO else setup.preprocessing
        found = replace(found, preprocessing=steps)
        return replace(
            setup,
            checkpoint_sha256=known,
            device=device,
            dtype=dtype,
            weights=str(parse_formats(setup.weights)),
            unnorm_key=found.unnorm_key,
            center_crop=found.center_crop,
            preprocessing=steps,
            ungated=setup.environment == "libero",  # the published protocol has no gate
            wrist=found.cameras == 2,
            chunk=found.chunk,
            state=found.state,
            executed=found.data.executed if setup.environment == "libero" else 0,
            **_taken(setup, found, space),
        )


def _taken(setup: Setup, found: Conventions, space: ActionSpace) -> dict[str, Any]:
    """Fields of a setup that say how its policy's actions are read, in this world. UserError."""
    from vla_ros.policies.base import PolicySpec
    from vla_ros.sim.so101 import world as so101

    units = setup.action_units or (so101.ACTION_UNITS if space.kind.joints else ())
    asked = PolicySpec(
        "vla",
        engine=EngineOptions(setup.checkpoint, unnorm_key=setup.unnorm_key),
        action_space=space,
        action_units=units,
        action_scale=setup.action_scale,
        gripper=setup.gripper,
    )
    layout = found.layout(asked)
    rows = (*layout.assumptions, *found.assumptions(asked))
    taken: dict[str, Any] = {
        "conventions": tuple(f"{row.what}: {row.value} ({row.source})" for row in rows),
        "action_units": units,
    }
    if not (units or layout.space.kind.joints):
        taken |= {"action_scale": setup.action_scale or found.action_scale}
    if not layout.space.kind.joints and len(units) < found.width:
        taken |= {"gripper": layout.gripper}
    return taken


def _threads(mode: str) -> int:
    """Threads of the model. Lock-step: one, so that any machine computes the same. Real time: half,
    since the simulation and the control tick need the other CPUs."""
    return 1 if mode == "lockstep" else max(1, len(os.sched_getaffinity(0)) // 2)


def variants_of(args: argparse.Namespace) -> tuple[Variant, ...]:
    """Variants: every combination of the options. Raises UserError."""
    names = {one.name for one in fields(Choices)} - {"draft"}
    draft = DRAFT_CHECKPOINT if args.checkpoint == CHECKPOINT else ""
    chosen = Choices(draft=draft, **{name: getattr(args, name) for name in names})
    return chosen.variants(args.policy, adaptive=args.mode == "realtime", references=args.no_ros)


def plan_of(
    setup: Setup,
    variants: tuple[Variant, ...],
    tasks: Sequence[str],
    episodes: int,
    instruction: str = "",
) -> Plan:
    """Plan of a setup's episodes, whose world and checkpoint are read; ``tasks`` by name or family,
    none: all. Raises UserError."""
    from vla_ros.data.episodes.plan import Plan, select_tasks, world_of

    world = world_of(setup.environment, setup.suite)
    chosen = select_tasks(world.tasks, tasks)
    setup = completed(replace(setup, world=world.versions, note=world.note))
    if setup.executed:
        variants = tuple(
            replace(one, replan_interval=one.replan_interval or setup.executed) for one in variants
        )
    return Plan(setup, variants, chosen, episodes, instruction)


PARTIAL_EVERY_S = 60.0
PARTIAL_SHARE = 30  # writing it takes at most this part of the time, one in so many


def run(args: argparse.Namespace) -> int:
    """Evaluate; returns the exit status, see `vla-ros eval --help`."""
    check(args)
    try:
        from vla_ros.core import origin
        from vla_ros.data.episodes.play import RunnerFailed
        from vla_ros.data.episodes.store import Store
        from vla_ros.runtime.control.goals import check_instruction
    except ImportError as missing:
        raise UserError(f"{missing}; `vla-ros doctor` says what to install") from missing
    with user_errors(ValueError):
        check_instruction(args.instruction)
    variants = variants_of(args)
    plan = plan_of(setup_of(args), variants, args.tasks, args.episodes, args.instruction)
    beside = tuple(read_beside(folder, plan.setup) for folder in args.beside)
    earlier = read_before(args.against, plan.setup, plan.jobs()) if args.against else None
    out = args.out or Path("runs") / time.strftime("eval-%Y%m%d-%H%M%S")
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        origin.code()
        with Store(out, plan.setup, plan.variants, f"vla-ros {shlex.join(sys.argv[1:])}") as store:
            _play_all(args, plan, store, out)
            return _conclude(args, plan.setup, store, out, beside, earlier)
    except RunnerFailed as failed:
        error("vla-ros eval", failed)
        return 1
    except KeyboardInterrupt:
        error("vla-ros eval", f"the same command with --out {out} goes on")
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _play_all(args: argparse.Namespace, plan: Plan, store: Store, out: Path) -> None:
    """Play the jobs without a record, and write each record as it comes."""
    from vla_ros.data.episodes.play import EpisodeOrder, keep
    from vla_ros.data.episodes.store import strip_paths

    jobs = plan.jobs()
    done = store.done
    strips = strip_paths(jobs)
    texts = {task.name: args.instruction or task.instruction for task in plan.tasks}
    left = [job for job in jobs if job.key() not in done]
    orders = [
        EpisodeOrder(job, strips.get(job.key(), ""), texts[job.task], clip=True) for job in left
    ]
    partial = _Partial(plan, store, out)
    with Progress() as progress:
        if plan.setup.note:  # before hours are spent on it
            progress.say(f"note: {plan.setup.note}")
        _show(progress, store, jobs)
        for played in _play(args, plan, orders, progress.say):
            store.add(keep(played, out, args.keep_tokens))
            _show(progress, store, jobs)
            partial.write()


def _play(
    args: argparse.Namespace, plan: Plan, orders: list[EpisodeOrder], say: Callable[[str], None]
) -> Iterator[PlayedEpisode]:
    from vla_ros.data.episodes import parallel
    from vla_ros.data.episodes.play import DirectRunner

    if args.batched:
        from vla_ros.serve.episodes import play_on_one_engine

        return play_on_one_engine(plan.setup, plan.variants, orders, args.workers, say)
    make: MakeRunner = DirectRunner if plan.setup.route == "direct" else graph_runner
    if args.view:
        make = _watched_runner(say)
    if args.ray:
        from vla_ros.data.episodes.cluster import play_on_cluster

        return play_on_cluster(args.ray, make, plan.setup, plan.variants, orders, args.workers)
    return parallel.play(make, plan.setup, plan.variants, orders, args.workers)


def graph_runner(
    setup: Setup, variants: tuple[Variant, ...], watch: Callable[[str, str], None] | None = None
) -> Runner:
    """Runner of episodes through the ROS graph. ``watch`` gets (node, line) of every line that a
    node logs, and the page is served. RunnerFailed: there is no ROS."""
    from vla_ros.data.episodes.play import RunnerFailed

    try:
        from vla_ros.ros.listeners.graph_runner import GraphRunner
    except ImportError as error:
        raise RunnerFailed(f"{error}: without ROS there is --no-ros") from error
    if watch is None:
        return GraphRunner(setup, variants)
    return GraphRunner(setup, variants, on_line=watch, view=True)


def _watched_runner(say: Callable[[str], None]) -> MakeRunner:
    """Runner through the ROS graph with the page in the browser, whose address is printed: each
    graph serves it anew, as a rule at the same one."""
    visitors = PageVisitors()

    def on_line(node: str, line: str) -> None:
        if node == VIEW:
            visitors.read(line)
            if address := visitors.new_address():
                say(f"open {address} in a browser")

    return functools.partial(graph_runner, watch=on_line)


def report_writer() -> Callable[..., Path] | None:
    """Writer of an evaluation's report.html; None: the lab is not installed."""
    return extension(REPORTS, "evaluation")


class _Partial:
    """Report of the episodes so far, written now and then: in a small part of the time, and in real
    time while no episode runs."""

    def __init__(self, plan: Plan, store: Store, out: Path) -> None:
        self._plan, self._store, self._out = plan, store, out
        self._jobs = {job.key() for job in plan.jobs()}
        self._next_s = time.monotonic() + PARTIAL_EVERY_S

    def write(self) -> None:
        """Write the report if it is time, and there is more to come. Records of other variants, of
        an earlier run in the same directory, do not count for this one's end."""
        began_s = time.monotonic()
        if began_s < self._next_s:
            return
        keys = {record.job.key() for record in self._store.records}
        if keys >= self._jobs:
            return
        write = report_writer()
        if write is None:
            return
        store, commands = self._store, "\n".join(self._store.commands)
        total = len(keys | self._jobs)
        write(self._out, self._plan.setup, store.variants, store.records, commands, total)
        took_s = time.monotonic() - began_s
        self._next_s = began_s + max(PARTIAL_EVERY_S, PARTIAL_SHARE * took_s)


def _show(progress: Progress, store: Store, jobs: Sequence[Job]) -> None:
    """Update the line of progress: all episodes, and success of the variant that plays."""
    known = {job.key() for job in jobs}
    records = [record for record in store.records if record.job.key() in known]
    text = "episodes"
    if records:
        label = records[-1].job.variant
        own = Successes.of([record for record in records if record.job.variant == label])
        low, high = (100 * end for end in own.interval)
        text = f"{100 * own.rate:.1f} % solved ({low:.0f} to {high:.0f}) {label}"
    progress.update("eval", text, len(records), len(jobs))


def _conclude(
    args: argparse.Namespace,
    setup: Setup,
    store: Store,
    out: Path,
    beside: Sequence[ComparedEvaluation],
    earlier: EarlierEvaluation | None,
) -> int:
    """Write table, report, summary and the line of JSON, and promote; returns the exit status."""
    from vla_ros.core import origin
    from vla_ros.data.episodes.rows import summary
    from vla_ros.viz.evaluation import tables

    commands = "\n".join(store.commands)
    figures = summary(setup, store.variants, store.records, commands)
    figures |= {"code": origin.code(), "machine": origin.machine(setup.device)}
    verdict = None
    if earlier is not None:
        label = store.variants[0].label
        records = [record for record in store.records if record.job.variant == label]
        verdict = judged(earlier, records)
        beside = (earlier.beside, *beside)
        against = {"checkpoint_sha256": earlier.setup.checkpoint_sha256, "won": verdict.won}
        against |= {"lost": verdict.lost, "pairs": verdict.pairs, "p": round(verdict.p, 4)}
        against |= {"least_gain": round(verdict.least, 4)}
        figures |= {"against": {"evaluation": str(args.against), **against}}
    (out / SUMMARY).write_text(json_text(figures) + "\n")
    write = report_writer()
    report: Path | str = f"no report.html: it comes with the lab ({LAB})"
    if write is not None:
        report = write(out, setup, store.variants, store.records, commands, beside=beside)
    show(*tables(setup, store.variants, store.records, beside))
    if setup.note:
        print(f"\nnote: {setup.note}")
    print(f"\n{report}\n{out / SUMMARY}", flush=True)
    doubt = "" if verdict is None else verdict.doubt(args.margin)
    if verdict is not None:
        print(f"against {args.against}: {verdict}{_promoted(args, doubt)}", flush=True)
    if args.json:
        print_json(figures)
    return 3 if verdict is not None and (verdict.worse or (args.promote and doubt)) else 0


def _promoted(args: argparse.Namespace, doubt: str) -> str:
    """Set the link to the checkpoint unless there is a doubt; returns the end of the line about
    it."""
    if args.promote is None:
        return ""
    if doubt:
        return f"; not promoted, {args.promote} stays as it is: {doubt}"
    from vla_ros.engine.io.hub import resolve

    directory = resolve(args.checkpoint).absolute()
    args.promote.parent.mkdir(parents=True, exist_ok=True)
    scratch = args.promote.with_name(f".{args.promote.name}.{os.getpid()}")
    scratch.symlink_to(directory)
    scratch.replace(args.promote)
    return f"; promoted: {args.promote} is {directory}"


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt
