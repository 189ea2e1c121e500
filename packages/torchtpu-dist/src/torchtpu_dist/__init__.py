"""Distributed training for torchtpu; none of it yet."""

__version__ = "0.1.0"
