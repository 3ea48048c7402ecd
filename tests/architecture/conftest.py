"""Parsed modules of ``src``, with their imports and definitions."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Import:
    """Imported name, such as ``tailrace.consumer.partition`` and ``Partition``."""

    module: str
    name: str | None
    line: int

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module


@dataclass(frozen=True)
class Module:
    """File of ``src``."""

    file: Path
    text: str = field(repr=False)
    tree: ast.Module = field(repr=False)

    @property
    def where(self) -> str:
        """Path in failure messages, such as ``tailrace/consumer/partition.py``."""
        return self.file.relative_to(SOURCE).as_posix()

    @property
    def name(self) -> str:
        """Import name: ``tailrace.consumer.partition``, or ``tailrace.core`` for its ``__init__``."""
        parts = self.file.relative_to(SOURCE).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def is_package(self) -> bool:
        return self.file.name == "__init__.py"

    @functools.cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree."""
        return list(ast.walk(self.tree))

    @functools.cached_property
    def all_imports(self) -> list[Import]:
        return list(self._imports(self.nodes))

    def imports(self, *, at_import_time: bool = False) -> Iterable[Import]:
        """Return all imports, or with ``at_import_time`` only those outside functions and TYPE_CHECKING."""
        return self._imports(_run_at_import(self.tree)) if at_import_time else self.all_imports

    def _imports(self, nodes: Iterable[ast.AST]) -> Iterator[Import]:
        for node in nodes:
            match node:
                case ast.Import(names):
                    yield from (Import(one.name, None, node.lineno) for one in names)
                case ast.ImportFrom(module, names, level):
                    start = self.name.split(".")[: len(self.name.split(".")) - level + self.is_package] if level else []
                    source = ".".join([*start, *([module] if module else [])])
                    yield from (Import(source, one.name, node.lineno) for one in names)
                case ast.Call(ast.Attribute(attr="import_module"), [ast.Constant(str(named)), *_]):
                    yield Import(named, None, node.lineno)

    def public_definitions(self) -> Iterator[tuple[str, ast.ClassDef | Function]]:
        """Yield public classes and functions, and public methods of public classes, by qualified name."""
        for node in self.tree.body:
            match node:
                case ast.ClassDef(name) if is_public(name):
                    yield name, node
                    for inner in node.body:
                        if isinstance(inner, Function) and is_public(inner.name):
                            yield f"{name}.{inner.name}", inner
                case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) if is_public(name):
                    yield name, node

    @property
    def exported(self) -> list[str] | None:
        """Names in ``__all__``; None without ``__all__``."""
        for node in self.tree.body:
            match node:
                case ast.Assign([ast.Name("__all__")], ast.List(names)):
                    return [ast.literal_eval(one) for one in names]
        return None


def is_public(name: str) -> bool:
    return not name.startswith("_")


def _run_at_import(tree: ast.Module) -> Iterator[ast.AST]:
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                continue
            case ast.If(ast.Name("TYPE_CHECKING")):
                waiting += node.orelse
                continue
        yield node
        waiting += ast.iter_child_nodes(node)


@pytest.fixture(scope="session")
def modules() -> list[Module]:
    """Return all modules of ``src``."""
    files = sorted(SOURCE.rglob("*.py"))
    found = [Module(file, text := file.read_text(encoding="utf-8"), ast.parse(text)) for file in files]
    assert len(found) > 50, f"is {SOURCE} the source?"
    return found
