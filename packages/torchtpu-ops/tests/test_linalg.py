"""Decompositions and solvers agree with the CPU, or multiply back to the matrix."""

import pytest
import torch

aten = torch.ops.aten
F64 = torch.float64
BATCHES = [(), (2,), (2, 3)]


def matrix(*shape, dtype=F64):
    return torch.randn(shape, dtype=dtype) + 3 * torch.eye(*shape[-2:], dtype=dtype)


def gradients(op, *tensors):
    """Values and gradients on both devices."""
    results, seed = [], torch.randint(1 << 30, ()).item()
    for device in ("cpu", "tpu"):
        leaves = [t.detach().to(device).requires_grad_() for t in tensors]
        out = op(*leaves)
        same = torch.Generator().manual_seed(seed)
        out.backward(torch.randn(out.shape, generator=same, dtype=F64).to(device))
        results.append([out.detach().cpu(), *(t.grad.cpu() for t in leaves)])
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_cholesky(check, batch, upper):
    a = matrix(*batch, 4, 4)
    spd = a @ a.mT
    gradients(lambda x: torch.linalg.cholesky(x @ x.mT, upper=upper), a)
    # the other triangle is not read
    half = spd.triu() if upper else spd.tril()
    check(aten.linalg_cholesky_ex, half, upper=upper)
    factor = torch.linalg.cholesky(spd, upper=upper)
    check(torch.cholesky_solve, torch.randn(*batch, 4, 2, dtype=F64), factor, upper)
    check(torch.cholesky_inverse, factor, upper)


def test_cholesky_of_what_is_not_positive():
    assert torch.linalg.cholesky_ex(-torch.eye(3, device="tpu")).info.item() > 0


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_solve(batch, vector):
    b = torch.randn(*batch, 4, *([] if vector else [2]), dtype=F64)
    gradients(torch.linalg.solve, matrix(*batch, 4, 4), b)
    gradients(lambda a, b: torch.linalg.solve(a.mT, b), matrix(*batch, 4, 4), b)


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_solve_from_the_right(batch):
    def op(a, b):
        return torch.linalg.solve(a, b, left=False)

    gradients(op, matrix(*batch, 4, 4), torch.randn(*batch, 2, 4, dtype=F64))


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("dtype", [F64, torch.complex128], ids=str)
@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_lu_solve(check, batch, dtype, left, adjoint):
    lu, pivots = torch.linalg.lu_factor(torch.randn(*batch, 4, 4, dtype=dtype))
    b = torch.randn(*batch, *((4, 2) if left else (2, 4)), dtype=dtype)
    check(torch.linalg.lu_solve, lu, pivots, b, left=left, adjoint=adjoint)


@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (2, 3, 5)], ids=str)
def test_lu(check, shape):
    a = torch.randn(shape, dtype=F64)
    check(aten.linalg_lu_factor_ex, a)
    check(aten.linalg_lu, a)
    lu, pivots = torch.linalg.lu_factor(a)
    check(aten.lu_unpack, lu, pivots)
    check(aten.lu_unpack, lu, pivots, False)
    check(aten.lu_unpack, lu, pivots, True, False)


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_inverse_and_determinant(batch):
    a = matrix(*batch, 4, 4)
    for op in (torch.linalg.inv, torch.linalg.det, lambda x: torch.linalg.slogdet(x).logabsdet):
        gradients(op, a)
        gradients(lambda x, op=op: op(x.mT), a)


def test_singular_matrix():
    a = torch.tensor([[1.0, 2.0], [2.0, 4.0]])
    for op in (torch.linalg.inv_ex, torch.linalg.lu_factor_ex):
        assert op(a.to("tpu")).info.item() == op(a).info.item() == 2


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (2, 3, 5)], ids=str)
def test_svd(check, shape, full):
    a = torch.randn(shape, dtype=F64)
    u, s, vh = (x.cpu() for x in torch.linalg.svd(a.to("tpu"), full_matrices=full))
    want = torch.linalg.svd(a, full_matrices=full)
    assert (u.shape, vh.shape) == (want.U.shape, want.Vh.shape)
    torch.testing.assert_close(s, want.S)
    k = s.shape[-1]
    torch.testing.assert_close(u[..., :k] * s[..., None, :] @ vh[..., :k, :], a)
    check(torch.linalg.svdvals, a)
    gradients(torch.linalg.svdvals, a)


@pytest.mark.parametrize("triangle", ["L", "U"])
def test_eigh(check, triangle):
    a = torch.randn(2, 4, 4, dtype=F64)
    want, (values, vectors) = torch.linalg.eigh(a, triangle), torch.linalg.eigh(a.to("tpu"), triangle)
    torch.testing.assert_close(values.cpu(), want.eigenvalues)
    v = vectors.cpu()
    torch.testing.assert_close(
        v * values.cpu()[..., None, :] @ v.mT, want[1] * want[0][..., None, :] @ want[1].mT
    )
    check(torch.linalg.eigvalsh, a, triangle)


@pytest.mark.parametrize("mode", ["reduced", "complete"])
@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (2, 3, 5)], ids=str)
def test_qr(shape, mode):
    a = torch.randn(shape, dtype=F64)
    want, (q, r) = torch.linalg.qr(a, mode), torch.linalg.qr(a.to("tpu"), mode)
    assert (q.shape, r.shape) == (want.Q.shape, want.R.shape)
    torch.testing.assert_close(q.cpu() @ r.cpu(), a)
    assert torch.linalg.qr(a.to("tpu"), "r").R.shape == torch.linalg.qr(a, "r").R.shape


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("upper", [False, True])
def test_triangular(check, upper, unit):
    a, b = matrix(2, 4, 4), torch.randn(2, 4, 3, dtype=F64)
    check(torch.linalg.solve_triangular, a, b, upper=upper, unitriangular=unit)
    check(torch.linalg.solve_triangular, a, b.mT, upper=upper, left=False, unitriangular=unit)
    for transpose in (False, True):
        check(aten.triangular_solve, b[0], a, upper, transpose, unit)


@pytest.mark.parametrize("shape", [(5, 3), (2, 4, 4)], ids=str)
def test_householder(check, shape):
    check(torch.linalg.householder_product, *torch.geqrf(torch.randn(shape, dtype=F64)))


@pytest.mark.parametrize("scale", [0.1, 1, 30])
def test_matrix_exponential(scale):
    gradients(torch.linalg.matrix_exp, torch.randn(2, 3, 3, dtype=F64) * scale / 3)


@pytest.mark.parametrize(
    "a,b,dim", [((3,), (3,), -1), ((1, 2, 3), (4, 1, 3), -1), ((3, 4), (3, 1), 0)], ids=str
)
@pytest.mark.parametrize("dtype", [F64, torch.int64], ids=str)
def test_cross(check, a, b, dim, dtype):
    check(torch.linalg.cross, *((torch.randn(s) * 9).to(dtype) for s in (a, b)), dim=dim)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (2, 4, 3)], ids=str)
def test_strides_are_those_of_lapack(shape):
    a, b = torch.randn(shape), torch.randn(*shape[:-1], 2)
    results = [lambda a, b: torch.linalg.svd(a, full_matrices=False)]
    if shape[-2] <= shape[-1]:  # else the CPU's solution is a slice of LAPACK's workspace
        results.append(torch.linalg.lstsq)
    for op in results:
        for want, got in zip(op(a, b), op(a.to("tpu"), b.to("tpu")), strict=True):
            assert got.stride() == want.stride()
