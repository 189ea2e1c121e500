"""Distributed training for torchtpu: the c10d backend "tpu"."""

__version__ = "0.1.0"
