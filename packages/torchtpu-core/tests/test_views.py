"""Reading and writing strided views inside programs equals torch's own strided access."""

import jax
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtpu.tensors import views
from torchtpu.tensors.layout import Layout, buffer_layout


def _layout(base: torch.Tensor, view: torch.Tensor) -> Layout:
    return Layout(
        buffer_layout(tuple(base.shape), base.dtype),
        tuple(view.shape),
        view.stride(),
        view.storage_offset(),
        view.dtype,
    )


def _check(base: torch.Tensor, view: torch.Tensor) -> None:
    layout = _layout(base, view)
    with jax.enable_x64(True):
        got = views.read(jax.numpy.asarray(base.numpy()), layout)
        np.testing.assert_array_equal(np.asarray(got), view.numpy())
        if any(s == 0 and n > 1 for n, s in zip(view.shape, view.stride(), strict=True)):
            return
        value = torch.randn(view.shape).to(view.dtype)
        after = views.write(jax.numpy.asarray(base.numpy().copy()), layout, jax.numpy.asarray(value.numpy()))
        view.copy_(value)
        np.testing.assert_array_equal(np.asarray(after), base.numpy())


@st.composite
def chains(draw):
    """A base tensor and a view of it, by a random chain of view operators."""
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    base = torch.arange(int(np.prod(shape)), dtype=torch.float32).reshape(shape).clone()
    view = base
    for _ in range(draw(st.integers(1, 4))):
        view = _step(draw, view)
    return base, view


def _step(draw, view):
    kind = draw(
        st.sampled_from(
            ["slice", "step", "transpose", "select", "unsqueeze", "flatten", "expand", "diagonal"]
        )
    )
    dims = view.dim()
    if kind == "unsqueeze":
        return view.unsqueeze(draw(st.integers(0, dims)))
    if dims == 0:
        return view
    dim = draw(st.integers(0, dims - 1))
    size = view.shape[dim]
    if kind in ("slice", "step"):
        start = draw(st.integers(0, max(size - 1, 0)))
        step = 1 if kind == "slice" else draw(st.integers(1, 3))
        index = [slice(None)] * dims
        index[dim] = slice(start, draw(st.integers(start, size)), step)
        return view[tuple(index)]
    if kind == "transpose":
        return view.transpose(dim, draw(st.integers(0, dims - 1)))
    if kind == "select" and size:
        return view.select(dim, draw(st.integers(0, size - 1)))
    if kind == "flatten" and view.is_contiguous():
        return view.view(-1)
    if kind == "expand":
        return view.unsqueeze(0).expand(2, *view.shape)
    if kind == "diagonal" and dims >= 2:
        return view.diagonal(draw(st.integers(-1, 1)), 0, 1)
    return view


@settings(max_examples=60, deadline=None)
@given(chains())
def test_chain_reads_and_writes(pair):
    _check(*pair)


@pytest.mark.parametrize(
    "make",
    [
        lambda b: b.as_strided((3, 3), (4, 1), 2),
        lambda b: b.as_strided((3, 2), (7, 3), 1),
        lambda b: b.view(-1)[5:17],
        lambda b: b.view(-1)[3::5],
        lambda b: b.t()[::2, 1:],
        lambda b: b[:, 1:3].t(),
        lambda b: b.unfold(1, 2, 2),
        lambda b: b[2:2],
    ],
)
def test_known_layouts(make):
    base = torch.randn(6, 8)
    _check(base, make(base))


def test_slices_and_transposes_are_not_gathers():
    base = torch.randn(6, 8)
    for view in (base.t(), base[1:3], base[:, ::2], base[2], base.view(-1)[8:24], base.view(2, 3, 8)[:, 1]):
        text = str(jax.make_jaxpr(lambda b, x=_layout(base, view): views.read(b, x))(base.numpy()))
        assert "gather" not in text


@pytest.mark.parametrize(
    ("dtype", "other"),
    [
        (torch.float32, torch.int32),
        (torch.float32, torch.uint8),
        (torch.int64, torch.int16),
        (torch.complex64, torch.float32),
        (torch.uint8, torch.float32),
        (torch.int16, torch.float64),
    ],
)
def test_dtype_views(dtype, other):
    base = torch.randint(0, 100, (4, 8)).to(dtype)
    view = torch.view_as_real(base) if dtype.is_complex else base.view(other)
    with jax.enable_x64(True):
        got = views.read(jax.numpy.asarray(base.numpy()), _layout(base, view))
    np.testing.assert_array_equal(np.asarray(got), view.numpy())


def test_a_host_storage_made_from_the_type_takes_the_bytes():
    base = torch.arange(6.0).to("tpu")
    storage = base.untyped_storage()
    host = type(storage)(storage.nbytes(), device="cpu")  # as torch's asynchronous checkpoints do
    for _ in range(2):
        assert torch.empty(0).set_(host.copy_(storage)).tolist() == base.cpu().tolist()
        base.mul_(2)
