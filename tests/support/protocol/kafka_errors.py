"""Error table of Kafka, read from the compiled enum ``Errors`` in the broker's jar.

No JDK is needed: the static initializer of an enum creates its constants one after the other, in code without branches,
so that a dozen instructions are enough to follow it (The Java Virtual Machine Specification, chapters 4 and 6).
"""

from __future__ import annotations

import struct
import zipfile
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from tailrace.embedded.jars import broker_class_path
from tailrace.protocol.encoding.primitives import FrameReader

ERRORS = "org/apache/kafka/common/protocol/Errors"
RETRIABLE = "org/apache/kafka/common/errors/RetriableException"


class KafkaError(NamedTuple):
    """Constant of the enum."""

    code: int
    name: str
    is_retriable: bool
    """True if the exception of the code is a RetriableException."""


@cache
def kafka_errors() -> tuple[KafkaError, ...]:
    """Return all error codes."""
    (jar,) = (path for path in broker_class_path() if path.name.startswith("kafka-clients"))
    with zipfile.ZipFile(jar) as archive:
        constants = _constants(_load(archive, ERRORS))
        exceptions = {exception for _, _, exception in constants if exception}
        retriable = {one for one in exceptions if RETRIABLE in _ancestors(archive, one)}
    return tuple(KafkaError(code, name, exception in retriable) for name, code, exception in constants)


# ---- class files -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Class:
    pool: dict[int, tuple[Any, ...]]
    parent: str
    initializer: bytes
    bootstraps: tuple[tuple[int, ...], ...]
    """Indices of the arguments of each lambda and method reference."""

    def named(self, index: int) -> str:
        """Return the name of a class, string or member."""
        (name,) = self.pool[self.pool[index][0]]
        return name


def _load(archive: zipfile.ZipFile, name: str) -> _Class:
    return _parse(FrameReader(archive.read(f"{name}.class")))


def _ancestors(archive: zipfile.ZipFile, name: str) -> set[str]:
    found = set()
    while name.startswith("org/apache/kafka"):
        found.add(name)
        name = _load(archive, name).parent
    return found


# Layout of each constant tag. Constants of eight bytes take two entries in the pool.
LAYOUTS = {3: "I", 4: "I", 5: "Q", 6: "Q", 7: "H", 8: "H", 9: "HH", 10: "HH", 11: "HH", 12: "HH", 15: "BH", 16: "H"}
LAYOUTS |= {17: "HH", 18: "HH", 19: "H", 20: "H"}


def _read(reader: FrameReader, layout: str) -> tuple[Any, ...]:
    return struct.unpack(f">{layout}", reader.view(struct.calcsize(f">{layout}")))


def _parse(reader: FrameReader) -> _Class:
    reader.view(8)
    pool: dict[int, tuple[Any, ...]] = {}
    (size,), index = _read(reader, "H"), 1
    while index < size:
        (tag,) = _read(reader, "B")
        pool[index] = (
            (str(reader.view(*_read(reader, "H")), "utf-8", "replace"),) if tag == 1 else _read(reader, LAYOUTS[tag])
        )
        index += 2 if tag in {5, 6} else 1
    _, _, parent, interfaces = _read(reader, "HHHH")
    reader.view(2 * interfaces)
    initializer = b""
    for _members in ("fields", "methods"):
        for _ in range(*_read(reader, "H")):
            _, name, _ = _read(reader, "HHH")
            attributes = _attributes(reader, pool)
            if pool[name] == ("<clinit>",):
                initializer = attributes["Code"]
    bootstraps = _attributes(reader, pool).get("BootstrapMethods", b"\0\0")
    return _Class(pool, pool[pool[parent][0]][0], initializer, _arguments(FrameReader(bootstraps)))


def _attributes(reader: FrameReader, pool: dict[int, tuple[Any, ...]]) -> dict[str, bytes]:
    found = {}
    for _ in range(*_read(reader, "H")):
        name, length = _read(reader, "HI")
        found[pool[name][0]] = bytes(reader.view(length))
    return found


def _arguments(reader: FrameReader) -> tuple[tuple[int, ...], ...]:
    found = []
    for _ in range(*_read(reader, "H")):
        _, count = _read(reader, "HH")
        found.append(_read(reader, f"{count}H"))
    return tuple(found)


# ---- the initializer -------------------------------------------------------------------------------------------


# Instructions that push a number or null; instructions to skip, with the number of their operand bytes.
PUSHED = {1: None, 2: -1, 3: 0, 4: 1, 5: 2, 6: 3, 7: 4, 8: 5}
NEW, DUP, PUTSTATIC = 187, 89, 179
PASSED = {NEW: 2, DUP: 0, PUTSTATIC: 2}


def _constants(enum: _Class) -> list[tuple[str, int, str | None]]:
    """Return name, code and exception of each constant, from the arguments of its constructor."""
    code = FrameReader(enum.initializer)
    code.view(8)
    found, stack = [], []
    while True:
        (instruction,) = _read(code, "B")
        if instruction in PASSED:
            code.view(PASSED[instruction])
        elif instruction in PUSHED:
            stack.append(PUSHED[instruction])
        elif instruction in {16, 17}:  # bipush, sipush
            stack += _read(code, "b" if instruction == 16 else "h")
        elif instruction in {18, 19}:  # ldc, ldc_w
            stack.append(enum.named(*_read(code, "B" if instruction == 18 else "H")))
        elif instruction == 186:  # invokedynamic: the function that makes the exception
            index, _ = _read(code, "HH")
            stack.append(_made_by(enum, *enum.bootstraps[enum.pool[index][0]]))
        elif instruction == 183:  # invokespecial: the constructor
            code.view(2)
            name, _ordinal, number, _message, exception = stack
            found.append((name, number, exception))
            stack = []
        else:  # all constants are created
            return found


def _made_by(enum: _Class, _signature: int, method: int, _type: int) -> str | None:
    """Return the class whose constructor a method reference refers to, or None for a lambda."""
    _, member = enum.pool[method]
    owner, name_and_type = enum.pool[member]
    return enum.named(owner) if enum.named(name_and_type) == "<init>" else None
