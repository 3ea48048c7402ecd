"""Spans and metrics by OpenTelemetry's conventions, recorded by its SDK."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import anyio.from_thread
import pytest
from opentelemetry import propagate, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv._incubating.metrics import messaging_metrics
from opentelemetry.semconv.attributes import error_attributes
from opentelemetry.trace import SpanKind, StatusCode

from tailrace import App, Consumer, Message, PartialFailureError, PublishError, Record, Retry, TopicPartition
from tailrace.app.publish.results import instrumented
from tailrace.integrations.messaging_conventions import DURATION_BUCKETS_S, Attribute, Metric
from tailrace.integrations.opentelemetry import OpenTelemetry
from tailrace.observe.events import CommitFailed, FetchFailed, OffsetsCommitted, RecordDeadLettered
from tailrace.producer.publisher import OutgoingRecord
from tailrace.testing import TestApp
from tailrace.testing.topic_log import TopicLog
from tests.support.event_recorder import EventRecorder
from tests.support.topic_contents import contents_of

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PRODUCER = ("traceparent", f"00-{TRACE_ID}-00f067aa0ba902b7-01".encode())
OTHER = ("traceparent", b"00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb-01")


class Recorded:
    """OpenTelemetry with an SDK that keeps spans and metrics in memory."""

    def __init__(self, *processors: SpanProcessor, **options: Any) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        tracer_provider = TracerProvider(shutdown_on_exit=False)
        for one in (SimpleSpanProcessor(self.exporter), *processors):
            tracer_provider.add_span_processor(one)
        self.tracer = tracer_provider.get_tracer("test")
        meter_provider = MeterProvider([self.reader], shutdown_on_exit=False)
        self.hook = OpenTelemetry(tracer_provider=tracer_provider, meter_provider=meter_provider, **options)

    def spans(self, name: str) -> list[ReadableSpan]:
        """Return the ended spans of a name."""
        return [one for one in self.exporter.get_finished_spans() if one.name == name]

    def span(self, name: str) -> ReadableSpan:
        """Return the only ended span of a name."""
        (span,) = self.spans(name)
        return span

    def points(self, name: str) -> list[Any]:
        """Return the data points of a metric."""
        data = self.reader.get_metrics_data()
        if data is None:
            return []
        found = [one for of in data.resource_metrics for scope in of.scope_metrics for one in scope.metrics]
        return [point for one in found if one.name == name for point in one.data.data_points]


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


def context_of(span: ReadableSpan) -> tuple[int, int]:
    """Return the ids of a span."""
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def parent_of(span: ReadableSpan) -> tuple[int, int] | None:
    """Return the ids of a span's parent."""
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def carried(headers: Sequence[tuple[str, bytes | None]]) -> tuple[int, int]:
    """Return the ids in the only ``traceparent`` of a record."""
    (text,) = [value.decode() for name, value in headers if name == "traceparent" and value is not None]
    _, trace_id, span_id, _ = text.split("-")
    return int(trace_id, 16), int(span_id, 16)


def test_names_follow_the_semantic_conventions():
    """The names of attributes and metrics, and the buckets, are those of the semantic conventions' package."""
    ours = {name for key, name in vars(Attribute).items() if key.isupper()} - {Attribute.HANDLER}
    known = {name for key, name in vars(messaging_attributes).items() if key.startswith("MESSAGING_")}
    measured = {name for key, name in vars(messaging_metrics).items() if key.startswith("MESSAGING_")}

    assert ours <= {*known, error_attributes.ERROR_TYPE}
    assert {name for key, name in vars(Metric).items() if key.isupper()} <= measured
    assert (DURATION_BUCKETS_S[0], DURATION_BUCKETS_S[-1], len(DURATION_BUCKETS_S)) == (0.005, 10, 14)


# ---- handlers ------------------------------------------------------------------------------------------------------


async def test_a_handler_continues_the_trace_of_its_record(recorded):
    """The span of a handler is a child of the span in the record's headers, and active in the handler."""
    app, active = App(group_id="billing", hooks=[recorded.hook]), []

    @app.handler("orders")
    async def charge(value: bytes) -> None:
        active.append(trace.get_current_span().get_span_context().span_id)

    async with TestApp(app) as kafka:
        sent = await kafka.send("orders", b"x", headers=[PRODUCER])

    process, send = recorded.span("process orders"), recorded.span("send orders")
    assert parent_of(send) == (int(TRACE_ID, 16), 0x00F067AA0BA902B7)
    assert parent_of(process) == context_of(send) == carried(sent.headers)
    assert active == [context_of(process)[1]]
    assert (process.kind, process.status.status_code) == (SpanKind.CONSUMER, StatusCode.UNSET)
    assert dict(process.attributes) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "0",
        "messaging.consumer.group.name": "billing",
        "messaging.kafka.offset": 0,
        "tailrace.handler": charge.__qualname__,
    }


async def test_a_record_without_a_trace_begins_one(recorded):
    """The span of a record without a trace has no parent."""
    app = App(group_id="billing", hooks=[recorded.hook])

    @app.handler("orders")
    async def charge(value: bytes | None) -> None: ...

    with recorded.tracer.start_as_current_span("startup"):
        async with TestApp(app) as kafka:
            await kafka.send("orders", None)
            await kafka._log.publish(OutgoingRecord("orders", b"from elsewhere"))
            await kafka.settled()

    first, second = recorded.spans("process orders")
    assert parent_of(first) == context_of(recorded.span("send orders"))
    assert first.attributes["messaging.kafka.message.tombstone"] is True
    assert parent_of(second) is None


def publishing_handlers(app: App, kind: str) -> None:
    """Declare a handler of ``orders`` that publishes a result and, by ``app.publish``, another record."""

    async def in_loop(value: bytes) -> Message:
        await app.publish("audits", b"a")
        return Message(b"i", topic="invoices")

    async def in_batch(values: list[bytes]) -> list[Message]:
        await app.publish("audits", b"a")
        return [Message(b"i", topic="invoices") for _ in values]

    def in_thread(value: bytes) -> Message:
        anyio.from_thread.run(app.publish, "audits", b"a")
        return Message(b"i", topic="invoices")

    match kind:
        case "record":
            app.handler("orders")(in_loop)
        case "thread":
            app.handler("orders")(in_thread)
        case "batch":
            app.batch_handler("orders")(in_batch)


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("kind", ["record", "thread", "batch"])
async def test_published_records_carry_the_span_of_their_handler(recorded, kind, delivery):
    """Results and published records have the id of a ``send`` span, which is a child of the handler's span."""
    app = App(group_id="billing", hooks=[recorded.hook], delivery=delivery)
    publishing_handlers(app, kind)

    async with TestApp(app) as kafka:
        await kafka.send("orders", b"x", headers=[PRODUCER])

        process = recorded.span("process orders")
        for topic in ("invoices", "audits"):
            (record,), send = kafka.published(topic), recorded.span(f"send {topic}")
            assert carried(record.headers) == context_of(send)
            assert parent_of(send) == context_of(process)
            assert send.kind is SpanKind.PRODUCER


async def test_the_span_of_a_batch_links_to_the_spans_of_its_records(recorded):
    """The span of a batch has no parent, and a link for each span that sent records."""
    app = App(group_id="billing", hooks=[recorded.hook])

    @app.batch_handler("orders", max_wait_ms=100)
    async def charge(values: list[bytes]) -> None: ...

    async with TestApp(app) as kafka:
        for headers in ([PRODUCER], [PRODUCER], [OTHER], []):
            await kafka._log.publish(OutgoingRecord("orders", b"x", headers=headers))
        await kafka.settled()

    process = recorded.span("process orders")
    assert parent_of(process) is None
    assert [(one.context.trace_id, one.context.span_id) for one in process.links] == [
        carried([PRODUCER]),
        carried([OTHER]),
    ]
    assert process.attributes["messaging.batch.message_count"] == 4
    assert process.attributes["messaging.destination.partition.id"] == "0"


async def test_each_attempt_has_a_span_and_the_dead_letter_carries_the_last(recorded):
    """Each attempt has a span with its error, and the dead letter has the id of the last one."""
    app = App(
        group_id="billing",
        hooks=[recorded.hook],
        retry=Retry(attempts=2, topic_delays_ms=(1_000,)),
        dead_letter="{topic}.dead",
    )

    @app.handler("orders")
    async def charge(value: bytes) -> None:
        raise KeyError("customer")

    async with TestApp(app) as kafka:
        await kafka.send("orders", b"x", headers=[PRODUCER, ("baggage", b"customer=ann"), ("kind", b"refund")])
        (letter,) = kafka.dead_letters("orders")

    attempts = recorded.spans("process orders")
    later_topic = next(one.name for one in recorded.exporter.get_finished_spans() if "retry" in one.name)
    to_retry_topic, later = recorded.span(later_topic), recorded.spans(later_topic.replace("send", "process"))
    to_dead_letter = recorded.span("send orders.dead")
    sent = context_of(recorded.span("send orders"))
    assert [parent_of(one) for one in attempts] == [sent, sent]
    assert parent_of(to_retry_topic) == context_of(attempts[-1])
    assert {parent_of(one) for one in later} == {context_of(to_retry_topic)}
    assert parent_of(to_dead_letter) == context_of(later[-1])
    assert carried(letter.headers) == context_of(to_dead_letter)
    assert {("baggage", b"customer=ann"), ("kind", b"refund")} <= set(letter.headers)
    assert {one.context.trace_id for one in recorded.exporter.get_finished_spans()} == {int(TRACE_ID, 16)}
    for attempt in (*attempts, *later):
        assert attempt.status.status_code is StatusCode.ERROR
        assert attempt.attributes["error.type"] == "KeyError"
        assert [one.name for one in attempt.events] == ["exception"]


async def test_dead_letters_of_a_batch_continue_its_trace(recorded):
    """The span of a batch has the error of its first failed record, and its dead letters continue the trace."""
    app = App(group_id="billing", hooks=[recorded.hook], retry=Retry(attempts=1), dead_letter="{topic}.dead")

    @app.batch_handler("orders", max_wait_ms=100)
    async def charge(values: list[bytes]) -> None:
        raise PartialFailureError({1: KeyError("customer")})

    async with TestApp(app) as kafka:
        for _ in range(3):
            await kafka._log.publish(OutgoingRecord("orders", b"x", headers=[PRODUCER]))
        await kafka.settled()
        (letter,) = kafka.dead_letters("orders")

    process, send = recorded.span("process orders"), recorded.span("send orders.dead")
    assert process.attributes["error.type"] == "KeyError"
    assert parent_of(send) == context_of(process)
    assert carried(letter.headers) == context_of(send)


async def test_a_span_of_middleware_is_the_parent_of_results(recorded):
    """A span that middleware opens is a child of the handler's span and the parent of its results."""
    tracer = recorded.tracer

    def traced(call: Callable[[Record], Any]) -> Callable[[Record], Any]:
        async def within(record: Record) -> Any:
            with tracer.start_as_current_span("inner"):
                return await call(record)

        return within

    app = App(group_id="billing", hooks=[recorded.hook], middleware=[traced])

    @app.handler("orders", publish="invoices")
    async def charge(value: bytes) -> bytes:
        return value

    async with TestApp(app) as kafka:
        await kafka.send("orders", b"x")

    inner = recorded.span("inner")
    assert parent_of(inner) == context_of(recorded.span("process orders"))
    assert parent_of(recorded.span("send invoices")) == context_of(inner)


async def test_durations_and_counts_are_measured(recorded):
    """The histograms have the buckets of the conventions, and failures have an ``error.type``."""
    app = App(group_id="billing", hooks=[recorded.hook], retry=Retry(attempts=1), dead_letter="{topic}.dead")

    @app.handler("orders")
    async def charge(value: bytes) -> None:
        if value == b"bad":
            raise KeyError

    async with TestApp(app) as kafka:
        for value in (b"good", b"good", b"bad"):
            await kafka.send("orders", value)

    points = recorded.points("messaging.process.duration")
    assert {(one.attributes.get("error.type"), one.count) for one in points} == {(None, 2), ("KeyError", 1)}
    assert points[0].explicit_bounds == DURATION_BUCKETS_S
    assert {one.attributes["messaging.consumer.group.name"] for one in points} == {"billing"}
    sent = {one.attributes["messaging.destination.name"]: one.value for one in recorded.points(Metric.SENT_MESSAGES)}
    assert sent == {"orders": 3, "orders.dead": 1}
    durations = recorded.points(Metric.OPERATION_DURATION)
    assert {(one.attributes["messaging.operation.name"], one.explicit_bounds) for one in durations} == {
        ("send", DURATION_BUCKETS_S)
    }


# ---- publishers ----------------------------------------------------------------------------------------------------


async def test_a_refused_record_has_an_error_in_its_span_and_its_metrics(recorded):
    """A ``send`` that fails has an ``error.type`` in its span and metrics, and raises."""

    async def refuse(topic: str, value: bytes | None, **options: Any) -> None:
        raise PublishError("no")

    with pytest.raises(PublishError):
        await recorded.hook.around_publish(refuse)("orders", b"x", partition=3)

    span = recorded.span("send orders")
    assert (span.status.status_code, span.attributes["error.type"]) == (
        StatusCode.ERROR,
        "tailrace.errors.PublishError",
    )
    assert span.attributes["messaging.destination.partition.id"] == "3"
    for metric in (Metric.SENT_MESSAGES, Metric.OPERATION_DURATION):
        (point,) = recorded.points(metric)
        assert point.attributes["error.type"] == "tailrace.errors.PublishError"


async def test_trace_headers_take_precedence_over_the_active_span(recorded):
    """A published record with trace headers continues their trace, and other headers keep their order."""
    sent = []

    async def publish(topic: str, value: bytes | None, *, headers: Any, **options: Any) -> None:
        sent.append(headers)

    with recorded.tracer.start_as_current_span("active"):
        await recorded.hook.around_publish(publish)("orders", b"x", headers=[("a", b"1"), OTHER, ("b", None)])

    span = recorded.span("send orders")
    assert parent_of(span) == carried([OTHER])
    assert [one for one in sent[0] if one[0] != "traceparent"] == [("a", b"1"), ("b", None)]
    assert carried(sent[0]) == context_of(span)


async def test_a_publisher_without_instrumentation_is_not_wrapped():
    """Without instrumentations, the publisher is used directly."""
    log = TopicLog({}, lambda: 0.0)

    assert instrumented(log, ()) is log


# ---- failures of telemetry -----------------------------------------------------------------------------------------


class BrokenPropagator(propagate.textmap.TextMapPropagator):
    """Propagator that raises."""

    def extract(self, *_args, **_options):
        raise ValueError("extract")

    def inject(self, *_args, **_options):
        raise ValueError("inject")

    @property
    def fields(self):
        return {"broken"}


class BrokenProcessor(SpanProcessor):
    """Span processor that raises."""

    def on_start(self, *_args, **_options):
        raise ValueError("on_start")

    def on_end(self, _span):
        raise ValueError("on_end")


class BrokenExporter(SpanExporter):
    """Exporter that raises."""

    def export(self, _spans):
        raise ValueError("export")


@pytest.mark.parametrize("broken", ["propagator", "processor", "exporter"])
@pytest.mark.parametrize("kind", ["record", "batch"])
async def test_broken_telemetry_stops_no_record(broken, kind, monkeypatch, caplog):
    """If telemetry raises, records are handled and published, and each error is logged once."""
    processors = {"processor": [BrokenProcessor()], "exporter": [SimpleSpanProcessor(BrokenExporter())]}
    recorded = Recorded(*processors.get(broken, ()))
    if broken == "propagator":
        monkeypatch.setattr(propagate, "_HTTP_TEXT_FORMAT", BrokenPropagator())
    app = App(group_id="billing", hooks=[recorded.hook])
    publishing_handlers(app, kind)

    async with TestApp(app) as kafka:
        for _ in range(3):
            await kafka.send("orders", b"x")

        assert (len(kafka.published("invoices")), kafka.committed("orders")) == (3, 3)
    logged = [one.tailrace["step"] for one in caplog.records if one.name == "tailrace"]
    assert len(logged) == len(set(logged))
    assert bool(logged) is (broken != "exporter")


# ---- consumers and processes ---------------------------------------------------------------------------------------


def test_events_of_consumers_become_client_spans(recorded):
    """Commits and fetches of a consumer become client spans with offset and ``error.type``."""
    quiet = Recorded(client_spans=False)
    orders, bills = TopicPartition("orders", 1), TopicPartition("bills", 0)
    for hook in (recorded.hook, quiet.hook):
        hook.on_event(OffsetsCommitted("billing", {orders: 7}, 0.25))
        hook.on_event(OffsetsCommitted("billing", {orders: 8, bills: 2}))
        hook.on_event(CommitFailed("billing", "no answer", will_retry=True, exception=KeyError("x"), took_s=1.0))
        hook.on_event(FetchFailed("broker 1", orders, "UNKNOWN_SERVER_ERROR"))

    single = recorded.span("commit orders")
    assert single.end_time - single.start_time == 250_000_000
    assert (single.kind, single.attributes["messaging.kafka.offset"]) == (SpanKind.CLIENT, 7)
    assert [dict(one.attributes).get("error.type") for one in recorded.spans("commit")] == [None, "KeyError"]
    assert recorded.span("poll orders").attributes["error.type"] == "UNKNOWN_SERVER_ERROR"
    assert quiet.exporter.get_finished_spans() == ()
    for one in (recorded, quiet):
        assert sorted(point.sum for point in one.points(Metric.OPERATION_DURATION)) == [0.25, 1.0]


async def test_a_consumer_has_spans_of_polls_and_commits(recorded, kafka_server, name, group, witness):
    """Fetches and commits of a consumer have spans, and ``processing`` adds those of its records."""
    kafka_server.create_topic(name, 1)
    witness.produce(name, [b"x"] * 5, headers=[PRODUCER])
    options: Any = {"bootstrap_servers": kafka_server.bootstrap_servers, "hooks": [recorded.hook]}

    async with Consumer(name, group_id=group, **options) as consumer:
        async for record in consumer:
            with recorded.hook.processing(record, group):
                pass
            if record.offset == 4:
                break
        await consumer.commit()

    polls, commits = recorded.spans(f"poll {name}"), recorded.spans(f"commit {name}")
    assert sum(one.attributes["messaging.batch.message_count"] for one in polls) == 5
    assert {one.attributes["messaging.consumer.group.name"] for one in (*polls, *commits)} == {group}
    assert commits[-1].attributes["messaging.kafka.offset"] == 5
    assert all(one.kind is SpanKind.CLIENT and one.end_time > one.start_time for one in (*polls, *commits))
    assert [parent_of(one) for one in recorded.spans(f"process {name}")] == [carried([PRODUCER])] * 5
    (consumed,) = recorded.points(Metric.CONSUMED_MESSAGES)
    assert (consumed.value, consumed.attributes["messaging.destination.name"]) == (5, name)


async def test_one_trace_continues_through_apps_and_topics(recorded, kafka_server, new_topic, group, witness):
    """One trace continues from the producer through two handlers to a dead letter."""
    orders, invoices = new_topic(), new_topic()
    recorder = EventRecorder()
    options: Any = {"bootstrap_servers": kafka_server.bootstrap_servers, "hooks": [recorded.hook, recorder]}
    billing = App(group_id=f"{group}-billing", **options)
    mailing = App(group_id=f"{group}-mailing", retry=Retry(attempts=1), dead_letter="{topic}.dead", **options)

    @billing.handler(orders, publish=invoices)
    async def charge(value: bytes) -> bytes:
        return value

    @mailing.handler(invoices)
    async def mail(value: bytes) -> None:
        raise KeyError("customer")

    async with billing, mailing:
        witness.produce(orders, [b"x"], headers=[PRODUCER])
        await recorder.wait_for(RecordDeadLettered)
    (letter,) = await contents_of(witness, f"{invoices}.dead")

    charged, mailed = recorded.span(f"process {orders}"), recorded.span(f"process {invoices}")
    sent, buried = recorded.span(f"send {invoices}"), recorded.span(f"send {invoices}.dead")
    assert parent_of(charged) == carried([PRODUCER])
    assert parent_of(sent) == context_of(charged)
    assert parent_of(mailed) == context_of(sent)
    assert parent_of(buried) == context_of(mailed)
    assert carried(letter.headers()) == context_of(buried)
    assert sent.attributes["messaging.kafka.offset"] == 0


def test_the_hook_can_be_sent_to_another_process():
    """A pickled copy of the hook uses the providers of its process."""
    assert repr(pickle.loads(pickle.dumps(OpenTelemetry(client_spans=False)))) == "OpenTelemetry(client_spans=False)"


def test_an_app_without_the_hook_does_not_load_opentelemetry():
    """An app without the hook imports nothing of OpenTelemetry."""
    program = (
        "import sys, tailrace.testing\n"
        "app = tailrace.App(group_id='g')\n"
        "app.handler('orders')(lambda record: None)\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


async def test_of_several_traceparents_the_last_one_is_the_parent():
    """The parent of the span is the last header of its name, as for parameters marked with Header."""
    recorded = Recorded()
    app = App(group_id="g", hooks=[recorded.hook])

    @app.handler("t")
    async def handle(value: bytes) -> None: ...

    async with TestApp(app) as kafka:
        await kafka.send("t", b"1", headers=[OTHER, PRODUCER])

    assert f"{recorded.span('process t').context.trace_id:032x}" == TRACE_ID
