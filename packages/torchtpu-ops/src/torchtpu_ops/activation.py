"""Activation functions, softmax and their backward functions."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from torchtpu_ops._pack import pack
from torchtpu_ops._table import wide

Array = jax.Array


@pack.lowering("aten::relu", promote="default")
def relu(self: Array) -> Array:
    """max(x, 0), NaN stays."""
    return jnp.maximum(self, 0)


@pack.lowering("aten::threshold_backward", promote="default")
def threshold_backward(grad_output: Array, self: Array, threshold: Any) -> Array:
    """The gradient where x is above the threshold."""
    return jnp.where(self <= threshold, 0, grad_output)


@pack.lowering("aten::threshold", promote="default")
def threshold(self: Array, threshold: Any, value: Any) -> Array:
    """x above the threshold, else ``value``."""
    return jnp.where(self <= threshold, value, self)


@pack.lowering("aten::gelu", promote="default")
def gelu(self: Array, *, approximate: str = "none") -> Array:
    """x times the normal distribution function of x (https://arxiv.org/abs/1606.08415)."""
    return jax.nn.gelu(self, approximate=approximate == "tanh")


@pack.lowering("aten::gelu_backward", promote="default")
def gelu_backward(grad_output: Array, self: Array, *, approximate: str = "none") -> Array:
    """The gradient of gelu."""
    x = self
    if approximate == "tanh":
        return jax.vjp(lambda v: jax.nn.gelu(v, approximate=True), x)[1](grad_output)[0]
    cdf = 0.5 * (1 + jax.lax.erf(x * math.sqrt(0.5)))
    return grad_output * (cdf + x * jnp.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi)))


@pack.lowering("aten::silu", promote="default")
def silu(self: Array) -> Array:
    """x * sigmoid(x)."""
    return self * jax.nn.sigmoid(self)


@pack.lowering("aten::silu_backward", promote="default")
def silu_backward(grad_output: Array, self: Array) -> Array:
    """The gradient of silu."""
    s = jax.nn.sigmoid(self)
    return grad_output * s * (1 + self * (1 - s))


@pack.lowering("aten::sigmoid_backward", promote="default")
def sigmoid_backward(grad_output: Array, output: Array) -> Array:
    """The gradient of sigmoid from its output."""
    return grad_output * jnp.conj((1 - output) * output)


@pack.lowering("aten::tanh_backward", promote="default")
def tanh_backward(grad_output: Array, output: Array) -> Array:
    """The gradient of tanh from its output."""
    return grad_output * jnp.conj(1 - output * output)


def _mish(x: Array) -> Array:
    return x * jnp.tanh(jax.nn.softplus(x))


@pack.lowering("aten::mish", promote="default")
def mish(self: Array) -> Array:
    """x * tanh(softplus(x))."""
    return _mish(self)


@pack.lowering("aten::mish_backward", promote="default")
def mish_backward(grad_output: Array, self: Array) -> Array:
    """The gradient of mish."""
    return jax.vjp(_mish, self)[1](grad_output)[0]


@pack.lowering("aten::elu", promote="default")
def elu(self: Array, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Array:
    """scale * (x, or alpha * (exp(input_scale * x) - 1) for x <= 0)."""
    return jnp.where(self > 0, self * scale, alpha * scale * jnp.expm1(jnp.minimum(self, 0) * input_scale))


@pack.lowering("aten::elu_backward", promote="default")
def elu_backward(
    grad_output: Array, alpha: Any, scale: Any, input_scale: Any, is_result: bool, self_or_result: Array
) -> Array:
    """The gradient of elu from its input or its result."""
    x = self_or_result
    if is_result:
        slope = input_scale * (x + alpha * scale)
    else:
        slope = input_scale * alpha * scale * jnp.exp(jnp.minimum(x, 0) * input_scale)
    return grad_output * jnp.where(x > 0, scale, slope)


@pack.lowering("aten::leaky_relu", promote="default")
def leaky_relu(self: Array, negative_slope: Any = 0.01) -> Array:
    """x, or negative_slope * x."""
    return jnp.where(self > 0, self, self * negative_slope)


@pack.lowering("aten::leaky_relu_backward", promote="default")
def leaky_relu_backward(grad_output: Array, self: Array, negative_slope: Any, self_is_result: bool) -> Array:
    """The gradient of leaky_relu."""
    return jnp.where(self > 0, grad_output, grad_output * negative_slope)


@pack.lowering("aten::hardtanh", promote="default")
def hardtanh(self: Array, min_val: Any = -1, max_val: Any = 1) -> Array:
    """Limit to [min_val, max_val]."""
    return jnp.minimum(jnp.maximum(self, min_val), max_val)


@pack.lowering("aten::hardtanh_backward", promote="default")
def hardtanh_backward(grad_output: Array, self: Array, min_val: Any, max_val: Any) -> Array:
    """The gradient inside the limits."""
    return jnp.where((self > min_val) & (self < max_val), grad_output, 0)


@pack.lowering("aten::hardswish", promote="default")
def hardswish(self: Array) -> Array:
    """x * relu6(x + 3) / 6."""
    return self * jnp.clip(self + 3, 0, 6) / 6


@pack.lowering("aten::hardswish_backward", promote="default")
def hardswish_backward(grad_output: Array, self: Array) -> Array:
    """The gradient of hardswish."""
    return jnp.where(self <= -3, 0, jnp.where(self < 3, grad_output * (self / 3 + 0.5), grad_output))


@pack.lowering("aten::hardsigmoid", promote="default")
def hardsigmoid(self: Array) -> Array:
    """relu6(x + 3) / 6."""
    return jnp.clip(self + 3, 0, 6) / 6


@pack.lowering("aten::hardsigmoid_backward", promote="default")
def hardsigmoid_backward(grad_output: Array, self: Array) -> Array:
    """The gradient of hardsigmoid."""
    return jnp.where((self > -3) & (self < 3), grad_output / 6, 0)


@pack.lowering("aten::softplus", promote="default")
def softplus(self: Array, beta: Any = 1, threshold: Any = 20) -> Array:
    """log(1 + exp(beta x)) / beta, linear above the threshold."""
    scaled = self * beta
    return jnp.where(scaled > threshold, self, jnp.log1p(jnp.exp(scaled)) / beta)


@pack.lowering("aten::softplus_backward", promote="default")
def softplus_backward(grad_output: Array, self: Array, beta: Any, threshold: Any) -> Array:
    """The gradient of softplus."""
    scaled = self * beta
    return jnp.where(scaled > threshold, grad_output, grad_output * jax.nn.sigmoid(scaled))


@pack.lowering("aten::softshrink", promote="default")
def softshrink(self: Array, lambd: Any = 0.5) -> Array:
    """x moved toward 0 by lambd."""
    return jnp.where(self > lambd, self - lambd, jnp.where(self < -lambd, self + lambd, self * 0))


@pack.lowering("aten::hardshrink", promote="default")
def hardshrink(self: Array, lambd: Any = 0.5) -> Array:
    """x outside [-lambd, lambd], else 0."""
    return jnp.where((self >= -lambd) & (self <= lambd), 0, self)


@pack.lowering("aten::softshrink_backward", promote="default")
def softshrink_backward(grad_output: Array, self: Array, lambd: Any) -> Array:
    """The gradient outside [-lambd, lambd]."""
    return jnp.where((self < -lambd) | (self > lambd), grad_output, 0)


@pack.lowering("aten::hardshrink_backward", promote="default")
def hardshrink_backward(grad_out: Array, self: Array, lambd: Any) -> Array:
    """The gradient outside [-lambd, lambd]."""
    return jnp.where((self < -lambd) | (self > lambd), grad_out, 0)


@pack.lowering("aten::_prelu_kernel", promote="default")
def prelu(self: Array, weight: Array) -> Array:
    """x, or weight * x."""
    return jnp.where(self > 0, self, self * weight)


@pack.lowering("aten::_prelu_kernel_backward", promote="default")
def prelu_backward(grad_output: Array, self: Array, weight: Array) -> tuple[Array, Array]:
    """The gradients of prelu, the weight's before its reduction."""
    positive = self > 0
    return jnp.where(positive, grad_output, grad_output * weight), jnp.where(positive, 0, grad_output * self)


def _glu(x: Array, dim: int) -> Array:
    a, b = jnp.split(x, 2, axis=dim)
    return a * jax.nn.sigmoid(b)


@pack.lowering("aten::glu", promote="default")
def glu(self: Array, dim: int = -1) -> Array:
    """The first half times the sigmoid of the second."""
    return _glu(self, dim)


@pack.lowering("aten::glu_backward", promote="default")
def glu_backward(grad_output: Array, self: Array, dim: int) -> Array:
    """The gradient of glu."""
    return jax.vjp(lambda x: _glu(x, dim), self)[1](grad_output)[0]


@pack.lowering("aten::glu_jvp")
def glu_jvp(glu: Array, x: Array, dx: Array, dim: int) -> Array:
    """The forward derivative of glu."""
    return jax.jvp(lambda x: _glu(x, dim), (x,), (dx,))[1]


@pack.lowering("aten::glu_backward_jvp")
def glu_backward_jvp(
    grad_x: Array, grad_glu: Array, x: Array, dgrad_glu: Array, dx: Array, dim: int
) -> Array:
    """The forward derivative of glu's gradient."""
    return jax.jvp(lambda g, x: glu_backward(g, x, dim), (grad_glu, x), (dgrad_glu, dx))[1]


@pack.lowering("aten::log_sigmoid_forward", promote="default")
def log_sigmoid_forward(self: Array) -> tuple[Array, Array]:
    """log(sigmoid(x)) and the buffer exp(-|x|) that CPU keeps."""
    return jax.nn.log_sigmoid(self), jnp.exp(-jnp.abs(self))


@pack.lowering("aten::log_sigmoid_backward", promote="default")
def log_sigmoid_backward(grad_output: Array, self: Array, buffer: Array) -> Array:
    """The gradient of log_sigmoid."""
    return grad_output * jax.nn.sigmoid(-self)


@pack.lowering("aten::logit_backward", promote="default", static=("eps",))
def logit_backward(grad_output: Array, self: Array, eps: float | None = None) -> Array:
    """The gradient of logit; NaN outside [0, 1] without eps, 0 outside [eps, 1 - eps] with it."""
    low, outside = (0.0, jnp.nan) if eps is None or eps < 0 else (eps, 0.0)
    inside = (self >= low) & (self <= 1 - low)
    return jnp.where(inside, grad_output / (self * (1 - self)), outside)


@pack.lowering("aten::_softmax")
def softmax(self: Array, dim: int, half_to_float: bool) -> Array:
    """exp(x) over its sum along ``dim``."""
    return jax.nn.softmax(wide(self), axis=dim) if self.ndim else jnp.ones_like(self)


@pack.lowering("aten::_safe_softmax")
def safe_softmax(self: Array, dim: int, dtype: Any = None) -> Array:
    """Softmax that gives 0 for rows that are all -inf."""
    out = jax.nn.softmax(wide(self), axis=dim)
    return jnp.where(jnp.all(self == -jnp.inf, axis=dim, keepdims=True), 0, out)


def _mask_like(mask: Array, x: Array, kind: int | None) -> Array:
    """The mask of (batch, heads, length, length) scores: for each pair (kind 0), each key (1), or as given."""
    if kind == 0:
        return mask.reshape(1, 1, *mask.shape)
    return mask.reshape(x.shape[0], 1, 1, x.shape[-1]) if kind == 1 else mask


@pack.lowering("aten::_masked_softmax")
def masked_softmax(self: Array, mask: Array, dim: int | None = None, mask_type: int | None = None) -> Array:
    """Softmax over what the mask does not hide (True hides); 0 where it does, NaN where all is hidden."""
    x = jnp.where(_mask_like(mask, self, mask_type), -jnp.inf, wide(self))
    return jax.nn.softmax(x, axis=-1 if dim is None else dim)


@pack.lowering("aten::_masked_softmax_backward")
def masked_softmax_backward(grad_output: Array, output: Array, mask: Array, dim: int | None = None) -> Array:
    """The gradient of masked_softmax from its output, 0 where the mask hides."""
    axis = -1 if dim is None else dim
    g, y = wide(grad_output), jnp.where(mask, 0, wide(output))
    return y * (g - jnp.sum(g * y, axis=axis, keepdims=True))


@pack.lowering("aten::_log_softmax")
def log_softmax(self: Array, dim: int, half_to_float: bool) -> Array:
    """log of softmax."""
    return jax.nn.log_softmax(wide(self), axis=dim) if self.ndim else jnp.zeros_like(self)


@pack.lowering("aten::_softmax_backward_data")
def softmax_backward(grad_output: Array, output: Array, dim: int, input_dtype: Any) -> Array:
    """The gradient of softmax from its output."""
    g, y = wide(grad_output), wide(output)
    return y * (g - jnp.sum(g * y, axis=dim, keepdims=True)) if y.ndim else jnp.zeros_like(y)


@pack.lowering("aten::_log_softmax_backward_data")
def log_softmax_backward(grad_output: Array, output: Array, dim: int, input_dtype: Any) -> Array:
    """The gradient of log_softmax from its output."""
    g, y = wide(grad_output), wide(output)
    return g - jnp.exp(y) * jnp.sum(g, axis=dim, keepdims=True) if y.ndim else jnp.zeros_like(y)
