"""The two lowerings that core needs by itself: copying into and out of strided tensors."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import torch

from torchtpu.dispatch.call import make_call
from torchtpu.dispatch.schema import Family
from torchtpu.plugins import Lowering


def _copy(self: jax.Array, src: jax.Array) -> jax.Array:
    if jnp.iscomplexobj(src) and not jnp.iscomplexobj(self):
        src = src.real
    return jnp.broadcast_to(src.astype(self.dtype), self.shape)


def _clone(self: jax.Array) -> jax.Array:
    return self


_COPY = Lowering(op="aten::copy", fn=_copy)
_CLONE = Lowering(op="aten::clone", fn=_clone)

copy_: Any = make_call(Family(torch.ops.aten.copy_.default, _COPY, ("self",), (), ()))
clone: Any = make_call(Family(torch.ops.aten.clone.default, _CLONE, (), (), ()))
