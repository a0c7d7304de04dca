"""The project's own Python files, parsed once."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("scheduler_core", "gpu_runner", "controlplane", "headway", "installer", "bench")


@dataclass(frozen=True)
class Source:
    """One module."""

    path: Path
    module: str
    text: str
    tree: ast.Module

    @property
    def shown(self) -> str:
        return str(self.path.relative_to(ROOT))


@cache
def sources() -> tuple[Source, ...]:
    """Every module of the product, migrations left out: Django writes those."""
    found = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "migrations" in path.parts:
                continue
            parts = path.relative_to(ROOT).with_suffix("").parts
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            text = path.read_text()
            found.append(Source(path, module, text, ast.parse(text)))
    return tuple(found)


def imports(source: Source, *, at_start_only: bool = False) -> Iterator[str]:
    """Dotted names that a module imports; ``at_start_only``: those run when it is imported, outside functions."""
    nodes = _running_at_import(source.tree) if at_start_only else ast.walk(source.tree)
    package = source.module if source.path.name == "__init__.py" else source.module.rpartition(".")[0]
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _running_at_import(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        yield child
        yield from _running_at_import(child)


def functions(source: Source) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions and methods, nested ones too."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def under(name: str, prefix: str) -> bool:
    """Whether dotted ``name`` is ``prefix`` or lies in it."""
    return name == prefix or name.startswith(prefix + ".")
