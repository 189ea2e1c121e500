"""What the authors of packs test with: `conformance`, the kit, and `toy`, a small pack with every hook."""

from torchtpu.testing.conformance import Report, conformance

__all__ = ["Report", "conformance"]
