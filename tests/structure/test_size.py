"""Budgets that keep the code readable: short files and functions, few parameters, names that say something."""

import ast
import statistics
from collections.abc import Iterator

from tests.structure.sources import PACKAGES, ROOT, functions, sources

FILE_LINES = 500
FUNCTION_LINES = 80
FUNCTION_LINES_P90 = 40
PARAMETERS = 7
DJANGO_S_OWN = {"get_form", "save_model"}  # overridden with Django's signature
EMPTY_NAMES = {"utils", "util", "helpers", "helper", "managers", "manager", "common", "misc"}


def _length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _positional(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[ast.arg, ast.expr | None]]:
    arguments = [*node.args.posonlyargs, *node.args.args]
    defaults = [None] * (len(arguments) - len(node.args.defaults)) + list(node.args.defaults)
    return zip(arguments, defaults, strict=True)


def test_files_are_short() -> None:
    files = [source.path for source in sources()]
    for folder in (*PACKAGES, "tests", "templates"):
        for suffix in ("*.js", "*.css", "*.html", "*.py"):
            files += (ROOT / folder).rglob(suffix)
    long = {
        str(path.relative_to(ROOT)): lines
        for path in files
        if "migrations" not in path.parts and (lines := len(path.read_text().splitlines())) > FILE_LINES
    }
    assert not long


def test_functions_are_short() -> None:
    lengths = {f"{s.shown}:{node.lineno} {node.name}": _length(node) for s in sources() for node in functions(s)}
    assert not {where: lines for where, lines in lengths.items() if lines > FUNCTION_LINES}
    assert statistics.quantiles(lengths.values(), n=10)[-1] <= FUNCTION_LINES_P90


def test_functions_take_few_parameters() -> None:
    crowded = []
    for source in sources():
        for node in functions(source):
            if any(ast.unparse(decorator) == "triton.jit" for decorator in node.decorator_list):
                continue  # a kernel is launched with every pointer and constant it uses
            names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            if len([name for name in names if name not in ("self", "cls")]) > PARAMETERS:
                crowded.append(f"{source.shown}:{node.lineno} {node.name}")
    assert not crowded


def test_truth_values_are_passed_by_name() -> None:
    """A bare True at a call of a public function says nothing; overridden signatures are not ours to choose."""
    unclear = []
    for source in sources():
        for node in functions(source):
            for argument, default in _positional(node):
                is_bool = isinstance(argument.annotation, ast.Name) and argument.annotation.id == "bool"
                by_default = isinstance(default, ast.Constant) and isinstance(default.value, bool)
                if (is_bool or by_default) and not _is_exempt(node):
                    unclear.append(f"{source.shown}:{node.lineno} {node.name}({argument.arg})")
    assert not unclear


def _is_exempt(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    setter = any(isinstance(d, ast.Attribute) and d.attr == "setter" for d in node.decorator_list)
    return setter or node.name.startswith("_") or node.name in DJANGO_S_OWN


def test_modules_are_named_after_what_they_hold() -> None:
    assert not [source.shown for source in sources() if source.path.stem in EMPTY_NAMES]
