"""`vla-ros demo`: one simulated task through the whole graph, headless, with a card at the end."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from vla_ros.bringup.domain import free_domain, isolate
from vla_ros.bringup.graph_file import GraphSpec
from vla_ros.bringup.view import NODE as VIEW
from vla_ros.bringup.view import Visitors, view_node
from vla_ros.cli.demo.card import Card
from vla_ros.cli.demo.options import add_parser, check_graph, parameters
from vla_ros.cli.demo.result import DemoResult, Setup, json_line
from vla_ros.console.progress import Progress
from vla_ros.console.streams import error, show
from vla_ros.core import INFERENCE_STAGES, STAGES
from vla_ros.evaluation.origin import machine
from vla_ros.observe.episode import policy_in_words
from vla_ros.observe.film import Film
from vla_ros.resources import version
from vla_ros.signals import set_on_signal
from vla_ros.timing import Distribution

if TYPE_CHECKING:
    from vla_ros.bringup.graph import Graph
    from vla_ros.monitoring import StatusSeen
    from vla_ros.observe.demo.log import Measured
    from vla_ros.observe.demo.watcher import DemoWatcher

__all__ = ["add_parser", "run"]

GRAPH = "sim.up.yaml"
CONNECT_S = 60.0  # for the simulation to start and every topic to be found
SETTLE_S = 0.5  # after the end of the episode: for what is still on its way to us
OPEN_S = 30.0  # --view: the episode begins when the page is open, or without it after so long
STAY_S = 600.0  # ... and the page stays afterwards while somebody looks, at most so long
COUNTS_S = 1.2  # ... and for the policy's own counts, which it tells once a second
NOT_STARTED = 3
INTERRUPTED = 130


def run(args: argparse.Namespace) -> int:
    """Run the demo. Returns the exit status, see `vla-ros demo --help`."""
    more = view_node(args.mode == "lockstep") if args.view else None
    spec = GraphSpec.load(GRAPH, parameters(args), more=more)
    check_graph(spec)
    film = Film(args.gif) if args.gif else None
    domain = free_domain() if args.domain_id is None else args.domain_id
    isolate(domain)
    stop = threading.Event()
    set_on_signal(stop)
    try:
        return _Demo(args, spec, film, domain, stop).run()
    except ImportError as missing:
        error("vla-ros demo", f"{missing}; `vla-ros doctor` says what to install")
        return NOT_STARTED


class _Demo:
    """One run: the graph, a watcher beside it, and what is shown meanwhile."""

    def __init__(
        self,
        args: argparse.Namespace,
        spec: GraphSpec,
        film: Film | None,
        domain: int,
        stop: threading.Event,
    ) -> None:
        self._args = args
        self._spec = spec
        self._film = film
        self._domain = domain
        self._stop = stop
        self._progress = Progress()
        self._log: deque[str] = deque(maxlen=30)
        self._connect: Callable[[], None] = lambda: None
        self._visitors = Visitors()  # of the page in the browser

    def run(self) -> int:
        from vla_ros.bringup.environment import prepare
        from vla_ros.bringup.graph import Graph, GraphFailed, Stopped

        prepare()
        graph = Graph(
            self._spec,
            on_line=self._on_line,
            say=self._progress.say,
            interrupted=self._stop.is_set,
            before_activate=lambda: self._connect(),
        )
        try:
            with graph:
                seen = self._episode(graph)
                self._stay(graph, seen)
                trouble = [str(node) for node in graph.stop() if not node.clean]
        except Stopped:
            self._progress.end()
            error("vla-ros demo", "interrupted")
            return INTERRUPTED
        except GraphFailed as failed:
            self._progress.end()
            self._show_log()
            error("vla-ros demo", failed)
            return NOT_STARTED
        return self._conclude(seen, trouble)

    def _episode(self, graph: Graph) -> Measured:
        """Bring everything up and follow the episode to its end."""
        from vla_ros.observe.demo.watcher import DemoWatcher

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
        """Nobody acts before we see all of it: DDS needs a moment to find the other nodes."""
        from vla_ros.bringup.graph import GraphFailed

        until = time.monotonic() + CONNECT_S
        while not watcher.connected():
            self._pause(graph)
            if time.monotonic() > until:
                raise GraphFailed(f"no {watcher.missing()} within {CONNECT_S:g} s")
        if self._args.view:
            self._await_browser(graph)

    def _await_browser(self, graph: Graph) -> None:
        """An episode takes seconds: it would be over before anybody had opened the page."""
        until = time.monotonic() + OPEN_S
        while graph.runs(VIEW) and not self._visitors.watched and time.monotonic() < until:
            self._pause(graph)
            left = f"waits {until - time.monotonic():.0f} s more for a browser"
            self._progress.update("view", left if self._visitors.address else "view: starts")

    def _stay(self, graph: Graph, seen: Measured) -> None:
        """Keep the page that somebody looks at: to look back, and to say other instructions."""
        from vla_ros.bringup.graph import Stopped

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
        except Stopped:
            return  # the figures are there

    def _pause(self, graph: Graph) -> None:
        """Wait a moment. Raises Stopped when asked to end, GraphFailed when a node ended."""
        from vla_ros.bringup.graph import Stopped

        if self._stop.wait(0.1):
            raise Stopped
        graph.check()
        if address := self._visitors.news():
            self._progress.say(f"open {address} in a browser")

    def _show(self, watcher: DemoWatcher) -> None:
        seen = watcher.glance()
        state = seen.status.state.name if seen.status else "no policy heard yet"
        if seen.episode is None:
            self._progress.update(state, f"{state}; waiting for the simulation")
            return
        episode = seen.episode
        age = "-" if seen.age_ms is None else f"{seen.age_ms:.0f}"
        rate = "-" if seen.rate_hz is None else f"{seen.rate_hz:.1f}"
        figures = f"step {episode.step} of {episode.max_steps}  age {age} ms  {rate} Hz"
        self._progress.update(state, f"{state}  {episode.task}  {figures}")

    def _conclude(self, seen: Measured, trouble: list[str]) -> int:
        result = _result(self._args, seen, trouble, self._spec)
        if self._film is not None:
            self._progress.say(self._film.save())
        if result.exit_status:
            self._show_log()
        show(Card(result))
        if self._args.json:
            print(json_line(result), flush=True)
        return result.exit_status

    def _on_line(self, node: str, line: str) -> None:
        """A line of a node's log; called from threads."""
        self._log.append(f"[{node}] {line}")
        if node == VIEW:
            self._visitors.hear(line)
        if self._args.verbose:
            print(f"[{node}] {line}", file=sys.stderr, flush=True)

    def _show_log(self) -> None:
        """What the nodes said last, unless it was shown already."""
        if not self._args.verbose:
            print("\n".join(self._log), file=sys.stderr)


def _result(
    args: argparse.Namespace, seen: Measured, trouble: list[str], spec: GraphSpec
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
        control_rate_hz=status.control_rate_hz if status else None,
        max_age_ms=status.max_age_ms if status else None,
        achieved_rate_hz=report.command_rate_hz or None,
        # Over the whole episode: a few actions between two holds are no rate.
        action_rate_hz=report.actions / seen.wall_s if seen.wall_s else None,
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
    asked = spec.node("policy").values()
    device = status.device if status else ""
    return Setup(
        mode=args.mode,
        policy=status.policy if status else args.policy,
        schedule=status.schedule if status else "",
        checkpoint=status.checkpoint if status else "",
        device=device,
        dtype=status.dtype if status else "",
        machine=machine(device),
        version=version(),
        asked=str(asked.get("schedule", "")) if args.policy == "vla" else "",
    )


def _spent(stage: str, spread: Distribution) -> Distribution:
    """A stage of the model in which no time at all was spent is one that a policy has not."""
    return Distribution() if stage in INFERENCE_STAGES and spread.max == 0.0 else spread
