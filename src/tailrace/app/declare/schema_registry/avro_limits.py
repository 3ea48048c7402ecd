"""Limits of Avro payloads, checked before fastavro's C decoder reads them.

The C decoder recurses on the process's stack for each level of a recursive schema, and creates every item of an array
whose items take no bytes. A few bytes from a hostile producer could crash the process or exhaust its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["depth_check"]

_MOST_RECORDS = 200
"""Deepest nesting of records; a thread's stack holds some thousands."""
_SIZES = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1}
_MOST_VARINT = 10


def depth_check(schema: Any) -> Callable[[bytes, int], None] | None:  # noqa: ANN401 - fastavro's parsed schema
    """Return a check of payloads, called with the data and its start; None if payloads cannot be nested too deeply.

    Raises:
        TypeError: the schema has an array whose items take no bytes.
    """
    payload = _Payload(schema)
    payload.check_arrays()
    return payload.check if payload.is_recursive() else None


class _Payload:
    """Checker of payloads of one schema."""

    def __init__(self, schema: Any) -> None:  # noqa: ANN401
        self._schema = schema
        self._named: dict[str, Any] = {}
        self._least: dict[str, int] = {}
        for part in self._parts(schema):
            if isinstance(part, dict) and "name" in part:
                self._named[part["name"]] = part

    def check_arrays(self) -> None:
        """Raise TypeError if the schema has an array whose items take no bytes."""
        for part in self._parts(self._schema):
            if isinstance(part, dict) and part["type"] == "array" and not self._least_size(part["items"], ()):
                raise TypeError("its schema has an array whose items take no bytes, so that its length has no bound")

    def is_recursive(self) -> bool:
        """Return True if a record of the schema may contain itself."""
        seen: set[str] = set()

        def leads_back(schema: Any, within: tuple[str, ...]) -> bool:  # noqa: ANN401
            found = self._named.get(schema, schema) if isinstance(schema, str) else schema
            if isinstance(found, dict) and "name" in found:
                if found["name"] in seen:
                    return found["name"] in within
                seen.add(found["name"])
                within = (*within, found["name"])
            return any(leads_back(part, within) for part in _children(found))

        return leads_back(self._schema, ())

    def check(self, data: bytes, at: int) -> None:
        """Raise ValueError if a payload is nested too deeply or ends too early."""
        self._skip(self._schema, data, at, 0)

    # ---- the schema --------------------------------------------------------------------------------------------

    def _parts(self, schema: Any) -> Iterator[Any]:  # noqa: ANN401
        yield schema
        for child in _children(schema):
            yield from self._parts(child)

    def _least_size(self, schema: Any, within: tuple[str, ...]) -> int:  # noqa: ANN401
        if isinstance(schema, str):
            return _SIZES[schema] if schema in _SIZES else self._least_size_of(schema, within)
        kind = "union" if isinstance(schema, list) else schema["type"]
        if kind in {"record", "error"}:
            return sum(self._least_size(one["type"], (*within, schema["name"])) for one in schema["fields"])
        if kind == "fixed":
            return int(schema["size"])
        return 1 if kind in {"union", "array", "map", "enum"} else self._least_size(kind, within)

    def _least_size_of(self, name: str, within: tuple[str, ...]) -> int:
        if name in within:
            # A record that always contains itself has no finite payload.
            return 1
        if name not in self._least:
            self._least[name] = self._least_size(self._named[name], within)
        return self._least[name]

    # ---- the payload -------------------------------------------------------------------------------------------

    def _skip(self, schema: Any, data: bytes, at: int, depth: int) -> int:  # noqa: ANN401
        """Return the end of the value that begins at ``at``."""
        if isinstance(schema, list):
            branch, at = _long(data, at)
            if not 0 <= branch < len(schema):
                raise ValueError(f"a union of {len(schema)} has no branch {branch}")
            return self._skip(schema[branch], data, at, depth)
        kind = schema if isinstance(schema, str) else schema["type"]
        if kind in _SIZES:
            at = _skip_primitive(kind, data, at)
        elif isinstance(schema, str):
            at = self._skip(self._named[schema], data, at, depth)
        elif kind in {"record", "error"}:
            at = self._skip_fields(schema, data, at, depth + 1)
        elif kind in {"array", "map"}:
            at = self._skip_blocks(schema, data, at, depth)
        elif kind in {"enum", "fixed"}:
            at = _long(data, at)[1] if kind == "enum" else at + schema["size"]
        else:
            at = self._skip(kind, data, at, depth)
        if at > len(data):
            raise ValueError("it ends too early")
        return at

    def _skip_fields(self, schema: Any, data: bytes, at: int, depth: int) -> int:  # noqa: ANN401
        if depth > _MOST_RECORDS:
            raise ValueError(f"its records are nested deeper than {_MOST_RECORDS} levels")
        for one in schema["fields"]:
            at = self._skip(one["type"], data, at, depth)
        return at

    def _skip_blocks(self, schema: Any, data: bytes, at: int, depth: int) -> int:  # noqa: ANN401
        is_map = schema["type"] == "map"
        while True:
            count, at = _long(data, at)
            if not count:
                return at
            if count < 0:
                # The block size follows; fastavro ignores it, too.
                at = _long(data, at)[1]
            for _ in range(abs(count)):
                if is_map:
                    at = self._skip("string", data, at, depth)
                at = self._skip(schema["values" if is_map else "items"], data, at, depth)


def _children(schema: Any) -> list[Any]:  # noqa: ANN401
    if isinstance(schema, list):
        return schema
    if not isinstance(schema, dict):
        return []
    kind = schema["type"]
    inner = [one["type"] for one in schema.get("fields", ())]
    inner += [schema[name] for name in ("items", "values") if name in schema]
    return inner if isinstance(kind, str) else [kind]


def _skip_primitive(kind: str, data: bytes, at: int) -> int:
    if kind in {"bytes", "string"}:
        size, at = _long(data, at)
        return at + max(0, size)
    return _long(data, at)[1] if kind in {"int", "long"} else at + _SIZES[kind]


def _long(data: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag varint and its end."""
    value = 0
    for place, byte in enumerate(data[at : at + _MOST_VARINT]):
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return (value >> 1) ^ -(value & 1), at + place + 1
    raise ValueError("it ends within a number")
