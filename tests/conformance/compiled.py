"""The operator database through torch.compile, each sample as one graph: the device beside "aot_eager" on the CPU."""

from __future__ import annotations

import collections
import time
from collections.abc import Iterable
from typing import Any

import torch
import torch._dynamo
from tests.conformance import harness


def call(case: harness.Case, sample: Any, device: str, backend: str = "tpu") -> Any:
    """The operator's value on ``device``, compiled; errors are Dynamo's and the backend's."""
    torch._dynamo.reset()
    torch.manual_seed(1)
    first, args, kwargs = harness.moved(case, sample, device)
    function = case.op.op

    def run(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return torch.compile(run, backend=backend, fullgraph=True)(first, *args, **kwargs)


def handled(case: harness.Case, sample: Any) -> bool:
    """Whether Dynamo and AOTAutograd can make one graph of the sample on the CPU."""
    try:
        with harness.alarm():
            call(case, sample, "cpu", "aot_eager")
    except Exception:
        return False
    return True


def count(cases: Iterable[harness.Case], limit: int | None) -> dict[str, int]:
    """Print what differs; how many samples torch can compile, and of how many the value is right here."""
    found: dict[str, int] = collections.Counter()
    slow = {}
    for case in cases:
        start = time.monotonic()
        for number, sample in enumerate(harness.samples(case, limit)):
            found["samples"] += 1
            if not handled(case, sample):
                continue
            found["handled"] += 1
            why = harness.check(case, sample, call)
            found["right"] += why is None
            if why is not None:
                print(f"{case} #{number}: {' '.join(why.split())[:300]}", flush=True)
        slow[str(case)] = time.monotonic() - start
    print("slowest:", sorted(slow.items(), key=lambda x: -x[1])[:10])
    return found


def report(found: dict[str, int]) -> str:
    """The share as a sentence."""
    share = 100 * found["right"] / max(1, found["handled"])
    return (
        f"torch.compile: {found['samples']} samples, {found['handled']} of them one graph for aot_eager on the CPU; "
        f"{found['right']} of those right on the device: {share:.2f} %"
    )
