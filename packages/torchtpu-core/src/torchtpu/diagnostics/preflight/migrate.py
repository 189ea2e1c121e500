"""Reads a script that says "cuda" as one that says "tpu", and lists every place."""

from __future__ import annotations

import ast
import re
from types import CodeType
from typing import Any

from . import cuda
from .record import Replacement

_DEVICE = re.compile(r"cuda(:\d+)?")
_HERE = cuda.__name__


class _Rewrite(ast.NodeTransformer):
    def __init__(self, path: str) -> None:
        self.path = path
        self.found: list[Replacement] = []

    def _note(self, node: Any, found: str, used: str) -> None:
        self.found.append(Replacement(f"{self.path}:{node.lineno}", found, used))

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Names of devices and of the communication backend."""
        if isinstance(node.value, str):
            if _DEVICE.fullmatch(node.value):
                self._note(node, repr(node.value), "'tpu'")
                return ast.copy_location(ast.Constant("tpu"), node)
            if node.value == "nccl":
                self._note(node, "'nccl'", "'tpu_dist'")
                return ast.copy_location(ast.Constant("tpu_dist"), node)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        """``f"cuda:{rank}"``: a process has one device."""
        first = node.values[0] if node.values else None
        if isinstance(first, ast.Constant) and first.value == "cuda:":
            self._note(node, ast.unparse(node), "'tpu'")
            return ast.copy_location(ast.Constant("tpu"), node)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """``x.cuda(…)``."""
        called = node.func
        if isinstance(called, ast.Attribute) and called.attr == "cuda" and len(node.args) < 3:
            self._note(called, ".cuda(…)", '.to("tpu")')
            keywords = [k for k in node.keywords if k.arg != "device"]
            keywords += [ast.keyword("non_blocking", value) for value in node.args[1:]]
            method = ast.Attribute(self.visit(called.value), "to", ast.Load())
            made = ast.Call(method, [ast.Constant("tpu")], keywords)
            return ast.fix_missing_locations(ast.copy_location(made, node))
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """``torch.cuda.…``."""
        name = _dotted(node)
        if name == "torch.cuda" or name.startswith("torch.cuda."):
            short = name.removeprefix("torch.cuda").lstrip(".")
            self._note(node, name, cuda.replacement(short))
            return ast.fix_missing_locations(ast.copy_location(_module(short, node.ctx), node))
        if name.startswith(("torch.backends.cudnn", "torch.backends.cuda")):
            self._note(node, name, "nothing: it has no effect on a TPU")
            return node
        return self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        """``from torch.cuda[.amp] import …`` and ``from torch import cuda``."""
        module = node.module or ""
        if node.level == 0 and (module == "torch.cuda" or module.startswith("torch.cuda.")):
            short = module.removeprefix("torch.cuda").lstrip(".")
            made: list[ast.stmt] = []
            for alias in node.names:
                full = f"{short}.{alias.name}".lstrip(".")
                self._note(node, f"{module}.{alias.name}", cuda.replacement(full))
                target = ast.Name(alias.asname or alias.name, ast.Store())
                made.append(ast.Assign([target], _module(full, ast.Load())))
            return [ast.fix_missing_locations(ast.copy_location(m, node)) for m in made]
        if node.level == 0 and module == "torch" and any(a.name == "cuda" for a in node.names):
            return self._from_torch(node)
        return node

    def _from_torch(self, node: ast.ImportFrom) -> Any:
        name = next(a.asname or "cuda" for a in node.names if a.name == "cuda")
        self._note(node, "torch.cuda", "torch.tpu")
        made: list[ast.stmt] = [ast.Assign([ast.Name(name, ast.Store())], _module("", ast.Load()))]
        rest = [a for a in node.names if a.name != "cuda"]
        if rest:
            made.append(ast.ImportFrom("torch", rest, 0))
        return [ast.fix_missing_locations(ast.copy_location(m, node)) for m in made]


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""


def _module(name: str, context: ast.expr_context) -> ast.expr:
    """The expression of ``name`` in the module that stands for ``torch.cuda``."""
    found: ast.expr = ast.parse(f"__import__('importlib').import_module({_HERE!r})", mode="eval").body
    parts = name.split(".") if name else []
    for place, part in enumerate(parts):
        found = ast.Attribute(found, part, context if place == len(parts) - 1 else ast.Load())
    return found


def rewritten(source: str | bytes, path: str) -> tuple[CodeType, list[Replacement]]:
    """The code of ``source`` for the tpu device, lines unchanged, and what was replaced; SyntaxError as usual."""
    rewrite = _Rewrite(path)
    tree = rewrite.visit(ast.parse(source, path))
    return compile(tree, path, "exec", dont_inherit=True), rewrite.found


def argument(value: str) -> str:
    """An argument of the command line, ``cuda`` being ``tpu``."""
    head, equals, tail = value.rpartition("=")
    return f"{head}{equals}tpu" if _DEVICE.fullmatch(tail) else value
