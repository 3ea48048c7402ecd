"""Spans and metrics with OpenTelemetry: ``App(hooks=[OpenTelemetry()])``.

Needs the extra ``opentelemetry``. Only OpenTelemetry's API is imported. Without an SDK, spans record nothing, but the
trace context of a consumed record is passed on to the records that its handler publishes. Names of spans, attributes
and metrics are in ``messaging_conventions``. An exception of a propagator, span processor or exporter does not reach
handlers or consumers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import Token
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar

from tailrace.app.publish.traces import note_trace
from tailrace.installation import needs_extra
from tailrace.integrations.messaging_conventions import DURATION_BUCKETS_S, SCHEMA_URL, Attribute, Metric, Operation
from tailrace.observe.events import CommitFailed, Event, FetchCompleted, FetchFailed, OffsetsCommitted
from tailrace.observe.hooks import HandlerInfo, Publish, TelemetryGuard
from tailrace.producer.publisher import Published
from tailrace.records import Record, TopicPartition
from tailrace.user_exceptions import has_many_related, message_of

with needs_extra("opentelemetry"):
    from opentelemetry import context as active_context
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.propagators.textmap import Getter
    from opentelemetry.trace import Link, Span, SpanKind, StatusCode

__all__ = ["OpenTelemetry"]

ValueT = TypeVar("ValueT", bound=Hashable)

_Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
_Attributes: TypeAlias = dict[str, str | int | bool]
_MAX_STATUS_CHARS = 2_000
"""Maximum length of an error's message in the status of a span."""


class OpenTelemetry:
    """Hook that creates spans and metrics of an app or a consumer.

    The spans, with their names for a topic ``T`` and their kinds:

    - ``process T`` (CONSUMER) for each call of a handler. For a single record, the span continues the trace in the
      record's headers; for a batch, it links to the spans in the headers of its records.
    - ``send T`` (PRODUCER) for each published record: results, ``app.publish``, retry topics and dead letters. The
      record's headers carry the context of the span.
    - ``poll T`` (CLIENT) for each fetch that returned records or failed. These spans have no relation to the
      ``process`` spans, because records are fetched ahead.
    - ``commit T`` (CLIENT) for each commit of offsets.

    Pickled copies, such as those on Spark, use the global providers of their process.

    Args:
        tracer_provider: Provider of the tracer; by default the global one.
        meter_provider: Provider of the meter; by default the global one.
        client_spans: False to create no ``poll`` and ``commit`` spans; their metrics are recorded nevertheless.
    """

    def __init__(
        self,
        *,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        client_spans: bool = True,
    ) -> None:
        self._client_spans = client_spans
        self._guards = _Guards()
        self._tracer = trace.get_tracer("tailrace", tracer_provider=tracer_provider, schema_url=SCHEMA_URL)
        meter = metrics.get_meter("tailrace", meter_provider=meter_provider, schema_url=SCHEMA_URL)

        def duration(name: str, description: str) -> metrics.Histogram:
            return meter.create_histogram(
                name, "s", description, explicit_bucket_boundaries_advisory=DURATION_BUCKETS_S
            )

        self._operation_duration = duration(Metric.OPERATION_DURATION, "Duration of a poll, commit or send.")
        self._process_duration = duration(Metric.PROCESS_DURATION, "Duration of a call of a handler.")
        self._sent = meter.create_counter(Metric.SENT_MESSAGES, "{message}", "Number of records sent.")
        self._consumed = meter.create_counter(Metric.CONSUMED_MESSAGES, "{message}", "Number of records fetched.")

    def __repr__(self) -> str:
        return "OpenTelemetry()" if self._client_spans else "OpenTelemetry(client_spans=False)"

    def __reduce__(self) -> tuple[Callable[[bool], OpenTelemetry], tuple[bool]]:
        """Pickle only the options, because providers have threads and connections."""
        return _unpickled, (self._client_spans,)

    # ---- handlers ----------------------------------------------------------------------------------------------

    def around_handler(
        self, call: Callable[[Any], Awaitable[Any]], handler: HandlerInfo, /
    ) -> Callable[[Any], Awaitable[Any]]:
        """Return a function that calls ``call`` within a ``process`` span."""
        common: _Attributes = {Attribute.GROUP_NAME: handler.group_id, Attribute.HANDLER: handler.name}

        async def process(record: Record) -> object:
            with self._processing(record, common):
                return await call(record)

        async def process_batch(records: Sequence[Record]) -> Mapping[int, Exception]:
            with self._processing_batch(records, common) as running:
                failed: Mapping[int, Exception] = await call(records)
                if failed:
                    running.fail(failed.values())
                return failed

        return process_batch if handler.is_batch else process

    def processing(
        self, records: Record | Sequence[Record], group_id: str | None = None
    ) -> AbstractContextManager[Any]:
        """Return a context with a ``process`` span, for code that handles the records of a ``Consumer``.

        Args:
            records: A record, or the records of a batch: at least one.
            group_id: Group of the consumer; None without a group.
        """
        common: _Attributes = {} if group_id is None else {Attribute.GROUP_NAME: group_id}
        if isinstance(records, Record):
            return self._processing(records, common)
        return self._processing_batch(records, common)

    def _processing(self, record: Record, common: _Attributes) -> _RunningOperation:
        labels = {**Operation.PROCESS.attributes, **common, Attribute.DESTINATION_NAME: record.topic}
        running = _RunningOperation(self._guards, self._process_duration, labels)
        with self._guards.start:
            parent = _extract_context(record.headers, Context())
            details: _Attributes = {
                **labels,
                Attribute.PARTITION_ID: str(record.partition),
                Attribute.OFFSET: record.offset,
            }
            if record.value is None:
                details[Attribute.TOMBSTONE] = True
            name = Operation.PROCESS.span_name(record.topic)
            running.activate(self._tracer.start_span(name, parent, SpanKind.CONSUMER, details), parent)
        return running

    def _processing_batch(self, records: Sequence[Record], common: _Attributes) -> _RunningOperation:
        labels = {**Operation.PROCESS.attributes, **common}
        topic, partition = (
            _common_value(one.topic for one in records),
            _common_value(one.topic_partition for one in records),
        )
        if topic is not None:
            labels[Attribute.DESTINATION_NAME] = topic
        running = _RunningOperation(self._guards, self._process_duration, labels)
        with self._guards.start:
            details: _Attributes = {**labels, Attribute.MESSAGE_COUNT: len(records)}
            if partition is not None:
                details[Attribute.PARTITION_ID] = str(partition.partition)
            name, links = Operation.PROCESS.span_name(topic), _links(records)
            parent = Context()
            running.activate(self._tracer.start_span(name, parent, SpanKind.CONSUMER, details, links), parent)
        return running

    # ---- publishing --------------------------------------------------------------------------------------------

    def around_publish(self, publish: Publish, /) -> Publish:
        """Return a function that calls ``publish`` within a ``send`` span, with the span's context in the headers.

        If the record has trace headers, the span continues that trace; otherwise its parent is the active span.
        """

        async def send(
            topic: str,
            value: bytes | None,
            *,
            headers: _Headers = (),
            partition: int | None = None,
            **options: Any,  # noqa: ANN401 - passed on
        ) -> Any:  # noqa: ANN401 - passed on
            labels: _Attributes = {**Operation.SEND.attributes, Attribute.DESTINATION_NAME: topic}
            with _RunningOperation(self._guards, self._operation_duration, labels, self._sent) as running:
                with self._guards.start:
                    parent = _extract_context(headers, active_context.get_current())
                    details = {**labels}
                    if partition is not None:
                        details[Attribute.PARTITION_ID] = str(partition)
                    if value is None:
                        details[Attribute.TOMBSTONE] = True
                    name = Operation.SEND.span_name(topic)
                    running.set_span(self._tracer.start_span(name, parent, SpanKind.PRODUCER, details), parent)
                    headers = _replace_trace(headers, running.trace)
                published = await publish(topic, value, headers=headers, partition=partition, **options)
                if isinstance(published, Published):
                    with self._guards.end:
                        running.span.set_attribute(Attribute.PARTITION_ID, str(published.partition))
                        running.span.set_attribute(Attribute.OFFSET, published.offset)
                return published

        return send

    # ---- polls and commits -------------------------------------------------------------------------------------

    def on_event(self, event: Event, /) -> None:
        """Create spans and metrics for events about fetches and commits."""
        match event:
            case FetchCompleted() if event.by_partition:
                labels = self._record(
                    _ClientOperation(
                        Operation.POLL,
                        list(event.by_partition),
                        event.group_id,
                        event.took_s,
                        details={Attribute.MESSAGE_COUNT: event.records},
                    )
                )
                with self._guards.measure:
                    for fetched, count in event.by_partition.items():
                        self._consumed.add(count, {**labels, Attribute.DESTINATION_NAME: fetched.topic})
            case FetchFailed():
                failed = [] if event.partition is None else [event.partition]
                error_type = event.error if event.exception is None else _type_name(event.exception)
                self._record(_ClientOperation(Operation.POLL, failed, error_type=error_type))
            case OffsetsCommitted(group_id=group_id, offsets=offsets, took_s=took_s):
                partition = _common_value(offsets)
                details: _Attributes = {} if partition is None else {Attribute.OFFSET: offsets[partition]}
                self._record(_ClientOperation(Operation.COMMIT, list(offsets), group_id, took_s, details=details))
            case CommitFailed(group_id=group_id, took_s=took_s):
                error_type = "_OTHER" if event.exception is None else _type_name(event.exception)
                self._record(_ClientOperation(Operation.COMMIT, [], group_id, took_s, error_type))
            case _:
                pass

    def _record(self, ended: _ClientOperation) -> _Attributes:
        """Create the span of an operation, record its duration if it is known, and return the labels of its metrics."""
        topic, partition = _common_value(one.topic for one in ended.partitions), _common_value(ended.partitions)
        optional = {
            Attribute.GROUP_NAME: ended.group_id,
            Attribute.DESTINATION_NAME: topic,
            Attribute.ERROR_TYPE: ended.error_type,
        }
        labels: _Attributes = {**ended.operation.attributes, **_without_none(optional)}
        with self._guards.measure:
            if ended.took_s is not None:
                self._operation_duration.record(ended.took_s, labels)
        if self._client_spans:
            with self._guards.start:
                number = None if partition is None else str(partition.partition)
                attributes = {**labels, **ended.details, **_without_none({Attribute.PARTITION_ID: number})}
                now_ns = int(time.time() * 1e9)
                start_ns = now_ns - int((ended.took_s or 0.0) * 1e9)
                name = ended.operation.span_name(topic)
                span = self._tracer.start_span(name, Context(), SpanKind.CLIENT, attributes, start_time=start_ns)
                if ended.error_type is not None:
                    span.set_status(StatusCode.ERROR, ended.error_type)
                span.end(now_ns)
        return labels


class _ClientOperation(NamedTuple):
    """Poll or commit that has just ended."""

    operation: Operation
    partitions: Sequence[TopicPartition]
    group_id: str | None = None
    took_s: float | None = None
    """Duration in seconds; None if unknown."""
    error_type: str | None = None
    details: Mapping[str, str | int | bool] = MappingProxyType({})
    """Attributes of the span in addition to those of its metrics."""


class _Guards:
    """Guards that keep exceptions of OpenTelemetry from handlers and consumers, one for each step."""

    def __init__(self) -> None:
        self.start, self.fail = TelemetryGuard("starting a span"), TelemetryGuard("recording an error in a span")
        self.end, self.measure = TelemetryGuard("ending a span"), TelemetryGuard("recording a metric")


class _RunningOperation:
    """Running operation with its span and metrics; a context manager that ends them.

    Args:
        guards: guards of the steps.
        duration: histogram for the duration of the operation.
        labels: labels of the metrics; ``error.type`` is added if the operation fails.
        counter: counter that is increased by one at the end, even if the operation has failed; None for no counter.

    Attributes:
        span: span of the operation; an invalid one if it was not started.
    """

    __slots__ = ("_context", "_counter", "_duration", "_guards", "_labels", "_loop", "_started_at", "_token", "span")

    def __init__(
        self,
        guards: _Guards,
        duration: metrics.Histogram,
        labels: _Attributes,
        counter: metrics.Counter | None = None,
    ) -> None:
        self._guards, self._duration, self._labels, self._counter = guards, duration, labels, counter
        self._loop = asyncio.get_running_loop()
        self._started_at = self._loop.time()
        self.span: Span = trace.INVALID_SPAN
        self._context = Context()
        self._token: Token[Context] | None = None

    def set_span(self, span: Span, parent: Context) -> None:
        """Set the span of the operation without making it the active span."""
        self.span, self._context = span, trace.set_span_in_context(span, parent)

    def activate(self, span: Span, parent: Context) -> None:
        """Set the span of the operation, and make it the active span until the operation ends."""
        self.set_span(span, parent)
        self._token = active_context.attach(self._context)

    @property
    def trace(self) -> _Headers:
        """Headers that carry the context of the span."""
        carrier: dict[str, str] = {}
        propagate.inject(carrier, self._context)
        return [(name, value.encode()) for name, value in carrier.items()]

    def fail(self, errors: Iterable[BaseException]) -> None:
        """Record the exceptions of the operation, or of the failed records of a batch."""
        with self._guards.fail:
            found = {id(error): error for error in errors}
            first = next(iter(found.values()))
            self._labels[Attribute.ERROR_TYPE] = _type_name(first)
            self.span.set_attribute(Attribute.ERROR_TYPE, _type_name(first))
            self.span.set_status(StatusCode.ERROR, message_of(first, _MAX_STATUS_CHARS))
            if headers := self.trace:
                note_trace(found.values(), headers)
            for error in found.values():
                if has_many_related(error):
                    message = message_of(error, _MAX_STATUS_CHARS)
                    details = {"exception.type": _type_name(error), "exception.message": message}
                    self.span.add_event("exception", details)
                else:
                    self.span.record_exception(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.fail((error,))
        if self._token is not None:
            active_context.detach(self._token)
        with self._guards.end:
            self.span.end()
        with self._guards.measure:
            self._duration.record(self._loop.time() - self._started_at, self._labels)
            if self._counter is not None:
                self._counter.add(1, self._labels)


class _HeaderGetter(Getter[_Headers]):
    """Access to the trace headers of a record for propagators."""

    def get(self, carrier: _Headers, key: str) -> list[str] | None:
        # As for parameters marked with Header, and as Kafka's lastHeader, the last header of a name counts.
        found = next((value for name, value in reversed(carrier) if name == key), None)
        return None if found is None else [found.decode(errors="replace")]

    def keys(self, carrier: _Headers) -> list[str]:
        return [name for name, _ in carrier]


_HEADERS = _HeaderGetter()


def _extract_context(headers: _Headers, base: Context) -> Context:
    """Return ``base`` with the trace context in the headers of a record, if there is one."""
    return propagate.extract(headers, base, _HEADERS) if headers else base


def _replace_trace(headers: _Headers, trace_headers: _Headers) -> _Headers:
    names = {name for name, _ in trace_headers}
    return [*(one for one in headers if one[0] not in names), *trace_headers] if names else headers


def _links(records: Iterable[Record]) -> list[Link]:
    """Return one link to each span that is in the headers of the records."""
    found: dict[tuple[int, int], Link] = {}
    for record in records:
        if record.headers:
            span = trace.get_current_span(_extract_context(record.headers, Context())).get_span_context()
            if span.is_valid:
                found.setdefault((span.trace_id, span.span_id), Link(span))
    return list(found.values())


def _common_value(values: Iterable[ValueT]) -> ValueT | None:
    """Return the only value if all are equal; None if there are different values, or no value."""
    different = set(values)
    return different.pop() if len(different) == 1 else None


def _without_none(attributes: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in attributes.items() if value is not None}


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _unpickled(client_spans: bool) -> OpenTelemetry:  # noqa: FBT001 - pickle passes positional arguments
    return OpenTelemetry(client_spans=client_spans)
