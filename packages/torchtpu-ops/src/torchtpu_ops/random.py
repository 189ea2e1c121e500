"""Lowerings that draw from the device's random stream."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torchtpu_ops._pack import pack

Array = jax.Array


def _wide(dtype: Any) -> Any:
    """The type that a draw is computed in: double for double, else float."""
    return jnp.float64 if dtype in (jnp.float64, jnp.complex128, jnp.int64) else jnp.float32


def _unit(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Uniform in the open interval: the middles of equal steps, so that the least has its fair share."""
    return jax.random.uniform(key, shape, dtype) + jnp.finfo(dtype).eps / 2


def _gauss(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    return jax.random.normal(key, shape, dtype)


@pack.lowering("aten::normal_functional", rng=True)
def normal(self: Array, mean: Any = 0.0, std: Any = 1.0, *, key: Array) -> Array:
    """Gaussian values in the shape of ``self``; complex parts share the variance."""
    draw = self.dtype if jnp.iscomplexobj(self) else _wide(self.dtype)
    return (_gauss(key, self.shape, draw) * std + mean).astype(self.dtype)


@pack.lowering(
    "aten::normal.Tensor_float", "aten::normal.float_Tensor", "aten::normal.Tensor_Tensor", rng=True
)
def normal_like(mean: Any, std: Any = 1.0, *, key: Array) -> Array:
    """Gaussian values with a mean and a deviation of their own each."""
    shape = jnp.broadcast_shapes(jnp.shape(mean), jnp.shape(std))
    dtype = jnp.result_type(mean, std)
    draw = dtype if jnp.issubdtype(dtype, jnp.complexfloating) else _wide(dtype)
    return (_gauss(key, shape, draw) * std + mean).astype(dtype)


@pack.lowering("aten::normal.float_float", rng=True)
def normal_size(mean: Any, std: Any, size: list[int], *, dtype: Any = None, key: Array) -> Array:
    """Gaussian values of a given shape."""
    return normal(jnp.zeros(tuple(size), dtype or jnp.float32), mean, std, key=key)


@pack.lowering("aten::randn", "aten::randn.generator", rng=True)
def randn(size: list[int], *, dtype: Any = None, key: Array) -> Array:
    """Standard gaussian values of a given shape."""
    return normal(jnp.zeros(tuple(size), dtype or jnp.float32), key=key)


@pack.lowering("aten::rand", "aten::rand.generator", rng=True)
def rand(size: list[int], *, dtype: Any = None, key: Array) -> Array:
    """Uniform values of a given shape."""
    return jax.random.uniform(key, tuple(size), dtype or jnp.float32)


@pack.lowering("aten::uniform", rng=True)
def uniform(self: Array, from_: Any = 0.0, to: Any = 1.0, *, key: Array) -> Array:
    """Uniform values in ``[from, to)``; a complex number's parts are drawn alike."""
    if jnp.iscomplexobj(self):
        parts = jnp.zeros((2, *self.shape), jnp.finfo(self.dtype).dtype)
        return lax.complex(*uniform(parts, from_, to, key=key))
    unit = jax.random.uniform(key, self.shape, self.dtype).astype(_wide(self.dtype))
    low, high = jnp.asarray(from_).astype(unit.dtype), jnp.asarray(to).astype(unit.dtype)
    out = (unit * (high - low) + low).astype(self.dtype)
    # Rounding may reach the open end.
    return jnp.where(out >= high.astype(self.dtype), low.astype(self.dtype), out)


def _integers(key: Array, shape: tuple[int, ...], low: int, count: int) -> Array:
    """Whole numbers in ``[low, low + count)``, by remainder of 32 or 64 random bits as torch draws them."""
    if count < 2**32:
        bits = jax.random.bits(key, shape, jnp.uint32) % jnp.uint32(count)
    else:
        bits = jax.random.bits(key, shape, jnp.uint64)
        bits = bits % jnp.uint64(count) if count < 2**64 else bits
    return lax.bitcast_convert_type(bits.astype(jnp.uint64), jnp.int64) + jnp.int64(low)


def _top(dtype: Any) -> int:
    """The largest whole number up to which ``random_`` draws by default."""
    if dtype == jnp.bool_:
        return 1
    if jnp.issubdtype(dtype, jnp.integer):
        return int(jnp.iinfo(dtype).max)
    return int(2 ** (jnp.finfo(dtype).nmant + 1))


@pack.lowering("aten::random", rng=True)
def random(self: Array, *, key: Array) -> Array:
    """Whole numbers over all that the dtype counts exactly."""
    return _integers(key, self.shape, 0, _top(self.dtype) + 1).astype(self.dtype)


@pack.lowering("aten::random.from", rng=True)
def random_from(self: Array, from_: int, to: int | None, *, key: Array) -> Array:
    """Whole numbers in ``[from, to)``."""
    end = _top(self.dtype) + 1 if to is None else to
    return _integers(key, self.shape, from_, end - from_).astype(self.dtype)


@pack.lowering("aten::random.to", rng=True)
def random_to(self: Array, to: int, *, key: Array) -> Array:
    """Whole numbers in ``[0, to)``."""
    return random_from(self, 0, to, key=key)


@pack.lowering("aten::randint", "aten::randint.generator", rng=True)
def randint(high: int, size: list[int], *, dtype: Any = None, key: Array) -> Array:
    """Whole numbers below ``high`` in a given shape."""
    return _integers(key, tuple(size), 0, high).astype(dtype or jnp.int64)


@pack.lowering("aten::randint.low", "aten::randint.low_generator", rng=True)
def randint_low(low: int, high: int, size: list[int], *, dtype: Any = None, key: Array) -> Array:
    """Whole numbers in ``[low, high)`` in a given shape."""
    return _integers(key, tuple(size), low, high - low).astype(dtype or jnp.int64)


def _hits(key: Array, shape: tuple[int, ...], p: Any) -> Array:
    dtype = _wide(getattr(p, "dtype", jnp.float32)) if jnp.ndim(p) else jnp.float32
    return jax.random.uniform(key, shape, dtype) < jnp.asarray(p).astype(dtype)


@pack.lowering("aten::bernoulli", rng=True)
def bernoulli(self: Array, *, key: Array) -> Array:
    """One with the probability that each element gives."""
    return _hits(key, self.shape, self).astype(self.dtype)


@pack.lowering("aten::bernoulli.p", "aten::bernoulli.Tensor", rng=True)
def bernoulli_p(self: Array, p: Any = 0.5, *, key: Array) -> Array:
    """One with probability ``p`` in the shape of ``self``."""
    return _hits(key, self.shape, p).astype(self.dtype)


@pack.lowering("aten::exponential", rng=True)
def exponential(self: Array, lambd: Any = 1.0, *, key: Array) -> Array:
    """Exponential values, never zero."""
    return (-jnp.log(_unit(key, self.shape, _wide(self.dtype))) / lambd).astype(self.dtype)


@pack.lowering("aten::geometric", rng=True, static=("p",))
def geometric(self: Array, p: float, *, key: Array) -> Array:
    """Trials up to the first success."""
    u = _unit(key, self.shape, _wide(self.dtype))
    return jnp.maximum(jnp.ceil(jnp.log(u) / math.log1p(-p)), 1).astype(self.dtype)


@pack.lowering("aten::cauchy", rng=True)
def cauchy(self: Array, median: Any = 0.0, sigma: Any = 1.0, *, key: Array) -> Array:
    """Cauchy values."""
    return (median + sigma * jax.random.cauchy(key, self.shape, _wide(self.dtype))).astype(self.dtype)


@pack.lowering("aten::log_normal", rng=True)
def log_normal(self: Array, mean: Any = 1.0, std: Any = 2.0, *, key: Array) -> Array:
    """Exponentials of gaussian values."""
    return jnp.exp(_gauss(key, self.shape, _wide(self.dtype)) * std + mean).astype(self.dtype)


@pack.lowering("aten::poisson", rng=True)
def poisson(self: Array, *, key: Array) -> Array:
    """Poisson counts at the rate that each element gives."""
    return jax.random.poisson(key, self.astype(_wide(self.dtype)), self.shape).astype(self.dtype)


@pack.lowering("aten::binomial", rng=True)
def binomial(count: Array, prob: Array, *, key: Array) -> Array:
    """Successes among ``count`` trials."""
    shape = jnp.broadcast_shapes(count.shape, prob.shape)
    wide = _wide(prob.dtype)
    return jax.random.binomial(key, count.astype(wide), prob.astype(wide), shape, wide)


@pack.lowering("aten::_standard_gamma", rng=True)
def standard_gamma(self: Array, *, key: Array) -> Array:
    """Gamma values of unit scale."""
    return jax.random.gamma(key, self.astype(_wide(self.dtype)), self.shape, _wide(self.dtype))


@pack.lowering("aten::_sample_dirichlet", rng=True)
def sample_dirichlet(self: Array, *, key: Array) -> Array:
    """Dirichlet points."""
    wide = _wide(self.dtype)
    return jax.random.dirichlet(key, self.astype(wide), self.shape[:-1], wide)


@pack.lowering("aten::multinomial", rng=True)
def multinomial(self: Array, num_samples: int, replacement: bool = False, *, key: Array) -> Array:
    """Categories by weight; without replacement the largest perturbed logarithms win."""
    p = self.astype(_wide(self.dtype))
    if not replacement:
        noisy = jnp.log(p) + jax.random.gumbel(key, p.shape, p.dtype)
        return lax.top_k(noisy, num_samples)[1].astype(jnp.int64)
    rows = p.reshape(-1, p.shape[-1])
    total = jnp.cumsum(rows, -1)
    u = jax.random.uniform(key, (rows.shape[0], num_samples), p.dtype) * total[:, -1:]
    picked = jax.vmap(lambda cdf, x: jnp.searchsorted(cdf, x, side="right"))(total, u)
    # Rounding may step past the last category that has weight.
    last = p.shape[-1] - 1 - jnp.argmax(rows[:, ::-1] > 0, -1)
    picked = jnp.minimum(picked, last[:, None])
    return picked.reshape(*p.shape[:-1], num_samples).astype(jnp.int64)


@pack.lowering("aten::randperm", "aten::randperm.generator", rng=True)
def randperm(n: int, *, dtype: Any = None, key: Array) -> Array:
    """The numbers below ``n`` in random order."""
    out = jax.random.permutation(key, lax.iota(jnp.int32 if n < 2**31 else jnp.int64, n))
    return out.astype(dtype or jnp.int64)


@pack.lowering("aten::native_dropout", rng=True)
def native_dropout(input: Array, p: Any, train: bool | None, *, key: Array) -> tuple[Array, Array]:
    """Elements dropped with probability ``p`` and the rest scaled up, with the mask of those kept."""
    if train is False:
        return input, jnp.ones(input.shape, jnp.bool_)
    keep = 1.0 - jnp.asarray(p)
    mask = _hits(key, input.shape, keep)
    scale = jnp.where(keep == 0, 0.0, 1.0 / keep).astype(_wide(input.dtype))
    kept = jnp.where(mask, input * scale, input * 0)
    return kept.astype(input.dtype), mask


@pack.lowering("aten::native_dropout_backward")
def native_dropout_backward(grad_output: Array, mask: Array, scale: Any) -> Array:
    """The gradient where elements were kept."""
    inexact = jnp.issubdtype(grad_output.dtype, jnp.inexact)
    dtype = grad_output.dtype if inexact else jnp.float32
    return grad_output * (mask.astype(dtype) * jnp.asarray(scale).astype(dtype))


@pack.lowering("aten::_standard_gamma_grad", promote="int_to_float")
def standard_gamma_grad(self: Array, output: Array) -> Array:
    """The derivative of a gamma draw by its concentration."""
    return lax.random_gamma_grad(self, output)


def _rrelu(
    x: Array, noise: Array, bounds: tuple[Any, Any], training: bool, key: Array
) -> tuple[Array, Array]:
    """The noise and the result; in evaluation the noise stays, and the slope is the middle."""
    low, high = (jnp.asarray(b).astype(_wide(x.dtype)) for b in bounds)
    if not training:
        return noise, jnp.where(x <= 0, x * ((low + high) / 2).astype(x.dtype), x)
    drawn = (jax.random.uniform(key, x.shape, low.dtype) * (high - low) + low).astype(x.dtype)
    noise = jnp.where(x <= 0, drawn, jnp.ones_like(x))
    return noise, x * noise


@pack.lowering("aten::rrelu_with_noise", "aten::rrelu_with_noise.out", rng=True)
def rrelu_with_noise(
    self: Array, noise: Array, lower: Any = 0.125, upper: Any = 1 / 3, training: bool = False, *, key: Array
) -> tuple[Array, Array]:
    """The noise, which the schema declares as written, and negative values times a random slope."""
    return _rrelu(self, noise, (lower, upper), training, key)


@pack.lowering("aten::rrelu_with_noise_", "aten::rrelu_with_noise_functional", rng=True)
def rrelu_with_noise_functional(
    self: Array, noise: Array, lower: Any = 0.125, upper: Any = 1 / 3, training: bool = False, *, key: Array
) -> tuple[Array, Array]:
    """Negative values times a random slope, and the noise."""
    noise, out = _rrelu(self, noise, (lower, upper), training, key)
    return out, noise
