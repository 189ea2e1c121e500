"""Pallas kernels for torchtpu; none yet."""

__version__ = "0.1.0"
