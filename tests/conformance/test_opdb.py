"""torch's operator database on the device: every operator, dtype and way of calling it, a few samples each."""

from __future__ import annotations

import re

import pytest
import torch
from tests.conformance.allowed import ALLOWED, allowed
from tests.conformance.harness import cases, check, samples
from torch.testing._internal.common_methods_invocations import op_db

# all kinds of calls, two samples each; the others only forward and one
MAIN = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)
MORE = (torch.float64, torch.float16, torch.int32)
CASES = {
    f"{case.name}-{str(case.dtype)[6:]}": []
    for case in cases((*MAIN, *MORE), ("forward",))
}  # fmt: skip
for _case in (*cases(MAIN), *cases(MORE, ("forward",))):
    CASES[f"{_case.name}-{str(_case.dtype)[6:]}"].append(_case)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore")
def test_operator(name):
    found = []
    for case in CASES[name]:
        if allowed(case):
            continue
        for number, sample in enumerate(samples(case, 2 if case.dtype in MAIN else 1)):
            why = check(case, sample)
            if why is not None:
                found.append(f"{case} #{number}: {why}")
    assert not found, "\n".join(found)


def test_every_exception_names_a_case():
    names = [str(case) for group in CASES.values() for case in group]
    stale = [p for p in ALLOWED if not any(re.fullmatch(p, name) for name in names)]
    assert not stale
    assert all(reason and "\n" not in reason for reason in ALLOWED.values())


def test_the_database_is_the_whole_one():
    assert len(op_db) > 600
    assert len(CASES) > 3000
