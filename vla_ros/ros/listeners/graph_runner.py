"""Episodes of an evaluation through the ROS graph: bridge and policy in processes of their own.

One graph is kept as long as its variant is played; a failure costs one episode and a new graph.
Every runner has a ROS domain of its own, so several work side by side.

    with GraphRunner(setup, variants) as runner:
        record = runner.play(job, variant)
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable
from typing import Any

from vla_ros.core.adaptation import adaptation_of_words
from vla_ros.core.types import PolicyState
from vla_ros.data.episodes.plan import age_limit_s, config_of
from vla_ros.data.episodes.play import DRAFTING_OPTIONS, RunnerFailed, state_parameters
from vla_ros.data.episodes.records import UNGATED, Job, Record, Setup, Variant
from vla_ros.data.episodes.store import FrameStrip
from vla_ros.data.episodes.variants import DRAFTING
from vla_ros.engine.options import OPTIONS
from vla_ros.ros.bringup.environment import isolate, leased_domain, prepare
from vla_ros.ros.bringup.graph import BringUpStopped, Graph, GraphFailed, LogLine
from vla_ros.ros.bringup.graph_file import GraphSpec
from vla_ros.ros.bringup.view import view_node
from vla_ros.ros.listeners.evaluation import EvalWatcher
from vla_ros.ros.listeners.evaluation_log import EvalLog
from vla_ros.runtime.control.queue import Execution
from vla_ros.sim.env import ACTION_RATE_HZ
from vla_ros.sim.episode import Mode

GRAPH = "sim.up.yaml"
ROBOTS = {"so101": "so101.up.yaml"}  # simulations whose robot has a graph of its own
NODES = ("bridge", "policy")  # a monitor would take time from them
CONNECT_S = 60.0  # for the simulation to start and every topic to be found
STALL_S = 60.0  # an episode in which nothing happens for so long is given up
ANSWER_TIMEOUT_S = 5.0  # lock-step: a slow policy is not a lost frame
#: what a setup gives the policy node of a model
OF_MODEL = ("checkpoint", "device", "dtype", "weights", "unnorm_key", "embodiment")
BRING_UPS = 2  # in a row that may fail before a variant is given up


class GraphRunner:
    """A :class:`vla_ros.data.episodes.play.Runner` for ``route`` ros.

    ``on_line`` gets (node, line) of every line that a node prints, from threads. ``interrupted``
    is called often; when it becomes true, ``vla_ros.ros.bringup.graph.BringUpStopped`` is raised.
    ``view``: a page in the browser beside each graph.
    """

    def __init__(
        self,
        setup: Setup,
        variants: tuple[Variant, ...] = (),
        *,
        on_line: LogLine = lambda node, line: None,
        interrupted: Callable[[], bool] = lambda: False,
        stall_s: float | None = None,
        view: bool = False,
    ) -> None:
        self.setup = setup
        self.view = view
        self.on_line = on_line
        self.interrupted = interrupted
        # The simulation's own time-out comes first: its message names the cause.
        longest = config_of(setup).timeouts.reset_s + 10.0
        self.stall_s = max(STALL_S, longest) if stall_s is None else stall_s
        self._open = contextlib.ExitStack()
        self.domain = 0
        self._live: _Live | None = None

    def __enter__(self) -> GraphRunner:
        self.domain = self._open.enter_context(leased_domain())
        isolate(self.domain)
        prepare()
        return self

    def __exit__(self, *raised: object) -> None:
        self._drop()
        self._open.close()

    def play(self, job: Job, variant: Variant, strip: FrameStrip | None = None) -> Record:
        """Record of one episode, which is played in the graph of its variant."""
        if self._live is not None and self._live.variant != variant:
            self._drop()  # before the next is brought up: both may not fit
        live, begun = self._live, self._live is None
        if live is None:
            live = self._live = self._bring_up(variant, job, strip)
        began = time.monotonic()
        broke = ""
        try:
            if not begun:
                live.begin(job, strip)
                begun = True
            broke = live.follow()
        except (GraphFailed, TimeoutError, ValueError) as error:
            broke = str(error)
        except BaseException:
            self._drop()
            raise
        log = live.watcher.log if begun else EvalLog(self.setup, 0, None)
        record = log.record(job, time.monotonic() - began, broke)
        if record.error or log.state is PolicyState.FAULT:
            self._drop()  # a broken graph must not go on acting
        return record

    def pid(self, node: str) -> int:
        """Process of "bridge" or "policy" in the graph that is kept; 0 without one."""
        return self._live.pid(node) if self._live is not None else 0

    @property
    def steps(self) -> int:
        """Control steps of the episode that is played, as received. From any thread."""
        return self._live.watcher.steps if self._live is not None else 0

    def _bring_up(self, variant: Variant, job: Job, strip: FrameStrip | None) -> _Live:
        """Graph that begins with the job. Raises RunnerFailed where none comes up."""
        failed = 0
        while True:
            live = _Live(self, variant, job, strip)
            try:
                live.start()
                return live
            except GraphFailed as error:
                live.stop()
                failed += 1
                if failed == BRING_UPS:
                    raise RunnerFailed(f"{variant.label}: {error}") from error
            except BaseException:
                live.stop()
                raise

    def _drop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


class _Live:
    """Graph of one variant, and its watcher."""

    def __init__(
        self, runner: GraphRunner, variant: Variant, first: Job, strip: FrameStrip | None
    ) -> None:
        self.variant = variant
        self._stall_s = runner.stall_s
        self._interrupted = runner.interrupted
        spec = graph_of(runner.setup, variant, first, runner.view)
        delay_s = variant.image_delay_ms / 1e3
        self.watcher = EvalWatcher(runner.domain, runner.setup, delay_s, strip)
        self._graph = Graph(
            spec,
            environment={**os.environ, "ROS_DOMAIN_ID": str(runner.domain)},
            on_line=runner.on_line,
            interrupted=runner.interrupted,
            before_activate=self._connect,
        )

    def pid(self, node: str) -> int:
        return self._graph.pid(node)

    def start(self) -> None:
        """Bring everything up. Raises GraphFailed."""
        self._graph.start()

    def stop(self) -> None:
        self._graph.stop()
        self.watcher.close()

    def begin(self, job: Job, strip: FrameStrip | None) -> None:
        self.watcher.begin(job, strip, self._check)

    def follow(self) -> str:
        """Wait until the episode is over; returns why it was given up, or ""."""
        broke = self.watcher.follow(self._stall_s, self._check)
        if not broke and self.watcher.log.ended:
            self.watcher.settle(self._check)
        return broke

    def _check(self) -> None:
        if self._interrupted():
            raise BringUpStopped
        self._graph.check()

    def _connect(self) -> None:
        """Wait for every topic, before anything acts: DDS needs a moment to find the nodes."""
        if not self.watcher.wait(self.watcher.connected, CONNECT_S, self._check):
            raise GraphFailed(f"no {self.watcher.missing()} within {CONNECT_S:g} s")


def graph_of(setup: Setup, variant: Variant, first: Job, view: bool = False) -> GraphSpec:
    """Graph of the nodes to start; the bridge begins with the episode ``first``."""
    more = view_node(setup.mode is Mode.LOCKSTEP) if view else {}
    graph = ROBOTS.get(setup.environment, GRAPH)
    spec = GraphSpec.load(graph, overrides(setup, variant, first), more=more or None)
    return dataclasses.replace(spec, nodes=tuple(spec.node(name) for name in (*NODES, *more)))


def engine_words(setup: Setup, variant: Variant) -> list[str]:
    """Engine options of the policy node that are not their defaults."""
    names = ["rtc_mode"] if variant.execution == Execution.RTC else []
    if variant.decoding in DRAFTING:
        names += DRAFTING_OPTIONS
    elif not variant.adaptive_draft and variant.decoding in ("", "auto"):
        names += ["adaptive_draft"]
    options = {"seed": setup.seed, **{name: getattr(variant, name) for name in names}}
    words = [*setup.engine_options]
    words += [f"{n}={v}" for n, v in options.items() if v != OPTIONS[n].default]
    return words or [""]


def _conventions(setup: Setup) -> dict[str, Any]:
    """Parameters of the policy node that say what the checkpoint's numbers are."""
    given: dict[str, Any] = {"preprocessing": setup.preprocessing, "gripper": setup.gripper}
    if setup.action_units:
        given["action_units"] = list(setup.action_units)
    if setup.action_scale is not None:
        given["action_scale"] = list(setup.action_scale)
    return given | adaptation_of_words(setup.adaptation).parameters()


def overrides(setup: Setup, variant: Variant, first: Job) -> dict[str, dict[str, Any]]:
    """Parameters of the nodes: node -> parameter -> value."""
    lockstep = setup.mode is Mode.LOCKSTEP
    policy: dict[str, Any] = {
        "policy": setup.policy,
        "mode": setup.mode.value,
        "num_threads": setup.num_threads,
        "execution": variant.execution,
        "control_rate_hz": setup.control_rate_hz or ACTION_RATE_HZ,
        "replan_interval": variant.replan_interval,
        "delay_frames": variant.delay_frames,
        "max_age_s": age_limit_s(setup, variant),
        "use_sim_time": lockstep,
        **(UNGATED if setup.ungated else {}),
        **state_parameters(setup.state),
    }
    if setup.policy == "vla":
        policy |= {
            **{name: getattr(setup, name) for name in OF_MODEL},
            **_conventions(setup),
            "decoding": variant.decoding or "auto",
            "engine_options": engine_words(setup, variant),
        }
    bridge: dict[str, Any] = {
        "environment": setup.environment,
        "suite": setup.suite,
        "mode": setup.mode.value,
        "image_size": setup.image_size,
        "wrist_camera": setup.wrist,
        "max_steps": setup.max_steps,
        "control_rate_hz": setup.control_rate_hz,
        "nudge_m": setup.nudge_m,
        "auto_reset": False,
        "image_delay_ms": variant.image_delay_ms,
        "answer_timeout_s": ANSWER_TIMEOUT_S,
        "task": first.task,
        "initial_state": first.initial_state,
        "seed": first.seed,
        "instruction": first.instruction,
    }
    return {"policy": policy, "bridge": bridge}
