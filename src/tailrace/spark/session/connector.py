"""Spark's own Kafka connector: its jars, of the version that fits pyspark, without what Spark ships itself.

Resolved in Python by ``jgo``, once, into the user's cache folder. They are given to Spark as files, so Ivy is not
asked: on the JRE that comes as a wheel it knows only the certificates that came with it.
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
"""About what the connector's jars weigh, with what they need."""

_GROUP = "org.apache.spark"
_TOKENS = f"{_GROUP}:spark-token-provider-kafka-0-10_2.13"
_CONNECTOR = f"{_GROUP}:spark-sql-kafka-0-10_2.13"
_OLDEST = "4.0.0"
_NEWEST = "4.2.0"
"""The newest minor version that is known to have a connector; pyspark may be ahead of it."""

_ARTIFACT = re.compile(r"-\d[\w.]*(-[A-Za-z]+)?\.jar$")


def candidates(version: str) -> list[tuple[str, ...]]:
    """Maven coordinates of a connector for this version of Spark, the best first.

    A patch release works with the connector of its minor version, and a minor version that has none yet with that of
    the one before; what provides tokens has not changed since 4.0, and some mirrors keep only that one.
    """
    major, minor = _minor_of(version)
    versions = dict.fromkeys((version, *(f"{major}.{one}.0" for one in range(minor, -1, -1))))
    connectors = [f"{_CONNECTOR}:{one}" for one in versions]
    return [(one, *tokens) for one in connectors for tokens in ((), (f"{_TOKENS}:{_OLDEST}",))]


def package_for(version: str) -> str:
    """Return the connector's Maven coordinates to recommend for a session that the user configures."""
    return f"{_CONNECTOR}:{version if _minor_of(version) <= _minor_of(_NEWEST) else _NEWEST}"


def is_submitted() -> bool:
    """Return True if ``spark-submit`` runs this program: its Java was started before, with the jars it was given."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def is_connector_cached(version: str) -> bool:
    """Whether the jars for this pyspark were downloaded before."""
    return _noted(version).exists()


def connector_jars(version: str, shipped: Iterable[str], progress: Progress | None = None) -> list[Path]:
    """The jars to give to Spark.

    Args:
        version: pyspark's.
        shipped: file names of jars that Spark has already.
        progress: told how many of how many are there, while they are downloaded.

    Raises:
        ConfigurationError: there is no connector for it, or Maven Central does not answer.
    """
    noted = _noted(version)
    wanted = candidates(version)
    if noted.exists():
        found = tuple(noted.read_text(encoding="utf-8").split())
        wanted = [found, *(one for one in wanted if one != found)]
    failures: list[str] = []
    for coordinates in wanted:
        try:
            jars = class_path(*coordinates, progress=progress)
        except KafkaNotAvailableError as error:
            failures.append(str(error))
            continue
        noted.write_text(" ".join(coordinates), encoding="utf-8")
        there = {_artifact(name) for name in shipped}
        return [jar for jar in jars if _artifact(jar.name) not in there]
    raise ConfigurationError(
        f"no Kafka connector for Spark {version}: {failures[-1]} - or make the session yourself, with"
        f" spark.jars.packages={package_for(version)}"
    )


def _minor_of(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def _noted(version: str) -> Path:
    """Where it is written down what was found for a pyspark."""
    return cache_folder() / f"spark-connector-{version}"


def _artifact(name: str) -> str:
    return _ARTIFACT.sub("", name)
