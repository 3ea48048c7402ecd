"""Translation of an app's options for brokers, TLS, SASL and isolation level to options of Spark's Kafka source.

Spark's Kafka source is a Java client. An ``ssl_context``, or a SASL mechanism that needs a JAAS configuration, raises
an error unless the user passes the options of the Java client.
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
from tailrace.values import Secret

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["check_source", "check_source_options", "source_options", "way_to_connector"]

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
    if config.ssl_cafile is not None:
        # The contents are passed instead of the path, because executors may lack the file.
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
    user, password = _quoted(config.sasl_plain_username or ""), _quoted(config.sasl_plain_password or "")
    options["kafka.sasl.jaas.config"] = Secret(f"{login_module} required username={user} password={password};")
    return options


def _quoted(text: str) -> Secret:
    return Secret('"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"')


def _read(name: str, path: str) -> Secret:
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
