"""Encoders of values and keys, with the schema in ``schemas``, the schema of a class, or the newest schema.

There is one encoder for the values of a topic, and one for its keys; with Protobuf, one for each class of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from anyio.to_thread import run_sync

from tailrace.app.declare.annotations import described
from tailrace.app.declare.schema_registry.client import RegistryClient
from tailrace.app.declare.schema_registry.decoders import SharedLookup
from tailrace.app.declare.schema_registry.formats import LARGE_VALUE, Format, PayloadWriter, check_schema, header_of
from tailrace.app.declare.schema_registry.schema import Schema
from tailrace.app.declare.schema_registry.subjects import SubjectName, subject_of
from tailrace.errors import PublishError

__all__ = ["SchemaEncoders"]

_MAX_REASON_CHARS = 200


@dataclass(frozen=True, slots=True)
class _EncoderKey:
    """Properties of values that share one encoder."""

    topic: str
    is_key: bool
    value_class: type | None
    """Class of the values if the class contains their schema, as with Protobuf; None for other formats."""

    @property
    def schemas_key(self) -> str:
        """Key of the schema in the option ``schemas``."""
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
        on_schema: called before the first use of a schema; its arguments are the schema, the topic, and True for keys
            or False for values.
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
        on_schema: Callable[[Schema, str, bool], None],
    ) -> None:
        self._client, self._format, self._on_schema = client, form, on_schema
        self._schemas, self._subject = schemas, subject
        self._use_latest, self._auto_register = use_latest, auto_register
        self._writers: dict[_EncoderKey, tuple[bytes, PayloadWriter]] = {}
        """Headers and writers of the values."""
        self._lookups = SharedLookup()

    async def encode(self, topic: str, value: Any, *, is_key: bool = False) -> bytes:  # noqa: ANN401
        """Encode a value, see ``SchemaRegistry.encode_for``."""
        key = _EncoderKey(topic, is_key, type(value) if self._format.is_by_class else None)
        while (found := self._writers.get(key)) is None:
            await self._lookups.run(key, lambda: self._create_writer(key, value))
        header, writer = found
        try:
            payload = writer.encode(value)
            if writer.check is not None and len(payload) <= LARGE_VALUE:
                writer.check(payload)
            elif writer.check is not None:
                await run_sync(writer.check, payload, abandon_on_cancel=True)
        except Exception as error:
            # Have the writer created again for the next value, because the subject may have a newer schema by then.
            self._writers.pop(key, None)
            raise PublishError(
                f"{described(type(value))} does not match the schema for {key.schemas_key!r}: {_reason_of(error)}"
                " - publish a value that matches, or register a newer schema"
            ) from error
        return header + payload

    async def _create_writer(self, key: _EncoderKey, value: object) -> None:
        text = self._schemas.get(key.schemas_key)
        subject = self._subject_of(key, text, value)
        has_local_schema = text is not None or self._format.is_by_class
        schema = await (
            self._local_schema(subject, text, value)
            if has_local_schema and not self._use_latest
            else self._latest(subject, key.schemas_key)
        )
        try:
            check_schema(schema, self._format, schema.write_rules)
            # In a thread, because a large schema takes seconds.
            writer = await run_sync(self._format.writer, schema, value, abandon_on_cancel=True)
        except Exception as error:
            raise PublishError(f"the schema for {key.schemas_key!r} cannot be used: {_reason_of(error)}") from error
        self._on_schema(schema, key.topic, key.is_key)
        self._writers[key] = header_of(schema.id), writer

    async def _latest(self, subject: str, schemas_key: str) -> Schema:
        schema = await self._client.latest(subject)
        if schema is None:
            schemas = "" if self._format.is_by_class else f"schemas={{{schemas_key!r}: ...}} and "
            instead = " in place of use_latest_version" if self._use_latest else ""
            raise PublishError(
                f"no schema is registered under {subject!r} - register one, or set {schemas}auto_register=True{instead}"
            )
        return schema

    async def _local_schema(self, subject: str, text: str | None, value: object) -> Schema:
        """Return the schema in ``text`` or of the value's class, with its id in the registry.

        With ``auto_register``, register the schema, and the schemas that it imports, if they are not registered.
        """
        try:
            schemas = self._format.local_schemas(text, value)
        except Exception as error:
            raise PublishError(f"there is no schema for {subject!r}: {_reason_of(error)}") from error
        # Imported schemas come first, because a reference contains the version of the imported schema.
        version_of: dict[str, int] = {}
        schema_id = 0
        for name, one in schemas.items():
            imports = [(imported, imported, version_of[imported]) for imported in one.imports]
            schema_id, version_of[name] = await self._find_or_register(name or subject, one.text, imports)
        references = {name: one.text for name, one in schemas.items() if name}
        return Schema(schema_id, self._format.kind, schemas[""].text, references)

    async def _find_or_register(
        self, subject: str, text: str, references: list[tuple[str, str, int]]
    ) -> tuple[int, int]:
        """Return the id of a schema and its version in a subject; register it if ``auto_register`` is set.

        ``references`` are the imported schemas: name, subject and version of each.
        """
        from confluent_kafka.schema_registry import Schema as RegistrySchema  # noqa: PLC0415 - an extra
        from confluent_kafka.schema_registry import SchemaReference  # noqa: PLC0415

        schema = RegistrySchema(text, self._format.kind, [SchemaReference(*one) for one in references])
        found = await self._client.look_up(subject, schema)
        if found is None and self._auto_register:
            await self._client.register(subject, schema)
            found = await self._client.look_up(subject, schema)
        if found is None:
            raise PublishError(
                f"the schema of the value is not registered under {subject!r} - register it, or set auto_register=True"
                " or use_latest_version=True"
            )
        return found

    def _subject_of(self, key: _EncoderKey, text: str | None, value: object) -> str:
        try:
            return subject_of(
                self._subject,
                key.topic,
                is_key=key.is_key,
                record_name=lambda: self._format.record_name(text, value),
            )
        except Exception as error:
            raise PublishError(
                f"subject={self._subject!r} requires a name of the schema for {key.schemas_key!r}: {_reason_of(error)}"
                f" - set schemas={{{key.schemas_key!r}: ...}} to a schema with a name"
            ) from error


def _reason_of(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _MAX_REASON_CHARS else f"{text[: _MAX_REASON_CHARS - 1]}…"
