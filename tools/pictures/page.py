"""The page of `--view` in each of its states, in a real browser: images to look at, and what a
script can judge of them.

    cd tools && PYTHONPATH=..:../test ../.venv/bin/python -m pictures.page ../build/page [STATE ...]

The page's own server and content, given the statuses that the nodes give it; no graph, so that a
busy machine can make it. Writes STATE-WIDTH-SCHEME.png. Judges in each: text below a contrast of
4.5, text that is cut off or outside, STOP out of sight or covered, also with the panel scrolled to
its end. 1: something is wrong, a line each.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from support.browser import Page as Tab
from support.browser import browser
from support.wait import wait_until
from vla_ros.core.action_space import END_EFFECTOR_DELTA
from vla_ros.core.assumption import Assumption
from vla_ros.core.clock import MS, SECOND
from vla_ros.core.types import SHADOW, STAGES, STOPPED, CommandKind, Image, PolicyState
from vla_ros.runtime.monitor.seen import CommandSeen, StagesSeen, StatusSeen
from vla_ros.viz.viewer.guard import PageGuard
from vla_ros.viz.viewer.model import (
    EVERY_NS,
    Banner,
    CommandShown,
    LogLine,
    Page,
    SimulationState,
    Strips,
    burnt,
    instructions_of,
    side_by_side,
)
from vla_ros.viz.viewer.style import held_html
from vla_ros.viz.viewer.window import PageWindow

SIZES = ((1280, 800), (390, 844))
SCHEMES = ("light", "dark")
WAIT_S = 300.0  # of a machine that has other things to do
SETTLE_S = 0.5
PORT = 8600
TASK = "pick up the red cube and put it on the plate"
COVER = "!!document.querySelector('#vla-lost[data-lost]')"
FOLDER = """document.evaluate("//*[text()='Take over']", document, null, 9).singleNodeValue"""


@dataclass(frozen=True, slots=True)
class Shown:
    """A state of the page. ``held``: of a person who has the robot; ``age_ms``: of the images;
    ``opened``: the takeover's pad."""

    state: PolicyState | None
    reason: str = ""
    instruction: str = TASK
    silent_s: float = 0.0
    held: bool | None = None
    age_ms: float | None = 42.0
    opened: bool = False
    lost: bool = False


S = PolicyState
NO_IMAGE = (
    "no image on /front_camera/image_raw yet, nobody publishes it: start the driver, or set"
    " cameras.main.topic"
)
STATES = {
    "no_policy": Shown(None, age_ms=None),
    "waiting": Shown(S.WAITING, "waits for an instruction", ""),
    "no_camera": Shown(S.WAITING, NO_IMAGE, age_ms=None),
    "running": Shown(S.RUNNING, "running"),
    "finished": Shown(S.WAITING, "the episode is over: success"),
    "stale": Shown(S.HOLD, "observation age 1340 ms exceeds max_age 500 ms", age_ms=1340.0),
    "stopped": Shown(S.WAITING, f"{STOPPED}call ~/resume, or give another instruction"),
    "fault": Shown(S.FAULT, "worker died: killed by SIGKILL; it is started again"),
    "inactive": Shown(S.INACTIVE, "inactive", ""),
    "silent": Shown(S.RUNNING, "running", silent_s=12.0, age_ms=9000.0),
    "shadow": Shown(
        S.RUNNING, f"running; {SHADOW}nothing of ours moves the robot; differs by 0.12 rad (elbow)"
    ),
    "open": Shown(S.RUNNING, "running", opened=True),
    "held": Shown(S.TAKEOVER, "a person has taken over", held=True, opened=True),
    "not_held": Shown(S.TAKEOVER, "a person has taken over", held=False, opened=True),
    "lost": Shown(S.TAKEOVER, "a person has taken over", held=True, opened=True, lost=True),
}

# Every text that is seen: its contrast against the colors behind it, and whether it is cut off.
AUDIT = """(() => {
  const rgba = text => { const n = text.match(/[\\d.]+/g).map(Number);
    return n.length < 4 ? [...n, 1] : n; };
  const over = (a, b) => [0, 1, 2].map(i => a[i] * a[3] + b[i] * (1 - a[3]));
  const light = c => c.map(v => v / 255)
    .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const line = e => { const all = []; for (let n = e; n; n = n.parentElement) all.unshift(n);
    return all; };
  const behind = e => line(e).map(n => rgba(getComputedStyle(n).backgroundColor))
    .reduce((below, above) => over(above, below), [255, 255, 255]);
  const dim = e => line(e).reduce((all, n) => all * getComputedStyle(n).opacity, 1);
  const clips = s => s.overflowX === 'hidden' || s.overflowX === 'clip';
  const cover = document.querySelector('#vla-lost[data-lost]');
  const wrong = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let t; t = walker.nextNode();) {
    const e = t.parentElement, name = t.textContent.trim().slice(0, 40);
    if (!name || !e.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
    if (/^(STYLE|SCRIPT|NOSCRIPT|TITLE|OPTION)$/.test(e.tagName)) continue;
    if (cover && !cover.contains(e)) continue;
    const range = document.createRange();
    range.selectNodeContents(t);
    const r = range.getBoundingClientRect();
    if (r.width < 2 || r.height < 2) continue;
    const below = behind(e), shown = rgba(getComputedStyle(e).color);
    shown[3] *= dim(e);
    const [a, b] = [light(over(shown, below)), light(below)].sort((x, y) => y - x);
    const ratio = (a + .05) / (b + .05);
    if (ratio < 4.5) wrong.push('contrast ' + ratio.toFixed(2) + ': ' + name);
    if (r.right > innerWidth + 1 || r.left < -1)
      wrong.push('outside: ' + name + ' to ' + r.right.toFixed());
    if (line(e).some(n => clips(getComputedStyle(n)) &&
        r.right > n.getBoundingClientRect().right + 2)) wrong.push('cut off: ' + name);
  }
  return [...new Set(wrong)];
})()"""
STOP = """(() => {
  const b = [...document.querySelectorAll('button')].find(b => b.innerText.trim() == 'STOP');
  if (!b) return 'no STOP';
  const r = b.getBoundingClientRect();
  if (r.top < 0 || r.bottom > innerHeight || r.left < 0 || r.right > innerWidth)
    return 'STOP is out of sight: ' + r.top;
  if (innerWidth < 640 && r.width < .9 * innerWidth)
    return 'STOP is ' + r.width + ' wide of ' + innerWidth;
  const top = document.elementFromPoint(r.x + r.width / 2, r.y + r.height / 2);
  return b.contains(top) ? '' : 'STOP is covered by ' + top.outerHTML.slice(0, 120); })()"""
PAD_IN_SIGHT = "document.querySelector('#vla-pad-mark')?.scrollIntoView({block: 'center'})"
SCROLL = """document.querySelectorAll('.mantine-ScrollArea-viewport').forEach(
  v => { v.scrollTop = TO; })"""


def status(shown: Shown) -> StatusSeen | None:
    """As the policy node reports it."""
    if shown.state is None:
        return None
    return StatusSeen(
        shown.state,
        reason=shown.reason,
        policy="vla",
        checkpoint="shipped:tabletop",
        decoding="speculative",
        device="cpu",
        dtype="float32",
        control_rate_hz=20.0,
        max_age_ms=500.0,
        acceptance=(0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3),
    )


def a_minute(now_ns: int) -> Strips:
    """Charts with something in them."""
    strips = Strips()
    strips.set_bounds((-0.05,) * 3 + (-0.5,) * 3, (0.05,) * 3 + (0.5,) * 3)
    units = ("m",) * 3 + ("rad",) * 3 + ("1",)
    for number in range(300):
        at = now_ns - (300 - number) * EVERY_NS
        age = 120 + 80 * math.sin(number / 7)
        stages = StagesSeen(tuple(age / len(STAGES) for _ in STAGES), age)
        seen = CommandSeen(1, CommandKind.POLICY, at, at - round(age * MS), number, stages)
        action = (*(0.04 * math.sin(number / (9 + i)) for i in range(6)), 1.0)
        strips.add(CommandShown(seen, action, END_EFFECTOR_DELTA.names, units), at)
        strips.sample(status(STATES["running"]), at)
    return strips


def camera(size: int = 256) -> Image:
    """An image to burn an age into: a ramp of colors."""
    ramp = np.linspace(60, 200, size)
    return np.stack([np.tile(ramp, (size, 1)), np.tile(ramp[:, None], (1, size)),
                     np.full((size, size), 120.0)], axis=2).astype(np.uint8)  # fmt: skip


def draw(window: PageWindow, shown: Shown, strips: Strips, now_ns: int) -> Banner:
    """What the view node draws in this state; its banner."""
    page = Page()
    if (seen := status(shown)) is not None:
        page.hear_status(seen, shown.instruction, now_ns - round(shown.silent_s * SECOND))
        page.hear_inference(2, 1)
        page.world = SimulationState("tabletop", "pick_red_cube", 4, 90, 300, "running")
    page.assumptions = (
        Assumption("action rate", "20 Hz", "the checkpoint's data"),
        Assumption.taken("frame of an action", "base"),
    )
    page.hear_log(LogLine("policy", 20, "WAITING -> RUNNING: running"))
    page.hear_log(LogLine("policy", 30, "action clamped to its bounds"))
    page.hear_log(LogLine("monitor", 40, "camera: no image for 2.1 s on /front_camera/image_raw"))
    banner = page.banner_html(now_ns)
    if shown.held is not None:
        banner += held_html(shown.held)
    words = page.facts_html(), page.assumptions_html(), page.log_html()
    window.show_words(banner, *words)
    if shown.age_ms is not None:
        window.show_image(side_by_side([burnt(camera(), shown.age_ms, 500.0)] * 2))
    window.show_tasks(page.suggestions(instructions_of("tabletop")))
    window.show_strips(strips.strips(now_ns))
    return page.banner(now_ns)


def wait_for(tab: Tab, banner: Banner) -> None:
    """Until the browser has it."""
    wanted = (banner.word, banner.reason)
    here = lambda: (tab.text("vla-word"), tab.text("vla-reason"))  # noqa: E731
    wait_until(lambda: here() == wanted, WAIT_S, lambda: f"{wanted}: {here()}", every=0.3)


def faults_of(tab: Tab) -> Iterator[str]:
    """What is wrong with what is seen."""
    yield from tab.run(AUDIT)
    yield tab.run(STOP)
    tab.run(SCROLL.replace("TO", "1e6"))
    time.sleep(0.3)
    yield tab.run(STOP)
    tab.run(SCROLL.replace("TO", "0"))


def take(tab: Tab, name: str, shown: Shown, out: Path) -> list[str]:
    """Images of a state that is shown, in every size and scheme, and what is wrong."""
    wrong = []
    for size in SIZES:
        tab.size(*size)
        for scheme in SCHEMES:
            media = [{"name": "prefers-color-scheme", "value": scheme}]
            tab.call("Emulation.setEmulatedMedia", features=media)
            time.sleep(SETTLE_S)
            if shown.opened:
                tab.run(PAD_IN_SIGHT)
            label = f"{name}-{size[0]}-{scheme}"
            tab.picture(out / f"{label}.png")
            found = set(filter(None, faults_of(tab)))
            covered = {fault for fault in found if fault.startswith("STOP is covered")}
            if shown.lost:
                found = found - covered if covered else {"STOP is not covered"}
            wrong += [f"{label}: {fault}" for fault in sorted(found)]
            print("\n".join([f"{label}:", *sorted(found)]), flush=True)
    return wrong


def main() -> int:
    """Every state, or those named; 0 where nothing is wrong."""
    out, names = Path(sys.argv[1]), sys.argv[2:] or list(STATES)
    out.mkdir(parents=True, exist_ok=True)
    wrong: list[str] = []
    open_ = lambda: PageWindow("127.0.0.1", PORT, PageGuard(), print, lambda jog: None)  # noqa: E731
    window = open_()
    now_ns = time.monotonic_ns()
    strips = a_minute(now_ns)
    with contextlib.ExitStack() as ending, browser() as tab:
        ending.callback(lambda: window.close())
        tab.open(f"http://localhost:{PORT}/")
        opened = False
        for name in names:
            shown = STATES[name]
            tab.size(*SIZES[0])
            wait_for(tab, draw(window, shown, strips, now_ns))
            if shown.opened and not opened:
                tab._click(FOLDER)
                opened = True
            if shown.lost:
                window.close()
                wait_until(lambda: tab.run(COVER), WAIT_S, "NOT CONNECTED", every=0.2)
            wrong += take(tab, name, shown, out)
            if shown.lost:
                window = open_()
    (out / "faults.txt").write_text("\n".join(wrong) + "\n")
    print("\n".join(wrong) or "nothing is wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
