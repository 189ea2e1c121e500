"""The fused optimizers and the gradient scaler's operators: functional twins over lists of tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from torchtpu_ops._pack import pack

Array = jax.Array
Many = list[Array]


def _kept(found_inf: Array | None, new: Array, old: Array) -> Array:
    """The old value where the scaler found an infinity."""
    return (
        new.astype(old.dtype) if found_inf is None else jnp.where(found_inf != 0, old, new.astype(old.dtype))
    )


def _wide(x: Array) -> Array:
    """Half types compute in float32, as torch's fused kernels do."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _unscaled(grad: Array, scale: Array | None) -> Array:
    grad = _wide(grad)
    return grad if scale is None else grad / scale.astype(grad.dtype)


def _moments(g: Array, m: Array, v: Array, beta1: Any, beta2: Any) -> tuple[Array, Array]:
    """The running means of the gradient and of its square."""
    m, v = _wide(m), _wide(v)
    return m + (g - m) * (1 - beta1), beta2 * v + (1 - beta2) * g * g


def _adam(decoupled: bool) -> Callable[..., Any]:
    """Adam (https://arxiv.org/abs/1412.6980); ``decoupled`` decays weights as in AdamW."""

    def step(
        self: Many,
        grads: Many,
        exp_avgs: Many,
        exp_avg_sqs: Many,
        max_exp_avg_sqs: Many,
        state_steps: Many,
        *,
        lr: Any,
        beta1: Any,
        beta2: Any,
        weight_decay: Any,
        eps: Any,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Array | None = None,
        found_inf: Array | None = None,
    ) -> tuple[Many, ...]:
        out: tuple[Many, ...] = ([], [], [], [], [])
        for i, old_p in enumerate(self):
            p, raw = _wide(old_p), _unscaled(grads[i], grad_scale)
            rate, t = jnp.asarray(lr).astype(p.dtype), state_steps[i].astype(p.dtype)
            g = -raw if maximize else raw
            q, g = (p * (1 - rate * weight_decay), g) if decoupled else (p, g + weight_decay * p)
            m, v = _moments(g, exp_avgs[i], exp_avg_sqs[i], beta1, beta2)
            top = jnp.maximum(_wide(max_exp_avg_sqs[i]), v) if amsgrad else v
            new = q - rate / (1 - beta1**t) * m / (jnp.sqrt(top) / jnp.sqrt(1 - beta2**t) + eps)
            values = [(new, old_p), (raw, grads[i]), (m, exp_avgs[i]), (v, exp_avg_sqs[i])]
            values += [(top, max_exp_avg_sqs[i])] if amsgrad else []
            for place, (fresh, old) in zip(out, values, strict=False):
                place.append(_kept(found_inf, fresh, old))
        return out

    return step


for _name, _decoupled in (("_fused_adam", False), ("_fused_adamw", True)):
    _step = _adam(_decoupled)
    _step.__doc__ = f"One step of {_name}: new parameters, gradients and moments."
    pack.lowering(f"aten::{_name}", f"aten::{_name}.tensor_lr")(_step)


@pack.lowering("aten::_fused_sgd", "aten::_fused_sgd.tensor_lr")
def fused_sgd(
    self: Many,
    grads: Many,
    momentum_buffer_list: Many,
    *,
    weight_decay: Any,
    momentum: Any,
    lr: Any,
    dampening: Any,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Array | None = None,
    found_inf: Array | None = None,
) -> tuple[Many, Many, Many]:
    """One step of SGD: new parameters, gradients and momentum buffers."""
    params, scaled, buffers = [], [], []
    for i, old_p in enumerate(self):
        p, raw = _wide(old_p), _unscaled(grads[i], grad_scale)
        rate = jnp.asarray(lr).astype(p.dtype)
        g = (-raw if maximize else raw) + weight_decay * p
        if momentum_buffer_list:
            old = momentum_buffer_list[i]
            b = g if is_first_step else momentum * _wide(old) + (1 - dampening) * g
            buffers.append(_kept(found_inf, b, old))
            g = g + momentum * b if nesterov else b
        params.append(_kept(found_inf, p - rate * g, old_p))
        scaled.append(_kept(found_inf, raw, grads[i]))
    return params, scaled, buffers


@pack.lowering("aten::_fused_adagrad")
def fused_adagrad(
    self: Many,
    grads: Many,
    state_sums: Many,
    state_steps: Many,
    *,
    lr: Any,
    lr_decay: Any,
    weight_decay: Any,
    eps: Any,
    maximize: bool,
    grad_scale: Array | None = None,
    found_inf: Array | None = None,
) -> tuple[Many, Many, Many, Many]:
    """One step of Adagrad: new parameters, gradients, sums and steps."""
    params, scaled, sums = [], [], []
    for i, old_p in enumerate(self):
        p, raw = _wide(old_p), _unscaled(grads[i], grad_scale)
        rate = jnp.asarray(lr).astype(p.dtype)
        g = (-raw if maximize else raw) + weight_decay * p
        s = _wide(state_sums[i]) + g * g
        new = p - rate / (1 + (state_steps[i].astype(p.dtype) - 1) * lr_decay) * g / (jnp.sqrt(s) + eps)
        params.append(_kept(found_inf, new, old_p))
        scaled.append(_kept(found_inf, raw, grads[i]))
        sums.append(_kept(found_inf, s, state_sums[i]))
    return params, scaled, sums, list(state_steps)


@pack.lowering("aten::_fused_adagrad.tensor_lr")
def fused_adagrad_tensor_lr(*args: Any, **kwargs: Any) -> tuple[Many, Many, Many]:
    """The same with the rate in a tensor; its functional form does not return the steps."""
    return fused_adagrad(*args, **kwargs)[:3]


@pack.lowering("aten::_amp_foreach_non_finite_check_and_unscale")
def unscale(self: Many, found_inf: Array, inv_scale: Array) -> tuple[Many, Array]:
    """Gradients times the inverse scale, and 1 if any of them is not finite."""
    bad = found_inf
    for x in self:
        bad = jnp.where(jnp.all(jnp.isfinite(x)), bad, jnp.ones_like(bad))
    return [(x * inv_scale).astype(x.dtype) for x in self], bad


@pack.lowering("aten::_amp_update_scale")
def update_scale(
    self: Array,
    growth_tracker: Array,
    found_inf: Array,
    scale_growth_factor: Any,
    scale_backoff_factor: Any,
    growth_interval: int,
) -> tuple[Array, Array]:
    """The next scale and the number of good steps."""
    good = growth_tracker + 1
    full = good == growth_interval
    grown = self * jnp.asarray(scale_growth_factor, self.dtype)
    scale = jnp.where(full & jnp.isfinite(grown), grown, self)
    scale = jnp.where(found_inf != 0, self * jnp.asarray(scale_backoff_factor, self.dtype), scale)
    return scale, jnp.where((found_inf != 0) | full, 0, good).astype(growth_tracker.dtype)
