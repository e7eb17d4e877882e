"""The images are images: of the promised size, not blank, with the points on them."""

from __future__ import annotations

import numpy as np
from PIL import Image

from vla_ros.core.resources import config_path
from vla_ros_lab.roofline import plots
from vla_ros_lab.roofline.decodings import decodings
from vla_ros_lab.roofline.devices import load_devices
from vla_ros_lab.roofline.roofline import Roofline
from vla_ros_lab.roofline.shapes import load_model

YELLOW = np.array([0xFF, 0xD9, 0x2F])  # an operating point's


def pixels(path) -> np.ndarray:
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image.convert("RGB")).astype(int)


def yellow(path) -> int:
    return int((np.abs(pixels(path) - YELLOW).max(axis=2) < 8).sum())


def test_landscape_and_break_even_show_where_one_stands(tmp_path):
    points = [plots.Point("temporal", 0.5, 0.0), plots.Point("minivla", 0.3, 0.07)]
    for draw in (
        lambda path, marks: plots.plot_landscape(path, 6, marks, "a test"),
        lambda path, marks: plots.plot_break_even(path, marks, "a test"),
    ):
        with_points = draw(tmp_path / "deep" / "a.png", points)
        without = draw(tmp_path / "b.png", [])
        assert min(pixels(with_points).shape[:2]) > 600
        assert yellow(with_points) > yellow(without) + 200
        assert pixels(without).std() > 10


def test_the_landscape_reaches_up_to_a_dear_draft(tmp_path):
    near = pixels(plots.plot_landscape(tmp_path / "a.png", 6, [], "x"))
    far = pixels(plots.plot_landscape(tmp_path / "b.png", 6, [plots.Point("d", 0.2, 0.7)], "x"))
    assert (near != far).any()


def test_rate_against_age(tmp_path):
    devices = load_devices(config_path("devices.yaml"))
    found = decodings(
        Roofline(load_model("openvla-7b"), devices["h200"]), draft=load_model("minivla")
    )
    path = plots.plot_rate_age(tmp_path / "r.png", found, 30.0, "a test")
    shown = pixels(path)
    orange = np.array([0xD5, 0x5E, 0x00])  # actionflow, filled, somewhere in the upper half
    rows = np.nonzero((np.abs(shown - orange).max(axis=2) < 8).any(axis=1))[0]
    assert len(rows) > 0
    assert rows.min() < shown.shape[0] / 3
