"""Scaled dot-product attention as one operator, forward and backward.

out = softmax(scale · query keyᵀ + mask) value. The forward also gives each row's largest score and sum of exponentials,
from which the backward finds the weights again instead of keeping them (Dao et al., 2022, "FlashAttention"). These are
two numbers, not one logarithm, whose rounding would spoil the weights of large scores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torchtpu_ops._pack import pack
from torchtpu_ops._table import wide

Array = jax.Array
Maybe = Array | None
STATIC = ("dropout_p", "scale")


def _grouped(query: Array, key: Array) -> tuple[tuple[int, ...], int, int]:
    """The leading dimensions, the heads of the keys, and how many heads of the queries share one of these."""
    heads = key.shape[-3]
    return query.shape[:-3], heads, query.shape[-3] // heads if heads else 1


def _rows(x: Array, heads: int, groups: int) -> Array:
    """(…, heads · groups, length, width) as (batch, heads, groups, length, width)."""
    return x.reshape(math.prod(x.shape[:-3]), heads, groups, *x.shape[-2:])


def _columns(x: Array) -> Array:
    """(…, heads, length, width) as (batch, heads, length, width)."""
    return x.reshape(math.prod(x.shape[:-3]), *x.shape[-3:])


def _mask(mask: Array, lead: tuple[int, ...], heads: int, groups: int) -> Array:
    """A mask that broadcasts to (batch, heads, groups, queries, keys)."""
    mask = mask.reshape((1,) * (len(lead) + 3 - mask.ndim) + mask.shape)
    own = mask.shape[: len(lead)]
    if math.prod(own) != 1 and len(lead) > 1:
        mask, own = jnp.broadcast_to(mask, lead + mask.shape[len(lead) :]), lead
    split = (1, 1) if mask.shape[-3] == 1 else (heads, groups)
    return mask.reshape(math.prod(own), *split, *mask.shape[-2:])


def _product(spec: str, a: Array, b: Array) -> Array:
    """A product of two arrays; half types are added up in float32."""
    return jnp.einsum(spec, a, b, preferred_element_type=wide(a[..., :0]).dtype)


def _scores(query: Array, key: Array, mask: Maybe, is_causal: bool, scale: float) -> Array:
    """The scores of (batch, heads, groups, queries, keys), minus infinity where a key is hidden."""
    scores = _product("bhgle,bhse->bhgls", query, key) * scale
    if mask is not None:
        hidden = mask.dtype == jnp.bool_
        scores = jnp.where(mask, scores, -jnp.inf) if hidden else scores + mask.astype(scores.dtype)
    if is_causal:
        at = [lax.broadcasted_iota(jnp.int32, scores.shape[-2:], axis) for axis in (0, 1)]
        scores = jnp.where(at[0] >= at[1], scores, -jnp.inf)
    return scores


def _largest(scores: Array) -> Array:
    """The largest score of each row, 0 where no key is seen; it shifts what its value does not change."""
    top = jnp.max(scores, axis=-1, initial=-jnp.inf, keepdims=True)
    return lax.stop_gradient(jnp.where(top == -jnp.inf, 0, top))


def _weights(scores: Array, rows: tuple[Array, Maybe] | None) -> tuple[Array, Array]:
    """exp(scores - largest) and its sum over each row, (…, queries, 1); ``rows`` are these, as far as known."""
    top, total = (_largest(scores), None) if rows is None else rows
    weights = jnp.exp(scores - top.reshape(*scores.shape[:-1], 1))
    if total is None:
        return weights, jnp.sum(weights, axis=-1, keepdims=True)
    return weights, total.reshape(*scores.shape[:-1], 1)


def _divisor(total: Array) -> Array:
    """A row that sees no key stays 0."""
    return jnp.where(total == 0, 1, total)


def _factor(seed: Maybe, dropout_p: float, shape: tuple[int, ...]) -> Any:
    """What dropout multiplies the weights by; the same for the same seed of two 32-bit integers."""
    if seed is None or dropout_p == 0:
        return None
    if dropout_p == 1:
        return 0.0
    random = jax.random.wrap_key_data(lax.bitcast_convert_type(seed, jnp.uint32), impl="threefry2x32")
    return jax.random.bernoulli(random, 1 - dropout_p, shape) / jnp.float32(1 - dropout_p)


def _dropped(weights: Array, factor: Any) -> Array:
    return weights if factor is None else weights * jnp.asarray(factor, weights.dtype)


def _scale(scale: float | None, width: int) -> float:
    return (1 / math.sqrt(width) if width else 1.0) if scale is None else scale


def _fake(
    query: Any, key: Any, value: Any, mask: Any = None, seed: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """The results' shapes, which may be symbols."""
    import torch

    dtype = torch.float64 if query.dtype is torch.float64 else torch.float32
    rows = [query.new_empty(query.shape[:-1], dtype=dtype) for _ in range(2)]
    return query.new_empty((*query.shape[:-1], value.shape[-1])), *rows


def _gradient(
    grads: Sequence[Any], outputs: Sequence[Any], needed: frozenset[str], query: Any, key: Any, value: Any,
    mask: Any, seed: Any, dropout_p: float, is_causal: bool, scale: float | None,
) -> dict[str, Any]:  # fmt: skip
    """One call of the backward operator; a mask's gradient only where it is needed, as it is large."""
    if any(g is not None for g in grads[1:]):
        raise NotImplementedError("torchtpu::sdpa: its output has gradients, largest and total have none")
    if grads[0] is None:
        return {}
    options = mask, seed, dropout_p, is_causal, scale, "mask" in needed
    found = sdpa_backward(grads[0], query, key, value, *outputs, *options)
    return dict(zip(("query", "key", "value", "mask"), found, strict=False))


@pack.op(
    "torchtpu::sdpa(Tensor query, Tensor key, Tensor value, Tensor? mask=None, Tensor? seed=None, "
    "float dropout_p=0.0, bool is_causal=False, float? scale=None) -> (Tensor output, Tensor largest, Tensor total)",
    static=STATIC, fake=_fake, gradient=_gradient,
)  # fmt: skip
def sdpa(
    query: Array, key: Array, value: Array, mask: Maybe = None, seed: Maybe = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Attention of (…, heads, queries, width) to keys and values of (…, heads / groups, keys, width).

    ``mask`` broadcasts to (…, heads, queries, keys): True where a key is seen, or a number to add. A row
    that sees no key is 0. ``scale`` is 1 / √width where it is None; causal hides keys behind the query's
    place, both counted from the start. Dropout draws from ``seed``, two 32-bit integers. The other results
    are of each row (…, heads, queries): the largest score (0 if it sees no key), and the sum of exponentials
    of the scores relative to it; float32, float64 for float64.
    """
    lead, heads, groups = _grouped(query, key)
    queries, keys, values = _rows(query, heads, groups), _columns(key), _columns(value)
    hidden = None if mask is None else _mask(mask, lead, heads, groups)
    scores = _scores(queries, keys, hidden, is_causal, _scale(scale, query.shape[-1]))
    top = _largest(scores)
    weights, total = _weights(scores, (top, None))
    weights = _dropped(weights, _factor(seed, dropout_p, weights.shape))
    output = _product("bhgls,bhse->bhgle", weights.astype(value.dtype), values) / _divisor(total)
    shape = (*query.shape[:-1], value.shape[-1])
    return (
        output.reshape(shape).astype(query.dtype),
        top.reshape(query.shape[:-1]),
        total.reshape(query.shape[:-1]),
    )


def _fake_backward(grad: Any, query: Any, key: Any, value: Any, *rest: Any) -> list[Any]:
    """Fresh tensors in the shapes of the inputs."""
    mask, mask_grad = rest[-6], rest[-1]
    return [t.new_empty(t.shape) for t in (query, key, value, *([mask] if mask_grad else []))]


def _second(
    grads: Sequence[Any], outputs: Sequence[Any], needed: frozenset[str], grad: Any, query: Any, key: Any,
    value: Any, output: Any, largest: Any, total: Any, mask: Any, *options: Any,
) -> dict[str, Any]:  # fmt: skip
    """The derivative of the backward as a function of its inputs alone, without what the forward kept."""
    import torch

    graph, named = (
        torch.is_grad_enabled(),
        {"grad": grad, "query": query, "key": key, "value": value, "mask": mask},
    )
    wanted = {name: t for name, t in named.items() if name in needed}
    with torch.enable_grad():
        again = sdpa_gradients(grad, query, key, value, mask, *options)
    pairs = [(a, g) for a, g in zip(again, grads[0], strict=True) if g is not None]
    found = torch.autograd.grad(
        [a for a, _ in pairs],
        list(wanted.values()),
        [g for _, g in pairs],
        create_graph=graph,
        allow_unused=True,
    )
    return dict(zip(wanted, found, strict=True))


_OPTIONS = "Tensor? mask, Tensor? seed, float dropout_p, bool is_causal, float? scale, bool mask_grad"


@pack.op(
    "torchtpu::sdpa_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor output, Tensor largest, "
    f"Tensor total, {_OPTIONS}) -> Tensor[]",
    static=STATIC, fake=_fake_backward, gradient=_second,
)  # fmt: skip
def sdpa_backward(
    grad: Array, query: Array, key: Array, value: Array, output: Array, largest: Array, total: Array,
    mask: Maybe, seed: Maybe, dropout_p: float, is_causal: bool, scale: float | None, mask_grad: bool,
) -> list[Array]:  # fmt: skip
    """The gradients of query, key and value, and of the mask if ``mask_grad``, in the inputs' shapes and dtypes.

    With the weights P = exp(S - largest) / total and dP = dO Vᵀ: dV = Pᵀ dO, dS = P (dP - Σ dP P), dQ = dS K,
    dK = dSᵀ Q (Dao et al., 2022, appendix B.2). The sum is that of dO O too, for which ``output`` is here; over
    P itself it is exact where one key has all the weight.
    """
    return _pull(
        (grad, query, key, value), (largest, total), mask, seed, dropout_p, is_causal, scale, mask_grad
    )


@pack.op(
    f"torchtpu::sdpa_gradients(Tensor grad, Tensor query, Tensor key, Tensor value, {_OPTIONS}) -> Tensor[]",
    static=STATIC, fake=_fake_backward,
)  # fmt: skip
def sdpa_gradients(
    grad: Array, query: Array, key: Array, value: Array, mask: Maybe, seed: Maybe, dropout_p: float,
    is_causal: bool, scale: float | None, mask_grad: bool,
) -> list[Array]:  # fmt: skip
    """`sdpa_backward` from the inputs alone, which is what has derivatives; half types become float32 inside."""
    inputs = [wide(x) for x in (grad, query, key, value)]
    found = _pull(inputs, None, mask, seed, dropout_p, is_causal, scale, mask_grad)
    targets = [x for x in (query, key, value, mask) if x is not None]
    return [g.astype(x.dtype) for g, x in zip(found, targets, strict=False)]


def _pull(
    inputs: Sequence[Array], rows: tuple[Array, Array] | None, mask: Maybe, seed: Maybe, dropout_p: float,
    is_causal: bool, scale: float | None, mask_grad: bool,
) -> list[Array]:  # fmt: skip
    """The gradients; ``rows`` are the largest score and the sum of each row, if they are known."""
    grad, query, key, value = inputs
    lead, heads, groups = _grouped(query, key)
    queries, grads = _rows(query, heads, groups), _rows(grad, heads, groups)
    keys, values = _columns(key), _columns(value)
    hidden = None if mask is None else _mask(mask, lead, heads, groups)
    factor = _scale(scale, query.shape[-1])
    scores = _scores(queries, keys, hidden, is_causal, factor)
    weights, total = _weights(scores, rows)
    weights = weights / _divisor(total)
    drop = _factor(seed, dropout_p, weights.shape)
    pull = _dropped(_product("bhgle,bhse->bhgls", grads, values), drop)
    pull = weights * (pull - jnp.sum(pull * weights, axis=-1, keepdims=True))
    narrow = pull.astype(query.dtype)
    found = [
        _product("bhgls,bhse->bhgle", narrow, keys) * factor,
        _product("bhgls,bhgle->bhse", narrow, queries) * factor,
        _product("bhgls,bhgle->bhse", _dropped(weights, drop).astype(grad.dtype), grads),
    ]
    found = [g.reshape(x.shape).astype(x.dtype) for g, x in zip(found, (query, key, value), strict=True)]
    if mask_grad:
        assert mask is not None
        full = pull.reshape(*lead, heads * groups, *pull.shape[-2:])
        found.append(_summed(full, mask.shape).astype(mask.dtype))
    return found


def _summed(x: Array, shape: tuple[int, ...]) -> Array:
    """``x`` added up over the dimensions along which ``shape`` was broadcast."""
    x = jnp.sum(x, axis=tuple(range(x.ndim - len(shape))))
    return jnp.sum(x, axis=tuple(i for i, n in enumerate(shape) if n != x.shape[i]), keepdims=True)


def _plain(tensors: Sequence[Any]) -> bool:
    """Whether these are tensors of the device alone: no transform, dual number or wrapper looks at the parts."""
    import torch
    from torch.autograd import forward_ad
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    if torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0:
        return False
    same = all(t.device == tensors[0].device and t.dim() >= 2 for t in tensors[:3])
    return same and not any(type(t) is not torch.Tensor and is_traceable_wrapper_subclass(t) for t in tensors)


def _fits(inputs: Sequence[Any], enable_gqa: bool) -> bool:
    """Whether width, length, dtype and heads fit, and the heads group as the operator wants them."""
    import torch

    query, key, value = inputs
    dtypes = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    if not (query.dtype == key.dtype == value.dtype and query.dtype in dtypes):
        return False
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        return False
    heads, shared = query.shape[-3], key.shape[-3]
    if shared != value.shape[-3] or heads == 0 or shared == 0:
        return False
    return shared == heads or shared == 1 or (enable_gqa and heads % shared == 0)


def _alike(query: Any, key: Any, value: Any) -> list[Any]:
    """The three with a dimension for heads, and the same dimensions before it, by views."""
    import torch

    found = [t.unsqueeze(0) if t.dim() == 2 else t for t in (query, key, value)]
    leads = [t.shape[:-3] for t in found]
    if leads[0] != leads[1] or leads[0] != leads[2]:
        lead = torch.broadcast_shapes(*leads)
        found = [t.expand(*lead, *t.shape[-3:]) for t in found]
    return found


def _broadcasts(mask: Any, wanted: Sequence[Any]) -> bool:
    """Whether the mask is one of torch's dtypes and shapes."""
    import torch

    known = mask.dtype in (torch.bool, torch.float32) or mask.dtype == wanted[0].dtype
    query, key = wanted[:2]
    full = (*query.shape[:-1], key.shape[-2])
    if not known or mask.dim() > len(full) or mask.device != query.device:
        return False
    return all(m in (1, n) for m, n in zip(reversed(mask.shape), reversed(full), strict=False))


@pack.decomposition("aten::scaled_dot_product_attention", when="always")
def scaled_dot_product_attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    *, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """torch's attention as one operator; what that does not take is left to torch, its errors included."""
    import torch

    masks = () if attn_mask is None else (attn_mask,)
    if not _plain((query, key, value, *masks)) or (masks and is_causal) or not 0 <= dropout_p <= 1:
        return NotImplemented
    try:
        inputs = _alike(query, key, value)
    except RuntimeError:  # they do not broadcast
        return NotImplemented
    if not _fits(inputs, enable_gqa) or (masks and not _broadcasts(attn_mask, inputs)):
        return NotImplemented
    seed = None
    if dropout_p > 0:
        seed = torch.empty(2, dtype=torch.int32, device=query.device).random_()
    result = sdpa(*inputs, attn_mask, seed, dropout_p, is_causal, scale)[0]
    return result.squeeze(0) if max(t.dim() for t in (query, key, value)) == 2 else result
