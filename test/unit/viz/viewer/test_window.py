"""What the page's widgets are sent."""

import math
import urllib.error
import urllib.request

import numpy as np
import pytest

msgspec = pytest.importorskip("msgspec", reason="viser is not installed: make view")
pytest.importorskip("viser", reason="viser is not installed: make view")

from vla_ros.viz.viewer.guard import PageGuard
from vla_ros.viz.viewer.model import Chart, ChartLine
from vla_ros.viz.viewer.window import GuardedServer, encoded


def test_where_nothing_was_measured_the_browser_gets_null():
    x, y = np.array([-2.0, -1.0, 0.0]), np.array([1.5, math.nan, 0.0])
    strip = Chart("age", "observation age, ms", (ChartLine("age", "#000"),), x, (y,), 0.0, 2.0)
    sent = msgspec.msgpack.decode(bytes(encoded(strip)))
    assert sent == [[-2.0, -1.0, 0.0], [1.5, None, 0.0]]


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/", {}, 200),
        ("/nothing.js", {}, 404),
        ("/", {"Origin": "http://evil.example"}, 403),
    ],
)
def test_no_page_frames_it(path, headers, status):
    """A page of another origin pressed Resume through a frame that nobody saw."""
    server = GuardedServer("127.0.0.1", 8490, PageGuard())
    try:
        url = f"http://127.0.0.1:{server.get_port()}{path}"
        try:
            answer = urllib.request.urlopen(
                urllib.request.Request(url, headers=headers), timeout=20
            )
        except urllib.error.HTTPError as error:
            answer = error
        assert answer.status == status
        assert answer.headers["Content-Security-Policy"] == "frame-ancestors 'none'"
        assert answer.headers["X-Frame-Options"] == "DENY"
        answer.close()  # the server waits for open connections when it stops
    finally:
        server.stop()
