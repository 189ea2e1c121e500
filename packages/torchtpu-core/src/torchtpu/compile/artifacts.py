"""What the last compilations were made of: the FX graph, the jaxpr, StableHLO and XLA's optimised HLO."""

from __future__ import annotations

import itertools
import logging
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax.extend import core
from torch import fx

from torchtpu import config

log = logging.getLogger(__name__)
_numbers = itertools.count(1)
TEXTS = {"graph": "py", "jaxpr": "txt", "stablehlo": "mlir", "hlo": "txt"}  # and the endings of their files


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


def keep(artifact: Artifact) -> str:
    """Note what was traced, and write or log it if that was asked for; its label, which `compiled` gets."""
    recent.append(artifact)
    label = f"{os.getpid()}-{next(_numbers):03}-{artifact.kind}"
    for name in ("graph", "jaxpr", "stablehlo"):
        _give(label, name, lambda name=name: getattr(artifact, name))  # type: ignore[misc]
    return label


def compiled(label: str, text: Callable[[], str]) -> None:
    """Write or log what XLA made of the program of ``label``."""
    _give(label, "hlo", text)


def _give(label: str, name: str, text: Callable[[], str]) -> None:
    """Into a file of the folder ``TORCHTPU_DUMP``, and to the log for those who listen (`TORCH_LOGS`)."""
    folder, logged = config.env("DUMP"), log.isEnabledFor(logging.DEBUG)
    if not folder and not logged:
        return
    made = text()
    if logged:
        log.debug("%s %s:\n%s", label, name, made)
    if folder and made:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / f"{label}.{name}.{TEXTS[name]}").write_text(made, encoding="utf-8")


def last() -> Artifact:
    """The program that was traced last; LookupError if there is none."""
    if not recent:
        raise LookupError("nothing was compiled by torch.compile(backend='tpu') yet")
    return recent[-1]
