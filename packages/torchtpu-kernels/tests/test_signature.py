"""Annotations become schemas that torch parses."""

import functools
import typing
from collections.abc import Sequence

import jax
import numpy as np
import pytest
import torch

from torchtpu_kernels.signature import operator


def plain(x, y=None, n=3, name="a"): ...


def typed(x: torch.Tensor, y: jax.Array | None, z: np.ndarray, eps: float = 1e-5, *, flag: bool = False): ...


def lists(
    xs: list[jax.Array], sizes: Sequence[int], pads: tuple[float, ...] = (1, 2.5)
) -> list[jax.Array]: ...


def choices(
    x: "jax.Array", how: typing.Literal["up", "down"] = "up", n: int | None = None
) -> tuple[jax.Array, torch.Tensor]: ...


def third(mesh, x: jax.Array, block: int, y: jax.Array): ...


class Callable:
    def __call__(self, x: jax.Array, n: int) -> jax.Array: ...


@functools.wraps(typed)
def wrapped(*args, **kwargs): ...


@pytest.mark.parametrize(
    ("fn", "schema"),
    [
        (plain, '(Tensor x, Tensor? y=None, int n=3, str name="a") -> Tensor'),
        (typed, "(Tensor x, Tensor? y, Tensor z, float eps=1e-05, *, bool flag=False) -> Tensor"),
        (wrapped, "(Tensor x, Tensor? y, Tensor z, float eps=1e-05, *, bool flag=False) -> Tensor"),
        (lists, "(Tensor[] xs, int[] sizes, float[] pads=[1, 2.5]) -> Tensor[]"),
        (choices, '(Tensor x, str how="up", int? n=None) -> (Tensor, Tensor)'),
        (functools.partial(third, None, block=8), "(Tensor x, Tensor y) -> Tensor"),
        (Callable(), "(Tensor x, int n) -> Tensor"),
        (jax.jit(typed, static_argnames=("flag",)), None),
    ],
)
def test_schemas(fn, schema):
    made = operator("signature::op", fn)
    torch._C.parse_schema(made.schema)
    assert schema is None or made.schema == f"signature::op{schema}"


def test_what_is_static():
    assert operator("signature::op", typed).static == ("eps", "flag")
    assert operator("signature::op", typed, ()).static == ("flag",)
    assert operator("signature::op", typed, ("eps",)).static == ("eps", "flag")
    assert operator("signature::op", lists).tuples == {"pads"}


def test_how_a_function_is_called():
    def show(*args, **kwargs):
        return args, kwargs

    made = operator("signature::op", lists)
    assert made.call(show, [[1], [2, 3], [4.0]], {}) == (([1], [2, 3], (4.0,)), {})
    bound = functools.partial(third, "mesh", block=8)
    made = operator("signature::op", bound)
    called = functools.partial(lambda mesh, x, block, y: (mesh, x, block, y), "mesh", block=8)
    assert made.call(called, ["x", "y"], {}) == ("mesh", "x", 8, "y")


@pytest.mark.parametrize("default", [float("inf"), 'a"b', object()])
def test_defaults_without_a_form(default):
    def fn(x: jax.Array, n: float = default): ...

    with pytest.raises(TypeError, match="has no form in a schema"):
        operator("signature::op", fn)


def test_keyword_only_tensors():
    def fn(x: jax.Array, *, y: jax.Array): ...

    with pytest.raises(TypeError, match="give 'y' a place"):
        operator("signature::op", fn)


def test_an_operator_without_the_other_packs():
    scale = torch.tpu.pallas.jax_op("signature::scale", lambda x: x * 2)
    x = torch.randn(3)
    assert scale(x.to("tpu")).cpu().equal(x * 2)
