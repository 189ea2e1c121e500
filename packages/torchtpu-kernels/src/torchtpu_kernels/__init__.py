"""Pallas kernels for torchtpu: attention."""

__version__ = "0.1.0"
