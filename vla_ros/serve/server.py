"""A policy over openpi's websocket protocol, and over `POST /act`, for many clients at once.

A client gets metadata when it connects, and an answer for each observation that it sends. Errors of
one are sent to that one, as text, and cost the others nothing: its bytes are counted before they
are read, its rate is limited, and one that reads no answers or hangs is dropped by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hmac
import http
import ipaddress
import logging
import math
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from vla_ros.core.clock import MS, SECOND, SystemClock
from vla_ros.core.errors import UserError
from vla_ros.core.plain import executing_of
from vla_ros.core.signals import ENDS
from vla_ros.core.types import (
    Executing,
    Floats,
    Inference,
    Instruction,
    Observation,
    PolicyInfo,
    Timeline,
)
from vla_ros.policies.base import InvalidAction, PolicyRefused, PolicySpec
from vla_ros.policies.remote.codec import JPEG, MAX_BYTES, Malformed, need, pack, unpack
from vla_ros.policies.remote.link import TOKEN
from vla_ros.policies.remote.names import NameTable, names_for, names_of
from vla_ros.policies.remote.policy import OURS, UNANSWERED
from vla_ros.policies.sessions import SessionRequest
from vla_ros.runtime.control.goals import check_instruction
from vla_ros.runtime.scheduler import Refused
from vla_ros.runtime.worker.worker import last_line
from vla_ros.serve.act import ActNames, Read, Wrong, converse
from vla_ros.serve.log import ClientLog
from vla_ros.serve.metrics import Metrics
from vla_ros.serve.stepper import Sessions, Stepper, TooOld

HUNG_S = 30.0  # a pass that takes longer fails /healthz
END_S = 3.0  # for the answers that are on their way
PING_S = 20.0  # a client that answers no ping for so long is dropped
LARGE = 1 << 20  # bytes of a message that is read in a thread, mostly without Python's lock
SHARE = 0.25  # of the loop's time that what one client sends may be read in: the others' time
HALF_OPEN = 64  # connections of `POST /act` before their first observation
ACCEPTS = 4  # connections taken in one turn of the loop, however many there are at once
WAITING = 128  # connections that the kernel keeps until then
_INVALID, _BROKEN, _LATER = 1007, 1011, 1013  # RFC 6455's close codes
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options of a server: address, clients, limits. Raises UserError.

    ``port`` 0: a free one. ``token``: of clients; "" admits all on this machine. ``names``: of the
    table of :mod:`vla_ros.policies.remote.names`; "": the server's own. ``max_rate_hz``:
    observations a second of a client; more of them wait. ``rate_hz`` and ``max_age_s``: the answers
    a second for a client that asks for no rate, and the age limit of their observations; 0: as they
    come. A client that cannot have them is refused.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str = ""
    names: str = ""
    max_clients: int = 16
    max_bytes: int = MAX_BYTES
    max_rate_hz: float = 200.0
    rate_hz: float = 0.0
    max_age_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise UserError(f"port is {self.port}: give 0 to 65535")
        if self.max_clients < 1 or self.max_bytes < 1024 or not self.max_rate_hz > 0:
            raise UserError("clients must be 1 or more, bytes 1024 or more, the rate above 0")
        if not (0 <= self.rate_hz <= self.max_rate_hz and 0 <= self.max_age_s < math.inf):
            raise UserError("a client's rate must be 0 to the largest, its age limit 0 or more")
        if not self.token and not _loopback(self.host):
            raise UserError(
                f"{self.host} is reached from other machines: set ${TOKEN} here and at the clients,"
                " or serve 127.0.0.1 and let ssh or a proxy carry it"
            )


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Server:
    """Server of the policy of ``spec`` from :meth:`run` on, until :meth:`stop`.

    ``address`` is known once ``run`` has called ``ready``; ``failure``: why it ended by itself.
    ``make`` loads the sessions; without it those of the spec's policy.
    """

    def __init__(
        self,
        spec: PolicySpec,
        options: ServeOptions,
        make: Callable[[PolicySpec], Sessions] | None = None,
    ) -> None:
        self._websockets = need("websockets.asyncio.server")
        self.closed = need("websockets.exceptions").ConnectionClosed
        need("msgpack")
        from vla_ros.serve.limits import Door  # needs websockets

        self._options = options
        self.metrics = Metrics()
        self._log = ClientLog(_log)
        flood = self.metrics.refused.labels("flood").inc
        self._door = Door(self._log, options.max_bytes, flood, self._take_posts)
        self._posts: dict[asyncio.Task[None], _Posts] = {}  # connections of `POST /act`
        self._unnorm_key = spec.engine.unnorm_key
        self._clock = SystemClock()
        self._stepper = Stepper(
            spec,
            self._clock,
            self._broke,
            self.metrics.saw_pass,
            make,
            options.max_clients,
            self._log,
        )
        self._clients = 0
        self.failure = ""
        self.address = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event | None = None

    def load(self) -> PolicyInfo:
        """Load the policy. PolicyRefused, also for one that no client of this protocol can use."""
        ready = self._stepper.start()
        self.info = info = ready.info
        if info.pipeline_depth > 1:
            raise PolicyRefused(
                f"decoding {info.decoding!r} answers a frame with the action of an older one, which"
                " this protocol cannot say: choose another decoding"
            )
        self._names = names_of(self._options.names) if self._options.names else names_for(info)
        self._act_names = ActNames(info, self._unnorm_key)
        self._metadata = pack(_metadata(info, self._names, ready.inference_p50_ms))
        return info

    async def run(self, ready: Any = None) -> str:
        """Serve until the end; returns why it ended, "" after :meth:`stop`."""
        options = self._options
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        server = await self._websockets.serve(
            self.converse,
            options.host,
            options.port,
            create_connection=self._door.open,
            process_request=self._admit,
            compression=None,
            max_size=options.max_bytes,
            max_queue=1,
            ping_interval=PING_S,
            ping_timeout=PING_S,
            close_timeout=1.0,
            server_header=None,
            origins=[None],  # programs send none; a browser's page does
            logger=self._log,
            backlog=ACCEPTS,
        )
        for one in server.sockets:  # what waits in the kernel costs nothing
            with socket.fromfd(one.fileno(), one.family, one.type) as queue:
                queue.listen(WAITING)
        host, port = next(iter(server.sockets)).getsockname()[:2]
        self.address = f"ws://[{host}]:{port}" if ":" in host else f"ws://{host}:{port}"
        if ready is not None:
            ready()
        await self._over.wait()
        server.close()
        self._stepper.close()
        for post in list(self._posts):
            post.cancel()
        with contextlib.suppress(asyncio.TimeoutError):  # of a pass that hangs
            await asyncio.wait_for(server.wait_closed(), END_S)
        return self.failure

    def stop(self) -> None:
        """End :meth:`run`. From any thread, or a signal handler."""
        if self._loop is not None and self._over is not None:
            with contextlib.suppress(RuntimeError):  # it ended by itself: the loop is closed
                self._loop.call_soon_threadsafe(self._over.set)

    def _broke(self, reason: str) -> None:
        self.failure = reason
        self.stop()

    def sick(self) -> str:
        """Reason for which it does not answer; "": it does."""
        hangs = self._stepper.busy_s() > HUNG_S
        return self.failure or (f"the policy has not answered for {HUNG_S:g} s" if hangs else "")

    # HTTP, before a websocket

    def _admit(self, connection: Any, request: Any) -> Any:
        """Answer health and metrics; refuse a client without the token, or one too many. None: go
        on with the websocket."""
        path = request.path.partition("?")[0]
        if path == "/healthz":
            sick = self.sick()
            status = http.HTTPStatus.SERVICE_UNAVAILABLE if sick else http.HTTPStatus.OK
            return connection.respond(status, f"{sick or 'OK'}\n")
        if not self.knows_token(request.headers.get("Authorization", "")):
            self.metrics.refused.labels("token").inc()
            return connection.respond(http.HTTPStatus.UNAUTHORIZED, f"give the server's ${TOKEN}\n")
        if path == "/metrics":
            return connection.respond(http.HTTPStatus.OK, self.metrics.text())
        if full := self.full():
            return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, f"{full}\n")
        return None

    def knows_token(self, header: str) -> bool:
        """True of `Authorization: Api-Key TOKEN`, as openpi's client sends it, or `Bearer
        TOKEN`."""
        scheme, _, given = header.partition(" ")
        known = scheme in ("Api-Key", "Bearer") and hmac.compare_digest(
            given.strip().encode(), self._options.token.encode()
        )
        return known or not self._options.token

    # One client

    def _take_posts(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a client of `POST /act`. Where too many have not asked yet the oldest of them
        goes."""
        options = self._options
        client = _Posts(self, options.max_rate_hz)
        talk = converse(self._act_names, client, reader, writer, options.max_bytes)
        task = asyncio.ensure_future(talk)
        self._posts[task] = client
        task.add_done_callback(self._posts.pop)
        waiting = [post for post, other in self._posts.items() if not other.entered]
        if len(waiting) > HALF_OPEN:
            self.metrics.refused.labels("flood").inc()
            waiting[0].cancel()

    def full(self) -> str:
        """Reason for which no other client is let in; "": there is room."""
        if self._clients < self._options.max_clients:
            return ""
        self.metrics.refused.labels("full").inc()
        return f"it serves {self._clients} clients, the most that it may"

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """One client more, for as long as the body runs."""
        self._clients += 1
        self.metrics.sessions.inc()
        try:
            yield
        finally:
            self._clients -= 1
            self.metrics.sessions.dec()

    async def converse(self, socket: Any) -> None:
        """Serve a client, from its connection to its end."""
        with self.counted():
            try:
                await self._talk(socket)
            except self.closed:
                pass
            except Exception:
                self._log.exception("a client's connection failed")

    async def _talk(self, socket: Any) -> None:
        client = _Client()
        await socket.send(self._metadata)
        gone = asyncio.ensure_future(socket.wait_closed())  # at once, not after an answer
        gone.add_done_callback(lambda _: client.leave(self._stepper))
        async for message in socket:
            received = self._clock.now_ns(), self._clock.steady_ns()
            try:
                answer = pack(await self._answer(client, message, received))
            except self.closed:
                raise
            except Malformed as error:
                await self._refuse(socket, "malformed", str(error), _INVALID)
                return
            except Refused as error:
                await self._refuse(socket, "admission", client.refusal(str(error)), _LATER)
                return
            except TooOld as error:
                await self._refuse(socket, "too_old", client.refusal(str(error)))
            except InvalidAction as error:
                await self._refuse(socket, "invalid", str(error))
            except Exception as error:  # the policy's own
                await self._refuse(socket, "failed", last_line(error), _BROKEN)
                return
            else:
                await socket.send(answer)
                client.total_s = (self._clock.steady_ns() - received[1]) / SECOND
            period_s = max(1.0 / self._options.max_rate_hz, socket.spent_s / SHARE)
            socket.spent_s = 0.0
            await asyncio.sleep(client.pause_s(period_s))

    async def _refuse(self, socket: Any, why: str, text: str | bytes, code: int = 0) -> None:
        """Send an error as openpi's clients know it: text. With a ``code`` the connection
        closes."""
        self.metrics.refused.labels(why).inc()
        await socket.send(text)
        if code:
            await socket.close(code)

    def _read(self, data: bytes, received: tuple[int, int]) -> tuple[_Fields, Observation, str]:
        """Our fields of a message, its observation and its task. Malformed, InvalidAction."""
        message = unpack(data, self._options.max_bytes)
        own = message.get(OURS)
        fields = _Fields(received[0]) if own is None else _fields(own)
        return fields, *self._names.from_wire(message, fields.stamp_ns, received)

    async def _answer(
        self, client: _Client, data: Any, received: tuple[int, int]
    ) -> dict[str, Any]:
        """The answer to a message. Malformed, Refused, TooOld, InvalidAction, and the policy's
        own."""
        if not isinstance(data, bytes):
            raise Malformed("an observation is binary, and this is text")
        if len(data) > LARGE or b"__jpeg__" in data:  # a small one may be a large image
            fields, observation, text = await asyncio.to_thread(self._read, data, received)
        else:
            fields, observation, text = self._read(data, received)
        found, age_s = await self.infer(client, fields, observation, text, received)
        return _answer(found, age_s, client.total_s)

    def let_go(self, client: _Client) -> None:
        """Release a client's session."""
        client.leave(self._stepper)

    async def infer(
        self,
        client: _Client,
        fields: _Fields,
        observation: Observation,
        text: str,
        received: tuple[int, int],
    ) -> tuple[Inference, float]:
        """The policy's answer to an observation, and the time since its receipt, s. Refused,
        TooOld, InvalidAction, and the policy's own."""
        instruction = client.instruction(text)
        if client.session is None:
            await client.enter(self._stepper, fields, self._options)
        if client.session is None:
            raise self.closed(None, None)
        observation = replace(
            observation, executing=fields.executing, delay_steps=fields.delay_steps
        )
        request = SessionRequest(client.session, observation, Timeline(received[1]), instruction)
        found: Inference = await asyncio.wrap_future(self._stepper.ask(request, fields.age_ns))
        age_s = (self._clock.steady_ns() - received[1]) / SECOND
        self.metrics.observations.inc()
        self.metrics.age.observe(age_s)
        return found, age_s


class _Posts:
    """Client of `POST /act`, see :class:`vla_ros.serve.act.Served`."""

    def __init__(self, server: Server, max_rate_hz: float) -> None:
        self._server, self._client = server, _Client()
        self._counted = contextlib.ExitStack()
        self.entered = False  # it was let in
        self._least_s = self._period_s = 1.0 / max_rate_hz

    async def admit(self, authorization: str) -> None:
        """Let the next request in when its time has come. Wrong."""
        server = self._server
        if not server.knows_token(authorization):
            status = http.HTTPStatus.UNAUTHORIZED
            raise self._refused("token", status, f"give the server's ${TOKEN}")
        if not self.entered:
            if full := server.full():
                raise Wrong(http.HTTPStatus.SERVICE_UNAVAILABLE, full)
            self._counted.enter_context(server.counted())
            self.entered = True
        await asyncio.sleep(self._client.pause_s(self._period_s))

    async def answer(self, read: Read, size: int) -> Floats:
        """Actions [C, D] to an observation of so many bytes. Wrong."""
        clock = SystemClock()
        received = clock.now_ns(), clock.steady_ns()
        try:
            seen, task = await asyncio.to_thread(read, received) if size > LARGE else read(received)
            self._period_s = max(self._least_s, (clock.steady_ns() - received[1]) / SECOND / SHARE)
            fields = _Fields(received[0])
            found, _ = await self._server.infer(self._client, fields, seen, task, received)
        except Malformed as error:
            raise self._refused("malformed", http.HTTPStatus.BAD_REQUEST, error) from error
        except InvalidAction as error:
            raise self._refused("invalid", http.HTTPStatus.BAD_REQUEST, error) from error
        except Refused as error:
            raise self._refused("admission", http.HTTPStatus.SERVICE_UNAVAILABLE, error) from error
        except TooOld as error:
            raise self._refused("too_old", http.HTTPStatus.SERVICE_UNAVAILABLE, error) from error
        except Exception as error:  # the policy's own
            line = last_line(error)
            raise self._refused("failed", http.HTTPStatus.INTERNAL_SERVER_ERROR, line) from error
        return found.actions

    def _refused(self, why: str, status: http.HTTPStatus, reason: object) -> Wrong:
        self._server.metrics.refused.labels(why).inc()
        return Wrong(status, str(reason))

    def leave(self) -> None:
        """The connection is over."""
        self._server.let_go(self._client)
        self._counted.close()


class _Client:
    """State of one connection."""

    def __init__(self) -> None:
        self.session: Any = None  # from its first observation on
        self.total_s: float | None = None  # of the answer before
        self._instruction: Instruction | None = None
        self._next_s = 0.0
        self._ours = self._gone = False

    async def enter(self, stepper: Stepper, fields: _Fields, options: ServeOptions) -> None:
        """Open a session. Raises Refused."""
        self._ours = fields.max_age_s is not None
        rate_hz = options.rate_hz if fields.rate_hz is None else fields.rate_hz
        max_age_s = options.max_age_s if fields.max_age_s is None else fields.max_age_s
        self.session = await asyncio.wrap_future(stepper.open(rate_hz, max_age_s))
        if self._gone:
            self.leave(stepper)

    def leave(self, stepper: Stepper) -> None:
        """Release the session: the connection is over."""
        self._gone = True
        if self.session is not None:
            stepper.release(self.session)
        self.session = None

    def refusal(self, text: str) -> str | bytes:
        """Message without an answer: to a client of ours it is no error of the policy's."""
        return pack({OURS: {UNANSWERED: text}}) if self._ours else text

    def instruction(self, text: str) -> Instruction:
        """Instruction of a task; another one is another episode. InvalidAction: it is none."""
        if self._instruction is None or self._instruction.text != text:
            try:
                check_instruction(text)
            except ValueError as error:
                raise InvalidAction(str(error)) from error
            epoch = 0 if self._instruction is None else self._instruction.epoch + 1
            self._instruction = Instruction(text, epoch)
        return self._instruction

    def pause_s(self, period_s: float) -> float:
        """Seconds until its next observation is read."""
        now = time.monotonic()
        self._next_s = max(now, self._next_s + period_s)
        return self._next_s - now


def _metadata(info: PolicyInfo, names: NameTable, inference_ms: float) -> dict[str, Any]:
    own = {
        "info": asdict(info),
        "names": asdict(names),
        "compression": [JPEG],
        "inference_p50_ms": inference_ms,
    }
    return {"policy": info.name, "chunk_length": info.chunk_length, OURS: own}


@dataclass(frozen=True, slots=True)
class _Fields:
    """Additions of a client of ours to an observation: its stamp, its age when it was sent, the
    chunk under way, and, in an episode's first, the answers that it wants."""

    stamp_ns: int
    age_ns: int = 0
    executing: Executing | None = None
    delay_steps: int = 0
    rate_hz: float | None = None
    max_age_s: float | None = None


def _fields(own: Any) -> _Fields:
    try:
        stamp_ns, delay = int(own["stamp_ns"]), int(own["delay_steps"])
        age_s = float(own.get("age_s", 0.0))
        limits = {n: float(own[n]) for n in ("rate_hz", "max_age_s") if own.get(n) is not None}
        executing = executing_of(own["executing"])
        numbers = (age_s, *limits.values())
        if not (0 <= stamp_ns < 1 << 63 and 0 <= delay <= 10_000) or not all(
            0 <= number <= 86_400 for number in numbers
        ):
            raise ValueError("out of range")
    except (LookupError, TypeError, AttributeError, OverflowError, ValueError) as error:
        raise InvalidAction(f"{OURS!r} of the observation cannot be read: {error!r}") from error
    return _Fields(stamp_ns, round(age_s * SECOND), executing, delay, **limits)


def _answer(found: Inference, age_s: float, total_s: float | None) -> dict[str, Any]:
    stages = found.timeline.durations_ms()
    took_ms = (found.timeline.end_ns - found.timeline.start_ns) / MS
    timing = {"infer_ms": took_ms - stages.get("queue", 0.0)}
    if total_s is not None:
        timing["prev_total_ms"] = total_s * 1000
    body = asdict(found)
    for name in ("actions", "timeline"):
        del body[name]
    return {
        "actions": found.actions,
        "server_timing": timing,
        OURS: {"stages_ms": stages, "age_ms": age_s * 1000, "inference": body},
    }


def serve(spec: PolicySpec, options: ServeOptions, say: Any = print) -> int:
    """Serve until SIGINT, SIGTERM or SIGHUP. Returns the exit status."""
    import signal

    check_address(options.host, options.port)  # before weights are read, which may take minutes
    server = Server(spec, options)
    info = server.load()

    async def run() -> str:
        loop = asyncio.get_running_loop()
        for number in ENDS:
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup
            with contextlib.suppress(NotImplementedError):
                loop.add_signal_handler(number, server.stop)
        return await server.run(lambda: say(_greeting(server, info)))

    if failure := asyncio.run(run()):
        raise UserError(f"it serves no more: {failure}")
    return 0


def check_address(host: str, port: int) -> None:
    """Raise UserError, one line, for an address that cannot be listened at."""
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
    except socket.gaierror as error:
        raise UserError(f"--host {host}: {error.strerror}") from error
    except OSError as error:
        ways = {
            errno.EADDRINUSE: "is taken: give another --port, 0 for a free one",
            errno.EACCES: "is not for this user: give a --port from 1024 on",
            errno.EADDRNOTAVAIL: "is no address of this machine: give another --host",
        }
        why = ways.get(error.errno or 0, f"cannot be listened at: {error.strerror}")
        raise UserError(f"{host}:{port} {why}") from error


def _greeting(server: Server, info: PolicyInfo) -> str:
    page = server.address.replace("ws://", "http://", 1)
    lines = [info.conventions, f"check this: {info.contradiction}" if info.contradiction else ""]
    first = f"serving {info.checkpoint or info.name} at {server.address} (metrics: {page}/metrics)"
    return "\n".join(filter(None, [first, *lines]))
