"""Docstrings, exports and size of modules."""

from __future__ import annotations

import ast
import inspect
import re
from collections import defaultdict
from functools import cache
from importlib import import_module
from pathlib import Path

from tests.support.docs_modules import docs_module

MOST_LINES = 1000

# Tables of names and fields.
TABLES = {"tailrace/observe/events.py"}

# Attributes, options of brokers, and properties of Spark, that begin with the name of a package.
WORDS = {"tailrace.config.group_id", "tailrace.producer.id", "tailrace.spark.redaction", "tailrace.spark.stop"}

FEW_LINES = 80

# Small modules with one user, each with the reason for being a file.
SMALL = {
    "tailrace/integrations/endpoints.py": "needs an optional package, which only --http-port imports",
    "tailrace/integrations/messaging_conventions.py": "names that the public module beside it must not export",
    "tailrace/testing/cluster.py": "public module",
}

# Documented by asyncio, which calls them.
CALLBACKS = {
    "buffer_updated",
    "connection_lost",
    "connection_made",
    "data_received",
    "eof_received",
    "get_buffer",
    "pause_writing",
    "resume_writing",
}


def test_every_module_has_a_docstring(modules):
    """Each module has a docstring."""
    assert [m.where for m in modules if not ast.get_docstring(m.tree)] == []


def test_classes_and_the_public_surface_have_docstrings(modules):
    """Each class has a docstring, and each function and method that users call, except messages and stubs."""
    silent = [
        f"{module.where}:{node.lineno}: {name}"
        for module in modules
        for name, node in module.public_definitions()
        if isinstance(node, ast.ClassDef) or (module.name, name) in public_functions()
        if not ast.get_docstring(node) and not speaks_for_itself(module, node)
    ]

    assert not silent, "\n".join(silent)


@cache
def public_functions() -> set[tuple[str, str]]:
    """Return the module and the qualified name of each function and method of the public packages."""
    packages = [import_module(one) for one in docs_module("public_api").PACKAGES]
    values = [getattr(package, name) for package in packages for name in package.__all__]
    classes = {base for value in values if inspect.isclass(value) for base in value.__mro__}
    members = [(base, one) for base in classes for one in vars(base).values()]
    return {(one.__module__, one.__qualname__) for one in values if inspect.isfunction(one)} | {
        (base.__module__, f"{base.__qualname__}.{name}")
        for base, one in members
        if base.__module__.startswith("tailrace") and (name := name_of(one))
    }


def name_of(member: object) -> str | None:
    """Return the name of a method or property."""
    return getattr(getattr(member, "fget", member), "__name__", None)


def speaks_for_itself(module, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    decorators = {ast.unparse(one).partition("(")[0].rpartition(".")[2] for one in node.decorator_list}
    if isinstance(node, ast.ClassDef):
        return module.name.startswith("tailrace.protocol.") and is_message(node)
    return is_stub(node) or node.name in CALLBACKS | stubs_of(module) or bool(decorators & {"override", "setter"})


def is_message(node: ast.ClassDef) -> bool:
    """Return True for a declared message: a subclass of ApiMessage, Request or another message."""
    bases = {ast.unparse(base).partition("[")[0] for base in node.bases}
    return bool(bases & {"ApiMessage", "Request", "TopicResult"})


def is_stub(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return True for a stub of a Protocol or an overload."""
    return ast.unparse(node.body[-1]) == "..."


def stubs_of(module) -> set[str]:
    """Return the methods of the module's Protocols, whose docstrings apply to implementations."""
    return {
        node.name
        for name, node in module.public_definitions()
        if "." in name and not isinstance(node, ast.ClassDef) and is_stub(node) and not node.decorator_list
    }


def test_exported_names_exist(modules):
    """Each name of ``__all__`` can be imported."""
    missing = [
        f"{module.name}.{name}"
        for module in modules
        for name in module.exported or ()
        if not hasattr(import_module(module.name), name)
    ]

    assert not missing, "\n".join(missing)


def test_exports_are_sorted(modules):
    """``__all__`` has constants, classes and functions in this order, each sorted and without duplicates."""

    def place(name: str) -> tuple[object, ...]:
        kind = 0 if name.isupper() else 1 if name[0].isupper() else 2
        return kind, [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]

    wrong = [m.where for m in modules if m.exported and m.exported != sorted(set(m.exported), key=place)]

    assert not wrong, "\n".join(wrong)


def test_exports_are_complete(modules):
    """``__all__`` has all public classes and functions and all imported names, and no private one."""
    known = {module.name: module for module in modules}
    imported: dict[str, set[str]] = {name: set() for name in known}
    for module in modules:
        for one in module.imports():
            if one.module in known and one.name and f"{one.module}.{one.name}" not in known:
                imported[one.module].add(one.name)

    wrong = []
    for name, module in known.items():
        defined = {full for full, _ in module.public_definitions() if "." not in full}
        needed = defined | {one for one in imported[name] if is_defined_in(module, one)}
        wrong += [f"{module.where}: {one} is missing" for one in sorted(needed - set(module.exported or ()))]
        wrong += [f"{module.where}: {one} is private" for one in module.exported or () if one.startswith("_")]

    assert not wrong, "\n".join(wrong)


def is_defined_in(module, name: str) -> bool:
    """Return True if the module defines or re-exports the name, instead of being a plain package."""
    return not module.is_package or bool(module.exported)


def test_a_file_tells_one_story(modules):
    """A file has at most 1,000 lines, except tables; a longer one usually tells more than one story."""
    long = {m.where: lines for m in modules if (lines := m.text.count("\n")) > MOST_LINES}

    assert long.keys() <= TABLES, long


def test_a_small_module_has_several_users(modules):
    """A module of less than 80 lines with one user is part of this user, or on a list with a reason."""
    by_name = {module.name: module for module in modules}
    users = defaultdict(set)
    for module in modules:
        for one in module.imports():
            users[one.path if one.path in by_name else one.module].add(module.name)
    small = {
        by_name[name].where
        for name, names in users.items()
        if name in by_name and len(names) == 1 and by_name[name].text.count("\n") < FEW_LINES
        if not by_name[name].is_package
    }

    assert small == SMALL.keys()


def test_the_module_map_names_modules_that_exist(modules):
    """Each module that the module map names exists."""
    page = Path(__file__).parents[2] / "docs" / "explanation" / "module-map.md"

    answers = re.findall(r"\? \| `([\w/]+\.py)` \|", page.read_text(encoding="utf-8"))

    assert len(answers) == 20
    assert {f"tailrace/{answer}" for answer in answers} <= {module.where for module in modules}


def test_modules_that_docstrings_name_exist(modules):
    """A dotted name in double backquotes that begins with a package of tailrace is that of a module or of its part."""
    known = {module.name: module for module in modules}
    packages = {name.split(".")[1] for name in known if name.count(".") > 1}
    wrong = []
    for module in modules:
        for name in re.findall(r"``([a-z_]\w*(?:\.\w+)+)``", module.text):
            parts = name.split(".")
            if parts[0] not in packages or f"tailrace.{parts[0]}.{parts[1]}" in WORDS:
                continue
            longest = next((n for n in range(len(parts), 0, -1) if ".".join(["tailrace", *parts[:n]]) in known), 0)
            rest = parts[longest:]
            owner = known.get(".".join(["tailrace", *parts[:longest]]))
            if owner is None or (rest and not re.search(rf"\b{rest[0]}\b", owner.text)):
                wrong.append(f"{module.where}: {name}")

    assert wrong == []
