"""A page that has lost its link covers itself: what it shows is not so any more, and STOP on it
does nothing. In a real browser; the view stands still, as behind a pulled cable, or is gone."""

from __future__ import annotations

import re
import signal

import pytest

pytest.importorskip("rclpy", reason="rclpy is not installed: no ROS 2 here")
pytest.importorskip("viser", reason="viser is not installed: make view")

from support.browser import browser, missing
from support.timing import judge
from support.wait import wait_until

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "there is a browser")
BROWSER_S = 90.0  # software rendering, on a machine that may have other things to do
COVER = "document.getElementById('vla-lost')"
IS_LOST = f"!!{COVER} && {COVER}.checkVisibility()"
# What a press on STOP would hit.
ON_STOP = """(() => { const r = [...document.querySelectorAll('button')].find(
  b => b.innerText.trim() == 'STOP').getBoundingClientRect();
  const e = document.elementFromPoint(r.x + r.width / 2, r.y + r.height / 2);
  return e.closest('#vla-lost') ? 'cover' : e.closest('button')?.innerText.trim(); })()"""


def address_of(view):
    return wait_until(lambda: re.search(r"http://\S+", view.log), 30, "an address")[0]


def open_page(page, view):
    page.size(900, 600)  # little 3-D to draw
    page.open(address_of(view))
    wait_until(lambda: page.run(f"!!{COVER}"), BROWSER_S, "the page", every=0.5)
    assert not page.run(IS_LOST)


def lost(page):
    """The page's own text once it is covered; and when it was, in seconds after the last beat."""
    wait_until(lambda: page.run(IS_LOST), BROWSER_S, "NOT CONNECTED", every=0.1)
    judge("page says that it is lost", float(page.run(f"{COVER}.dataset.after")), quiet=2, loaded=6)
    assert page.run(ON_STOP) == "cover"
    return page.run(f"{COVER}.innerText")


def found(page):
    wait_until(lambda: not page.run(IS_LOST), BROWSER_S, "connected again", every=0.2)
    wait_until(lambda: page.run(ON_STOP) == "STOP", BROWSER_S, "STOP", every=0.2)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_page_that_is_lost_says_so_and_what_to_press_instead(spawn_node):
    view = spawn_node("view", {"port": 8420})
    with browser() as page:
        open_page(page, view)
        view.signal(signal.SIGSTOP)
        text = lost(page)
        assert text.startswith("NOT CONNECTED")
        assert "STOP cannot be pressed here" in text and "emergency stop" in text
        view.signal(signal.SIGCONT)
        found(page)
        view.kill()
        lost(page)
        again = spawn_node("view", {"port": 8420})
        address_of(again)
        found(page)
