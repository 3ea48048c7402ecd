"""Encoding and decoding of values: JSON, user-defined codecs, and errors for values that do not decode."""

from __future__ import annotations

import json
import re
import sys
import uuid
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, TypedDict, TypeVar

import msgspec
import pydantic
import pydantic.alias_generators
import pytest
import typing_extensions
from hypothesis import given
from hypothesis import strategies as st

from tailrace.app.declare.parameters import Key
from tailrace.app.declare.prepared_handler import prepare
from tailrace.app.handlers import Handlers
from tailrace.codecs.json_codec import JsonCodec
from tailrace.codecs.protocols import Codec, RecordCodec
from tailrace.errors import ConfigurationError, DecodeError
from tailrace.records import Record

CODEC = JsonCodec()


class Struct(msgspec.Struct):
    name: str
    total: int = 0


class Opened(msgspec.Struct, tag="opened"):
    by: str


class Closed(msgspec.Struct, tag="closed"):
    by: str


@dataclass
class Data:
    name: str
    total: int = 0


class Typed(TypedDict):
    name: str
    total: int


class Named(NamedTuple):
    name: str
    total: int


class Model(pydantic.BaseModel):
    name: str
    total: int = 0


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]


@pydantic.dataclasses.dataclass
class ModelData:
    name: str
    secret: uuid.UUID


class Colour(StrEnum):
    RED = "red"


class Tree(msgspec.Struct):
    children: list[Tree] = []


class Foreign:
    pass


@dataclass
class WithForeign:
    inside: list[Foreign]


@dataclass
class WithModel:
    inside: Model


Positive = Annotated[int, pydantic.Field(gt=0)]
Quantity = NewType("Quantity", Positive)
T = TypeVar("T")


class StructWithModel(msgspec.Struct):
    inside: Model


class StructWithField(msgspec.Struct):
    quantity: Positive


class ModelWithMeta(pydantic.BaseModel):
    quantity: Annotated[int, msgspec.Meta(gt=0)]


@dataclass
class Line:
    quantity: Positive


@dataclass
class Later:
    line: Line | None
    more: list[Later]


@dataclass
class OptionalQuantity:
    quantity: Positive | None = None
    by_name: dict[str, list[Quantity]] | None = None


class TypedLine(typing_extensions.TypedDict):
    quantity: NotRequired[Positive]


class NamedLine(NamedTuple):
    quantity: Positive


@dataclass
class Box(Generic[T]):
    item: T


class Aliased(pydantic.BaseModel):
    order_id: int = pydantic.Field(alias="orderId")
    inner: Aliased | None = None


class Camel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(alias_generator=pydantic.alias_generators.to_camel, populate_by_name=True)
    order_id: int


class Named2(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(serialize_by_alias=False, populate_by_name=True)
    order_id: int = pydantic.Field(alias="orderId")


@pydantic.dataclasses.dataclass
class AliasedData:
    order_id: Annotated[int, pydantic.Field(alias="orderId")]


@dataclass
class Holder:
    first: AliasedData
    second: Aliased
    weight: Annotated[int, pydantic.Field(alias="w")] = 1


Orders = pydantic.RootModel[list[Aliased]]
ALIASED, CAMEL, DATA = Aliased(orderId=1, inner=Aliased(orderId=2)), Camel(order_id=1), AliasedData(orderId=1)


class Broken(msgspec.Struct):
    field: Nowhere  # noqa: F821


Animal = Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]


def record(value: bytes | None, topic: str = "orders") -> Record:
    return Record(topic, 3, 17, b"k", value, 0)


def taking(annotation: object):
    async def charge(it):
        return it

    charge.__annotations__ = {"it": annotation}
    return charge


async def failure(annotation: object, value: bytes | None, codec: Codec | RecordCodec = CODEC) -> DecodeError:
    with pytest.raises(DecodeError) as caught:
        await prepare(taking(annotation), codec).call(record(value))
    return caught.value


# ---- JSON -----------------------------------------------------------------------------------------------------------

VALUES = [
    (bytes, b"\xff\x00"),
    (str, "grüß dich"),
    (int, 42),
    (float, 1.5),
    (bool, True),
    (dict, {"a": [1, None]}),
    (list, [1, "a"]),
    (Any, {"a": 1}),
    (object, [1]),
    (dict[str, int], {"a": 1}),
    (list[Struct], [Struct("ann", 5)]),
    (Colour, Colour.RED),
    (uuid.UUID, uuid.UUID(int=7)),
    (Struct, Struct("ann", 5)),
    (Opened | Closed, Closed("ann")),
    (Tree, Tree([Tree(), Tree([Tree()])])),
    (Data, Data("ann", 5)),
    (Typed, {"name": "ann", "total": 5}),
    (Named, Named("ann", 5)),
    (Annotated[int, msgspec.Meta(ge=3)], 3),
    (Model, Model(name="ann", total=5)),
    (Animal, Dog(kind="dog")),
    (list[Model], [Model(name="ann", total=5)]),
    (dict[str, Model], {"a": Model(name="ann", total=5)}),
    (ModelData, ModelData("ann", uuid.UUID(int=7))),
    (WithModel, WithModel(Model(name="ann", total=5))),
    (Aliased, ALIASED),
    (list[Aliased], [ALIASED]),
    (dict[str, list[Aliased]], {"a": [ALIASED]}),
    (Aliased | Cat, ALIASED),
    (Camel, CAMEL),
    (Named2, Named2(order_id=1)),
    (Orders, Orders([ALIASED])),
    (AliasedData, DATA),
    (list[AliasedData], [DATA]),
    (dict[str, list[AliasedData]], {"a": [DATA], "b": []}),
    (Holder, Holder(DATA, ALIASED)),
    (list[Holder], [Holder(DATA, ALIASED)]),
    (Box[Aliased], Box(ALIASED)),
]


@pytest.mark.parametrize(("annotation", "value"), VALUES, ids=lambda one: str(one)[:40])
def test_json_decodes_the_values_that_it_encodes(annotation, value):
    """Values of each supported type are the same after encoding and decoding, also as ``T | None``."""
    data = CODEC.encode(value)

    decoded = CODEC.decoder(annotation)(data)

    assert decoded == value
    assert type(decoded) is type(value)
    assert CODEC.decoder(annotation | None)(data) == value


@given(st.recursive(st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(), st.lists, max_leaves=8))
def test_json_is_compatible_with_the_json_module(value):
    """Python's json module decodes the codec's JSON, and the codec decodes that of the json module."""
    assert json.loads(CODEC.encode([value])) == [value]
    assert CODEC.decoder(Any)(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    ("value", "data"),
    [("grüß", "grüß".encode()), (bytearray(b"\xff"), b"\xff"), (memoryview(b"\xff"), b"\xff"), (b"{", b"{")],
)
def test_text_and_bytes_are_encoded_as_they_are(value, data):
    """Text and bytes are encoded raw, without JSON quotes."""
    assert CODEC.encode(value) == data


def test_a_value_without_a_json_form_raises_a_type_error():
    """A value without a JSON form raises TypeError with its type, nested or not."""
    for value in (Foreign(), [Foreign()]):
        with pytest.raises(TypeError, match=r"Foreign cannot be encoded as JSON"):
            CODEC.encode(value)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Line, {"quantity": -1}),
        (list[Line], [{"quantity": -1}]),
        (dict[str, Line | None], {"a": {"quantity": -1}}),
        (Later, {"line": None, "more": [{"line": {"quantity": -1}, "more": []}]}),
        (OptionalQuantity, {"quantity": -1}),
        (OptionalQuantity, {"by_name": {"a": [1, -1]}}),
        (TypedLine, {"quantity": -1}),
        (NamedLine, [-1]),
        (Box[Positive], {"item": -1}),
        (Box[Line], {"item": {"quantity": -1}}),
        (list[Quantity], [-1]),
        (WithModel, {"inside": {"name": 5}}),
        (list[Annotated[int, msgspec.Meta(gt=0)]], [-1]),
    ],
)
async def test_constraints_of_fields_are_enforced(annotation, value):
    """A constraint in ``Annotated`` is enforced in the fields of any class, at any depth."""
    assert "the value cannot be decoded" in str(await failure(annotation, json.dumps(value).encode()))


NAN, INFINITE = float("nan"), float("inf")


@dataclass
class Weighed:
    weight: float
    note: str | None = None


class WeighedStruct(msgspec.Struct):
    weight: Any


class WeighedModel(pydantic.BaseModel):
    weight: float
    note: str | None = None


class TextModel(WeighedModel):
    model_config = pydantic.ConfigDict(ser_json_inf_nan="strings")


@pytest.mark.parametrize(
    "value",
    [
        NAN,
        -INFINITE,
        [1.0, NAN],
        {"a": {"b": (None, INFINITE)}},
        Weighed(NAN),
        WeighedStruct([Weighed(INFINITE)]),
        WeighedModel(weight=NAN),
        [WeighedModel(weight=INFINITE)],
        WeighedStruct(WeighedModel(weight=NAN)),
        pydantic.RootModel[list[float]]([NAN]),
    ],
    ids=repr,
)
def test_a_number_that_is_not_finite_is_not_published(value):
    """NaN and infinite numbers, which JSON does not have, raise an error and do not become null."""
    with pytest.raises(ValueError, match="has no JSON form - publish None or a string"):
        CODEC.encode(value)


@pytest.mark.parametrize(
    "value", [[None, 1e308], Weighed(0.0), WeighedModel(weight=1), TextModel(weight=NAN), {"null": "null"}], ids=repr
)
def test_null_is_published(value):
    """None is published as null, and NaN as a string by a model that is configured to do so."""
    assert b"null" in CODEC.encode(value)


def test_text_in_a_union_is_json():
    """In a union with other types than None, text is JSON and has quotes."""
    decode = CODEC.decoder(int | str)

    assert [decode(b"5"), decode(b'"5"')] == [5, "5"]


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (Foreign, "Foreign cannot be decoded"),
        (list[Foreign], "Foreign cannot be decoded"),
        (WithForeign, "Foreign cannot be decoded"),
        (StructWithModel, "StructWithModel contains pydantic models or metadata"),
        (StructWithField, "StructWithField contains pydantic models or metadata"),
        (list[dict[str, StructWithField]], "StructWithField contains pydantic models or metadata"),
        (ModelWithMeta, r"pydantic ignores msgspec.Meta\(gt=0\) in .* - use pydantic.Field"),
        (list[Annotated[int, msgspec.Meta(gt=0), pydantic.Field(lt=9)]], "pydantic ignores msgspec.Meta"),
        (Model | Foreign, "Foreign"),
        (Struct | Typed, "not supported"),
        (Broken, "Nowhere"),
        (bytes | dict, r"undecoded bytes have the type `bytes` or `bytes \| None`"),
        (bytearray, "undecoded bytes have the type `bytes`"),
        (Annotated[bytes, msgspec.Meta(max_length=3)], "undecoded bytes have the type `bytes`"),
        (Annotated[str, "a name"], "'a name' is not supported in Annotated"),
        (Annotated[str, "a name"] | None, "'a name' is not supported in Annotated"),
    ],
)
def test_a_type_without_a_json_form_is_refused_at_the_start(annotation, words):
    """A type without a JSON form raises ConfigurationError with handler, parameter and type, also in batches."""
    for refused in (
        lambda: prepare(taking(annotation), CODEC),
        lambda: prepare(taking(list[annotation]), CODEC, is_batch=True),
    ):
        with pytest.raises(
            ConfigurationError, match=rf"^handler \S+charge: parameter 'it' cannot have the type [^:]*: .*{words}"
        ):
            refused()


def test_pydantic_is_needed_for_its_models_only():
    """The codec works without pydantic; only a handler that takes a pydantic model needs it."""
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "pydantic"}
    sys.modules["pydantic"] = None
    try:
        for annotation, value in VALUES[:20]:
            assert CODEC.decoder(annotation)(CODEC.encode(value)) == value
        with pytest.raises(ConfigurationError, match=r"cannot have the type .*Model: .*pydantic"):
            prepare(taking(Model), CODEC)
    finally:
        sys.modules.update(before)


# ---- decoding errors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "value", "words"),
    [
        (Struct, b'{"name": 1}', r"\S*Struct: Expected `str`, got `int` - at `\$.name`"),
        (Struct, b"", r"\S*Struct: Input data was truncated"),
        (Struct, b"null", r"\S*Struct: Expected `object`, got `null`"),
        (list[Struct], b'[{"name":"a"},{}]', r".*Struct\]: Object missing required field `name` - at `\$\[1\]`"),
        (Data, b"[]", r"\S*Data: Expected `object`"),
        (Model, b'{"total": "many"}', r"\S*Model: name: Field required \(and 1 more\)"),
        (Model, b"{", r"\S*Model: Invalid JSON"),
        (str, b"ab\xff", "str: 'utf-8' codec can't decode byte 0xff in position 2"),
        (int, b"1.5", "int: Expected `int`, got `float`"),
        (Any, b"[" * 5_000, r"\S*Any: "),
    ],
)
async def test_a_decode_error_names_position_handler_and_type(annotation, value, words):
    """A DecodeError names position, handler, part, type and reason, and chains its cause."""
    error = await failure(annotation, value)

    assert re.match(rf"orders\[3\] at offset 17: handler \S+charge: the value cannot be decoded as {words}", str(error))
    assert error.__cause__ is not None


SECRET = "s" * 300


class Secretive(pydantic.BaseModel):
    word: str

    @pydantic.field_validator("word")
    @classmethod
    def check(cls, value: str) -> str:
        raise ValueError(f"{value} is no word")


class Failing:
    def decode(self, data: bytes, _annotation: Any, _record: Record) -> object:
        raise ValueError(data.decode())

    def encode(self, value: Any) -> bytes:
        return bytes(value)


@pytest.mark.parametrize(
    ("annotation", "codec", "value"),
    [
        (Literal["a", "b"], CODEC, f'"{SECRET}"'),
        (Opened | Closed, CODEC, f'{{"type": "{SECRET}"}}'),
        (Struct, CODEC, f'{{"name": ["{SECRET}"]}}'),
        (str, CODEC, f"{SECRET}\udcff"),
        (Animal, CODEC, f'{{"kind": "{SECRET}"}}'),
        (Secretive, CODEC, f'{{"word": "{SECRET}"}}'),
        (dict[str, Secretive], CODEC, f'{{"{SECRET}": {{}}}}'),
        (dict, Failing(), SECRET),
    ],
)
async def test_an_error_does_not_repeat_the_payload(annotation, codec, value):
    """The message contains at most 80 characters of the payload, also if the decoder's own error contains more."""
    error = await failure(annotation, value.encode(errors="surrogateescape"), codec)

    assert str(error).count("s" * 81) == 0
    assert len(str(error)) < 400


# ---- user-defined codecs --------------------------------------------------------------------------------------------


class Reversing:
    """User-defined codec whose decode() receives the record."""

    def decode(self, data: bytes, annotation: Any, of: Record) -> object:
        return annotation, data[::-1], of.topic

    def encode(self, value: Any) -> bytes:
        return bytes(value)[::-1]


class Registry(Reversing):
    def decode(self, _data: bytes, _annotation: Any, _record: Record) -> object:
        raise ConnectionRefusedError("the registry is away")


class ByType:
    """User-defined codec that returns one decoder per type, and does not expect nulls."""

    def decoder(self, annotation: Any) -> Any:
        if annotation is Foreign:
            raise LookupError("no schema of that name")
        return lambda data: (annotation, data)

    def encode(self, value: Any) -> bytes:
        return bytes(value)


async def test_a_user_defined_codec_receives_the_type_and_the_record():
    """A user-defined codec receives the annotation; bytes, null values, keys and headers bypass the codec."""

    async def both(it: dict, key: Annotated[str, Key]):
        return it, key

    assert await prepare(taking(Foreign | None), Reversing()).call(record(b"ab")) == (Foreign | None, b"ba", "orders")
    assert await prepare(taking(Foreign | None), Reversing()).call(record(None)) is None
    assert await prepare(taking(bytes), Reversing()).call(record(b"ab")) == b"ab"
    assert await prepare(both, Reversing()).call(record(b"ab")) == ((dict, b"ba", "orders"), "k")
    assert await prepare(taking(list[int]), Reversing(), is_batch=True).call([record(b"ab")]) == [
        (int, b"ba", "orders")
    ]
    assert not prepare(taking(dict), Reversing()).sees_values_only
    assert "the value is null" in str(await failure(dict, None, Reversing()))


async def test_an_oserror_of_a_codec_is_raised_unchanged():
    """An OSError of a codec propagates unchanged, for a single record and for a batch, so that records are retried."""
    with pytest.raises(ConnectionRefusedError):
        await prepare(taking(dict), Registry()).call(record(b"ab"))
    with pytest.raises(ConnectionRefusedError):
        await prepare(taking(list[dict]), Registry(), is_batch=True).call([record(b"ab")])


async def test_a_decode_error_in_a_batch_names_the_index():
    """A decoding error in a batch names the record's index, and has the codec's error as its cause."""
    with pytest.raises(DecodeError, match=r"^index 0 of the batch: orders\[3\] at offset 17: .*ab") as caught:
        await prepare(taking(list[dict]), Failing(), is_batch=True).call([record(b"ab")])

    assert isinstance(caught.value.__cause__, ValueError)


async def test_a_codec_may_return_a_decoder_for_each_type():
    """A codec with decoder() may return a decoder for each type, may refuse types at the start, and never sees null."""
    prepared = prepare(taking(int), ByType())

    assert prepared.sees_values_only
    assert await prepared.direct_call(record(b"1")) == (int, b"1")
    assert await prepare(taking(int | None), ByType()).call(record(None)) is None
    assert "the value is null" in str(await failure(int, None, ByType()))
    with pytest.raises(
        ConfigurationError, match=r"parameter 'it' cannot have the type .*Foreign: .*no schema of that name"
    ):
        prepare(taking(Foreign), ByType())


class Waiting(Reversing):
    async def decode(self, data: bytes, annotation: Any, of: Record) -> object: ...


@pytest.mark.parametrize(
    ("codec", "words"),
    [
        (
            object(),
            r"an object with decode\(data, annotation, record\) or decoder\(annotation\), and with encode\(value\)",
        ),
        (Reversing, "an object with decode"),
        (Waiting(), "decode of the codec is `async def`.*make it a plain function"),
    ],
)
def test_an_object_that_is_not_a_codec_is_refused_by_the_declaration(codec, words):
    """An object that is not a codec raises ConfigurationError that names the missing methods."""
    with pytest.raises(ConfigurationError, match=rf"handler: .*{words}"):
        Handlers().handler("orders", codec=codec)


def test_the_json_codec_is_a_codec():
    """The built-in codec satisfies the Codec protocol that user-defined codecs implement."""
    assert isinstance(CODEC, Codec)
    assert not isinstance(CODEC, RecordCodec)
    assert isinstance(Reversing(), RecordCodec)
