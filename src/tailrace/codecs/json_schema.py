"""JSON payloads with a JSON Schema, and their validation in limited time."""

from __future__ import annotations

import json
import re
import time
import types
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, TypeAlias

import msgspec

from tailrace.codecs.annotations import split_none
from tailrace.codecs.json_codec import JsonCodec
from tailrace.codecs.protocols import Decode
from tailrace.codecs.wire_format import (
    HEADER_SIZE,
    LARGE_VALUE,
    LocalSchema,
    PayloadReader,
    PayloadWriter,
    Schema,
    required_text,
)

__all__ = ["JsonFormat"]

_MAX_SECONDS, _MAX_SECONDS_OF_LARGE = 0.5, 10.0
"""Maximum processor time of the validation of a small and of a large value."""


class JsonFormat:
    """JSON with a JSON Schema, with msgspec and jsonschema.

    Args:
        validate: True to validate values when they are read, too; values are always validated when they are written.
    """

    kind = "JSON"
    is_by_class = False

    def __init__(self, *, validate: bool) -> None:
        import jsonschema  # noqa: PLC0415 - an extra
        import referencing  # noqa: PLC0415
        import referencing.jsonschema  # noqa: PLC0415

        self._validators, self._referencing = jsonschema.validators, referencing
        self._validates = validate

    def check(self, annotation: object) -> None:
        _json_decoder(annotation)

    def reader(self, schema: Schema, annotation: object) -> PayloadReader:
        decode = _json_decoder(annotation)
        if not self._validates:
            return PayloadReader(lambda data: decode(data[HEADER_SIZE:]))
        validate = self._validator(schema)

        def read(data: bytes) -> object:
            payload = data[HEADER_SIZE:]
            validate(payload)
            return decode(payload)

        return PayloadReader(read, is_slow=True)

    def writer(self, schema: Schema, value: object) -> PayloadWriter:  # noqa: ARG002
        def write(value: object) -> bytes:
            # A str is encoded as a JSON string, unlike in JsonCodec.
            return msgspec.json.encode(value) if isinstance(value, str) else JsonCodec().encode(value)

        return PayloadWriter(write, self._validator(schema))

    def local_schemas(self, text: str | None, value: object) -> Mapping[str, LocalSchema]:  # noqa: ARG002
        return {"": LocalSchema(required_text(text))}

    def record_name(self, text: str | None, value: object) -> str:  # noqa: ARG002
        schema = json.loads(required_text(text))
        title = schema.get("title") if isinstance(schema, dict) else None
        if not isinstance(title, str):
            raise ValueError("the schema has no title")  # noqa: TRY004 - the schema is invalid, not an argument
        return title

    def _validator(self, schema: Schema) -> Callable[[bytes], None]:
        root = json.loads(schema.text)
        of_resource = self._referencing.Resource.from_contents
        draft = self._referencing.jsonschema.DRAFT7
        # Registry() gets no retrieval function, so that references are never fetched by URL.
        known = self._referencing.Registry().with_resources(
            [(name, of_resource(json.loads(text), draft)) for name, text in schema.references.items()]
        )
        kind = self._validators.validator_for(root, default=self._validators.Draft7Validator)
        kind.check_schema(root)
        find = _limited_validator(kind)(root, registry=known).iter_errors

        def validate(payload: bytes) -> None:
            limit = _TimeLimit(_MAX_SECONDS if len(payload) <= LARGE_VALUE else _MAX_SECONDS_OF_LARGE)
            token = _TIME_LIMIT.set(limit)
            try:
                for error in find(msgspec.json.decode(payload)):
                    where = ".".join(map(str, error.absolute_path))
                    raise ValueError(f"{where}: {error.message}" if where else error.message)
            except RecursionError:
                raise ValueError("the value is nested too deeply") from None
            finally:
                _TIME_LIMIT.reset(token)

        return validate


class _TimeLimit:
    """Limit of the processor time of a validation, which does not depend on how busy the machine is."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._end = seconds, time.thread_time() + seconds

    def remaining(self) -> float:
        """Return the remaining time in seconds.

        Raises:
            ValueError: no time is left.
        """
        if (remaining := self._end - time.thread_time()) > 0:
            return remaining
        raise ValueError(f"its validation takes longer than {self._seconds:g} s - simplify the value or the schema")


_TIME_LIMIT: ContextVar[_TimeLimit] = ContextVar("time limit of a validation")
_LIMITED_VALIDATORS: dict[Any, Any] = {}


def _limited_validator(kind: Any) -> Any:  # noqa: ANN401 - jsonschema's
    """Return a class that validates like a class of jsonschema, but in limited time.

    The time is checked before each keyword, and in each search for a pattern.
    """
    import attrs  # noqa: PLC0415 - installed with jsonschema
    import jsonschema.validators  # noqa: PLC0415 - an extra

    if kind in _LIMITED_VALIDATORS.values():
        return kind
    if kind in _LIMITED_VALIDATORS:
        return _LIMITED_VALIDATORS[kind]
    copies: dict[Any, Any] = {}
    keywords = {name: _limited_copy(check, copies) for name, check in kind.VALIDATORS.items()}
    keywords["uniqueItems"] = _check_unique_items
    limited = jsonschema.validators.extend(kind, {name: _in_time(check) for name, check in keywords.items()})
    evolve, fields = limited.evolve, [one for one in attrs.fields(limited) if one.init]

    def evolve_limited(self: Any, **changes: Any) -> Any:  # noqa: ANN401
        # A subschema may name another dialect, for which jsonschema would create an unlimited validator.
        evolved = evolve(self, **changes)
        other = _limited_validator(type(evolved))
        return evolved if other is type(evolved) else other(**{one.alias: getattr(evolved, one.name) for one in fields})

    limited.evolve = evolve_limited
    _LIMITED_VALIDATORS[kind] = limited
    return limited


_Keyword: TypeAlias = Callable[[Any, Any, Any, Any], Any]
"""Check of a keyword: called with the validator, the keyword's value, the instance and the schema; yields errors."""


def _in_time(check: _Keyword) -> _Keyword:
    def check_in_time(validator: Any, value: Any, instance: Any, schema: Any) -> Any:  # noqa: ANN401
        _TIME_LIMIT.get().remaining()
        return check(validator, value, instance, schema)

    return check_in_time


def _check_unique_items(validator: Any, value: Any, instance: Any, _schema: Any) -> Iterator[Any]:  # noqa: ANN401
    """Check ``uniqueItems`` in linear time, by the canonical JSON of the items; jsonschema takes quadratic time."""
    if not value or not validator.is_type(instance, "array"):
        return
    seen: set[bytes] = set()
    for item in instance:
        # A set of tuples would take quadratic time for items with equal hashes, which can be constructed.
        text = msgspec.json.encode(_canonical(item), order="sorted")
        if text in seen:
            yield _validation_error(f"{instance!r} has non-unique elements")
            return
        seen.add(text)


def _canonical(value: object) -> object:
    """Return a JSON value in which equal numbers are equal texts, such as 1 and 1.0."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value)) if abs(value) >= 2**63 else int(value)
    if isinstance(value, list):
        return [_canonical(one) for one in value]
    if isinstance(value, dict):
        return {name: _canonical(one) for name, one in value.items()}
    return value


def _limited_copy(function: Any, copies: dict[Any, Any]) -> Any:  # noqa: ANN401
    """Return a copy of a function of jsonschema that searches with ``_LimitedSearch``, as do the functions it calls.

    ``copies`` contains the copies of functions.
    """
    if function in copies:
        return copies[function]
    names = dict(function.__globals__)
    copy = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    copies[function] = copy
    for name, value in names.items():
        if value is re:
            names[name] = _LimitedSearch
        elif isinstance(value, types.FunctionType) and value.__module__.startswith("jsonschema."):
            names[name] = _limited_copy(value, copies)
    return copy


class _LimitedSearch:
    """Replacement of the module ``re``, which cannot end a search that takes exponential time."""

    @staticmethod
    def search(pattern: str, text: str) -> object:
        import regex  # noqa: PLC0415 - an extra

        try:
            return regex.search(pattern, text, timeout=_TIME_LIMIT.get().remaining())
        except TimeoutError:
            raise ValueError(f"the search for the pattern {pattern!r} takes too long - simplify the pattern") from None


def _validation_error(message: str) -> Any:  # noqa: ANN401
    from jsonschema.exceptions import ValidationError  # noqa: PLC0415 - an extra

    return ValidationError(message)


def _json_decoder(annotation: object) -> Decode:
    bare, _ = split_none(annotation)
    return msgspec.json.Decoder(str).decode if bare is str else JsonCodec().decoder(annotation)
