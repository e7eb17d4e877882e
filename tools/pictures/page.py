"""The page of `--view` in each of its states, in a real browser before real nodes: images to look
at, and what a script can judge of them.

    cd test && python ../tools/pictures/page.py --out ../build/page [--only running,held]

Writes STATE-WIDTH-SCHEME.png. Judges in each: text below a contrast of 4.5, STOP out of sight or
covered (also with the panel scrolled to its end), text that is cut off or outside. 1: something is
wrong, a line each.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "test")]

from support.browser import Page, browser
from support.domain import leased_domain
from support.nodes import Program, ros_environment
from support.wait import wait_until

MAIN = "import sys; from vla_ros.cli.main import main; sys.exit(main())"
SIZES = ((1280, 800), (390, 844))
SCHEMES = ("light", "dark")
WAIT_S = 240.0
FOLDER = "[...document.querySelectorAll('*')].filter(e => e.innerText?.trim() == 'Take over').pop()"

# Every text that is seen: its contrast against the colors behind it, and whether it is cut off.
AUDIT = """(() => {
  const rgba = text => { const n = text.match(/[\\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
  const over = (a, b) => [0, 1, 2].map(i => a[i] * a[3] + b[i] * (1 - a[3]));
  const light = c => c.map(v => v / 255).map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const behind = e => { const stack = [];
    for (let n = e; n; n = n.parentElement) stack.push(rgba(getComputedStyle(n).backgroundColor));
    return stack.reverse().reduce((below, above) => over(above, below), [255, 255, 255]); };
  const dim = e => { let all = 1; for (let n = e; n; n = n.parentElement) all *= getComputedStyle(n).opacity; return all; };
  const cover = document.querySelector('#vla-lost[data-lost]');
  const wrong = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let t; t = walker.nextNode();) {
    const e = t.parentElement, text = t.textContent.trim();
    if (!text || !e.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
    if (/^(STYLE|SCRIPT|NOSCRIPT|TITLE|OPTION)$/.test(e.tagName) || (cover && !cover.contains(e))) continue;
    const range = document.createRange(); range.selectNodeContents(t);
    const r = range.getBoundingClientRect();
    if (r.width < 2 || r.height < 2) continue;
    const name = text.slice(0, 40);
    const below = behind(e), shown = rgba(getComputedStyle(e).color);
    shown[3] *= dim(e);
    const [a, b] = [light(over(shown, below)), light(below)].sort((x, y) => y - x);
    const ratio = (a + .05) / (b + .05);
    if (ratio < 4.5) wrong.push('contrast ' + ratio.toFixed(2) + ': ' + name);
    if (r.right > innerWidth + 1 || r.left < -1) wrong.push('outside: ' + name + ' to ' + r.right.toFixed());
    for (let n = e; n && n !== document.body; n = n.parentElement) {
      const s = getComputedStyle(n), box = n.getBoundingClientRect();
      if (s.overflowX !== 'visible' && r.right > box.right + 2 && s.overflowX !== 'auto' && s.overflowX !== 'scroll')
        { wrong.push('cut off: ' + name); break; }
    }
  }
  return [...new Set(wrong)];
})()"""
STOP = """(() => { const b = [...document.querySelectorAll('button')].find(b => b.innerText.trim() == 'STOP');
  if (!b) return 'no STOP';
  const r = b.getBoundingClientRect();
  if (r.top < 0 || r.bottom > innerHeight || r.left < 0 || r.right > innerWidth) return 'STOP is out of sight: ' + r.top;
  if (innerWidth < 640 && r.width < .9 * innerWidth) return 'STOP is ' + r.width + ' wide of ' + innerWidth;
  const top = document.elementFromPoint(r.x + r.width / 2, r.y + r.height / 2);
  return b.contains(top) ? '' : 'STOP is covered by ' + top.outerHTML.slice(0, 120); })()"""
SCROLL = """document.querySelectorAll('.mantine-ScrollArea-viewport').forEach(
  v => { v.scrollTop = TO; })"""


class Session:
    """One graph with its page, and the images and faults so far."""

    def __init__(self, page: Page, out: Path, only: set[str]) -> None:
        self.page, self.out, self._only, self.wrong = page, out, only, list[str]()

    def wanted(self, *names: str) -> bool:
        return not self._only or bool(self._only & set(names))

    def word(self, *words: str, reason: str = "") -> None:
        """Wait until the page shows one of these states."""

        def shown() -> bool:
            found = self.page.text("vla-word")
            return found in words and reason in self.page.text("vla-reason")

        wait_until(shown, WAIT_S, lambda: f"{words}: {self.page.text('vla-word')}", every=0.3)

    def take(self, name: str, stop: str = "seen") -> None:
        """Images of this state in every size and scheme. ``stop``: "covered" where it must be."""
        if not self.wanted(name):
            return
        for size in SIZES:
            self.page.size(*size)
            for scheme in SCHEMES:
                media = [{"name": "prefers-color-scheme", "value": scheme}]
                self.page.call("Emulation.setEmulatedMedia", features=media)
                time.sleep(2.5)  # a frame of the page
                label = f"{name}-{size[0]}-{scheme}"
                self.page.picture(self.out / f"{label}.png")
                faults = [*self.page.run(AUDIT), self.page.run(STOP)]
                self.page.run(SCROLL.replace("TO", "1e6"))
                time.sleep(0.3)
                faults.append(self.page.run(STOP))
                self.page.run(SCROLL.replace("TO", "0"))
                covered = [f for f in faults if f.startswith("STOP is covered")]
                if stop == "covered":
                    faults = [f for f in faults if f not in covered]
                    faults += [] if covered else ["STOP is not covered"]
                self.wrong += [f"{label}: {fault}" for fault in dict.fromkeys(faults) if fault]
                print(f"{label}: {len(list(filter(None, faults)))} faults", flush=True)


@contextlib.contextmanager
def graph(*words: str) -> Iterator[tuple[Program, str]]:
    """`vla-ros WORDS` in a domain of its own, and the page's address."""
    with leased_domain() as domain:
        program = Program("graph", [sys.executable, "-c", MAIN, *words], ros_environment(domain))
        try:
            runs = lambda: "everything is running" in program.log or program.returncode is not None  # noqa: E731
            wait_until(runs, WAIT_S, lambda: program.log)
            assert program.returncode is None, program.log[-600:]
            yield program, re.search(r"http://\S+", program.log)[0]
        finally:
            program.kill()
            print("\n".join(program.log.splitlines()[-3:]), flush=True)


def child(program: Program, module: str) -> int:
    """Process id of a node of a graph."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            stat = (entry.parent / "stat").read_text().rpartition(")")[2].split()
            if f"nodes.{module}" in line and int(stat[1]) == program.pid:
                return int(entry.parent.name)
    raise AssertionError(f"no node {module} of {program.command}")


def alone(session: Session) -> None:
    """A policy without cameras."""
    if not session.wanted("waiting", "no_camera"):
        return
    with graph("up", "policy", "--view", "-p", "view.port=8500") as (_, address):
        session.page.open(address)
        session.word("WAITING")
        session.take("waiting")
        session.page.write("form input[class*=TextInput-input]", "pick up the red cube")
        session.page.press_button("Send")
        session.word("WAITING", reason="image")
        session.take("no_camera")


def shadow(session: Session) -> None:
    """A policy that moves nothing."""
    if session.wanted("shadow"):
        words = ("-p", "view.port=8520", "-p", "policy.shadow=true", "-p", "policy.policy=scripted")
        with graph("up", "sim", "--view", *words) as (_, address):
            session.page.open(address)
            session.word("SHADOW, RUNNING")
            session.take("shadow")


def simulated(session: Session) -> None:
    """A simulation that is watched, taken over, stopped, lost."""
    page = session.page
    names = ("running", "finished", "open", "held", "not_held", "stopped", "hold", "silent", "lost")
    if not session.wanted(*names):
        return
    words = ("-p", "view.port=8540", "-p", "bridge.max_steps=100000", "-p", "bridge.auto_reset=false")
    words += ("-p", "policy.policy=scripted", "-p", "policy.max_age_s=3.0")
    with graph("up", "sim", "--view", *words) as (program, address):
        page.open(address)
        session.word("RUNNING")
        session.take("running")
        page.press_button("STOP")
        session.word("STOPPED")
        session.take("stopped")
        page.press_button("Resume")
        if session.wanted("finished"):
            session.word("WAITING", reason="over")
            session.take("finished")
        page.press_button("Reset")
        session.word("RUNNING")
        page.size(*SIZES[0])
        page._click(FOLDER)
        session.take("open")
        with page.holding_button("+z R"):
            session.word("TAKEOVER")
            session.take("held")
        session.take("not_held")
        page.press_button("Give back")
        session.word("RUNNING")
        bridge, view = child(program, "bridge"), child(program, "view")
        import os

        os.kill(bridge, signal.SIGSTOP)
        session.word("HOLD")
        session.take("hold")
        os.kill(bridge, signal.SIGCONT)
        os.kill(view, signal.SIGSTOP)
        lost = "!!document.querySelector('#vla-lost[data-lost]')"
        wait_until(lambda: page.run(lost), WAIT_S, "lost", every=0.2)
        session.take("lost", stop="covered")
        os.kill(view, signal.SIGCONT)
        wait_until(lambda: not page.run(lost), WAIT_S, "found", every=0.2)
        policy = child(program, "policy")
        os.kill(policy, signal.SIGSTOP)
        session.word("SILENT")
        session.take("silent")
        os.kill(policy, signal.SIGCONT)


PARTS: tuple[Callable[[Session], None], ...] = (simulated, alone, shadow)


def main() -> int:
    """Every state; 0 where nothing is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "page")
    parser.add_argument("--only", default="", help="states, with commas (all)")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with browser() as page:
        session = Session(page, args.out, set(filter(None, args.only.split(","))))
        for part in PARTS:
            try:
                part(session)
            except AssertionError as error:
                session.wrong.append(f"{part.__name__}: {str(error)[-600:]}")
    (args.out / "faults.json").write_text(json.dumps(session.wrong, indent=1))
    print("\n".join(session.wrong) or "nothing is wrong")
    return 1 if session.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
