"""Pallas kernels for torchtpu, and JAX functions as torch operators; see `torchtpu_kernels.pallas`."""

__version__ = "0.1.0"
