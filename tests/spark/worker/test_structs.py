"""Pickling of Struct classes of a script for a process that cannot import them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tailrace import App, ConfigurationError
from tailrace.config import resolve
from tailrace.spark.handler_selection import select_handlers
from tailrace.spark.worker.shipment import pack

_SCRIPT = """
{future}
import pickle, sys
from typing import Annotated, Any, ClassVar, Generic, Optional, TypeVar
import msgspec
from tailrace import App
from tailrace.config import resolve
from tailrace.spark.handler_selection import select_handlers
from tailrace.spark.worker.shipment import pack

T = TypeVar("T")


class Base(msgspec.Struct, tag=True, rename="camel"):
    RATE: ClassVar[int] = 3
    kinds = {{}}
    order_id: int

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        Base.kinds[cls.__name__] = cls

    def __post_init__(self) -> None:
        if self.order_id < 0:
            raise ValueError("negative order_id")

    def describe(self) -> str:
        return f"order {{self.order_id}}"


class Paid(Base, frozen=True, kw_only=True):
    total_cents: Annotated[int, msgspec.Meta(ge=0)]
    lines: list[str] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.total_cents > 1_000:
            raise ValueError("too much")

    def describe(self) -> str:
        return super().describe() + f" paid {{self.total_cents * self.RATE}}"

    @classmethod
    def free(cls) -> "Paid":
        return cls(order_id=1, total_cents=0)

    @property
    def is_free(self) -> bool:
        return not self.total_cents

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Paid)


class Node(msgspec.Struct):
    value: int
    next: "Optional[Node]" = None
    inner: "list[Leaf]" = []


class Leaf(msgspec.Struct):
    parent: "Optional[Node]" = None


class Box(msgspec.Struct, Generic[T]):
    item: T
    size: int = 1


class IntBox(Box[int], array_like=True):
    note: Optional[str] = None


app = App(bootstrap_servers="localhost:9", group_id="g")


@app.handler("t")
async def handle(order: Paid) -> dict:
    return check(order)


def check(order: Paid) -> dict:
    decode = msgspec.json.decode
    chain = decode(b'{{"value": 1, "next": {{"value": 2}}, "inner": [{{"parent": {{"value": 3}}}}]}}', type=Node)
    boxed = decode(b'{{"item": {{"value": 4}}}}', type=Box[Node])
    refused = []
    for number, cents in ((-1, 5), (1, 5000), (1, -5)):
        try:
            decode(b'{{"type": "Paid", "orderId": %d, "totalCents": %d}}' % (number, cents), type=Paid)
        except msgspec.ValidationError as error:
            refused.append(str(error).partition(" -")[0])
    return {{
        "base": isinstance(order, Base), "registered": Base.kinds["Paid"] is Paid, "text": order.describe(),
        "free": Paid.free().is_free, "equal": order == Paid.free(), "lines": order.lines, "doc": order.RATE,
        "chain": [chain.next.value, type(chain.next) is Node],
        "inner": [chain.inner[0].parent.value, type(chain.inner[0]) is Leaf],
        "boxed": [boxed.item.value, type(boxed.item) is Node, decode(b'[7]', type=IntBox).item],
        "refused": refused, "name": Paid.__qualname__,
        "repr": repr(chain.next), "encoded": msgspec.json.encode(order).decode(),
    }}


if __name__ == "__main__":
    shipment = pack(app, None, select_handlers(app, "handle", "g"), resolve(app.options), has_sink=False)
    pickle.dump(shipment, open(sys.argv[1], "wb"))
    order = msgspec.json.decode(b'{{"type": "Paid", "orderId": 7, "totalCents": 5}}', type=Paid)
    print(check(order))
"""

_WORKER = """
import asyncio, pickle, sys, typing
import msgspec
from tailrace.spark.worker.shipment import unpack

app = unpack(pickle.load(open(sys.argv[1], "rb")))
handle = app.declared[0].function
kind = typing.get_type_hints(handle)["order"]
order = msgspec.json.decode(b'{"type": "Paid", "orderId": 7, "totalCents": 5}', type=kind)
print(asyncio.run(handle(order)))
"""


@pytest.mark.parametrize("future", ["", "from __future__ import annotations"], ids=["types", "text"])
def test_structs_of_a_script_are_restored_completely(tmp_path, future):
    """Struct classes of a script are restored with bases, class variables, methods and all kinds of fields."""
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT.format(future=future))
    there = tmp_path / "there"
    there.mkdir()

    here = output_of(script, "../shipped", folder=there)
    (there / "worker.py").write_text(_WORKER)
    arrived = output_of(there / "worker.py", "../shipped", folder=there)

    assert "'base': True" in here
    assert "'refused': ['negative order_id', 'too much', 'Expected `int` >= 0']" in here
    assert arrived == here


def output_of(script: Path, *arguments: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(script), *arguments], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_struct_that_cannot_be_restored_is_refused():
    """A class whose base requires arguments at its definition raises an error with its name."""

    class Registered(msgspec.Struct):
        def __init_subclass__(cls, **options: object) -> None:
            super().__init_subclass__(**options)
            if not hasattr(cls, "__post_init__"):
                raise TypeError("a subclass needs __post_init__")

    class Order(Registered):
        total: int

        def __post_init__(self) -> None: ...

    del Order.__post_init__
    app = App(bootstrap_servers="localhost:9", group_id="g")

    async def handle(order: Order) -> None: ...

    handle.__annotations__ = {"order": Order, "return": None}
    app.handler("t")(handle)

    with pytest.raises(ConfigurationError, match=r"Order cannot be sent to Spark's workers.*needs __post_init__"):
        pack(app, None, select_handlers(app, "handle", "g"), resolve(app.options), has_sink=False)
