"""Import order of packages, purity of core, and access to aiokafka."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

# From the top down; packages on one line do not import each other. `__init__` is that of tailrace.
LAYERS = [
    {"testing"},
    {"__main__"},
    {"cli"},
    {"dashboard"},
    {"spark", "integrations"},
    {"__init__"},
    {"app"},
    {"consumer", "admin", "producer"},
    {"codecs"},
    {"embedded"},
    {"net"},
    {"core"},
    {"batches"},
    {"protocol"},
    {"observe", "signals"},
    {"config"},
    {"awaitables"},
    {"errors"},
    {"records", "values", "error_codes", "installation"},
    {"context_managers", "user_exceptions"},
    {"_native"},
]
HEIGHT = {package: len(LAYERS) - number for number, packages in enumerate(LAYERS) for package in packages}

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


def package_of(path: str, known: set[str]) -> str | None:
    """Return the top-level package or module of ``tailrace.…``; None for other imports."""
    parts = path.split(".")
    if parts[0] != "tailrace":
        return None
    # `from tailrace import Consumer` names no module: it imports tailrace itself.
    # The compiled module has no source in Python.
    is_module = len(parts) > 1 and (f"tailrace.{parts[1]}" in known or parts[1] == "_native")
    return parts[1] if is_module else "__init__"


def imported_modules(modules) -> dict[str, set[str]]:
    """Return the modules of tailrace that each module imports, also under TYPE_CHECKING and inside functions."""
    known = {module.name for module in modules}
    edges: dict[str, set[str]] = {}
    for module in modules:
        named = {one.path if one.path in known else one.module for one in module.imports()}
        edges[module.name] = named & known - {module.name}
    return edges


def test_every_package_has_its_layer(modules):
    """All packages and top-level modules are in the import order."""
    known = {module.name for module in modules}

    packages = {package_of(module.name, known) for module in modules} - {None}

    assert packages <= HEIGHT.keys()
    assert {"app", "consumer", "producer", "net", "embedded", "core", "protocol", "batches", "config"} <= packages


def test_a_package_imports_only_what_is_below_it(modules):
    """A package imports only packages below it, also under TYPE_CHECKING."""
    known = {module.name for module in modules}
    wrong = []
    for module in modules:
        here = package_of(module.name, known)
        for one in module.imports():
            there = package_of(one.path, known)
            if here is None or there is None or here == there:
                continue
            if HEIGHT[there] >= HEIGHT[here]:
                wrong.append(f"{module.where}:{one.line}: {here} imports {one.path}")

    assert not wrong, "\n".join(wrong)


def test_no_folder_imports_in_a_circle(modules):
    """The subfolders and modules of each folder have an import order."""
    edges = imported_modules(modules)
    circles = {}
    for folder in sorted({name.rpartition(".")[0] for name in edges} - {""}):
        siblings: dict[str, set[str]] = defaultdict(set)
        for name, needs in edges.items():
            if (here := child_of(folder, name)) is not None:
                siblings[here] |= {there for need in needs if (there := child_of(folder, need))} - {here}
        done: set[str] = set()
        while ready := {name for name, needs in siblings.items() if name not in done and needs <= done}:
            done |= ready
        if left := sorted(siblings.keys() - done):
            circles[folder] = left

    assert circles == {}


def child_of(folder: str, name: str) -> str | None:
    """Return the subfolder or module of ``folder`` that contains the module ``name``."""
    return name[len(folder) + 1 :].partition(".")[0] if name.startswith(f"{folder}.") else None


def test_class_names_are_unique(modules):
    """No two classes, private ones included, have the same name."""
    places: dict[str, list[str]] = defaultdict(list)
    for module in modules:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(module.where)

    assert {name: where for name, where in places.items() if len(where) > 1} == {}


LEAST_PURE = 50
"""Number of pure modules. A lower number means that a module has become impure, or was folded into another one."""

PURE = "Pure: no clock, IO or logging."
"""Sentence with which the docstring of a module declares it pure."""


def is_pure(module) -> bool:
    """Return True for a module that declares itself pure, or whose whole package is."""
    in_pure_package = (
        module.name.startswith(("tailrace.core.", "tailrace.protocol.")) or module.name == "tailrace.records"
    )
    return in_pure_package or PURE in (ast.get_docstring(module.tree) or "")


def test_modules_of_core_declare_themselves_pure(modules):
    """Each module of core/ says that it is pure, as pure modules of other packages do."""
    silent = [m.where for m in modules if m.name.startswith("tailrace.core.") and not m.is_package]

    assert [m.where for m in modules if m.where in silent and PURE not in (ast.get_docstring(m.tree) or "")] == []


def test_pure_modules_are_pure(modules):
    """Pure modules import, directly or indirectly, no clock, IO, logging or aiokafka."""
    by_name = {module.name: module for module in modules}
    edges = imported_modules(modules)
    reached: set[str] = set()
    waiting = [module.name for module in modules if is_pure(module)]
    assert len(waiting) >= LEAST_PURE
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += edges[name]
    wrong = []
    for module in (by_name[name] for name in sorted(reached)):
        wrong += [
            f"{module.where}:{one.line}: {one.path}"
            for one in module.imports()
            if one.module.partition(".")[0] in IMPURE or one.path.startswith("uuid.uuid")
        ]
        for node in module.nodes:
            match node:
                case ast.Call(ast.Name("open" | "print" | "input" as does_io)):
                    wrong.append(f"{module.where}:{node.lineno}: {does_io}()")

    assert not wrong, "\n".join(wrong)


def test_only_batches_and_security_use_aiokafka(modules):
    """Modules of batches/ use aiokafka's record batches and net/security.py its authenticators, and no other names.

    A new minor version of aiokafka may change these names; ``tests/batches`` and ``tests/net`` run them.
    """
    names = {
        "aiokafka.record.default_records.DefaultRecordBatch": "batches/record_batch.py",
        "aiokafka.record.default_records.DefaultRecordBatchBuilder": "batches/batch_writer.py",
        "aiokafka.record.util.calc_crc32c": "batches/",
        "aiokafka.conn.OAuthAuthenticator": "net/security.py",
        "aiokafka.conn.SaslGSSAPIAuthenticator": "net/security.py",
        "aiokafka.conn.SaslPlainAuthenticator": "net/security.py",
        "aiokafka.conn.ScramAuthenticator": "net/security.py",
    }
    used = [(module.where, one) for module in modules for one in module.imports() if one.module.startswith("aiokafka")]
    wrong = [
        f"{where}:{one.line}: {one.path}"
        for where, one in used
        if not where.startswith(f"tailrace/{names.get(one.path, '-')}")
    ]

    assert not wrong, "\n".join(wrong)
    assert {one.path for _, one in used} == set(names)


def test_tasks_are_created_in_known_modules(modules):
    """Tasks outside task groups are created by few modules, each for a reason.

    The supervisor and a producer keep their task group in a task, since other tasks may start and stop them. ``run``
    needs one for its main coroutine. Workers of an executor have contexts of their own, which task groups do not
    provide. A record that is enqueued within spans has a task that ends with its acknowledgment. A stop hook is
    abandoned if it ignores its cancellation, and a task group would wait for it. The relay of an outbox may be stopped
    by another task than the one that started it.
    """
    makers = {
        "tailrace/app/lifecycle.py": {"ensure_future"},
        "tailrace/app/dispatch/workers.py": {"create_task"},
        "tailrace/consumer/supervisor.py": {"create_task", "ensure_future"},
        "tailrace/producer/producer.py": {"create_task"},
        "tailrace/producer/runtime.py": {"create_task"},
        "tailrace/integrations/sql.py": {"create_task"},
        "tailrace/signals.py": {"ensure_future"},
    }
    wrong = []
    for module in modules:
        if module.name.startswith("tailrace.testing"):
            continue  # FaultProxy runs its own loop in a thread
        for node in module.nodes:
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


# Modules with positions that have no reset policy.
OTHER_POSITIONS = {"tailrace/spark/worker/task_runner.py", "tailrace/testing/topic_log.py"}


def test_one_module_of_the_consumer_starts_and_resets_positions(modules):
    """Only ``StartPositions`` changes a consumer's position at its start or a reset."""
    placing = "tailrace/consumer/positions/start_positions.py"
    calls: dict[str, list[str]] = defaultdict(list)
    for module in modules:
        for node in module.nodes:
            match node:
                case ast.Call(ast.Attribute(owner, "begin" | "reset" | "refuse")) if is_position(owner, module):
                    calls[module.where].append(f"{module.where}:{node.lineno}: {ast.unparse(node)}")
    wrong = [call for where in calls.keys() - OTHER_POSITIONS - {placing} for call in calls[where]]

    assert placing in calls
    assert not wrong, "\n".join(wrong)


DELIVERY = {"tailrace/core/progress.py", "tailrace/consumer/partition.py"}
DELIVERY_FIELDS = {
    "fetched",
    "delivered",
    "finished",
    "in_flight",
    "held_from",
    "committed",
    "committed_metadata",
    "committed_map",
    "delivered_epoch",
    "progress",
}


def test_one_module_changes_delivery_progress(modules):
    """Only the modules of delivery change its attributes; a class may change its own."""
    wrong = [
        f"{module.where}:{target.lineno}: {ast.unparse(target)}"
        for module in modules
        if module.where not in DELIVERY
        for node in module.nodes
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign)
        for one in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for target in ast.walk(one)
        if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store)
        if target.attr in DELIVERY_FIELDS and ast.unparse(target.value) != "self"
    ]

    assert not wrong, "\n".join(wrong)


def is_position(node: ast.expr, module) -> bool:
    """Return True for a position, by its name, or if no other class of the consumer has such methods."""
    name = ast.unparse(node).rpartition(".")[2]
    if module.name.startswith("tailrace.consumer.") and not module.name.startswith("tailrace.consumer.delivery."):
        return not name.endswith(("_callback", "_heartbeat"))  # a context variable; the timer of a membership
    return "position" in name or name == "partition"


def is_loop(node: ast.expr) -> bool:
    """Return True for asyncio itself or an event loop, by its name; task groups may create tasks."""
    return ast.unparse(node).removesuffix("()").rpartition(".")[2].endswith(("asyncio", "loop"))


# Timestamps of dead letters, records and spans, ends of tokens, and due times of retries, use the wall clock.
WALL_CLOCK = {
    f"tailrace/{name}.py"
    for name in (
        "app/publish/delays",
        "app/sources",
        "consumer/positions/start_positions",
        "integrations/opentelemetry",
        "integrations/sql",
        "net/token_providers",
        "spark/worker/task_runner",
    )
}


def test_clocks_are_those_of_the_event_loop(modules):
    """A consumer uses the clock of its event loop, and only code outside a loop uses another one."""
    wrong = []
    for module in modules:
        if module.name.startswith(("tailrace.embedded", "tailrace.cli", "tailrace.testing")):
            continue
        for node in module.nodes:
            match node:
                case ast.Attribute(ast.Name("time"), "time") if module.where in WALL_CLOCK:
                    pass
                case ast.Attribute(ast.Name("time"), attribute) if attribute in CLOCKS:
                    wrong.append(f"{module.where}:{node.lineno}: time.{attribute}")
                case ast.ImportFrom("time", names) if {one.name for one in names} & CLOCKS:
                    wrong.append(f"{module.where}:{node.lineno}: from time import …")
                case ast.Attribute(ast.Name("datetime"), "now" | "utcnow" | "today" as attribute):
                    wrong.append(f"{module.where}:{node.lineno}: datetime.{attribute}")

    assert not wrong, "\n".join(wrong)


def test_the_pytest_plugin_imports_only_pytest(modules):
    """The plugin, which each pytest run loads, imports only pytest and the standard library."""
    plugin = next(module for module in modules if module.name == "pytest_tailrace")

    imported = {one.module.partition(".")[0] for one in plugin.imports(at_import_time=True)}

    assert imported <= {"__future__", "collections", "contextlib", "os", "typing", "pytest"}


def test_the_module_with_the_data_source_imports_only_pyspark(modules):
    """The module that Spark imports in each session with a data source in Python does not import tailrace."""
    source = next(module for module in modules if module.name == "pyspark_tailrace")

    imported = {one.module.partition(".")[0] for one in source.imports(at_import_time=True)}

    assert imported <= {"__future__", "typing", "pyspark"}


def test_nothing_imports_the_plugins(modules):
    """No module of the package imports the plugin of pytest, or that of Spark."""
    plugins = {"pyspark_tailrace", "pytest_tailrace"}
    assert [m.where for m in modules if any(one.module in plugins for one in m.imports())] == []


def test_folders_of_tests_mirror_packages(modules):
    """Folders of tests have the names of packages, except those about the project as a whole."""
    tests = Path(__file__).parents[1]
    packages = {module.where.removeprefix("tailrace/").rpartition("/")[0] for module in modules} - {""}
    folders = {file.parent.relative_to(tests) for file in tests.rglob("test_*.py")}

    strays = {folder.as_posix() for folder in folders if not {folder.as_posix(), folder.parent.as_posix()} & packages}
    assert strays == {"architecture", "compat", "compatibility", "docs", "performance", "services", "typing"}
