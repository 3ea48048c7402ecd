"""Download of the broker's jars from Maven Central into the user's cache folder.

The package ``jgo`` resolves the dependencies without Maven. Only one process downloads at a time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

from tailrace.embedded.jar_sums import PINNED, SHA256
from tailrace.errors import KafkaNotAvailableError
from tailrace.installation import install_hint

__all__ = ["KAFKA_VERSION", "MEGABYTES", "Progress", "broker_class_path", "cache_folder", "class_path", "is_cached"]

KAFKA_VERSION = "4.3.0"
"""Default version of the broker."""

MEGABYTES = 46
"""Approximate size of a broker's jars."""

_LOG_BINDING = "org.slf4j:slf4j-simple:1.7.36"

Progress = Callable[[int, int], None]
"""Function that is called with the number of downloaded jars and the total number of jars."""


def cache_folder() -> Path:
    """Return the cache folder: it has the jars and other files that make brokers start faster."""
    import platformdirs  # noqa: PLC0415 - an extra

    return platformdirs.user_cache_path("tailrace") / "kafka"


def is_cached(version: str = KAFKA_VERSION) -> bool:
    """Return True if the jars of a broker of ``version`` are cached."""
    return _read_list(_list_file(_broker(version))) is not None


def class_path(*coordinates: str, progress: Progress | None = None) -> list[Path]:
    """Return the jars of Maven coordinates and of their dependencies; download the jars unless they are cached.

    Without ``coordinates``, return the jars of a broker of the default version.

    Raises:
        KafkaNotAvailableError: jgo or filelock is not installed, the download failed, or a checksum is wrong.
    """
    wanted = coordinates or _broker(KAFKA_VERSION)
    if (cached := _read_list(_list_file(wanted))) is not None:
        _check_sums(wanted, cached)
        return cached
    try:
        import filelock  # noqa: PLC0415 - an extra
        import jgo  # noqa: F401, PLC0415 - an extra
    except ImportError as error:
        raise KafkaNotAvailableError(f"{error.name} is not installed - {install_hint('testing')}") from error
    cache_folder().mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(cache_folder() / "repository.lock"):
        jars = _read_list(_list_file(wanted))
        if jars is None:
            jars = _download(wanted, progress or (lambda _done, _all: None))
            _check_sums(wanted, jars)
            _list_file(wanted).write_text(json.dumps([str(jar) for jar in jars], indent=0))
    return jars


def broker_class_path(version: str = KAFKA_VERSION, progress: Progress | None = None) -> list[Path]:
    """Return the jars of a broker of ``version``; download them unless they are cached."""
    return class_path(*_broker(version), progress=progress)


def _broker(version: str) -> tuple[str, ...]:
    return (f"org.apache.kafka:kafka_2.13:{version}", _LOG_BINDING)


def _list_file(coordinates: tuple[str, ...]) -> Path:
    """Return the path of the file that lists the downloaded jars of ``coordinates``."""
    return cache_folder() / ("+".join(coordinates).replace(":", "_") + ".json")


def _read_list(list_file: Path) -> list[Path] | None:
    """Return the jars that ``list_file`` lists; None if the file or one of the jars is missing."""
    try:
        jars = [Path(jar) for jar in json.loads(list_file.read_text())]
    except (OSError, ValueError):
        return None
    return jars if all(jar.exists() for jar in jars) else None


def _check_sums(coordinates: tuple[str, ...], jars: list[Path]) -> None:
    """Check the jars of ``coordinates`` against ``SHA256``, and remove jars whose checksum differs.

    ``SHA256`` has the checksums of all jars of the coordinates in ``PINNED``. Any other jar is wrong if ``coordinates``
    has only coordinates in ``PINNED``; otherwise it is not checked.

    Raises:
        KafkaNotAvailableError: a checksum is wrong; the message names the removed jars.
    """
    is_pinned = PINNED.issuperset(coordinates)
    wrong = []
    for jar in jars:
        expected = SHA256.get(jar.name)
        if expected is None and not is_pinned:
            continue
        with jar.open("rb") as content:
            if hashlib.file_digest(content, "sha256").hexdigest() != expected:
                wrong.append(jar)
    if wrong:
        for jar in wrong:
            with contextlib.suppress(OSError):
                jar.unlink()
        raise KafkaNotAvailableError(
            f"the SHA-256 sums of {', '.join(map(str, wrong))} differ from those of the jars on Maven Central; the"
            " files were removed - run again to download them, and check the proxy or mirror if this happens again"
        )


def _download(coordinates: tuple[str, ...], progress: Progress) -> list[Path]:
    from jgo.maven import MavenContext  # noqa: PLC0415 - an extra
    from jgo.parse import Coordinate  # noqa: PLC0415 - an extra

    # Do not use ~/.m2 as the repository, because poms without jars in ~/.m2 confuse other tools.
    repository = cache_folder() / "repository"
    _remove_partial_files(repository)
    maven = MavenContext(repo_cache=repository, timeout=60)
    try:
        requested = [maven.create_dependency(replace(Coordinate.parse(one), scope="compile")) for one in coordinates]
        direct, transitive = maven.resolver.resolve(requested)
        needed = [dependency.artifact for dependency in direct]
        needed += [one.artifact for one in transitive if one.scope in {"compile", "runtime"}]
        jars: list[Path] = []
        with ThreadPoolExecutor(8) as pool:
            for jar in pool.map(lambda artifact: artifact.resolve(), needed):
                jars.append(Path(jar))
                progress(len(jars), len(needed))
    except Exception as error:  # jgo and requests raise many types; the advice is the same for all
        raise KafkaNotAvailableError(
            f"could not download {' and '.join(coordinates)} from Maven Central: {error} - "
            "check the network or the proxy, and run again; finished downloads are kept"
        ) from error
    return jars


def _remove_partial_files(repository: Path) -> None:
    """Remove partial files of an interrupted download, because the next download would use them as complete files."""
    for path in [*repository.rglob("*.jar"), *repository.rglob("*.pom")]:
        if not (zipfile.is_zipfile(path) if path.suffix == ".jar" else _is_xml(path)):
            with contextlib.suppress(OSError):
                path.unlink()


def _is_xml(path: Path) -> bool:
    try:
        ET.parse(path)  # noqa: S314 - file of the cache
    except (OSError, ET.ParseError):
        return False
    return True
