"""HTTP client of a schema registry, built on confluent-kafka's.

Each request returns or raises SchemaRegistryError within ``timeout_ms``, and no message contains a secret. Each request
uses a new confluent client: requests are rare, and nothing stays bound to an event loop.
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
"""User and secret, or a bearer token."""
Auth: TypeAlias = Credentials | Callable[[], Credentials | Awaitable[Credentials]]

_NOT_FOUND, _CONFLICT, _UNPROCESSABLE = 404, 409, 422
_UNKNOWN = range(40400, 40500)
"""Error codes of a registry for a subject, version or schema that does not exist."""
_REFUSED = frozenset({401, 403})
_OTHER_FORM = "serialized"
"""Value of ``format`` for which a registry returns compiled protobuf instead of source text."""
_MOST_OF_A_MESSAGE = 200
_MOST_REFERENCES = 1000


@dataclass(frozen=True, slots=True)
class Tls:
    """Files for HTTPS; same names as the consumer's options."""

    ssl_cafile: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_password: str | None = field(default=None, repr=False)


class RegistryClient:
    """Client of one registry, which uses the first of its addresses that answers.

    Args:
        urls: addresses of the registry; they may contain user and secret instead of ``auth``.
        auth: credentials, or a function that returns them, called before each request.
        tls: certificates for HTTPS.
        timeout_ms: time limit of a request, all addresses included.

    Raises:
        ConfigurationError: the extra is not installed, or an argument is invalid.
    """

    def __init__(self, urls: Sequence[str], auth: Auth | None, tls: Tls, timeout_ms: int) -> None:
        try:
            import confluent_kafka.schema_registry  # noqa: F401, PLC0415 - an extra
        except ImportError as error:
            raise not_installed(error) from error
        parsed = [_checked(url) for url in urls]
        if not parsed:
            raise ConfigurationError("SchemaRegistry: no url - say where it is, such as 'http://localhost:8081'")
        in_urls = next((given for _, given in parsed if given is not None), None)
        if auth is not None and in_urls is not None:
            raise ConfigurationError("SchemaRegistry: credentials in the url and in auth= - say them once")
        self.urls = tuple(url for url, _ in parsed)
        self._auth = in_urls if auth is None else auth
        self._tls, self._timeout_s = tls, timeout_ms / 1000
        if self._auth is not None and not callable(self._auth):
            _authorization(self._auth)
        if self._auth is not None and (plain := [url for url in self.urls if url.startswith("http:")]):
            advice = "give the schema registry an https:// url"
            Observer().emit(CredentialsUnencrypted(", ".join(plain), advice))

    async def by_id(self, schema_id: int) -> Schema | None:
        """Return the schema of an id; None if the id does not exist.

        Raises:
            SchemaRegistryError: the request failed.
        """

        async def get(client: Any, form: str | None) -> tuple[int, Any]:  # noqa: ANN401 - confluent's
            return schema_id, await client.get_schema(schema_id, fmt=form)

        return await self._schema(get)

    async def latest(self, subject: str) -> Schema | None:
        """Return the newest schema of a subject; None if it has none.

        Raises:
            SchemaRegistryError: the request failed.
        """

        async def get(client: Any, form: str | None) -> tuple[int, Any]:  # noqa: ANN401
            found = await client.get_latest_version(subject, fmt=form)
            return found.schema_id, found.schema

        return await self._schema(get)

    async def id_of(self, subject: str, schema: Any) -> tuple[int, int] | None:  # noqa: ANN401
        """Return id and version of confluent's ``Schema`` under a subject; None if it is not registered there.

        Raises:
            SchemaRegistryError: the request failed.
        """
        async with self._asking() as client:
            try:
                found = await client.lookup_schema(subject, schema)
            except _error_of_registry() as error:
                if _is_unknown(error):
                    return None
                raise
            return found.schema_id, found.version

    async def may_be_of(self, subject: str, schema_id: int) -> bool:
        """Return True if an id belongs to a version of a subject, even a deleted one, or the subject does not exist.

        Raises:
            SchemaRegistryError: the request failed.
        """
        async with self._asking() as client:
            # /versions, since Karapace has no /subjects. Deleted versions count: records written with them remain.
            found = await _unless_unknown(client.get_schema_versions(schema_id, deleted=True))
            subjects = {_without_context(one.subject) for one in found or ()}
            if subject in subjects:
                return True
            latest = await _unless_unknown(client.get_latest_version(subject))
            # For an alias, the registry returns the aliased subject.
            return latest is None or latest.schema_id == schema_id or _without_context(latest.subject) in subjects

    async def register(self, subject: str, schema: Any) -> None:  # noqa: ANN401
        """Register confluent's ``Schema`` under a subject, unless it is registered there already.

        Raises:
            PublishError: the registry rejects the schema as invalid or incompatible with earlier versions.
            SchemaRegistryError: the request failed.
        """
        async with self._asking() as client:
            try:
                await client.register_schema(subject, schema)
            except _error_of_registry() as error:
                if error.http_status_code in {_CONFLICT, _UNPROCESSABLE}:
                    raise PublishError(
                        f"the schema registry refuses the schema for {subject!r}: {_shortened(error.error_message)}"
                        " - mend it, or change the subject's compatibility"
                    ) from error
                raise

    async def _schema(self, get: Callable[[Any, str | None], Awaitable[tuple[int, Any]]]) -> Schema | None:
        async with self._asking() as client:
            try:
                schema_id, found = await get(client, None)
            except _error_of_registry() as error:
                if _is_unknown(error):
                    return None
                raise
            schema = await _whole(client, schema_id, found, None)
        if schema.kind != "PROTOBUF" or _is_compiled(schema):
            return schema
        # A new client, since the first has cached the answer with the source text.
        async with self._asking() as client:
            try:
                schema_id, found = await get(client, _OTHER_FORM)
                compiled = await _whole(client, schema_id, found, _OTHER_FORM)
            except _error_of_registry() as error:
                if error.http_status_code in _NOT_NOW or error.http_status_code in _REFUSED:
                    raise
                return schema
        return compiled if _is_compiled(compiled) else schema

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[Any]:
        """Yield a client for one request; any failure is raised as SchemaRegistryError."""
        from confluent_kafka.schema_registry import AsyncSchemaRegistryClient  # noqa: PLC0415 - an extra

        where = ", ".join(self.urls)
        try:
            async with asyncio.timeout(self._timeout_s):
                # In a thread, since the constructor reads certificates.
                conf = await self._conf()
                async with aclosing(await run_sync(AsyncSchemaRegistryClient, conf)) as client:
                    yield client
        except (PublishError, SchemaRegistryError):
            raise
        except TimeoutError as error:
            raise SchemaRegistryError(
                f"the schema registry at {where} did not answer within {self._timeout_s:g} s - is it overloaded?"
                " Give it longer by timeout_ms"
            ) from error
        except _error_of_registry() as error:
            if error.http_status_code in _REFUSED:
                raise SchemaRegistryError(
                    f"the schema registry at {where} refused us (HTTP {error.http_status_code}) - check auth="
                ) from error
            is_elsewhere = error.http_status_code == _NOT_FOUND and not _is_unknown(error)
            look = "is the url right?" if is_elsewhere else "what does its log say?"
            raise SchemaRegistryError(
                f"the schema registry at {where} answered with HTTP {error.http_status_code}:"
                f" {_shortened(error.error_message)} - {look}"
            ) from error
        except Exception as error:  # httpx raises errors of many libraries; all are reported alike
            raise SchemaRegistryError(
                f"the schema registry at {where} cannot be asked: {type(error).__name__}: {_shortened(str(error))}"
                " - is it up, and the url right?"
            ) from error

    async def _conf(self) -> dict[str, object]:
        tls = self._tls
        # Without HTTPS, reading certificates would only cost time.
        cafile: str | bool | None = tls.ssl_cafile if any(url.startswith("https:") for url in self.urls) else False
        conf: dict[str, object] = {
            "url": ",".join(self.urls),
            "ssl.ca.location": cafile,
            "ssl.certificate.location": tls.ssl_certfile,
            "ssl.key.location": tls.ssl_keyfile,
            "ssl.key.password": tls.ssl_password,
            # An address that hangs leaves time for the others.
            "timeout": self._timeout_s / len(self.urls),
            # Callers retry.
            "max.retries": 0,
        }
        auth = self._auth
        if callable(auth):
            try:
                given = auth()
                auth = await given if inspect.isawaitable(given) else given
            except Exception as error:
                raise SchemaRegistryError(
                    f"auth= of the schema registry raised {type(error).__name__} - it gives credentials"
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


_NOT_NOW = frozenset({408, 429, 502, 503, 504})


def _error_of_registry() -> Any:  # noqa: ANN401 - a class of an extra
    from confluent_kafka.schema_registry import SchemaRegistryError as Refusal  # noqa: PLC0415 - an extra

    return Refusal


def _is_unknown(error: Any) -> bool:  # noqa: ANN401 - confluent's
    """Return True if the registry itself reports a missing schema; a 404 of a proxy or a wrong path is not that."""
    return error.http_status_code == _NOT_FOUND and error.error_code in _UNKNOWN


async def _unless_unknown(asking: Awaitable[Any]) -> Any:  # noqa: ANN401 - confluent's
    """Return the result of a request; None if the registry has no such schema or subject."""
    try:
        return await asking
    except _error_of_registry() as error:
        if _is_unknown(error):
            return None
        raise


def _without_context(subject: str) -> str:
    """Return the name of a subject, which registries with contexts return as ``:.context:name``."""
    return subject.split(":", 2)[-1] if subject.startswith(":.") else subject


async def _whole(client: Any, schema_id: int, found: Any, form: str | None) -> Schema:  # noqa: ANN401
    """Return a schema with all schemas that it references, directly and indirectly."""
    references: dict[str, str] = {}
    under_way: set[str] = set()

    async def follow(schema: Any) -> None:  # noqa: ANN401
        for one in schema.references or ():
            if one.name in references or one.name in under_way:
                continue
            if len(under_way) >= _MOST_REFERENCES:
                raise ValueError(f"schema {schema_id} refers to more than {_MOST_REFERENCES} others")
            under_way.add(one.name)
            # Deleted versions, too: records written with them remain.
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
    if rule_set is None:
        return []
    rules = [*(rule_set.domain_rules or ()), *(getattr(rule_set, "encoding_rules", None) or ())]
    return [
        rule.name or rule.type or "without a name"
        for rule in rules
        if not rule.disabled and rule.mode is not None and rule.mode.value in {mode, "WRITEREAD"}
    ]


def _is_compiled(schema: Schema) -> bool:
    from tailrace.app.declare.schema_registry.protobuf import compiled  # noqa: PLC0415 - an extra

    return all(compiled("", text) is not None for text in (schema.text, *schema.references.values()))


def _checked(url: object) -> tuple[str, Credentials | None]:
    """Return an address without its credentials, and the credentials."""
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise ConfigurationError(
            "SchemaRegistry: a url begins with http:// or https://, such as 'http://localhost:8081'"
        )
    split = urlsplit(url)
    if not split.hostname:
        raise ConfigurationError("SchemaRegistry: a url names a host, such as 'http://localhost:8081'")
    bare = urlunsplit((split.scheme, split.netloc.rpartition("@")[2], split.path.rstrip("/"), "", ""))
    if split.username is None:
        return bare, None
    return bare, (unquote(split.username), unquote(split.password or ""))


def _authorization(given: object) -> dict[str, object]:
    """Return credentials as options of confluent's client."""
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
        "SchemaRegistry: auth must be ('user', 'secret'), a bearer token, or a function that"
        " gives one of them; a user has no ':'"
    )


def _shortened(message: object) -> str:
    text = " ".join(str(message).split())
    return text if len(text) <= _MOST_OF_A_MESSAGE else f"{text[: _MOST_OF_A_MESSAGE - 1]}…"
