"""The server of :mod:`vla_ros.serve.server` as a Ray Serve application: one replica a GPU.

Ray spreads the clients over the replicas and starts another where one died. A connection stays with
its replica, and so does its session: a client whose replica died connects again, as policy
``remote`` does by itself, and begins a new episode at another.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from vla_ros.policies.base import PolicySpec
from vla_ros.policies.remote.codec import need
from vla_ros.serve.server import ServeOptions, Server

NAME = "vla_ros"
HEALTH_S = 2.0  # how often Ray asks a replica
REFUSED = 1008  # RFC 6455: the client's message violates the policy


class _Socket:
    """Adapter of Starlette's websocket to the one that :class:`Server` uses."""

    spent_s = 0.0  # Ray's proxy reads, in a process of its own

    def __init__(self, theirs: Any, closed: Callable[[None, None], Exception]) -> None:
        self._theirs, self._closed = theirs, closed
        self.over = asyncio.Event()

    async def wait_closed(self) -> None:
        await self.over.wait()

    async def send(self, data: bytes | str) -> None:
        send = self._theirs.send_text if isinstance(data, str) else self._theirs.send_bytes
        try:
            await send(data)
        except Exception as error:  # its client is gone, for which Starlette has several exceptions
            raise self._closed(None, None) from error

    async def close(self, code: int) -> None:
        await self._theirs.close(code)

    def __aiter__(self) -> _Socket:
        return self

    async def __anext__(self) -> Any:
        message = await self._theirs.receive()
        if message["type"] == "websocket.disconnect":
            raise StopAsyncIteration
        return message["text"] if message.get("bytes") is None else message["bytes"]


class Replica:
    """A process with the policy loaded. Ray makes it, and calls it from its event loop."""

    def __init__(self, spec: PolicySpec, options: ServeOptions) -> None:
        self.server = Server(spec, options)
        self.server.load()

    def check_health(self) -> None:
        """Health check of Ray. An exception: another replica takes its place."""
        if reason := self.server.sick():
            raise RuntimeError(reason)

    async def talk(self, socket: Any) -> None:
        """Serve a client, from its connection to its end."""
        if not self.server.knows_token(socket.headers.get("authorization", "")):
            await socket.close(REFUSED)
            return
        await socket.accept()
        ours = _Socket(socket, self.server.closed)
        try:
            await self.server.converse(ours)
        finally:
            ours.over.set()


def application(spec: PolicySpec, options: ServeOptions, replicas: int) -> Any:
    """Application for ``ray.serve.run``. UserError: Ray is not installed."""
    serve = need("ray.serve")
    starlette, routing = need("starlette.applications"), need("starlette.routing")

    async def talk(socket: Any) -> None:
        await serve.get_replica_context().servable_object.talk(socket)

    deployment = serve.deployment(
        name="policy",
        num_replicas=replicas,
        max_ongoing_requests=options.max_clients,
        ray_actor_options={"num_cpus": 1, "num_gpus": int(spec.engine.device.startswith("cuda"))},
        health_check_period_s=HEALTH_S,
    )
    app = starlette.Starlette(routes=[routing.WebSocketRoute("/", talk)])
    return deployment(serve.ingress(app)(Replica)).bind(spec, options)


def serve_replicas(
    spec: PolicySpec, options: ServeOptions, replicas: int, say: Callable[[str], None]
) -> int:
    """Serve until Ctrl-C, in a Ray cluster of this machine or in the one that RAY_ADDRESS names.
    Returns the exit status."""
    ray, serve = need("ray"), need("ray.serve")
    made = application(spec, options, replicas)
    ray.init(include_dashboard=False, log_to_driver=False, ignore_reinit_error=True)
    serve.start(http_options={"host": options.host, "port": options.port})
    serve.run(made, name=NAME, route_prefix="/")
    say(f"serving {spec.checkpoint} at ws://{options.host}:{options.port}, {replicas} replicas")
    try:
        while True:
            time.sleep(1.0)
    except KeyboardInterrupt:
        return 0
    finally:
        serve.shutdown()
        ray.shutdown()
