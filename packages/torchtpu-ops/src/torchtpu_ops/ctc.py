"""Connectionist temporal classification (https://www.cs.toronto.edu/~graves/icml_2006.pdf)."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_ops._pack import pack

Array = jax.Array
Ints = Sequence[int]
# the log of no probability while summing: finite, so that gradients are no NaN
_NEVER = -1e30


def _labels(targets: Array, lengths: Ints, blank: int) -> Array:
    """Each target with blanks around its labels, (batch, 2 * longest + 1); blanks fill up."""
    longest = max(lengths, default=0)
    starts = np.cumsum([0, *lengths])[:-1] if targets.ndim == 1 else np.zeros(len(lengths), np.int64)
    column = starts[:, None] + np.arange(longest)
    real = np.arange(longest) < np.asarray(lengths)[:, None]
    if targets.ndim == 1:
        rows = targets[np.where(real, column, 0)] if targets.size else jnp.zeros(real.shape, targets.dtype)
    else:
        rows = targets[:, :longest]
    rows = jnp.where(real, rows, blank)
    around = jnp.full((len(lengths), 2 * longest + 1), blank, rows.dtype)
    return around.at[:, 1::2].set(rows)


def _alphas(log_probs: Array, labels: Array, blank: int) -> Array:
    """Log of the probability of all paths to each label at each time, (time, batch, labels)."""
    index = jnp.broadcast_to(labels, (log_probs.shape[0], *labels.shape))
    emitted = jnp.maximum(jnp.take_along_axis(log_probs, index, axis=2), _NEVER)
    before = jnp.pad(labels, ((0, 0), (2, 0)), constant_values=blank)[:, : labels.shape[1]]
    # a blank between different labels may be left out
    skips = (labels != blank) & (labels != before) & (jnp.arange(labels.shape[1]) >= 2)

    def shifted(x: Array, by: int) -> Array:
        return jnp.pad(x, ((0, 0), (by, 0)), constant_values=_NEVER)[:, : x.shape[1]]

    def step(old: Array, now: Array) -> tuple[Array, Array]:
        leap = jnp.where(skips, shifted(old, 2), _NEVER)
        ways = jnp.stack([old, shifted(old, 1), leap])
        new = jnp.maximum(jax.nn.logsumexp(ways, axis=0) + now, _NEVER)
        return new, new

    first = jnp.where(jnp.arange(labels.shape[1]) < 2, emitted[0], _NEVER)
    rest = lax.scan(step, first, emitted[1:])[1]
    return jnp.concatenate([first[None], rest])


def _losses(log_probs: Array, labels: Array, times: Ints, lengths: Ints, blank: int) -> tuple[Array, Array]:
    """The negative log likelihood of each target, `-_NEVER` or more if there is no path, and the alphas."""
    alphas = _alphas(log_probs, labels, blank)
    batch, last = np.arange(len(times)), np.maximum(np.asarray(times) - 1, 0)
    ends = 2 * np.asarray(lengths)
    final = alphas[last, batch, ends]
    label = jnp.where(ends > 0, alphas[last, batch, np.maximum(ends - 1, 0)], _NEVER)
    loss = -jnp.logaddexp(final, label)
    none = np.asarray(times) == 0  # only the empty target fits no time at all
    return jnp.where(none, np.where(ends > 0, -_NEVER, 0.0), loss), alphas


def _batched(log_probs: Array, targets: Array) -> tuple[Array, Array, bool]:
    single = log_probs.ndim == 2
    return (log_probs[:, None] if single else log_probs), targets, single


@pack.lowering("aten::_ctc_loss")
def ctc_loss(
    log_probs: Array,
    targets: Array,
    input_lengths: Ints,
    target_lengths: Ints,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Array, Array]:
    """The loss of each target, and the alphas as (batch, time, labels)."""
    x, targets, single = _batched(log_probs, targets)
    labels = _labels(targets, target_lengths, blank)
    loss, alphas = _losses(x, labels, input_lengths, target_lengths, blank)
    alphas = jnp.where(alphas <= _NEVER / 2, -jnp.inf, alphas).swapaxes(0, 1)
    loss = jnp.where(loss >= -_NEVER / 2, 0 if zero_infinity else jnp.inf, loss)
    return (loss[0], alphas[0]) if single else (loss, alphas)


@pack.lowering("aten::_ctc_loss_backward")
def ctc_loss_backward(
    grad: Array,
    log_probs: Array,
    targets: Array,
    input_lengths: Ints,
    target_lengths: Ints,
    neg_log_likelihood: Array,
    log_alpha: Array,
    blank: int,
    zero_infinity: bool = False,
) -> Array:
    """torch's gradient: that of unnormalised scores, which a log-softmax before it leaves as it is."""
    x, targets, single = _batched(log_probs, targets)
    labels = _labels(targets, target_lengths, blank)

    def total(x: Array) -> tuple[Array, Array]:
        loss, _ = _losses(x, labels, input_lengths, target_lengths, blank)
        return jnp.sum(loss), loss

    slope, loss = jax.grad(total, has_aux=True)(x)
    never = (loss >= -_NEVER / 2)[None, :, None]
    out = (jnp.exp(x) + slope) * jnp.atleast_1d(grad)[None, :, None]
    out = jnp.where(never, 0 if zero_infinity else jnp.nan, out)
    inside = np.arange(x.shape[0])[:, None] < np.asarray(input_lengths)
    out = jnp.where(inside[..., None], out, 0)
    return out[:, 0] if single else out
