"""``SchemaRegistry``, the codec for values and keys in Confluent's wire format."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from anyio.to_thread import run_sync

from tailrace.codecs.annotations import described
from tailrace.codecs.avro import AvroFormat
from tailrace.codecs.json_schema import JsonFormat
from tailrace.codecs.protocols import Decode, TopicReader
from tailrace.codecs.registry_client import Auth, RegistryClient, Tls, not_installed
from tailrace.codecs.schema_decoders import (
    ParameterReader,
    SchemaDecoders,
    SharedLookup,
    SubjectName,
    SubjectReader,
    subject_of,
)
from tailrace.codecs.wire_format import LARGE_VALUE, Format, PayloadWriter, Schema, check_schema, header_of
from tailrace.config import check_positive, refuse_inline_pem
from tailrace.errors import ConfigurationError, PublishError
from tailrace.values import Hidden, robust_repr

__all__ = ["SchemaEncoders", "SchemaRegistry"]

# ---- encoders: the schema in ``schemas``, the schema of a class, or the newest schema --------------------------------

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


@dataclass(frozen=True, slots=True)
class _WriteOptions:
    """Options of ``SchemaRegistry`` for writing; ``schemas`` contains the texts."""

    schemas: Mapping[str, str]
    use_latest: bool
    auto_register: bool
    subject: SubjectName


class SchemaEncoders:
    """Encoders of values in the wire format.

    Args:
        on_schema: called before the first use of a schema; its arguments are the schema, the topic, and True for keys
            or False for values.
    """

    def __init__(
        self,
        client: RegistryClient,
        form: Format,
        options: _WriteOptions,
        on_schema: Callable[[Schema, str, bool], None],
    ) -> None:
        self._client, self._format, self._options, self._on_schema = client, form, options, on_schema
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
        text = self._options.schemas.get(key.schemas_key)
        subject = self._subject_of(key, text, value)
        has_local_schema = text is not None or self._format.is_by_class
        schema = await (
            self._local_schema(subject, text, value)
            if has_local_schema and not self._options.use_latest
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
            instead = " in place of use_latest_version" if self._options.use_latest else ""
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
        if found is None and self._options.auto_register:
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
                self._options.subject,
                key.topic,
                is_key=key.is_key,
                record_name=lambda: self._format.record_name(text, value),
            )
        except Exception as error:
            raise PublishError(
                f"subject={self._options.subject!r} requires a name of the schema for {key.schemas_key!r}:"
                f" {_reason_of(error)} - set schemas={{{key.schemas_key!r}: ...}} to a schema with a name"
            ) from error


def _reason_of(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _MAX_REASON_CHARS else f"{text[: _MAX_REASON_CHARS - 1]}…"


# ---- ``SchemaRegistry``, the codec for values and keys in Confluent's wire format ------------------------------------

FormatName: TypeAlias = Literal["avro", "json", "protobuf"]


class SchemaRegistry:
    """Codec for values whose schemas are in a registry: ``App(codec=SchemaRegistry("http://localhost:8081"))``.

    Values are decoded to the type of the handler's parameter: ``dict``, a ``msgspec.Struct``, dataclass or pydantic
    model; for protobuf also a generated class, or a union of generated classes. A value of type ``bytes`` is read and
    published unchanged.

    A schema is fetched for the first value that refers to it. If the registry cannot be reached, the record and the
    records after it in its lane wait. A record fails with DecodeError if its value is not in the wire format or does
    not match the type, or if the schema id in the value does not exist or belongs to another subject.

    Args:
        url: address of the registry, or several addresses.
        format: ``"avro"``, ``"json"`` or ``"protobuf"``.
        auth: ``("user", "password")``, a bearer token, or a function, ``async`` or not, that returns one of them.
        schemas: schema with which values are written, by topic: text of the schema, or path of its file. Not used for
            protobuf, because a generated class contains its schema.
        use_latest_version: always write with the newest schema of the subject. If False, the newest schema is used only
            for Avro and JSON values of topics that ``schemas`` does not contain.
        auto_register: register schemas of ``schemas`` and of protobuf classes that are not registered yet. If False,
            publishing a value whose schema is not registered raises PublishError.
        subject: naming strategy of subjects: ``"topic"`` for ``{topic}-value``, ``"record"`` for the name of the
            schema, ``"topic_record"`` for ``{topic}-{name}``. If the registry has the subject of a record, the
            record's schema id must belong to a version of the subject.
        keys: encode and decode keys, too. Their subject is ``{topic}-key`` with ``subject="topic"``, and their schemas
            are ``schemas["{topic}-key"]``.
        validate: validate JSON values against their schemas when they are read; they are always validated when they are
            written.
        timeout_ms: time limit in milliseconds for fetching or registering a schema.
        ssl_cafile: file with trusted certificates, as in the options of ``Consumer``.
        ssl_certfile: file with the client certificate, as in the options of ``Consumer``.
        ssl_keyfile: file with the key of the client certificate, as in the options of ``Consumer``.
        ssl_password: password of the key, as in the options of ``Consumer``.

    Raises:
        ConfigurationError: the extra ``schema-registry`` is not installed, or an argument is invalid.
    """

    def __init__(  # noqa: PLR0913 - its options
        self,
        url: str | Sequence[str],
        *,
        format: FormatName = "avro",  # noqa: A002 - the usual name
        auth: Auth | None = None,
        schemas: Mapping[str, str | Path] | None = None,
        use_latest_version: bool = False,
        auto_register: bool = False,
        subject: SubjectName = "topic",
        keys: bool = False,
        validate: bool = True,
        timeout_ms: int = 10_000,
        ssl_cafile: str | None = None,
        ssl_certfile: str | None = None,
        ssl_keyfile: str | None = None,
        ssl_password: str | None = None,
    ) -> None:
        # Tools that log the local variables of a traceback must not find secrets in this function.
        urls, hidden_auth = Hidden([url] if isinstance(url, str) else url), Hidden(auth)
        password = None if ssl_password is None else Hidden(ssl_password)
        del url, auth, ssl_password
        for name, value, choices in (("format", format, FormatName), ("subject", subject, SubjectName)):
            if value not in get_args(choices):
                known = ", ".join(map(repr, get_args(choices)))
                raise ConfigurationError(f"SchemaRegistry: {name} must be one of {known}, not {value!r}")
        check_positive("SchemaRegistry: timeout_ms", timeout_ms)
        if use_latest_version and auto_register:
            raise ConfigurationError(
                "SchemaRegistry: use_latest_version and auto_register cannot both be True, because values might not be"
                " written with the schema that is registered - set one of them"
            )
        self.keys = keys
        for name, path in (
            ("ssl_cafile", ssl_cafile),
            ("ssl_certfile", ssl_certfile),
            ("ssl_keyfile", ssl_keyfile),
        ):
            refuse_inline_pem(f"SchemaRegistry: {name}", path, "write it to a file")
        tls = Tls(ssl_cafile, ssl_certfile, ssl_keyfile, password)
        self._client = RegistryClient(urls, hidden_auth, tls, timeout_ms)
        self._format = _format(format, validate=validate)
        self._decoders = SchemaDecoders(self._client, self._format)
        self._encoders = SchemaEncoders(
            self._client,
            self._format,
            _WriteOptions(
                {topic: _schema_text(topic, given) for topic, given in (schemas or {}).items()},
                use_latest_version,
                auto_register,
                subject,
            ),
            self._on_schema_used,
        )
        self._subject = subject
        self._values, self._keys = (
            SubjectReader(self._decoders, self._client, partial(self._subject_of, is_key)) for is_key in (False, True)
        )

    @robust_repr
    def __repr__(self) -> str:
        return f"<SchemaRegistry {', '.join(self._client.urls)} format={self._format.kind.lower()}>"

    def reader(self, *, is_key: bool) -> TopicReader:
        """Return a reader of values or of keys, which refuses schema ids that are not of the topic's subject."""
        return ParameterReader(self._decoders, self._keys if is_key else self._values)

    def decoder(self, annotation: Any, /) -> Decode:  # noqa: ANN401 - any type
        """Return a decoder of a type, for bytes for which ``lacks`` returns False.

        Raises:
            TypeError: the format does not support the type.
        """
        return self._decoders.decoder(annotation)

    def lacks(self, data: bytes, /) -> bool:
        """Return True if the schema of these bytes must be fetched before they are decoded."""
        return self._decoders.lacks(data)

    async def fetch(self, data: bytes, /) -> None:
        """Fetch the schema of these bytes; if the schema does not exist, the decoder will raise an error.

        Raises:
            SchemaRegistryError: the request failed.
        """
        await self._decoders.fetch(data)

    def encode(self, value: Any, /) -> bytes:  # noqa: ANN401
        """Return bytes unchanged; ``encode_for`` encodes other values.

        Raises:
            TypeError: the value is not bytes.
        """
        if isinstance(value, bytes):
            return value
        raise TypeError("the schema of a value depends on the topic - encode the value with encode_for(topic, value)")

    async def encode_for(self, topic: str, value: Any, *, is_key: bool = False) -> bytes:  # noqa: ANN401
        """Encode a value, or a key, in the wire format; return bytes unchanged.

        Raises:
            PublishError: no schema is registered for the value, or the value does not match the schema.
            SchemaRegistryError: the request failed.
        """
        return value if isinstance(value, bytes) else await self._encoders.encode(topic, value, is_key=is_key)

    def _on_schema_used(self, schema: Schema, topic: str, is_key: bool) -> None:  # noqa: FBT001 - a callback
        self._decoders.add(schema)
        (self._keys if is_key else self._values).accept(topic, schema.id)

    def _subject_of(self, is_key: bool, topic: str, schema: Schema) -> str | None:  # noqa: FBT001 - for partial()
        def record_name() -> str:
            return self._format.record_name(schema.text, None)

        try:
            return subject_of(self._subject, topic, is_key=is_key, record_name=record_name)
        except Exception:  # noqa: BLE001 - the error for a schema without a name depends on the format
            return None


def _format(name: FormatName, *, validate: bool) -> Format:
    try:
        if name == "avro":
            return AvroFormat()
        if name == "json":
            return JsonFormat(validate=validate)
        from tailrace.codecs.protobuf import ProtobufFormat  # noqa: PLC0415 - an extra

        return ProtobufFormat()
    except ImportError as error:
        raise not_installed(error) from error


def _schema_text(topic: str, given: str | Path) -> str:
    """Return ``given`` if it begins with a brace, bracket or quotation mark; else read the file at this path."""
    if isinstance(given, str) and given.lstrip().startswith(("{", "[", '"')):
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except (OSError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"SchemaRegistry: schemas[{topic!r}] is neither the text of a schema nor the path of a readable file:"
            f" {error}"
        ) from error
