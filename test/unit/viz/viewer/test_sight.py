"""What a person sees of the page in Chromium: STOP always, every text, at a desk and on a phone."""

import contextlib
import json
import time

import pytest

pytest.importorskip("websockets", reason="websockets is not installed: make view")
pytest.importorskip("viser", reason="viser is not installed: make view")

from support.browser import browser, missing
from support.wait import wait_until
from vla_ros.core.types import STOPPED, PolicyState
from vla_ros.runtime.monitor.seen import StatusSeen
from vla_ros.viz.viewer.guard import PageGuard
from vla_ros.viz.viewer.model import LogLine, Page
from vla_ros.viz.viewer.style import held_html
from vla_ros.viz.viewer.window import JogRequest, PageWindow

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=missing() or "there is a browser"),
    pytest.mark.timeout(400),
]
SIZES = {"desk": (1280, 800), "phone": (390, 844)}
STOP = "[...document.querySelectorAll('button')].find(b => b.innerText.trim() == 'STOP')"
FOLDER = "[...document.querySelectorAll('*')].filter(e => e.innerText?.trim() == 'Take over').pop()"
SCROLL = """[...document.querySelectorAll('.mantine-ScrollArea-viewport')].find(
  e => e.querySelector('#vla-stop-mark'))"""
#: Texts of the panel whose contrast with what is behind them is below 4.5:1, as WCAG 2 counts it.
PALE = """(() => {
  const numbers = text => text.match(/[\\d.]+/g).map(Number);
  const light = rgb => { const [r, g, b] = rgb.map(v => { v /= 255;
    return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; });
    return .2126 * r + .7152 * g + .0722 * b; };
  const over = (front, back, share) => back.map((v, i) => front[i] * share + v * (1 - share));
  const behind = e => { const stack = [];
    for (; e; e = e.parentElement) { const c = numbers(getComputedStyle(e).backgroundColor);
      const share = c[3] ?? 1; if (share) stack.push([c, share]); if (share == 1) break; }
    return stack.reverse().reduce((back, [c, share]) => over(c, back, share), [255, 255, 255]); };
  const found = [];
  for (const e of document.querySelector('#vla-stop-mark').closest('.mantine-Paper-root')
      .querySelectorAll('*:not(style, script)')) {
    const text = [...e.childNodes].filter(n => n.nodeType == 3).map(n => n.textContent).join('');
    if (!text.trim() || !e.offsetParent) continue;
    let share = 1;
    for (let p = e; p; p = p.parentElement) share *= +getComputedStyle(p).opacity;
    const back = behind(e), color = numbers(getComputedStyle(e).color);
    const ink = over(color, back, share * (color[3] ?? 1));
    const [low, high] = [light(ink), light(back)].sort((a, b) => a - b);
    const contrast = (high + .05) / (low + .05);
    if (contrast < 4.5) found.push([text.trim(), contrast]);
  }
  return JSON.stringify(found);
})()"""


@pytest.fixture(scope="module")
def shown():
    """The page, its window and what was pushed at it, with the takeover open."""
    pushes = []
    window = PageWindow("127.0.0.1", 8199, PageGuard(), lambda ask: None, pushes.append)
    content = Page()
    for number in range(10):
        content.hear_log(LogLine("policy", 20 + 10 * (number % 3), f"line {number}"))

    def show(state, reason, held=None):
        status = StatusSeen(state, reason, policy="vla", checkpoint="shipped:tabletop")
        content.hear_status(status, "pick up the red cube", 0)
        banner = content.banner_html(1) + ("" if held is None else held_html(held))
        words = content.facts_html(), content.assumptions_html(), content.log_html()
        window.show_words(banner, *words)

    try:
        with browser() as page:
            page.size(*SIZES["desk"])
            page.open(f"http://localhost:{window.port}/")
            wait_until(lambda: page.run(f"!!{STOP}"), 120, "the page", every=0.5)
            show(PolicyState.RUNNING, "running")
            yield page, show, pushes
    finally:
        window.close()


def open_pad(page):
    """The takeover is open: another layout of the panel closes it."""
    seen = """(() => { const b = [...document.querySelectorAll('button')].find(
      b => b.innerText.trim().endsWith(' K')); if (!b) return false;
      b.scrollIntoView({block: 'end'}); const r = b.getBoundingClientRect();
      return b.contains(document.elementFromPoint(r.x + r.width / 2, r.y + r.height / 2)); })()"""
    time.sleep(2.0)
    for _ in range(5):
        with contextlib.suppress(AssertionError):
            wait_until(lambda: page.run(seen), 0.5, "it is open")
            return
        page._click(FOLDER)
        with contextlib.suppress(AssertionError):
            wait_until(lambda: page.run(seen), 5, "it unfolds slowly where it is drawn in software")
    raise AssertionError("the takeover does not open")


def box(page):
    return json.loads(page.run(f"JSON.stringify({STOP}.getBoundingClientRect())"))


def is_hit(page):
    """Whether STOP itself is what a press in its middle meets."""
    return page.run(
        f"(() => {{ const s = {STOP}, r = s.getBoundingClientRect();"
        " return s.contains(document.elementFromPoint(r.x + r.width / 2, r.y + r.height / 2)); })()"
    )


@pytest.mark.parametrize("size", SIZES)
def test_stop_is_in_sight_however_far_the_panel_is_scrolled(shown, size):
    page, show, _ = shown
    width, height = SIZES[size]
    page.size(width, height)
    show(PolicyState.TAKEOVER, "a person has taken over", held=False)
    open_pad(page)
    for top in (0, 150, 300, 600, 99_999):
        page.run(f"{SCROLL}.scrollTop = {top}")
        time.sleep(0.3)
        stop = box(page)
        assert stop["y"] >= 0 and stop["y"] + stop["height"] <= height, (top, stop)
        assert stop["height"] >= 60 and is_hit(page), (top, stop)
    assert page.run(f"{SCROLL}.scrollTop") > 100, "there was something to scroll"
    state = page.run("document.querySelector('#vla-word').getBoundingClientRect().y")
    assert 0 < state < height, "the state stays beside it"
    if size == "phone":
        assert stop["width"] > 0.9 * width


@pytest.mark.long
@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_every_text_can_be_read_in_every_state(shown, size, mode):
    page, show, _ = shown
    page.size(*SIZES[size])
    page.run(f"document.documentElement.setAttribute('data-mantine-color-scheme', {mode!r})")
    states = [(state, "why") for state in PolicyState]
    for state, reason in [*states, (PolicyState.WAITING, f"{STOPPED}waits for resume")]:
        show(state, reason, held=state is PolicyState.TAKEOVER)
        time.sleep(0.4)
        assert json.loads(page.run(PALE)) == [], state


def test_a_key_holds_its_button_until_it_or_the_focus_goes(shown):
    page, _, pushes = shown
    page.size(*SIZES["desk"])
    open_pad(page)
    key = {"key": "s", "code": "KeyS", "windowsVirtualKeyCode": 83}
    for ends in ("up", "blur"):
        pushes.clear()
        page.call("Input.dispatchKeyEvent", type="rawKeyDown", **key)
        wait_until(lambda: len(pushes) > 3, 30, "what a held key does")
        if ends == "up":
            page.call("Input.dispatchKeyEvent", type="keyUp", **key)
        else:
            page.run("window.dispatchEvent(new Event('blur'))")
        time.sleep(0.5)
        count = len(pushes)
        time.sleep(0.6)
        assert len(pushes) == count, ends
        assert set(pushes) == {JogRequest((-0.1, 0.0, 0.0, 0.0, 0.0, 0.0))}
    page.call("Input.dispatchKeyEvent", type="keyUp", **key)


def test_waiting_hold_and_stopped_are_three_words_and_three_colors():
    content, seen = Page(), {}
    for state, reason in (
        (PolicyState.WAITING, "waits for an instruction"),
        (PolicyState.WAITING, f"{STOPPED}waits for resume or another instruction"),
        (PolicyState.HOLD, "observation age 528 ms exceeds max_age 500 ms"),
    ):
        content.hear_status(StatusSeen(state, reason), "", 0)
        seen[content.banner(1).word] = content.banner(1).color
    assert list(seen) == ["WAITING", "STOPPED", "HOLD"]
    assert len(set(seen.values())) == 3
    content.hear_status(StatusSeen(PolicyState.RUNNING, "running"), "", 0)
    assert content.banner(1).reason == ""
