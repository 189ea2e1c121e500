"""Corners of PyTorch's semantics: each program gives the CPU's values, dtypes, strides, or its very error."""

import math

import pytest
import torch

NAN, INF = math.nan, math.inf


def tensor(values, device, dtype=None):
    return torch.tensor(values, dtype=dtype).to(device)


def ramp(device, *shape, dtype=torch.float32):
    return torch.arange(math.prod(shape)).reshape(shape).to(dtype).to(device)


def outcome(fn, device):
    """What a program gives: facts, which must be the same, and values. An error is a fact."""
    try:
        result = fn(device)
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        return [type(error), str(error).replace("tpu:0", "cpu")], []
    leaves = result if isinstance(result, tuple | list) else [result]
    tensors = [t for t in leaves if isinstance(t, torch.Tensor)]
    facts = [t for t in leaves if not isinstance(t, torch.Tensor)]
    facts += [(t.shape, t.dtype, t.stride(), t.requires_grad, t._version) for t in tensors]
    return facts, [t.detach().cpu().resolve_conj().resolve_neg() for t in tensors]


def agree(fn):
    (want, numbers), (got, ours) = outcome(fn, "cpu"), outcome(fn, "tpu")
    assert got == want
    torch.testing.assert_close(ours, numbers, rtol=1e-6, atol=0, equal_nan=True)


def written(view, write, *shape, dtype=torch.float32):
    """A program that writes through a view and gives the base."""

    def program(device):
        base = ramp(device, *shape, dtype=dtype)
        write(view(base))
        return base

    return program


VIEWS = {
    "view_as_real": lambda d: torch.view_as_real(ramp(d, 2, 3, dtype=torch.complex64) * 1j),
    "real and imag": lambda d: (lambda z: (z.real, z.imag, z.conj().imag))(ramp(d, 3).to(torch.complex64) * 2j),
    "write the real part": written(lambda z: z.real, lambda v: v.add_(3), 2, 2, dtype=torch.complex64),
    "write the imaginary part": written(lambda z: z.t().imag, lambda v: v[0].copy_(v[1]), 2, 2, dtype=torch.complex64),
    "write a conjugate": written(lambda z: z.conj(), lambda v: v.mul_(2j), 2, 2, dtype=torch.complex64),
    "view as bits": lambda d: ramp(d, 2, 4).view(torch.int32),
    "view as narrower": lambda d: ramp(d, 2, 4).view(torch.int16),
    "view as wider": lambda d: ramp(d, 2, 4).view(torch.float64),
    "view as wider, odd": lambda d: ramp(d, 2, 3).view(torch.float64),
    "write bits": written(lambda x: x.view(torch.int32), lambda v: v.bitwise_or_(1), 2, 4),
    "write bytes of a column": written(lambda x: x.view(torch.uint8)[:, 3], lambda v: v.fill_(66), 2, 4),
    "unfold": lambda d: ramp(d, 3, 8).unfold(1, 4, 3) * 1,
    "write windows": written(lambda x: x.unfold(0, 2, 2), lambda v: v[:, 1].zero_(), 8),
    "diagonal": lambda d: ramp(d, 3, 4, 3).diagonal(1, 0, 2) + 0,
    "write a diagonal": written(lambda x: x.diagonal(-1), lambda v: v.add_(100), 4, 3),
    "as_strided": lambda d: ramp(d, 12).as_strided((3, 2), (3, 5), 1) + 0,
    "write as_strided": written(lambda x: x.as_strided((2, 3), (6, 2), 1), lambda v: v.neg_(), 12),
    "as_strided out of bounds": lambda d: ramp(d, 4).as_strided((3, 2), (3, 1)),
    "as_strided with a negative stride": lambda d: ramp(d, 4).as_strided((2,), (-1,)),
    "narrow out of bounds": lambda d: ramp(d, 4).narrow(0, 3, 2),
    "select out of bounds": lambda d: ramp(d, 4)[4],
    "transpose of no such dimension": lambda d: ramp(d, 4, 2).transpose(0, 2),
    "expand": lambda d: ramp(d, 1, 3).expand(2, -1) + ramp(d, 2, 1),
    "movedim and flatten": lambda d: ramp(d, 2, 3, 4).movedim(0, 2).flatten(1),
    "split and chunk": lambda d: (*ramp(d, 7).split(3), *ramp(d, 7).chunk(3)),
    "squeeze": lambda d: ramp(d, 1, 3, 1).squeeze().mul(2),
}  # fmt: skip

OVERLAPS = {
    "one place written many times": written(lambda x: x[:1].expand(3), lambda v: v.add_(1), 4),
    "copy into one place": written(lambda x: x[:1].expand(3), lambda v: v.copy_(v.clone()), 4),
    "fill one place": written(lambda x: x[:1].expand(3), lambda v: v.fill_(7), 4),
    "input a part of the output": written(lambda x: x, lambda v: v[1:].add_(v[:-1]), 6),
    "copy a part of itself": written(lambda x: x, lambda v: v[1:].copy_(v[:-1]), 6),
    "input the same transposed": written(lambda x: x, lambda v: v.t().mul_(v), 3, 3),
    "even and odd": written(lambda x: x, lambda v: v[::2].add_(v[1::2]), 6),
    "output is input": written(lambda x: x, lambda v: torch.mul(v, 2, out=v), 6),
    "scatter into one place": written(
        lambda x: x[:1].expand(3), lambda v: v.scatter_(0, torch.zeros_like(v, dtype=torch.int64), 1.0), 4
    ),
}


def grown(device):
    x = ramp(device, 2, 3)
    return x.resize_(3, 2), x[:2].clone()


def shrunk_and_grown(device):
    x = ramp(device, 6)
    y = x[2:]
    x.resize_(2).resize_(6)
    return x, y


def data_replaced(device):
    x = ramp(device, 3)
    y = x.view(3)
    x.data = ramp(device, 2, 2) + 5
    return x, y


def set_from(device):
    x, y = ramp(device, 4), ramp(device, 6)
    x.set_(y)
    x.add_(1)
    return x, y


def counters(device):
    x = ramp(device, 4)
    y = x[1:]
    y.mul_(2)
    x.data.add_(1)
    z = x.detach()
    z.add_(1)
    return x, y, z, x._version, z._version


def gradient_through_writes(device):
    x = ramp(device, 2, 3).requires_grad_()
    y = x * 2
    y[0].mul_(3)
    y.t()[1].copy_(x[:, 0])
    y.diagonal().exp_()
    y.sum().backward()
    return y, x.grad.clone()


def gradient_flags(device):
    x = ramp(device, 3)
    w = ramp(device, 3).requires_grad_()
    view = x[1:]
    view.mul_(w[1:])
    return x, view, x.is_leaf, view.grad_fn is not None


STATE = {
    "resize_": grown,
    "resize_ keeps what is behind": shrunk_and_grown,
    "set .data": data_replaced,
    "set_": set_from,
    "version counters": counters,
    "gradient through writes to views": gradient_through_writes,
    "requires_grad by a write to a view": gradient_flags,
    "write to a leaf": lambda d: ramp(d, 3).requires_grad_().add_(1),
    "write to a view of a leaf": lambda d: ramp(d, 3).requires_grad_()[1:].add_(1),
    "write to an expanded leaf's product": lambda d: (ramp(d, 1).requires_grad_() * 2).expand(3).add_(1),
    "zero-size": lambda d: (ramp(d, 0, 3).sum(0), ramp(d, 0, 3) @ ramp(d, 3, 2), ramp(d, 0).prod(), ramp(d, 0).mean()),
    "zero-size strides": lambda d: (torch.empty(4, 0, 5, device=d), ramp(d, 4, 0, 5) + 1, ramp(d, 4, 1, 5)[:, :0].clone(), ramp(d, 0, 3)),
    "zero-size transposed": lambda d: (ramp(d, 2, 0, 3).permute(2, 0, 1), ramp(d, 2, 0).t().exp()),
    "zero-size maximum": lambda d: ramp(d, 0).max(),
    "zero-size argmax": lambda d: ramp(d, 0, 3).argmax(0),
    "zero-size amax": lambda d: ramp(d, 0, 3).amax(1),
    "0-dim": lambda d: (tensor(3.0, d).sum(0), tensor(3.0, d).sort()[0], tensor(3.0, d).unsqueeze(0), tensor(2, d)[None]),
    "0-dim dimension": lambda d: tensor(3.0, d).sum(1),
    "0-dim CPU scalar": lambda d: (ramp(d, 3) + torch.tensor(2), ramp(d, 3).mul_(torch.tensor(0.5)), torch.tensor(1.5) / ramp(d, 3)),
    "in-place broadcast": lambda d: ramp(d, 2, 3).add_(ramp(d, 3)).mul_(ramp(d, 2, 1)),
    "in-place broadcast of the target": lambda d: ramp(d, 3).add_(ramp(d, 2, 3)),
    "in-place broadcast of a composite's target": lambda d: ramp(d, 3, 1).ldexp_(ramp(d, 3)),
    "in-place form of a decomposition": lambda d: (ramp(d, 3) + 2).mvlgamma_(2),
    "out= of a decomposition": lambda d: torch.mvlgamma(ramp(d, 4) + 2, 2, out=torch.zeros(0, device=d)),
    "out= of a wrong dtype": lambda d: torch.sum(ramp(d, 1) * 1j, 0, out=tensor([0.0], d)),
    "in-place on integers": lambda d: tensor([0, 1], d).logit_(),
    "is_set_to": lambda d: (lambda x: (x.is_set_to(x.view(4)), x.is_set_to(x[1:]), x.is_set_to(x.clone())))(ramp(d, 4)),
    "zero tensor": lambda d: torch._efficientzerotensor((2, 2), device=d) + ramp(d, 2, 2),
}  # fmt: skip

FORMATS = {
    "channels_last": lambda d: ramp(d, 1, 2, 2, 3).to(memory_format=torch.channels_last) * 2,
    "channels_last and contiguous": lambda d: (
        ramp(d, 1, 2, 2, 3).to(memory_format=torch.channels_last) + ramp(d, 1, 2, 2, 3)
    ),
    "channels_last_3d": lambda d: ramp(d, 1, 2, 2, 2, 2).to(memory_format=torch.channels_last_3d).relu(),
    "permuted": lambda d: ramp(d, 2, 3, 4).permute(2, 0, 1).sigmoid(),
    "two permutations": lambda d: ramp(d, 2, 3).t() + ramp(d, 3, 2),
    "with holes": lambda d: ramp(d, 4, 6)[:, ::2].exp(),
    "expanded": lambda d: ramp(d, 3, 1).expand(3, 4).neg(),
    "clone": lambda d: (ramp(d, 2, 3).t().clone(), ramp(d, 2, 3).t().clone(memory_format=torch.contiguous_format)),
    "empty_like": lambda d: torch.zeros_like(ramp(d, 2, 3, 4).permute(1, 2, 0)),
    "reductions": lambda d: (ramp(d, 2, 3, 4).permute(2, 0, 1).sum(1), ramp(d, 2, 3, 4).transpose(0, 2).amax(0)),
    "sort": lambda d: ramp(d, 3, 4).t().sort(0),
    "where": lambda d: torch.where(ramp(d, 3, 4).t() > 3, ramp(d, 4, 3), 0.0),
    "cat": lambda d: torch.cat([ramp(d, 1, 2, 2, 3).to(memory_format=torch.channels_last)] * 2),
    "dtype": lambda d: ramp(d, 2, 3).t().to(torch.float64),
    "index": lambda d: ramp(d, 3, 4).t()[:, tensor([0, 2], d)],
    "cumsum": lambda d: ramp(d, 3, 4).t().cumsum(0),
}  # fmt: skip
NANS = [1.0, NAN, -2.0, NAN, 0.0]
INTS = [-7, 7, -7, 7, -1]
BY = [2, -2, -2, 2, 3]
LEAST = torch.iinfo(torch.int32).min


def both_ways(d, op, dtype=torch.int64):
    return op(tensor(INTS, d, dtype), tensor(BY, d, dtype))


VALUES = {
    "0-dim does not promote": lambda d: (tensor([1], d) + tensor(1.5, d), ramp(d, 2, dtype=torch.float16) + tensor(1.0, d, torch.float64)),
    "0-dim integer and bool": lambda d: (tensor([True], d) + tensor(2, d), tensor([1], d, torch.uint8) * tensor(-1, d)),
    "number promotes by kind": lambda d: (tensor([1], d) * 2.5, tensor([True], d) * 2, tensor([1], d, torch.int8) + 300),
    "result type cannot be stored": lambda d: tensor([1], d).mul_(1.5),
    "int divided in place": lambda d: tensor([3], d).div_(2),
    "NaN in sort": lambda d: (*tensor(NANS, d).sort(), *tensor(NANS, d).sort(descending=True, stable=True)),
    "NaN in extremes": lambda d: (*tensor(NANS, d).max(0), tensor(NANS, d).min(), tensor(NANS, d).argmax(), tensor(NANS, d).fmax(tensor(0.5, d))),
    "NaN in comparisons": lambda d: (tensor(NANS, d) > 0, tensor(NANS, d) != tensor(NANS, d), tensor(NANS, d).clamp(min=0)),
    "NaN in median": lambda d: (tensor(NANS, d).median(), tensor(NANS, d).nanmedian(), *tensor(NANS, d).median(0)),
    "nanmedian of NaN": lambda d: (tensor([NAN, NAN], d).nanmedian(), *tensor([[NAN, NAN], [1.0, NAN]], d).nanmedian(1)),
    "median of nothing": lambda d: (ramp(d, 0).median(), ramp(d, 0).nanmedian()),
    "median along nothing": lambda d: ramp(d, 2, 0).median(1),
    "NaN in cummax": lambda d: (*tensor(NANS, d).cummax(0), *tensor(NANS, d).logcumsumexp(0).unbind()),
    "NaN in topk": lambda d: tensor(NANS, d).topk(2),
    "unique NaN": lambda d: tensor(NANS, d).unique(),
    "bool times NaN": lambda d: (tensor([False, True], d) * tensor([NAN, INF], d), tensor([INF], d) * tensor(False, d)),
    "floor division": lambda d: both_ways(d, torch.floor_divide),
    "remainder": lambda d: both_ways(d, torch.remainder),
    "fmod": lambda d: both_ways(d, torch.fmod),
    "truncated division": lambda d: both_ways(d, lambda a, b: torch.div(a, b, rounding_mode="trunc")),
    "float floor division": lambda d: tensor([7.0, -7.0, 1.0, INF, 0.0], d) // tensor([0.0, 2.0, 0.1, 2.0, -3.0], d),
    "float remainder": lambda d: tensor([7.0, -7.0, 1.0, INF, 5.5], d) % tensor([0.0, 2.0, -0.3, 2.0, INF], d),
    "overflow": lambda d: (tensor([127], d, torch.int8) + 1, tensor([LEAST], d, torch.int32).abs(), -tensor([LEAST], d, torch.int32), tensor([200], d, torch.uint8) * 2),
    "overflow of sums": lambda d: (tensor([127, 127], d, torch.int8).sum(), tensor([True, True], d).cumsum(0), tensor([2**62, 2**62], d).sum()),
    "pow of bool": lambda d: (torch.pow(tensor([True, False], d), True), tensor([True], d) ** 2, tensor([2], d) ** tensor([3], d, torch.int8)),
    "pow to a negative integer": lambda d: tensor([2], d) ** -1,
    "pow to negative integers": lambda d: tensor([2, 1, -1], d) ** tensor([-1, -2, -3], d),
    "0 ** 0": lambda d: (tensor([0.0, 0.0, INF], d) ** tensor([0.0, -1.0, 0.0], d), tensor([0], d) ** 0),
    "shifts": lambda d: (tensor([1, -8], d) << tensor([3, 1], d), tensor([1, -8], d) >> 1, tensor([1], d).__ilshift__(2)),
    "negative zero": lambda d: (tensor([-0.0, 0.0], d).signbit(), tensor([-0.0], d) * 1 == 0, tensor([-0.0, 0.0], d).sort()[0].signbit()),
    "rounding to even": lambda d: (tensor([0.5, 1.5, 2.5, -0.5], d).round(), tensor([1.25, 1.35], d).round(decimals=1)),
    "casts": lambda d: (tensor([1.9, -1.9, 0.5], d).to(torch.int32), tensor([0.5, NAN, 0.0], d).bool(), tensor([3, 0], d).bool().float()),
    "complex of bool": lambda d: tensor([True, False], d) * 1j,
    "product of two dtypes": lambda d: ramp(d, 2, 3) @ ramp(d, 3, 2, dtype=torch.float64),
    "product with a vector of another dtype": lambda d: ramp(d, 2, 3) @ ramp(d, 3, dtype=torch.float64),
    "addmm of two dtypes": lambda d: torch.addmm(ramp(d, 2, 2), ramp(d, 2, 3), ramp(d, 3, 2, dtype=torch.float64)),
    "linear of two dtypes": lambda d: torch.nn.functional.linear(ramp(d, 2, 3), ramp(d, 2, 3, dtype=torch.float64)),
    "sort along no such dimension": lambda d: ramp(d, 2, 3).sort(5),
    "argsort along no such dimension": lambda d: ramp(d, 2, 3).argsort(-3, stable=True),
    "sort of one number": lambda d: tensor(3.0, d).sort(-1),
    "softmax along no such dimension": lambda d: ramp(d, 2, 3).softmax(5),
    "softmax of integers": lambda d: ramp(d, 2, 3, dtype=torch.int64).softmax(0),
    "deviation of integers": lambda d: ramp(d, 2, 3, dtype=torch.int64).std(),
    "convolution of two dtypes": lambda d: torch.nn.functional.conv1d(ramp(d, 1, 2, 3), ramp(d, 1, 2, 2, dtype=torch.float64)),
    "masked_fill with a CPU number": lambda d: (lambda x: x.masked_fill_(x > 3, torch.tensor(9)).masked_fill(x < 1, torch.tensor(0.5)))(ramp(d, 3, 4)),
    "masked_fill with several values": lambda d: ramp(d, 3).masked_fill(ramp(d, 3) > 1, ramp(d, 2)),
    "index out of range": lambda d: ramp(d, 3)[5],
    "boolean index of a wrong size": lambda d: ramp(d, 3)[tensor([True, False], d)],
    "negative index": lambda d: (ramp(d, 3)[tensor([-1, -3], d)], ramp(d, 3).take(tensor([-1], d))),
    "float index": lambda d: ramp(d, 3)[tensor([0.5], d)],
    "gather with a float index": lambda d: ramp(d, 3).gather(0, tensor([0.5], d)),
    "index_select along no such dimension": lambda d: ramp(d, 3).index_select(1, tensor([0], d)),
    "empty index": lambda d: ramp(d, 3, 2)[torch.zeros(0, dtype=torch.int64, device=d)],
    "mean of integers": lambda d: ramp(d, 3, dtype=torch.int64).mean(),
    "variance of one": lambda d: (ramp(d, 1).var(), ramp(d, 1).std(correction=0)),
    "any of floats": lambda d: (tensor([NAN], d).any(), tensor([0.0], d).all(), torch.zeros(0, device=d).all()),
    "linspace and arange": lambda d: (torch.linspace(0, 1, 7, device=d), torch.arange(0, 1, 0.3, device=d), torch.arange(5, 0, -2, device=d)),
    "histogram": lambda d: (*torch.histogram(ramp(d, 10), 3), torch.histc(tensor([1.0, 2.0, 9.0], d), 2, 1, 3)),
    "isin and searchsorted": lambda d: (torch.isin(ramp(d, 5), tensor([1.0, NAN], d)), torch.searchsorted(ramp(d, 5), tensor([1.0, 1.5, NAN], d), right=True)),
}  # fmt: skip
# searches and orderings of NaN, errors and strides included
PROGRAMS = {**VIEWS, **OVERLAPS, **STATE, **FORMATS, **VALUES}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_as_on_the_cpu(program):
    agree(program)


def test_every_name_is_its_own():
    assert len(PROGRAMS) == sum(map(len, (VIEWS, OVERLAPS, STATE, FORMATS, VALUES)))
