"""A real browser without a window: Debian's Chromium, driven over its DevTools protocol.

It needs the program `chromium` and the package `websockets`, which the page needs as well.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.wait import wait_until

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
SIZE = (1440, 900)
START_S = 60.0
CALL_S = 120.0
#: The 3-D part is drawn in software here: seldom, so that the robot keeps its processor.
SELDOM = "window.requestAnimationFrame = f => setTimeout(() => f(performance.now()), 2000)"
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # containers run as root
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--no-first-run",
    "--use-gl=angle",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
    f"--window-size={SIZE[0]},{SIZE[1]}",
)


def missing() -> str:
    """Why no page can be opened here; "" where one can."""
    if _program() is None:
        return "chromium is not installed: apt-get install chromium"
    return ""


def _program() -> str | None:
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


class Page:
    """One page of the browser. What is pressed is pressed with the mouse, where it can be seen."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)
        self.call("Page.enable")
        self.size(*SIZE)
        self.call("Page.addScriptToEvaluateOnNewDocument", source=SELDOM)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol, and its result. Fails the test where it is refused."""
        number = next(self._numbers)
        self._connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        until = time.monotonic() + CALL_S
        while True:
            answer = json.loads(self._connection.recv(timeout=max(0.1, until - time.monotonic())))
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])

    def size(self, width: int, height: int) -> None:
        """Of the part that shows the page, in pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def text(self, name: str) -> str:
        """Of the element with this id; "" while there is none."""
        return str(self.run(f"document.getElementById({name!r})?.textContent ?? ''"))

    def press_button(self, label: str) -> None:
        """The button with this text."""
        self._click(
            f"[...document.querySelectorAll('button')].find(b => b.innerText.trim() == {label!r})"
        )

    def write(self, selector: str, text: str) -> None:
        """Into the first input that the selector finds, in place of what stands there."""
        self._click(f"document.querySelector({selector!r})")
        self.run(f"document.querySelector({selector!r}).select()")
        self.call("Input.insertText", text=text)

    def press_key(self, key: str, code: int) -> None:
        """A key of the keyboard, wherever the focus is."""
        for kind in ("rawKeyDown", "keyUp"):
            names = {"key": key, "code": key, "windowsVirtualKeyCode": code}
            self.call("Input.dispatchKeyEvent", type=kind, **names)

    def picture(self, path: Path) -> None:
        """What is seen, as PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    @contextlib.contextmanager
    def holding_button(self, label: str) -> Iterator[None]:
        """The button with this text is held down meanwhile."""
        at = self._pressed(
            f"[...document.querySelectorAll('button')].find(b => b.innerText.trim() == {label!r})",
            hit="inside",
        )
        try:
            yield
        finally:
            self.call("Input.dispatchMouseEvent", type="mouseReleased", **at)

    def _click(self, element: str) -> None:
        at = self._pressed(element)
        self.call("Input.dispatchMouseEvent", type="mouseReleased", **at)

    def _pressed(self, element: str, hit: str = "hit") -> dict[str, Any]:
        """The left button of the mouse is down on it; where. ``hit``: "inside" for what must be
        seen itself, not only something around it."""
        found: dict[str, Any] = {}

        def seen() -> bool:  # a page that is drawn anew moves it for a moment
            before = found.get("x"), found.get("y")
            found.update(self.run(_PLACE.replace("ELEMENT", element)) or {})
            return bool(found.get(hit)) and before == (found["x"], found["y"])

        wait_until(seen, 30, lambda: f"{element} where it can be pressed: {found}", every=0.2)
        at = {"x": found["x"], "y": found["y"], "button": "left", "clickCount": 1}
        for kind in ("mouseMoved", "mousePressed"):
            self.call("Input.dispatchMouseEvent", type=kind, **at)
        return at


# Where an element's middle is, and whether it is the element that is seen there.
_PLACE = """(() => {
  const e = ELEMENT;
  if (!e) return null;
  e.scrollIntoView({block: "nearest"});
  const r = e.getBoundingClientRect(), x = r.x + r.width / 2, y = r.y + r.height / 2;
  const top = document.elementFromPoint(x, y);
  const hit = !!top && (e.contains(top) || top.contains(e));
  return {x, y, hit, inside: e.contains(top), top: top?.outerHTML.slice(0, 200)};
})()"""


@contextlib.contextmanager
def browser() -> Iterator[Page]:
    """A fresh one with an empty page; it and all of its processes are ended afterwards."""
    from websockets.sync.client import connect

    program = _program()
    assert program is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        log = Path(folder, "log")
        with open(log, "w") as written:
            process = subprocess.Popen(
                [program, *_OPTIONS, f"--user-data-dir={folder}/profile", "about:blank"],
                stdout=subprocess.DEVNULL,
                stderr=written,
                start_new_session=True,
                preexec_fn=_ends_with_us,
            )
        try:
            port = wait_until(lambda: _port_in(log.read_text()), START_S, log.read_text)
            with connect(_page_at(port), max_size=None, open_timeout=START_S) as connection:
                yield Page(connection)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _ends_with_us() -> None:
    """In the browser before it is one: killed where the test's process ends without a word. Its
    renderers and helpers end by themselves when it is gone."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    os.nice(max(0, 10 - os.nice(0)))  # behind the robot; whoever started it may be nice too


def _port_in(log: str) -> int:
    found = re.search(r"DevTools listening on ws://[^:]+:(\d+)/", log)
    return int(found[1]) if found else 0


def _page_at(port: int) -> str:
    """The address to speak to its first page at."""

    def listed() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=10) as answer:
            pages = [one for one in json.load(answer) if one["type"] == "page"]
        return str(pages[0]["webSocketDebuggerUrl"]) if pages else ""

    return str(wait_until(listed, START_S, "a page of the browser"))
