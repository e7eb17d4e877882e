"""What the page's widgets are sent."""

import math

import numpy as np
import pytest

msgspec = pytest.importorskip("msgspec", reason="viser is not installed: make view")
pytest.importorskip("viser", reason="viser is not installed: make view")

from vla_ros.viz.viewer.model import Chart, ChartLine
from vla_ros.viz.viewer.window import encoded


def test_where_nothing_was_measured_the_browser_gets_null():
    x, y = np.array([-2.0, -1.0, 0.0]), np.array([1.5, math.nan, 0.0])
    strip = Chart("age", "observation age, ms", (ChartLine("age", "#000"),), x, (y,), 0.0, 2.0)
    sent = msgspec.msgpack.decode(bytes(encoded(strip)))
    assert sent == [[-2.0, -1.0, 0.0], [1.5, None, 0.0]]
