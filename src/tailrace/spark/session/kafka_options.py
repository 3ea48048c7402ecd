"""The options of an app as those of Spark's own Kafka source, which is a Java client.

Rule of this file: what has no counterpart in Java is refused, with what to say instead; nothing is left out in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace.config import ConsumerConfig
from tailrace.errors import ConfigurationError
from tailrace.spark.error_lines import line_of
from tailrace.spark.session.connector import is_submitted, package_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["check_source", "check_source_options", "source_options", "way_to_connector"]

_OURS = {
    "assign", "failondataloss", "includeheaders", "kafka.bootstrap.servers", "kafka.group.id", "kafka.isolation.level",
    "subscribe", "subscribepattern",
}  # fmt: skip
_WHERE = ("starting", "ending")
"""So begin all options that say where to read, of which those by time go before those by offset."""
_SPLITTING = {"minpartitions", "maxrecordsperpartition"}

_OF_STREAMS = {"maxoffsetspertrigger", "maxtriggerdelay", "minoffsetspertrigger"}
"""Options that Spark warns of where it reads a batch."""

_LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def source_options(config: ConsumerConfig, more: Mapping[str, str]) -> dict[str, str]:
    """How Spark reaches the brokers, and what it may see there.

    Args:
        config: the app's.
        more: options of the source that the user gives; they win.

    Raises:
        ConfigurationError: an option of the app has no counterpart in Java.
    """
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
        options |= _tls(config, more)
    if config.security_protocol in {"SASL_PLAINTEXT", "SASL_SSL"}:
        options |= _sasl(config, more)
    return {**options, **more}


def check_source_options(more: Mapping[str, str], *, keeps_order: bool) -> None:
    """Refuse what would take from the pipeline what it has to know.

    Raises:
        ConfigurationError: naming the option.
    """
    for name in more:
        if name.lower() in _OURS or name.lower().startswith(_WHERE):
            raise ConfigurationError(
                f"{name!r} is the pipeline's to say - it follows the app, its group and its auto_offset_reset"
            )
        if keeps_order and name.lower() in _SPLITTING:
            raise ConfigurationError(
                f"{name!r} reads one partition in several tasks at once, and the handler keeps an order"
                ' - say order_by="none", or parallelism=, which keeps it'
            )


def check_source(spark: SparkSession, options: Mapping[str, str], source: str = "kafka") -> None:
    """Refuse a session without Spark's Kafka connector, and options that this does not take.

    Raises:
        ConfigurationError: with the connector's name, or in Spark's own words.
    """
    from pyspark.errors import AnalysisException, PySparkException  # noqa: PLC0415 - an extra

    of_java: Any = import_module("py4j.protocol").Py4JJavaError  # untyped
    try:
        # It is only looked at: nobody is asked before it is read.
        known = {name: value for name, value in options.items() if name.lower() not in _OF_STREAMS}
        spark.read.format(source).options(**known).option("subscribe", "any").load()
    except (AnalysisException, of_java) as error:
        raise ConfigurationError(
            f"this Spark session has no source for Kafka - {way_to_connector(spark.version)}"
        ) from error
    except PySparkException as error:
        raise ConfigurationError(f"Spark's Kafka source refuses these options: {line_of(error)}") from error


def way_to_connector(version: str) -> str:
    """Return how to start Spark with its Kafka connector, which no session takes in later."""
    package = package_for(version)
    if is_submitted():
        return f"its Java was started without one: run spark-submit --packages {package}, or give the jars by --jars"
    return (
        "stop it and call tailrace.spark.spark_session() before any other session is made, or make yours with"
        f" spark.jars.packages={package}"
    )


def _tls(config: ConsumerConfig, more: Mapping[str, str]) -> dict[str, str]:
    if config.ssl_context is not None and not any(name.startswith("kafka.ssl.") for name in more):
        raise ConfigurationError(
            "ssl_context is an object of Python, and Spark reads Kafka in Java"
            " - give ssl_cafile, ssl_certfile and ssl_keyfile, or options={'kafka.ssl.truststore.location': ...}"
        )
    options: dict[str, str] = {}
    if config.ssl_cafile is not None:
        # The text and not the place: executors need not have the file.
        options |= {
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.certificates": _read("ssl_cafile", config.ssl_cafile),
        }
    if config.ssl_certfile is not None:
        chain = _read("ssl_certfile", config.ssl_certfile)
        key = chain if config.ssl_keyfile is None else _read("ssl_keyfile", config.ssl_keyfile)
        options |= {
            "kafka.ssl.keystore.type": "PEM",
            "kafka.ssl.keystore.certificate.chain": chain,
            "kafka.ssl.keystore.key": _pkcs8(key),
        }
        if config.ssl_password is not None:
            options["kafka.ssl.key.password"] = config.ssl_password
    if not config.ssl_check_hostname:
        options["kafka.ssl.endpoint.identification.algorithm"] = ""
    return options


def _sasl(config: ConsumerConfig, more: Mapping[str, str]) -> dict[str, str]:
    options: dict[str, str] = {"kafka.sasl.mechanism": config.sasl_mechanism}
    if config.sasl_mechanism == "GSSAPI":
        options["kafka.sasl.kerberos.service.name"] = config.sasl_kerberos_service_name
    module = _LOGIN.get(config.sasl_mechanism)
    if module is None:
        if "kafka.sasl.jaas.config" not in more:
            raise ConfigurationError(
                f"for {config.sasl_mechanism} the Java client of Spark has its own way to log in"
                " - give it as options={'kafka.sasl.jaas.config': ..., ...}"
            )
        return options
    user, password = _quoted(config.sasl_plain_username or ""), _quoted(config.sasl_plain_password or "")
    options["kafka.sasl.jaas.config"] = f"{module} required username={user} password={password};"
    return options


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _read(name: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{name}={path!r} cannot be read as PEM: {error}") from error


def _pkcs8(key: str) -> str:
    """The private key alone, as Java takes it."""
    for kind in ("PRIVATE KEY", "ENCRYPTED PRIVATE KEY"):
        begin, end = f"-----BEGIN {kind}-----", f"-----END {kind}-----"
        if begin in key and end in key:
            return key[key.index(begin) : key.index(end) + len(end)]
    raise ConfigurationError(
        "the private key is not in PKCS #8, the only form that Java reads"
        " - convert it: openssl pkcs8 -topk8 -in old.key -out new.key"
    )
