"""ATen lowerings for torchtpu, by family."""

__version__ = "0.1.0"
