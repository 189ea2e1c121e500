"""Symbolic sizes of a graph and their values in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx


class Symbols:
    """Values of the symbols that the inputs' sizes bind."""

    def __init__(self, nodes: Sequence[fx.Node], args: Sequence[Any]) -> None:
        self.known: dict[Any, int] = {}
        for node, value in zip(nodes, args, strict=True):
            meta = node.meta.get("val")
            if isinstance(meta, torch.SymInt):
                self._bind(meta, value)
            elif isinstance(meta, torch.Tensor) and isinstance(value, torch.Tensor):
                for symbolic, actual in zip(meta.shape, value.shape, strict=True):
                    self._bind(symbolic, actual)
                for symbolic, actual in zip(meta.stride(), value.stride(), strict=True):
                    self._bind(symbolic, actual)

    @classmethod
    def of(cls, values: Mapping[Any, int]) -> Symbols:
        """Symbols with these values."""
        made = cls((), ())
        made.known = dict(values)
        return made

    def _bind(self, symbolic: Any, actual: int) -> None:
        if isinstance(symbolic, torch.SymInt) and symbolic.node.expr.is_Symbol:
            self.known.setdefault(symbolic.node.expr, int(actual))

    def value(self, size: Any) -> int:
        """The number behind a size that may be symbolic."""
        if isinstance(size, torch.SymInt):
            return int(size.node.expr.xreplace(self.known))
        return int(size)
