"""A codec for values whose schemas are in a registry, in Confluent's wire format.

Rule of this file: options and the names that users see. What a schema id means is
``app.declare.schema_registry.decoders``'s, what values are written with ``app.declare.schema_registry.encoders``'s, and
how a payload looks is the formats'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from tailrace.app.codec_protocols import Decode, TopicReader
from tailrace.app.declare.schema_registry.client import Auth, RegistryClient, Tls, not_installed
from tailrace.app.declare.schema_registry.decoders import SchemaDecoders
from tailrace.app.declare.schema_registry.encoders import SchemaEncoders
from tailrace.app.declare.schema_registry.formats import AvroFormat, Format, JsonFormat
from tailrace.app.declare.schema_registry.schema import Schema
from tailrace.app.declare.schema_registry.subjects import SubjectName, SubjectReader, subject_of
from tailrace.config import refuse_inline_pem
from tailrace.errors import ConfigurationError

__all__ = ["SchemaRegistry"]

FormatName: TypeAlias = Literal["avro", "json", "protobuf"]


class SchemaRegistry:
    """Reads and writes values whose schemas are in a registry: ``App(codec=SchemaRegistry("http://localhost:8081"))``.

    A handler's annotation says what it gets: ``dict``, a ``msgspec.Struct``, dataclass or pydantic model, in protobuf a
    generated class, or several as a union; ``bytes`` are as they are, and go out as they are. A schema is asked for
    when its id is first seen. While the registry cannot be asked, the record waits, and its lane with it; what is not
    in the wire format, names an id that does not exist or belongs to another subject, or does not decode is a
    DecodeError.

    Args:
        url: where the registry is, or several addresses of it.
        format: ``"avro"``, ``"json"`` or ``"protobuf"``.
        auth: ``("user", "secret")``, a bearer token, or a function, ``async`` or not, that gives one of them.
        schemas: by topic, what values are written with: the text of a schema, or the path of its file. Protobuf needs
            none, for the classes have it.
        use_latest_version: write with the newest schema of the subject. That is so anyway where ``schemas`` has none.
        auto_register: register a schema that is not; else that is an error.
        subject: what schemas are registered under: ``"topic"`` is ``{topic}-value``, ``"record"`` the name of the
            schema, ``"topic_record"`` is ``{topic}-{name}``. A schema id that is read has to be a version of it, if the
            registry has such a subject.
        keys: keys are read and written so, too, under ``{topic}-key``; their schemas are ``schemas["{topic}-key"]``.
        validate: whether JSON that is read is held against its schema; what is written always is.
        timeout_ms: how long a question to the registry may take.
        ssl_cafile: certificates to trust, as in the options of ``Consumer``; so are the three behind it.

    Raises:
        ConfigurationError: the extra ``schema-registry`` is not installed, or an argument will not do.
    """

    def __init__(  # noqa: PLR0913 - its options
        self,
        url: str | Sequence[str],
        *,
        format: FormatName = "avro",  # noqa: A002 - the word for it
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
        for name, value, choices in (("format", format, FormatName), ("subject", subject, SubjectName)):
            if value not in get_args(choices):
                known = ", ".join(map(repr, get_args(choices)))
                raise ConfigurationError(f"SchemaRegistry: {name}={value!r} will not do: it has to be one of {known}")
        _check_count("timeout_ms", timeout_ms)
        if use_latest_version and auto_register:
            raise ConfigurationError(
                "SchemaRegistry: use_latest_version and auto_register exclude each other - what is registered would"
                " not be what is written with"
            )
        self.keys = keys
        for name, path in (
            ("ssl_cafile", ssl_cafile),
            ("ssl_certfile", ssl_certfile),
            ("ssl_keyfile", ssl_keyfile),
        ):
            refuse_inline_pem(f"SchemaRegistry: {name}", path, "write it to a file")
        tls = Tls(ssl_cafile, ssl_certfile, ssl_keyfile, ssl_password)
        self._client = RegistryClient([url] if isinstance(url, str) else url, auth, tls, timeout_ms)
        self._format = _format(format, validate=validate)
        self._readers = SchemaDecoders(self._client, self._format)
        self._writers = SchemaEncoders(
            self._client,
            self._format,
            schemas={topic: _text(topic, given) for topic, given in (schemas or {}).items()},
            use_latest=use_latest_version,
            auto_register=auto_register,
            subject=subject,
            learned=self._learn,
        )
        self._subject = subject
        self._values, self._keys = (
            SubjectReader(self._readers, self._client, partial(self._subject_of, is_key)) for is_key in (False, True)
        )

    def __repr__(self) -> str:
        return f"<SchemaRegistry {', '.join(self._client.urls)} format={self._format.kind.lower()}>"

    def reader(self, *, is_key: bool) -> TopicReader:
        """Return the reader of values, or of keys, which refuses schema ids of other subjects."""
        return self._keys if is_key else self._values

    def decoder(self, annotation: Any, /) -> Decode:  # noqa: ANN401 - any type there is
        """A function of bytes that lack nothing (see ``lacks``) that gives such a value, or raises.

        Raises:
            TypeError: values of this format never become such a type.
        """
        return self._readers.decoder(annotation)

    def lacks(self, data: bytes, /) -> bool:
        """Whether the schema that these bytes name has to be fetched before they are decoded."""
        return self._readers.lacks(data)

    async def fetch(self, data: bytes, /) -> None:
        """Fetch it; that there is none is told when they are decoded.

        Raises:
            SchemaRegistryError: the registry could not be asked.
        """
        await self._readers.fetch(data)

    def encode(self, value: Any, /) -> bytes:  # noqa: ANN401
        """Bytes as they are; for anything else the topic has to be known, as ``encode_for`` has it.

        Raises:
            TypeError: it is anything else.
        """
        if isinstance(value, bytes):
            return value
        raise TypeError("which schema a value is written with depends on its topic - publish it by an app or a handler")

    async def encode_for(self, topic: str, value: Any, *, is_key: bool = False) -> bytes:  # noqa: ANN401
        """A value, or a key, in the wire format; bytes as they are.

        Raises:
            PublishError: no schema is registered for it, or it does not fit the schema.
            SchemaRegistryError: the registry could not be asked.
        """
        return value if isinstance(value, bytes) else await self._writers.encode(topic, value, is_key=is_key)

    def _learn(self, schema: Schema, topic: str, is_key: bool) -> None:  # noqa: FBT001 - of a callback
        self._readers.learn(schema)
        (self._keys if is_key else self._values).accept(topic, schema.id)

    def _subject_of(self, is_key: bool, topic: str, schema: Schema) -> str | None:  # noqa: FBT001 - of a partial
        def record_name() -> str:
            return self._format.record_name(schema.text, None)

        try:
            return subject_of(self._subject, topic, is_key=is_key, record_name=record_name)
        except Exception:  # noqa: BLE001 - whatever a format raises for a schema without a name
            return None


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(
            f"SchemaRegistry: {name}={value!r} will not do: it has to be a whole number, at least 1"
        )


def _format(name: FormatName, *, validate: bool) -> Format:
    try:
        if name == "avro":
            return AvroFormat()
        if name == "json":
            return JsonFormat(validate=validate)
        from tailrace.app.declare.schema_registry.protobuf import ProtobufFormat  # noqa: PLC0415 - an extra

        return ProtobufFormat()
    except ImportError as error:
        raise not_installed(error) from error


def _text(topic: str, given: str | Path) -> str:
    """The text of a schema, which begins with a bracket or a quotation mark as no path does; else a file has it."""
    if isinstance(given, str) and given.lstrip().startswith(("{", "[", '"')):
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except (OSError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"SchemaRegistry: schemas[{topic!r}] is neither a schema's text nor the path of a file that can be read:"
            f" {error}"
        ) from error
