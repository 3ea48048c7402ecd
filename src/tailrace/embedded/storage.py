"""Formatting of a broker's data folder.

Kafka's storage tool formats the folder in a JVM of its own, which would take a quarter of a broker's start time. Its
output is the file ``bootstrap.checkpoint``, which is the same for all brokers of one version and configuration, and
``meta.properties``, which contains ids. The first file is cached, and the second one is written without the tool.
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

__all__ = ["checkpoint_cache_path", "format_from_cache", "new_id", "store_checkpoint"]

_CHECKPOINT, _META = "bootstrap.checkpoint", "meta.properties"


def new_id() -> str:
    """Return a random id in Kafka's format: 16 bytes in URL-safe base64, without a dash at the beginning."""
    return base64.urlsafe_b64encode(b"\x01" + uuid.uuid4().bytes[1:]).rstrip(b"=").decode()


def checkpoint_cache_path(version: str, scram: str | None, config: Mapping[str, str | float]) -> Path:
    """Return the path of the cached checkpoint for a version, SCRAM mechanism and configuration; it may not exist."""
    key = [version, scram, USERNAME, PASSWORD, sorted((key, str(value)) for key, value in config.items())]
    return cache_folder() / "formatted" / hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]


def format_from_cache(cached: Path, data: Path, node_id: int, cluster_id: str) -> bool:
    """Format the folder ``data`` with the cached checkpoint, and return True; return False if it does not exist."""
    if not cached.exists():
        return False
    data.mkdir(parents=True)
    shutil.copyfile(cached, data / _CHECKPOINT)
    meta = {"version": 1, "cluster.id": cluster_id, "node.id": node_id, "directory.id": new_id()}
    (data / _META).write_text("".join(f"{key}={value}\n" for key, value in meta.items()))
    return True


def store_checkpoint(data: Path, cached: Path) -> None:
    """Copy the checkpoint from the folder ``data`` to ``cached``, unless the tool has written unexpected files."""
    if {path.name for path in data.iterdir()} != {_CHECKPOINT, _META}:
        return
    with contextlib.suppress(OSError):  # Without the cached file, brokers start slower.
        cached.parent.mkdir(parents=True, exist_ok=True)
        copy = cached.with_name(f"{cached.name}.{secrets.token_hex(4)}")
        shutil.copyfile(data / _CHECKPOINT, copy)
        copy.replace(cached)
