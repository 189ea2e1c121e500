"""The operator database through the TPU's own compiler, with no TPU: every operator compiles or is declared host work.

The first sample of each operator here; ``python -m tests.conformance.aot --limit 0`` tries all.
"""

import pytest
import torch
from tests.conformance import harness
from tests.conformance.aot import compile_all


@pytest.mark.parametrize(
    "topology,dtype", [("v5e:2x2", torch.float32), ("tpu7x:2x2x1", torch.bfloat16)], ids=str
)
def test_every_operator_compiles(topology, dtype):
    counts, refused = compile_all(list(harness.cases((dtype,), ("forward",))), (topology,), 1)
    assert not refused, "\n".join(f"{r.case} {r.program}: {r.why[:300]}" for r in refused)
    assert counts[topology] > 700
    # what XLA's TPU compiler has no algorithm for
    assert counts.get(f"{topology} on the host", 0) < 10
