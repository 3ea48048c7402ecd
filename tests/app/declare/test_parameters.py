"""Parameters of handlers: values, keys, headers, records and batches; invalid signatures are refused at the start."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import sys
import uuid
from collections.abc import Sequence
from enum import Enum
from typing import Annotated, Any, NewType

import msgspec
import pytest
from typing_extensions import TypeAliasType

from tailrace.app.declare.parameters import Depends, Header, Key, read_signature
from tailrace.app.declare.prepared_handler import PreparedHandler, prepare
from tailrace.codecs.json_codec import JsonCodec
from tailrace.errors import ConfigurationError, ConsumerStateError, DecodeError
from tailrace.producer.encoding import Message
from tailrace.records import Record

CODEC = JsonCodec()


class Order(msgspec.Struct):
    customer: str
    total: float = 0


class Colour(Enum):
    RED = "red"


class Bank:
    """Type that no record can be decoded to."""


Raw = NewType("Raw", bytes)

ANN = b'{"customer": "ann", "total": 5}'


def record(
    value: bytes | None = b"v", key: bytes | None = b"k", headers: Sequence[Any] = (), offset: int = 17
) -> Record:
    return Record("orders", 3, offset, key, value, 1_234, headers)


def taking(annotation: object):
    """Return an async handler of one parameter, ``it``, which it returns."""

    async def handler(it):
        return it

    handler.__annotations__ = {"it": annotation}
    return handler


async def got(annotation: object, of: Record) -> object:
    return await prepare(taking(annotation), CODEC).call(of)


# ---- the value -----------------------------------------------------------------------------------------------------


async def test_the_first_unmarked_parameter_receives_the_value():
    """The first unmarked parameter receives the value, decoded to its annotation, which may be a string."""

    async def charge(order: Order) -> float:
        return order.total

    prepared = prepare(charge, CODEC)

    assert (prepared.is_async, prepared.sees_values_only) == (True, True)
    assert await prepared.direct_call(record(ANN)) == 5
    assert await prepared.call(record(ANN)) == 5
    assert prepared.bind(record(ANN), {}) == ([Order("ann", 5)], {})


@pytest.mark.parametrize("annotation", [bytes, bytes | None, Raw])
async def test_bytes_are_passed_unchanged(annotation):
    """A parameter of ``bytes`` receives the record's own bytes object."""
    value = b"\xff{"

    prepared = prepare(taking(annotation), CODEC)

    assert await prepared.direct_call(record(value)) is value
    assert await prepared.call(record(value)) is value


@pytest.mark.parametrize("annotation", [bytes, str, dict, Order, int, Any])
async def test_a_null_value_needs_an_annotation_with_none(annotation):
    """A null value is None for ``T | None``, and otherwise raises a DecodeError with advice."""
    assert await got(annotation | None, record(None)) is None

    with pytest.raises(DecodeError, match=r"orders\[3\] at offset 17: handler .*handler: the value is null.*\| None"):
        await got(annotation, record(None))


async def test_a_direct_call_raises_the_same_error_as_call():
    """For a value that does not decode, direct_call() raises the same error as call()."""
    prepared = prepare(taking(Order), CODEC)

    for bad in (record(b'{"customer": 1}'), record(None)):
        with pytest.raises(DecodeError) as direct:
            await prepared.direct_call(bad)
        with pytest.raises(DecodeError) as whole:
            await prepared.call(bad)
        assert isinstance(direct.value.__cause__, (msgspec.ValidationError, TypeError))
        assert str(direct.value) == str(whole.value)


# ---- keys, headers, the record --------------------------------------------------------------------------------------


async def test_value_key_headers_and_record_are_passed():
    """The value, key, headers and record are passed by position or keyword, in any order."""

    async def handler(
        trace: Annotated[str, Header("trace")],
        /,
        whole: Record,
        order: Order,
        *,
        customer: Annotated[str, Key],
        attempt: Annotated[int, Header("attempt")] = 1,
    ):
        return trace, whole, order, customer, attempt

    prepared = prepare(handler, CODEC)
    full = record(ANN, b"ann", [("trace", b"t-1"), ("attempt", b"4")])
    some = record(ANN, b"ann", [("trace", b"t-1")])

    assert (prepared.sees_values_only, prepared.direct_call) == (False, None)
    assert await prepared.call(full) == ("t-1", full, Order("ann", 5), "ann", 4)
    assert await prepared.call(some) == ("t-1", some, Order("ann", 5), "ann", 1)


async def test_a_handler_may_omit_the_value():
    """A handler without a value parameter decodes nothing and accepts null values."""

    async def handler(whole: Record) -> object:
        return whole.value

    prepared = prepare(handler, CODEC)

    assert not prepared.sees_values_only
    assert await prepared.direct_call(record(b"{")) == b"{"
    assert await prepared.call(record(b"{")) == b"{"
    assert await prepared.call(record(None)) is None


@pytest.mark.parametrize(
    ("annotation", "data", "expected"),
    [
        (bytes, b"\xff", b"\xff"),
        (str, "grüß".encode(), "grüß"),
        (int, b"-42", -42),
        (float, b"1.5", 1.5),
        (bool, b"true", True),
        (uuid.UUID, b"12345678-1234-5678-1234-567812345678", uuid.UUID("12345678-1234-5678-1234-567812345678")),
        (dt.date, b"2026-11-21", dt.date(2026, 11, 21)),
        (Colour, b"red", Colour.RED),
        (Annotated[int, msgspec.Meta(ge=3)], b"3", 3),
        (Order, ANN, Order("ann", 5)),
        (list[int], b"[1,2]", [1, 2]),
    ],
)
async def test_keys_and_headers_are_text_or_json(annotation, data, expected):
    """Keys and headers decode from text where the type has a text form, else from JSON; bytes pass unchanged."""
    of = record(key=data, headers=[("x", data)])

    for wanted in (annotation, annotation | None):
        assert await got(Annotated[wanted, Key], of) == expected
        assert await got(Annotated[wanted, Header("x")], of) == expected


@pytest.mark.parametrize(("marker", "what"), [(Key, "key"), (Key(), "key"), (Header("x"), "header 'x'")])
async def test_a_missing_key_or_header_needs_none_or_a_default(marker, what):
    """A missing key or header is None for ``T | None``, and otherwise raises a DecodeError with advice."""
    bare, null = record(key=None), record(key=None, headers=[("x", None), ("X", b"1")])

    for of in (bare, null):
        assert await got(Annotated[str | None, marker], of) is None
        with pytest.raises(
            DecodeError, match=rf"orders\[3\] at offset 17: .*the record has no {what} for 'it'.*\| None"
        ):
            await got(Annotated[str, marker], of)


async def test_an_alias_that_includes_none_makes_a_parameter_nullable():
    """A parameter of type ``Alias | str`` is None for a missing key if the alias includes None."""
    maybe_number = TypeAliasType("maybe_number", int | None)

    assert await got(Annotated[maybe_number | str, Key], record(key=None)) is None
    assert await got(Annotated[maybe_number, Key], record(key=b"5")) == 5


@pytest.mark.parametrize(("marker", "what"), [(Key, "key"), (Header("x"), "header 'x'")])
async def test_a_key_or_header_that_does_not_decode_is_reported(marker, what):
    """A key or header that does not decode raises a DecodeError with position, handler, part and type."""
    with pytest.raises(
        DecodeError, match=rf"orders\[3\] at offset 17: handler \S+: the {what} cannot be decoded as int: .*`int`"
    ):
        await got(Annotated[int, marker], record(key=b"many", headers=[("x", b"many")]))


async def test_the_last_of_several_headers_is_passed():
    """The last of several headers of one name is passed, as with lastHeader in Kafka's API."""
    assert await got(Annotated[str, Header("x")], record(headers=[("x", b"1"), ("y", b"2"), ("x", b"3")])) == "3"


# ---- kinds of handlers ----------------------------------------------------------------------------------------------


class Shop:
    """Handlers that are methods and callable objects."""

    async def charge(self, order: Order, key: Annotated[str, Key]) -> object:
        return self, order.customer, key

    async def __call__(self, order: Order) -> object:
        return self, order.customer

    @staticmethod
    def refund(order: Order) -> str:
        return order.customer


async def bound_in_part(rate: int, order: Order, key: Annotated[str, Key], bank: Annotated[Bank, Depends(Bank)]):
    return rate, order.customer, key, bank


def logged(function):
    @functools.wraps(function)
    async def wrapper(*args: object, **kwargs: object):
        return await function(*args, **kwargs)

    return wrapper


async def test_methods_objects_and_decorated_functions_are_handlers():
    """Methods, callable objects and functools.wraps wrappers are handlers, and async if the wrapped function is."""
    shop = Shop()

    assert await prepare(shop.charge, CODEC).call(record(ANN)) == (shop, "ann", "k")
    assert await prepare(shop, CODEC).call(record(ANN)) == (shop, "ann")
    assert await prepare(logged(shop.charge), CODEC).call(record(ANN)) == (shop, "ann", "k")
    assert prepare(shop, CODEC).name.endswith("Shop")
    assert prepare(shop.charge, CODEC).name.endswith("Shop.charge")


async def test_bound_arguments_of_a_partial_are_kept():
    """Arguments bound by a partial are kept, also for parameters with a marker."""
    bank = Bank()

    prepared = prepare(functools.partial(functools.partial(bound_in_part, 7), bank=bank), CODEC)

    assert prepared.is_async
    assert prepared.record_dependencies == ()
    assert await prepared.call(record(ANN)) == (7, "ann", "k", bank)


async def test_bind_returns_the_arguments_of_a_plain_function():
    """bind() returns the arguments of a plain function, which is called in a thread; call() raises."""

    def handler(order: Order, *, key: Annotated[str, Key]) -> str:
        return order.customer + key

    prepared = prepare(handler, CODEC)
    args, kwargs = prepared.bind(record(ANN), {})

    assert not prepared.is_async
    assert handler(*args, **kwargs) == "annk"
    assert prepare(Shop.refund, CODEC).sees_values_only
    with pytest.raises(ConsumerStateError, match="is a plain function"):
        await prepared.call(record(ANN))


async def test_unmarked_parameters_keep_their_defaults():
    """Unmarked parameters keep their defaults, also before marked parameters and if they are positional-only."""

    async def by_position(order: Order, limit: int = 3, /, key: Annotated[str, Key] = "", more: int = 4):
        return order.customer, limit, key, more

    async def by_keyword(*, limit: int = 3, order: Order, key: Annotated[str, Key]):
        return order.customer, limit, key

    assert await prepare(by_position, CODEC).call(record(ANN)) == ("ann", 3, "k", 4)
    assert await prepare(by_keyword, CODEC).call(record(ANN)) == ("ann", 3, "k")


def test_return_annotations_are_not_resolved():
    """Return annotations are not resolved, so their names may be undefined at run time."""

    async def handler(order: Order) -> Invoice: ...  # noqa: F821

    assert isinstance(prepare(handler, CODEC), PreparedHandler)


# ---- refused at the start -------------------------------------------------------------------------------------------


def marker_as_type(value: bytes, key: Key): ...


def marker_or_none(value: bytes, key: Key | None): ...


def marker_with_name_as_type(value: bytes, trace: Header("trace-id")): ...


async def two_values(order: Order, bank: Bank) -> None: ...
async def many_values(*orders: Order) -> None: ...
async def any_names(order: Order, **rest: Any) -> None: ...
async def nothing() -> None: ...
async def nothing_of_the_record(*, limit: int = 3) -> None: ...
async def not_annotated(order) -> None: ...
async def value_with_default(order: Order = Order("bob")) -> None: ...  # noqa: B008
async def of_nowhere(order: Odrer) -> None: ...  # noqa: F821
async def of_no_module(order: msgspec.Strukt) -> None: ...
async def of_no_type(order: Order[int]) -> None: ...
async def header_without_name(order: Order, trace: Annotated[str, Header]) -> None: ...
async def header_with_empty_name(order: Order, trace: Annotated[str, Header("")]) -> None: ...
async def depends_on_nothing(order: Order, bank: Annotated[Bank, Depends]) -> None: ...
async def marker_as_default(order: Order, trace: str = Header("trace")) -> None: ...
async def bare_marker_as_default(order: Order, key: str = Key) -> None: ...
async def two_markers(key: Annotated[str, Key, Header("key")]) -> None: ...
async def marker_within(order: Order, trace: Annotated[str, Header("trace")] | None) -> None: ...
async def unknown_marker(order: Annotated[Order, "from orders"]) -> None: ...
async def forgotten_depends(order: Order, bank: Annotated[Bank, Bank]) -> None: ...
async def nullable_record(whole: Record | None) -> None: ...


async def typed_record(whole: Record[bytes, int]) -> None: ...
async def many_records(whole: list[Record]) -> None: ...
async def bank_as_value(bank: Bank) -> None: ...
async def bank_as_key(order: Order, bank: Annotated[Bank, Key]) -> None: ...
async def a_generator(order: Order):
    yield order


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (two_values, "parameter 'bank' gets no argument, because 'order' takes the value - .*Key.*Header.*Depends"),
        (many_values, "parameter 'orders' takes any number of arguments"),
        (any_names, "parameter 'rest' takes any number of arguments"),
        (nothing, "has no parameter for the record - add one"),
        (nothing_of_the_record, "has no parameter for the record"),
        (not_annotated, "parameter 'order' has no annotation .*`order: bytes`"),
        (Shop.charge, "parameter 'self' .* pass the method of an object"),
        (value_with_default, "parameter 'order' takes the value, .* remove the default"),
        (of_nowhere, "parameter 'order': the name 'Odrer' .* cannot be resolved .*top of the module"),
        (of_no_module, "parameter 'order': .*msgspec.Strukt.* cannot be resolved"),
        (of_no_type, "parameter 'order': .* cannot be resolved"),
        (header_without_name, r"parameter 'trace': .*write Annotated\[T, Header\('name'\)\]"),
        (header_with_empty_name, r"parameter 'trace': .*write Annotated\[T, Header\('name'\)\]"),
        (depends_on_nothing, r"parameter 'bank': .*write Annotated\[T, Depends\(provider\)\]"),
        (marker_as_default, "parameter 'trace' has a marker as its default - move the marker to the annotation"),
        (bare_marker_as_default, "parameter 'key' has a marker as its default"),
        (two_markers, "parameter 'key' has more than one marker"),
        (
            marker_as_type,
            r"parameter 'key': Key is a marker, not a type - write the type and the marker: Annotated\[T, K",
        ),
        (marker_or_none, "parameter 'key': Key is a marker, not a type"),
        (marker_with_name_as_type, "parameter 'trace': Header is a marker, not a type"),
        (marker_within, r"parameter 'trace': .* has a nested marker .* Annotated\[T \| None, marker\]"),
        (unknown_marker, "parameter 'order' .*'from orders' is not supported in Annotated - use Key, Header"),
        (forgotten_depends, "parameter 'bank' gets no argument"),
        (nullable_record, "parameter 'whole': a record is never null"),
        (typed_record, "parameter 'whole': .* write `Record` without type arguments"),
        (many_records, r"parameter 'whole': .* only a batch handler receives several"),
        (bank_as_value, r"parameter 'bank' cannot have the type \S*Bank: \S*Bank cannot be decoded.*Depends"),
        (bank_as_key, r"parameter 'bank' cannot have the type \S*Bank"),
        (a_generator, "is an async generator - return the messages to publish"),
        (Shop, "is not a function - pass a function"),
        ("shop.charge", "is not a function"),
    ],
)
def test_an_invalid_signature_is_refused(handler, words):
    """An invalid signature raises ConfigurationError with handler, parameter and advice."""
    name = getattr(handler, "__qualname__", "str")

    with pytest.raises(ConfigurationError, match=rf"^handler \S*{name}\b:? {words}"):
        prepare(handler, CODEC)


# ---- batches --------------------------------------------------------------------------------------------------------


def batch(*values: bytes | None) -> list[Record]:
    return [record(value, offset=100 + n) for n, value in enumerate(values)]


async def test_a_batch_handler_receives_a_list_of_values():
    """A batch handler receives a list of decoded values; null values need ``T | None`` as the item type."""
    orders, numbers = (
        prepare(taking(list[Order]), CODEC, is_batch=True),
        prepare(taking(list[int | None]), CODEC, is_batch=True),
    )

    assert orders.sees_values_only
    assert await orders.call(batch(ANN, ANN)) == [Order("ann", 5)] * 2
    assert await orders.direct_call(batch(ANN)) == [Order("ann", 5)]
    assert await numbers.call(batch(b"1", None, b"3")) == [1, None, 3]
    assert await numbers.call([]) == []


async def test_a_batch_handler_may_receive_records():
    """``list[Record]`` receives the records undecoded, in a new list."""
    records = batch(b"{", None)

    prepared = prepare(taking(list[Record]), CODEC, is_batch=True)
    given = await prepared.call(records)

    assert not prepared.sees_values_only
    assert given == records
    assert given is not records
    assert prepared.decode_one(records[0]) is records[0]


@pytest.mark.parametrize("bad", [b"{", None])
async def test_a_decode_error_in_a_batch_names_the_record(bad):
    """A decoding error in a batch names the record's index and position; decode_one() decodes a single record."""
    prepared = prepare(taking(list[Order]), CODEC, is_batch=True)
    records = batch(ANN, ANN, bad, ANN)

    with pytest.raises(DecodeError, match=r"^index 2 of the batch: orders\[3\] at offset 102: handler"):
        await prepared.call(records)
    assert prepared.decode_one(records[1]) == Order("ann", 5)
    with pytest.raises(DecodeError, match=r"^orders\[3\] at offset 102"):
        prepared.decode_one(records[2])


async def test_bind_returns_the_arguments_of_a_plain_batch_handler():
    """bind() returns the arguments of a plain batch handler."""

    def handler(orders: list[Order]) -> int:
        return len(orders)

    prepared = prepare(handler, CODEC, is_batch=True)
    args, kwargs = prepared.bind(batch(ANN, ANN), {})

    assert not prepared.is_async
    assert handler(*args, **kwargs) == 2


async def batch_with_key(orders: list[Order], key: Annotated[str, Key]) -> None: ...
async def batch_with_header(orders: list[Order], trace: Annotated[str, Header("x")]) -> None: ...
async def batch_with_record(orders: list[Order], whole: Record) -> None: ...
async def batch_of_nothing(bank: Annotated[Bank, Depends(Bank)]) -> None: ...


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (batch_with_key, "parameter 'key' needs a single record, but a batch handler receives many"),
        (batch_with_header, "parameter 'trace' needs a single record"),
        (batch_with_record, r"parameter 'whole' needs a single record.*list\[Record\]"),
        (batch_of_nothing, "has no parameter for the batch - add one"),
        (taking(Order), r"parameter 'it' has the type \S*Order, but a batch is a list .*`list\[bytes\]`"),
        (taking(list), r"parameter 'it' has the type list, but a batch is a list .*`list\[bytes\]`"),
        (taking(list[Record | None]), r"parameter 'it': a record is never null .*`list\[Record\]`"),
        (taking(list[Record[str, int]]), "parameter 'it': .* write `Record` without type arguments"),
        (taking(list[Bank]), r"parameter 'it' cannot have the type \S*Bank"),
    ],
)
def test_parameters_of_single_records_are_refused_for_batches(handler, words):
    """Parameters that belong to a single record are refused in a batch handler."""
    with pytest.raises(ConfigurationError, match=rf"^handler \S+:? {words}"):
        prepare(handler, CODEC, is_batch=True)


# ---- results of handlers --------------------------------------------------------------------------------------------


def test_messages_compare_by_content_and_are_immutable():
    message = Message({"total": 5}, key="ann", headers=[("x", b"1")])

    assert message == Message({"total": 5}, "ann", [("x", b"1")], None, None)
    assert Message(None) == Message(value=None, headers=(), partition=None, topic=None)
    assert Message(None) != Message(None, key=None)  # the first has the key of the handled record
    with pytest.raises(dataclasses.FrozenInstanceError):
        message.key = "bob"


def declared_without_future(source: str) -> dict[str, Any]:
    """Return the names that a module without ``from __future__ import annotations`` defines."""
    names: dict[str, Any] = {"Annotated": Annotated, "Order": Order, "Depends": Depends, "__name__": "shop"}
    exec(compile(source, "shop.py", "exec", dont_inherit=True), names)
    return names


@pytest.mark.skipif(sys.version_info < (3, 14), reason="before Python 3.14, such a function cannot be defined")
@pytest.mark.parametrize("annotation", ["Missing", "Missing | None", "list[Missing]", "Annotated[Missing, 'a']"])
def test_an_undefined_name_is_reported_without_the_future_import(annotation):
    """An annotation that Python 3.14 has not evaluated yet (PEP 649) is reported like one in a string."""
    handler = declared_without_future(f"async def handle(order: {annotation}) -> None: ...")["handle"]

    with pytest.raises(ConfigurationError, match="the name 'Missing' in the annotation") as raised:
        prepare(handler, CODEC)

    assert "ForwardRef" not in str(raised.value)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="before Python 3.14, such a function cannot be defined")
def test_a_default_replaces_an_undefined_annotation_of_a_provider():
    """A provider's parameter keeps its default if its annotation cannot be evaluated, as with the future import."""
    names = declared_without_future("def provide(timeout: Missing = 5): return timeout\n")

    assert read_signature(names["provide"], "provider", is_provider=True) == ()
