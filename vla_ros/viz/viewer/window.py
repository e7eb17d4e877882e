"""The page in the browser: viser's widgets, and the requests made through them.

The content is that of :class:`vla_ros.viz.viewer.model.Page` and
:class:`vla_ros.viz.viewer.model.Strips`; this file only puts it there, and only what has changed.
``ask`` is called from viser's threads.
"""

from __future__ import annotations

import contextlib
import http
import io
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec
import numpy as np
import viser
import websockets.asyncio.server
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from vla_ros.core.types import Image
from vla_ros.viz.viewer.guard import HEADERS, PageGuard
from vla_ros.viz.viewer.model import HISTORY_SECONDS, Chart
from vla_ros.viz.viewer.stage import Stage
from vla_ros.viz.viewer.style import BEAT_S, PAD, PAD_MARK, SCRIPT, STOP_MARK, beat_html

# viser's server with a guard in front of every request, web sockets included.
#
# viser has neither a token nor a look at where a web socket's page came from. Its server is that of
# the `websockets` package, which asks a function about every request: here it asks the guard first.


_PORTS = 50  # tried after the one given
_ONE_AT_A_TIME = threading.Lock()


class GuardedServer(viser.ViserServer):
    """viser's server behind a guard. OSError: no port is free; RuntimeError: viser cannot be
    guarded."""

    def __init__(self, host: str, port: int, guard: PageGuard) -> None:
        port = free_port(host, port)
        quiet = contextlib.redirect_stdout(io.StringIO())  # it prints a table of addresses
        with _guarded(guard) as served, quiet:
            super().__init__(host=host, port=port, verbose=False)
        if not served.is_set():
            self.stop()
            raise RuntimeError(
                f"viser {viser.__version__} serves in a way that cannot be guarded: use viser 1.1"
            )

    def request_share_url(self, verbose: bool = True) -> str | None:
        """Never: viser would open a tunnel for anybody on the internet, and any page may ask."""
        return None


def free_port(host: str, port: int) -> int:
    """The first free one from ``port`` on. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in range(port, min(port + _PORTS, 65_536)):
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, candidate))
            except OSError as error:
                wrong = error
                continue
            return candidate
    raise OSError(f"no port to serve the view on, {port} and those after it: {wrong}")


@contextlib.contextmanager
def _guarded(guard: PageGuard) -> Iterator[threading.Event]:
    """While viser starts, `websockets` serves what passes the guard. The event says that it did."""
    serve = websockets.asyncio.server.serve
    served = threading.Event()

    def guarded(*args: Any, process_request: Any = None, **options: Any) -> Any:
        def process(connection: Any, request: Request) -> Any:
            headers = {name.lower(): value for name, value in request.headers.raw_items()}
            answer = guard.judge(request.path, headers)
            found: Response | None
            if answer is not None:
                body = answer.body.encode()
                headers_out = Headers({**answer.headers, "Content-Length": str(len(body))})
                status = http.HTTPStatus(answer.status)
                found = Response(status.value, status.phrase, headers_out, body)
            else:
                found = process_request(connection, request)
            if found is not None:  # None: a web socket
                found.headers.update(HEADERS)
            return found

        served.set()
        return serve(*args, process_request=process, **options)

    with _ONE_AT_A_TIME:
        websockets.asyncio.server.serve = guarded  # type: ignore[assignment,misc]
        try:
            yield served
        finally:
            websockets.asyncio.server.serve = serve  # type: ignore[misc]


LEFT_PX = 420
RIGHT_PX = 430
CHART_PX = 138
ROOM = 0.08  # above the highest number of an axis, which would be cut in two by the edge
NO_TASK = "choose a task, or write below"


class PageAction(Enum):
    """Requests that can be made at the page."""

    STOP = "stop"
    RESUME = "resume"
    RECOVER = "recover"
    RESET = "reset"
    INSTRUCT = "instruct"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class PageRequest:
    """One press of a button. ``text``: the instruction of INSTRUCT."""

    action: PageAction
    text: str = ""


#: How often a button that is held repeats its request.
HOLD_HZ = 20.0
TURN = 4.0  # rad/s for each m/s
GIVE_BACK = "Give back"


@dataclass(frozen=True, slots=True)
class JogRequest:
    """Motion by the page's buttons: velocities x y z rx ry rz in m/s and rad/s, or how far
    the gripper is to be open, 0 to 1."""

    velocity: tuple[float, ...] = ()
    opening: float | None = None


def encoded(strip: Chart) -> msgspec.Raw:
    """A chart's points as MessagePack, once for all browsers: null where nothing was measured. Of
    a NaN, all that an array has, the browser makes a line from the point before to the one after.
    """
    rows = (strip.x, *strip.y)
    points = [[None if v != v else v for v in row.tolist()] for row in rows]
    return msgspec.Raw(msgspec.msgpack.encode(points))


def _scales(strip: Chart) -> dict[str, Any]:
    room = ROOM * (strip.high - strip.low)
    return {
        "x": {"time": False, "range": (-60.0, 0.0)},
        "y": {"range": (strip.low, strip.high + room)},
    }


class PageWindow:
    """Serves until :meth:`close`. One thread may show; see GuardedServer for what it raises.

    ``push`` is called for as long as a button of the takeover is held.
    """

    def __init__(
        self,
        host: str,
        port: int,
        guard: PageGuard,
        ask: Callable[[PageRequest], None],
        push: Callable[[JogRequest], None],
    ) -> None:
        self._server = GuardedServer(host, port, guard)
        self.port: int = self._server.get_port()
        self._ask, self._push = ask, push
        self._charts: dict[str, Any] = {}
        self._shown: dict[str, str] = {}
        gui = self._server.gui
        gui.configure_theme(dark_mode=False, show_logo=False, show_share_button=False)
        gui.set_panel_label("vla-ros")
        self._left(gui)
        self._right(gui)
        self.stage = Stage(self._server)
        # Of its own thread, as STOP is: a node that stands still takes nothing from either.
        self._closed = threading.Event()
        threading.Thread(target=self._beat, name="beat", daemon=True).start()

    def _left(self, gui: Any) -> None:
        gui.main_panel.dock_left()
        gui.main_panel.set_width(LEFT_PX)
        gui.add_html(STOP_MARK + SCRIPT)
        stop = gui.add_button("STOP", color="red", hint="stop the task (key: Escape)")
        stop.on_click(lambda _: self._ask(PageRequest(PageAction.STOP)))
        self._banner = gui.add_html("")
        key = gui.add_command("Stop the robot", hotkey="escape", description="STOP")
        key.on_trigger(lambda _: self._ask(PageRequest(PageAction.STOP)))
        self._image = gui.add_image(np.zeros((2, 4, 3), np.uint8), format="jpeg", visible=False)
        self._instruct(gui)
        others = gui.add_button_group("", ("Resume", "Recover", "Reset"))
        others.on_click(
            lambda event: self._ask(PageRequest(PageAction(event.target.value.lower())))
        )
        self._facts = gui.add_html("")
        self._ago = gui.add_slider("rewind, s", 0.0, float(HISTORY_SECONDS), 0.1, 0.0)
        self._takeover(gui)
        with gui.add_folder("Taken for granted", expand_by_default=False):
            self._assumptions = gui.add_html("")
        self._log = gui.add_html("")
        self._beats = gui.add_html(beat_html(0))

    def _beat(self) -> None:
        number = 0
        while not self._closed.wait(BEAT_S):
            number += 1
            if self.watched:
                self._beats.content = beat_html(number)

    def _instruct(self, gui: Any) -> None:
        with gui.add_form(None) as form:
            self._tasks = gui.add_dropdown("task", (NO_TASK,))
            self._text = gui.add_text("instruction", "")
            send = gui.add_button("Send", hint="Enter does the same")
        send.on_click(lambda _: form.submit())
        form.on_submit(lambda _: self._ask(PageRequest(PageAction.INSTRUCT, self._text.value)))

        @self._tasks.on_update
        def _(_: Any) -> None:
            if self._tasks.value != NO_TASK:
                self._text.value = self._tasks.value

    def _takeover(self, gui: Any) -> None:
        """A pad of buttons that move the hand while they, or their keys, are held."""
        with gui.add_folder("Take over", expand_by_default=False):
            gui.add_html(PAD_MARK)
            speed = gui.add_slider("m/s", 0.02, 0.5, 0.02, 0.1)
            for label, key, place, sign in PAD:
                button = gui.add_button(label, hint=f"moves the hand while it is held (key: {key})")
                button.on_hold(self._held(place, sign, speed), HOLD_HZ)
            hand = gui.add_button_group("", ("Close", "Open", GIVE_BACK))

            @hand.on_click
            def _(event: Any) -> None:
                if event.target.value == GIVE_BACK:
                    self._ask(PageRequest(PageAction.RELEASE))
                else:
                    self._push(JogRequest(opening=float(event.target.value == "Open")))

    def _held(self, place: int, sign: float, speed: Any) -> Callable[[Any], None]:
        def held(_: Any) -> None:
            velocity = [0.0] * 6
            velocity[place] = sign * float(speed.value) * (1.0 if place < 3 else TURN)
            self._push(JogRequest(tuple(velocity)))

        return held

    def _right(self, gui: Any) -> None:
        panel = gui.add_panel()
        self._right_tab = panel.add_tab("Charts")
        panel.dock_right()
        panel.set_width(RIGHT_PX)

    # What is shown

    @property
    def watched(self) -> bool:
        """Whether a browser is connected: else nothing need be drawn."""
        return bool(self._server.get_clients())

    @property
    def seconds_ago(self) -> float:
        """Age of the scene that the three-dimensional part is to show."""
        return float(self._ago.value)

    def show_words(self, banner: str, facts: str, assumptions: str, log: str) -> None:
        """HTML of the page's parts."""
        for name, text, handle in (
            ("banner", banner, self._banner),
            ("facts", facts, self._facts),
            ("assumptions", assumptions, self._assumptions),
            ("log", log, self._log),
        ):
            if self._shown.get(name) != text:
                self._shown[name] = text
                handle.content = text

    def show_image(self, image: Image) -> None:
        """All cameras, uint8 [height, width, 3]."""
        self._image.image = image
        if not self._image.visible:
            self._image.visible = True

    def show_tasks(self, instructions: Sequence[str]) -> None:
        """Instructions to choose from."""
        options = (NO_TASK, *instructions)
        if options != tuple(self._tasks.options):
            chosen = self._tasks.value
            self._tasks.options = options
            self._tasks.value = chosen if chosen in options else NO_TASK

    def show_strips(self, strips: Sequence[Chart]) -> None:
        """The charts; one whose lines are others is made anew."""
        for order, strip in enumerate(strips):
            if len(strip.x) < 2:
                continue
            look, axis = str((strip.title, strip.lines)), str((strip.low, strip.high))
            if self._shown.get(strip.name) != look:
                self._shown[strip.name] = look
                self._make_chart(strip, order)
            elif self._shown.get(f"{strip.name} axis") != axis:
                self._charts[strip.name].scales = _scales(strip)
            self._shown[f"{strip.name} axis"] = axis
            # Past the handle's own setter, which makes arrays of it: see encoded.
            self._charts[strip.name]._queue_update("data", encoded(strip))

    def _make_chart(self, strip: Chart, order: int) -> None:
        old = self._charts.pop(strip.name, None)
        if old is not None:
            old.remove()
        series: list[dict[str, Any]] = [{"label": "s"}]
        for line in strip.lines:
            one: dict[str, Any] = {"label": line.label, "stroke": line.color, "width": 1.5}
            one["points"] = {"show": False}
            if line.dashed:
                one |= {"dash": (6, 4), "width": 1.0}
            if line.filled:
                one |= {"fill": f"{line.color}cc", "width": 0.5}
            series.append(one)
        small = {"font": "10px sans-serif", "size": 34, "gap": 2}
        with self._right_tab:
            self._charts[strip.name] = self._server.gui.add_uplot(
                (strip.x, *strip.y),
                tuple(series),
                title=strip.title,
                scales=_scales(strip),
                axes=({**small}, {**small, "size": 40}),
                legend={"show": len(strip.lines) > 1, "live": False},
                height=CHART_PX,
                order=float(order),
            )

    def notify(self, text: str, good: bool) -> None:
        """The outcome of a request, in every browser for a few seconds."""
        for client in self._server.get_clients().values():
            client.add_notification(
                "done" if good else "not done",
                text,
                auto_close_seconds=6.0,
                color="green" if good else "red",
            )

    def close(self) -> None:
        """Leave every browser alone."""
        self._closed.set()
        self._server.stop()
