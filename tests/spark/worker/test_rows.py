"""Rows of handlers' results: columns from the annotation, values from the results."""

from __future__ import annotations

import datetime as dt
import enum
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

import msgspec
import pydantic
import pytest

from tailrace import App, ConfigurationError, HandlerFailedError, Record
from tailrace.app.handlers import Handler
from tailrace.spark.worker.rows import RESERVED, arrays_of, columns_of, expression_type, result_type, rows_of

if TYPE_CHECKING:
    from decimal import Decimal as Money


def handlers_of(function: Any) -> list[Handler]:
    app = App(group_id="g")
    app.handler("t")(function)
    return app.declared


def test_columns_follow_the_annotation():
    """The fields of a dataclass become columns, nested ones structs, followed by the record's position."""

    @dataclass
    class Leg:
        miles: float

    @dataclass
    class Flight:
        number: str
        legs: list[Leg]
        gate: int | None = None

    async def depart(value: bytes) -> Flight | None: ...

    depart.__annotations__ = {"value": bytes, "return": Flight | None}
    Flight.__annotations__ = {"number": str, "legs": list[Leg], "gate": int | None}
    Leg.__annotations__ = {"miles": float}
    kind = result_type(handlers_of(depart))
    rows = rows_of([Record("t", 1, 7, None, b"", 0)], [Flight("UA1", [Leg(2.5)])], kind)

    assert columns_of(kind).simpleString() == (
        "struct<number:string,legs:array<struct<miles:double>>,gate:bigint,topic:string,partition:int,offset:bigint,"
        "_tailrace:string>"
    )
    place = {"topic": "t", "partition": 1, "offset": 7, "_tailrace": None}
    assert rows.to_pylist() == [{"number": "UA1", "legs": [{"miles": 2.5}], "gate": None, **place}]


def test_no_result_gives_an_empty_list():
    """Records without a result have an empty list, the first one and all of them, too."""

    async def double(value: bytes) -> int | None: ...

    kind, records = result_type(handlers_of(double)), [Record("t", 1, offset, None, b"", 0) for offset in range(3)]
    for results in ([None, 2, None], [2, None, 4], [None, None, None], [1, 2, 3]):
        lists = arrays_of(records, results, kind)
        assert lists.to_pylist() == [[] if one is None else [{"value": one}] for one in results]


def test_a_handler_without_return_annotation_is_refused():
    """A handler without a return annotation is refused, since its columns are unknown."""

    async def handle(value: bytes): ...

    with pytest.raises(ConfigurationError, match="has no return annotation"):
        result_type(handlers_of(handle))


class Node(msgspec.Struct):
    kids: list[Node]


class Late(msgspec.Struct):
    money: Money


class Fill(msgspec.Struct, rename="pascal"):
    offset: int


class Twice(msgspec.Struct):
    id: int
    ID: int


class Level(enum.Enum):
    LOW = 1
    HIGH = "high"


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Node, "contains itself"),
        (Late, "cannot be resolved: name 'Money'"),
        (enum.Enum, "has no type"),
        (Fill, "with a field 'Offset', and sink= adds a column"),
        (Twice, "'id' and 'ID', which Spark does not distinguish"),
        (Level, "has several types"),
        (list[Literal["a", 1]], "has several types"),
        (tuple[int, str], "with several types"),
        (dict[str, tuple[int, str]], "has several types"),
    ],
)
def test_types_without_columns_are_refused(kind, why):
    """A result type that Spark cannot represent is refused."""

    async def handle(value: bytes): ...

    handle.__annotations__ = {"value": bytes, "return": kind}

    with pytest.raises(ConfigurationError, match=f"^handler .*handle.*{why}"):
        result_type(handlers_of(handle), RESERVED)


class Seat(TypedDict):
    row: int
    letter: NotRequired[str]


class Ticket(msgspec.Struct):
    price: Decimal
    paid_at: dt.datetime | None
    seats: list[Seat]
    notes: list[str | None]
    miles: dict[str, float | None]
    grade: Literal["a"] | None


def test_only_optional_fields_are_nullable():
    """A column, an item or a value of a mapping is nullable if its annotation includes None or it may be missing."""

    async def handle(value: bytes): ...

    handle.__annotations__ = {"value": bytes, "return": list[Ticket] | None}
    kind = expression_type(result_type(handlers_of(handle))).elementType

    assert not expression_type(kind).containsNull
    assert {one.name: one.nullable for one in kind} == {
        "price": False,
        "paid_at": True,
        "seats": False,
        "notes": False,
        "miles": False,
        "grade": True,
    }
    assert not kind["seats"].dataType.containsNull
    assert [one.nullable for one in kind["seats"].dataType.elementType] == [False, True]
    assert kind["notes"].dataType.containsNull
    assert kind["miles"].dataType.valueContainsNull


class Kind(enum.Enum):
    SHORT = "short"


class Stop(msgspec.Struct, omit_defaults=True, rename="camel"):
    at_gate: int = 0
    kinds: list[Kind] = []


class Trip(msgspec.Struct, omit_defaults=True, array_like=True):
    cents: int = 0
    stops: list[Stop] = []
    first: Stop | None = None
    by_kind: dict[Kind, int] = {}


class Part(pydantic.BaseModel):
    kinds: set[Kind]


class Model(pydantic.BaseModel):
    kind: Kind
    part: Part | None = None


@pytest.mark.parametrize(
    ("kind", "result", "row"),
    [
        (Trip, Trip(), {"cents": 0, "stops": [], "first": None, "by_kind": []}),
        (
            Trip,
            Trip(5, [Stop(1, [Kind.SHORT])], Stop(), {Kind.SHORT: 2}),
            {
                "cents": 5,
                "stops": [{"atGate": 1, "kinds": ["short"]}],
                "first": {"atGate": 0, "kinds": []},
                "by_kind": [("short", 2)],
            },
        ),
        (
            Model,
            Model(kind=Kind.SHORT, part=Part(kinds={Kind.SHORT})),
            {"kind": "short", "part": {"kinds": ["short"]}},
        ),
        (Kind, Kind.SHORT, {"value": "short"}),
        (dict[str, int], {"value": 1}, {"value": [("value", 1)]}),
        (list[Stop | None], [None, Stop(4)], {"atGate": 4, "kinds": []}),
        (tuple[int, int], (1,), {"value": 1}),
        (dict[str, tuple[Literal["a", "b"], ...] | None], {"k": ("a",)}, {"value": [("k", ["a"])]}),
    ],
    ids=["defaults", "nested", "pydantic", "an enum", "a mapping", "a list with None", "a tuple", "any tuple"],
)
def test_rows_follow_the_annotation(kind, result, row):
    """Results are converted to rows of the annotated type, with defaults, enums and mappings."""

    async def handle(value: bytes): ...

    handle.__annotations__ = {"value": bytes, "return": kind}
    made = result_type(handlers_of(handle))
    (arrived,) = rows_of([Record("t", 1, 7, None, b"", 0)], [result], made).to_pylist()

    assert arrived == {**row, "topic": "t", "partition": 1, "offset": 7, "_tailrace": None}


@pytest.mark.parametrize(
    ("kind", "result"),
    [
        (int, "a text"),
        (int, 2**70),
        (Decimal, Decimal("0.0000000000000000001")),
        (str, 5),
        (dict[str, int], object()),
        (list[list[int]], [5]),
        (Trip, 5),
        (Stop, Stop(None)),
        (list[Stop], [Stop(kinds=[None])]),
        (dict[str, int], {"a": None}),
        (Seat, {"letter": "a"}),
        (Model, Model.model_construct(kind=None)),
    ],
)
def test_a_result_of_another_type_fails_with_its_position(kind, result):
    """A result of another type raises an error with the partition and offset of its record."""

    async def handle(value: bytes): ...

    handle.__annotations__ = {"value": bytes, "return": kind}
    made = result_type(handlers_of(handle))
    places = [Record("t", 1, offset, None, b"", 0) for offset in (7, 8)]

    with pytest.raises(HandlerFailedError, match=r"^t\[1\] offset 8: the handler's result does not match"):
        rows_of(places, [None, result], made)
