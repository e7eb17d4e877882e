"""Run of a graph by a verb (demo, replay): its nodes' log, its progress, and a failure as one line
and a status."""

from __future__ import annotations

import argparse
import threading
from collections import deque
from collections.abc import Callable

from vla_ros.core.console import Progress, error, log_line
from vla_ros.core.signals import set_on_signal
from vla_ros.ros.bringup.environment import free_domain, isolate, prepare
from vla_ros.ros.bringup.graph import BringUpStopped, Graph, GraphFailed, TimedOut
from vla_ros.ros.bringup.graph_file import GraphSpec
from vla_ros.ros.common.ending import STUCK, end_with_parent

NOT_STARTED = 3
INTERRUPTED = 130


class GraphRun:
    """One run of a graph, which SIGINT and SIGTERM end. ``args``: --domain-id, --verbose."""

    def __init__(self, verb: str, args: argparse.Namespace) -> None:
        self._verb, self._args = f"vla-ros {verb}", args
        self._progress = Progress()
        self._log: deque[str] = deque(maxlen=30)
        self._stop = threading.Event()
        end_with_parent()
        set_on_signal(self._stop)

    def graph(self, spec: GraphSpec, before_activate: Callable[[], None] = lambda: None) -> Graph:
        """Graph of this process's domain: that of the options, else a free one."""
        given = self._args.domain_id
        self._domain = free_domain() if given is None else given
        isolate(self._domain)
        prepare()
        return Graph(
            spec,
            on_line=self.on_line,
            say=self._progress.say,
            interrupted=self._stop.is_set,
            before_activate=before_activate,
        )

    def outcome(self, body: Callable[[], int]) -> int:
        """Exit status of ``body``; a failure of the graph is reported in one line."""
        try:
            return body()
        except BringUpStopped:
            self._progress.end()
            error(self._verb, "interrupted")
            return INTERRUPTED
        except GraphFailed as failed:
            self._progress.end()
            self.show_log()
            error(self._verb, failed)
            return STUCK if isinstance(failed, TimedOut) else NOT_STARTED
        except ImportError as missing:
            error(self._verb, f"{missing}; `vla-ros doctor` says what to install")
            return NOT_STARTED

    def on_line(self, node: str, line: str) -> None:
        """Keep a line of a node's log. Called from threads."""
        self._log.append(f"[{node}] {line}")
        if self._args.verbose:
            log_line(f"[{node}] {line}")

    def show_log(self) -> None:
        """Print the nodes' last lines, unless they were shown already."""
        if not self._args.verbose:
            for line in self._log:
                log_line(line)
