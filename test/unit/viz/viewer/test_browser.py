"""The real browser of the tests, without a robot: it ends with its test, and it moves a slider."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("websockets", reason="websockets is not installed: make view")

from support.browser import missing
from support.processes import with_words
from support.wait import wait_until

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "there is a browser")
TEST = Path(__file__).resolve().parents[3]
OPENS = """
import sys, time
from support.browser import browser
with browser() as page:
    print("open", flush=True)
    time.sleep(300)
"""


@pytest.mark.timeout(240)
def test_it_ends_with_a_test_that_is_killed():
    # Not tmp_path: Chromium has a socket in it, whose name may have a hundred letters.
    with tempfile.TemporaryDirectory(prefix="browser") as folder:
        environment = {**os.environ, "TMPDIR": folder, "PYTHONPATH": str(TEST)}
        process = subprocess.Popen(
            [sys.executable, "-c", OPENS], env=environment, stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout.readline() == "open\n"
            assert with_words("--headless", folder)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        wait_until(lambda: not with_words(folder), 60, "no process of the browser")


ROBOT = """<robot name="lift"><link name="floor"/><link name="box"><visual><geometry>
<box size="0.3 0.3 0.3"/></geometry><material><color rgba="0.9 0 0 1"/></material></visual></link>
<joint name="up" type="prismatic"><parent link="floor"/><child link="box"/><axis xyz="0 0 1"/>
</joint></robot>"""
SLIDER = ".mantine-Slider-root"


def height_of_the_box(page, path):
    """Where the middle of what is red stands in the image, in pixels from its upper edge; None:
    nothing is drawn yet."""
    page.picture(path)
    pixels = np.asarray(Image.open(io.BytesIO(path.read_bytes())).convert("RGB"), np.int32)
    scene = pixels[:, 440 : pixels.shape[1] - 440]  # between the panels
    red = (scene[..., 0] > 90) & (scene[..., 1] < 60) & (scene[..., 2] < 60)
    return float(np.nonzero(red)[0].mean()) if red.sum() > 200 else None


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_slider_shows_the_robot_where_it_was(tmp_path):
    """Ten seconds ago the box began to stand low; before, it was half a metre higher."""
    pytest.importorskip("viser", reason="viser is not installed: make view")
    from support.browser import browser
    from vla_ros.core.clock import SECOND
    from vla_ros.viz.robot_model import read
    from vla_ros.viz.viewer.guard import PageGuard
    from vla_ros.viz.viewer.model import ViewHistory, ViewInstant
    from vla_ros.viz.viewer.window import PageWindow

    past = ViewHistory()
    for tenth in range(250):
        up = 0.5 if tenth < 150 else 0.0
        past.add(ViewInstant(1 + tenth * SECOND // 10, joints={"up": up}))
    window = PageWindow("127.0.0.1", 8099, PageGuard(), lambda ask: None, lambda push: None)
    picture = tmp_path / "page.png"
    try:
        window.stage.set_robot(read(ROBOT))
        with browser() as page:
            page.open(f"http://localhost:{window.port}/")

            there = f"!!document.querySelector({SLIDER!r})"
            wait_until(lambda: page.run(there), 120, "the slider", every=0.5)

            def shown():
                window.stage.show(past.at(window.seconds_ago), 20.0)
                return height_of_the_box(page, picture)

            low = wait_until(shown, 180, "the robot in the page", every=0.5)
            page._click(f"document.querySelector({SLIDER!r})")  # its middle: 15 s ago
            wait_until(lambda: 13 < window.seconds_ago < 17, 60, lambda: str(window.seconds_ago))
            wait_until(
                lambda: (shown() or low) < low - 50, 120, "the robot where it was", every=0.5
            )
            before = window.seconds_ago
            page.press_key("ArrowLeft", 37)
            wait_until(lambda: window.seconds_ago < before, 60, "a step by the keyboard")
            page.press_key("Home", 36)
            wait_until(lambda: window.seconds_ago == 0, 60, "the present by the keyboard")
            wait_until(lambda: abs((shown() or 0) - low) < 5, 120, "where it is now", every=0.5)
    finally:
        window.close()


@pytest.mark.timeout(400)
def test_a_button_of_the_takeover_speaks_for_as_long_as_it_is_held(tmp_path):
    pytest.importorskip("viser", reason="viser is not installed: make view")
    from support.browser import browser
    from vla_ros.viz.viewer.guard import PageGuard
    from vla_ros.viz.viewer.window import JogRequest, PageWindow

    pushes = []
    window = PageWindow("127.0.0.1", 8099, PageGuard(), lambda ask: None, pushes.append)
    folder = "[...document.querySelectorAll('*')].filter(e => e.innerText?.trim() == 'Take over')"
    folder += ".pop()"
    try:
        with browser() as page:
            page.open(f"http://localhost:{window.port}/")
            wait_until(lambda: page.run(f"!!{folder}"), 120, "the folder", every=0.5)
            page._click(folder)
            for _ in range(20):  # a page that is drawn anew meanwhile takes the button away
                with page.holding_button("↻ E"):
                    with contextlib.suppress(AssertionError):
                        wait_until(lambda: pushes, 3, "a word")
                    if pushes:
                        wait_until(lambda: len(pushes) > 5, 20, "more than one word")
                        break
            assert set(pushes) == {JogRequest((0.0, 0.0, 0.0, 0.0, 0.0, -0.4))}
            page.press_button("Close")
            wait_until(lambda: JogRequest(opening=0.0) in pushes, 60, "the gripper")
            assert pushes[-1] == JogRequest(opening=0.0)
            page.picture(tmp_path / "page.png")
    finally:
        window.close()
