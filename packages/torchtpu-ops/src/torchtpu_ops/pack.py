"""The finished pack: importing this module registers every family of lowerings."""

from importlib import import_module

from torchtpu_ops._pack import pack

_NAMES = """activation attention bag conv ctc distance factor factory fft foreach fractional histogram indexing ldl
    linalg loss matmul nested norm optim pad pointwise pool quant random reduce resample rnn scatter sdpa segment
    shape sort special sync_norm"""
FAMILIES = tuple(import_module(f"torchtpu_ops.{name}") for name in _NAMES.split())

__all__ = ["FAMILIES", "pack"]
