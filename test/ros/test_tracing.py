"""Spans of the stages of an action: in memory, and sent by a running monitor to a collector."""

from __future__ import annotations

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")

from support.nodes import Program
from support.wait import wait_until
from vla_ros.core.types import STAGES, CommandKind
from vla_ros.msg import ActionCommand, Stages
from vla_ros.ros.common.convert import to_time
from vla_ros.ros.common.qos import ACTION
from vla_ros.runtime.monitor.seen import CommandSeen, StagesSeen

MS = 1_000_000
OBSERVED = 1_700_000_000_000_000_000
SPENT = (5.0, 1.0, 0.5, 12.0, 8.0, 20.0, 3.5)  # ms
TOTAL = OBSERVED + 50 * MS
MONITOR = [sys.executable, "-m", "vla_ros.ros.nodes.monitor.node", "--ros-args"]


def command(kind=CommandKind.POLICY, observed_ns=OBSERVED, number=3):
    return CommandSeen(number, kind, TOTAL, observed_ns, 2, StagesSeen(SPENT, 50.0), 30.0)


def test_the_stages_of_an_action_abut_inside_it_and_each_observation_is_traced_once():
    pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry is not installed")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from vla_ros.ros.nodes.monitor.tracing import ActionTraces

    memory = InMemorySpanExporter()
    traces = ActionTraces(memory, "/arm/monitor")
    for seen in (
        command(CommandKind.HELD),
        command(observed_ns=0),
        command(),
        command(number=4),  # the rest of the chunk
    ):
        traces.command(seen)
    traces.close()
    *stages, action = memory.get_finished_spans()
    assert (action.name, action.start_time, action.end_time) == ("action", OBSERVED, TOTAL)
    assert action.attributes["vla.sequence"] == 3 and action.attributes["vla.staleness_ms"] == 30.0
    assert action.resource.attributes["ros.node"] == "/arm/monitor"
    assert tuple(span.name for span in stages) == STAGES
    begin = OBSERVED
    for span, spent_ms in zip(stages, SPENT, strict=True):
        assert span.parent.span_id == action.context.span_id
        assert (span.start_time, span.end_time) == (begin, begin + round(spent_ms * MS))
        begin = span.end_time
    assert begin == TOTAL


def test_a_running_monitor_sends_them_where_otel_s_variables_say(ros, ros_env):
    trace_service = pytest.importorskip(
        "opentelemetry.proto.collector.trace.v1.trace_service_pb2",
        reason="OpenTelemetry is not installed",
    )
    names = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") is None:
                got = trace_service.ExportTraceServiceRequest.FromString(body)
                for resource in got.resource_spans:
                    for scope in resource.scope_spans:
                        names.extend(span.name for span in scope.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    given = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
    }
    node = Program("monitor", [*MONITOR, "-p", "tracing:=true"], {**ros_env, **given})
    try:
        publisher = ros.publisher(ActionCommand, "policy/action", ACTION)
        ros.wait_for_subscriber(publisher, 30.0)
        message = ActionCommand(kind=CommandKind.POLICY.value, sequence=1)
        message.observation_stamp, message.header.stamp = to_time(OBSERVED), to_time(TOTAL)
        message.stages = Stages(**{f"{s}_s": ms / 1e3 for s, ms in zip(STAGES, SPENT, strict=True)})
        publisher.publish(message)
        wait_until(lambda: {"action", *STAGES} <= {*names}, 30.0, lambda: f"{names} {node.log}")
    finally:
        node.kill()
        server.shutdown()


def test_without_opentelemetry_it_is_refused_in_a_line(ros_env):
    hide = "import sys; sys.modules['opentelemetry'] = None; "
    start = hide + "from vla_ros.ros.nodes.monitor.node import main; sys.exit(main(sys.argv))"
    words = [sys.executable, "-c", start, "--ros-args", "-p", "tracing:=true"]
    done = subprocess.run(words, env=ros_env, capture_output=True, text=True, timeout=60)
    last = (done.stderr.strip().splitlines() or [""])[-1]
    assert done.returncode == 2 and "pip install 'vla_ros[tracing]'" in last, done.stderr
