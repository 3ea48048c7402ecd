"""Invalid apps, options and arguments are refused before a batch runs."""

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
from tailrace.config import resolve
from tailrace.core.offset_map import OffsetMap
from tailrace.spark import SparkPipeline
from tailrace.spark.handler_selection import select_handlers
from tailrace.spark.offsets.ranges import next_ends, offsets_left, offsets_of, partition_start, spark_json
from tailrace.spark.offsets.start_offsets import StartOffsets, ends_at
from tailrace.spark.offsets.store import remaining_map
from tailrace.spark.session import check_source_options, line_of, source_options
from tailrace.spark.streaming import trigger_of
from tailrace.spark.worker.shipment import import_path_of, pack, unpack

A, B, C = (TopicPartition("t", number) for number in range(3))


def app_with(function: Any, **options: Any) -> App:
    app = App(bootstrap_servers="localhost:9", group_id="g")
    app.handler("t", **options)(function)
    return app


def packed(app: App, name: str) -> Any:
    return pack(app, None, select_handlers(app, name, "g"), resolve(app.options), has_sink=False)


# ---- serialization for workers ---------------------------------------------------------------------------------


def test_a_variable_that_cannot_be_sent_is_named():
    """A handler that uses a variable that cannot be pickled raises an error that names both."""
    the_lock = threading.Lock()

    async def handle(value: bytes) -> None:
        with the_lock:
            pass

    with pytest.raises(ConfigurationError, match=r"handler .*handle uses the variable 'the_lock' \(_thread.lock\)"):
        packed(app_with(handle), "handle")


def test_a_variable_of_a_called_function_is_named():
    """A variable that cannot be pickled is found in functions that the handler calls."""
    the_lock = threading.Lock()

    def guarded() -> None:
        with the_lock:
            pass

    async def handle(value: bytes) -> None:
        guarded()

    with pytest.raises(ConfigurationError, match=r"'the_lock' .* \(through guarded\)"):
        packed(app_with(handle), "handle")


def test_types_of_a_script_are_restored():
    """A worker restores structs and annotations of a script, which it cannot import."""

    class Order(msgspec.Struct, tag="order", frozen=True):
        total: int
        note: str | None = None
        lines: list[int] = msgspec.field(default_factory=list)

        def doubled(self) -> int:
            return 2 * self.total

    async def handle(order: Order) -> int:
        return order.doubled()

    handle.__annotations__ = {"order": Order, "return": int}
    arrived = unpack(packed(app_with(handle), "handle"))

    kind = arrived.declared[0].function.__annotations__["order"]
    order = msgspec.json.decode(b'{"type":"order","total":4}', type=kind)
    assert kind is not Order
    assert (order.note, order.lines, order.doubled()) == (None, [], 8)
    assert arrived.options["bootstrap_servers"] == ("localhost:9",)


def test_a_module_that_workers_lack_is_named():
    """A module that workers cannot import raises an error with its name and how to send it."""

    async def handle(value: bytes) -> None: ...

    app = app_with(handle)
    shipment = pack(
        app, "no_such_shop:billing", select_handlers(app, "handle", "g"), resolve(app.options), has_sink=False
    )

    with pytest.raises(ConfigurationError, match=r"workers cannot import .*'no_such_shop'.* spark\.submit\.pyFiles"):
        unpack(shipment)


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
    """Create a module with an app, and return a function that imports it again, as a worker does."""
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
def test_workers_get_options_and_overrides_of_the_driver(shop, monkeypatch, protocol):
    """A worker gets the driver's overrides, options and environment for an app of a module."""
    monkeypatch.setenv("TAILRACE_BOOTSTRAP_SERVERS", "driver:1")
    here = shop()
    here.billing.configure(security_protocol="PLAINTEXT", group_protocol=protocol)
    here.billing.override(here.open_bank, dict)
    shipment = shipped(here.billing)
    monkeypatch.setenv("TAILRACE_BOOTSTRAP_SERVERS", "executor:1")
    monkeypatch.setenv("TAILRACE_CHECK_CRCS", "false")
    there = shop()

    app = unpack(shipment)

    config = resolve(app.options)
    assert app is there.billing is not here.billing
    assert app.runtime.overrides == {there.open_bank: dict}
    assert (config.security_protocol, config.bootstrap_servers, config.check_crcs) == ("PLAINTEXT", ("driver:1",), True)


def test_an_override_without_import_path_is_refused(shop):
    """An override of a provider that a worker cannot import, or that cannot be pickled, raises an error."""
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


def test_the_current_directory_is_sent_as_a_path(monkeypatch, tmp_path):
    """An empty entry of sys.path is sent as the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")

    async def handle(value: bytes) -> None: ...

    assert str(tmp_path) in packed(app_with(handle), "handle").sys_path
    assert "" not in packed(app_with(handle), "handle").sys_path


def test_an_app_of_a_module_is_found_in_a_notebook(shop, monkeypatch, tmp_path):
    """The import path of an app is found if the current directory is an empty entry of sys.path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *(one for one in sys.path if one != str(tmp_path))])

    assert import_path_of(shop().billing) == "shop_that_is_sent:billing"


# ---- which handler ---------------------------------------------------------------------------------------------


def test_an_unknown_handler_is_refused_with_the_known_names():

    async def charge(value: bytes) -> None:
        pass

    with pytest.raises(ConfigurationError, match=r"no handler 'chrage' - its handlers are: .*charge"):
        select_handlers(app_with(charge), "chrage", "g")


def test_a_spark_connect_session_is_refused():
    """A session of Spark Connect, which has no access to the JVM, raises an error."""
    session = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()

    with pytest.raises(ConfigurationError, match="Spark Connect"):
        SparkPipeline(App(bootstrap_servers="localhost:9", group_id="g"), session)


@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(180)
def test_a_checkpoint_on_an_unknown_file_system_is_refused(spark):
    """A checkpoint on an unknown file system raises an error with the package that the session needs."""

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
def test_errors_of_spark_are_reduced_to_one_line(text, line):
    """An error of Spark is reduced to one line without Java's stack trace."""
    assert line_of(PySparkException(text)) == line
    assert line_of(ValueError(text)) is None


# ---- options of the source -------------------------------------------------------------------------------------


def test_options_are_translated_to_java():
    """SASL and TLS options are translated to Java's, and quotes in a password are escaped."""
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
    """A token provider raises an error that names the option of Java to set."""

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


def test_options_that_split_partitions_are_refused():
    """Options that split partitions raise unless the handler needs no order."""
    check_source_options({"minPartitions": "8"}, keeps_order=False)

    with pytest.raises(ConfigurationError, match='order_by="none"'):
        check_source_options({"minPartitions": "8"}, keeps_order=True)


@pytest.mark.parametrize("spelling", ["true", "True"])
def test_speculation_is_refused(spelling):
    """Speculative execution raises, since a task that runs twice breaks the order of records."""
    session: Any = SimpleNamespace(_jsc=None, conf=SimpleNamespace(get=lambda _name, _default: spelling))

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
def test_options_for_the_range_are_refused(name):
    """An option for the range of offsets raises an error with its name."""
    with pytest.raises(ConfigurationError, match=f"'{name}' cannot be set: the pipeline sets it"):
        check_source_options({name: "1"}, keeps_order=False)


def test_a_trigger_without_batches_is_refused():
    """A trigger without micro-batches raises an error."""
    assert trigger_of("5 seconds") == {"processingTime": "5 seconds"}
    assert trigger_of("available_now") == {"availableNow": True}

    with pytest.raises(ConfigurationError, match="realTime"):
        trigger_of({"realTime": "5 minutes"})
    with pytest.raises(ConfigurationError, match=r"all records in one batch .* use 'available_now'"):
        trigger_of({"once": True})


# ---- offsets ---------------------------------------------------------------------------------------------------


def test_a_batch_is_shared_evenly_among_partitions():
    """A batch includes small partitions as a whole, and divides the rest evenly among the others."""
    at, ends = {A: 0, B: 10, C: 5}, {A: 1_000, B: 20, C: 1_005}

    following = next_ends(at, ends, 100)

    assert following == {A: 45, B: 20, C: 50}
    assert offsets_left(at, ends) - offsets_left(following, ends) == 100
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
def test_start_is_committed_offset_then_since_then_policy(committed, since, policy, offset, lost):
    """A partition starts at the committed offset, else at ``since``, else by auto_offset_reset."""
    begun = partition_start(
        A, committed=committed, offset_map=None, since=since, reset_offset=policy, begin=10, end=100
    )

    assert (begun.offset, begun.lost) == (offset, lost)


def test_a_partition_without_a_start_offset_raises():
    """With auto_offset_reset="none", a partition without a start offset raises."""
    with pytest.raises(OffsetOutOfRangeError):
        partition_start(A, committed=None, offset_map=None, since=None, reset_offset=None, begin=0, end=1)


def test_an_offset_map_is_kept_from_a_later_offset_on():
    """The rest of an offset map after a later offset is kept while it lists finished records."""
    done = OffsetMap(10, 40, (10, 20, 30))

    assert remaining_map(done, 20) == OffsetMap(20, 40, (20, 30))
    assert remaining_map(done, 25) == OffsetMap(25, 40, (30,))
    assert remaining_map(done, 40) is None


@pytest.mark.parametrize("until", [dt.datetime(2026, 1, 1), "then", True, {"t": 5}, {A: "5"}])  # noqa: DTZ001 - wrong
def test_times_without_a_zone_are_refused(until):
    """A time without a time zone raises, since its meaning differs between machines."""
    with pytest.raises(ConfigurationError, match=r"^until must be a datetime with a time zone, .* not "):
        ends_at(None, StartOffsets({}, {}, {}, 0, {}), until)
