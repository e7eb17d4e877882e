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
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from vla_ros.cli.arguments import FLAGS, Verbs, add_verb
from vla_ros.cli.defaults import (
    CHECKPOINT,
    DRAFT_CHECKPOINT,
    default_checkpoint,
    refuse_unreadable,
)
from vla_ros.cli.engine_flags import add_engine_flags
from vla_ros.core.console import Progress, Table, error, json_text, print_json, show
from vla_ros.core.errors import UserError, user_errors
from vla_ros.core.extensions import LAB, REPORTS, extension
from vla_ros.data.episodes.beside import (
    ComparedEvaluation,
    EarlierEvaluation,
    judged,
    lines,
    own,
    read_before,
)
from vla_ros.data.episodes.plan import group_of
from vla_ros.data.episodes.records import Record, Setup, Variant
from vla_ros.data.episodes.rows import Successes, VariantRow, rows_of
from vla_ros.engine.options import REFERENCES
from vla_ros.ros.bringup.graph_file import NODE as VIEW
from vla_ros.ros.bringup.graph_file import address_in, view_node
from vla_ros.runtime.control.queue import Execution

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vla_ros.data.episodes.plan import Plan
    from vla_ros.data.episodes.play import EpisodeOrder, MakeRunner, PlayedEpisode, Runner
    from vla_ros.data.episodes.records import Setup, Variant
    from vla_ros.data.episodes.store import Store

T = TypeVar("T")

POLICIES = ("vla", "scripted", "zero")
MODES = ("lockstep", "realtime")

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
  vla-ros eval --checkpoint DIR --mode realtime --image-delay-ms 0,50,100,200
  vla-ros eval --env libero --suite libero_object --checkpoint openvla/... --device cuda:0
  vla-ros eval --checkpoint runs/new/policy --against runs/eval-old --promote policies/current
  vla-ros eval --suite libero_object_swap --policy scripted --no-ros --beside runs/object

exit status: 0 all episodes were played (successful or not), 1 a variant cannot be played,
2 wrong usage, 3 fewer solved than --against, not promoted, 130 interrupted (to be continued)"""


def listed(kind: Callable[[str], T]) -> Callable[[str], list[T]]:
    """A type for argparse: values joined by commas, none twice."""

    def parse(text: str) -> list[T]:
        return list(dict.fromkeys(kind(word.strip()) for word in text.split(",") if word.strip()))

    parse.__name__ = f"list of {kind.__name__}"
    return parse


def add_parser(verbs: Verbs) -> None:
    """The options of this verb."""
    parser = add_verb(verbs, "eval", DESCRIPTION, EPILOG)
    _what(parser.add_argument_group("what is played").add_argument)
    _policy(parser.add_argument_group("the policy"))
    _variants(parser.add_argument_group("variants; lists are joined by commas"))
    _how(parser.add_argument_group("how").add_argument)


def _what(add: Callable[..., Any]) -> None:
    add("--env", choices=("tabletop", "libero", "so101"), help="simulation (tabletop; libero with"
        " --suite)")  # fmt: skip
    add("--suite", default="", metavar="S", help="libero: such as libero_object")
    add("--tasks", nargs="+", default=[], metavar="NAME", help="tasks or families (all)")
    add("--episodes", type=int, default=20, metavar="N", help="of every task and variant (20)")
    add("--seed", type=int, default=0, help="of the initial states, 0 to 999999 (0)")
    add("--mode", choices=MODES, default="lockstep", help="realtime: the world does not wait")
    add("--instruction", default="", metavar="TEXT", help="said instead of each task's own")
    add("--nudge", type=float, default=0.0, metavar="M", help="tabletop: move the task's cube so"
        " far while the hand is on its way to it")  # fmt: skip
    add("--max-steps", type=int, default=0, metavar="N", help="of an episode (the task's limit)")


def _policy(group: Any) -> None:
    add = group.add_argument
    add("--policy", choices=POLICIES, default="vla", help="who acts (vla)")
    add("--checkpoint", metavar="C", help=f"vla: directory or hub id ({CHECKPOINT})")
    add_engine_flags(
        group, "device", "dtype", "weights", "unnorm_key", "embodiment", "num_threads",
        num_threads=None,
    )  # fmt: skip
    add("--engine-option", action="append", default=[], metavar="NAME=VALUE", help="vla: of the"
        " engine's others, such as state_normalization=identity; may be given again")  # fmt: skip
    add("--max-age", type=float, default=0.5, metavar="S", help="age limit of observation (0.5)")


def _variants(group: Any) -> None:
    add = group.add_argument
    words = listed(str)
    add("--decoding", type=words, metavar="D,..", help="vla: how tokens are decoded (auto)")
    add("--drafter", type=words, default=["temporal"], metavar="D,..", help="temporal,"
        " temporal_tree, head, model")  # fmt: skip
    add("--draft-checkpoint", default="", metavar="C", help="of drafter model or head; not"
        f" needed for {CHECKPOINT}")  # fmt: skip
    add("--calibration", default="", metavar="FILE", help="of heterospec (heterospec.json beside"
        " the checkpoint)")  # fmt: skip
    add("--acceptance", type=words, default=["exact"], metavar="A,..", help="exact, sampling")
    add("--relaxed-distance", type=listed(int), default=[], metavar="R,..", help="and relaxed by"
        " r bins")  # fmt: skip
    add_engine_flags(group, "draft_extrapolation")
    add("--replan-interval", type=listed(int), default=[0], metavar="S,..", help="actions of a"
        " chunk that are executed; 0: all")  # fmt: skip
    add(
        "--execution",
        type=words,
        default=["async"],
        metavar="E,..",
        help="of chunks: sync, async, ensemble, rtc, rtc_trained, corrected (async)",
    )
    add("--rtc-mode", type=words, default=["guided"], metavar="M,..", help="of rtc: guided,"
        " guided_vjp (guided)")  # fmt: skip
    add("--delay-frames", type=listed(int), default=[0], metavar="D,..", help="lock-step: act on"
        " the observation of so many control steps ago; chunks come so late")  # fmt: skip
    add("--image-delay-ms", type=listed(float), default=[0.0], metavar="MS,..", help="realtime:"
        " images come so much later, their stamp unchanged")  # fmt: skip


def _how(add: Callable[..., Any]) -> None:
    add("--no-ros", action="store_true", help="lock-step straight on the policy, without ROS")
    add("--workers", type=int, default=1, metavar="N", help="lock-step: processes (1)")
    add("--batched", action="store_true", help="with --no-ros: the policy is loaded once, and"
        " answers the episodes of all workers together")  # fmt: skip
    add("--image-size", type=int, default=256, metavar="PX", help="of the cameras (256)")
    add("--out", type=Path, metavar="DIR", help="the evaluation's directory (runs/eval-TIME)")
    add("--beside", nargs="+", type=Path, default=[], metavar="DIR", help="finished evaluations of"
        " this policy, whose success stands beside: base against perturbed")  # fmt: skip
    add("--against", type=Path, metavar="DIR", help="an evaluation of the checkpoint before: the"
        " same episodes are counted one by one (McNemar)")  # fmt: skip
    add("--promote", type=Path, metavar="LINK", help="make this link name the checkpoint, unless"
        " it solves fewer than --against")  # fmt: skip
    add("--keep-tokens", action="store_true", help="keep what the policy said of every frame,"
        " an .npz an episode in DIR/tokens (vla-ros coverage reads them)")  # fmt: skip
    add("--view", action="store_true", help="show the graph in the browser while it plays")
    add("--json", **FLAGS["--json"])


def check(args: argparse.Namespace) -> None:
    """Options that do not go together. Raises UserError."""
    realtime = args.mode == "realtime"
    model_options = {
        "checkpoint": args.checkpoint,
        "embodiment": args.embodiment,
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
    if args.suite and args.env in ("tabletop", "so101"):
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
    if args.promote and args.promote.exists() and not args.promote.is_symlink():
        raise UserError(f"--promote {args.promote}: is there, and is no link: nothing is replaced")
    if args.view:
        _check_view(args)
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


def setup_of(args: argparse.Namespace, note: str, world: str = "") -> Setup:
    """What all episodes share; looks into the checkpoint. Raises UserError."""
    from vla_ros.data.episodes.records import Setup
    from vla_ros.sim.episode import Mode

    shared: dict[str, Any] = {
        "environment": environment_of(args),
        "suite": args.suite,
        "policy": args.policy,
        "mode": Mode(args.mode),
        "route": "direct" if args.no_ros else "ros",
        "seed": args.seed,
        "num_threads": args.num_threads or _threads(args.mode),
        "image_size": args.image_size,
        "max_steps": args.max_steps,
        "max_age_s": args.max_age,
        "nudge_m": args.nudge,
        "world": world,
        "note": note,
    }
    try:
        if args.policy == "vla":
            shared |= _of_checkpoint(args)
        return Setup(**shared)
    except ValueError as error:
        raise UserError(str(error)) from error
    except ImportError as error:
        raise UserError(f"{error}: pip install '.[model]' in the checkout") from error


def environment_of(args: argparse.Namespace) -> str:
    """The environment's name; a suite is LIBERO's."""
    return str(args.env or ("libero" if args.suite else "tabletop"))


def _of_checkpoint(args: argparse.Namespace) -> dict[str, Any]:
    from vla_ros.data.episodes.play import parse_words
    from vla_ros.engine.formats import parse_formats
    from vla_ros.engine.layers.devices import usable_device
    from vla_ros.engine.load import refuse_weights, sha256_on_disk
    from vla_ros.policies.conventions import conventions_of
    from vla_ros.sim.libero.suites import base_of

    usable_device(args.device)
    with user_errors(ValueError):
        said = parse_words(args.engine_option)
        refuse_weights(args.checkpoint, args.weights, args.device, args.dtype)
    refuse_unreadable(args.checkpoint, str(said.get("tokenizer", "")))
    suite = base_of(args.suite)  # nobody has trained on a perturbed one
    found = conventions_of(args.checkpoint, suite, args.unnorm_key, embodiment=args.embodiment)
    known = "" if args.checkpoint.startswith("random:") else sha256_on_disk(args.checkpoint)
    return {
        "checkpoint": args.checkpoint,
        "checkpoint_sha256": known,
        "device": args.device,
        "dtype": args.dtype,
        "weights": str(parse_formats(args.weights)),
        "unnorm_key": found.unnorm_key,
        "embodiment": args.embodiment,
        "engine_options": tuple(args.engine_option),
        "center_crop": found.center_crop,
        "preprocessing": found.preprocessing,
        "ungated": environment_of(args) == "libero",  # the published protocol has no gate
        "action_scale": found.action_scale,
        "wrist": found.cameras == 2,
        "chunk": found.chunk,
        "state": found.state,
    }


def _threads(mode: str) -> int:
    """Lock-step: one, so that any machine computes the same. Real time: the simulation and the
    control tick need the other CPUs."""
    return 1 if mode == "lockstep" else max(1, len(os.sched_getaffinity(0)) // 2)


# ------------------------------------------------------------------------------------------------
# The variants that the options of `vla-ros eval` ask for: every combination, each with a name.


GUIDED, GUIDED_VJP = "guided", "guided_vjp"
MODEL_DRAFTED = "vanilla_speculative"  # by definition with a draft model
HETEROSPEC = "heterospec"  # by definition with a drafter that names alternatives
UNCERTAIN = ("temporal_tree", "head")


def variants_of(args: argparse.Namespace) -> tuple[Variant, ...]:
    """Every combination that the options ask for. Raises UserError."""
    from vla_ros.data.episodes.records import Variant

    adaptive = args.mode == "realtime"
    with user_errors(ValueError):
        return tuple(
            Variant(
                label=label + _suffix(execution, mode, replan, frames, delay_ms),
                adaptive_draft=adaptive,
                replan_interval=replan,
                delay_frames=frames,
                image_delay_ms=delay_ms,
                execution=execution,
                rtc_mode=mode,
                **options,
            )
            for label, options in _decodings(args)
            for execution, mode in _executions(args)
            for replan in args.replan_interval
            for frames in args.delay_frames
            for delay_ms in args.image_delay_ms
        )


def _executions(args: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Every way to execute chunks; how they are guided is a matter of rtc alone."""
    for mode in args.rtc_mode:
        _known("rtc-mode", mode, (GUIDED, GUIDED_VJP))
    for execution in args.execution:
        for mode in args.rtc_mode if execution == Execution.RTC else [GUIDED]:
            yield execution, mode


def _suffix(execution: str, mode: str, replan: int, frames: int, delay_ms: float) -> str:
    executed = "" if execution == Execution.ASYNC else f",{execution}"
    executed += "" if mode == GUIDED else f",{mode}"
    replans = executed + (f",S={replan}" if replan else "")
    delayed = f",d={frames}" if frames else ""
    return replans + delayed + (f",delay={delay_ms:g}ms" if delay_ms else "")


def _decodings(args: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Label and fields of every way to decode."""
    from vla_ros.data.episodes.play import DRAFTING
    from vla_ros.engine.options import ACCEPTANCES, DECODINGS, DRAFTERS

    if args.policy != "vla":
        yield args.policy, {}
        return
    for decoding in args.decoding or ["auto"]:
        if decoding not in REFERENCES:
            _known("decoding", decoding, DECODINGS)
        elif not args.no_ros:
            raise UserError(f"{decoding} is a reference: vla-ros bench, or eval --no-ros")
        if decoding not in DRAFTING:
            yield decoding, {"decoding": decoding}
            continue
        for drafter in _drafters(args, decoding):
            _known("drafter", drafter, DRAFTERS)
            if drafter == "model" and not args.draft_checkpoint:
                if args.checkpoint != CHECKPOINT:
                    raise UserError(f"--decoding {decoding} drafted by a model: --draft-checkpoint")
                args.draft_checkpoint = DRAFT_CHECKPOINT
            accepted = [(name, 0) for name in args.acceptance] + [
                ("relaxed", r) for r in args.relaxed_distance
            ]
            for acceptance, distance in accepted:
                _known("acceptance", acceptance, ACCEPTANCES)
                yield _drafting(args, decoding, drafter, acceptance, distance)


def _drafters(args: argparse.Namespace, decoding: str) -> list[str]:
    """Those asked for that belong to a decoding; one of its own where none does."""
    if decoding == MODEL_DRAFTED:
        return ["model"]
    if decoding == HETEROSPEC:
        return [name for name in args.drafter if name in UNCERTAIN] or ["temporal_tree"]
    return list(args.drafter)


def _drafting(
    args: argparse.Namespace, decoding: str, drafter: str, acceptance: str, distance: int
) -> tuple[str, dict[str, Any]]:
    drafting = ("model",) if "model" in args.drafter else ("model", "head")
    parts = [decoding]
    plain = {MODEL_DRAFTED: "model", HETEROSPEC: "temporal_tree"}.get(decoding, "temporal")
    parts += [drafter] if drafter != plain else []
    parts += ["linear"] if drafter == "temporal" and args.draft_extrapolation == "linear" else []
    parts += [acceptance] if acceptance != "exact" else []
    parts += [f"r={distance}"] if distance else []
    return ",".join(parts), {
        "decoding": decoding,
        "drafter": drafter,
        "draft_checkpoint": args.draft_checkpoint if drafter in drafting else "",
        "calibration": args.calibration if decoding == HETEROSPEC else "",
        "acceptance": acceptance,
        "relaxed_distance": distance,
        "draft_extrapolation": args.draft_extrapolation,
    }


def _known(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UserError(f"--{option} {value}: give {', '.join(known)}")


# ------------------------------------------------------------------------------------------------
# The evaluation as it runs.


SUMMARY = "summary.json"
PARTIAL_EVERY_S = 60.0
PARTIAL_SHARE = 30  # writing it takes at most this part of the time, one in so many


def run(args: argparse.Namespace) -> int:
    """Evaluate; returns the exit status, see `vla-ros eval --help`."""
    check(args)
    try:
        from vla_ros.core import origin
        from vla_ros.data.episodes.play import RunnerFailed
        from vla_ros.data.episodes.store import Store
    except ImportError as missing:
        raise UserError(f"{missing}; `vla-ros doctor` says what to install") from missing
    plan = _plan(args)
    beside = _beside(args, plan.setup)
    earlier = read_before(args.against, plan.setup, plan.jobs()) if args.against else None
    out = args.out or Path("runs") / time.strftime("eval-%Y%m%d-%H%M%S")
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        origin.code()
        with Store(out, plan.setup, plan.variants, _command()) as store:
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


def _plan(args: argparse.Namespace) -> Plan:
    from vla_ros.data.episodes.plan import Plan, select_tasks, world_of
    from vla_ros.runtime.control.goals import check_instruction

    with user_errors(ValueError):
        check_instruction(args.instruction)
    world = world_of(environment_of(args), args.suite)
    tasks = select_tasks(world.tasks, args.tasks)
    setup = setup_of(args, world.note, world.versions)
    return Plan(setup, variants_of(args), tasks, args.episodes, args.instruction)


def _play_all(args: argparse.Namespace, plan: Plan, store: Store, out: Path) -> None:
    """Play what has no record yet, and write it as it comes."""
    from vla_ros.data.episodes.play import EpisodeOrder, keep
    from vla_ros.data.episodes.store import strip_paths

    jobs = plan.jobs()
    done = store.done
    strips = strip_paths(jobs)
    told = {task.name: args.instruction or task.instruction for task in plan.tasks}
    orders = [
        EpisodeOrder(job, strips.get(job.key(), ""), told[job.task], clip=True)
        for job in jobs
        if job.key() not in done
    ]
    progress = _Show(plan, store)
    partial = _Partial(plan, store, out)
    if plan.setup.note:  # before hours are spent on it
        progress.say(f"note: {plan.setup.note}")
    progress.update()
    try:
        for played in _play(args, plan, orders, progress.say):
            store.add(keep(played, out, args.keep_tokens))
            progress.update()
            partial.write()
    finally:
        progress.end()


def _play(
    args: argparse.Namespace, plan: Plan, orders: list[EpisodeOrder], say: Callable[[str], None]
) -> Iterator[PlayedEpisode]:
    from vla_ros.data.episodes import parallel

    if args.batched:
        from vla_ros.serve.episodes import play_on_one_engine

        return play_on_one_engine(plan.setup, plan.variants, orders, args.workers, say)
    make: MakeRunner = direct_runner if plan.setup.route == "direct" else graph_runner
    if args.view:
        make = _watched_runner(say)
    if args.workers > 1:
        play = parallel.play_in_processes
        return play(make, plan.setup, plan.variants, orders, args.workers)
    return parallel.play_here(make, plan.setup, plan.variants, orders)


def direct_runner(setup: Setup, variants: tuple[Variant, ...]) -> Runner:
    """Episodes without ROS."""
    from vla_ros.data.episodes.play import DirectRunner

    return DirectRunner(setup, variants)


def graph_runner(
    setup: Setup, variants: tuple[Variant, ...], watch: Callable[[str, str], None] | None = None
) -> Runner:
    """Episodes through the ROS graph. ``watch`` gets (node, line) of every line that a node says,
    and there is the page in the browser. RunnerFailed: there is no ROS."""
    from vla_ros.data.episodes.play import RunnerFailed

    try:
        from vla_ros.ros.listeners.graph_runner import GraphRunner
    except ImportError as error:
        raise RunnerFailed(f"{error}: without ROS there is --no-ros") from error
    if watch is None:
        return GraphRunner(setup, variants)
    return GraphRunner(setup, variants, on_line=watch, view=True)


def _watched_runner(say: Callable[[str], None]) -> MakeRunner:
    """As :func:`graph_runner`, with the page in the browser, whose address is said: each graph
    serves it anew, as a rule at the same one."""
    said: set[str] = set()

    def on_line(node: str, line: str) -> None:
        address = address_in(line) if node == VIEW else ""
        if address and address not in said:
            said.add(address)
            say(f"open {address} in a browser")

    return functools.partial(graph_runner, watch=on_line)


def report_writer() -> Callable[..., Path] | None:
    """Who writes an evaluation's report.html; None: the lab is not installed."""
    return extension(REPORTS, "evaluation")


class _Partial:
    """The report of what was played so far, now and then: writing it takes a small part of the
    time, and in real time no episode runs meanwhile."""

    def __init__(self, plan: Plan, store: Store, out: Path) -> None:
        self._plan, self._store, self._out = plan, store, out
        self._jobs = {job.key() for job in plan.jobs()}
        self._next_s = time.monotonic() + PARTIAL_EVERY_S

    def write(self) -> None:
        """If it is time, and there is more to come. What an earlier sitting played of other
        variants lies in the same directory, and is no part of this one's end."""
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


class _Show:
    """The line that says how far it is: all episodes, and success of the variant that plays."""

    def __init__(self, plan: Plan, store: Store) -> None:
        self._store = store
        self._total = len(plan.jobs())
        self._known = {job.key() for job in plan.jobs()}
        self._progress = Progress()

    def update(self) -> None:
        from vla_ros.data.episodes.rows import wilson

        records = [r for r in self._store.records if r.job.key() in self._known]
        text = "episodes"
        if records:
            label = records[-1].job.variant
            own = [record.success for record in records if record.job.variant == label]
            low, high = (100 * end for end in wilson(sum(own), len(own)))
            text = f"{100 * sum(own) / len(own):.1f} % solved ({low:.0f} to {high:.0f}) {label}"
        self._progress.update("eval", text, len(records), self._total)

    def say(self, text: str) -> None:
        """One line that stays. From any thread."""
        self._progress.say(text)

    def end(self) -> None:
        self._progress.end()


def _beside(args: argparse.Namespace, setup: Setup) -> tuple[ComparedEvaluation, ...]:
    """Before hours are spent: UserError where one cannot be compared with."""
    from vla_ros.data.episodes.beside import read_beside

    return tuple(read_beside(folder, setup) for folder in args.beside)


def _conclude(
    args: argparse.Namespace,
    setup: Setup,
    store: Store,
    out: Path,
    beside: Sequence[ComparedEvaluation],
    earlier: EarlierEvaluation | None,
) -> int:
    """Table, report, summary, the line of JSON, and whether it is promoted; the exit status."""
    from vla_ros.core import origin
    from vla_ros.data.episodes.rows import summary

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
    if verdict is not None:
        print(f"against {args.against}: {verdict}{_promoted(args, verdict.worse)}", flush=True)
    if args.json:
        print_json(figures)
    return 3 if verdict is not None and verdict.worse else 0


def _promoted(args: argparse.Namespace, worse: bool) -> str:
    """Let the link name the checkpoint unless it is worse; the end of the line about it."""
    if args.promote is None:
        return ""
    if worse:
        return f"; not promoted: {args.promote} stays as it is"
    from vla_ros.engine.io.hub import resolve

    directory = resolve(args.checkpoint).absolute()
    args.promote.parent.mkdir(parents=True, exist_ok=True)
    scratch = args.promote.with_name(f".{args.promote.name}.{os.getpid()}")
    scratch.symlink_to(directory)
    scratch.replace(args.promote)
    return f"; promoted: {args.promote} is {directory}"


def _command() -> str:
    return f"vla-ros {shlex.join(sys.argv[1:])}"


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


# ------------------------------------------------------------------------------------------------
# What is printed at the end: the variants, then families and tasks of the first.


_SPARE = ("held", "actions", "age p50")  # columns where there is no room
_OUTCOME = ("solved", "success", "95 % Wilson")


def tables(
    setup: Setup,
    variants: Sequence[Variant],
    records: Sequence[Record],
    beside: Sequence[ComparedEvaluation] = (),
) -> tuple[RenderableType, ...]:
    """One below the other."""
    rows = rows_of(variants, records, setup.suite)
    if not rows:
        return ("no episode was played",)
    shown: list[RenderableType] = [
        Table(("variant", *_OUTCOME, "age p50", "actions", "held"), map(_variant, rows), _SPARE),
        "",
    ]
    shown.append(Table(("task", *_OUTCOME), _tasks(rows[0], setup.suite)))
    if len(rows) > 1:
        shown += ["", f"families and tasks: {rows[0].name}; the others are in the report"]
    if beside:
        shown += ["", _beside_table([*beside, own(rows[0], setup.suite or setup.environment)])]
    return tuple(shown)


def _beside_table(found: Sequence[ComparedEvaluation]) -> RenderableType:
    """Solved of played: a task a row, an evaluation a column, this one last."""
    rows = (
        (task, *(f"{one.successes}/{one.episodes}" if one else "–" for one in outcomes))
        for task, outcomes in lines(found)
    )
    return Table(("task", *(one.name for one in found)), rows)


def _variant(row: VariantRow) -> tuple[str, ...]:
    rates = f"{row.age.p50:.0f} ms", f"{row.rate_hz:.1f} Hz", f"{100 * row.held:.1f} %"
    return (row.name, *_outcome(row.all), *rates)


def _tasks(row: VariantRow, suite: str) -> Iterator[tuple[str, ...]]:
    """Every group with its tasks below it."""
    for group, outcome in row.groups.items():
        yield (group or "all", *_outcome(outcome))
        for task, single in row.tasks.items():
            if group_of(task, suite) == group:
                yield (f"  {task}", *_outcome(single))


def _outcome(outcome: Successes) -> tuple[str, str, str]:
    low, high = (100 * end for end in outcome.interval)
    solved = f"{outcome.successes}/{outcome.episodes}"
    return solved, f"{100 * outcome.rate:.1f} %", f"{low:.1f} to {high:.1f}"
