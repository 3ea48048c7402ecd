"""A broker's data folder before its first start.

Kafka's own tool prepares it, in a JVM of its own: a quarter of the time that a start takes. But for the ids, what it
writes is the same for every broker of one version and configuration, so that one file is kept and copied from then on.
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
    """An id as the storage tool wants it: 16 bytes in URL-safe base64, no padding, no dash in front."""
    return base64.urlsafe_b64encode(b"\x01" + uuid.uuid4().bytes[1:]).rstrip(b"=").decode()


def formatted_file(version: str, scram: str | None, config: Mapping[str, object]) -> Path:
    """Where the file of brokers like these is kept, once there is one."""
    alike = [version, scram, USERNAME, PASSWORD, sorted((key, str(value)) for key, value in config.items())]
    return cache_folder() / "formatted" / hashlib.sha256(json.dumps(alike).encode()).hexdigest()[:32]


def copy_formatted(kept: Path, data: Path, node_id: int, cluster_id: str) -> bool:
    """Prepare ``data`` from what was kept; False when there is nothing."""
    if not kept.exists():
        return False
    data.mkdir(parents=True)
    shutil.copyfile(kept, data / _CHECKPOINT)
    meta = {"version": 1, "cluster.id": cluster_id, "node.id": node_id, "directory.id": new_id()}
    (data / _META).write_text("".join(f"{key}={value}\n" for key, value in meta.items()))
    return True


def keep_formatted(data: Path, kept: Path) -> None:
    """Keep what the tool wrote to ``data``, if it is what we know how to copy."""
    if {path.name for path in data.iterdir()} != {_CHECKPOINT, _META}:
        return
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time, no more
        kept.parent.mkdir(parents=True, exist_ok=True)
        copy = kept.with_name(f"{kept.name}.{secrets.token_hex(4)}")
        shutil.copyfile(data / _CHECKPOINT, copy)
        copy.replace(kept)
