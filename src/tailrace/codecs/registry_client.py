"""HTTP client of a schema registry, built on the client of confluent-kafka.

Error messages contain no secrets. ``_session`` creates a new client of confluent-kafka each time, because requests are
rare and a client of confluent-kafka is bound to one event loop.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit, urlunsplit

from anyio.to_thread import run_sync

from tailrace.codecs.wire_format import Schema
from tailrace.context_managers import asynccontextmanager
from tailrace.errors import ConfigurationError, PublishError, SchemaRegistryError
from tailrace.installation import install_hint
from tailrace.observe.events import CredentialsUnencrypted
from tailrace.observe.hooks import Observer
from tailrace.values import Hidden

__all__ = ["Auth", "Credentials", "RegistryClient", "Tls", "not_installed"]

Credentials: TypeAlias = tuple[str, str] | str
"""User and password, or a bearer token."""
Auth: TypeAlias = Credentials | Callable[[], Credentials | Awaitable[Credentials]]
"""Credentials, or a plain or async function that returns them."""

_NOT_FOUND, _CONFLICT, _UNPROCESSABLE = 404, 409, 422
_NOT_FOUND_CODES = range(40400, 40500)
"""Error codes in the registry's answers for a subject, version or schema that does not exist."""
_DENIED = frozenset({401, 403})
_UNAVAILABLE = frozenset({408, 429, 502, 503, 504})
_SERIALIZED = "serialized"
"""Value of the request parameter ``format`` with which Protobuf schemas are returned in compiled form, not as source.

The compiled form is a file descriptor in base64; the source is the text of a .proto file.
"""
_MAX_ANSWER_BYTES = 16 << 20
"""Maximum size of an answer of a registry; schemas are limited to a smaller size, in characters."""
_MAX_MESSAGE_CHARS = 200
_MAX_REFERENCES = 1000


@dataclass(frozen=True, slots=True)
class Tls:
    """Options for HTTPS; the options of ``Consumer`` with these names have the same meanings."""

    ssl_cafile: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_password: Hidden | None = field(default=None, repr=False)


class RegistryClient:
    """Client of one registry, which may have several addresses; the first address that is available is used.

    Methods raise SchemaRegistryError if a request fails.

    Args:
        urls: addresses of the registry. An address may contain user and password in place of ``auth``.
        auth: credentials, or a function that returns them; the function is called in each method call.
        timeout_ms: time limit in milliseconds of a method call, in which all addresses are tried and all referenced
            schemas are requested. Reading a Protobuf schema may take twice this time, because a schema that the
            registry returns as .proto source is requested again in compiled form.

    Raises:
        ConfigurationError: the extra is not installed, or an argument is invalid.
    """

    def __init__(self, urls: Hidden, auth: Hidden, tls: Tls, timeout_ms: int) -> None:
        try:
            import confluent_kafka.schema_registry  # noqa: F401, PLC0415 - an extra
        except ImportError as error:
            raise not_installed(error) from error
        parsed = list(map(_parse_url, map(Hidden, urls.value)))
        if not parsed:
            raise ConfigurationError(
                "SchemaRegistry: url is empty - set the address of the registry, such as 'http://localhost:8081'"
            )
        auth_in_url = next((credentials for _, credentials in parsed if credentials.value is not None), None)
        if auth.value is not None and auth_in_url is not None:
            raise ConfigurationError("SchemaRegistry: credentials are in url and in auth= - remove them from url")
        self.urls = tuple(url for url, _ in parsed)
        self._auth = auth if auth_in_url is None else auth_in_url
        self._tls, self._timeout_s = tls, timeout_ms / 1000
        if not callable(self._auth.value):
            _authorization(self._auth)
        if self._auth.value is not None and (plain := [url for url in self.urls if url.startswith("http:")]):
            advice = "use an https:// url for the schema registry"
            Observer().emit(CredentialsUnencrypted(", ".join(plain), advice))

    async def by_id(self, schema_id: int) -> Schema | None:
        """Request the schema with an id; return None if the id does not exist."""

        async def request(client: Any, fmt: str | None) -> tuple[int, Any]:  # noqa: ANN401 - untyped
            return schema_id, await client.get_schema(schema_id, fmt=fmt)

        return await self._request_schema(request)

    async def latest(self, subject: str) -> Schema | None:
        """Request the newest schema of a subject; return None if the subject does not exist."""

        async def request(client: Any, fmt: str | None) -> tuple[int, Any]:  # noqa: ANN401
            version = await client.get_latest_version(subject, fmt=fmt)
            return version.schema_id, version.schema

        return await self._request_schema(request)

    async def look_up(self, subject: str, schema: Any) -> tuple[int, int] | None:  # noqa: ANN401
        """Request the id of a schema and its version in a subject; return None if the subject does not contain it.

        ``schema`` is a ``Schema`` of confluent-kafka.
        """
        async with self._session() as client:
            try:
                found = await client.lookup_schema(subject, schema)
            except _confluent_error() as error:
                if _is_not_found(error):
                    return None
                raise
            return found.schema_id, found.version

    async def may_belong_to(self, subject: str, schema_id: int) -> bool:
        """Return False if the subject exists and no version of it, not even a deleted one, has the schema id.

        ``subject`` may be an alias of a subject.
        """
        async with self._session() as client:
            # The request for the subjects of a schema id would suffice, but Karapace does not support it. Deleted
            # versions count, because records that were written with them may still exist.
            versions = await _none_if_not_found(client.get_schema_versions(schema_id, deleted=True))
            subjects = {_without_context(one.subject) for one in versions or ()}
            if subject in subjects:
                return True
            latest = await _none_if_not_found(client.get_latest_version(subject))
            # If ``subject`` is an alias, ``latest.subject`` is the subject to which the alias refers.
            return latest is None or latest.schema_id == schema_id or _without_context(latest.subject) in subjects

    async def register(self, subject: str, schema: Any) -> None:  # noqa: ANN401
        """Register a schema under a subject, unless the subject contains it already.

        ``schema`` is a ``Schema`` of confluent-kafka.

        Raises:
            PublishError: the registry rejects the schema as invalid or incompatible with earlier versions.
            SchemaRegistryError: the request failed.
        """
        async with self._session() as client:
            try:
                await client.register_schema(subject, schema)
            except _confluent_error() as error:
                if error.http_status_code in {_CONFLICT, _UNPROCESSABLE}:
                    raise PublishError(
                        f"the schema registry rejects the schema for {subject!r}: {_shortened(error.error_message)}"
                        " - correct the schema, or change the compatibility level of the subject"
                    ) from error
                raise

    async def _request_schema(self, request: Callable[[Any, str | None], Awaitable[tuple[int, Any]]]) -> Schema | None:
        """Request a schema and the schemas that it references; return None if the schema does not exist.

        A Protobuf schema is returned as .proto source if the registry cannot return it in compiled form.

        Args:
            request: requests the schema; called with a client of confluent-kafka and the request parameter ``format``,
                and returns the schema id and a ``Schema`` of confluent-kafka.
        """
        async with self._session() as client:
            try:
                schema_id, answer = await request(client, None)
            except _confluent_error() as error:
                if _is_not_found(error):
                    return None
                raise
            schema = await _with_references(client, schema_id, answer, None)
        if schema.kind != "PROTOBUF" or _is_compiled(schema):
            return schema
        # The first client has cached the .proto source, so another client is needed.
        async with self._session() as client:
            try:
                schema_id, answer = await request(client, _SERIALIZED)
                compiled = await _with_references(client, schema_id, answer, _SERIALIZED)
            except _confluent_error() as error:
                if error.http_status_code in _UNAVAILABLE or error.http_status_code in _DENIED:
                    raise
                return schema
        return compiled if _is_compiled(compiled) else schema

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Any]:
        """Open a client of confluent-kafka for the duration of a context, at most for ``timeout_ms``."""
        from confluent_kafka.schema_registry import AsyncSchemaRegistryClient  # noqa: PLC0415 - an extra

        where = ", ".join(self.urls)
        try:
            async with asyncio.timeout(self._timeout_s):
                authorization = await self._current_authorization()
                # In a thread, because the constructor reads certificates.
                async with aclosing(await run_sync(self._new_client, AsyncSchemaRegistryClient)) as client:
                    session = client._rest_client.session
                    session.headers["Accept-Encoding"] = "identity"  # so that the size of an answer is known
                    session.event_hooks["response"].append(_limit_answer)
                    if authorization.value is not None:
                        session.auth = _Authorize(authorization)
                    yield client
        except (PublishError, SchemaRegistryError):
            raise
        except TimeoutError as error:
            raise SchemaRegistryError(
                f"the schema registry at {where} did not answer within {self._timeout_s:g} s"
                " - check whether it is overloaded, or raise timeout_ms"
            ) from error
        except _confluent_error() as error:
            if error.http_status_code in _DENIED:
                raise SchemaRegistryError(
                    f"the schema registry at {where} denied access (HTTP {error.http_status_code}) - check auth="
                ) from error
            is_other_server = error.http_status_code == _NOT_FOUND and not _is_not_found(error)
            advice = "check the url" if is_other_server else "see the log of the registry"
            raise SchemaRegistryError(
                f"the schema registry at {where} answered with HTTP {error.http_status_code}:"
                f" {_shortened(error.error_message)} - {advice}"
            ) from error
        except Exception as error:  # httpx also raises errors of other libraries.
            raise SchemaRegistryError(
                f"a request to the schema registry at {where} failed: {type(error).__name__}: {_shortened(str(error))}"
                " - check that the registry is running and that the url is correct"
            ) from error

    def _new_client(self, kind: Any) -> Any:  # noqa: ANN401 - a class of an extra
        """Return a client of confluent-kafka without credentials, which must not be in its local variables."""
        tls = self._tls
        # Without HTTPS, no certificates are read, which would take time.
        cafile: str | bool | None = tls.ssl_cafile if any(url.startswith("https:") for url in self.urls) else False
        conf: dict[str, object] = {
            "url": ",".join(self.urls),
            # Each address gets an equal part of the time, so that an address that does not answer leaves time for the
            # other addresses.
            "timeout": self._timeout_s / len(self.urls),
            # Retries are left to the callers, such as the app, which retries the record.
            "max.retries": 0,
        }
        client = kind(conf if cafile is None else {**conf, "ssl.ca.location": cafile})
        password = tls.ssl_password
        if tls.ssl_certfile is not None:
            client._rest_client.verify.load_cert_chain(
                tls.ssl_certfile, tls.ssl_keyfile, None if password is None else lambda: password.value
            )
        elif tls.ssl_keyfile is not None or password is not None:
            raise ValueError("ssl_keyfile and ssl_password need ssl_certfile")
        return client

    async def _current_authorization(self) -> Hidden:
        """Return the value of the header ``Authorization``; None if the registry needs none."""
        auth = self._auth
        if not callable(auth.value):
            return _authorization(auth)
        try:
            returned = auth.value()
            auth = Hidden(await returned if inspect.isawaitable(returned) else returned)
            returned = None
        except Exception as error:
            raise SchemaRegistryError(
                f"the function auth= of the schema registry raised {type(error).__name__} - it must return credentials"
            ) from error
        try:
            return _authorization(auth)
        except ConfigurationError as error:
            raise SchemaRegistryError(
                "the function auth= of the schema registry returned invalid credentials"
                " - it must return ('user', 'password') or a bearer token; the user must not contain ':'"
            ) from error


class _Authorize:
    """Function that adds credentials to a request of httpx."""

    __slots__ = ("_authorization",)

    def __init__(self, authorization: Hidden) -> None:
        self._authorization = authorization

    def __call__(self, request: Any) -> Any:  # noqa: ANN401 - httpx's
        request.headers["Authorization"] = self._authorization.value
        return request


async def _limit_answer(response: Any) -> None:  # noqa: ANN401 - httpx's
    """Have an error raised when more bytes of an answer are read than a registry sends."""
    # Confluent's client uses httpx or httpx2, which check that a stream is of their own base class.
    base = next(one for one in type(response.stream).__mro__ if one.__name__ == "AsyncByteStream")
    response.stream = type("LimitedByteStream", (_LimitedStream, base), {})(response.stream)


class _LimitedStream:
    """Body of an answer, which raises SchemaRegistryError if it is too large."""

    def __init__(self, stream: Any) -> None:  # noqa: ANN401 - httpx's
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._stream:
            size += len(chunk)
            if size > _MAX_ANSWER_BYTES:
                raise SchemaRegistryError(
                    f"an answer of the schema registry is larger than {_MAX_ANSWER_BYTES >> 20} MiB - check the url,"
                    " or split the schema"
                )
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


def not_installed(error: ImportError) -> ConfigurationError:
    """Return the error for a package of the extra ``schema-registry`` that cannot be imported."""
    return ConfigurationError(
        f"SchemaRegistry needs {error.name or 'confluent-kafka'}, which is not installed"
        f" - {install_hint('schema-registry')}"
    )


def _confluent_error() -> Any:  # noqa: ANN401 - a class of an extra
    """Return the exception class with which confluent-kafka reports an error answer of a registry."""
    from confluent_kafka.schema_registry import SchemaRegistryError as ConfluentError  # noqa: PLC0415 - an extra

    return ConfluentError


def _is_not_found(error: Any) -> bool:  # noqa: ANN401 - untyped
    """Return True if the requested schema or subject does not exist; False for other errors.

    A proxy, or a server that is not a registry, answers with the same HTTP status, but without a registry's error code.
    """
    return error.http_status_code == _NOT_FOUND and error.error_code in _NOT_FOUND_CODES


async def _none_if_not_found(request: Awaitable[Any]) -> Any:  # noqa: ANN401 - untyped
    """Await a request and return its result; None if the requested schema or subject does not exist."""
    try:
        return await request
    except _confluent_error() as error:
        if _is_not_found(error):
            return None
        raise


def _without_context(subject: str) -> str:
    """Return the name of a subject without its context: ``name`` for ``:.context:name``."""
    return subject.split(":", 2)[-1] if subject.startswith(":.") else subject


async def _with_references(client: Any, schema_id: int, root: Any, fmt: str | None) -> Schema:  # noqa: ANN401
    """Request all schemas that ``root`` references, directly and indirectly, and return ``root`` with them.

    ``client`` and ``root`` are a client and a ``Schema`` of confluent-kafka; ``fmt`` is the request parameter
    ``format``.
    """
    references: dict[str, str] = {}
    visited: set[str] = set()

    async def request_references(schema: Any) -> None:  # noqa: ANN401
        for one in schema.references or ():
            if one.name in visited:
                continue
            if len(visited) >= _MAX_REFERENCES:
                raise SchemaRegistryError(
                    f"schema {schema_id} references more than {_MAX_REFERENCES} schemas, which is the limit of this"
                    " client - publish with a schema that references fewer"
                )
            visited.add(one.name)
            # True: deleted versions are included, because records that were written with them may still exist.
            referenced = await client.get_version(one.subject, one.version, True, fmt)
            await request_references(referenced.schema)
            references[one.name] = referenced.schema.schema_str or ""

    await request_references(root)
    return Schema(
        schema_id,
        root.schema_type or "AVRO",
        root.schema_str or "",
        references,
        read_rules=_rules(root.rule_set, "READ"),
        write_rules=_rules(root.rule_set, "WRITE"),
    )


def _rules(rule_set: Any, mode: str) -> list[str]:  # noqa: ANN401
    """Return the names of the enabled rules that apply in ``mode``, which is READ or WRITE."""
    if rule_set is None:
        return []
    rules = [*(rule_set.domain_rules or ()), *(getattr(rule_set, "encoding_rules", None) or ())]
    return [
        rule.name or rule.type or "without a name"
        for rule in rules
        if not rule.disabled and rule.mode is not None and rule.mode.value in {mode, "WRITEREAD"}
    ]


def _is_compiled(schema: Schema) -> bool:
    """Return True if a Protobuf schema and the schemas that it references are in compiled form."""
    from tailrace.codecs.protobuf import decode_compiled  # noqa: PLC0415 - an extra

    return all(decode_compiled("", text) is not None for text in (schema.text, *schema.references.values()))


def _parse_url(url: Hidden) -> tuple[str, Hidden]:
    """Return an address without its credentials, and the credentials; None if it contains none.

    Error messages do not contain the address, because it may contain a password.
    """
    if not isinstance(url.value, str) or not url.value.startswith(("http://", "https://")):
        raise ConfigurationError(
            "SchemaRegistry: url must begin with http:// or https://, such as 'http://localhost:8081'"
        )
    split = Hidden(urlsplit(url.value))
    if not split.value.hostname:
        raise ConfigurationError("SchemaRegistry: url must contain a host, such as 'http://localhost:8081'")
    host = split.value.netloc.rpartition("@")[2]
    bare = urlunsplit((split.value.scheme, host, split.value.path.rstrip("/"), "", ""))
    if split.value.username is None:
        return bare, Hidden(None)
    return bare, Hidden((unquote(split.value.username), unquote(split.value.password or "")))


def _authorization(credentials: Hidden) -> Hidden:
    """Return the value of the header ``Authorization``; None for None.

    Raises:
        ConfigurationError: the credentials are neither a user and password nor a token.
    """
    match credentials.value:
        case None:
            return Hidden(None)
        case str() if credentials.value:
            return Hidden(f"Bearer {credentials.value}")
        case (str(), str()) if ":" not in credentials.value[0]:
            return Hidden("Basic " + base64.b64encode(":".join(credentials.value).encode()).decode())
    raise ConfigurationError(
        "SchemaRegistry: auth must be ('user', 'password'), a bearer token, or a function that"
        " returns one of them; the user must not contain ':'"
    )


def _shortened(message: object) -> str:
    text = " ".join(str(message).split())
    return text if len(text) <= _MAX_MESSAGE_CHARS else f"{text[: _MAX_MESSAGE_CHARS - 1]}…"
