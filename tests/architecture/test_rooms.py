"""Folders are the import order, the core is pure, and each part of aiokafka has one door."""

from __future__ import annotations

import ast
from pathlib import PurePosixPath

# From the top down; what stands on one line does not know each other. `__init__` is the package's own front page.
ORDER = [
    {"testing"},
    {"__main__"},
    {"cli"},
    {"dashboard"},
    {"spark", "integrations"},
    {"__init__"},
    {"app"},
    {"consumer", "admin"},
    {"net", "embedded"},
    {"wire", "core"},
    {"observe"},
    {"messages"},
    {"config"},
    {"errors"},
    {"records", "error_codes"},
]
FLOOR = {room: len(ORDER) - height for height, rooms in enumerate(ORDER) for room in rooms}

IMPURE = {
    "aiokafka",
    "anyio",
    "asyncio",
    "concurrent",
    "datetime",
    "logging",
    "multiprocessing",
    "os",
    "pathlib",
    "random",
    "secrets",
    "select",
    "selectors",
    "signal",
    "socket",
    "ssl",
    "structlog",
    "subprocess",
    "sys",
    "tempfile",
    "threading",
    "time",
}

CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep", "time", "time_ns"}


def room_of(path: str, known: set[str]) -> str | None:
    """The room in which ``penstock.…`` is; None for what is not ours."""
    parts = path.split(".")
    if parts[0] != "penstock":
        return None
    # `from penstock import Consumer` names no module: it reads the front page.
    return parts[1] if len(parts) > 1 and f"penstock.{parts[1]}" in known else "__init__"


def test_every_room_has_its_place(modules):
    """No folder and no file of the package stands outside of the import order."""
    known = {module.name for module in modules}

    rooms = {room_of(module.name, known) for module in modules} - {None}

    assert rooms <= FLOOR.keys()
    assert {"consumer", "net", "embedded", "wire", "core", "observe", "messages", "config", "errors"} <= rooms


def test_a_room_imports_only_what_is_below_it(modules):
    """No room knows one above it or beside it, under TYPE_CHECKING neither."""
    known = {module.name for module in modules}
    wrong = []
    for module in modules:
        here = room_of(module.name, known)
        for one in module.imports():
            there = room_of(one.path, known)
            if here is None or there is None or here == there:
                continue
            if FLOOR[there] >= FLOOR[here]:
                wrong.append(f"{module.where}:{one.line}: {here} imports {one.path}")

    assert not wrong, "\n".join(wrong)


def test_rooms_do_not_import_each_other_in_a_circle(modules):
    """Within a room, too, modules have an order: none imports itself by way of others."""
    known = {module.name for module in modules}
    edges: dict[str, set[str]] = {}
    for module in modules:
        named = {name for one in module.imports() for name in (one.path, one.module) if name in known}
        # A package's front page is read before its modules; that alone is no circle.
        edges[module.name] = {name for name in named if not module.name.startswith(f"{name}.")} - {module.name}

    done: set[str] = set()
    while ready := {name for name, needs in edges.items() if name not in done and needs <= done}:
        done |= ready

    assert sorted(edges.keys() - done) == []


def test_the_core_is_pure(modules):
    """Nothing in core/, wire/ and the nouns below has a clock, dice, a loop, a thread, a file, a socket or a log."""
    wrong = []
    for module in modules:
        if not module.name.startswith(("penstock.core", "penstock.wire", "penstock.messages", "penstock.records")):
            continue
        forbidden = IMPURE - {"aiokafka"} if ".wire" in module.name else IMPURE
        wrong += [
            f"{module.where}:{one.line}: {one.path}"
            for one in module.imports()
            if one.module.partition(".")[0] in forbidden or one.path.startswith("uuid.uuid")
        ]
        for node in ast.walk(module.tree):
            match node:
                case ast.Call(ast.Name("open" | "print" | "input" as does_io)):
                    wrong.append(f"{module.where}:{node.lineno}: {does_io}()")

    assert not wrong, "\n".join(wrong)


def test_each_part_of_aiokafka_has_one_door(modules):
    """Batches in wire/, SASL in net/, the producer in app/, their errors where they are raised, the rest nowhere."""
    doors = {
        "aiokafka.record": {"wire"},
        "aiokafka.conn": {"net"},
        "aiokafka.AIOKafkaProducer": {"app"},
        "aiokafka.abc.AbstractTokenProvider": {"app"},
        "aiokafka.producer": {"app"},
        "aiokafka.errors": {"wire", "net", "app"},
    }
    wrong = []
    for module in modules:
        room = PurePosixPath(module.where).parts[1:2]
        for one in module.imports():
            if one.module.partition(".")[0] != "aiokafka":
                continue
            allowed = [rooms for part, rooms in doors.items() if f"{one.path}.".startswith(f"{part}.")]
            if not allowed or not set(room) <= allowed[0]:
                wrong.append(f"{module.where}:{one.line}: {one.path}")

    assert not wrong, "\n".join(wrong)


def test_tasks_are_made_by_the_supervisor_alone(modules):
    """A task outside of a task group is easily forgotten: the supervisor makes one, `run` its main, a line its workers.

    A line's workers each have a context of their own, which no task group gives; it ends them all before it ends.
    """
    makers = {
        "penstock/app/batch_line.py": {"create_task"},
        "penstock/app/workers.py": {"create_task"},
        "penstock/consumer/supervisor.py": {"create_task", "ensure_future"},
        "penstock/consumer/run.py": {"ensure_future"},
    }
    wrong = []
    for module in modules:
        if module.name.startswith("penstock.testing"):
            continue  # its proxy has a loop of its own, in a thread of its own
        for node in ast.walk(module.tree):
            match node:
                case ast.Attribute(owner, "create_task" | "ensure_future" as maker) if is_loop(owner):
                    pass
                case ast.ImportFrom("asyncio", names) if {one.name for one in names} & {"create_task", "ensure_future"}:
                    maker = "an import"
                case _:
                    continue
            if maker not in makers.get(module.where, ()):
                wrong.append(f"{module.where}:{node.lineno}: {maker}")

    assert not wrong, "\n".join(wrong)


def is_loop(node: ast.expr) -> bool:
    """Whether it is asyncio itself or an event loop, by its name; a task group may make tasks."""
    return ast.unparse(node).removesuffix("()").rpartition(".")[2].endswith(("asyncio", "loop"))


# What a letter says, of when it failed and when it is due, is said and read on everybody's clock;
# so is a record's time.
EVERYBODYS_CLOCK = {f"penstock/{name}.py" for name in ("app/sources", "consumer/times", "spark/arrow_source")}


def test_time_is_passed_in(modules):
    """The clock of a consumer is its event loop's; only what runs outside of any loop looks at another."""
    wrong = []
    for module in modules:
        if module.name.startswith(("penstock.embedded", "penstock.cli", "penstock.testing")):
            continue
        for node in ast.walk(module.tree):
            match node:
                case ast.Attribute(ast.Name("time"), "time") if module.where in EVERYBODYS_CLOCK:
                    pass
                case ast.Attribute(ast.Name("time"), attribute) if attribute in CLOCKS:
                    wrong.append(f"{module.where}:{node.lineno}: time.{attribute}")
                case ast.ImportFrom("time", names) if {one.name for one in names} & CLOCKS:
                    wrong.append(f"{module.where}:{node.lineno}: from time import …")
                case ast.Attribute(ast.Name("datetime"), "now" | "utcnow" | "today" as attribute):
                    wrong.append(f"{module.where}:{node.lineno}: datetime.{attribute}")

    assert not wrong, "\n".join(wrong)


def test_the_pytest_plugin_costs_nothing_until_asked(modules):
    """Every pytest run loads the plugin: at import it touches pytest and the standard library alone."""
    plugin = next(module for module in modules if module.name == "pytest_penstock")

    imported = {one.module.partition(".")[0] for one in plugin.imports(at_import_time=True)}

    assert imported <= {"__future__", "collections", "contextlib", "typing", "pytest"}


def test_nothing_imports_the_pytest_plugin(modules):
    """It stands beside the package, and the package does without it."""
    assert [m.where for m in modules if any(one.module == "pytest_penstock" for one in m.imports())] == []
