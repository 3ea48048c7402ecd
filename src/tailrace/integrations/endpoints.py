"""Health probes and metrics over HTTP for programs without a web framework.

Metrics need the extra ``prometheus``.
"""

from __future__ import annotations

import logging
from importlib.util import find_spec

from tailrace.app.app import App
from tailrace.app.health.endpoint_server import EndpointServer, Render, Route
from tailrace.app.health.endpoints import HttpAnswer
from tailrace.app.processes.worker_pool import WorkerPool
from tailrace.installation import install_hint

__all__ = ["serve"]

_log = logging.getLogger("tailrace")


def serve(source: App | WorkerPool, *, port: int, host: str = "") -> EndpointServer:
    """Return a server for ``/livez``, ``/readyz``, ``/lag`` and ``/metrics``.

    Use it around the app: ``async with serve(app, port=8080): await app.run()``. ``/metrics`` needs the extra
    ``prometheus``, and also has the metrics of prometheus-client's default registry. The server has its own thread, so
    that it responds even if the event loop is blocked.

    Args:
        source: app or worker pool.
        port: TCP port; 0 for any free port, which the started server has as its attribute ``port``.
        host: address to listen on; by default all addresses.

    Raises:
        ConfigurationError: the port is in use. Raised when ``async with`` starts the server.
    """
    return EndpointServer(source.endpoints, port=port, host=host, routes={"/metrics": _metrics_route(source)})


def _metrics_route(source: App | WorkerPool) -> Route:
    if find_spec("prometheus_client") is None:
        hint = f"metrics need prometheus-client - {install_hint('prometheus')}"
        _log.warning("/metrics is not served: %s", hint)
        missing = HttpAnswer(501, f"{hint}\n".encode(), "text/plain")

        async def refuse(_accept: str) -> Render:
            return lambda: missing

        return Route(refuse)
    from tailrace.integrations.prometheus import encoded, snapshots  # noqa: PLC0415 - an extra

    async def collect(accept: str) -> Render:
        found = await snapshots([source])

        def render() -> HttpAnswer:
            return HttpAnswer(200, *encoded(found, accept))

        return render

    if isinstance(source, WorkerPool):
        return Route(collect)

    def render_without_loop(accept: str) -> HttpAnswer:
        return HttpAnswer(200, *encoded([source.statistics()], accept))

    return Route(collect, render_without_loop)
