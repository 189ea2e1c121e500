"""The sizes and habits that keep the sources readable, measured on every package."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# packages/_template is a part of core, seen from there
FILES = sorted(ROOT.glob("packages/[!_]*/src/**/*.py"))
PACKAGES = sorted({path.relative_to(ROOT).parts[1] for path in FILES})
FILE_LINES, FUNCTION_LINES, FUNCTION_P95 = 500, 80, 35
LATER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")

Function = ast.FunctionDef | ast.AsyncFunctionDef
every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT / "packages")))


@cache
def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def functions(path):
    return [node for node in ast.walk(tree(path)) if isinstance(node, Function)]


def length(function):
    return function.end_lineno - function.lineno + 1


def decorators(function):
    return {ast.unparse(node).split("(")[0].rsplit(".", 1)[-1] for node in function.decorator_list}


def public(path, node) -> Iterator[ast.AST]:
    """The classes, functions and methods that users may name; nested functions are nobody's."""
    for child in node.body:
        if isinstance(child, Function | ast.ClassDef) and not child.name.startswith("_"):
            if not decorators(child) & {"overload", "setter", "deleter"}:
                yield child
            if isinstance(child, ast.ClassDef):
                yield from public(path, child)


def untyped(function, in_class):
    """The names of arguments without an annotation, and `return`."""
    spec = function.args
    arguments = [*spec.posonlyargs, *spec.args]
    if in_class and "staticmethod" not in decorators(function):
        arguments = arguments[1:]
    arguments += [*spec.kwonlyargs, *filter(None, (spec.vararg, spec.kwarg))]
    missing = [argument.arg for argument in arguments if argument.annotation is None]
    return missing + ["return"] * (function.returns is None)


@every_file
def test_file_is_short(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= FILE_LINES


@every_file
def test_no_function_is_long(path):
    assert not {f.name: length(f) for f in functions(path) if length(f) > FUNCTION_LINES}


@pytest.mark.parametrize("package", PACKAGES)
def test_functions_are_short(package):
    found = [f for path in FILES if package in path.parts for f in functions(path)]
    lengths = sorted(map(length, found))
    assert not lengths or lengths[int(0.95 * (len(lengths) - 1))] <= FUNCTION_P95


@every_file
def test_everything_public_is_documented(path):
    private = any(part.startswith("_") and part != "__init__.py" for part in path.relative_to(ROOT).parts)
    nodes = [] if private else public(path, tree(path))
    missing = [f"{node.name} (line {node.lineno})" for node in nodes if not ast.get_docstring(node)]
    assert ast.get_docstring(tree(path)), "the module says nothing about itself"
    assert not missing


@every_file
def test_everything_is_typed(path):
    methods = {
        id(child) for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef) for child in node.body
    }
    bad = {f"{f.name} (line {f.lineno})": untyped(f, id(f) in methods) for f in functions(path)}
    assert not {name: missing for name, missing in bad.items() if missing}


@every_file
def test_nothing_is_left_for_later(path):
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    comments = [token for token in tokens if token.type == tokenize.COMMENT]
    assert not [f"line {token.start[0]}" for token in comments if LATER.search(token.string)]


def test_the_sources_were_found():
    assert PACKAGES == ["torchtpu-core", "torchtpu-dist", "torchtpu-kernels", "torchtpu-ops"]


def test_the_measures_can_fail():
    function = ast.parse("class A:\n    def f(self, x, *y, z: int = 0): ...\n").body[0].body[0]
    assert untyped(function, in_class=True) == ["x", "y", "return"]
    assert LATER.search("# TODO: later") and not LATER.search("# a todos list")
