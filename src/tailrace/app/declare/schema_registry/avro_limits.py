"""Limits for Avro payloads and schemas, checked before fastavro's C decoder reads a payload.

The C decoder recurses for each level of nesting, and creates all items of an array even if an item takes no bytes. A
few bytes from a malicious producer could overflow the stack or exhaust the memory of the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["depth_check"]

_MAX_NESTED_RECORDS = 200
"""Maximum nesting of records; the stack of a thread is sufficient for some thousands."""
_MIN_SIZES = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1}
"""Minimum size of each primitive type, in bytes."""
_MAX_VARINT_BYTES = 10


def depth_check(schema: Any) -> Callable[[bytes, int], None] | None:  # noqa: ANN401 - fastavro's parsed schema
    """Return a function that checks how deeply a payload is nested; None if the schema is not recursive.

    The function is called with the data and the index at which the payload begins. It raises ValueError if the payload
    is nested too deeply or is incomplete.

    Raises:
        TypeError: the schema has an array whose items take no bytes.
    """
    checker = _PayloadChecker(schema)
    checker.check_arrays()
    return checker.check if checker.is_recursive() else None


class _PayloadChecker:
    """Checks a schema and its payloads; ``at`` is always an index in the data."""

    def __init__(self, schema: Any) -> None:  # noqa: ANN401
        self._schema = schema
        self._named_types: dict[str, Any] = {}
        self._min_sizes: dict[str, int] = {}
        """Minimum sizes of named types, in bytes."""
        for part in self._parts(schema):
            if isinstance(part, dict) and "name" in part:
                self._named_types[part["name"]] = part

    def check_arrays(self) -> None:
        """Raise TypeError if the schema has an array whose items take no bytes."""
        for part in self._parts(self._schema):
            if isinstance(part, dict) and part["type"] == "array" and not self._min_size(part["items"], ()):
                raise TypeError("the schema has an array whose items take no bytes, so that its length is unlimited")

    def is_recursive(self) -> bool:
        """Return True if a type of the schema can contain itself."""
        seen: set[str] = set()

        def leads_back(schema: Any, within: tuple[str, ...]) -> bool:  # noqa: ANN401
            found = self._named_types.get(schema, schema) if isinstance(schema, str) else schema
            if isinstance(found, dict) and "name" in found:
                if found["name"] in seen:
                    return found["name"] in within
                seen.add(found["name"])
                within = (*within, found["name"])
            return any(leads_back(part, within) for part in _children(found))

        return leads_back(self._schema, ())

    def check(self, data: bytes, at: int) -> None:
        """Raise ValueError if the payload that begins at ``at`` is nested too deeply or is incomplete."""
        self._skip(self._schema, data, at, 0)

    # ---- the schema --------------------------------------------------------------------------------------------

    def _parts(self, schema: Any) -> Iterator[Any]:  # noqa: ANN401
        """Yield a schema and all schemas that are written inside it."""
        yield schema
        for child in _children(schema):
            yield from self._parts(child)

    def _min_size(self, schema: Any, within: tuple[str, ...]) -> int:  # noqa: ANN401
        """Return the minimum size of a value in bytes; ``within`` are the names of the records that contain it."""
        if isinstance(schema, str):
            return _MIN_SIZES[schema] if schema in _MIN_SIZES else self._min_size_of_named(schema, within)
        kind = "union" if isinstance(schema, list) else schema["type"]
        if kind in {"record", "error"}:
            return sum(self._min_size(one["type"], (*within, schema["name"])) for one in schema["fields"])
        if kind == "fixed":
            return int(schema["size"])
        return 1 if kind in {"union", "array", "map", "enum"} else self._min_size(kind, within)

    def _min_size_of_named(self, name: str, within: tuple[str, ...]) -> int:
        if name in within:
            # No payload can contain a record that always contains itself, so any positive size is correct.
            return 1
        if name not in self._min_sizes:
            self._min_sizes[name] = self._min_size(self._named_types[name], within)
        return self._min_sizes[name]

    # ---- the payload -------------------------------------------------------------------------------------------

    def _skip(self, schema: Any, data: bytes, at: int, depth: int) -> int:  # noqa: ANN401
        """Return the end of the value that begins at ``at``; ``depth`` is the number of records that contain it."""
        if isinstance(schema, list):
            branch, at = _long(data, at)
            if not 0 <= branch < len(schema):
                raise ValueError(f"the payload names branch {branch} of a union with {len(schema)} branches")
            return self._skip(schema[branch], data, at, depth)
        kind = schema if isinstance(schema, str) else schema["type"]
        if kind in _MIN_SIZES:
            at = _skip_primitive(kind, data, at)
        elif isinstance(schema, str):
            at = self._skip(self._named_types[schema], data, at, depth)
        elif kind in {"record", "error"}:
            at = self._skip_fields(schema, data, at, depth + 1)
        elif kind in {"array", "map"}:
            at = self._skip_blocks(schema, data, at, depth)
        elif kind in {"enum", "fixed"}:
            at = _long(data, at)[1] if kind == "enum" else at + schema["size"]
        else:
            at = self._skip(kind, data, at, depth)
        if at > len(data):
            raise ValueError("the payload is incomplete")
        return at

    def _skip_fields(self, schema: Any, data: bytes, at: int, depth: int) -> int:  # noqa: ANN401
        if depth > _MAX_NESTED_RECORDS:
            raise ValueError(f"records are nested deeper than {_MAX_NESTED_RECORDS} levels")
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
                # After a negative count comes the size of the block in bytes, which fastavro ignores, too.
                at = _long(data, at)[1]
            for _ in range(abs(count)):
                if is_map:
                    at = self._skip("string", data, at, depth)
                at = self._skip(schema["values" if is_map else "items"], data, at, depth)


def _children(schema: Any) -> list[Any]:  # noqa: ANN401
    """Return the schemas that are written directly inside a schema."""
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
    return _long(data, at)[1] if kind in {"int", "long"} else at + _MIN_SIZES[kind]


def _long(data: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at ``at``, a zigzag varint, and the end of the number."""
    value = 0
    for place, byte in enumerate(data[at : at + _MAX_VARINT_BYTES]):
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return (value >> 1) ^ -(value & 1), at + place + 1
    raise ValueError("the payload ends within a number, or the number is too long")
