"""Strict mode: one program per operator, launched at once and not waited for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchtpu.dispatch.build import Entry
from torchtpu.runtime import transfer
from torchtpu.tensors.pending import resolve
from torchtpu.tensors.storage import materialize


def run(entry: Entry, stores: Sequence[Any], scalars: Sequence[tuple[type, Any]], state: Any) -> list[Any]:
    """Compile the call if need be and launch it; memory of overwritten storages is reused."""
    program = entry.program(tuple(p for p in entry.writes if not stores[p].shared))
    inputs, count = [], len(stores)
    total = count + len(scalars)
    for k in program.kept:
        if k < count:
            inputs.append(materialize(stores[k]))
        elif k < total:
            inputs.append(transfer.scalar(*scalars[k - count]))
        else:
            inputs.append(resolve(state, "a random operator outside the graph"))
    return program.run(inputs)
