"""The device's random stream: a seed and a count of draws, mirrored on the host and the device."""

from __future__ import annotations

import struct
import threading
from typing import Any

import jax
import numpy as np
import torch

from torchtpu.runtime import transfer


class Stream:
    """A counter-based stream: draw ``n`` of seed ``s`` is threefry's ``fold_in(s, n)``.

    The device array ``state`` (uint32: seed low, seed high, offset low, offset high) is an input and
    output of each random program; the host copy makes saving it free of waiting.
    """

    def __init__(self, seed: int) -> None:
        self.lock = threading.RLock()
        self.set(seed, 0)

    def set(self, seed: int, offset: int) -> None:
        """Start over at draw ``offset`` of ``seed``."""
        self.seed, self.offset = seed % 2**64, offset
        self.state: Any = None

    def take(self) -> Any:
        """The device state for one draw; the host count moves on."""
        if self.state is None:
            words = [self.seed & 0xFFFFFFFF, self.seed >> 32, self.offset & 0xFFFFFFFF, self.offset >> 32]
            self.state = transfer.put(np.array(words, np.uint32))
        self.offset += 1
        return self.state

    def get_state(self) -> torch.Tensor:
        """Seed and offset as a CPU ByteTensor of 16 bytes."""
        return torch.frombuffer(
            bytearray(struct.pack("<QQ", self.seed, self.offset)), dtype=torch.uint8
        ).clone()

    def set_state(self, state: torch.Tensor) -> None:
        """Restore what :meth:`get_state` gave; TypeError or RuntimeError for anything else."""
        if not isinstance(state, torch.Tensor) or state.dtype != torch.uint8:
            raise TypeError("RNG state must be a torch.ByteTensor")
        if state.numel() != 16:
            raise RuntimeError("RNG state is wrong size: expected 16 bytes")
        self.set(*struct.unpack("<QQ", bytes(state.cpu().tolist())))


def key_and_next(state: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Inside a program: this draw's JAX key and the state after it."""
    with jax.threefry_partitionable(True):
        seed = state[0].astype(np.uint64) | (state[1].astype(np.uint64) << np.uint64(32))
        root = jax.random.key(seed, impl="threefry2x32")
        key = jax.random.fold_in(jax.random.fold_in(root, state[3]), state[2])
    low = state[2] + np.uint32(1)
    return key, state.at[2].set(low).at[3].add((low == 0).astype(np.uint32))


default_stream = Stream(0)
default_stream.set(int(torch.initial_seed()), 0)


class Generator(torch.Generator):
    """A generator for ``generator=`` on the device; ``device`` says ``tpu``, the state is the host's."""

    def __new__(cls, device: Any = "tpu") -> Generator:
        """Make the host object that torch's argument parser accepts."""
        return super().__new__(cls, device="cpu")

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The tpu device."""
        return torch.device("tpu", 0)


def stream_of(generator: torch.Generator | None) -> Stream:
    """The device's stream, or one whose seed is the next number of ``generator``."""
    if generator is None:
        return default_stream
    return Stream(int(torch.randint(2**62, (), generator=generator)))
