"""Encoders by topic, with a configured schema or the newest of the subject, fetched once per topic.

Nothing is registered without ``auto_register``, and no value is published that does not match its schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tailrace.app.declare.annotations import described
from tailrace.app.declare.schema_registry.client import RegistryClient
from tailrace.app.declare.schema_registry.decoders import SharedLookup
from tailrace.app.declare.schema_registry.formats import Encode, Format, check_schema, header_of
from tailrace.app.declare.schema_registry.schema import Schema
from tailrace.app.declare.schema_registry.subjects import SubjectName, subject_of
from tailrace.errors import PublishError

__all__ = ["SchemaEncoders"]

_MOST_OF_A_REASON = 200


@dataclass(frozen=True, slots=True)
class _Kind:
    """Values that share one encoder."""

    topic: str
    is_key: bool
    of: type | None
    """Class of the values, if the format takes the schema from it."""

    @property
    def place(self) -> str:
        """Key in ``schemas``."""
        return f"{self.topic}-key" if self.is_key else self.topic


class SchemaEncoders:
    """Encoders of values in the wire format.

    Args:
        client: client of the registry.
        form: format of the payloads.
        schemas: see ``SchemaRegistry``.
        use_latest: see ``SchemaRegistry``, ``use_latest_version``.
        auto_register: see ``SchemaRegistry``.
        subject: see ``SchemaRegistry``.
        learned: called with each schema used for writing, its topic, and True for keys.
    """

    def __init__(  # noqa: PLR0913 - its options
        self,
        client: RegistryClient,
        form: Format,
        *,
        schemas: Mapping[str, str],
        use_latest: bool,
        auto_register: bool,
        subject: SubjectName,
        learned: Callable[[Schema, str, bool], None],
    ) -> None:
        self._client, self._format, self._learned = client, form, learned
        self._schemas, self._subject = schemas, subject
        self._use_latest, self._auto_register = use_latest, auto_register
        self._writers: dict[_Kind, Encode] = {}
        self._together = SharedLookup()

    async def encode(self, topic: str, value: Any, *, is_key: bool = False) -> bytes:  # noqa: ANN401
        """Encode a value, see ``SchemaRegistry.encode_for``."""
        kind = _Kind(topic, is_key, type(value) if self._format.is_by_class else None)
        while (write := self._writers.get(kind)) is None:
            await self._together.ask(kind, lambda: self._make(kind, value))
        try:
            return write(value)
        except Exception as error:
            # The value may match a newer schema: fetch it for the next value.
            self._writers.pop(kind, None)
            raise PublishError(
                f"{described(type(value))} does not fit the schema of {kind.place!r}: {_reason_of(error)}"
                " - give what the schema says, or register a newer one"
            ) from error

    async def _make(self, kind: _Kind, value: object) -> None:
        text = self._schemas.get(kind.place)
        subject = self._subject_of(kind, text, value)
        is_own = text is not None or self._format.is_by_class
        schema = await (
            self._own(subject, text, value) if is_own and not self._use_latest else self._latest(subject, kind.place)
        )
        try:
            check_schema(schema, self._format, schema.write_rules)
            write = self._format.writer(schema, value)
        except Exception as error:
            raise PublishError(f"nothing can be written to {kind.place!r}: {_reason_of(error)}") from error
        self._learned(schema, kind.topic, kind.is_key)
        header = header_of(schema.id)
        self._writers[kind] = lambda value: header + write(value)

    async def _latest(self, subject: str, place: str) -> Schema:
        schema = await self._client.latest(subject)
        if schema is None:
            raise PublishError(
                f"no schema is registered under {subject!r} - register one, or give schemas={{{place!r}: ...}} and"
                " auto_register=True"
            )
        return schema

    async def _own(self, subject: str, text: str | None, value: object) -> Schema:
        """Return the configured schema, or that of the value's class."""
        try:
            own = self._format.own(text, value)
        except Exception as error:
            raise PublishError(f"there is no schema for {subject!r}: {_reason_of(error)}") from error
        # Imported schemas come first, since references need their versions.
        version_of: dict[str, int] = {}
        schema_id = 0
        for name, one in own.items():
            found = await self._registered(name or subject, one.text, [(n, n, version_of[n]) for n in one.needs])
            schema_id, version_of[name] = found
        references = {name: one.text for name, one in own.items() if name}
        return Schema(schema_id, self._format.kind, own[""].text, references)

    async def _registered(self, subject: str, text: str, needs: list[tuple[str, str, int]]) -> tuple[int, int]:
        from confluent_kafka.schema_registry import Schema as Given  # noqa: PLC0415 - an extra
        from confluent_kafka.schema_registry import SchemaReference  # noqa: PLC0415

        schema = Given(text, self._format.kind, [SchemaReference(*one) for one in needs])
        found = await self._client.id_of(subject, schema)
        if found is None and self._auto_register:
            await self._client.register(subject, schema)
            found = await self._client.id_of(subject, schema)
        if found is None:
            raise PublishError(
                f"this schema is not registered under {subject!r} - register it, or say auto_register=True or"
                " use_latest_version=True"
            )
        return found

    def _subject_of(self, kind: _Kind, text: str | None, value: object) -> str:
        try:
            return subject_of(
                self._subject,
                kind.topic,
                is_key=kind.is_key,
                record_name=lambda: self._format.record_name(text, value),
            )
        except Exception as error:
            raise PublishError(
                f"subject={self._subject!r} needs a name for what is published to {kind.place!r}: {_reason_of(error)}"
                f" - give schemas={{{kind.place!r}: ...}} with one"
            ) from error


def _reason_of(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _MOST_OF_A_REASON else f"{text[: _MOST_OF_A_REASON - 1]}…"
