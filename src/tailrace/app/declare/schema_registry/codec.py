"""``SchemaRegistry``, the codec for values in Confluent's wire format, and its options.

``decoders`` resolves schema ids, ``encoders`` selects the schema of a value, ``formats`` and ``protobuf`` read and
write payloads.
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
    """Codec for values whose schemas are in a registry: ``App(codec=SchemaRegistry("http://localhost:8081"))``.

    The annotation of a handler selects the type to decode to: ``dict``, a ``msgspec.Struct``, dataclass or pydantic
    model; for protobuf a generated class, or a union of several. ``bytes`` are passed unchanged, in both directions.

    A schema is fetched when its id is first seen. While the registry cannot be reached, the record and its lane wait. A
    value that is not in the wire format, does not decode, or whose schema id does not exist or belongs to another
    subject raises DecodeError.

    Args:
        url: address of the registry, or several.
        format: ``"avro"``, ``"json"`` or ``"protobuf"``.
        auth: ``("user", "secret")``, a bearer token, or a function, ``async`` or not, that returns one of them.
        schemas: schemas to write with, by topic: the text of a schema, or the path of its file. Not needed for
            protobuf, whose classes contain their schemas.
        use_latest_version: write with the newest schema of the subject. Without it, topics that are not in ``schemas``
            do so, too, except with protobuf.
        auto_register: register schemas that are not registered yet, instead of raising PublishError.
        subject: naming strategy of subjects: ``"topic"`` is ``{topic}-value``, ``"record"`` the name of the schema,
            ``"topic_record"`` is ``{topic}-{name}``. If the registry has the subject, the schema id of a record must
            belong to one of its versions.
        keys: encode and decode keys, too, under ``{topic}-key``; their schemas are ``schemas["{topic}-key"]``.
        validate: validate JSON against its schema when reading; it is always validated when writing.
        timeout_ms: time limit of a request to the registry.
        ssl_cafile: trusted certificates, as in the options of ``Consumer``.
        ssl_certfile: client certificate, as in the options of ``Consumer``.
        ssl_keyfile: key of the client certificate, as in the options of ``Consumer``.
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
        for name, value, choices in (("format", format, FormatName), ("subject", subject, SubjectName)):
            if value not in get_args(choices):
                known = ", ".join(map(repr, get_args(choices)))
                raise ConfigurationError(f"SchemaRegistry: {name} must be one of {known}, not {value!r}")
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
        """Return the reader of values, or of keys; it refuses schema ids of other subjects."""
        return self._keys if is_key else self._values

    def decoder(self, annotation: Any, /) -> Decode:  # noqa: ANN401 - any type
        """Return a decoder of a type, for bytes whose schema is fetched (see ``lacks``).

        Raises:
            TypeError: the format does not support the type.
        """
        return self._readers.decoder(annotation)

    def lacks(self, data: bytes, /) -> bool:
        """Return True if the schema of these bytes must be fetched before they are decoded."""
        return self._readers.lacks(data)

    async def fetch(self, data: bytes, /) -> None:
        """Fetch the schema of these bytes; if it does not exist, decoding raises.

        Raises:
            SchemaRegistryError: the request failed.
        """
        await self._readers.fetch(data)

    def encode(self, value: Any, /) -> bytes:  # noqa: ANN401
        """Return bytes unchanged; other values need a topic, see ``encode_for``.

        Raises:
            TypeError: the value is not bytes.
        """
        if isinstance(value, bytes):
            return value
        raise TypeError("which schema a value is written with depends on its topic - publish it by an app or a handler")

    async def encode_for(self, topic: str, value: Any, *, is_key: bool = False) -> bytes:  # noqa: ANN401
        """Encode a value, or a key, in the wire format; return bytes unchanged.

        Raises:
            PublishError: no schema is registered for the value, or it does not match the schema.
            SchemaRegistryError: the request failed.
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
        except Exception:  # noqa: BLE001 - formats raise any error for a schema without a name
            return None


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(f"SchemaRegistry: {name} must be a positive integer, not {value!r}")


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
    """Return the text of a schema; text begins with a brace, bracket or quotation mark, anything else is a path."""
    if isinstance(given, str) and given.lstrip().startswith(("{", "[", '"')):
        return given
    try:
        return Path(given).read_text(encoding="utf-8")
    except (OSError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"SchemaRegistry: schemas[{topic!r}] is neither a schema's text nor the path of a file that can be read:"
            f" {error}"
        ) from error
