"""`torch.tpu.pallas.jax_op`: a JAX function becomes an operator of torch, with Pallas kernels in it or without."""

import functools
import importlib.util
from typing import Optional  # as users of older Pythons write it

import jax
import jax.numpy as jnp
import pytest
import torch
import torch.distributed as dist
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention
from jax.sharding import PartitionSpec
from torch.library import opcheck
from torch.testing._internal.distributed.fake_pg import FakeStore

import torchtpu
from torchtpu.runtime import topology

MODES = ("strict", "debug", "fused")
jax_op = torch.tpu.pallas.jax_op
number = iter(range(1000))


def unused():
    """A name that no operator has."""
    return f"jaxop::unused{next(number)}"


def add_body(x_ref, y_ref, out_ref):
    out_ref[...] = x_ref[...] + y_ref[...]


@jax_op("jaxop::add", backward=lambda grad, out, x, y: (grad, grad))
def add(x: jax.Array, y: jax.Array) -> jax.Array:
    """The sum, eight rows at a time, written for a TPU: nothing in it says interpret."""
    block = pl.BlockSpec((8, x.shape[1]), lambda i: (i, 0))
    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    grid = (x.shape[0] // 8,)
    return pl.pallas_call(add_body, grid=grid, in_specs=[block] * 2, out_specs=block, out_shape=out)(x, y)


def matmul_body(x_ref, y_ref, out_ref, sums):
    @pl.when(pl.program_id(2) == 0)
    def _():
        sums[...] = jnp.zeros_like(sums)

    sums[...] += jnp.dot(x_ref[...], y_ref[...], preferred_element_type=jnp.float32)

    @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
    def _():
        out_ref[...] = sums[...].astype(out_ref.dtype)


def matmul_fn(x: jax.Array, y: jax.Array, block: int = 128) -> jax.Array:
    rows, inner, columns = *x.shape, y.shape[1]
    return pl.pallas_call(
        matmul_body,
        grid=(rows // block, columns // block, inner // block),
        in_specs=[
            pl.BlockSpec((block, block), lambda i, j, k: (i, k)),
            pl.BlockSpec((block, block), lambda i, j, k: (k, j)),
        ],
        out_specs=pl.BlockSpec((block, block), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((rows, columns), x.dtype),
        scratch_shapes=[pltpu.VMEM((block, block), jnp.float32)],
    )(x, y)


def matmul_backward(grad, out, x, y, block):
    return matmul_fn(grad, y.T, block), matmul_fn(x.T, grad, block)


matmul = jax_op("jaxop::matmul", matmul_fn, backward=matmul_backward)


@jax_op("jaxop::norms", backward="vjp")
def norms(
    x: jax.Array, weight: jax.Array | None = None, eps: float = 1e-6, *, axis: int = -1
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The normalised rows, their root mean squares, and where the largest element is."""
    rms = jnp.sqrt(jnp.mean(x * x, axis, keepdims=True) + eps)
    scaled = x / rms if weight is None else x / rms * weight
    return scaled, rms.squeeze(axis), jnp.argmax(x, axis)


def norms_truth(x, weight=None, eps=1e-6, axis=-1):
    rms = ((x * x).mean(axis, keepdim=True) + eps).sqrt()
    return x / rms * (1 if weight is None else weight), rms.squeeze(axis), x.argmax(axis)


def on_both(shapes, dtype=torch.float32):
    """Fresh leaves that need gradients, on the CPU and on the device."""
    host = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]
    return host, [t.detach().to("tpu").requires_grad_() for t in host]


def same(got, want, **tolerance):
    torch.testing.assert_close(got.detach().cpu(), want.detach(), **tolerance)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32], ids=str)
def test_a_kernel_written_for_a_tpu_runs_here(mode, dtype):
    x, y = (torch.randn(16, 128).mul(9).to(dtype) for _ in range(2))
    with torchtpu.mode(mode):
        same(add(x.to("tpu"), y.to("tpu")), x + y)
        strided = torch.ops.jaxop.add(x.t().contiguous().to("tpu").t(), y.to("tpu"))
        same(strided, x + y)
    assert not jax.config.jax_enable_x64
    with pytest.raises(ValueError, match="Only interpret mode"):  # nor are the user's own programs changed
        add.reference(jnp.ones((8, 128)), jnp.ones((8, 128)))
    assert not [name for name in torchtpu.fallbacks() if name.startswith("jaxop")]


@pytest.mark.parametrize("mode", MODES)
def test_a_backward_of_kernels(mode):
    (x, y), (a, b) = on_both([(256, 128), (128, 384)])
    with torchtpu.mode(mode):
        out = matmul(a, b)
        out.square().sum().backward()
        want = x @ y
        want.square().sum().backward()
        same(out, want, rtol=1e-4, atol=1e-3)
        same(a.grad, x.grad, rtol=1e-4, atol=1e-2)
        same(b.grad, y.grad, rtol=1e-4, atol=1e-2)


def test_a_backward_has_no_derivative_of_its_own():
    _, (a, b) = on_both([(128, 128), (128, 128)])
    (first,) = torch.autograd.grad(matmul(a, b).sum(), a, create_graph=True)
    with pytest.raises(NotImplementedError, match="matmul_backward has no derivative"):
        torch.autograd.grad(first.sum(), b)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_several_results_and_the_gradient_by_vjp(mode, dtype):
    (x, w), (a, b) = on_both([(4, 6), (6,)], dtype)
    tolerance = {"rtol": 2e-2, "atol": 6e-2} if dtype is torch.bfloat16 else {}  # sums of values up to 4
    with torchtpu.mode(mode):
        got = norms(a, b, 0.5)
        want = norms_truth(x, w, 0.5)
        # as JAX has it: 64 bits only where an argument has them
        assert got[2].dtype == (torch.int64 if dtype is torch.float64 else torch.int32)
        assert not got[2].requires_grad
        for g, t in zip(got, want, strict=True):
            same(g, t.to(g.dtype), **tolerance)
        (got[0].square().sum() + got[1].sum()).backward()
        (want[0].square().sum() + want[1].sum()).backward()
        same(a.grad, x.grad, **tolerance)
        same(b.grad, w.grad, **tolerance)


def test_gradients_against_finite_differences():
    x = torch.randn(3, 4, dtype=torch.float64, device="tpu", requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: norms(x, axis=0)[:2], x)
    assert torch.autograd.gradgradcheck(lambda x: norms(x)[0], x)


def test_optional_and_keyword_arguments():
    x = torch.randn(4, 6)
    same(norms(x.to("tpu"), axis=0)[0], norms_truth(x, axis=0)[0])
    same(norms(x.to("tpu"), None, 2.0)[1], norms_truth(x, eps=2.0)[1])
    assert str(torch.ops.jaxop.norms.default._schema) == (
        "jaxop::norms(Tensor x, Tensor? weight=None, float eps=9.9999999999999995e-07, *, int axis=-1)"
        " -> (Tensor, Tensor, Tensor)"
    )


@pytest.mark.parametrize("fn", [add, matmul])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_as_one_graph(fn, dynamic):
    truth = {add: torch.add, matmul: torch.mm}[fn]

    def step(x, y):
        return fn(x * 2, y).square().mean()

    compiled = torch.compile(step, backend="tpu", fullgraph=True, dynamic=dynamic)
    for size in (128, 256):
        (x, y), (a, b) = on_both([(size, size)] * 2)
        got, want = compiled(a, b), truth(x * 2, y).square().mean()
        got.backward()
        want.backward()
        same(got, want, rtol=1e-4, atol=1e-4)
        same(a.grad, x.grad, rtol=1e-4, atol=1e-4)
        same(b.grad, y.grad, rtol=1e-4, atol=1e-4)


def test_compiled_with_several_results():
    x = torch.randn(4, 6)
    compiled = torch.compile(lambda x: norms(x, eps=0.1), backend="tpu", fullgraph=True)
    for got, want in zip(compiled(x.to("tpu")), norms_truth(x, eps=0.1), strict=True):
        same(got, want.to(got.dtype))


CHECKS = (
    "test_schema",
    "test_faketensor",
    "test_aot_dispatch_dynamic",
)  # torch has a fourth, not for this device


def test_torchs_own_check_of_operators():
    _, (a, b) = on_both([(128, 128)] * 2)
    opcheck(torch.ops.jaxop.add.default, (a.detach(), b.detach()))
    opcheck(torch.ops.jaxop.add.default, (a, b), test_utils=CHECKS)
    opcheck(torch.ops.jaxop.matmul.default, (a, b), test_utils=CHECKS)
    opcheck(torch.ops.jaxop.norms.default, (a, b[0], 0.5), {"axis": 0}, test_utils=CHECKS)


def test_numbers_are_static_unless_static_argnames_leaves_them_out():
    seen = []

    def scale(x: jax.Array, factor: float) -> jax.Array:
        seen.append(factor)
        return x * factor

    static = jax_op(unused(), scale)
    traced = jax_op(unused(), scale, static_argnames=())
    x = torch.randn(3)
    for op, programs in ((static, 3), (traced, 1)):
        seen.clear()
        with torchtpu.mode("strict"), torchtpu.explain() as report:
            for factor in (0.5, 1.5, 2.5):
                same(op(x.to("tpu"), factor), x * factor)
        assert len([c for c in report.compilations if "unused" in c.name]) == programs
        assert all(isinstance(f, float) for f in seen) == (op is static)


def test_lists_strings_and_tuples():
    @jax_op(unused())
    def join(xs: list[jax.Array], shape: tuple[int, ...], mode: str = "sum") -> list[jax.Array]:
        assert isinstance(shape, tuple)
        total = sum(xs) if mode == "sum" else functools.reduce(jnp.maximum, xs)
        return [total.reshape(shape), xs[0]]

    xs = [torch.randn(6) for _ in range(3)]
    device = [x.to("tpu") for x in xs]
    same(join(device, [2, 3])[0], sum(xs).reshape(2, 3))
    largest, first = join(device, (3, 2), "max")
    same(largest, torch.stack(xs).amax(0).reshape(3, 2))
    same(first, xs[0])


def test_64_bit_types_reach_the_function():
    @jax_op(unused())
    def double(x: jax.Array) -> jax.Array:
        return x * 2

    big = torch.tensor([2**40, -3], device="tpu")
    assert double(big).tolist() == [2**41, -6]
    third = torch.tensor([1 / 3], dtype=torch.float64)
    assert double(third.to("tpu")).cpu().equal(third * 2)


def test_arguments_that_are_called_like_those_of_factories():
    @jax_op(unused())
    def moved(x: jax.Array, layout: str = "ab", *, device: int = 0) -> jax.Array:
        return (x if layout == "ab" else x.T) + device

    x = torch.randn(2, 3)
    compiled = torch.compile(lambda x: moved(x, "ba", device=3), backend="tpu", fullgraph=True)
    same(moved(x.to("tpu"), "ba", device=3), x.t() + 3)
    same(compiled(x.to("tpu")), x.t() + 3)


def test_a_kernel_of_jax_and_its_own_gradient():
    """Flash attention, which has a gradient of kernels by `jax.custom_vjp`."""

    @jax_op(unused(), backward="vjp")
    def flash(q: jax.Array, k: jax.Array, v: jax.Array, causal: bool) -> jax.Array:
        return flash_attention(q, k, v, causal=causal)

    host, device = on_both([(1, 2, 128, 128)] * 3)
    out = flash(*device, True)
    want = torch.nn.functional.scaled_dot_product_attention(*host, is_causal=True, scale=1.0)
    same(out, want, rtol=1e-4, atol=1e-4)
    out.square().sum().backward()
    want.square().sum().backward()
    for got, true in zip(device, host, strict=True):
        same(got.grad, true.grad, rtol=1e-3, atol=1e-3)


def test_a_function_whose_arguments_a_partial_has_bound():
    def shifted(scale, x: jax.Array, mode, y: Optional[jax.Array] = None) -> jax.Array:  # noqa: UP045
        return x * scale + (0 if y is None else y) if mode == "plus" else x

    op = jax_op(unused(), functools.partial(shifted, 3.0, mode="plus"))
    assert str(op.schema).endswith("(Tensor x, Tensor? y=None) -> Tensor")
    x, y = torch.randn(4), torch.randn(4)
    same(op(x.to("tpu"), y.to("tpu")), x * 3 + y)


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")
@pytest.mark.parametrize(
    ("dtype", "precision"), [(torch.float32, "HIGH"), (torch.bfloat16, "HIGHEST")], ids=str
)
def test_the_kernel_is_compiled_for_a_tpu_that_is_not_here(dtype, precision):
    """In precisions that the compiler of kernels does not take."""
    precise = torch.tpu.precision(getattr(torch.tpu.Precision, precision))
    with precise, torchtpu.mode("strict"), topology.targeting("v5e:2x2"), topology.collect() as found:
        x = torch.randn(128, 256, dtype=dtype, device="tpu", requires_grad=True)
        matmul(x, x.detach().t().contiguous()).sum().backward()
    programs = [p for p in found if "jaxop_matmul" in p.name]
    assert {p.name for p in programs} == {"jaxop_matmul", "jaxop_matmul_backward"}
    assert all("tpu_custom_call" in p.compile_for("v5e:2x2").hlo for p in programs)


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")
def test_a_reference_serves_here_and_the_kernel_there():
    def reference(x, y):
        return x + y + 1  # wrong on purpose, to be seen

    op = jax_op(unused(), lambda x, y: add.reference(x, y), reference=reference, backward="vjp")
    with torchtpu.mode("strict"), topology.targeting("v5e:2x2"), topology.collect() as found:
        x, y = torch.randn(8, 128), torch.randn(8, 128)
        a = x.to("tpu").requires_grad_()
        out = op(a, y.to("tpu"))
        same(out, x + y + 1)
        out.sum().backward()
        same(a.grad, torch.ones_like(x))
    program = next(p for p in found if "unused" in p.name and "backward" not in p.name)
    assert "tpu_custom_call" in program.compile_for("v5e:2x2").hlo


def test_a_shape_and_a_gradient_of_the_users_own():
    @jax_op(unused())
    def cube(x: jax.Array) -> jax.Array:
        return x**3

    seen = []

    @cube.register_fake
    def shapes(x):
        seen.append(x.device.type)
        return torch.empty_like(x)

    def setup(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    cube.register_autograd(lambda ctx, grad: grad * 3 * ctx.saved_tensors[0] ** 2, setup_context=setup)
    (x,), (a,) = on_both([(5,)])
    cube(a).sum().backward()
    same(a.grad, 3 * x**2)
    assert seen


def test_a_mesh_of_the_one_device():
    def summed(x: jax.Array, mesh) -> jax.Array:
        part = functools.partial(jax.shard_map, mesh=mesh, in_specs=spec, out_specs=spec)
        return part(lambda v: jax.lax.psum(v, "x") + jax.lax.axis_index("x"))(x)

    spec, x = PartitionSpec("x"), torch.randn(4)
    for mesh in (torch.tpu.pallas.get_pallas_mesh(axis_names=("x",)), jax.make_mesh([1], ("x",))):
        bound = functools.partial(summed, mesh=mesh)
        op = jax_op(unused(), bound, mesh=mesh, input_partition_specs=[spec], output_partition_specs=[spec])
        same(op(x.to("tpu")), x)
    with pytest.raises(NotImplementedError, match="a mesh of 8 devices"):
        torch.tpu.pallas.get_pallas_mesh(("x", "y"), (2, 4))
    with pytest.raises(ValueError, match="specs need a mesh"):
        jax_op(unused(), bound, input_partition_specs=[spec])


def test_a_mesh_of_ranks_is_refused():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        with pytest.raises(NotImplementedError, match="a mesh of 2 devices"):
            torch.tpu.pallas.get_pallas_mesh(axis_names=("x",))
    finally:
        dist.destroy_process_group()


def test_a_compiled_update_is_in_place():
    op = jax_op(unused(), lambda cache, row: cache.at[3].set(row), donate_argnums=(0,))

    @torch.compile(backend="tpu", fullgraph=True)
    def step(cache, row):
        cache.copy_(op(cache, row))

    cache, row = torch.zeros(4, 8), torch.randn(8)
    device = cache.to("tpu")
    with torchtpu.mode("strict"), topology.collect() as found:  # a program of its own
        step(device, row.to("tpu"))
    assert [p.donate for p in found if len(p.avals) == 2] == [(0,)]
    cache[3] = row
    same(device, cache)


def test_a_donated_tensor_stays_valid():
    op = jax_op(unused(), lambda x, y: x + y, donate_argnums=(0,))
    x = torch.randn(4)
    a = x.to("tpu")
    same(op(a, a), x + x)
    same(a, x)
    with pytest.raises(ValueError, match="donate_argnums has 2, of 2"):
        jax_op(unused(), lambda x, y: x + y, donate_argnums=(0, 2))


def untyped(x, kind):
    return x


def of_any_number(*xs: jax.Array):
    return xs[0]


def of_a_dict(x: jax.Array, options: dict) -> jax.Array:
    return x


def giving_a_number(x: jax.Array) -> int:
    return 3


@pytest.mark.parametrize(
    ("name", "fn", "options", "error", "words"),
    [
        ("jaxop::add", jnp.sin, {}, ValueError, "jaxop::add is defined already"),
        ("aten::relu", jnp.sin, {}, ValueError, "aten::relu is defined already"),
        ("plain", jnp.sin, {}, ValueError, "'plain' is not a name of the form"),
        ("jaxop::bad1", of_any_number, {}, TypeError, r"\*xs.* has no place in a schema"),
        ("jaxop::bad2", of_a_dict, {}, TypeError, "'options' is annotated"),
        ("jaxop::bad3", giving_a_number, {}, TypeError, "result is annotated"),
        (
            "jaxop::bad4",
            untyped,
            {"static_argnames": ("kind",)},
            TypeError,
            "annotate static argument 'kind'",
        ),
        ("jaxop::bad5", untyped, {"static_argnames": ("sort",)}, ValueError, "sort, which is no argument"),
        ("jaxop::bad6", untyped, {"backward": "jvp"}, ValueError, "backward is None, "),
    ],
)
def test_what_has_no_operator(name, fn, options, error, words):
    with pytest.raises(error, match=words):
        jax_op(name, fn, **options)
    if name.startswith("jaxop::bad"):
        assert not hasattr(torch.ops.jaxop, name.removeprefix("jaxop::"))


@pytest.mark.parametrize("mode", MODES)
def test_calls_that_fail_say_why(mode):
    x = torch.randn(8, 128, device="tpu")
    with torchtpu.mode(mode):
        with pytest.raises(
            NotImplementedError, match="runs on device 'tpu' and its arguments are on the CPU"
        ):
            add(x.cpu(), x.cpu())
        with pytest.raises(RuntimeError, match="same device"):
            add(x, x.cpu())
        with pytest.raises((TypeError, ValueError), match="shapes"):
            norms(x, x[0, :5])
        with pytest.raises(RuntimeError, match="int"):
            matmul(x, x, "wide")
        wrong = jax_op(unused(), lambda x: (x, x[0]))
        with pytest.raises(TypeError, match=r"returned tuple of 2: \(float32\[8, 128\], float32\[128\]\)"):
            wrong(x)
        with pytest.raises(TypeError, match=r"returned None.*-> Tensor"):
            jax_op(unused(), lambda x: None)(x)
        same(add(x, x), 2 * x.cpu())  # nothing is left behind


def test_no_gradient_unless_asked():
    op = jax_op(unused(), lambda x: x * 2)
    out = op(torch.ones(2, device="tpu", requires_grad=True))
    assert out.tolist() == [2.0, 2.0]
    with pytest.raises(NotImplementedError, match="no derivative: it was defined with backward=None"):
        out.sum().backward()


@pytest.mark.parametrize(
    ("backward", "words"),
    [
        (lambda grad, out, x, y: grad, "1 gradients for 2 floating tensors"),
        (lambda grad, out, x, y: (grad, grad[0]), r"gradient of shape \(3,\) for \(2, 3\)"),
    ],
)
def test_a_backward_that_gives_the_wrong_gradients(backward, words):
    op = jax_op(unused(), lambda x, y: x + y, backward=backward)
    x = torch.ones(2, 3, device="tpu", requires_grad=True)
    with pytest.raises(ValueError, match=words):
        op(x, x).sum().backward()


def test_a_zero_gradient_and_one_for_whole_numbers():
    @jax_op(unused(), backward=lambda grads, outs, x, index, y: (grads[0][index] * outs[0][index], None))
    def rows(x: jax.Array, index: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.exp(x[index]), index

    index = torch.tensor([1, 0], device="tpu", dtype=torch.int32)
    x = torch.randn(2, 3)
    a, y = x.to("tpu").requires_grad_(), torch.ones(2, device="tpu", requires_grad=True)
    out, _ = rows(a, index, y)
    out.sum().backward()
    same(a.grad, x.exp())
    assert y.grad.tolist() == [0.0, 0.0]
