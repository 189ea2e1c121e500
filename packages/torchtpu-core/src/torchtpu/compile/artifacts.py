"""What the last compilations were made of: the FX graph, the jaxpr, StableHLO and XLA's optimised HLO."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend import core
from torch import fx


@dataclass(frozen=True, eq=False)
class Artifact:
    """One program of ``kind`` (``"forward"``, ``"backward"``, ``"inference"``); texts are made when asked for."""

    kind: str
    module: fx.GraphModule
    entry: Any

    @property
    def graph(self) -> str:
        """The ATen graph as Python code."""
        return self.module.print_readable(print_output=False)

    @property
    def jaxpr(self) -> str:
        """What the graph became in JAX."""
        return str(self.entry.closed)

    @property
    def stablehlo(self) -> str:
        """What XLA gets."""
        with jax.enable_x64(True):
            return jax.jit(core.jaxpr_as_fun(self.entry.closed)).lower(*self.entry.avals).as_text()

    @property
    def hlo(self) -> str:
        """What XLA makes of it; empty before the first run, and in fused mode, which compiles several at once."""
        return next((p.text() for p in self.entry.programs.values()), "")


recent: deque[Artifact] = deque(maxlen=8)


def last() -> Artifact:
    """The program that was traced last; LookupError if there is none."""
    if not recent:
        raise LookupError("nothing was compiled by torch.compile(backend='tpu') yet")
    return recent[-1]
