"""What cannot be run is refused before anything runs, with what to do instead."""

from __future__ import annotations

import datetime as dt
import importlib
import sys
import threading
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from pyspark.errors import PySparkException

from tailrace import App, ConfigurationError, OffsetOutOfRangeError, TopicPartition
from tailrace.app.substitution import settings_of
from tailrace.config import resolve
from tailrace.core.offset_map import OffsetMap
from tailrace.spark import SparkPipeline
from tailrace.spark.error_lines import line_of
from tailrace.spark.handler_selection import select_handlers
from tailrace.spark.offsets.ranges import left_between, next_ends, offsets_of, partition_start, spark_json
from tailrace.spark.offsets.start_offsets import StartOffsets, ends_at
from tailrace.spark.offsets.store import remaining
from tailrace.spark.session.kafka_options import check_source_options, source_options
from tailrace.spark.streaming import trigger_of
from tailrace.spark.worker.shipment import pack, place_of, unpacked

A, B, C = (TopicPartition("t", number) for number in range(3))


def app_with(function: Any, **options: Any) -> App:
    app = App(bootstrap_servers="localhost:9", group_id="g")
    app.handler("t", **options)(function)
    return app


def packed(app: App, name: str) -> Any:
    return pack(app, None, select_handlers(app, name, "g"), resolve(app.options), has_sink=False)


# ---- what is sent to workers -----------------------------------------------------------------------------------


def test_a_variable_that_cannot_be_sent_is_named():
    """A handler that uses what cannot be pickled is refused with the handler's name and the variable's."""
    the_lock = threading.Lock()

    async def handle(value: bytes) -> None:
        with the_lock:
            pass

    with pytest.raises(ConfigurationError, match=r"handler .*handle uses the variable 'the_lock' \(_thread.lock\)"):
        packed(app_with(handle), "handle")


def test_what_a_called_function_uses_is_named_too():
    """The variable is found through the functions that the handler calls."""
    the_lock = threading.Lock()

    def guarded() -> None:
        with the_lock:
            pass

    async def handle(value: bytes) -> None:
        guarded()

    with pytest.raises(ConfigurationError, match=r"'the_lock' .* \(through guarded\)"):
        packed(app_with(handle), "handle")


def test_an_app_of_a_script_arrives_with_its_types():
    """Structs and annotations of functions that no import would find are the same in the worker."""

    class Order(msgspec.Struct, tag="order", frozen=True):
        total: int
        note: str | None = None
        lines: list[int] = msgspec.field(default_factory=list)

        def doubled(self) -> int:
            return 2 * self.total

    async def handle(order: Order) -> int:
        return order.doubled()

    handle.__annotations__ = {"order": Order, "return": int}
    arrived = unpacked(packed(app_with(handle), "handle"))

    kind = arrived.declared[0].function.__annotations__["order"]
    order = msgspec.json.decode(b'{"type":"order","total":4}', type=kind)
    assert kind is not Order
    assert (order.note, order.lines, order.doubled()) == (None, [], 8)
    assert arrived.options["bootstrap_servers"] == ("localhost:9",)


def test_a_module_that_workers_lack_is_told():
    """Where an executor cannot import the app's module, the error says how it gets there, and names the module."""

    async def handle(value: bytes) -> None: ...

    app = app_with(handle)
    shipment = pack(
        app, "no_such_shop:billing", select_handlers(app, "handle", "g"), resolve(app.options), has_sink=False
    )

    with pytest.raises(ConfigurationError, match=r"workers cannot import .*'no_such_shop'.* spark\.submit\.pyFiles"):
        unpacked(shipment)


SHOP = """
from typing import Annotated
from tailrace import App, Depends

billing = App(group_id="g", security_protocol="SASL_SSL", sasl_plain_username="ann", sasl_plain_password="secret")

def open_bank() -> str:
    return "the bank"

@billing.handler("t")
async def charge(value: bytes, bank: Annotated[str, Depends(open_bank)]) -> None: ...
"""


@pytest.fixture
def shop(monkeypatch, tmp_path):
    """A module with an app, as the driver has imported it; called, it is what a worker's process imports."""
    (tmp_path / "shop_that_is_sent.py").write_text(SHOP)
    monkeypatch.syspath_prepend(tmp_path)

    def anew() -> Any:
        sys.modules.pop("shop_that_is_sent", None)
        importlib.invalidate_caches()
        return importlib.import_module("shop_that_is_sent")

    yield anew
    sys.modules.pop("shop_that_is_sent", None)


def shipped(app: App) -> Any:
    return pack(
        app, "shop_that_is_sent:billing", select_handlers(app, "charge", "g"), resolve(app.options), has_sink=False
    )


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_workers_have_what_the_driver_has(shop, monkeypatch, protocol):
    """Overrides, options that were set back to defaults, and the driver's environment reach an app of a module."""
    monkeypatch.setenv("TAILRACE_BOOTSTRAP_SERVERS", "driver:1")
    here = shop()
    here.billing.configure(security_protocol="PLAINTEXT", group_protocol=protocol)
    here.billing.override(here.open_bank, dict)
    shipment = shipped(here.billing)
    monkeypatch.setenv("TAILRACE_BOOTSTRAP_SERVERS", "executor:1")
    monkeypatch.setenv("TAILRACE_CHECK_CRCS", "false")
    there = shop()

    app = unpacked(shipment)

    config = resolve(app.options)
    assert app is there.billing is not here.billing
    assert settings_of(app).overrides == {there.open_bank: dict}
    assert (config.security_protocol, config.bootstrap_servers, config.check_crcs) == ("PLAINTEXT", ("driver:1",), True)


def test_an_override_that_workers_would_not_find_is_refused(shop):
    """A provider that no import finds would be another one in the worker; and what cannot be sent is named."""
    the_lock = threading.Lock()
    here, other = shop(), shop()

    other.billing.override(lambda: "a bank", str)
    with pytest.raises(ConfigurationError, match=r"override\(.*<lambda>, \.\.\.\) has no effect in Spark's workers"):
        shipped(other.billing)
    other = shop()
    other.billing.override(here.open_bank, str)
    with pytest.raises(ConfigurationError, match=r"override\(open_bank, \.\.\.\) has no effect in Spark's workers"):
        shipped(other.billing)
    other = shop()
    other.billing.override(other.open_bank, lambda: the_lock)
    with pytest.raises(ConfigurationError, match="the override of open_bank cannot be sent"):
        shipped(other.billing)


def test_the_drivers_own_folder_is_looked_at_too(monkeypatch, tmp_path):
    """What the driver imports from the folder that it was started in is looked for there by workers on its machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")

    async def handle(value: bytes) -> None: ...

    assert str(tmp_path) in packed(app_with(handle), "handle").path
    assert "" not in packed(app_with(handle), "handle").path


def test_an_app_of_a_module_is_imported_where_python_was_started_without_a_program(shop, monkeypatch, tmp_path):
    """As in a notebook: the folder that it was started in has no name among the places of imports there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *(one for one in sys.path if one != str(tmp_path))])

    assert place_of(shop().billing) == "shop_that_is_sent:billing"


# ---- which handler ---------------------------------------------------------------------------------------------


def test_an_unknown_handler_is_told_which_there_are():
    """A name that is none is refused with those that are."""

    async def charge(value: bytes) -> None:
        pass

    with pytest.raises(ConfigurationError, match=r"no handler 'chrage' - its handlers are: .*charge"):
        select_handlers(app_with(charge), "chrage", "g")


def test_a_spark_connect_session_is_refused():
    """Such a session lacks what a pipeline needs, and one sentence says so."""
    session = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()

    with pytest.raises(ConfigurationError, match="Spark Connect"):
        SparkPipeline(App(bootstrap_servers="localhost:9", group_id="g"), session)


@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(180)
def test_a_place_that_spark_has_no_way_to_is_told(spark):
    """A checkpoint on a file system without jars is refused in one sentence, with what to give to the session."""

    async def charge(value: bytes) -> None: ...

    with pytest.raises(
        ConfigurationError, match=r"^Spark has no file system for .*S3AFileSystem.*:hadoop-aws:3\.\d+\.\d+ for s3a://$"
    ):
        SparkPipeline(app_with(charge), spark, checkpoint="s3a://bucket/billing").start("charge")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[STREAM_FAILED] It broke.\n\nJVM stacktrace:\n\tat a.b(C.scala:1)", "[STREAM_FAILED] It broke."),
        (
            "[STREAM_FAILED] Lost: Traceback (most recent call last):\n  File x\nKeyError: 'n'\n\n\tat a.b",
            "[STREAM_FAILED] Lost: KeyError: 'n'",
        ),
        (
            "Thrown by a worker:\nTraceback (most recent call last):\n  File x\nOSError: no\n",
            "Thrown by a worker: OSError: no",
        ),
    ],
)
def test_an_error_of_sparks_is_one_line(text, line):
    """Stacks of Java's are left out, and of a trace of Python's the line that says what it was is kept."""
    assert line_of(PySparkException(text)) == line
    assert line_of(ValueError(text)) is None


# ---- options of the source -------------------------------------------------------------------------------------


def test_options_become_those_of_java():
    """SASL and TLS have their counterparts; a password with quotes stays one."""
    options = source_options(
        resolve(
            {
                "bootstrap_servers": "a:1,b:2",
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": "SCRAM-SHA-512",
                "sasl_plain_username": "ann",
                "sasl_plain_password": 'a"b\\c',
                "ssl_check_hostname": False,
                "isolation_level": "read_committed",
            }
        ),
        {"maxOffsetsPerTrigger": "5"},
    )

    assert options["kafka.bootstrap.servers"] == "a:1,b:2"
    assert options["kafka.isolation.level"] == "read_committed"
    assert options["kafka.sasl.jaas.config"] == (
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="ann" password="a\\"b\\\\c";'
    )
    assert options["kafka.ssl.endpoint.identification.algorithm"] == ""
    assert options["maxOffsetsPerTrigger"] == "5"


def test_a_token_provider_has_no_counterpart_in_java():
    """What only Python has is refused, with the way that Java has."""

    async def token() -> str:
        return "it"

    config = resolve(
        {
            "bootstrap_servers": "a:1",
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauth_token_provider": token,
        }
    )

    with pytest.raises(ConfigurationError, match=r"kafka\.sasl\.jaas\.config"):
        source_options(config, {})


def test_what_breaks_the_order_is_refused():
    """Splitting a partition over tasks needs a handler that keeps no order."""
    check_source_options({"minPartitions": "8"}, keeps_order=False)

    with pytest.raises(ConfigurationError, match='order_by="none"'):
        check_source_options({"minPartitions": "8"}, keeps_order=True)


@pytest.mark.parametrize("said", ["true", "True"])
def test_speculation_is_refused(said):
    """Two runs of a task at once keep no order, however a Python program has written it."""
    session: Any = SimpleNamespace(_jsc=None, conf=SimpleNamespace(get=lambda _name, _default: said))

    async def charge(value: bytes) -> None: ...

    with pytest.raises(ConfigurationError, match=r"^spark\.speculation may run a task twice at once"):
        SparkPipeline(app_with(charge), session).backfill("charge")


@pytest.mark.parametrize(
    "name",
    [
        "startingOffsets",
        "startingTimestamp",
        "startingOffsetsByTimestamp",
        "endingTimestamp",
        "endingOffsetsByTimestamp",
    ],
)
def test_where_to_read_is_not_for_options_to_say(name):
    """Of all that says where Spark begins or ends, what the pipeline says would not count: each is refused by name."""
    with pytest.raises(ConfigurationError, match=f"'{name}' cannot be set: the pipeline sets it"):
        check_source_options({name: "1"}, keeps_order=False)


def test_a_trigger_without_batches_is_refused():
    """Handlers run in micro-batches with a bound; what has none is refused."""
    assert trigger_of("5 seconds") == {"processingTime": "5 seconds"}
    assert trigger_of("available_now") == {"availableNow": True}

    with pytest.raises(ConfigurationError, match="realTime"):
        trigger_of({"realTime": "5 minutes"})
    with pytest.raises(ConfigurationError, match=r"all records in one batch .* use 'available_now'"):
        trigger_of({"once": True})


# ---- offsets ---------------------------------------------------------------------------------------------------


def test_a_batch_is_shared_evenly():
    """A batch has as many offsets as it may; small partitions are read whole, the others share the rest."""
    at, ends = {A: 0, B: 10, C: 5}, {A: 1_000, B: 20, C: 1_005}

    following = next_ends(at, ends, 100)

    assert following == {A: 45, B: 20, C: 50}
    assert left_between(at, ends) - left_between(following, ends) == 100
    assert offsets_of(spark_json(following)) == following


@pytest.mark.parametrize(
    ("committed", "since", "policy", "offset", "lost"),
    [
        (50, 0, 10, 50, None),
        (None, 30, 10, 30, None),
        (None, 5, 10, 10, None),
        (None, None, 10, 10, None),
        (4, 30, 10, 10, 6),
        (4, None, 100, 100, 96),
        (200, None, 10, 10, None),
    ],
)
def test_the_group_says_where_to_begin(committed, since, policy, offset, lost):
    """Where it stands, else ``since``, else by policy; what was removed before it was read is counted."""
    begun = partition_start(A, committed=committed, done=None, since=since, policy=policy, begin=10, end=100)

    assert (begun.offset, begun.lost) == (offset, lost)


def test_nowhere_to_begin_is_an_error():
    """Without a policy there is no guess."""
    with pytest.raises(OffsetOutOfRangeError):
        partition_start(A, committed=None, done=None, since=None, policy=None, begin=0, end=1)


def test_a_map_goes_on_behind_a_later_offset():
    """What a map says is kept as long as there is something left of it."""
    done = OffsetMap(10, 40, (10, 20, 30))

    assert remaining(done, 20) == OffsetMap(20, 40, (20, 30))
    assert remaining(done, 25) == OffsetMap(25, 40, (30,))
    assert remaining(done, 40) is None


@pytest.mark.parametrize("until", [dt.datetime(2026, 1, 1), "then", True, {"t": 5}, {A: "5"}])  # noqa: DTZ001 - wrong
def test_a_moment_that_says_no_instant_is_refused(until):
    """A time without a zone would be another one on each machine; it is refused, as all that is no time is."""
    with pytest.raises(ConfigurationError, match=r"^until must be a datetime with a time zone, .* not "):
        ends_at(None, StartOffsets({}, {}, {}, 0, {}), until)
