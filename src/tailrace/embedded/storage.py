"""Formatting of a broker's data folder.

Kafka's storage tool runs in a separate JVM, which takes a quarter of the time to start a broker. The tool's output is
the same for all brokers of one version and configuration, except for the ids, so the output is cached and copied.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import secrets
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path

from tailrace.embedded.jars import cache_folder
from tailrace.embedded.settings import PASSWORD, USERNAME

__all__ = ["copy_formatted", "formatted_file", "keep_formatted", "new_id"]

_CHECKPOINT, _META = "bootstrap.checkpoint", "meta.properties"


def new_id() -> str:
    """Return a random id in the format of the storage tool: 16 bytes in URL-safe base64, without a leading dash."""
    return base64.urlsafe_b64encode(b"\x01" + uuid.uuid4().bytes[1:]).rstrip(b"=").decode()


def formatted_file(version: str, scram: str | None, config: Mapping[str, str | float]) -> Path:
    """Return the path at which the tool's output is cached for brokers of this version and configuration."""
    key = [version, scram, USERNAME, PASSWORD, sorted((key, str(value)) for key, value in config.items())]
    return cache_folder() / "formatted" / hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]


def copy_formatted(cached: Path, data: Path, node_id: int, cluster_id: str) -> bool:
    """Format the folder ``data`` with the cached file and return True; return False if there is no cached file."""
    if not cached.exists():
        return False
    data.mkdir(parents=True)
    shutil.copyfile(cached, data / _CHECKPOINT)
    meta = {"version": 1, "cluster.id": cluster_id, "node.id": node_id, "directory.id": new_id()}
    (data / _META).write_text("".join(f"{key}={value}\n" for key, value in meta.items()))
    return True


def keep_formatted(data: Path, cached: Path) -> None:
    """Copy the tool's output from the folder ``data`` to ``cached``, unless the folder has unexpected files."""
    if {path.name for path in data.iterdir()} != {_CHECKPOINT, _META}:
        return
    with contextlib.suppress(OSError):  # Without the cached file, brokers start slower.
        cached.parent.mkdir(parents=True, exist_ok=True)
        copy = cached.with_name(f"{cached.name}.{secrets.token_hex(4)}")
        shutil.copyfile(data / _CHECKPOINT, copy)
        copy.replace(cached)
