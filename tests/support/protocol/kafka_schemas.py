"""Kafka's message definitions, read from the clients' jar of the newest release."""

from __future__ import annotations

import json
import re
import zipfile
from dataclasses import dataclass
from functools import cache
from typing import Any

from tailrace.embedded.jars import class_path

_NEWEST_CLIENTS = "org.apache.kafka:kafka-clients:4.4.0"


@dataclass(frozen=True)
class SchemaField:
    """Field of a message in one version."""

    name: str
    type: str
    nullable: bool
    tag: int | None
    fields: tuple[SchemaField, ...]


@cache
def definition(name: str) -> dict[str, Any]:
    """Return the definition of ``name``, such as ``JoinGroupRequest``."""
    text = _texts()[f"common/message/{name}.json"].decode()
    return json.loads("\n".join(line for line in text.splitlines() if not line.lstrip().startswith("//")))


@cache
def _texts() -> dict[str, bytes]:
    """Return all definitions: opening the large archive takes longer than reading them."""
    (jar,) = (path for path in class_path(_NEWEST_CLIENTS) if path.name.startswith("kafka-clients"))
    with zipfile.ZipFile(jar) as archive:
        names = [name for name in archive.namelist() if name.startswith("common/message/") and name.endswith(".json")]
        return {name: archive.read(name) for name in names}


def is_flexible(name: str, version: int) -> bool:
    """Return True if this version has varint lengths and tagged fields."""
    flexible = definition(name)["flexibleVersions"]
    return flexible != "none" and _contains(flexible, version)


def fields_of(name: str, version: int) -> tuple[SchemaField, ...]:
    """Return the fields of this version in wire order, with tagged fields last."""
    whole = definition(name)
    shared = {one["name"]: one["fields"] for one in whole.get("commonStructs", ())}
    return _fields(whole["fields"], shared, version)


def _fields(rows: list[dict[str, Any]], shared: dict[str, Any], version: int) -> tuple[SchemaField, ...]:
    found = []
    for row in rows:
        if not _contains(row["versions"], version):
            continue
        tagged = "tag" in row and _contains(row["taggedVersions"], version)
        kind = row["type"]
        # A structure is defined in place, or once at the end if it is used in several places.
        inner = _fields(row.get("fields") or shared.get(kind.removeprefix("[]"), []), shared, version)
        if inner:
            kind = "[]struct" if kind.startswith("[]") else "struct"
        found.append(
            SchemaField(
                _snake(row["name"]),
                kind,
                "nullableVersions" in row and _contains(row["nullableVersions"], version),
                row["tag"] if tagged else None,
                inner,
            )
        )
    return tuple(f for f in found if f.tag is None) + tuple(sorted((f for f in found if f.tag is not None), key=_tag))


def _tag(found: SchemaField) -> int:
    assert found.tag is not None
    return found.tag


def _contains(versions: str, version: int) -> bool:
    first, plus, last = re.fullmatch(r"(\d+)(\+?)(?:-(\d+))?", versions).groups()
    if plus:
        return version >= int(first)
    return int(first) <= version <= int(last or first)


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name[0].lower() + name[1:]).lower()
