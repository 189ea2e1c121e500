"""What a new operator does without the device: shapes from its JAX function, and values of CPU tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any


def _mapped(reference: Callable[..., Any], args: Any, kwargs: Any, tensor: Callable[[Any], Any]) -> Any:
    """``reference`` on arguments whose tensors became what ``tensor`` makes of them, and dtypes JAX's."""
    import jax.numpy as jnp
    import torch
    from torch.utils._pytree import tree_map

    def change(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return tensor(value)
        return jnp.dtype(str(value)[6:]) if isinstance(value, torch.dtype) else value

    args, kwargs = tree_map(change, (args, kwargs))
    return reference(*args, **kwargs)


def _dtype(tensor: Any) -> Any:
    import jax.numpy as jnp

    return jnp.dtype(str(tensor.dtype)[6:])  # torch and NumPy use the same names


def shapes(reference: Callable[..., Any]) -> Callable[..., Any]:
    """Gives results' shapes and dtypes, as tensors without data on the arguments' device."""

    def fake(*args: Any, **kwargs: Any) -> Any:
        import jax
        import torch
        from torch.utils._pytree import tree_leaves

        given = [v for v in tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
        avals = [jax.ShapeDtypeStruct(tuple(map(int, v.shape)), _dtype(v)) for v in given]

        def call(*arrays: Any) -> Any:
            rest = iter(arrays)
            return _mapped(reference, args, kwargs, lambda _: next(rest))

        with jax.enable_x64(True):
            out = jax.eval_shape(call, *avals)
        device = next((v.device for v in given if v.dim()), given[0].device if given else None)
        return jax.tree.map(
            lambda o: torch.empty(o.shape, dtype=getattr(torch, o.dtype.name), device=device), out
        )

    return fake


def on_cpu(reference: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel for CPU tensors: they run through the reference, on JAX's CPU client where there is one."""

    def run(*args: Any, **kwargs: Any) -> Any:
        import jax
        import torch

        torch.empty(0, device="tpu")  # starts JAX as the device wants it
        with jax.enable_x64(True), jax.default_device(_host()):
            out = _mapped(reference, args, kwargs, to_array)
            return jax.tree.map(to_tensor, out)

    return run


@cache
def _host() -> Any:
    import jax

    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS names the accelerator only
        return None


def to_array(tensor: Any) -> Any:
    """A JAX array, on the default device, with a tensor's values."""
    import jax.numpy as jnp
    import torch

    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    raw = plain.reshape(-1).view(torch.uint8).numpy()  # bytes, as NumPy lacks bfloat16
    return jnp.asarray(raw.view(_dtype(tensor)).reshape(tuple(tensor.shape)))


def to_tensor(array: Any) -> Any:
    """A CPU tensor with an array's values."""
    import numpy as np
    import torch

    host = np.array(array)
    flat = torch.from_numpy(host.reshape(-1).view(np.uint8))
    return flat.view(getattr(torch, array.dtype.name)).reshape(host.shape)
