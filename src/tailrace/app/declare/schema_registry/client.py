"""HTTP client of a schema registry, built on the client of confluent-kafka.

If a request fails, SchemaRegistryError is raised; its message contains no secrets. A new client of confluent-kafka is
created for each request, because requests are rare and such a client is bound to an event loop.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit, urlunsplit

from anyio.to_thread import run_sync

from tailrace.app.declare.schema_registry.schema import Schema
from tailrace.errors import ConfigurationError, PublishError, SchemaRegistryError
from tailrace.extras import install_hint
from tailrace.observe.events import CredentialsUnencrypted
from tailrace.observe.hooks import Observer

__all__ = ["Auth", "Credentials", "RegistryClient", "Tls", "not_installed"]

Credentials: TypeAlias = tuple[str, str] | str
"""User and password, or a bearer token."""
Auth: TypeAlias = Credentials | Callable[[], Credentials | Awaitable[Credentials]]

_NOT_FOUND, _CONFLICT, _UNPROCESSABLE = 404, 409, 422
_NOT_FOUND_CODES = range(40400, 40500)
"""Error codes of a registry for a subject, version or schema that does not exist."""
_DENIED = frozenset({401, 403})
_UNAVAILABLE = frozenset({408, 429, 502, 503, 504})
_SERIALIZED = "serialized"
"""Value of ``format`` for which a registry returns compiled protobuf instead of .proto source."""
_MAX_MESSAGE_CHARS = 200
_MAX_REFERENCES = 1000


@dataclass(frozen=True, slots=True)
class Tls:
    """Options for HTTPS, with the names and meanings of the consumer's options."""

    ssl_cafile: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_password: str | None = field(default=None, repr=False)


class RegistryClient:
    """Client of one registry; a request is answered by the first address that is available.

    Args:
        urls: addresses of the registry. An address may contain user and password instead of ``auth``.
        auth: credentials, or a function that returns them and is called before each request.
        tls: options for HTTPS.
        timeout_ms: time limit for one schema, over all addresses and all schemas that it references. Reading a Protobuf
            schema may take twice this time, because .proto source is requested again in compiled form.

    Raises:
        ConfigurationError: the extra is not installed, or an argument is invalid.
    """

    def __init__(self, urls: Sequence[str], auth: Auth | None, tls: Tls, timeout_ms: int) -> None:
        try:
            import confluent_kafka.schema_registry  # noqa: F401, PLC0415 - an extra
        except ImportError as error:
            raise not_installed(error) from error
        parsed = [_parse_url(url) for url in urls]
        if not parsed:
            raise ConfigurationError(
                "SchemaRegistry: url is empty - set the address of the registry, such as 'http://localhost:8081'"
            )
        auth_in_url = next((credentials for _, credentials in parsed if credentials is not None), None)
        if auth is not None and auth_in_url is not None:
            raise ConfigurationError("SchemaRegistry: credentials are in url and in auth= - remove them from url")
        self.urls = tuple(url for url, _ in parsed)
        self._auth = auth_in_url if auth is None else auth
        self._tls, self._timeout_s = tls, timeout_ms / 1000
        if self._auth is not None and not callable(self._auth):
            _authorization(self._auth)
        if self._auth is not None and (plain := [url for url in self.urls if url.startswith("http:")]):
            advice = "use an https:// url for the schema registry"
            Observer().emit(CredentialsUnencrypted(", ".join(plain), advice))

    async def by_id(self, schema_id: int) -> Schema | None:
        """Return the schema with an id; None if the id does not exist.

        Raises:
            SchemaRegistryError: the request failed.
        """

        async def get(client: Any, form: str | None) -> tuple[int, Any]:  # noqa: ANN401 - untyped
            return schema_id, await client.get_schema(schema_id, fmt=form)

        return await self._schema(get)

    async def latest(self, subject: str) -> Schema | None:
        """Return the newest schema of a subject; None if the subject does not exist.

        Raises:
            SchemaRegistryError: the request failed.
        """

        async def get(client: Any, form: str | None) -> tuple[int, Any]:  # noqa: ANN401
            found = await client.get_latest_version(subject, fmt=form)
            return found.schema_id, found.schema

        return await self._schema(get)

    async def id_of(self, subject: str, schema: Any) -> tuple[int, int] | None:  # noqa: ANN401
        """Return the id and version of confluent-kafka's ``Schema`` in a subject; None if it is not registered there.

        Raises:
            SchemaRegistryError: the request failed.
        """
        async with self._session() as client:
            try:
                found = await client.lookup_schema(subject, schema)
            except _error_of_registry() as error:
                if _is_not_found(error):
                    return None
                raise
            return found.schema_id, found.version

    async def may_belong_to(self, subject: str, schema_id: int) -> bool:
        """Return True if a version of a subject, even a deleted one, has this id, or the subject does not exist.

        Raises:
            SchemaRegistryError: the request failed.
        """
        async with self._session() as client:
            # Requests .../versions, because Karapace does not serve .../subjects. Deleted versions count, because
            # records that were written with them may still exist.
            found = await _none_if_not_found(client.get_schema_versions(schema_id, deleted=True))
            subjects = {_without_context(one.subject) for one in found or ()}
            if subject in subjects:
                return True
            latest = await _none_if_not_found(client.get_latest_version(subject))
            # For an alias, the registry returns the name of the aliased subject.
            return latest is None or latest.schema_id == schema_id or _without_context(latest.subject) in subjects

    async def register(self, subject: str, schema: Any) -> None:  # noqa: ANN401
        """Register a ``Schema`` of confluent-kafka under a subject, unless the subject contains it already.

        Raises:
            PublishError: the registry rejects the schema as invalid or incompatible with earlier versions.
            SchemaRegistryError: the request failed.
        """
        async with self._session() as client:
            try:
                await client.register_schema(subject, schema)
            except _error_of_registry() as error:
                if error.http_status_code in {_CONFLICT, _UNPROCESSABLE}:
                    raise PublishError(
                        f"the schema registry rejects the schema for {subject!r}: {_shortened(error.error_message)}"
                        " - correct the schema, or change the compatibility level of the subject"
                    ) from error
                raise

    async def _schema(self, get: Callable[[Any, str | None], Awaitable[tuple[int, Any]]]) -> Schema | None:
        async with self._session() as client:
            try:
                schema_id, found = await get(client, None)
            except _error_of_registry() as error:
                if _is_not_found(error):
                    return None
                raise
            schema = await _with_references(client, schema_id, found, None)
        if schema.kind != "PROTOBUF" or _is_compiled(schema):
            return schema
        # Requires a new client, because the first one has cached the answer with the .proto source.
        async with self._session() as client:
            try:
                schema_id, found = await get(client, _SERIALIZED)
                compiled = await _with_references(client, schema_id, found, _SERIALIZED)
            except _error_of_registry() as error:
                if error.http_status_code in _UNAVAILABLE or error.http_status_code in _DENIED:
                    raise
                return schema
        return compiled if _is_compiled(compiled) else schema

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Any]:
        """Yield a client of confluent-kafka; raise any error of the body but PublishError as SchemaRegistryError."""
        from confluent_kafka.schema_registry import AsyncSchemaRegistryClient  # noqa: PLC0415 - an extra

        where = ", ".join(self.urls)
        try:
            async with asyncio.timeout(self._timeout_s):
                conf = await self._conf()
                # In a thread, because the constructor reads certificates.
                async with aclosing(await run_sync(AsyncSchemaRegistryClient, conf)) as client:
                    yield client
        except (PublishError, SchemaRegistryError):
            raise
        except TimeoutError as error:
            raise SchemaRegistryError(
                f"the schema registry at {where} did not answer within {self._timeout_s:g} s"
                " - check whether it is overloaded, or raise timeout_ms"
            ) from error
        except _error_of_registry() as error:
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
        except Exception as error:  # httpx raises errors of several libraries
            raise SchemaRegistryError(
                f"a request to the schema registry at {where} failed: {type(error).__name__}: {_shortened(str(error))}"
                " - check that the registry is running and that the url is correct"
            ) from error

    async def _conf(self) -> dict[str, object]:
        tls = self._tls
        # Without HTTPS, certificates are not needed, and reading them takes time.
        cafile: str | bool | None = tls.ssl_cafile if any(url.startswith("https:") for url in self.urls) else False
        conf: dict[str, object] = {
            "url": ",".join(self.urls),
            "ssl.ca.location": cafile,
            "ssl.certificate.location": tls.ssl_certfile,
            "ssl.key.location": tls.ssl_keyfile,
            "ssl.key.password": tls.ssl_password,
            # If one address does not answer, there is time left for the others.
            "timeout": self._timeout_s / len(self.urls),
            # Callers retry.
            "max.retries": 0,
        }
        auth = self._auth
        if callable(auth):
            try:
                returned = auth()
                auth = await returned if inspect.isawaitable(returned) else returned
            except Exception as error:
                raise SchemaRegistryError(
                    f"the function auth= of the schema registry raised {type(error).__name__}"
                    " - it must return credentials"
                ) from error
        if auth is not None:
            conf |= _authorization(auth)
        return {name: value for name, value in conf.items() if value is not None}


def not_installed(error: ImportError) -> ConfigurationError:
    """Return the error for a missing extra."""
    return ConfigurationError(
        f"SchemaRegistry needs {error.name or 'confluent-kafka'}, which is not installed"
        f" - {install_hint('schema-registry')}"
    )


def _error_of_registry() -> Any:  # noqa: ANN401 - a class of an extra
    from confluent_kafka.schema_registry import SchemaRegistryError as ErrorOfRegistry  # noqa: PLC0415 - an extra

    return ErrorOfRegistry


def _is_not_found(error: Any) -> bool:  # noqa: ANN401 - untyped
    """Return True if the registry has no such schema or subject; False for the 404 of a proxy or a wrong path."""
    return error.http_status_code == _NOT_FOUND and error.error_code in _NOT_FOUND_CODES


async def _none_if_not_found(request: Awaitable[Any]) -> Any:  # noqa: ANN401 - untyped
    """Return the result of a request; None if the registry has no such schema or subject."""
    try:
        return await request
    except _error_of_registry() as error:
        if _is_not_found(error):
            return None
        raise


def _without_context(subject: str) -> str:
    """Return the name of a subject without its context, which precedes it as in ``:.context:name``."""
    return subject.split(":", 2)[-1] if subject.startswith(":.") else subject


async def _with_references(client: Any, schema_id: int, found: Any, form: str | None) -> Schema:  # noqa: ANN401
    """Return a schema with all schemas that it references, directly and indirectly."""
    references: dict[str, str] = {}
    visited: set[str] = set()

    async def follow(schema: Any) -> None:  # noqa: ANN401
        for one in schema.references or ():
            if one.name in visited:
                continue
            if len(visited) >= _MAX_REFERENCES:
                raise ValueError(f"schema {schema_id} references more than {_MAX_REFERENCES} schemas")
            visited.add(one.name)
            # True: deleted versions are included, because records that were written with them may still exist.
            needed = await client.get_version(one.subject, one.version, True, form)
            await follow(needed.schema)
            references[one.name] = needed.schema.schema_str or ""

    await follow(found)
    return Schema(
        schema_id,
        found.schema_type or "AVRO",
        found.schema_str or "",
        references,
        read_rules=_rules(found.rule_set, "READ"),
        write_rules=_rules(found.rule_set, "WRITE"),
    )


def _rules(rule_set: Any, mode: str) -> list[str]:  # noqa: ANN401
    """Return the names of the enabled rules for ``mode``, which is READ or WRITE."""
    if rule_set is None:
        return []
    rules = [*(rule_set.domain_rules or ()), *(getattr(rule_set, "encoding_rules", None) or ())]
    return [
        rule.name or rule.type or "without a name"
        for rule in rules
        if not rule.disabled and rule.mode is not None and rule.mode.value in {mode, "WRITEREAD"}
    ]


def _is_compiled(schema: Schema) -> bool:
    from tailrace.app.declare.schema_registry.protobuf import decode_compiled  # noqa: PLC0415 - an extra

    return all(decode_compiled("", text) is not None for text in (schema.text, *schema.references.values()))


def _parse_url(url: object) -> tuple[str, Credentials | None]:
    """Return an address without its credentials, and the credentials.

    Errors do not contain the address, because it may contain a password.
    """
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise ConfigurationError(
            "SchemaRegistry: url must begin with http:// or https://, such as 'http://localhost:8081'"
        )
    split = urlsplit(url)
    if not split.hostname:
        raise ConfigurationError("SchemaRegistry: url must contain a host, such as 'http://localhost:8081'")
    bare = urlunsplit((split.scheme, split.netloc.rpartition("@")[2], split.path.rstrip("/"), "", ""))
    if split.username is None:
        return bare, None
    return bare, (unquote(split.username), unquote(split.password or ""))


def _authorization(given: object) -> dict[str, object]:
    """Return credentials as options of the client of confluent-kafka."""
    if isinstance(given, str) and given:
        return {
            "bearer.auth.credentials.source": "STATIC_TOKEN",
            "bearer.auth.token": given,
            "bearer.auth.logical.cluster": "",
        }
    if isinstance(given, tuple | list) and len(given) == 2 and all(isinstance(one, str) for one in given):
        user, secret = given
        if ":" not in user:
            return {"basic.auth.user.info": f"{user}:{secret}"}
    raise ConfigurationError(
        "SchemaRegistry: auth must be ('user', 'password'), a bearer token, or a function that"
        " returns one of them; the user must not contain ':'"
    )


def _shortened(message: object) -> str:
    text = " ".join(str(message).split())
    return text if len(text) <= _MAX_MESSAGE_CHARS else f"{text[: _MAX_MESSAGE_CHARS - 1]}…"
