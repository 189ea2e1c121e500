"""The fused LSTM and GRU cells that torch's recurrent layers call on devices.

Gate order and the workspaces follow torch's formulas: LSTM gates i, f, g, o; GRU gates r, z, n.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from torchtpu_ops._pack import pack

Array = jax.Array
Maybe = Array | None


def _plus(x: Array, bias: Maybe) -> Array:
    return x if bias is None else x + bias


@pack.lowering("aten::_thnn_fused_lstm_cell")
def lstm_cell(
    input_gates: Array, hidden_gates: Array, cx: Array, input_bias: Maybe = None, hidden_bias: Maybe = None
) -> tuple[Array, Array, Array]:
    """New hidden state, new cell state and the activated gates."""
    gates = _plus(input_gates, input_bias) + _plus(hidden_gates, hidden_bias)
    i, f, g, o = jnp.split(gates, 4, axis=1)
    i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
    cy = f * cx + i * g
    return o * jnp.tanh(cy), cy, jnp.concatenate([i, f, g, o], axis=1)


@pack.lowering("aten::_thnn_fused_lstm_cell_backward_impl")
def lstm_cell_backward(
    grad_hy: Maybe, grad_cy: Maybe, cx: Array, cy: Array, workspace: Array, has_bias: bool
) -> tuple[Array, Array, Maybe]:
    """Gradients of the gates, of the cell state and of the bias."""
    i, f, g, o = jnp.split(workspace, 4, axis=1)
    ghy = jnp.zeros_like(cx) if grad_hy is None else grad_hy
    gcy = jnp.zeros_like(cx) if grad_cy is None else grad_cy
    t = jnp.tanh(cy)
    gcx = ghy * o * (1 - t * t) + gcy
    gates = [gcx * g * i * (1 - i), gcx * cx * f * (1 - f), gcx * i * (1 - g * g), ghy * t * o * (1 - o)]
    grad = jnp.concatenate(gates, axis=1)
    return grad, gcx * f, jnp.sum(grad, axis=0) if has_bias else None


@pack.lowering("aten::_thnn_fused_gru_cell")
def gru_cell(
    input_gates: Array, hidden_gates: Array, hx: Array, input_bias: Maybe = None, hidden_bias: Maybe = None
) -> tuple[Array, Array]:
    """New hidden state and the workspace (r, z, n, h, hidden part of n)."""
    ir, iz, inn = jnp.split(_plus(input_gates, input_bias), 3, axis=1)
    hr, hz, hn = jnp.split(_plus(hidden_gates, hidden_bias), 3, axis=1)
    r, z = jax.nn.sigmoid(ir + hr), jax.nn.sigmoid(iz + hz)
    n = jnp.tanh(inn + r * hn)
    return n + z * (hx - n), jnp.concatenate([r, z, n, hx, hn], axis=1)


@pack.lowering("aten::_thnn_fused_gru_cell_backward")
def gru_cell_backward(
    grad_hy: Array, workspace: Array, has_bias: bool
) -> tuple[Array, Array, Array, Maybe, Maybe]:
    """Gradients of both gate inputs, of the hidden state and of the biases."""
    r, z, n, hx, hn = jnp.split(workspace, 5, axis=1)
    gz = grad_hy * (hx - n) * z * (1 - z)
    gn = grad_hy * (1 - z) * (1 - n * n)
    gr = gn * hn * r * (1 - r)
    grad_in = jnp.concatenate([gr, gz, gn], axis=1)
    grad_hidden = jnp.concatenate([gr, gz, gn * r], axis=1)
    bias = (jnp.sum(grad_in, axis=0), jnp.sum(grad_hidden, axis=0)) if has_bias else (None, None)
    return grad_in, grad_hidden, grad_hy * z, *bias
