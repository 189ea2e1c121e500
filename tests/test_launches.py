"""Broadcasted, strided and reinterpreted inputs cost no program of their own."""

import itertools

import pytest
import torch

import torchtpu
from torchtpu.runtime import program

# A size is used once: a call with a new layout takes the counted path, never the short one of known calls.
SIZES = itertools.count(11)


@pytest.fixture(autouse=True)
def one_program_an_operator():
    with torchtpu.mode("strict"):
        yield


def launches(fn):
    before = program.launches[0]
    result = fn()
    return program.launches[0] - before, result


VIEWS = {
    "transposed": lambda x: x.t(),
    "column": lambda x: x[:, 1],
    "steps": lambda x: x[::2, 1::3],
    "expanded": lambda x: x[:1].expand(3, -1),
    "new dimension": lambda x: x.unsqueeze(1),
    "flattened": lambda x: x.reshape(-1),
    "diagonal": lambda x: x.diagonal(),
    "windows": lambda x: x.unfold(1, 3, 2),
    "overlapping": lambda x: x.as_strided((4, 3), (2, 1)),
    "integer bits": lambda x: x.view(torch.int32),
    "narrower bits": lambda x: x.view(torch.int16),
    "complex": lambda x: torch.view_as_complex(x.view(-1, 2)),
    "real part": lambda x: torch.view_as_complex(x.view(-1, 2)).real,
    "chain": lambda x: x.t()[1:].unsqueeze(0).expand(2, -1, -1).transpose(0, 2),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_reading_a_view(view):
    x = torch.randn(8, 2 * next(SIZES))
    y = x.to("tpu")
    count, result = launches(lambda: view(y) + 1)
    assert count == 1
    torch.testing.assert_close(result.cpu(), view(x) + 1)


WRITABLE = [n for n in VIEWS if n not in ("expanded", "overlapping", "windows", "chain")]


@pytest.mark.parametrize("name", WRITABLE)
def test_writing_a_view(name):
    x = torch.randn(8, 2 * next(SIZES))
    y = x.to("tpu")
    count, _ = launches(lambda: VIEWS[name](y).mul_(2))
    assert count == 1
    VIEWS[name](x).mul_(2)
    assert y.cpu().view(torch.int32).equal(x.view(torch.int32))


@pytest.mark.parametrize(
    "fn",
    [
        lambda a, b: a + b[0],
        lambda a, b: a.t() @ b,
        lambda a, b: torch.where(a > b[:, :1], a, b[0]),
        lambda a, b: torch.cat([a.t(), b.t()[1:]]),
        lambda a, b: torch.addmm(a[0, :8], a[:, :8].t(), b[:, 1:9]),
        lambda a, b: torch.nn.functional.linear(a[:, ::2], b[:, ::2]),
    ],
    ids=["broadcast", "matmul", "where", "cat", "addmm", "linear"],
)
def test_several_views(fn):
    a, b = torch.randn(2, 8, 2 * next(SIZES))
    x, y = a.to("tpu"), b.to("tpu")
    extra = 1 if "where" in fn.__code__.co_names else 0  # the comparison
    count, result = launches(lambda: fn(x, y))
    assert count == 1 + extra
    torch.testing.assert_close(result.cpu(), fn(a, b), rtol=1e-5, atol=1e-5)


def test_conjugates_cost_what_torch_makes_of_them():
    # torch resolves a lazy conjugate by a clone before the operator reaches the device
    x = torch.randn(8, next(SIZES), dtype=torch.complex64, device="tpu")
    assert launches(lambda: x.conj())[0] == 0
    assert launches(lambda: x.conj() + 1)[0] == 2


def test_views_alone_launch_nothing():
    x = torch.randn(8, 2 * next(SIZES), device="tpu")
    for view in VIEWS.values():
        assert launches(lambda view=view: view(x))[0] == 0
