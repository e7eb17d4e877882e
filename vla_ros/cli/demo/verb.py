"""`vla-ros demo`: one simulated task through the whole graph, headless, summed up at the end."""

from __future__ import annotations

import argparse
import textwrap
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_ros.cli.arguments import Verbs, add_fields, add_flag, add_verb, check_domain
from vla_ros.cli.defaults import (
    CHECKPOINT,
    default_checkpoint,
    refuse_device,
    refuse_unreadable,
)
from vla_ros.cli.demo.result import DemoResult, Setup, Summary, json_line
from vla_ros.core.clock import Distribution
from vla_ros.core.console import show
from vla_ros.core.errors import UserError, user_errors
from vla_ros.core.origin import machine
from vla_ros.core.resources import version
from vla_ros.core.types import INFERENCE_STAGES, STAGES
from vla_ros.data.episodes.play import state_parameters
from vla_ros.engine.options import AUTO, DECODINGS, EngineOptions
from vla_ros.policies.base import POLICIES, PolicyRefused, refuse_unknown
from vla_ros.policies.conventions import conventions_of
from vla_ros.ros.bringup.graph import BringUpStopped, Graph, GraphFailed
from vla_ros.ros.bringup.graph_file import GraphSpec, parse_overrides
from vla_ros.ros.bringup.graph_run import GraphRun
from vla_ros.ros.bringup.view import NODE as VIEW
from vla_ros.ros.bringup.view import PageVisitors, view_node
from vla_ros.ros.listeners.demo_log import EpisodeFigures, Film, policy_in_words
from vla_ros.runtime.monitor.seen import StatusSeen
from vla_ros.sim.env import ACTION_RATE_HZ, CONTROL_RATES_HZ
from vla_ros.sim.factory import EnvConfig
from vla_ros.sim.tasks import COLORS, TASKS

if TYPE_CHECKING:
    from vla_ros.ros.listeners.demo import DemoWatcher

__all__ = ["add_parser", "run"]


RANDOM_MAX_AGE_S = 2.0  # wiring and timing must show on a slow or busy CPU too
WITHOUT_MODEL = ("scripted", "zero", "replay")
_RATES = "{:g} to {:g}".format(*CONTROL_RATES_HZ)

DESCRIPTION = """\
Start the simulation, a policy and the monitor as processes of a ROS 2 graph of their own, let
the policy do one task without a window, and print what was measured during the episode.

The graph is local to this machine and in a ROS domain of its own: it cannot reach a robot."""

EPILOG = """\
tasks: C and D are two of {colors}
  pick_C_cube, push_C_cube_left, push_C_cube_right, stack_C_on_D, reach_C_cube

decodings:
{decodings}

examples:
  vla-ros demo                                  the small trained VLA solves a task
  vla-ros demo --decoding speculative --task push_blue_cube_left
  vla-ros demo --checkpoint DIR --device cuda:0 --decoding actionflow
  vla-ros demo --checkpoint random:small        random weights: wiring and timing
  vla-ros demo --policy scripted                an expert that gets the ground truth
  vla-ros demo --mode lockstep --json           reproducible; the last line is JSON
  vla-ros demo --view                           a page in the browser, while it runs
  vla-ros demo --gif episode.gif                keep what the camera saw

exit status: 0 the task was solved (with random weights or the zero policy: the graph ran
properly), 1 it was not, 2 wrong usage, 3 the graph did not start or a node ended,
4 a step of its start or end did not end in time: the last line says which"""


def add_parser(verbs: Verbs) -> None:
    """The options of this verb."""
    parser = add_verb(
        verbs,
        "demo",
        DESCRIPTION,
        EPILOG.format(
            colors=", ".join(COLORS),
            decodings=textwrap.indent(textwrap.fill(", ".join(DECODINGS), 76), "  "),
        ),
    )
    add = parser.add_argument
    add(
        "--policy",
        metavar="NAME",
        default="vla",
        help=f"who acts: {', '.join(POLICIES)}, or what an installed package offers (default: vla)",
    )
    add(
        "--policy-option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="lerobot, an installed package's: an option of its own; may be repeated",
    )
    add(
        "--mode",
        choices=("realtime", "lockstep"),
        default="realtime",
        help="realtime: the world does not wait (default); lockstep: every frame is answered",
    )
    add("--task", metavar="NAME", help="what to do, see below (default: pick_red_cube)")
    add("--initial-state", type=int, metavar="N", help="which fixed initial state")
    add("--seed", type=int, metavar="N", help="of the initial states and of random weights")
    add("--control-rate", type=float, metavar="HZ", help="commands, and steps of the world, per"
        f" second, {_RATES}; the policy acts at {ACTION_RATE_HZ:g} Hz at any")  # fmt: skip
    add("--decoding", metavar="NAME", help="vla: how tokens are decoded, see below")
    add("--checkpoint", metavar="DIR", help=f"model; required for lerobot (vla: {CHECKPOINT})")
    flags = ("embodiment", "device", "dtype", "weights")
    add_fields(parser, EngineOptions, *flags, **dict.fromkeys(flags))
    add("--replay-file", type=Path, metavar="FILE", help="replay: .npy or .npz of [N, 7]")
    add_flag(
        parser,
        "--param",
        metavar="NODE.PARAM=VALUE",
        help="any other parameter of a node; may be repeated",
    )
    add(
        "--timeout",
        type=float,
        default=120.0,
        metavar="S",
        help="longest time for the episode, loading not counted (default: 120)",
    )
    add("--gif", type=Path, metavar="FILE", help="write the camera's images: .gif, or .png (last)")
    add("--view", action="store_true", help="show it in the browser while it runs")
    add_flag(parser, "--domain-id")
    add_flag(parser, "--json")
    add("--verbose", action="store_true", help="show the log of every node")


def parameters(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The parameters that the options stand for; `-p` wins. Raises UserError."""
    _check(args)
    policy = {
        "policy": args.policy,
        "policy_options": args.policy_option or None,
        **(_for_model(args) if args.policy == "vla" else {"checkpoint": args.checkpoint}),
        "mode": args.mode,
        "decoding": args.decoding,
        "embodiment": args.embodiment,
        "device": args.device,
        "dtype": args.dtype or (AUTO if args.policy == "vla" else None),
        "weights": args.weights,
        "control_rate_hz": args.control_rate,
        "replay_file": str(args.replay_file) if args.replay_file else None,
    }
    bridge = {
        "mode": args.mode,
        "task": args.task,
        "initial_state": args.initial_state,
        "seed": args.seed,
        "control_rate_hz": args.control_rate,
        "auto_reset": False,
    }
    found: dict[str, dict[str, Any]] = {"policy": policy, "bridge": bridge, "monitor": {}}
    if args.mode == "lockstep":
        policy["use_sim_time"] = True
        found["monitor"]["use_sim_time"] = True
    found = {
        node: {name: value for name, value in values.items() if value is not None}
        for node, values in found.items()
    }
    for node, values in parse_overrides(args.param).items():
        found[node] = found.get(node, {}) | values
    if words := _engine_words(args, found["policy"]):
        found["policy"]["engine_options"] = words
    return found


def _engine_words(args: argparse.Namespace, policy: Mapping[str, Any]) -> list[str]:
    """The policy's engine_options: what `-p` gives, and what the flags stand for."""
    given = [str(word) for word in policy.get("engine_options", ()) if word]
    named = {word.partition("=")[0].strip() for word in given}
    mine = [] if args.seed is None or "seed" in named else [f"seed={args.seed}"]
    return given + mine


def _for_model(args: argparse.Namespace) -> dict[str, Any]:
    """Parameters of a VLA that runs beside a simulation on one machine."""
    checkpoint = args.checkpoint or default_checkpoint([args.decoding])
    given = parse_overrides(args.param).get("policy", {})
    if args.weights:
        from vla_ros.engine.load import refuse_weights

        with user_errors(ValueError):
            refuse_weights(checkpoint, args.weights, args.device or AUTO, args.dtype or AUTO)
    words = dict(word.partition("=")[::2] for word in given.get("engine_options", ()))
    refuse_unreadable(checkpoint, str(words.get("tokenizer", "")))
    robot = args.embodiment or str(given.get("embodiment", ""))
    values: dict[str, Any] = {"checkpoint": checkpoint, **_state(checkpoint, given, robot)}
    if args.device in (None, AUTO, "cpu") and checkpoint.startswith("random"):
        values["max_age_s"] = RANDOM_MAX_AGE_S
    return values


def _state(checkpoint: str, given: Mapping[str, Any], embodiment: str) -> dict[str, Any]:
    """Parameters of the robot's state, for a checkpoint that takes LIBERO's."""
    try:
        key = str(given.get("unnorm_key", ""))
        found = conventions_of(checkpoint, unnorm_key=key, embodiment=embodiment)
    except PolicyRefused as error:  # the node reports it, where `-p` does not put it right
        if embodiment:
            raise UserError(str(error)) from None
        return {}
    return state_parameters(found.state)


def _check(args: argparse.Namespace) -> None:
    """Raise UserError for options that contradict each other and for unknown names."""
    if args.policy not in POLICIES:
        refuse_unknown(args.policy)
    _check_policy_options(args)
    owners = {"decoding": "vla", "embodiment": "vla", "weights": "vla", "replay_file": "replay"}
    for option, who in owners.items():
        if getattr(args, option) is not None and args.policy != who:
            name = option.replace("_", "-")
            raise UserError(f"--{name} needs --policy {who}, not {args.policy}")
    for option in ("checkpoint", "device", "dtype"):
        if getattr(args, option) is not None and args.policy in WITHOUT_MODEL:
            raise UserError(f"--{option} needs --policy vla, or another with a model,"
                            f" not {args.policy}")  # fmt: skip
    if args.policy == "lerobot" and not args.checkpoint:
        raise UserError("--policy lerobot needs --checkpoint: a folder, or a hub id")
    if args.policy == "replay" and args.replay_file is None:
        raise UserError("--policy replay needs --replay-file FILE")
    if args.replay_file is not None and not args.replay_file.is_file():
        raise UserError(f"--replay-file: no file {args.replay_file}")
    least, most = CONTROL_RATES_HZ
    if args.control_rate is not None and not least <= args.control_rate <= most:
        raise UserError(f"--control-rate {args.control_rate:g}: must be {_RATES} Hz")
    if args.seed is not None and not 0 <= args.seed < 2**31:
        raise UserError(f"--seed {args.seed}: must be 0 to {2**31 - 1}")
    if not 0 < args.timeout <= 3600:
        raise UserError(f"--timeout {args.timeout:g}: must be above 0, at most 3600 seconds")
    check_domain(args.domain_id)
    given = parse_overrides(args.param).get("bridge", {})
    if "environment" not in given:  # before the model is looked at, which imports torch
        task, state = args.task or TASKS[0].name, args.initial_state or 0
        EnvConfig().check_task(str(given.get("task", task)), state)
    if args.decoding is not None:
        _check_decoding(args.decoding)


def _check_policy_options(args: argparse.Namespace) -> None:
    if args.policy_option and args.policy in ("vla", *WITHOUT_MODEL):
        raise UserError(
            "--policy-option needs --policy lerobot or one of an installed package, not"
            f" {args.policy}"
        )
    if wrong := [one for one in args.policy_option if not one.partition("=")[0] or "=" not in one]:
        raise UserError(f"--policy-option {wrong[0]}: write name=value")


def check_graph(spec: GraphSpec) -> None:
    """Raise UserError for parameters that a node would refuse only once it was started."""
    policy, bridge = spec.node("policy").values(), spec.node("bridge").values()
    if policy["policy"] == "vla":
        _check_decoding(str(policy["decoding"]))
        refuse_device(str(policy["device"]))
    world_hz = bridge["control_rate_hz"] or ACTION_RATE_HZ
    if policy["control_rate_hz"] != world_hz:
        raise UserError(
            f"policy.control_rate_hz is {policy['control_rate_hz']:g}, and the world takes"
            f" {world_hz:g} steps a second: --control-rate sets both"
        )
    world = EnvConfig(str(bridge["environment"]))
    world.check_task(str(bridge["task"]), int(bridge["initial_state"]))


def _check_decoding(name: str) -> None:
    if name not in DECODINGS:
        raise UserError(f"decoding {name}: there are {', '.join(DECODINGS)}")


GRAPH = "sim.up.yaml"
CONNECT_S = 60.0  # for the simulation to start and every topic to be found
SETTLE_S = 0.5  # after the end of the episode: for messages that are still on their way
OPEN_S = 30.0  # --view: the episode begins when the page is open, or without it after so long
STAY_S = 600.0  # --view: the page stays afterwards while it is open, at most so long
COUNTS_S = 1.2  # after the end of the episode: for the policy's counts, published once a second


def run(args: argparse.Namespace) -> int:
    """Run the demo. Returns the exit status, see `vla-ros demo --help`."""
    more = view_node(args.mode == "lockstep") if args.view else None
    spec = GraphSpec.load(GRAPH, parameters(args), more=more)
    check_graph(spec)
    film = Film(args.gif) if args.gif else None
    demo = _Demo(args, spec, film)
    return demo.outcome(demo.run)


class _Demo(GraphRun):
    """One run of the demo: the graph, and a watcher beside it."""

    def __init__(self, args: argparse.Namespace, spec: GraphSpec, film: Film | None) -> None:
        super().__init__("demo", args)
        self._spec = spec
        self._film = film
        self._connect: Callable[[], None] = lambda: None
        self._visitors = PageVisitors()  # of the page in the browser

    def run(self) -> int:
        with self.graph(self._spec, lambda: self._connect()) as graph:
            seen = self._episode(graph)
            self._stay(graph, seen)
            trouble = [str(node) for node in graph.stop() if not node.clean]
        return self._conclude(seen, trouble)

    def _episode(self, graph: Graph) -> EpisodeFigures:
        """Bring everything up and follow the episode to its end."""
        from vla_ros.ros.listeners.demo import DemoWatcher

        lockstep = self._args.mode == "lockstep"
        with DemoWatcher(self._domain, lockstep, self._film) as watcher:
            self._connect = lambda: self._await_topics(graph, watcher)
            graph.start()
            until = time.monotonic() + self._args.timeout
            while time.monotonic() < until and not watcher.ended:
                self._pause(graph)
                self._show(watcher)
            self._progress.end()
            time.sleep(SETTLE_S)
            if watcher.ended:  # out of time it goes on, and must not be waited into success
                watcher.wait(watcher.counted, COUNTS_S - SETTLE_S)
            return watcher.measure()

    def _await_topics(self, graph: Graph, watcher: DemoWatcher) -> None:
        """Wait for every topic, before anything acts: DDS needs a moment to find the nodes."""
        until = time.monotonic() + CONNECT_S
        while not watcher.connected():
            self._pause(graph)
            if time.monotonic() > until:
                raise GraphFailed(f"no {watcher.missing()} within {CONNECT_S:g} s")
        if self._args.view:
            self._await_browser(graph)

    def _await_browser(self, graph: Graph) -> None:
        """Wait for a browser: an episode takes seconds, and would be over before it opens."""
        until = time.monotonic() + OPEN_S
        while graph.runs(VIEW) and not self._visitors.watched and time.monotonic() < until:
            self._pause(graph)
            left = f"waits {until - time.monotonic():.0f} s more for a browser"
            self._progress.update("view", left if self._visitors.address else "view: starts")

    def _stay(self, graph: Graph, seen: EpisodeFigures) -> None:
        """Keep the page while a browser is open: to look back, and to give other instructions."""
        if not self._visitors.watched:
            return
        ended = (seen.episode.ended if seen.episode else "") or "timeout"
        self._progress.say(
            f"the episode is over: {ended}. The page goes on until its last browser is closed,"
            " or Ctrl-C"
        )
        until = time.monotonic() + STAY_S
        try:
            while graph.runs(VIEW) and self._visitors.watched and time.monotonic() < until:
                self._pause(graph)
        except BringUpStopped:
            return  # the figures are there

    def _pause(self, graph: Graph) -> None:
        """Wait a moment. Raises BringUpStopped after a signal, GraphFailed when a node ended."""
        if self._stop.wait(0.1):
            raise BringUpStopped
        graph.check()
        if address := self._visitors.new_address():
            self._progress.say(f"open {address} in a browser")

    def _show(self, watcher: DemoWatcher) -> None:
        seen = watcher.glance()
        state = seen.status.state.name if seen.status else "no policy yet"
        if seen.episode is None:
            self._progress.update(state, f"{state}; waiting for the simulation")
            return
        episode = seen.episode
        age = "-" if seen.age_ms is None else f"{seen.age_ms:.0f}"
        rate = "-" if seen.rate_hz is None else f"{seen.rate_hz:.1f}"
        figures = f"step {episode.step} of {episode.max_steps}  age {age} ms  {rate} Hz"
        self._progress.update(state, f"{state}  {episode.task}  {figures}")

    def _conclude(self, seen: EpisodeFigures, trouble: list[str]) -> int:
        result = _result(self._args, seen, trouble, self._spec)
        if self._film is not None:
            self._progress.say(self._film.save())
        if result.exit_status:
            self.show_log()
        show(Summary(result))
        if self._args.json:
            print(json_line(result), flush=True)
        return result.exit_status

    def on_line(self, node: str, line: str) -> None:
        """Keep a line of a node's log, and what the view's tells of the page."""
        super().on_line(node, line)
        if node == VIEW:
            self._visitors.read(line)


def _result(
    args: argparse.Namespace, seen: EpisodeFigures, trouble: list[str], spec: GraphSpec
) -> DemoResult:
    status, episode, report = seen.status, seen.episode, seen.report
    ended = (episode.ended if episode else "") or "timeout"
    reason = episode.reason if episode else "the bridge began no episode"
    if ended == "timeout":
        reason = f"not done within {args.timeout:g} s ({policy_in_words(status)})"
    acted = report.actions > 0
    return DemoResult(
        setup=_setup(args, status, spec),
        task=episode.task if episode else args.task or "",
        instruction=episode.instruction if episode else "",
        ended=ended,
        reason=reason,
        initial_state=episode.initial_state if episode else None,
        steps=episode.step if episode else None,
        max_steps=episode.max_steps if episode else None,
        episode_s=seen.wall_s,
        action_rate_hz=episode.action_rate_hz if episode else None,
        control_rate_hz=status.control_rate_hz if status else None,
        max_age_ms=status.max_age_ms if status else None,
        achieved_rate_hz=report.command_rate_hz or None,
        # Over the whole episode: a few actions between two holds are no rate.
        achieved_action_rate_hz=report.actions / seen.wall_s if seen.wall_s else None,
        camera_rate_hz=report.camera_rate_hz or None,
        observation_age=report.age_at_publish,
        staleness=report.staleness,
        inference=report.inference,
        stages={name: _spent(name, getattr(report, name)) for name in STAGES},
        passes=seen.passes,
        actions=report.actions,
        missed_deadlines=report.missed_deadlines if acted else None,
        blocked=seen.blocked,
        last_block=seen.last_block if seen.blocked else "",
        stale_published=report.stale_published,
        lost_commands=report.lost_commands if report.commands else None,
        worker_restarts=seen.worker_restarts,
        trouble=(*report.problems, *trouble),
    )


def _setup(args: argparse.Namespace, status: StatusSeen | None, spec: GraphSpec) -> Setup:
    values = spec.node("policy").values()
    device = status.device if status else ""
    return Setup(
        mode=args.mode,
        policy=status.policy if status else args.policy,
        decoding=status.decoding if status else "",
        checkpoint=status.checkpoint if status else "",
        device=device,
        dtype=status.dtype if status else "",
        machine=machine(device),
        version=version(),
        asked=str(values.get("decoding", "")) if args.policy == "vla" else "",
        dtype_asked=str(values.get("dtype", "")) if args.policy == "vla" else "",
    )


def _spent(stage: str, spread: Distribution) -> Distribution:
    """A stage of the model in which no time at all was spent is one that a policy has not."""
    return Distribution() if stage in INFERENCE_STAGES and spread.max == 0.0 else spread
