"""Prometheus: metrics of apps, consumers, producers and worker pools. Needs the extra ``prometheus``.

The values are those of ``statistics()``, which is called at each scrape, in the event loop of the app or consumer.
``docs/metrics.md`` lists the metrics.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from tailrace.app.app import App
from tailrace.app.health.endpoints import (
    GET_ONLY,
    ASGIApp,
    HttpAnswer,
    Message,
    Receive,
    Send,
    send_answer,
    serve_lifespan,
)
from tailrace.app.processes.worker_pool import WorkerPool
from tailrace.consumer.consumer import Consumer
from tailrace.errors import ConfigurationError, ConsumerStateError
from tailrace.installation import needs_extra
from tailrace.observe.metrics import METRICS, MetricDefinition, Sample, Statistics, samples
from tailrace.observe.statistics import DURATION_BOUNDS_S, Durations
from tailrace.producer.producer import Producer

with needs_extra("prometheus"):
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.core import Metric as Family
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.multiprocess import MultiProcessCollector
    from prometheus_client.registry import Collector
    from prometheus_client.utils import floatToGoString

__all__ = ["Source", "TailraceCollector", "encoded", "encoded_registry", "exposition", "metrics_app", "snapshots"]

Source: TypeAlias = App | Consumer[Any, Any] | Producer[Any, Any]
"""App, consumer or producer whose statistics are collected."""

_LOOP_TIMEOUT_S = 2.0
"""Maximum time in seconds to wait until the event loop of a source has called ``statistics``."""
_TYPES = {"counter": "counter", "gauge": "gauge", "histogram": "histogram", "info": "gauge"}
_BOUNDS = [*map(floatToGoString, DURATION_BOUNDS_S), "+Inf"]

_COLLECTOR_RAISED = HttpAnswer(500, b"a collector of metrics raised - see the log\n", "text/plain")
"""Response to a scrape in which a collector raised."""

_log = logging.getLogger("tailrace")


class TailraceCollector(Collector):
    """Collector of the metrics of apps and consumers: ``REGISTRY.register(TailraceCollector(app))``.

    A collector may be registered before the app or consumer is started. If it is called in another thread than the
    event loop's, as ``prometheus_client.start_http_server`` does, it reads the statistics in the event loop. If this
    takes longer than two seconds, it reads them in its own thread, so that the metrics show a blocked event loop.

    Args:
        sources: apps and consumers.
    """

    def __init__(self, *sources: Source) -> None:
        self._sources = sources

    def describe(self) -> Iterable[Family]:
        """Return the metrics without values."""
        return _families(())

    def collect(self) -> Iterable[Family]:
        """Return the metrics with their current values."""
        return _families(samples(filter(None, map(_snapshot, self._sources))))


class _Collected(Collector):
    """Collector that returns the metrics of statistics that were read before."""

    def __init__(self, found: Iterable[Statistics]) -> None:
        self._families = list(_families(samples(found)))

    def collect(self) -> Iterable[Family]:
        return self._families


async def exposition(
    *sources: Source | WorkerPool, accept: str = "", registry: CollectorRegistry | None = None
) -> tuple[bytes, str]:
    """Return the text of all metrics, and its content type. Must be called in the event loop of the sources.

    Args:
        sources: apps, consumers and worker pools.
        accept: Accept header of the request; it selects the text format of Prometheus or that of OpenMetrics.
        registry: registry whose metrics are added; by default the default registry of prometheus-client, which has the
            metrics of the process. With ``PROMETHEUS_MULTIPROC_DIR``, the default is a registry with the metrics of all
            processes. The registry must not contain a ``TailraceCollector`` of the same sources.
    """
    return encoded(await snapshots(sources), accept, registry)


def encoded(
    found: Iterable[Statistics], accept: str = "", registry: CollectorRegistry | None = None
) -> tuple[bytes, str]:
    """Return the text of the metrics of statistics, and its content type; see ``exposition``."""
    joined = CollectorRegistry(auto_describe=False)
    joined.register(_Collected(found))
    if registry is None and "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        MultiProcessCollector(joined)  # type: ignore[no-untyped-call]
    else:
        joined.register(registry or REGISTRY)
    return encoded_registry(joined, accept)


def encoded_registry(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """Return the text of the metrics of a registry, in the format that an Accept header selects, and its content type.

    A malformed header selects the text format of Prometheus.
    """
    try:
        encode, content_type = choose_encoder(accept)
    except Exception:  # noqa: BLE001 - prometheus-client raises ValueError and others for a malformed version
        encode, content_type = choose_encoder("")
    return encode(registry), content_type


async def snapshots(sources: Iterable[Source | WorkerPool]) -> list[Statistics]:
    """Return the statistics of all sources that were started."""
    found: list[Statistics] = []
    for source in sources:
        if isinstance(source, WorkerPool):
            found.append(await source.statistics())
        elif (statistics := _statistics(source)) is not None:
            found.append(statistics)
    return found


def metrics_app(*sources: Source | WorkerPool, registry: CollectorRegistry | None = None) -> ASGIApp:
    """Return an ASGI app that serves the metrics, for ``web.add_route("/metrics", ...)``.

    The ASGI app serves the metrics at every path. It raises ConfigurationError for scopes other than HTTP and lifespan.

    Args:
        sources: apps, consumers and worker pools.
        registry: registry whose metrics are added, as in ``exposition``.
    """
    return _MetricsApp(sources, registry)


class _MetricsApp:
    """ASGI app as a class, because Starlette's ``add_route`` would call a function with a request."""

    def __init__(self, sources: tuple[Source | WorkerPool, ...], registry: CollectorRegistry | None) -> None:
        self._sources, self._registry = sources, registry

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        if scope["type"] == "lifespan":
            await serve_lifespan(receive, send)
        elif scope["type"] == "http":
            if scope["method"] in {"GET", "HEAD"}:
                await self._answer(scope, send)
            else:
                await send_answer(GET_ONLY, scope, send)
        else:
            raise ConfigurationError(f"ASGI scope {scope['type']!r} is not supported - request metrics over HTTP")

    async def _answer(self, scope: Message, send: Send) -> None:
        accept = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"accept"), "")
        try:
            body, kind = await exposition(*self._sources, accept=accept, registry=self._registry)
            answer = HttpAnswer(200, body, kind)
        except Exception:  # noqa: BLE001 - a collector of the user may raise anything
            _log.exception("a collector of metrics raised")
            answer = _COLLECTOR_RAISED
        await send_answer(answer, scope, send)


# ---- snapshots ---------------------------------------------------------------------------------------------------


def _snapshot(source: Source) -> Statistics | None:
    """Return the statistics of a source; None if it was not started, or if its event loop has ended.

    May be called in any thread.
    """
    if isinstance(source, Producer):
        loop = source.event_loop
    else:
        supervisor = source.runtime.supervisor if isinstance(source, App) else source.supervisor
        loop = None if supervisor is None else supervisor.loop
    if loop is None or not loop.is_running() or loop is _running_loop():
        return _statistics(source)

    async def in_loop() -> Statistics | None:
        return _statistics(source)

    reading = asyncio.run_coroutine_threadsafe(in_loop(), loop)
    try:
        return reading.result(_LOOP_TIMEOUT_S)
    except TimeoutError:
        pass
    except (asyncio.CancelledError, RuntimeError):
        _log.warning("no metrics of %r: its event loop has ended", source)
        return None
    finally:
        reading.cancel()
    try:
        # While the event loop is blocked, the statistics do not change, so they can be read in this thread.
        return _statistics(source)
    except RuntimeError:
        _log.warning("no metrics of %r: its event loop did not answer in time", source)
        return None


def _statistics(source: Source) -> Statistics | None:
    try:
        return source.statistics()
    except ConsumerStateError:
        return None  # not started yet


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


# ---- values ------------------------------------------------------------------------------------------------------


def _families(found: Iterable[Sample]) -> Iterator[Family]:
    """Yield all metrics, each with its samples."""
    by_metric: dict[MetricDefinition, list[Sample]] = {metric: [] for metric in METRICS}
    for one in found:
        by_metric[one.metric].append(one)
    for metric, values in by_metric.items():
        family = Family(metric.name.removesuffix("_total"), metric.meaning, _TYPES[metric.kind])
        for one in values:
            if isinstance(one.value, Durations):
                _add_histogram(family, one.labels, one.value)
            else:
                family.add_sample(metric.name, dict(one.labels), one.value)
        yield family


def _add_histogram(family: Family, labels: Mapping[str, str], durations: Durations) -> None:
    for bound, count in zip(_BOUNDS, durations.cumulative(), strict=True):
        family.add_sample(f"{family.name}_bucket", {**labels, "le": bound}, count)
    family.add_sample(f"{family.name}_sum", dict(labels), durations.sum_s)
    family.add_sample(f"{family.name}_count", dict(labels), durations.count)
